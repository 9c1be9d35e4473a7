"""Which base model a command takes: decided once, before anything is written, by what the Tinker service offers.

| what is known of the model                  | taken, if the service offers it    | else                        |
|---------------------------------------------|------------------------------------|-----------------------------|
| named (`model_name`, a preset)              | that one                           | ConfigError, with near ones |
| recorded by the run or pool that is gone on | that one                           | ConfigError, with near ones |
| nothing                                     | the first of `BARE_MODELS` offered | ConfigError that asks       |

The service's models come and go. The embedded server is not asked: it is started for the model that
`services.for_this_machine` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tinker.types import SupportedModel

from coderl_tasks.errors import ConfigError
from coderl_tasks.policy.clients import not_offered, some_of, supported_models
from coderl_tasks.services import FlowT, check_environment, tinker_credentials, uses_tinker_service
from coderl_tasks.settings import DEFAULT_MODEL

BARE_MODELS = (
    DEFAULT_MODEL,
    "Qwen/Qwen3.5-4B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3.5-9B",
    "Qwen/Qwen3.6-35B-A3B",
    "Qwen/Qwen3.6-27B",
    "Qwen/Qwen3.8-27B",
)
"""What a command that names no model takes: the recipe's, then small current ones, by active parameters and age."""


@dataclass(frozen=True, slots=True)
class MadeWith:
    """What a command goes on with, in words ("the run PATH"), the base model that it was made with, and in words what
    to do instead where the service does not offer that."""

    what: str
    model_name: str
    instead: str


async def with_decided_model(settings: FlowT, record: MadeWith | None = None) -> FlowT:
    """`settings` with the base model to use and the reason for it; as they are where that is decided already.

    `record` is what the command goes on with, if there is anything. Raises ConfigError for a bad environment and where
    the service does not offer the model, InfraError if it does not answer.
    """
    if settings.model_reason is not None:
        return settings
    check_environment(settings.model_name)
    of_preset = settings.names_model and "model_name" not in settings.given
    reason = f"preset {settings.preset}" if of_preset else ""
    if not uses_tinker_service():
        return settings.with_model(settings.model_name, reason)
    url, key = tinker_credentials()
    offered = await supported_models(url, key)
    named = settings.names_model
    if record is not None and (not named or settings.model_name == record.model_name):
        if record.model_name not in offered:
            said = not_offered(record.model_name, offered)
            raise ConfigError(f"{record.what} was made with {said}: {record.instead}")
        return settings.with_model(record.model_name, f"{record.what} was made with it")
    if not named:
        return settings.with_model(*choose_model(offered))
    if settings.model_name not in offered:
        raise ConfigError(f"model_name is {not_offered(settings.model_name, offered)}")
    return settings.with_model(settings.model_name, reason)


def choose_model(offered: Mapping[str, SupportedModel]) -> tuple[str, str]:
    """The model that a command takes which names none, and why. ConfigError if none of `BARE_MODELS` is offered."""
    usable = [name for name, model in offered.items() if model.trainable is not False and model.sampleable is not False]
    chosen = next((name for name in BARE_MODELS if name in usable), None)
    if chosen is None:
        raise ConfigError(
            f"the Tinker service offers none of the models that are taken where none is named "
            f"({', '.join(BARE_MODELS)}): set model_name to one that it offers: {some_of(usable)}"
        )
    if chosen == DEFAULT_MODEL:
        return chosen, "the default, which the service offers"
    return (
        chosen,
        f"the service does not offer the default, {DEFAULT_MODEL}; this is the first substitute that it offers",
    )
