"""Sampling of a large bfloat16 model in several processes, of which this one is the first.

Its products are over so soon that threads of one process wait for each other's Python: with SmolLM2-135M, two processes
sampled a quarter more than two threads. A request runs in one process, and gets the same bits in each. What a worker
process has to know of an adapter, its factors, it is sent with the adapter's first request.

A worker that ends is not started again: this process runs what it leaves, and those that are left what follows.
"""

import contextlib
import itertools
import logging
import pickle
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import torch
from safetensors.torch import save

from local_servers.memory import SHARE, available_bytes
from local_servers.tinker.engine.adapter import Snapshot, SnapshotWeights
from local_servers.tinker.engine.causal_lm import Weights
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine.scheduler import SamplingScheduler
from local_servers.tinker.engine_types import SampleResult, SampleSpec

logger = logging.getLogger(__name__)

MOST_PROCESSES = 4
"""Each has the weights in memory, and fills its share of the cores with threads."""
_WORKER = "local_servers.tinker.engine.sampling_worker"
_KEPT = 2
"""The most adapters whose weights a worker keeps: those of the policy now, and those of the one before while they are
in use."""

Scheduler: TypeAlias = "SamplingScheduler | SamplingProcesses"
_Unfinished = tuple[Weights, SampleSpec, Future[SampleResult]]


def sampling_scheduler(engine: Engine) -> Scheduler:
    """What runs the requests of this engine: one process, or several where its model is large and in bfloat16."""
    if engine.dtype != torch.bfloat16 or not engine.large:
        return SamplingScheduler(engine)
    room = int(SHARE * available_bytes() / engine.needed_bytes)
    processes = min(engine.cores, MOST_PROCESSES, 1 + room)
    return SamplingProcesses(engine, processes) if processes > 1 else SamplingScheduler(engine)


