"""Which base model a command takes is decided by what the service offers."""

from collections.abc import Callable

import pytest
from tinker.types import SupportedModel

from coderl_tasks.errors import ConfigError
from coderl_tasks.planning.early_checks import BARE_MODELS, RecordedModel, choose_model, with_decided_model
from coderl_tasks.services import Services
from coderl_tasks.settings import CurateSettings, TrainSettings, parse_settings
from tests.conftest import Serve
from tests.faults.models_proxy import ModelsProxy

RECIPES, FIRST = BARE_MODELS[:2]
OTHERS = ("Qwen/Qwen3-8B", "Qwen/Qwen3.6-27B", "moonshotai/Kimi-K2.6")
Offering = Callable[..., ModelsProxy]


@pytest.fixture
def offering(embedded: Services, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Offering:
    """`offering(names)`: a service that offers these models, named by the environment."""

    def offer(*names: str) -> ModelsProxy:
        proxy = ModelsProxy(str(embedded.tinker_url), dict.fromkeys(names, "data/nano"))
        monkeypatch.setenv("TINKER_BASE_URL", serve(proxy.app()))
        monkeypatch.setenv("TINKER_API_KEY", str(embedded.tinker_api_key))
        return proxy

    return offer


def models(*names: str, **stated: bool) -> dict[str, SupportedModel]:
    return {name: SupportedModel(model_name=name, **stated) for name in names}


@pytest.mark.parametrize(
    ("offered", "taken", "why"),
    [
        (models(*OTHERS, FIRST, RECIPES), RECIPES, "the default, which the service offers"),
        (models(*OTHERS, FIRST), FIRST, f"does not offer the default, {RECIPES}"),
        (models(*OTHERS), "Qwen/Qwen3-8B", "does not offer the default"),
        (models(FIRST, trainable=False) | models(*OTHERS), "Qwen/Qwen3-8B", "does not offer the default"),
        (models(FIRST, sampleable=False) | models("Qwen/Qwen3.6-27B"), "Qwen/Qwen3.6-27B", ""),
    ],
)
def test_the_first_choice_that_is_offered_is_taken(offered: dict[str, SupportedModel], taken: str, why: str) -> None:
    model_name, reason = choose_model(offered)
    assert model_name == taken
    assert why in reason


def test_where_no_choice_is_offered_a_name_is_asked_for() -> None:
    unknown = [f"maker/model-{number}" for number in range(9)]
    with pytest.raises(
        ConfigError, match=r"set model_name to one that it offers: maker/model-0, .* and 3 more"
    ) as caught:
        choose_model(models(*unknown))
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="it offers: none"):
        choose_model({})


async def test_the_service_decides_once_for_a_command_that_names_no_model(offering: Offering) -> None:
    proxy = offering(*OTHERS, FIRST)
    for bare in (TrainSettings(), CurateSettings.model_validate({"limit": 3})):  # as a deployment's run gets them
        proxy.asked = 0
        decided = await with_decided_model(bare)
        assert decided.model_name == FIRST
        assert decided.model_reason is not None and RECIPES in decided.model_reason
        proxy.models = {RECIPES: "data/nano"}
        again = await with_decided_model(decided.with_changes(seed=3))
        assert (again.model_name, again.model_reason, again.seed) == (FIRST, decided.model_reason, 3)
        assert proxy.asked == 1
        proxy.models = dict.fromkeys((*OTHERS, FIRST), "data/nano")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model_name": "qwen3.5-4b"}, f"model_name is qwen3.5-4b, which .* does not offer .near ones .*: {FIRST}"),
        ({"model_name": RECIPES}, "Qwen/Qwen3-8B"),
        ({"model_name": "nothing-like-it"}, "it offers: Qwen/Qwen3-8B, Qwen/Qwen3.5-4B, Qwen/Qwen3.6-27B, moonshotai"),
        ({"preset": "nano"}, "model_name is data/nano, .*the embedded server, .* serves it"),
    ],
)
async def test_a_named_model_that_is_not_offered_is_refused(
    offering: Offering, given: dict[str, str], says: str
) -> None:
    offering(*OTHERS, FIRST)
    with pytest.raises(ConfigError, match=says) as caught:
        await with_decided_model(parse_settings(CurateSettings, given))
    assert "\n" not in str(caught.value)


async def test_a_named_model_that_is_offered_is_taken(offering: Offering) -> None:
    proxy = offering(*OTHERS, FIRST)
    decided = await with_decided_model(TrainSettings(model_name="Qwen/Qwen3.6-27B"))
    assert (decided.model_name, decided.model_reason, proxy.asked) == ("Qwen/Qwen3.6-27B", "", 1)


async def test_what_is_gone_on_with_keeps_its_model_or_is_refused(offering: Offering) -> None:
    proxy = offering(*OTHERS, RECIPES)
    run = RecordedModel("the run R", "Qwen/Qwen3-8B", "start a new one")
    decided = await with_decided_model(TrainSettings(), run)
    assert (decided.model_name, decided.model_reason) == ("Qwen/Qwen3-8B", "the run R was made with it")
    proxy.models = {RECIPES: "data/nano"}
    for settings in (TrainSettings(), TrainSettings(model_name="Qwen/Qwen3-8B")):
        with pytest.raises(ConfigError, match=f"the run R was made with Qwen/Qwen3-8B, .*{RECIPES}.: start a new one"):
            await with_decided_model(settings, run)


async def test_the_embedded_server_is_not_asked() -> None:
    decided = await with_decided_model(TrainSettings(preset="nano"))
    assert (decided.model_name, decided.model_reason) == ("data/nano", "preset nano")
    with pytest.raises(ConfigError, match="set TINKER_API_KEY"):
        await with_decided_model(TrainSettings())
