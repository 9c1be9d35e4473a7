"""Sampling: against transformers, bit for bit whatever the batch, and every setting of a request."""

import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from local_servers.tinker.engine.adapter import Adapter
from local_servers.tinker.engine.causal_lm import Weights
from local_servers.tinker.engine.decoding import UniformDraws, draw_tokens
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine.sampling_batch import PREFILL_CHUNK
from local_servers.tinker.engine_types import AdamSettings, SampleResult, SampleSpec

AloneResults = list[tuple[list[tuple[Weights, SampleSpec]], list[SampleResult]]]


def random_specs(cases: Any, count: int) -> list[SampleSpec]:
    """Requests of every kind: short and long prompts, one and many samples, all settings."""
    choose = random.Random(5)
    specs = []
    for number in range(count):
        length = choose.choice([1, 3, 31, 32, 33, 90, 211, PREFILL_CHUNK, PREFILL_CHUNK + 70])
        specs.append(
            SampleSpec(
                cases.prompt(number, length),
                num_samples=choose.choice([1, 2, 5, 16]),
                max_tokens=choose.choice([1, 4, 12, 30]),
                temperature=choose.choice([0.0, 0.7, 1.0, 1.0, 1.3]),
                top_p=choose.choice([1.0, 1.0, 0.9]),
                top_k=choose.choice([-1, -1, 5]),
                seed=number,
                stop_tokens=choose.choice([[], [257], list(range(20, 40))]),
                stop_strings=choose.choice([[], [], ["a", "1"]]),
                prompt_logprobs=choose.random() < 0.3,
                topk_prompt_logprobs=choose.choice([0, 0, 3]),
            )
        )
    return specs


@pytest.fixture(scope="module")
def sampled_alone(engine: Engine, trained: Callable[[int], Adapter], cases: Any) -> AloneResults:
    """Requests for the weights of three policies, then the same ones for those of one; each with its result alone."""
    specs = random_specs(cases, 16)
    weights = [engine.sampler_weights(adapter) for adapter in (None, trained(0), trained(1))]
    mixed = [(weights[number % 3], spec) for number, spec in enumerate(specs)]
    of_one = [(weights[1], spec) for spec in specs]
    return [(jobs, [engine.sample([job])[0] for job in jobs]) for jobs in (mixed, of_one)]


@pytest.mark.parametrize("max_batch_rows", [256, 20])
def test_how_requests_are_batched_changes_no_bit(
    qwen3_folder: Path,
    sampled_alone: AloneResults,
    max_batch_rows: int,
) -> None:
    (jobs, alone), (jobs_of_one, alone_of_one) = sampled_alone
    other = Engine(qwen3_folder, max_batch_rows=max_batch_rows)
    assert other.sample(jobs) == alone
    order = random.Random(1).sample(range(len(jobs)), len(jobs))
    assert other.sample([jobs[i] for i in order]) == [alone[i] for i in order]
    assert other.sample(jobs_of_one) == alone_of_one


def test_requests_that_came_first_run_first(qwen3_folder: Path, cases: Any) -> None:
    engine = Engine(qwen3_folder, max_batch_rows=8)
    specs = [SampleSpec(cases.prompt(number, 20), 4, 6 + number, seed=number) for number in range(3)]
    batch = engine.sampling_batch()
    first, second, third = batch.requests = [
        engine.running_request(engine.sampler_weights(None), spec) for spec in specs
    ]
    ended = []
    while batch.requests:
        ended += batch.step()
        assert third.prefilling or first not in batch.requests  # the two before it fill a step
    assert ended == [first, second, third]


def test_logprobs_agree_with_transformers(any_folder: Path, cases: Any) -> None:
    engine = Engine(any_folder)
    model = cases.reference_model(any_folder)
    spec = SampleSpec(cases.prompt(0, 75), num_samples=3, max_tokens=12, prompt_logprobs=True, topk_prompt_logprobs=2)
    result = engine.sample([(engine.sampler_weights(None), spec)])[0]
    with torch.no_grad():
        for sequence in result.sequences:
            expected = cases.reference_logprobs(model, spec.prompt + sequence.tokens)
            assert result.prompt_logprobs is not None and result.prompt_logprobs[0] is None
            found = result.prompt_logprobs[1:] + sequence.logprobs
            np.testing.assert_allclose(np.array(found, float), expected.numpy(), atol=5e-5)
        logprobs = model(torch.tensor([spec.prompt])).logits[0].log_softmax(dim=1)
    best = logprobs.topk(2, dim=1)
    assert result.topk_prompt_logprobs is not None and result.topk_prompt_logprobs[0] is None
    assert result.prompt_logprobs is not None
    assert len(result.topk_prompt_logprobs) == len(result.prompt_logprobs) == 75
    for position in range(1, 75):
        pairs = result.topk_prompt_logprobs[position]
        assert pairs is not None
        assert [token for token, _ in pairs] == best.indices[position - 1].tolist()
        np.testing.assert_allclose([value for _, value in pairs], best.values[position - 1].numpy(), atol=5e-5)


