"""The probe on the embedded server, and on gateways that make it do what services have been seen to do."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from coderl_tasks.errors import CoderlError, ConfigError, InfraError
from coderl_tasks.paths import NANO_MODEL
from coderl_tasks.policy import clients
from coderl_tasks.policy.grpo import IMPORTANCE_SAMPLING, PolicyLoss
from coderl_tasks.policy.probe import Probe, probe_service, scaled_bounds
from coderl_tasks.prompts import Renderer, get_renderer
from coderl_tasks.prompts.tokenizer import load_tokenizer
from coderl_tasks.services import Services
from tests.conftest import Serve
from tests.faults.sampling_faults import SamplingFaults


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return get_renderer("qwen3_instruct", load_tokenizer(NANO_MODEL))


async def probed(
    url: str | None,
    used: Services,
    renderer: Renderer,
    temperature: float = 1.0,
    loss: PolicyLoss = IMPORTANCE_SAMPLING,
) -> Probe:
    assert url is not None
    service = await clients.connect(url, used.tinker_api_key)
    try:
        trainer = await clients.create_training_client(service, NANO_MODEL, lora_rank=8, seed=0)
        sampler = await trainer.save_weights_and_get_sampling_client()
        return await probe_service(
            sampler, trainer, renderer, service=url, model=NANO_MODEL, temperature=temperature, loss=loss
        )
    finally:
        await clients.disconnect(service)


async def test_the_embedded_server_does_as_it_should(embedded: Services, renderer: Renderer) -> None:
    found = await probed(embedded.tinker_url, embedded, renderer)
    assert not found.seeds_clone and found.greedy_repeats and found.stops == "returned"
    assert found.served == NANO_MODEL and found.gap < 1e-4 and found.logprobs_at is None
    assert found.duplicate_rate < 0.1 and 50 < found.tokens < 500
    assert found.warnings() == [] and found.fault() is None
    odd = PolicyLoss("ppo", {"clip_low_threshold": 0.8, "clip_lower_threshold": 0.9})
    with pytest.raises(ConfigError, match=r"with loss_fn=ppo: .*clip_lower_threshold"):
        await probed(embedded.tinker_url, embedded, renderer, loss=odd)
    assert Probe(**asdict(found)) == found


async def test_at_another_temperature_it_says_what_ratios_mean(embedded: Services, renderer: Renderer) -> None:
    found = await probed(embedded.tinker_url, embedded, renderer, 0.7)
    assert found.logprobs_at == "scaled"
    (warning,) = found.warnings()
    assert warning.startswith("temperature=0.7: ")
    found.require_trainable()


async def test_seeds_that_clone_are_found_and_dropped(embedded: Services, renderer: Renderer, serve: Serve) -> None:
    gateway = SamplingFaults(str(embedded.tinker_url), clones=True)
    found = await probed(serve(gateway.app()), embedded, renderer)
    assert found.seeds_clone and gateway.met["clones"] and None in gateway.seeds
    (warning,) = found.warnings()
    assert "no seeds are sent" in warning
    found.require_trainable()


@pytest.mark.parametrize(
    ("faults", "temperature", "error", "says"),
    [
        ({"clones": True, "unseeded_too": True}, 1.0, CoderlError, "all 8 samples of a request are the same"),
        ({"shift": lambda logprobs, _: logprobs - np.float32(1)}, 1.0, CoderlError, "differ by 1 nats per token"),
        (
            {"shift": lambda logprobs, t: (logprobs / (t or 1)).astype(np.float32)},
            0.7,
            ConfigError,
            "neither those of the scaled distribution nor those at temperature 1",
        ),
        ({"lossy": 1.0}, 1.0, InfraError, "no sample .* has log-probabilities"),
    ],
)
async def test_what_must_not_be_trained_on_is_refused(
    faults: dict[str, Any],
    temperature: float,
    error: type[CoderlError],
    says: str,
    embedded: Services,
    renderer: Renderer,
    serve: Serve,
) -> None:
    gateway = SamplingFaults(str(embedded.tinker_url), **faults)
    with pytest.raises(error, match=says) as caught:
        (await probed(serve(gateway.app()), embedded, renderer, temperature)).require_trainable()
    assert caught.type is error and gateway.met
    assert "\n" not in str(caught.value)


def probe(**changes: Any) -> Probe:
    good = Probe("http://x", "a", 1.0, "a", False, True, "returned", 0.01, None, None, 0.0, 300)
    return replace(good, **changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"gap": 0.12}, "differ by 0.12 nats per token at temperature 1 (numerical noise stays below 0.05)"),
        ({"served": "b"}, "it trains b, and a was asked for"),
        ({"stops": "left out"}, "do not end with their stop token"),
        ({"stops": "none seen"}, "stop tokens may be ignored"),
        ({"logprobs_at": "unknown", "gap_at_temperature": 0.3}, "gives no top-k log-probabilities"),
    ],
)
def test_what_a_run_has_to_live_with_is_said(changes: dict[str, Any], says: str) -> None:
    (warning,) = probe(**changes).warnings()
    assert says in warning
    assert probe().warnings() == []


def test_a_gap_that_is_no_number_is_a_fault() -> None:
    assert probe(gap=0.2).fault() is None
    for gap in (0.6, float("nan")):
        with pytest.raises(CoderlError, match="is not trained on"):
            probe(gap=gap).require_trainable()


@pytest.mark.parametrize("temperature", [0.3, 0.7, 0.95, 1.1, 2.0])
@pytest.mark.parametrize("k", [5, 50, 400])
def test_the_scaled_log_probability_lies_within_its_bounds(temperature: float, k: int) -> None:
    logits = np.random.default_rng(0).normal(0, 4, (20, 400))
    ones = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    scaled = logits / temperature - np.log(np.exp(logits / temperature).sum(axis=1, keepdims=True))
    order = np.argsort(-ones, axis=1)[:, :k]
    top = [[(int(token), float(row[token])) for token in tokens] for row, tokens in zip(ones, order, strict=True)]
    low, high = scaled_bounds(ones[:, 7], top, temperature)
    assert (low <= scaled[:, 7] + 1e-6).all() and (scaled[:, 7] <= high + 1e-6).all()
    assert k < 400 or np.abs(high - low).max() < 1e-5
