"""Every refusal says what is wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from local_servers import memory
from local_servers.memory import OutOfMemory
from local_servers.server_errors import SetupError
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine_types import SamplerTopK, SampleSpec, TrainDatum
from local_servers.tinker.refusal import BadRequest
from tests.local_servers.tinker_engine.conftest import random_model

TOKENS = np.arange(4)
INPUTS: dict[str, np.ndarray] = {
    "target_tokens": np.arange(1, 5),
    "logprobs": np.zeros(4, dtype=np.float32),
    "advantages": np.ones(4, dtype=np.float32),
}


@pytest.mark.parametrize(
    ("tokens", "change", "message"),
    [
        (np.array([], dtype=np.int64), {}, "non-empty"),
        (np.zeros((2, 2), dtype=np.int64), {}, "non-empty sequence"),
        (np.array([0, 1, 2, 320]), {}, "model_input has token id 320, outside the vocabulary of 320"),
        (np.array([0, -1, 2, 3]), {}, "model_input has token id -1"),
        (np.zeros(4), {}, "must be integers"),
        (np.zeros(4097, dtype=np.int64), {}, "4097 tokens, the model's context is 4096"),
        (TOKENS, {"target_tokens": None}, r"needs loss_fn_inputs\['target_tokens'\]"),
        (TOKENS, {"advantages": None}, r"importance_sampling needs loss_fn_inputs\['advantages'\]"),
        (TOKENS, {"advantages": np.ones(3)}, r"advantages has shape \(3,\), model_input has 4 tokens"),
        (TOKENS, {"target_tokens": np.array([1, 2, 3, 999])}, "target_tokens has token id 999"),
        (TOKENS, {"logprobs": np.array([0, 0, np.nan, 0])}, "logprobs has a value that is not finite, at position 2"),
    ],
)
def test_bad_datums(engine: Engine, tokens: np.ndarray, change: dict[str, Any], message: str) -> None:
    inputs = {name: value for name, value in (INPUTS | change).items() if value is not None}
    good = TrainDatum(TOKENS, INPUTS)
    adapter = engine.create_adapter(4, 0)
    with pytest.raises(BadRequest, match=f"datum 1: .*{message}"):
        engine.forward_backward(adapter, [good, TrainDatum(tokens, inputs)], "importance_sampling", {}, backward=True)
    assert adapter.grads is None


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (None, r"gspo needs loss_fn_inputs\['sequence_ratio_mask'\]"),
        (np.zeros(4, dtype=np.float32), "sequence_ratio_mask marks no token"),
    ],
)
def test_gspo_needs_a_mask(engine: Engine, mask: np.ndarray | None, message: str) -> None:
    inputs = INPUTS if mask is None else INPUTS | {"sequence_ratio_mask": mask}
    with pytest.raises(BadRequest, match=message):
        engine.forward_backward(engine.create_adapter(4, 0), [TrainDatum(TOKENS, inputs)], "gspo", {}, backward=True)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (None, "stable_reinforce needs the sampler's recorded distributions"),
        (SamplerTopK(np.array([1]), np.array([[320]]), np.zeros((1, 1))), "the recorded distribution has token id 320"),
    ],
)
def test_stable_reinforce_needs_the_sampler(engine: Engine, sampler: SamplerTopK | None, message: str) -> None:
    datum = TrainDatum(TOKENS, INPUTS, sampler)
    with pytest.raises(BadRequest, match=message):
        engine.forward_backward(engine.create_adapter(4, 0), [datum], "stable_reinforce", {}, backward=True)


def test_no_datums(engine: Engine) -> None:
    with pytest.raises(BadRequest, match="no datums"):
        engine.forward_backward(engine.create_adapter(4, 0), [], "ppo", {}, backward=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": [1, 320]}, "the prompt has token id 320"),
        ({"prompt": [1] * 4096}, "4096 tokens and leaves no room in the model's context of 4096"),
        ({"num_samples": 0}, "num_samples"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"num_samples": 5000}, "at most 4096, not 5000"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": 1e-45}, r"temperature must be 0 \(greedy\), or from 0.01 to 100, not 1e-45"),
        ({"temperature": 1e30}, "from 0.01 to 100"),
        ({"temperature": float("inf")}, "from 0.01 to 100"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"topk_prompt_logprobs": -1}, "topk_prompt_logprobs"),
        ({"topk_prompt_logprobs": 100_000}, "nor more than 1024"),
        ({"stop_tokens": [5000]}, "stop has token id 5000"),
    ],
)
def test_bad_sampling_requests(engine: Engine, change: dict[str, Any], message: str) -> None:
    spec = replace(SampleSpec([1, 2, 3], num_samples=1, max_tokens=4), **change)
    with pytest.raises(BadRequest, match=message):
        engine.sample([(engine.sampler_weights(None), spec)])


@pytest.mark.parametrize("rank", [0, 321, 1_000_000])
def test_a_rank_beyond_the_layers_is_refused(engine: Engine, rank: int) -> None:
    with pytest.raises(
        BadRequest, match="at least 1" if rank == 0 else r"can be 320 at most: .* \(the largest here is"
    ):
        engine.create_adapter(rank, 0)
    assert engine.create_adapter(320, 0).shape.rank == 320


def test_what_there_is_no_memory_for_is_not_begun(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 17 << 20)
    with pytest.raises(OutOfMemory, match=r"training with LoRA rank 320 needs 0\.0 GiB, and 0\.0 GiB are free"):
        engine.create_adapter(320, 0)
    many = SampleSpec([1, 2, 3], num_samples=4096, max_tokens=4)
    with pytest.raises(OutOfMemory, match="sampling 4096 completions of 3 prompt tokens"):
        engine.running_request(engine.sampler_weights(None), many)
    long = SampleSpec([1] * 4000, num_samples=900, max_tokens=4)
    request = engine.running_request(engine.sampler_weights(None), long)
    batch = engine.sampling_batch()
    batch.requests.append(request)
    while batch.requests:
        batch.step()
    assert isinstance(request.error, OutOfMemory) and "the cache of the completions" in str(request.error)


def test_eos_tokens_come_from_the_model(engine: Engine) -> None:
    assert engine.eos_tokens == [257]


def test_an_architecture_with_a_sliding_window_is_refused(tmp_path: Path) -> None:
    model = random_model(
        "mistral",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=16,
    )
    model.save_pretrained(tmp_path)
    with pytest.raises(SetupError, match="sliding-window"):
        Engine(tmp_path)
