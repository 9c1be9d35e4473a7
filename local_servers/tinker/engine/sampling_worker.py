"""A worker process of `sampling_processes`: one model and its sampling loop, on the other end of a socket."""

import asyncio
import os
import pickle
import sys
import threading
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from safetensors.torch import load
from transformers.utils import logging as transformers_logging

from local_servers.memory import keep_freed_memory, limit_own_memory_until
from local_servers.tinker.engine.adapter import Snapshot
from local_servers.tinker.engine.causal_lm import Weights
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine.scheduler import SamplingScheduler
from local_servers.tinker.engine_types import SampleResult


def main(descriptor: str, folder: str, dtype: str, max_cache_bytes: str, threads: str) -> None:
    """A worker process: answers what it is asked on the socket `descriptor`, until that is closed."""
    keep_freed_memory()
    transformers_logging.disable_progress_bar()
    connection = Connection(int(descriptor))
    threading.Thread(target=_limit_memory, name="memory limit", daemon=True).start()
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
            said = (number, future.result(), None) if error is None else (number, None, _portable(error))
            with answering:
                connection.send_bytes(pickle.dumps(said))

    def take_snapshot(key: int, dropped: list[int], factors: bytes) -> None:
        for old in dropped:
            del weights[old]
        # Copies, which are aligned as those of the first process: products can depend on it.
        snapshot = Snapshot(base, {name: factor.clone() for name, factor in load(factors).items()})
        weights[key] = snapshot.weights()

    while True:
        try:
            kind, *asked = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            os._exit(0)  # nobody is there to answer: no step is finished
        if kind == "snapshot":
            take_snapshot(*asked)
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


def _limit_memory() -> None:
    asyncio.run(limit_own_memory_until(asyncio.Event()))  # which nobody sets


if __name__ == "__main__":
    main(*sys.argv[1:])
