"""forward_backward and optim_step: against peft and torch.optim, and bit for bit reproducible."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from local_servers.tinker.engine import training
from local_servers.tinker.engine.adapter import Adapter
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine.losses import LOSSES
from local_servers.tinker.engine_types import AdamSettings, SamplerTopK, SampleSpec, TrainDatum
from local_servers.tinker.refusal import BadRequest

SETTINGS = AdamSettings(learning_rate=1e-3)


def make_request(engine: Engine, adapter: Adapter, cases: Any, seed: int = 0) -> list[TrainDatum]:
    """Datums of three groups with a shared system message, and one that stands alone; sampled from another policy."""
    weights = engine.sampler_weights(adapter)
    head = cases.prompt(99, 30)
    prompts = [head + cases.prompt(number, 25 + 9 * number) for number in range(3)] + [cases.prompt(50, 40)]
    specs = [
        SampleSpec(prompt, 1 if number == 3 else 5, 12, seed=seed + number, stop_tokens=list(range(30)), record_top_k=8)
        for number, prompt in enumerate(prompts)
    ]
    return cases.datums(specs, engine.sample([(weights, spec) for spec in specs]))


def with_all_inputs(datums: list[TrainDatum]) -> list[TrainDatum]:
    """The same datums with what every loss reads."""
    made = []
    for datum in datums:
        advantages = datum.loss_inputs["advantages"]
        more = {"weights": advantages, "sequence_ratio_mask": (advantages != 0).astype(np.float32)}
        made.append(replace(datum, loss_inputs=datum.loss_inputs | more))
    return made


def plain_divergence(sampler: SamplerTopK, everything: torch.Tensor) -> torch.Tensor:
    """The sum over recorded positions of KL(sampler || trainer), from the trainer's log-probabilities (T, V)."""
    total = torch.zeros(())
    for position, tokens, logprobs in zip(sampler.positions, sampler.tokens, sampler.logprobs, strict=True):
        row = everything[position]
        inside = torch.zeros(len(row), dtype=torch.bool).index_fill(0, torch.tensor(tokens, dtype=torch.long), True)
        recorded = torch.tensor(logprobs)
        rest = 1 - recorded.exp().sum()
        total = total + (recorded.exp() * (recorded - row[torch.tensor(tokens, dtype=torch.long)])).sum()
        total = total + rest * (rest.log() - row[~inside].logsumexp(0))
    return total


def plain_loss(loss: str, datum: TrainDatum, everything: torch.Tensor, logprobs: torch.Tensor) -> torch.Tensor:
    """The loss of one datum as Tinker's documentation writes it, or (stable_reinforce) as ours does."""
    inputs = {name: torch.tensor(value) for name, value in datum.loss_inputs.items()}
    if loss == "cross_entropy":
        return -(inputs["weights"] * logprobs).sum()
    advantages = inputs["advantages"]
    if loss == "stable_reinforce":
        assert datum.sampler is not None
        return -(logprobs * advantages).sum() + 0.3 * plain_divergence(datum.sampler, everything)
    log_ratio = logprobs - inputs["logprobs"]
    if loss == "dro":
        return -(logprobs * advantages - 0.025 * log_ratio**2).sum()
    if loss == "gspo":
        log_ratio = log_ratio.detach()[inputs["sequence_ratio_mask"] != 0].mean() + logprobs - logprobs.detach()
    ratio = torch.exp(log_ratio)
    clipped = torch.clamp(ratio, 0.8, 1.2)
    if loss == "importance_sampling":
        return -(ratio * advantages).sum()
    if loss in ("ppo", "gspo"):
        return -torch.min(ratio * advantages, clipped * advantages).sum()
    return -(clipped.detach() * logprobs * advantages).sum()


LARGE, SMALL = 2048, 40
"""Rows of a micro-batch: a group in one, and in series that go on from its prompt."""


@dataclass(frozen=True)
class InPeft:
    """Datums, the folder of an adapter, and the model with it as peft has it, whose log-probabilities (T, V) of each
    datum these are."""

    datums: list[TrainDatum]
    folder: Path
    model: torch.nn.Module
    logprobs: list[torch.Tensor]


