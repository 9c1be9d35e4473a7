"""Checkpoints: what is loaded goes on exactly where what was saved stood, and peft reads it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from local_servers.tinker.engine.adapter import Adapter
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine_types import AdamSettings, SampleSpec, TrainDatum
from local_servers.tinker.refusal import BadRequest


def one_step(engine: Engine, adapter: Adapter, cases: Any) -> None:
    tokens = np.array(cases.prompt(8, 30))
    inputs = {"target_tokens": tokens[1:], "weights": np.ones(29, dtype=np.float32)}
    engine.forward_backward(adapter, [TrainDatum(tokens[:-1], inputs)], "cross_entropy", {}, backward=True)
    engine.optim_step(adapter, AdamSettings(learning_rate=1e-2))


def test_training_goes_on_bit_for_bit(
    engine: Engine, trained: Callable[[int], Adapter], cases: Any, tmp_path: Path
) -> None:
    adapter = trained(0)
    engine.save_adapter(adapter, tmp_path / "state", optimizer=True)
    loaded = engine.load_adapter(tmp_path / "state", optimizer=True)
    assert (loaded.shape, loaded.seed, loaded.step) == (adapter.shape, adapter.seed, adapter.step)
    for one in (adapter, loaded):
        one_step(engine, one, cases)
    assert all(torch.equal(value, loaded.params[key]) for key, value in adapter.params.items())
    without = engine.load_adapter(tmp_path / "state", optimizer=False)
    one_step(engine, without, cases)
    assert without.step == 1
    assert any(not torch.equal(value, without.params[key]) for key, value in adapter.params.items())


def test_a_fresh_adapter_can_be_saved_with_its_optimizer(engine: Engine, tmp_path: Path) -> None:
    engine.save_adapter(engine.create_adapter(4, 0), tmp_path, optimizer=True)
    loaded = engine.load_adapter(tmp_path, optimizer=True)
    assert loaded.step == 0 and loaded.moments == {}


def test_sampler_weights_survive(engine: Engine, trained: Callable[[int], Adapter], cases: Any, tmp_path: Path) -> None:
    adapter = trained(0)
    weights = engine.sampler_weights(adapter)
    engine.save_adapter(adapter, tmp_path, optimizer=False)
    loaded = engine.sampler_weights(engine.load_adapter(tmp_path, optimizer=False))
    spec = SampleSpec(cases.prompt(0, 20), 3, 10)
    first, second = engine.sample([(weights, spec), (loaded, spec)])
    assert first == second


def test_peft_reads_the_adapter(
    engine: Engine, qwen3_folder: Path, trained: Callable[[int], Adapter], cases: Any, tmp_path: Path
) -> None:
    from peft import PeftModel  # seconds, which no process pays that collects this test and does not run it

    adapter = trained(0)
    weights = engine.sampler_weights(adapter)
    engine.save_adapter(adapter, tmp_path, optimizer=False)
    model = PeftModel.from_pretrained(cases.reference_model(qwen3_folder), tmp_path)
    spec = SampleSpec(cases.prompt(0, 20), 1, 10, prompt_logprobs=True)
    result = engine.sample([(weights, spec)])[0]
    with torch.no_grad():
        expected = cases.reference_logprobs(model, spec.prompt + result.sequences[0].tokens)
    assert result.prompt_logprobs is not None
    found = result.prompt_logprobs[1:] + result.sequences[0].logprobs
    np.testing.assert_allclose(np.array(found, float), expected.numpy(), atol=1e-4)


def test_what_is_missing_or_does_not_fit_is_refused(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"has no adapter_model\.safetensors"):
        engine.load_adapter(tmp_path, optimizer=False)
    engine.save_adapter(engine.create_adapter(4, 0), tmp_path / "a", optimizer=False)
    with pytest.raises(BadRequest, match=r"has no optimizer\.safetensors"):
        engine.load_adapter(tmp_path / "a", optimizer=True)
    adapter = engine.create_adapter(4, 0)
    adapter.params["model.layers.0.mlp.up_proj.lora_B"] = torch.zeros(7, 4)
    engine.save_adapter(adapter, tmp_path / "b", optimizer=False)
    with pytest.raises(BadRequest, match=r"does not fit the base model at model\.layers\.0\.mlp\.up_proj"):
        engine.load_adapter(tmp_path / "b", optimizer=False)
