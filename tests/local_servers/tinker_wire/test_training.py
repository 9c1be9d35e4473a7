"""Training through the real SDK."""

from typing import Any

import numpy as np
import pytest
import tinker
import torch
from tinker import types
from tinker.proto import tinker_public_pb2 as pb

from local_servers.tinker.wire_format import loss_config_of
from tests.local_servers.tinker_wire.conftest import Fingerprint, NewRun, Server, Step, Supervised


def test_supervised_steps_lower_the_loss(
    client: tinker.ServiceClient, new_run: NewRun, lesson: list[types.Datum], step: Step
) -> None:
    run = new_run(client)
    losses = [step(run, lesson).metrics["loss:sum"] for _ in range(8)]
    assert losses[-1] < 0.5 * losses[0]


def test_run_tells_what_it_is(client: tinker.ServiceClient, new_run: NewRun, base_model: str, server: Server) -> None:
    run = new_run(client)
    info = run.get_info()
    assert info.model_data.model_name == base_model
    assert info.lora_rank == 4 and info.is_lora
    assert run.model_id.endswith(":train:0")
    assert run.get_tokenizer().decode(run.get_tokenizer().encode("print(1)")) == "print(1)"


def test_cross_entropy_without_weights(
    client: tinker.ServiceClient, new_run: NewRun, lesson: list[types.Datum]
) -> None:
    run = new_run(client)
    bare = [
        types.Datum(datum.model_input, {"target_tokens": datum.loss_fn_inputs["target_tokens"]}) for datum in lesson
    ]
    found, expected = (run.forward(data, "cross_entropy").result() for data in (bare, lesson))
    assert found.metrics == expected.metrics


def test_a_custom_loss_runs_at_the_client(
    client: tinker.ServiceClient, new_run: NewRun, lesson: list[types.Datum]
) -> None:
    """Its gradient comes as the weights of a cross_entropy after a forward pass that may have none."""
    run, twin = new_run(client), new_run(client)

    def likelihood(data: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        return -torch.cat(logprobs).sum(), {"mean": 1.0}

    bare = [
        types.Datum(datum.model_input, {"target_tokens": datum.loss_fn_inputs["target_tokens"]}) for datum in lesson
    ]
    output = run.forward_backward_custom(bare, likelihood).result()
    expected = twin.forward_backward(lesson, "cross_entropy").result()
    assert output.metrics["loss:sum"] == pytest.approx(expected.metrics["loss:sum"], rel=1e-5)
    stepped = [each.optim_step(types.AdamParams(learning_rate=1e-2)).result().metrics for each in (run, twin)]
    norms = [metrics["grad_norm"] for metrics in stepped if metrics]
    assert norms[0] == norms[1] > 0


def test_settings_come_twice_and_the_tagged_ones_count(
    server: Server, client: tinker.ServiceClient, new_run: NewRun, lesson: list[types.Datum]
) -> None:
    run = new_run(client)
    datum = lesson[0]
    n = datum.model_input.length
    zeros = types.TensorData.from_numpy(np.zeros(n, dtype=np.float32))
    inputs = {"logprobs": zeros, "advantages": zeros}
    data = [types.Datum(datum.model_input, {"target_tokens": datum.loss_fn_inputs["target_tokens"]} | inputs)]
    zero, one = (run.forward(data, "dro", {"beta": beta}).result().metrics["loss:sum"] for beta in (0.0, 1.0))
    assert zero == 0 < one
    for settings, message in (
        ({"kl_coeff": 1.0}, "dro has no setting kl_coeff"),
        ({"beta": "high"}, "must be a number"),
    ):
        with pytest.raises((tinker.BadRequestError, tinker.RequestFailedError), match=message) as caught:
            run.forward(data, "dro", settings).result()
        assert "\n" not in str(caught.value).split("detail", 1)[-1].strip()
    message = pb.ForwardBackwardRequest(loss_fn_config={"beta": 1.0, "older": 2.0})
    message.loss_fn_config_v2["beta"].number = 0.5
    assert loss_config_of(message) == {"beta": 0.5, "older": 2.0}


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "dro", "gspo"])
def test_reinforcement_losses_raise_what_is_rewarded(
    client: tinker.ServiceClient, new_run: NewRun, step: Step, loss: types.LossFnType
) -> None:
    run = new_run(client)
    sampler = run.save_weights_and_get_sampling_client().result()
    prompt = [5, 6, 7]
    params = types.SamplingParams(max_tokens=6, temperature=1.0, seed=1)
    sequences = sampler.sample(types.ModelInput.from_ints(prompt), 4, params).result().sequences
    data = []
    for number, sequence in enumerate(sequences):
        tokens = prompt + sequence.tokens
        n, n_prompt = len(tokens) - 1, len(prompt) - 1
        advantages = np.zeros(n, dtype=np.float32)
        advantages[n_prompt:] = 1.0 if number == 0 else -1.0 / 3
        logprobs = np.zeros(n, dtype=np.float32)
        logprobs[n_prompt:] = sequence.logprobs
        inputs: dict[str, Any] = {"target_tokens": np.array(tokens[1:]), "logprobs": logprobs, "advantages": advantages}
        if loss == "gspo":
            inputs["sequence_ratio_mask"] = (advantages != 0).astype(np.float32)
        data.append(types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs))
    output = step(run, data, loss)
    for datum, sequence in zip(output.loss_fn_outputs, sequences, strict=True):
        learned = datum["logprobs"].data[len(prompt) - 1 :]
        assert np.allclose(learned, np.array(sequence.logprobs), atol=1e-4)
    after = run.forward(data, loss).result().loss_fn_outputs[0]["logprobs"].data
    assert sum(after[len(prompt) - 1 :]) > sum(sequences[0].logprobs or ())


