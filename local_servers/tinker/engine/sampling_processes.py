"""Sampling of a large model in several processes, of which this one is the first.

Threads of one process wait for each other's Python: with SmolLM2-135M, two processes sampled a quarter more than two
threads, in bfloat16 and in float32. A request runs in one process, and gets the same bits in each. A worker process is
sent an adapter's factors with the adapter's first request.

A worker that ends is not started again: this process runs what it leaves, and those that are left what follows.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors.torch import load, save
from transformers.utils import logging as transformers_logging

from local_servers.memory import SHARE, available_bytes, keep_freed_memory, limit_own_memory_until
from local_servers.tinker.engine.adapter import Snapshot, SnapshotWeights
from local_servers.tinker.engine.causal_lm import Weights
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine.scheduler import CLOSED, SamplingScheduler, Submitted, end_future, join
from local_servers.tinker.engine_types import SampleResult, SampleSpec

logger = logging.getLogger(__name__)

MOST_PROCESSES = 4  # each has the weights in memory, and fills its share of the cores with threads
_WORKER = """
import sys
from local_servers.memory import fast_imports
with fast_imports():
    from local_servers.tinker.engine.sampling_processes import _work
_work(*sys.argv[1:])
"""

Scheduler: TypeAlias = "SamplingScheduler | SamplingProcesses"


def sampling_scheduler(engine: Engine) -> Scheduler:
    """What runs the requests of this engine: one process, or several where its model is large."""
    if not engine.large:
        return SamplingScheduler(engine)
    # A float32 model has a copy with the adapter merged in of the policy that samples, and of the one before.
    copies = 3 if engine.dtype == torch.float32 else 1
    room = int(SHARE * available_bytes() / (copies * engine.needed_bytes))
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

    def _run_here(self, unfinished: list[Submitted]) -> None:
        """Runs what a worker that ended has left."""
        for weights, spec, future in unfinished:
            try:
                join([self._here.submit(weights, spec)], future)
            except RuntimeError as error:  # closed meanwhile
                end_future(future, error)


class _Worker:
    """The other side of a worker process: what was asked of it, and the weights that it holds."""

    def __init__(
        self, engine: Engine, max_cache_bytes: int, threads: int, take_back: Callable[[list[Submitted]], None]
    ) -> None:
        """Starts the process, which loads the engine's model. If it dies, `take_back` gets its unfinished requests."""
        self.alive = True
        self.tokens = 0  # prompt tokens of its unfinished requests, and the most that they may sample
        self._base_weights = engine.sampler_weights(None)  # which the worker loads itself: other weights are sent to it
        self._take_back = take_back
        self._numbers = itertools.count()
        self._unfinished: dict[int, Submitted] = {}  # by the number under which the worker knows a request
        # What the worker has in memory, by the object's id here; the one used last is the last.
        self._sent_snapshots: OrderedDict[int, Snapshot] = OrderedDict()
        self._lock = threading.Lock()  # of `tokens` and `_unfinished`
        ours, theirs = socket.socketpair()
        with theirs:
            # A program of its own and no fork: this process has threads, and locks that they hold.
            descriptor = theirs.fileno()
            arguments = [descriptor, engine.folder, engine.dtype, max_cache_bytes, threads]
            command = [sys.executable, "-c", _WORKER, *map(str, arguments)]
            # A process group of its own, which a signal to the server's group does not reach (Ctrl-C): the worker ends
            # by itself when the server closes the socket.
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
            end_future(future, RuntimeError(CLOSED))

    def _send_request(self, number: int, weights: Weights, spec: SampleSpec) -> None:
        try:
            key = None
            if weights is not self._base_weights:
                if not isinstance(weights, SnapshotWeights):
                    raise TypeError("another process can sample from the base model and from snapshots alone")
                key = self._send_snapshot(weights.snapshot)
            self._connection.send(("sample", number, key, spec))
        except OSError:  # it has ended, which the receiving thread notices too
            self._give_back()
        except Exception as error:  # this one's alone
            self._finish(number, error)

    def _send_snapshot(self, snapshot: Snapshot) -> int:
        """Sends it where the worker does not hold it, which keeps one other at most: that of the policy before, while
        it is in use. Returns what the worker knows it by."""
        key = id(snapshot)
        if key not in self._sent_snapshots:
            kept = [old for old, sent in self._sent_snapshots.items() if sent.in_use][-1:]
            dropped = [old for old in self._sent_snapshots if old not in kept]
            self._connection.send(("snapshot", key, dropped, save(snapshot.factors)))
            for old in dropped:
                del self._sent_snapshots[old]
            self._sent_snapshots[key] = snapshot  # held here too: another object cannot get its id
        self._sent_snapshots.move_to_end(key)
        return key

    def _cancel(self, number: int) -> None:
        if (future := self._forget(number)) is not None:
            future.set_running_or_notify_cancel()  # whoever waits for it is told
        with contextlib.suppress(OSError):  # it has ended
            self._connection.send(("cancel", number))

    def _receive(self) -> None:
        try:
            while True:
                self._finish(*self._connection.recv())
        except Exception as error:
            if self.alive:
                self._process.kill()  # also where it runs, and what it said could not be read
                code = self._process.wait()
                logger.error("a sampling process was lost (%r, exit code %s): continuing without it", error, code)
            self._give_back()

    def _finish(self, number: int, outcome: SampleResult | Exception) -> None:
        if (future := self._forget(number)) is not None:
            end_future(future, outcome)

    def _forget(self, number: int) -> Future[SampleResult] | None:
        with self._lock:
            if (found := self._unfinished.pop(number, None)) is None:
                return None
            self.tokens -= _most_tokens(found[1])
        return found[2]

    def _give_back(self) -> None:
        self.alive = False
        self._take_back(self._take_unfinished())

    def _take_unfinished(self) -> list[Submitted]:
        with self._lock:
            unfinished, self._unfinished = list(self._unfinished.values()), {}
            self.tokens = 0
        return unfinished


