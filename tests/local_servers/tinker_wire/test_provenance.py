"""stable_reinforce through the real SDK: recorded sequences, and what training data may claim about them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types
from tinker.types import PromptProvenanceSpan as Prompt
from tinker.types import SampledProvenanceSpan as Sampled

from local_servers.tinker import provenance
from local_servers.tinker.engine_types import SampledSequence, SamplerTopK, TrainDatum
from local_servers.tinker.provenance import Provenance, RecordedSequences, Span
from local_servers.tinker.refusal import BadRequest
from tests.local_servers.tinker_wire.conftest import NewRun, Server, Step

PROMPT = [5, 6, 7]
PARAMS = types.SamplingParams(max_tokens=6, seed=1, stop=[])


def sample(run: tinker.TrainingClient, n: int = 1, *, record: bool = True) -> list[types.SampledSequence]:
    sampler = run.save_weights_and_get_sampling_client(record_stability_info=record).result()
    return list(sampler.sample(types.ModelInput.from_ints(PROMPT), n, PARAMS).result().sequences)


def tensor(values: Any) -> types.TensorData:
    return types.TensorData.from_numpy(np.asarray(values))


def datum(sequence: types.SampledSequence, advantage: float = 1.0) -> types.Datum:
    """As the cookbook's small loop builds it: the targets of the prompt are zeros."""
    tokens = PROMPT + sequence.tokens
    before = len(PROMPT) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tensor([0] * before + sequence.tokens),
            "advantages": tensor(np.array([0.0] * before + [advantage] * len(sequence.tokens), dtype=np.float32)),
        },
    ).with_provenance(*spans(sequence.sequence_id, len(sequence.tokens)))


def spans(sequence_id: str, n: int) -> tuple[list[Any], list[Any]]:
    """Those of a whole sequence of n tokens."""
    inputs = [Prompt(sequence_id=sequence_id, length=3), Sampled(sequence_id=sequence_id, length=n - 1)]
    targets = [Prompt(sequence_id=sequence_id, offset=1, length=2), Sampled(sequence_id=sequence_id, length=n)]
    return inputs, targets


def test_stable_reinforce_raises_what_is_rewarded_and_stays_near_the_sampler(
    client: tinker.ServiceClient, new_run: NewRun, step: Step
) -> None:
    gained, divergence = {}, {}
    for kl_coeff in (0.0, 10.0):
        run = new_run(client)
        sequences = sample(run, 4)
        data = [datum(sequence, 1.0 if number == 0 else -1.0 / 3) for number, sequence in enumerate(sequences)]
        first = step(run, data, "stable_reinforce", kl_coeff=kl_coeff)
        for output, sequence in zip(first.loss_fn_outputs, sequences, strict=True):
            assert np.allclose(output["logprobs"].data[2:], np.array(sequence.logprobs), atol=1e-4)
        for _ in range(3):
            step(run, data, "stable_reinforce", kl_coeff=kl_coeff)
        bare, full = (run.forward(data, "stable_reinforce", {"kl_coeff": coeff}).result() for coeff in (0.0, 1.0))
        gained[kl_coeff] = sum(bare.loss_fn_outputs[0]["logprobs"].data[2:]) - sum(sequences[0].logprobs or ())
        divergence[kl_coeff] = full.metrics["loss:sum"] - bare.metrics["loss:sum"]
    assert gained[0.0] > gained[10.0] > 0
    assert 0 < divergence[10.0] < 0.5 * divergence[0.0]


def test_a_conversation_names_the_sequences_of_its_turns(
    client: tinker.ServiceClient, new_run: NewRun, step: Step
) -> None:
    run = new_run(client)
    sampler = run.save_weights_and_get_sampling_client(record_stability_info=True).result()
    first = sampler.sample(types.ModelInput.from_ints(PROMPT), 1, PARAMS).result().sequences[0]
    longer = [*PROMPT, *first.tokens, 9, 10]
    second = sampler.sample(types.ModelInput.from_ints(longer), 1, PARAMS).result().sequences[0]
    tokens = longer + second.tokens
    origin: list[Any] = [
        Prompt(sequence_id=first.sequence_id, length=3),
        Sampled(sequence_id=first.sequence_id, length=6),
        Prompt(sequence_id=second.sequence_id, offset=9, length=2),
        Sampled(sequence_id=second.sequence_id, length=6),
    ]
    advantages = np.array([0] * 2 + [1.0] * 6 + [0] * 2 + [1.0] * 6, dtype=np.float32)
    data = types.Datum(
        types.ModelInput.from_ints(tokens[:-1]), {"target_tokens": tensor(tokens[1:]), "advantages": tensor(advantages)}
    ).with_provenance(
        [*origin[:3], replace(origin[3], length=5)], [replace(origin[0], offset=1, length=2), *origin[1:]]
    )
    output = step(run, [data], "stable_reinforce")
    learned = np.array(output.loss_fn_outputs[0]["logprobs"].data)[advantages != 0]
    assert first.logprobs and second.logprobs
    assert np.allclose(learned, first.logprobs + second.logprobs, atol=1e-4)