def test_forward_changes_nothing_and_leaves_no_gradient(
    client: tinker.ServiceClient, new_run: NewRun, lesson: list[types.Datum], fingerprint: Fingerprint
) -> None:
    run = new_run(client)
    assert fingerprint(run, lesson) == fingerprint(run, lesson)
    with pytest.raises(tinker.RequestFailedError, match="no forward_backward since the last optimizer step"):
        run.optim_step(types.AdamParams()).result()


def test_same_seed_same_updates_bit_for_bit(
    client: tinker.ServiceClient, new_run: NewRun, lesson: list[types.Datum], step: Step, fingerprint: Fingerprint
) -> None:
    twins = [new_run(client), new_run(client)]
    for run in twins:
        step(run, lesson)
        step(run, lesson, "cross_entropy")
    assert fingerprint(twins[0], lesson) == fingerprint(twins[1], lesson)
    other = new_run(client, seed=8)
    step(other, lesson)
    assert fingerprint(other, lesson) != fingerprint(twins[0], lesson)


def test_optim_step_after_failed_forward_backward_is_refused(
    client: tinker.ServiceClient,
    new_run: NewRun,
    lesson: list[types.Datum],
    supervised: Supervised,
    step: Step,
    fingerprint: Fingerprint,
) -> None:
    run = new_run(client)
    before = fingerprint(run, lesson)
    good = run.forward_backward(lesson, "cross_entropy")
    bad = run.forward_backward([supervised([1, 2, 9999])], "cross_entropy")
    update = run.optim_step(types.AdamParams(learning_rate=1e-2))
    good.result()
    with pytest.raises(tinker.BadRequestError, match="9999"):
        bad.result()
    with pytest.raises(tinker.RequestFailedError, match=r"request 3 \(forward_backward\) failed") as caught:
        update.result()
    assert caught.value.category == types.RequestErrorCategory.User
    assert fingerprint(run, lesson) == before
    # The spoilt gradient is gone: the next step is that of a fresh run.
    fresh = new_run(client)
    step(run, lesson)
    step(fresh, lesson)
    assert fingerprint(run, lesson) == fingerprint(fresh, lesson)


def test_many_chunks_add_up(
    client: tinker.ServiceClient, new_run: NewRun, supervised: Supervised, step: Step, server: Server
) -> None:
    run = new_run(client)
    data = [supervised([5, 6, 7 + number % 50, 8]) for number in range(1100)]
    output = step(run, data)
    assert len(output.loss_fn_outputs) == 1100
    assert server.stats()["models"][run.model_id]["optimizer_steps"] == 1
    total = -sum(sum(datum["logprobs"].data) for datum in output.loss_fn_outputs)
    assert output.metrics["loss:sum"] == pytest.approx(total, rel=1e-4)


def test_bad_requests_say_what_is_wrong(
    client: tinker.ServiceClient, new_run: NewRun, supervised: Supervised, base_model: str
) -> None:
    run = new_run(client)
    cases: tuple[tuple[types.Datum, types.LossFnType, str], ...] = (
        (supervised(list(range(2, 140))), "cross_entropy", "context is 128"),
        (supervised([3, 4, 5]), "ppo", "logprobs"),
        (
            supervised([3, 4, 5]),
            "custom",
            "not offered here: cross_entropy, importance_sampling, ppo, cispo, dro, gspo",
        ),
    )
    for datum, loss, text in cases:
        with pytest.raises(tinker.BadRequestError, match=text):
            run.forward_backward([datum], loss).result()
    with pytest.raises(tinker.BadRequestError, match="at least 1"):
        client.create_lora_training_client(base_model, rank=0).result()
    with pytest.raises(tinker.RequestFailedError, match="LoRA rank is 100000; it can be 300 at most"):
        client.create_lora_training_client(base_model, rank=100_000).result()


def test_unknown_model_lists_those_there_are(client: tinker.ServiceClient, base_model: str) -> None:
    with pytest.raises(tinker.NotFoundError, match=f"(?s)Qwen/Nope.*{base_model}"):
        client.create_lora_training_client("Qwen/Nope").result()
    with pytest.raises(tinker.NotFoundError, match="not served here"):
        client.create_sampling_client(base_model="Qwen/Nope").result()