def _most_tokens(spec: SampleSpec) -> int:
    return len(spec.prompt) + spec.num_samples * spec.max_tokens


def _work(descriptor: str, folder: str, dtype: str, max_cache_bytes: str, threads: str) -> None:
    """A worker process that samples for the server. It reads messages from the socket `descriptor`, until that is
    closed: ("snapshot", key, keys to drop, LoRA factors) are weights to hold, ("sample", number, key, spec) is a
    request for these weights, ("cancel", number) its end. It answers (number, result or error)."""
    keep_freed_memory()  # the allocator returns none to the system: each step would ask for the same memory again
    transformers_logging.disable_progress_bar()
    connection = Connection(int(descriptor))
    limiting = limit_own_memory_until(asyncio.Event())  # which nobody sets
    threading.Thread(target=asyncio.run, args=[limiting], name="memory limit", daemon=True).start()
    engine = Engine(Path(folder), dtype=dtype.removeprefix("torch."))
    scheduler = SamplingScheduler(engine, max_cache_bytes=int(max_cache_bytes), threads=int(threads))
    base = engine.sampler_weights(None)
    weights: dict[int | None, Weights] = {None: base}
    running: dict[int, Future[SampleResult]] = {}
    answering = threading.Lock()

    def answer(number: int, future: Future[SampleResult]) -> None:
        running.pop(number, None)
        if not future.cancelled():
            error = future.exception()
            said = number, future.result() if error is None else _portable(error)
            with answering:
                connection.send(said)

    while True:
        try:
            kind, *asked = connection.recv()
        except (EOFError, ConnectionError):
            os._exit(0)  # nobody is there to answer: no step is finished
        if kind == "snapshot":
            key, dropped, factors = asked
            for old in dropped:
                del weights[old]
            # Copies, which are aligned as those of the first process: products can depend on it.
            copies = {name: factor.clone() for name, factor in load(factors).items()}
            weights[key] = Snapshot(base, copies).weights()
        elif kind == "sample":
            number, key, spec = asked
            running[number] = future = scheduler.submit(weights[key], spec)
            future.add_done_callback(partial(answer, number))
        elif (found := running.get(asked[0])) is not None:
            found.cancel()


def _portable(error: BaseException) -> BaseException:
    """`error`, or its text where another process could not make it again."""
    try:
        again: BaseException = pickle.loads(pickle.dumps(error))
        return again
    except Exception:
        return RuntimeError(str(error))
