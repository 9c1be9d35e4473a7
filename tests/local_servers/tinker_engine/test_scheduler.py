"""The sampling loop: requests of many threads, joined on the way, cancelled, failed and closed."""

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from local_servers import memory
from local_servers.memory import OutOfMemory
from local_servers.tinker.engine.adapter import Adapter
from local_servers.tinker.engine.causal_lm import Weights
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine.sampling_batch import RunningRequest
from local_servers.tinker.engine.scheduler import SamplingScheduler
from local_servers.tinker.engine.slot_caches import KeptPrompts
from local_servers.tinker.engine_types import SampleSpec
from local_servers.tinker.refusal import BadRequest


@pytest.fixture
def scheduler(engine: Engine) -> Iterator[SamplingScheduler]:
    made = SamplingScheduler(engine)
    yield made
    made.close()


def test_concurrent_requests_get_the_bits_they_get_alone(
    engine: Engine, scheduler: SamplingScheduler, trained: Callable[[int], Adapter], cases: Any
) -> None:
    weights = [engine.sampler_weights(None), engine.sampler_weights(trained(0))]
    specs = [SampleSpec(cases.prompt(i, 10 + 37 * i), 1 + i % 5, 5 + 3 * i, seed=i) for i in range(12)]
    alone = [engine.sample([(weights[i % 2], spec)])[0] for i, spec in enumerate(specs)]
    with ThreadPoolExecutor(6) as pool:
        futures = list(pool.map(lambda i: scheduler.submit(weights[i % 2], specs[i]), range(12)))
    assert [future.result() for future in futures] == alone


def test_a_short_request_overtakes_a_long_one(engine: Engine, scheduler: SamplingScheduler, cases: Any) -> None:
    weights = engine.sampler_weights(None)
    long = scheduler.submit(weights, SampleSpec(cases.prompt(0, 30), num_samples=2, max_tokens=4000))
    short = scheduler.submit(weights, SampleSpec(cases.prompt(1, 30), num_samples=2, max_tokens=3))
    assert len(short.result().sequences) == 2
    assert not long.done()


def test_requests_wait_for_room_in_the_cache(engine: Engine, cases: Any) -> None:
    scheduler = SamplingScheduler(engine, max_cache_bytes=1)
    specs = [SampleSpec(cases.prompt(i, 10), 2, 5, seed=i) for i in range(4)]
    weights = engine.sampler_weights(None)
    futures = [scheduler.submit(weights, spec) for spec in specs]
    assert [future.result() for future in futures] == engine.sample([(weights, spec) for spec in specs])
    scheduler.close()


def test_a_cancelled_request_that_waited_for_room_holds_up_none_behind_it(engine: Engine, cases: Any) -> None:
    """Two small requests fit into the caches together; the large one that came between them fits beside none."""
    weights = engine.sampler_weights(None)
    long = SampleSpec(cases.prompt(0, 10), max_tokens=4000, num_samples=1)
    large = SampleSpec(cases.prompt(1, 10), max_tokens=4000, num_samples=4)
    short = SampleSpec(cases.prompt(2, 10), max_tokens=3, num_samples=1)
    scheduler = SamplingScheduler(engine, max_cache_bytes=engine.cache_bytes(long) + engine.cache_bytes(short))
    running, waiting, behind = (scheduler.submit(weights, spec) for spec in (long, large, short))
    assert waiting.cancel()
    assert len(behind.result(timeout=60).sequences) == 1
    assert not running.done()
    scheduler.close()


