"""The sampling loop of a server: a thread that takes requests as they come and runs them together."""

import logging
import queue
import threading
from collections import deque
from concurrent.futures import Future

from local_servers.memory import return_freed_memory
from local_servers.tinker.engine.causal_lm import Weights
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine.sampling_batch import RunningRequest, SamplingBatch
from local_servers.tinker.engine_types import SampleResult, SampleSpec
from local_servers.tinker.refusal import BadRequest

logger = logging.getLogger(__name__)

Submitted = tuple[Weights, SampleSpec, Future[SampleResult]]
CLOSED = "the sampling scheduler was closed"


def end_future(future: Future[SampleResult], outcome: SampleResult | BaseException) -> None:
    """Ends it with a result or an error, unless it has been cancelled."""
    # From here on it cannot be cancelled, which would make the call below raise, and end the loop for everybody.
    if future.set_running_or_notify_cancel():
        if isinstance(outcome, SampleResult):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)


class SamplingScheduler:
    """Continuous batching: a request joins the running batch at the next step; how they meet changes no result.
    Requests wait, in order, while the caches of those that run could grow over `max_cache_bytes`."""

    def __init__(self, engine: Engine, *, max_cache_bytes: int | None = None, threads: int | None = None) -> None:
        """`max_cache_bytes` is `Engine.cache_room` unless it is given; `threads` run the requests of a step, by default
        one on each core."""
        self._engine = engine
        self._threads = threads
        self._max_cache_bytes = engine.cache_room if max_cache_bytes is None else max_cache_bytes
        self._incoming: queue.SimpleQueue[Submitted | None] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="sampling", daemon=True)
        self._thread.start()

    def submit(self, weights: Weights, spec: SampleSpec) -> Future[SampleResult]:
        """Queues a request. Raises BadRequest at once if it is invalid. Cancelling the future stops the request."""
        if self._closing:
            raise RuntimeError("the sampling scheduler is closed")
        self._engine.validate_sample(spec)
        futures: list[Future[SampleResult]] = []
        for part in self._engine.parts(spec):
            futures.append(Future())
            self._incoming.put((weights, part, futures[-1]))
        if len(futures) == 1:
            return futures[0]
        whole: Future[SampleResult] = Future()
        join(futures, whole)
        return whole

    def close(self) -> None:
        """Ends the loop after its current step; unfinished requests fail with RuntimeError."""
        self._closing = True
        self._incoming.put(None)  # wakes a loop that waits for requests
        self._thread.join()

    def _loop(self) -> None:
        batch = self._engine.sampling_batch(self._threads)
        futures: dict[RunningRequest, Future[SampleResult]] = {}
        waiting: deque[Submitted] = deque()
        while not self._closing:
            idle = not (batch.requests or waiting)
            if idle and self._engine.large:
                return_freed_memory()
            self._receive(waiting, idle=idle)
            # Before others are admitted: what is cancelled gives up its share of the caches to them.
            batch.requests = [request for request in batch.requests if not futures[request].cancelled()]
            futures = {request: futures[request] for request in batch.requests}
            self._admit(waiting, batch, futures)
            try:
                _answer(batch.step(), futures)
            except Exception as error:  # a failed allocation, say; without this loop nobody would be served again
                logger.error("a sampling step failed", exc_info=error)
                while futures:  # and no name keeps their caches while the loop sleeps
                    end_future(futures.popitem()[1], error)
                batch.requests = []
        # What came in after the last round has a future too, and somebody waits for it.
        self._receive(waiting, idle=False)
        for future in [*futures.values(), *(future for _, _, future in waiting)]:
            end_future(future, RuntimeError(CLOSED))

    def _receive(self, waiting: deque[Submitted], *, idle: bool) -> None:
        """Takes what was submitted; sleeps until something is if there is nothing else to do."""
        while idle or not self._incoming.empty():
            submitted = self._incoming.get()
            idle = False
            if submitted is not None:
                waiting.append(submitted)

    def _admit(
        self, waiting: deque[Submitted], batch: SamplingBatch, futures: dict[RunningRequest, Future[SampleResult]]
    ) -> None:
        """Moves requests into the batch, first come first served, while the caches have room; one runs in any case."""
        reserved = sum(self._engine.cache_bytes(request.spec) for request in batch.requests)
        while waiting:
            weights, spec, future = waiting[0]
            if future.cancelled():  # it takes no room, and holds nobody up
                waiting.popleft()
                continue
            needed = self._engine.cache_bytes(spec)
            # In order: a large request that is passed over would wait for ever while small ones keep coming.
            if batch.requests and reserved + needed > self._max_cache_bytes:
                return
            waiting.popleft()
            try:
                request = self._engine.running_request(weights, spec)
            except Exception as error:  # this one's alone: the loop serves the others
                end_future(future, error)
                continue
            reserved += needed
            batch.requests.append(request)
            futures[request] = future


def join(parts: list[Future[SampleResult]], whole: Future[SampleResult]) -> None:
    """`whole` ends with the parts' results, or the first error of them; once it has ended, they are cancelled."""

    def finish(part: Future[SampleResult]) -> None:
        if whole.done() or part.cancelled():
            return
        if (error := part.exception()) is not None:
            end_future(whole, error)
        elif all(each.done() and not each.cancelled() for each in parts):
            end_future(whole, SampleResult.joined([each.result() for each in parts]))

    for part in parts:
        part.add_done_callback(finish)
    whole.add_done_callback(lambda _: [part.cancel() for part in parts])


def _answer(finished: list[RunningRequest], futures: dict[RunningRequest, Future[SampleResult]]) -> None:
    """Answers these and forgets them: no name in the loop keeps their caches while it sleeps."""
    for request in finished:
        outcome = request.error or request.result()
        future = futures.pop(request)
        if isinstance(outcome, Exception) and not isinstance(outcome, BadRequest) and not future.cancelled():
            logger.error("sampling failed", exc_info=outcome)
        end_future(future, outcome)