@pytest.fixture(scope="module")
def in_peft(
    qwen3_folder: Path,
    engine: Engine,
    trained: Callable[[int], Adapter],
    cases: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> InPeft:
    from peft import PeftModel  # seconds, which no process pays that collects these tests and does not run them

    folder = tmp_path_factory.mktemp("adapter")
    datums = with_all_inputs(make_request(engine, trained(1), cases))
    engine.save_adapter(trained(0), folder, optimizer=False)
    model = PeftModel.from_pretrained(cases.reference_model(qwen3_folder), folder, is_trainable=True)
    logits = [model(torch.tensor(datum.tokens)[None]).logits[0] for datum in datums]
    return InPeft(datums, folder, model, [rows.log_softmax(dim=1) for rows in logits])


@pytest.mark.parametrize(
    ("loss", "rows"), [*((loss, LARGE) for loss in LOSSES), ("gspo", SMALL), ("stable_reinforce", SMALL)]
)
def test_losses_and_gradients_agree_with_peft(
    engine: Engine, in_peft: InPeft, monkeypatch: pytest.MonkeyPatch, loss: str, rows: int
) -> None:
    monkeypatch.setattr(training, "_rows_per_batch", lambda model: rows)
    adapter = engine.load_adapter(in_peft.folder, optimizer=False)
    in_peft.model.zero_grad()
    expected = []
    total = 0.0
    for datum, everything in zip(in_peft.datums, in_peft.logprobs, strict=True):
        targets = torch.tensor(datum.loss_inputs["target_tokens"])
        expected.append(everything.gather(1, targets[:, None])[:, 0])
        value = plain_loss(loss, datum, everything, expected[-1])
        value.backward(retain_graph=True)  # for the other losses
        total += value.item()
    config = {"kl_coeff": 0.3} if loss == "stable_reinforce" else {}
    output = engine.forward_backward(adapter, in_peft.datums, loss, config, backward=True)
    for found, reference in zip(output.logprobs, expected, strict=True):
        np.testing.assert_allclose(found, reference.detach().numpy(), atol=1e-4)
    assert output.metrics["loss:sum"] == pytest.approx(total, rel=1e-4, abs=1e-3)
    assert sum(float(part.sum()) for part in output.elementwise_loss) == pytest.approx(total, rel=1e-4, abs=1e-3)
    assert adapter.grads is not None
    found_names = set()
    for name, parameter in in_peft.model.named_parameters():
        if parameter.grad is None:
            continue
        key = name.removeprefix("base_model.model.").replace(".default.weight", "")
        found_names.add(key)
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(adapter.grads[key], parameter.grad, atol=2e-4 * scale, rtol=1e-3)
    assert found_names == set(adapter.params)


def test_the_sampler_itself_is_where_the_penalty_pulls(
    engine: Engine, trained: Callable[[int], Adapter], cases: Any
) -> None:
    """Without advantages, the gradient of stable_reinforce vanishes at the weights that sampled, and a step from others
    comes nearer to them."""
    own, other = trained(0), trained(1)
    datums = [
        replace(datum, loss_inputs=datum.loss_inputs | {"advantages": np.zeros_like(datum.loss_inputs["advantages"])})
        for datum in make_request(engine, own, cases)
    ]
    config = {"kl_coeff": 1.0}
    at_own = engine.forward_backward(own, datums, "stable_reinforce", config, backward=True)
    before = engine.forward_backward(other, datums, "stable_reinforce", config, backward=True)
    assert abs(at_own.metrics["loss:sum"]) < 1e-3 < 1 < before.metrics["loss:sum"]
    assert own.grads and other.grads
    sizes = [max(float(grad.abs().max()) for grad in grads.values()) for grads in (own.grads, other.grads)]
    assert sizes[0] < 1e-3 * sizes[1]
    engine.optim_step(other, SETTINGS)
    after = engine.forward_backward(other, datums, "stable_reinforce", config, backward=False)
    assert after.metrics["loss:sum"] < before.metrics["loss:sum"]


def test_forward_alone_gives_the_same_output_and_no_gradients(
    engine: Engine, trained: Callable[[int], Adapter], cases: Any
) -> None:
    adapter = trained(0)
    datums = make_request(engine, adapter, cases)
    forward = engine.forward_backward(adapter, datums, "ppo", {}, backward=False)
    assert adapter.grads is None
    both = engine.forward_backward(adapter, datums, "ppo", {}, backward=True)
    assert forward.metrics == both.metrics
    for a, b in zip(forward.logprobs, both.logprobs, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(BadRequest, match="no gradients"):
        fresh = trained(1)
        engine.forward_backward(fresh, datums, "ppo", {}, backward=False)
        engine.optim_step(fresh, SETTINGS)


def test_learned_and_sampled_logprobs_agree(engine: Engine, trained: Callable[[int], Adapter], cases: Any) -> None:
    adapter = trained(0)
    datums = make_request(engine, adapter, cases)
    output = engine.forward_backward(adapter, datums, "importance_sampling", {}, backward=False)
    for datum, learned in zip(datums, output.logprobs, strict=True):
        completion = datum.loss_inputs["advantages"] != 0
        np.testing.assert_allclose(learned[completion], datum.loss_inputs["logprobs"][completion], atol=5e-5)


def run_steps(engine: Engine, cases: Any, steps: int) -> tuple[list[Any], Adapter]:
    """A few steps of sampling and training from a fresh adapter; everything that came out."""
    adapter = engine.create_adapter(8, seed=4)
    log: list[Any] = []
    for step in range(steps):
        datums = make_request(engine, adapter, cases, seed=10 * step)
        output = engine.forward_backward(adapter, datums, "importance_sampling", {}, backward=True)
        metrics = engine.optim_step(adapter, SETTINGS)
        log.append(([datum.tokens.tolist() for datum in datums], [x.tolist() for x in output.logprobs], metrics))
    return log, adapter


def test_the_same_steps_give_the_same_bits(qwen3_folder: Path, engine: Engine, cases: Any) -> None:
    first, adapter = run_steps(engine, cases, 3)
    other = Engine(qwen3_folder)
    stop = threading.Event()

    def disturb() -> None:
        weights = other.sampler_weights(None)
        while not stop.is_set():
            other.sample([(weights, SampleSpec(cases.prompt(0, 40), 4, 10))])

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        again, adapter_again = run_steps(other, cases, 3)
    finally:
        stop.set()
        thread.join()
    assert first == again
    for key, value in adapter.params.items():
        assert torch.equal(value, adapter_again.params[key])


def test_a_lane_that_fails_leaves_no_other_behind(
    engine: Engine, cases: Any, monkeypatch: pytest.MonkeyPatch, trained: Callable[[int], Adapter]
) -> None:
    adapter = trained(1)
    datums = make_request(engine, adapter, cases)
    monkeypatch.setattr(training, "_rows_per_batch", lambda model: SMALL)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    begun, failed, ended = threading.Event(), threading.Event(), threading.Event()
    run, names = training._Lane.run, iter(["fails", "goes on"])

    def one_fails(*arguments: Any) -> Any:
        name = next(names, None)
        if name == "fails":
            begun.wait()
            failed.set()
            raise MemoryError("of one lane")
        if name == "goes on":
            begun.set()
            failed.wait()
            time.sleep(0.3)  # long enough to be left behind
            found = run(*arguments)
            ended.set()
            return found
        return run(*arguments)

    monkeypatch.setattr(training._Lane, "run", one_fails)
    with pytest.raises(MemoryError, match="of one lane"):
        engine.forward_backward(adapter, datums, "importance_sampling", {}, backward=True)
    assert ended.is_set()


def test_the_number_of_cores_changes_no_bit(
    engine: Engine, cases: Any, monkeypatch: pytest.MonkeyPatch, trained: Callable[[int], Adapter]
) -> None:
    datums = make_request(engine, trained(0), cases)
    monkeypatch.setattr(training, "_rows_per_batch", lambda model: SMALL)  # several series a lane
    grads = []
    for cores in (1, 4):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        adapter = trained(1)
        engine.forward_backward(adapter, datums, "importance_sampling", {}, backward=True)
        assert adapter.grads
        grads.append(adapter.grads)
    assert all(torch.equal(grads[0][key], grads[1][key]) for key in grads[0])


@pytest.mark.parametrize("flags", [{}, {"train_attn": False}, {"train_mlp": False, "train_attn": False}])
def test_a_group_in_a_series_has_the_gradients_of_one_in_a_micro_batch(
    engine: Engine, cases: Any, monkeypatch: pytest.MonkeyPatch, flags: dict[str, bool]
) -> None:
    rows = [cases.prompt(0, 50) + cases.prompt(1 + number, length) for number, length in enumerate((30, 5, 44, 0))]
    datums = [
        TrainDatum(
            np.array(row[:-1]), {"target_tokens": np.array(row[1:]), "weights": np.ones(len(row) - 1, np.float32)}
        )
        for row in rows
    ]
    found = []
    for size in (LARGE, SMALL):
        monkeypatch.setattr(training, "_rows_per_batch", lambda model, size=size: size)
        adapter = engine.create_adapter(4, 0, **flags)
        output = engine.forward_backward(adapter, datums, "cross_entropy", {}, backward=True)
        found.append((np.concatenate(output.logprobs), adapter.grads))
    (expected, expected_grads), (logprobs, grads) = found
    np.testing.assert_allclose(logprobs, expected, atol=1e-4)
    assert expected_grads is not None and grads is not None and grads.keys() == expected_grads.keys()
    for key, value in expected_grads.items():
        torch.testing.assert_close(grads[key], value, rtol=1e-3, atol=1e-4 * float(value.abs().max()))


def test_gradients_of_several_calls_add_up(engine: Engine, trained: Callable[[int], Adapter], cases: Any) -> None:
    datums = make_request(engine, trained(0), cases)
    whole, parts = trained(1), trained(1)
    engine.forward_backward(whole, datums, "importance_sampling", {}, backward=True)
    engine.forward_backward(parts, datums[:7], "importance_sampling", {}, backward=True)
    engine.forward_backward(parts, datums[7:], "importance_sampling", {}, backward=True)
    assert whole.grads is not None and parts.grads is not None
    for key, value in whole.grads.items():
        torch.testing.assert_close(parts.grads[key], value, rtol=1e-3, atol=1e-4 * float(value.abs().max()))


def test_a_new_adapter_changes_nothing_and_depends_on_its_seed(engine: Engine, cases: Any) -> None:
    adapter = engine.create_adapter(8, seed=1)
    spec = SampleSpec(cases.prompt(0, 10), 2, 5)
    base, fresh = engine.sample([(engine.sampler_weights(None), spec), (engine.sampler_weights(adapter), spec)])
    assert base == fresh
    same, other = engine.create_adapter(8, seed=1), engine.create_adapter(8, seed=2)
    key = "model.layers.0.mlp.up_proj.lora_A"
    assert torch.equal(adapter.params[key], same.params[key])
    assert not torch.equal(adapter.params[key], other.params[key])


@pytest.mark.parametrize(
    ("flags", "part", "count"),
    [
        ({"train_mlp": False, "train_unembed": False}, ".self_attn.", 8),
        ({"train_attn": False, "train_unembed": False}, ".mlp.", 6),
        ({"train_attn": False, "train_mlp": False}, "lm_head", 1),
    ],
)
def test_parts_of_the_model_can_be_left_out(engine: Engine, flags: dict[str, bool], part: str, count: int) -> None:
    targets = engine.create_adapter(4, 0, **flags).targets()
    assert len(targets) == count
    assert all(part in target for target in targets)


def test_an_adapter_without_parts_is_refused(engine: Engine) -> None:
    with pytest.raises(BadRequest, match="nothing to train"):
        engine.create_adapter(4, 0, train_mlp=False, train_attn=False, train_unembed=False)
    with pytest.raises(BadRequest, match="rank"):
        engine.create_adapter(0, 0)


def test_datums_without_signal_leave_zero_gradients(
    engine: Engine, trained: Callable[[int], Adapter], cases: Any
) -> None:
    adapter = trained(0)
    datum = make_request(engine, adapter, cases)[0]
    zero = TrainDatum(datum.tokens, datum.loss_inputs | {"advantages": np.zeros(len(datum.tokens), dtype=np.float32)})
    output = engine.forward_backward(adapter, [zero], "importance_sampling", {}, backward=True)
    assert output.metrics["loss:sum"] == 0
    assert adapter.grads is not None and not any(grad.any() for grad in adapter.grads.values())
    assert engine.optim_step(adapter, SETTINGS)["grad_norm"] == 0


def test_long_sequences_share_their_prompt(engine: Engine, trained: Callable[[int], Adapter], cases: Any) -> None:
    adapter = trained(0)
    prompt = cases.prompt(0, 1500)
    tokens = [np.array(prompt + cases.prompt(number, 600)) for number in range(2)]
    datums = [
        TrainDatum(row[:-1], {"target_tokens": row[1:], "weights": np.ones(len(row) - 1, dtype=np.float32)})
        for row in tokens
    ]
    output = engine.forward_backward(adapter, datums, "cross_entropy", {}, backward=True)
    for datum, together in zip(datums, output.logprobs, strict=True):
        alone = engine.forward_backward(adapter, [datum], "cross_entropy", {}, backward=False).logprobs[0]
        np.testing.assert_allclose(together, alone, atol=1e-4)


def test_what_was_sampled_at_new_positions_can_be_trained_on(qwen3_folder: Path, cases: Any) -> None:
    engine = Engine(qwen3_folder)
    adapter = engine.create_adapter(4, 0)
    specs = [SampleSpec(cases.prompt(0, 1500), 2, 4)]
    results = engine.sample([(engine.sampler_weights(adapter), specs[0])])
    engine.forward_backward(adapter, cases.datums(specs, results), "importance_sampling", {}, backward=True)
    assert engine.optim_step(adapter, SETTINGS)["grad_norm"] > 0
