"""Requests for one sample: many in one product, and prompts computed once for all that begin alike; the same bits."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from local_servers import memory
from local_servers.tinker.engine.adapter import Adapter
from local_servers.tinker.engine.cached_attention import SampleAttention, Segment
from local_servers.tinker.engine.causal_lm import BaseModel
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine.sampling_batch import PREFILL_CHUNK, SamplingBatch
from local_servers.tinker.engine.slot_caches import CHUNK, KeptPrompts, SlotCache, SlotPool, capacity_of
from local_servers.tinker.engine_types import AdamSettings, SampleResult, SampleSpec

HEADS, KV, D = 6, 2, 16
CPU = torch.device("cpu")


@pytest.fixture
def computed_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each forward pass had, filled up to whole tiles."""
    rows: list[int] = []
    hidden = BaseModel.hidden

    def counted(self: BaseModel, weights: Any, tokens: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        rows.append(len(tokens))
        return hidden(self, weights, tokens, *others, **options)

    monkeypatch.setattr(BaseModel, "hidden", counted)
    return rows


def run(engine: Engine, batch: SamplingBatch, specs: list[SampleSpec], weights: Any = None) -> list[SampleResult]:
    weights = engine.sampler_weights(None) if weights is None else weights
    requests = [engine.running_request(weights, spec) for spec in specs]
    batch.requests += requests
    while batch.requests:
        batch.step()
    assert [request.error for request in requests] == [None] * len(requests)
    return [request.result() for request in requests]


def continued(cases: Any, count: int, shared: int, own: int) -> list[SampleSpec]:
    """Requests whose prompts have their first `shared` tokens in common."""
    common = cases.prompt(99, shared)
    return [SampleSpec([*common, *cases.prompt(i, own + 7 * i)], 1, 20 + i, seed=i) for i in range(count)]


@pytest.mark.parametrize(("shared", "threads"), [(1, 1), (CHUNK - 1, 1), (CHUNK, 2), (200, 2), (PREFILL_CHUNK + 70, 2)])
def test_a_shared_prefix_changes_no_bit(engine: Engine, cases: Any, shared: int, threads: int) -> None:
    specs = continued(cases, 9, shared, 30)
    # One that is a prefix of another, one that is another's whole, and others that share nothing.
    specs += [SampleSpec(specs[3].prompt[: shared + 5], 1, 9), SampleSpec(specs[4].prompt, 1, 9, seed=3)]
    specs += [SampleSpec(cases.prompt(50 + i, 90), 1 + i % 2, 15, seed=i) for i in range(4)]
    weights = engine.sampler_weights(None)
    alone = [engine.sample([(weights, spec)])[0] for spec in specs]
    batch = engine.sampling_batch(threads)
    assert run(engine, batch, specs) == alone
    assert run(engine, batch, specs[::-1]) == alone[::-1]  # from what the first time kept
    late = [engine.running_request(weights, spec) for spec in specs]
    for request in late:  # each while others are on their way
        batch.requests.append(request)
        batch.step()
    while batch.requests:
        batch.step()
    assert [request.result() for request in late] == alone


def test_a_shared_prefix_is_computed_once(engine: Engine, cases: Any, computed_rows: list[int]) -> None:
    batch = engine.sampling_batch(1)
    specs = [SampleSpec([*cases.prompt(99, 400), i, *cases.prompt(i, 15)], 1, 1, seed=i) for i in range(8)]
    run(engine, batch, specs)
    assert sum(computed_rows) == 416 + 7 * 16 + 16  # which whole tiles need
    computed_rows.clear()
    run(engine, batch, [SampleSpec([*specs[5].prompt, *cases.prompt(7, 32)], 1, 1)])
    assert computed_rows == [32]
    computed_rows.clear()
    run(engine, batch, [SampleSpec(specs[5].prompt, 1, 1, prompt_logprobs=True)])  # of each token a logit
    assert computed_rows == [416]


def test_other_weights_share_no_prefix(engine: Engine, trained: Callable[[int], Adapter], cases: Any) -> None:
    adapter = trained(3)
    spec = SampleSpec(cases.prompt(0, 200), 1, 20, seed=1)
    batch = engine.sampling_batch(1)
    old = engine.sampler_weights(adapter)
    before = run(engine, batch, [spec], old)
    datums = cases.datums([spec], before)
    engine.forward_backward(adapter, datums, "importance_sampling", {}, backward=True)
    engine.optim_step(adapter, AdamSettings(learning_rate=0.05))
    new = engine.sampler_weights(adapter)
    assert run(engine, batch, [spec], new) == engine.sample([(new, spec)]) != before
    assert run(engine, batch, [spec], old) == before


def test_kept_prompts_end_with_their_weights_and_make_room(
    engine: Engine, trained: Callable[[int], Adapter], cases: Any
) -> None:
    tensors = [torch.ones(50, KV, D)]
    kept = KeptPrompts(3 * tensors[0].nbytes)
    base = engine.sampler_weights(None)
    prompts = [np.array(cases.prompt(i, 50)) for i in range(5)]

    def held() -> list[int]:
        return [number for number, prompt in enumerate(prompts) if kept.find(base, np.append(prompt, 0))[0] == 50]

    adapter = trained(0)
    snapshot = engine.snapshot(adapter)
    weights = snapshot.weights()
    kept.add(weights, prompts[0], tensors)
    assert held() == []
    assert kept.find(weights, prompts[0])[0] == 49, "the last token of a prompt is always computed"
    for prompt in prompts[:2]:
        kept.add(base, prompt, tensors)
    assert held() == [0, 1]
    assert kept.find(weights, np.append(prompts[0], 0))[0] == 50
    adapter.forget_adapted_weights()
    del weights
    kept.add(base, prompts[2], tensors)
    assert held() == [0, 1, 2]  # there was room, as nothing of other weights is left
    assert kept.find(snapshot.weights(), prompts[0])[0] == 0
    kept.find(base, prompts[0])
    kept.add(base, prompts[3], tensors)
    assert held() == [0, 2, 3], "what was used last stays"
    kept.add(base, np.append(prompts[3], [5, 6]), tensors)
    assert held() == [0, 2, 3]  # in place of what it goes on from
    kept.add(base, prompts[4], [torch.ones(200, KV, D)])
    assert held() == [0, 2, 3]  # which alone is larger than all may be


def test_a_prompt_that_there_is_no_memory_for_is_not_kept(
    engine: Engine, cases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, prompt = engine.sampler_weights(None), np.array(cases.prompt(0, 50))
    kept = KeptPrompts(1 << 62)
    kept.add(base, prompt[:40], [torch.ones(40, KV, D)])
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 62)  # others take it before it is allocated
    kept.add(base, prompt, [torch.ones(1).expand(1 << 50)])
    assert kept.find(base, prompt) == (0, [])


@pytest.mark.parametrize("length", [1, CHUNK, 3 * CHUNK + 1, 600])
def test_attention_in_slots_is_attention(length: int) -> None:
    """Against the plain form. Beside others, with slots between them that hold no numbers, the bits are the same."""
    generator = torch.Generator().manual_seed(length)
    steps = 70  # beyond the capacity of the first slot
    q, k, v = (torch.randn(length + steps, heads, D, generator=generator) for heads in (HEADS, KV, KV))
    queries, keys, values = (x.repeat_interleave(HEADS // x.shape[1], dim=1).transpose(0, 1)[None] for x in (q, k, v))
    expected = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)[0].transpose(0, 1)
    edges = sorted({0, min(40, length), min(300, length), *range(length, length + steps + 1)})
    found = []
    for count, beside in ((1, 0), (5, 2)):
        pool = SlotPool(1, KV, D, CPU)
        caches = [SlotCache(length) for _ in range(count)]
        for cache in caches:
            pool.reserve(cache)
        running = caches[::2]
        for tensor in itertools.chain.from_iterable(cache.tensors(length) for cache in caches[1::2]):
            tensor.fill_(torch.nan)
        results = []
        for start, stop in itertools.pairwise(edges):
            size = stop - start
            for cache in running:
                pool.reserve(cache)
            segments = [Segment(i * size, (i + 1) * size, cache, start < length) for i, cache in enumerate(running)]
            queries, keys, values = (
                torch.cat([x[start:stop] + abs(i - beside // 2) for i in range(len(running))]) for x in (q, k, v)
            )
            out = SampleAttention(segments)(0, queries, keys, values, D**-0.5)
            results.append(out[beside // 2 * size :][:size])
            for cache in running:
                cache.prompt_filled, cache.generated = min(stop, length), max(0, stop - length)
        found.append(torch.cat(results))
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(found[0], found[1])


def test_slots_are_free_when_their_caches_are_gone() -> None:
    pool = SlotPool(1, KV, D, CPU)
    first, second = SlotCache(10), SlotCache(10)
    pool.reserve(first)
    pool.reserve(second)
    assert first.slots is second.slots
    for tensor in first.tensors(10):
        tensor.fill_(torch.nan)
    del first
    third = SlotCache(10)
    pool.reserve(third)
    assert third.slots is second.slots and third.slot == 0
    assert all(float(tensor.abs().sum()) == 0 for tensor in third.tensors(CHUNK)), "nothing is left of the cache before"


@pytest.mark.parametrize("positions", [1, 64, 65, 500, 513, 1100, 5000])
def test_capacities_follow_from_the_length_and_waste_little(positions: int) -> None:
    capacity = capacity_of(positions)
    assert capacity % CHUNK == 0
    assert positions <= capacity < max(positions + CHUNK, 1.26 * positions)
    assert capacity_of(capacity) == capacity