def test_claims_that_do_not_hold_are_refused(client: tinker.ServiceClient, new_run: NewRun) -> None:
    run = new_run(client)
    (sequence,), (unrecorded,) = sample(run), sample(run, record=False)
    good, own = datum(sequence), sequence.sequence_id
    inputs, targets = spans(own, 6)
    wrong_tokens = types.ModelInput.from_ints([*PROMPT[:2], 77, *sequence.tokens[:-1]])
    other_target = good.loss_fn_inputs["target_tokens"].to_numpy().copy()
    other_target[3] += 1
    advantages = np.ones(8, dtype=np.float32)
    for bad, message in (
        (replace(good, model_input_spans=None, loss_fn_input_spans=None), "needs provenance"),
        (replace(good, model_input_spans=inputs[:1]), "the model_input spans cover 3 positions of 8"),
        (replace(good, loss_fn_input_spans=targets[1:]), "the loss_fn_inputs spans cover 6 positions of 8"),
        (good.with_provenance(*spans("nobody", 6)), "'nobody' is not recorded in this session"),
        (good.with_provenance(*spans(unrecorded.sequence_id, 6)), "is not recorded in this session"),
        (
            good.with_provenance(inputs, [targets[0], replace(targets[1], offset=1)]),
            "span 1 of loss_fn_inputs ends at 7, .* has 6 sampled tokens",
        ),
        (
            good.with_provenance([replace(inputs[0], offset=1), inputs[1]], targets),
            "span 0 of model_input ends at 4, .* has 3 prompt tokens",
        ),
        (replace(good, model_input=wrong_tokens), "token 77 is not number 2 of the prompt tokens .*, which is 7"),
        (
            replace(good, loss_fn_inputs=good.loss_fn_inputs | {"target_tokens": tensor(other_target)}),
            "span 1 of loss_fn_inputs: token .* is not number 1 of the sampled tokens",
        ),
        (
            replace(good, loss_fn_inputs=good.loss_fn_inputs | {"advantages": tensor(advantages)}),
            "position 0 has a non-zero advantage and was not sampled",
        ),
        (
            replace(
                good.with_provenance(inputs, [*[Prompt(sequence_id=own, length=3)] * 2, replace(targets[0], offset=0)]),
                loss_fn_inputs=good.loss_fn_inputs | {"advantages": tensor(0 * advantages)},
            ),
            "no target is a sampled token",
        ),
    ):
        with pytest.raises(tinker.BadRequestError, match=f"datum 1: .*{message}") as caught:
            run.forward_backward([good, bad], "stable_reinforce").result()
        assert "\n" not in str(caught.value)
    with pytest.raises(tinker.BadRequestError, match="stable_reinforce has no setting beta; it has kl_coeff"):
        run.forward_backward([good], "stable_reinforce", {"beta": 1.0}).result()
    assert run.forward([good], "stable_reinforce").result().metrics


def test_records_end_with_their_session_and_belong_to_it(impatient_server: Server, new_run: NewRun) -> None:
    server = impatient_server  # one of its own: it counts what all clients of a server have sampled
    with server.client() as one, server.client() as other:
        ours, theirs = new_run(one), new_run(other)
        (sequence,) = sample(ours)
        with pytest.raises(tinker.BadRequestError, match="is not recorded in this session"):
            theirs.forward([datum(sequence)], "stable_reinforce").result()
        assert ours.forward([datum(sequence)], "stable_reinforce").result().metrics
        assert server.stats()["recorded"]["sequences"] == 1
    assert server.stats()["recorded"] == {"sequences": 0, "bytes": 0}


def test_other_losses_check_the_tiling_alone(
    client: tinker.ServiceClient, new_run: NewRun, lesson: list[types.Datum]
) -> None:
    run = new_run(client)
    n = lesson[0].model_input.length
    named = lesson[0].with_provenance([Sampled(sequence_id="any", length=n)], [Sampled(sequence_id="any", length=n)])
    assert run.forward([named], "cross_entropy").result().metrics
    torn = replace(named, model_input_spans=[Sampled(sequence_id="any", length=n - 1)])
    with pytest.raises(tinker.BadRequestError, match=f"spans cover {n - 1} positions of {n}"):
        run.forward([torn], "cross_entropy").result()


def recorded(tokens: list[int]) -> SampledSequence:
    top_k = SamplerTopK(
        np.arange(len(tokens)), np.array(tokens, dtype=np.int32)[:, None], np.zeros((len(tokens), 1), np.float32)
    )
    return SampledSequence(tokens, [0.0] * len(tokens), "length", top_k)


def test_records_expire_and_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(provenance.time, "monotonic", lambda: now[0])
    records = RecordedSequences()
    one = TrainDatum(np.array([1]), {"target_tokens": np.array([8]), "advantages": np.array([1.0])})
    claims = {
        name: Provenance([Span(False, name, 0, 1)], [Span(True, name, 0, 1)]) for name in ("used", "unused", "third")
    }
    records.add("s", [1], [recorded([8]), recorded([8])], ["used", "unused"])
    now[0] = provenance.LIFE_S - 1
    assert records.with_sampler("s", one, claims["used"], "stable_reinforce").sampler is not None
    now[0] = provenance.LIFE_S + 1
    assert records.with_sampler("s", one, claims["used"], "stable_reinforce").sampler is not None  # its day began anew
    with pytest.raises(BadRequest, match="'unused' is not recorded"):
        records.with_sampler("s", one, claims["unused"], "stable_reinforce")
    size = records.nbytes
    assert len(records) == 1 and size > 0
    monkeypatch.setattr(provenance, "MAX_BYTES", size)
    records.add("s", [1], [recorded([8])], ["third"])
    assert len(records) == 1 and records.nbytes == size
    assert records.with_sampler("s", one, claims["third"], "stable_reinforce").sampler is not None
    records.end_session("s")
    assert len(records) == records.nbytes == 0