class SamplingProcesses:
    """`SamplingScheduler`s in several processes; a request goes to the one that has the least to do."""

    def __init__(self, engine: Engine, processes: int) -> None:
        """Starts `processes` - 1 worker processes, which load the engine's model; they share `Engine.cache_room`."""
        self._engine = engine
        bytes_each = engine.cache_room // processes
        threads = [max(1, (engine.cores + place) // processes) for place in range(processes)]
        self._here = SamplingScheduler(engine, max_cache_bytes=bytes_each, threads=threads[0])
        self._workers = [_Worker(engine, bytes_each, count, self._run_here) for count in threads[1:]]
        self._tokens_here = 0
        self._lock = threading.Lock()

    def submit(self, weights: Weights, spec: SampleSpec) -> Future[SampleResult]:
        """As `SamplingScheduler.submit`."""
        self._engine.validate_sample(spec)
        tokens = _most_tokens(spec)
        with self._lock:
            worker = min((worker for worker in self._workers if worker.alive), key=lambda w: w.tokens, default=None)
            here = worker is None or self._tokens_here <= worker.tokens
            if here:
                self._tokens_here += tokens
        if here or worker is None:
            future = self._here.submit(weights, spec)
            future.add_done_callback(lambda _: self._ran_here(tokens))
            return future
        return worker.submit(weights, spec)

    def close(self) -> None:
        """Ends the worker processes; unfinished requests fail with RuntimeError."""
        for worker in self._workers:
            worker.close()
        self._here.close()

    def _ran_here(self, tokens: int) -> None:
        with self._lock:
            self._tokens_here -= tokens

    def _run_here(self, unfinished: list[_Unfinished]) -> None:
        """Runs what a worker that ended has left."""
        for weights, spec, future in unfinished:
            try:
                _follow(self._here.submit(weights, spec), future)
            except RuntimeError as error:  # closed meanwhile
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)


class _Worker:
    """The other side of a worker process: what was asked of it, and the weights that it holds."""

    def __init__(
        self, engine: Engine, max_cache_bytes: int, threads: int, take_back: Callable[[list[_Unfinished]], None]
    ) -> None:
        self.alive = True
        self.tokens = 0
        self._base = engine.sampler_weights(None)
        self._take_back = take_back
        self._numbers = itertools.count()
        self._unfinished: dict[int, _Unfinished] = {}
        self._held: OrderedDict[int, Snapshot] = OrderedDict()
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            # A program of its own and no fork: this process has threads, and locks that they hold.
            descriptor = theirs.fileno()
            arguments = [descriptor, engine.folder, engine.dtype, max_cache_bytes, threads]
            command = [sys.executable, "-m", _WORKER, *map(str, arguments)]
            # A group of its own: whoever ends the server by its group leaves the worker to the end of the socket.
            self._process = subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL, process_group=0)
        self._connection = Connection(ours.detach())
        # A thread sends: the process may be loading the model, and weights are more than a socket takes at once.
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="to sampling process")
        threading.Thread(target=self._receive, name="from sampling process", daemon=True).start()

    def submit(self, weights: Weights, spec: SampleSpec) -> Future[SampleResult]:
        future: Future[SampleResult] = Future()
        number = next(self._numbers)
        with self._lock:
            self._unfinished[number] = (weights, spec, future)
            self.tokens += _most_tokens(spec)
        future.add_done_callback(lambda done: self._sender.submit(self._cancel, number) if done.cancelled() else None)
        self._sender.submit(self._send_request, number, weights, spec)
        if not self.alive:  # it ended after it was chosen
            self._give_back()
        return future

    def close(self) -> None:
        self.alive = False
        self._sender.shutdown(wait=False, cancel_futures=True)
        self._process.terminate()
        self._process.wait()
        for _, _, future in self._take_unfinished():
            if future.set_running_or_notify_cancel():
                future.set_exception(RuntimeError("the sampling scheduler was closed"))

    def _send_request(self, number: int, weights: Weights, spec: SampleSpec) -> None:
        try:
            snapshot = None if weights is self._base else _snapshot_of(weights)
            if snapshot is not None:
                self._send_snapshot(snapshot)
            self._send("sample", number, None if snapshot is None else id(snapshot), spec)
        except OSError:  # it has ended, which the receiving thread notices too
            self._give_back()
        except Exception as error:  # this one's alone
            self._finish(number, None, error)

    def _send_snapshot(self, snapshot: Snapshot) -> None:
        """Sends what the worker does not hold; those that are not in use, and the oldest that it holds, make room."""
        key = id(snapshot)
        if key not in self._held:
            in_use = [old for old, held in self._held.items() if held.in_use]
            dropped = [old for old in self._held if old not in in_use[1 - _KEPT :]]
            self._send("snapshot", key, dropped, save(snapshot.factors))
            for old in dropped:
                del self._held[old]
            self._held[key] = snapshot  # held here too: another object cannot get its id
        self._held.move_to_end(key)

    def _cancel(self, number: int) -> None:
        self._finish(number, None, None)
        with contextlib.suppress(OSError):  # it has ended
            self._send("cancel", number)

    def _send(self, *message: Any) -> None:
        self._connection.send_bytes(pickle.dumps(message))

    def _receive(self) -> None:
        try:
            while True:
                self._finish(*pickle.loads(self._connection.recv_bytes()))
        except Exception as error:
            if self.alive:
                self._process.kill()  # also where it runs, and what it said could not be read
                code = self._process.wait()
                logger.error("a sampling process was lost (%r, exit code %s): continuing without it", error, code)
            self._give_back()

    def _finish(self, number: int, result: SampleResult | None, error: Exception | None) -> None:
        with self._lock:
            found = self._unfinished.pop(number, None)
            if found is not None:
                self.tokens -= _most_tokens(found[1])
        if found is None or not found[2].set_running_or_notify_cancel():
            return
        if result is not None:
            found[2].set_result(result)
        else:
            found[2].set_exception(error)

    def _give_back(self) -> None:
        self.alive = False
        self._take_back(self._take_unfinished())

    def _take_unfinished(self) -> list[_Unfinished]:
        with self._lock:
            unfinished, self._unfinished = list(self._unfinished.values()), {}
            self.tokens = 0
        return unfinished


def _snapshot_of(weights: Weights) -> Snapshot:
    if not isinstance(weights, SnapshotWeights):
        raise TypeError("another process can sample from the base model and from snapshots alone")
    return weights.snapshot


def _most_tokens(spec: SampleSpec) -> int:
    return len(spec.prompt) + spec.num_samples * spec.max_tokens


def _follow(source: Future[SampleResult], target: Future[SampleResult]) -> None:
    """`target` ends as `source` does, and its cancellation cancels `source`."""

    def finish(done: Future[SampleResult]) -> None:
        if done.cancelled() or not target.set_running_or_notify_cancel():
            return
        if (error := done.exception()) is None:
            target.set_result(done.result())
        else:
            target.set_exception(error)

    target.add_done_callback(lambda done: source.cancel() if done.cancelled() else None)
    source.add_done_callback(finish)
