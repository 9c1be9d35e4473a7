"""The GRPO maths and the training step."""

import math
from concurrent.futures import Future
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import tinker
import torch
from hypothesis import given
from hypothesis import strategies as st

from coderl_tasks.policy.grpo import (
    UpdateFailedError,
    UpdateRefusedError,
    compute_advantages,
    make_datum,
    should_skip,
    train_step,
)

ADAM = tinker.AdamParams(learning_rate=1e-3)


@pytest.mark.parametrize(
    ("advantages", "skipped"),
    [([], True), ([0.0, 0.0], True), ([1e-8, -1e-8], True), ([2e-8, -2e-8], False), ([0.5, -0.5], False)],
)
def test_should_skip(advantages: list[float], skipped: bool) -> None:
    assert should_skip(advantages) is skipped


def test_advantages_are_deviations_without_std() -> None:
    assert compute_advantages([1.0, 0.0, 0.0, -0.1]) == pytest.approx([0.775, -0.225, -0.225, -0.325])
    assert compute_advantages([]) == []
    assert should_skip(compute_advantages([0.3] * 7))


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=40))
def test_advantages_sum_to_zero(rewards: list[float]) -> None:
    advantages = compute_advantages(rewards)
    assert math.isclose(sum(advantages), 0.0, abs_tol=1e-9)
    gaps = [reward - advantage for reward, advantage in zip(rewards, advantages, strict=True)]
    assert gaps == pytest.approx([gaps[0]] * len(gaps))


@pytest.mark.parametrize("form", ["completion", "tokens", "targets"])
def test_datum_for_every_logprob_length(form: str) -> None:
    tokens, ob_len = [10, 11, 12, 20, 21], 3
    per_token = [-0.1, -0.2, -0.3, -0.4, -0.5]
    logprobs = {"completion": per_token[3:], "tokens": per_token, "targets": per_token[1:]}[form]
    datum = make_datum(tokens, logprobs, ob_len, 0.75)
    assert datum.model_input.to_ints() == [10, 11, 12, 20]
    inputs = datum.loss_fn_inputs
    assert inputs["target_tokens"].tolist() == [11, 12, 20, 21]
    assert inputs["target_tokens"].dtype == "int64"
    assert inputs["logprobs"].tolist() == pytest.approx([0, 0, -0.4, -0.5])
    assert inputs["advantages"].tolist() == [0, 0, 0.75, 0.75]
    assert {inputs[name].dtype for name in ("logprobs", "advantages")} == {"float32"}


def test_a_datum_is_what_the_sdk_makes_of_lists_and_tensors() -> None:
    tokens, logprobs = [10, 11, 12, 20, 21], [-0.1, -0.2]
    masked = [0.0, 0.0, *logprobs]
    expected = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData.from_torch(torch.tensor(tokens[1:])),
            "logprobs": tinker.TensorData.from_torch(torch.tensor(masked)),
            "advantages": tinker.TensorData.from_torch(torch.tensor([0.0, 0.0, 0.75, 0.75])),
        },
    )
    for given_tokens in (tokens, tuple(tokens), np.array(tokens)):
        datum = make_datum(given_tokens, logprobs, 3, 0.75)
        assert datum.model_input == expected.model_input
        assert datum.model_input.model_dump() == expected.model_input.model_dump()
        assert datum.model_input.model_dump_json() == expected.model_input.model_dump_json()
        assert list(datum.loss_fn_inputs) == list(expected.loss_fn_inputs)
        for name, tensor in expected.loss_fn_inputs.items():
            made = datum.loss_fn_inputs[name]
            assert (made.dtype, made.shape, made.data, made.tolist()) == (
                tensor.dtype,
                tensor.shape,
                tensor.data,
                tensor.tolist(),
            )
            assert torch.equal(made.to_torch(), tensor.to_torch())