def test_chunked_prefill_scores_the_whole_prompt(engine: Engine, qwen3_folder: Path, cases: Any) -> None:
    prompt = cases.prompt(4, 2 * PREFILL_CHUNK + 100)
    spec = SampleSpec(prompt, num_samples=1, max_tokens=1, prompt_logprobs=True)
    result = engine.sample([(engine.sampler_weights(None), spec)])[0]
    with torch.no_grad():
        expected = cases.reference_logprobs(cases.reference_model(qwen3_folder), prompt)
    assert result.prompt_logprobs is not None
    np.testing.assert_allclose(np.array(result.prompt_logprobs[1:], float), expected.numpy(), atol=1e-4)


def test_temperature_zero_takes_the_likeliest_token(engine: Engine, qwen3_folder: Path, cases: Any) -> None:
    spec = SampleSpec(cases.prompt(0, 20), num_samples=2, max_tokens=8, temperature=0)
    result = engine.sample([(engine.sampler_weights(None), spec)])[0]
    assert result.sequences[0] == result.sequences[1]
    model, tokens = cases.reference_model(qwen3_folder), list(spec.prompt)
    with torch.no_grad():
        for token in result.sequences[0].tokens:
            assert token == int(model(torch.tensor([tokens])).logits[0, -1].argmax())
            tokens.append(token)


def test_the_seed_decides_every_draw(engine: Engine, cases: Any) -> None:
    weights = engine.sampler_weights(None)
    spec = SampleSpec(cases.prompt(0, 20), num_samples=8, max_tokens=70, seed=7)
    first, again, other = engine.sample([(weights, spec), (weights, spec), (weights, replace(spec, seed=8))])
    assert first == again
    assert first != other
    assert len({tuple(sequence.tokens) for sequence in first.sequences}) == 8


def test_draws_of_a_sample_do_not_depend_on_how_many_there_are() -> None:
    few, many = UniformDraws(3, range(2)), UniformDraws(3, range(5))
    for step in range(130):
        np.testing.assert_array_equal(few.at(step), many.at(step)[:2])


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1e9]])
    spec = SampleSpec([1], num_samples=1, max_tokens=1, temperature=0.5)
    uniforms = (np.arange(20_000) + 0.5) / 20_000
    tokens, logprobs = draw_tokens(logits, spec, uniforms)
    expected = (logits[0] / 0.5).softmax(0)
    np.testing.assert_allclose(np.bincount(tokens, minlength=4) / 20_000, expected.numpy(), atol=1e-4)
    torch.testing.assert_close(logprobs, expected.log()[tokens])


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 1.7])
def test_sampled_logprobs_are_those_at_the_temperature(engine: Engine, cases: Any, temperature: float) -> None:
    """Of greedy tokens and of prompts they are at temperature 1; top_k and top_p leave them alone."""
    weights, prompt = engine.sampler_weights(None), cases.prompt(0, 20)
    spec = SampleSpec(
        prompt, num_samples=4, max_tokens=6, temperature=temperature, top_k=40, top_p=0.9, record_top_k=320
    )
    sequences = engine.sample([(weights, spec)])[0].sequences
    assert len(sequences) == 4
    for sequence in sequences:
        whole = SampleSpec(prompt + sequence.tokens, num_samples=1, max_tokens=1, temperature=2.0, prompt_logprobs=True)
        scores = engine.sample([(weights, whole)])[0].prompt_logprobs
        assert scores is not None and sequence.top_k is not None
        order = np.argsort(sequence.top_k.tokens, axis=1)
        recorded = torch.from_numpy(np.take_along_axis(sequence.top_k.logprobs, order, axis=1))  # by token, at T = 1
        tokens = torch.tensor(sequence.tokens)[:, None]
        np.testing.assert_allclose(recorded.gather(1, tokens)[:, 0], np.array(scores[20:], float), atol=1e-4)
        scaled = (recorded / (temperature or 1.0)).log_softmax(dim=1).gather(1, tokens)[:, 0]
        np.testing.assert_allclose(sequence.logprobs, scaled, atol=1e-4)


def test_recording_changes_no_token_and_no_score(engine: Engine, cases: Any) -> None:
    weights = engine.sampler_weights(None)
    spec = SampleSpec(cases.prompt(0, 20), num_samples=3, max_tokens=8, seed=5)
    plain, recording = engine.sample([(weights, spec), (weights, replace(spec, record_top_k=4))])
    assert len(plain.sequences) == 3
    for bare, sequence in zip(plain.sequences, recording.sequences, strict=True):
        assert bare.top_k is None and sequence.top_k is not None
        assert (bare.tokens, bare.logprobs) == (sequence.tokens, sequence.logprobs)
        assert sequence.top_k.tokens.shape == sequence.top_k.logprobs.shape == (len(bare.tokens), 4)


