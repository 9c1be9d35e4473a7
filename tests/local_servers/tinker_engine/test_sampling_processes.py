"""Sampling in several processes: the same bits in each, whatever becomes of one."""

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from local_servers.memory import OutOfMemory
from local_servers.tinker.engine.adapter import Adapter, Snapshot, SnapshotWeights
from local_servers.tinker.engine.causal_lm import Weights
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine.sampling_processes import SamplingProcesses
from local_servers.tinker.engine_types import SampleSpec
from local_servers.tinker.refusal import BadRequest


@pytest.fixture(scope="module")
def rounded(qwen3_folder: Path) -> Engine:
    return Engine(qwen3_folder, dtype="bfloat16")


@contextmanager
def two_processes(engine: Engine) -> Iterator[tuple[SamplingProcesses, psutil.Process]]:
    """Sampling in this process and another one, which takes seconds to start: these two."""
    before = psutil.Process().children()
    made = SamplingProcesses(engine, 2)
    try:
        (worker,) = set(psutil.Process().children()) - set(before)
        assert "sampling_processes" in " ".join(worker.cmdline())
        yield made, worker
    finally:
        made.close()


@pytest.fixture(scope="module")
def made_once(rounded: Engine) -> Iterator[tuple[SamplingProcesses, psutil.Process]]:
    with two_processes(rounded) as made:
        yield made


@pytest.fixture
def processes(made_once: tuple[SamplingProcesses, psutil.Process]) -> SamplingProcesses:
    """For tests that leave both processes alive."""
    return made_once[0]


@pytest.fixture(scope="module")
def policies(rounded: Engine, trained: Callable[..., Adapter]) -> list[Weights]:
    """The base model and more policies than a worker process keeps."""
    return [rounded.sampler_weights(None), *(rounded.sampler_weights(trained(seed, rounded)) for seed in range(4))]


def test_requests_get_the_same_bits_in_each_process(
    rounded: Engine, processes: SamplingProcesses, policies: list[Weights], cases: Any
) -> None:
    jobs = [(policies[i % 5], SampleSpec(cases.prompt(i, 10 + 7 * i), 1 + i % 5, 20, seed=i)) for i in range(20)]
    futures = [processes.submit(weights, spec) for weights, spec in jobs]
    assert [future.result(120) for future in futures] == [rounded.sample([job])[0] for job in jobs]


def test_weights_that_nobody_holds_are_made_again_in_each_process(
    rounded: Engine, processes: SamplingProcesses, trained: Callable[..., Adapter], cases: Any
) -> None:
    snapshots = [rounded.snapshot(trained(seed, rounded)) for seed in range(3)]
    specs = [SampleSpec(cases.prompt(i, 20), 4, 20, seed=i) for i in range(4)]
    seen = []
    for snapshot in snapshots * 2:
        futures = [processes.submit(snapshot.weights(), spec) for spec in specs]
        seen.append([future.result(60) for future in futures])
    assert seen[:3] == seen[3:]
    assert seen[0] != seen[1]


def test_what_a_killed_process_leaves_is_run_by_the_others(
    rounded: Engine, policies: list[Weights], cases: Any
) -> None:
    jobs = [(policies[i % 2], SampleSpec(cases.prompt(i, 20), 4, 30, seed=i)) for i in range(8)]
    with two_processes(rounded) as (processes, worker):
        futures = [processes.submit(weights, spec) for weights, spec in jobs]
        os.kill(worker.pid, signal.SIGKILL)
        assert [future.result(120) for future in futures] == rounded.sample(jobs)
        assert processes.submit(*jobs[0]).result(60) == rounded.sample(jobs[:1])[0]


def test_a_cancelled_request_gives_up_its_place(processes: SamplingProcesses, cases: Any, policies: Any) -> None:
    long = [processes.submit(policies[0], SampleSpec(cases.prompt(i, 30), 16, 4000)) for i in range(4)]
    assert all(future.cancel() for future in long)
    with pytest.raises(CancelledError):
        long[0].result()
    short = [processes.submit(policies[0], SampleSpec(cases.prompt(0, 30), 1, 2)) for _ in range(4)]
    assert all(len(future.result(60).sequences[0].tokens) == 2 for future in short)


def test_a_request_that_fails_says_the_same_from_each_process(
    processes: SamplingProcesses, policies: list[Weights], cases: Any
) -> None:
    assert isinstance(policies[1], SnapshotWeights)
    factors = {name: factor * float("nan") for name, factor in policies[1].snapshot.factors.items()}
    diverged = Snapshot(policies[0], factors).weights()
    for future in [processes.submit(diverged, SampleSpec(cases.prompt(i, 5), 2, 4)) for i in range(4)]:
        with pytest.raises(BadRequest, match="training has diverged"):
            future.result(60)
    with pytest.raises(BadRequest, match="prompt is empty"):
        processes.submit(policies[0], SampleSpec([], 1, 1))
    full = OutOfMemory("a copy of the weights")
    assert str(pickle.loads(pickle.dumps(full))) == str(full)


def test_close_ends_the_processes_and_fails_what_is_unfinished(
    made_once: tuple[SamplingProcesses, psutil.Process], policies: list[Weights], cases: Any
) -> None:
    """The last test of these processes, which it ends: to start others would take seconds."""
    processes, worker = made_once
    futures = [processes.submit(policies[0], SampleSpec(cases.prompt(i, 30), 4, 4000)) for i in range(4)]
    processes.close()
    assert not wait(futures, 60).not_done
    for future in futures:
        with pytest.raises(RuntimeError, match="closed"):
            future.result()
    with pytest.raises(RuntimeError, match="closed"):
        processes.submit(policies[0], SampleSpec([1], 1, 1))
    assert not worker.is_running()