@given(st.integers(1, 30), st.integers(1, 30), st.sampled_from([0, 1, 2]))
def test_datum_shapes(ob_len: int, completion: int, form: int) -> None:
    n = ob_len + completion
    length = (completion, n, n - 1)[form]
    datum = make_datum(list(range(n)), [-1.0] * length, ob_len, 2.0)
    mask = np.arange(n - 1) >= ob_len - 1
    assert (datum.loss_fn_inputs["advantages"].to_numpy() == np.where(mask, 2.0, 0.0)).all()
    assert (datum.loss_fn_inputs["logprobs"].to_numpy() == np.where(mask, -1.0, 0.0)).all()
    assert datum.model_input.length == n - 1


@pytest.mark.parametrize(
    ("tokens", "logprobs", "ob_len", "message"),
    [
        ([1, 2, 3], [-1.0], 0, "ob_len"),
        ([1, 2, 3], [], 3, "empty"),
        ([], [], 1, "empty"),
        ([1, 2, 3, 4, 5], [-1.0], 3, "logprobs"),
        ([1, 2, 3, 4, 5], [-1.0] * 6, 3, "logprobs"),
        ([1, 2, 3, 4, 5], [], 3, "logprobs"),
    ],
)
def test_datum_refuses(tokens: list[int], logprobs: list[float], ob_len: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_datum(tokens, logprobs, ob_len, 1.0)


class Client:
    """A training client whose two futures answer, or fail, as told; `log` keeps the order of events."""

    def __init__(self, forward: Exception | None = None, optim: Exception | None = None) -> None:
        self.errors = {"forward": forward, "optim": optim}
        self.log: list[str] = []
        self.futures: dict[str, Future[str]] = {}

    def forward_backward(self, data: list[tinker.Datum], loss_fn: str, loss_fn_config: None) -> SimpleNamespace:
        assert loss_fn == "importance_sampling" and loss_fn_config is None
        return self._submit("forward")

    def optim_step(self, adam_params: tinker.AdamParams) -> SimpleNamespace:
        assert adam_params is ADAM
        return self._submit("optim")

    def _submit(self, name: str) -> SimpleNamespace:
        self.log.append(f"submit {name}")

        def result() -> str:
            self.log.append(f"wait {name}")
            return future.result(timeout=60)

        future = self.futures[name] = Future()
        error = self.errors[name]
        if error is not None:
            future.set_exception(error)
        elif self.errors["forward"] is None:  # or optim_step is never answered
            future.set_result(name)
        return SimpleNamespace(result=result, future=lambda: future)


def refusal(status: int) -> tinker.APIStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/api/v1/forward_backward")
    return tinker.APIStatusError("bad datum", response=httpx.Response(status, request=request), body=None)


DATUM = make_datum([1, 2, 3], [-1.0], 2, 1.0)


def test_train_step_submits_both_then_waits_on_both() -> None:
    client = Client()
    answer = train_step(client, [DATUM], ADAM)  # type: ignore[arg-type]
    assert client.log == ["submit forward", "submit optim", "wait forward", "wait optim"]
    assert answer == ("forward", "optim")


def test_train_step_without_datums_does_nothing() -> None:
    client = Client()
    assert train_step(client, [], ADAM) is None  # type: ignore[arg-type]
    assert client.log == []


@pytest.mark.parametrize(
    ("forward", "optim", "kind"),
    [
        (refusal(503), None, UpdateFailedError),
        (None, refusal(503), UpdateFailedError),
        (ConnectionError("gone"), RuntimeError("poisoned"), UpdateFailedError),
        (refusal(503), refusal(400), UpdateFailedError),  # refused, since there is no gradient
        (refusal(400), None, UpdateRefusedError),
        (refusal(402), RuntimeError("poisoned"), UpdateRefusedError),
    ],
)
def test_train_step_names_the_failure(
    forward: Exception | None, optim: Exception | None, kind: type[Exception]
) -> None:
    client = Client(forward, optim)
    with pytest.raises(kind):
        train_step(client, [DATUM], ADAM)  # type: ignore[arg-type]
    assert client.log[2:] == ["wait forward", "wait optim"]
    assert client.futures["optim"].done()