@pytest.mark.parametrize(
    ("top_k", "top_p", "allowed"),
    [(2, 1.0, {2, 3}), (-1, 0.6, {3}), (-1, 0.7, {2, 3}), (3, 0.99, {1, 2, 3}), (1, 1e-9, {3}), (0, 1.0, {0, 1, 2, 3})],
)
def test_top_k_and_top_p_cut_the_distribution(top_k: int, top_p: float, allowed: set[int]) -> None:
    probs = torch.tensor([[0.01, 0.09, 0.25, 0.65]])
    spec = SampleSpec([1], num_samples=1, max_tokens=1, top_k=top_k, top_p=top_p)
    tokens, logprobs = draw_tokens(probs.log(), spec, np.linspace(0, 1 - 1e-16, 1000))
    assert set(tokens.tolist()) == allowed
    torch.testing.assert_close(logprobs, probs.log()[0][tokens])  # of the uncut distribution


def test_stop_tokens_end_a_sequence_and_are_kept(engine: Engine, cases: Any) -> None:
    weights = engine.sampler_weights(None)
    free = SampleSpec(cases.prompt(0, 20), num_samples=6, max_tokens=40, seed=1)
    stops = [engine.sample([(weights, free)])[0].sequences[0].tokens[5]]
    result = engine.sample([(weights, replace(free, stop_tokens=stops))])[0]
    for sequence in result.sequences:
        if sequence.stop_reason == "stop":
            assert sequence.tokens[-1] in stops
            assert not set(sequence.tokens[:-1]) & set(stops)
        else:
            assert len(sequence.tokens) == 40
            assert not set(sequence.tokens) & set(stops)
    assert result.sequences[0].stop_reason == "stop"


def test_stop_strings_end_a_sequence(engine: Engine, cases: Any) -> None:
    weights = engine.sampler_weights(None)
    free = SampleSpec(cases.prompt(0, 20), num_samples=4, max_tokens=60, seed=1)
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    texts = [tokenizer.decode([token]) for token in engine.sample([(weights, free)])[0].sequences[0].tokens]
    target = next(text for text in texts[5:] if text.isascii() and text)
    result = engine.sample([(weights, replace(free, stop_strings=["never in it", target]))])[0]
    assert result.sequences[0].stop_reason == "stop"
    for sequence in result.sequences:
        text = tokenizer.decode(sequence.tokens)
        assert (target in text) == (sequence.stop_reason == "stop")
        assert target not in tokenizer.decode(sequence.tokens[:-1])


def test_the_context_ends_a_sequence(engine: Engine, cases: Any) -> None:
    prompt = cases.prompt(0, engine.context_length - 3)
    result = engine.sample([(engine.sampler_weights(None), SampleSpec(prompt, num_samples=2, max_tokens=50))])[0]
    assert [(len(sequence.tokens), sequence.stop_reason) for sequence in result.sequences] == [(3, "length")] * 2


def test_a_full_context_can_still_be_scored(engine: Engine, cases: Any) -> None:
    spec = SampleSpec(cases.prompt(0, engine.context_length), num_samples=1, max_tokens=1, prompt_logprobs=True)
    result = engine.sample([(engine.sampler_weights(None), spec)])[0]
    assert result.sequences[0].tokens == [] and result.sequences[0].stop_reason == "length"
    assert result.prompt_logprobs is not None and len(result.prompt_logprobs) == engine.context_length


def test_long_prompts_with_many_samples(engine: Engine, cases: Any) -> None:
    spec = SampleSpec(cases.prompt(0, 3000), num_samples=16, max_tokens=3)
    result = engine.sample([(engine.sampler_weights(None), spec)])[0]
    assert [len(sequence.tokens) for sequence in result.sequences] == [3] * 16


def test_a_snapshot_does_not_change_with_its_adapter(
    engine: Engine, trained: Callable[[int], Adapter], cases: Any
) -> None:
    adapter = trained(3)
    spec = SampleSpec(cases.prompt(0, 20), num_samples=4, max_tokens=20)
    snapshot = engine.sampler_weights(adapter)
    before = engine.sample([(snapshot, spec)])[0]
    datums = cases.datums([spec], [before])
    engine.forward_backward(adapter, datums, "importance_sampling", {}, backward=True)
    engine.optim_step(adapter, AdamSettings(learning_rate=0.05))
    after = engine.sample([(snapshot, spec), (engine.sampler_weights(adapter), spec)])
    assert after[0] == before
    assert after[1] != before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_of_a_snapshot_are_freed_and_made_again_with_the_same_bits(
    qwen3_folder: Path, trained: Callable[..., Adapter], cases: Any, dtype: str
) -> None:
    engine = Engine(qwen3_folder, dtype=dtype)
    adapter = trained(3, engine)
    snapshot = engine.snapshot(adapter)
    weights = snapshot.weights()
    assert weights is snapshot.weights() is engine.sampler_weights(adapter)
    spec = SampleSpec(cases.prompt(0, 20), num_samples=4, max_tokens=20)
    before = engine.sample([(weights, spec)])[0]
    first = {name: weight.clone() for name, weight in weights.items()}
    held = weakref.ref(weights)
    engine.forward_backward(adapter, cases.datums([spec], [before]), "importance_sampling", {}, backward=True)
    engine.optim_step(adapter, AdamSettings(learning_rate=0.05))
    assert held() is weights
    del weights
    assert held() is None, "somebody still holds the weights"
    again = snapshot.weights()
    assert engine.sample([(again, spec)])[0] == before
    assert all(torch.equal(again[name], first[name]) for name in first)