@pytest.fixture
def by_sample(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(engine, "splits_samples", True)


@pytest.mark.usefixtures("by_sample")
def test_samples_that_run_as_requests_of_their_own_are_those_of_the_whole_request(
    engine: Engine, scheduler: SamplingScheduler, cases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = engine.sampler_weights(None)
    specs = [SampleSpec(cases.prompt(i, 70 + i), 5, 12, seed=i, prompt_logprobs=i > 0) for i in range(3)]
    found = [future.result() for future in [scheduler.submit(weights, spec) for spec in specs]]
    assert found == engine.sample([(weights, spec) for spec in specs])
    monkeypatch.setattr(engine, "splits_samples", False)
    for spec, result, whole in zip(specs, found, engine.sample([(weights, spec) for spec in specs]), strict=True):
        assert (result.prompt_logprobs is None) is not spec.prompt_logprobs
        np.testing.assert_allclose(
            [value or 0.0 for value in result.prompt_logprobs or ()],
            [value or 0.0 for value in whole.prompt_logprobs or ()],
            atol=1e-4,
        )
        for sample, expected in zip(result.sequences, whole.sequences, strict=True):
            assert (sample.tokens, sample.stop_reason) == (expected.tokens, expected.stop_reason)
            np.testing.assert_allclose(sample.logprobs, expected.logprobs, atol=1e-4)


@pytest.mark.usefixtures("by_sample")
def test_a_request_whose_samples_run_apart_ends_as_one(
    engine: Engine, scheduler: SamplingScheduler, cases: Any
) -> None:
    weights = engine.sampler_weights(None)
    long = scheduler.submit(weights, SampleSpec(cases.prompt(0, 30), 16, 8000))
    with pytest.raises(KeyError):
        scheduler.submit({}, SampleSpec(cases.prompt(0, 5), 4, 2)).result()
    assert long.cancel()
    short = scheduler.submit(weights, SampleSpec(cases.prompt(0, 30), 3, 2))
    assert [len(sequence.tokens) for sequence in short.result().sequences] == [2] * 3


def test_a_bad_request_is_refused_at_once(scheduler: SamplingScheduler, engine: Engine) -> None:
    with pytest.raises(BadRequest, match="prompt is empty"):
        scheduler.submit(engine.sampler_weights(None), SampleSpec([], 1, 1))


def test_a_cancelled_request_gives_its_place_free(engine: Engine, cases: Any) -> None:
    scheduler = SamplingScheduler(engine)
    long = scheduler.submit(engine.sampler_weights(None), SampleSpec(cases.prompt(0, 30), 16, 8000))
    assert long.cancel()
    with pytest.raises(CancelledError):
        long.result()
    short = scheduler.submit(engine.sampler_weights(None), SampleSpec(cases.prompt(0, 30), 1, 2))
    assert len(short.result().sequences[0].tokens) == 2
    scheduler.close()


def test_close_fails_what_is_unfinished(engine: Engine, cases: Any) -> None:
    scheduler = SamplingScheduler(engine)
    futures = [
        scheduler.submit(engine.sampler_weights(None), SampleSpec(cases.prompt(i, 30), 4, 8000)) for i in range(3)
    ]
    scheduler.close()
    assert not wait(futures).not_done
    for future in futures:
        with pytest.raises(RuntimeError, match="closed"):
            future.result()
    with pytest.raises(RuntimeError, match="closed"):
        scheduler.submit(engine.sampler_weights(None), SampleSpec([1], 1, 1))


def test_a_failed_step_fails_its_requests_and_the_loop_goes_on(engine: Engine, cases: Any) -> None:
    scheduler = SamplingScheduler(engine)
    broken: Weights = {}
    with pytest.raises(KeyError):
        scheduler.submit(broken, SampleSpec(cases.prompt(0, 5), 1, 2)).result()
    fine = scheduler.submit(engine.sampler_weights(None), SampleSpec(cases.prompt(0, 5), 1, 2))
    assert len(fine.result().sequences[0].tokens) == 2
    scheduler.close()


@pytest.mark.parametrize(("part", "name"), [(KeptPrompts, "add"), (RunningRequest, "result")])
def test_a_fault_around_a_step_fails_its_requests_and_the_loop_goes_on(
    engine: Engine, scheduler: SamplingScheduler, cases: Any, monkeypatch: pytest.MonkeyPatch, part: type, name: str
) -> None:
    def without_memory(*_: Any) -> None:
        raise MemoryError

    weights = engine.sampler_weights(None)
    with monkeypatch.context() as patch:
        patch.setattr(part, name, without_memory)
        futures = [scheduler.submit(weights, SampleSpec(cases.prompt(i, 5), 1, 2)) for i in range(3)]
        for future in futures:
            with pytest.raises(MemoryError):
                future.result(60)
    fine = scheduler.submit(weights, SampleSpec(cases.prompt(0, 5), 1, 2))
    assert len(fine.result(60).sequences[0].tokens) == 2


@pytest.mark.parametrize("fault", ["while drawing", "in the pass"])
def test_one_bad_request_fails_none_beside_it(engine: Engine, cases: Any, fault: str) -> None:
    weights = engine.sampler_weights(None)
    good = [SampleSpec(cases.prompt(i, 20), 2, 12, seed=i) for i in range(3)]
    alone = engine.sample([(weights, spec) for spec in good])
    # Neither is let in by validation, which these go around.
    bad = replace(good[0], temperature=1e-45) if fault == "while drawing" else replace(good[0], prompt=[5, 10**6])
    batch = engine.sampling_batch()
    requests = [engine.running_request(weights, spec) for spec in [*good[:2], bad, good[2]]]
    for request in requests:
        batch.requests.append(request)
    while batch.requests:
        batch.step()
    assert requests.pop(2).error is not None
    assert [request.error for request in requests] == [None] * 3
    assert [request.result() for request in requests] == alone


def test_a_request_without_room_fails_alone(
    engine: Engine, scheduler: SamplingScheduler, cases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 17 << 20)
    weights = engine.sampler_weights(None)
    small = [scheduler.submit(weights, SampleSpec(cases.prompt(i, 20), 2, 12, seed=i)) for i in range(2)]
    with pytest.raises(OutOfMemory, match="sampling 4096 completions"):
        scheduler.submit(weights, SampleSpec(cases.prompt(0, 20), 4096, 2)).result()
    assert all(len(future.result().sequences) == 2 for future in small)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_weights_that_are_no_numbers_are_called_so(
    engine: Engine, scheduler: SamplingScheduler, cases: Any, temperature: float
) -> None:
    diverged = {name: weight * float("nan") for name, weight in engine.sampler_weights(None).items()}
    with pytest.raises(BadRequest, match="training has diverged"):
        scheduler.submit(diverged, SampleSpec(cases.prompt(0, 5), 2, 4, temperature=temperature)).result()
