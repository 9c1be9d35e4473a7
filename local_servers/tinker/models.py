"""Live training models: an adapter, its queue of numbered requests, and the rules of when an optimizer step may run.

1. Requests of a model run one at a time and once, in the order of their sequence numbers, however they arrive. A number
   that does not arrive holds back the later ones; after `GAP_TIMEOUT_S`, longer than the five minutes for which the
   client resends a lost request, those that waited that long are given up.
2. An optimizer step is refused if no forward_backward came since the last step, or if one of them failed: what was
   accumulated is then thrown away, so the next forward_backward starts from nothing.
3. An optimizer step that breaks half-way leaves weights of two versions: the model refuses everything after it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from local_servers.tinker.checkpoint_store import CheckpointStore
from local_servers.tinker.engine_types import AdamSettings, LossOutput, TrainDatum
from local_servers.tinker.engines import EngineHost
from local_servers.tinker.promises import Answer, Promise, PromiseTable, failure, settle
from local_servers.tinker.records import CheckpointKind, CheckpointRecord, RunRecord
from local_servers.tinker.refusal import BadRequest

if TYPE_CHECKING:
    from local_servers.tinker.engine.adapter import Adapter, Snapshot
    from local_servers.tinker.engine.lora_engine import Engine


GAP_TIMEOUT_S = 600.0
CREATION_SEQ = 0  # the number of the request that creates or loads a model; the client numbers those that follow from 1
_GIVEN_UP = float("inf")
logger = logging.getLogger(__name__)


@dataclass
class _Entry:
    work: Callable[[], Awaitable[None]]
    give_up: Callable[[str], None]
    arrived: float


class SequencedQueue:
    """One model's queue. `put` and `close` are called from the event loop that created it."""

    def __init__(self, name: str, gap_timeout_s: float, first: int = 1) -> None:
        self.next_seq = first
        self._name = name
        self._gap_timeout_s = gap_timeout_s
        self._entries: dict[int, _Entry] = {}
        self._arrival = asyncio.Event()
        self._closed = False
        self._free_since = 0.0
        self._task = asyncio.create_task(self._run(), name=f"queue of {name}")

    @property
    def waiting(self) -> int:
        """How many requests have arrived and have not started."""
        return len(self._entries)

    def put(self, seq: int, work: Callable[[], Awaitable[None]], give_up: Callable[[str], None]) -> None:
        """Run `work` (which must not raise) in the turn of `seq`; call `give_up(reason)` if that never comes."""
        assert seq >= self.next_seq and seq not in self._entries, (seq, self.next_seq)
        self._entries[seq] = _Entry(work, give_up, time.monotonic())
        self._arrival.set()

    def close(self, reason: str) -> None:
        """Give up all that has not started; what runs is left to finish on its own."""
        self._closed = True
        self._arrival.set()
        for seq in sorted(self._entries):
            self._entries.pop(seq).give_up(reason)

    async def _run(self) -> None:
        while not self._closed:
            entry = self._entries.pop(self.next_seq, None)
            if entry is not None:
                # One at a time, the next when it is done: passes and steps change the same gradients and weights.
                await entry.work()
                self.next_seq += 1
                self._free_since = time.monotonic()
                continue
            # Cleared before it is waited for, with nothing awaited in between: no arrival can be missed.
            self._arrival.clear()
            oldest = min((entry.arrived for entry in self._entries.values()), default=_GIVEN_UP)
            # Time spent behind a long request is not the missing number's fault.
            left_s = max(oldest, self._free_since) + self._gap_timeout_s - time.monotonic()
            try:
                await asyncio.wait_for(self._arrival.wait(), None if oldest == _GIVEN_UP else max(0.0, left_s))
            except TimeoutError:
                self._give_up_overdue()

    def _give_up_overdue(self) -> None:
        reason = (
            f"not executed: request {self.next_seq} of {self._name} comes before it and did not arrive within "
            f"{self._gap_timeout_s:g} s"
        )
        overdue = time.monotonic() - self._gap_timeout_s
        for seq in sorted(self._entries):
            entry = self._entries[seq]
            if max(entry.arrived, self._free_since) <= overdue:
                logger.warning("request %d of %s: %s", seq, self._name, reason)
                entry.give_up(reason)
                # Its number stays taken, so that later numbers still find their turn.
                self._entries[seq] = _Entry(lambda: asyncio.sleep(0), lambda reason: None, _GIVEN_UP)


class TrainingModel:
    """One training run in memory. `adapter` is None until the request that creates or loads it has run."""

    def __init__(self, run: RunRecord, host: EngineHost, table: PromiseTable, store: CheckpointStore) -> None:
        self.run = run
        self.host = host
        self.adapter: Adapter | None = None
        self.queue = SequencedQueue(run.run_id, GAP_TIMEOUT_S, first=CREATION_SEQ)
        self._table = table
        self._store = store
        self._gradient_fault: str | None = None
        self._has_gradient = False
        self._broken: str | None = None

    def submit(
        self, seq: int, promise: Promise, work: Callable[[], Awaitable[Answer]], *, backward: bool = False
    ) -> None:
        """Queue `work` as request `seq`; a failed `backward` request spoils the gradient until the next step."""

        async def run() -> None:
            self.run.last_request_at = time.time()
            if not await settle(self._table, promise, work) and backward:
                self._gradient_fault = f"request {seq} (forward_backward) failed"

        def give_up(reason: str) -> None:
            if backward:
                self._gradient_fault = f"request {seq} (forward_backward) was {reason}"
            self._table.resolve(promise, failure(reason, "server"))

        self.queue.put(seq, run, give_up)

    async def create(self) -> None:
        """Make the adapter from the run's LoRA settings and record the run. Raises BadRequest for a bad shape."""
        self.adapter = await self.host.train(lambda engine: engine.create_adapter(**self.run.lora.model_dump()))
        await self.host.train(lambda _: self._store.save_run(self.run))

    async def load(self, find: Callable[[], CheckpointRecord], *, optimizer: bool) -> None:
        """Take over the weights of the checkpoint that `find` returns, its optimizer state if asked. Raises Refusal."""
        self._check_usable(needs_adapter=False)

        def read(engine: "Engine") -> "tuple[CheckpointRecord, Adapter]":
            # Found where checkpoints are written: an overwrite in between would remove the files that it names.
            record = find()
            # But for the seed, which only says what the weights were before these.
            if self.run.lora.model_copy(update={"seed": 0}) != record.lora.model_copy(update={"seed": 0}):
                raise BadRequest(f"{record.path} has LoRA {record.lora!r}, and this model has {self.run.lora!r}")
            return record, engine.load_adapter(self._store.files(record), optimizer=optimizer)

        record, self.adapter = await self.host.train(read)
        self._drop_gradient()
        self._gradient_fault = None
        self.run.loaded_from = record.path
        self.run.steps_before = record.optimizer_steps
        self.run.optimizer_steps = 0
        await self._record_change(durable=True)

    async def forward_backward(
        self, datums: list[TrainDatum], loss: str, config: dict[str, float], *, backward: bool
    ) -> LossOutput:
        """Log-probabilities and loss of the datums; `backward` adds their gradient to what is accumulated."""
        adapter = self._check_usable()
        if backward:
            self._has_gradient = True
        return await self.host.train(
            lambda engine: engine.forward_backward(adapter, datums, loss, config, backward=backward)
        )

    async def optim_step(self, settings: AdamSettings) -> dict[str, float]:
        """Apply the accumulated gradient and clear it; the step's metrics. Raises BadRequest by rules 2 and 3."""
        adapter = self._check_usable()
        # The fault goes with the gradient that it is about: what comes after the refusal starts from nothing.
        fault, self._gradient_fault = self._gradient_fault, None
        if fault is not None:
            self._drop_gradient()
            raise BadRequest(
                f"optim_step refused: {fault}, so the accumulated gradient is incomplete; it was discarded. "
                "Send the forward_backward again, or restore from a checkpoint"
            )
        if not self._has_gradient:
            raise BadRequest("optim_step refused: no forward_backward since the last optimizer step")
        self._has_gradient = False

        def step(engine: "Engine") -> dict[str, float]:
            try:
                return engine.optim_step(adapter, settings)
            except BadRequest:  # nothing was changed: the gradient is lost, and the weights are as before
                adapter.grads = None
                raise
            except Exception as error:
                # Some tensors may have been updated and others not: no gradient makes that right.
                self._broken = f"an optimizer step broke off ({type(error).__name__}: {error})"
                raise

        metrics = await self.host.train(step)
        self.run.optimizer_steps += 1
        # Not durable: a killed server must still show how many steps were applied, a power cut may lose the last ones.
        await self._record_change(durable=False)
        return metrics

    async def _record_change(self, *, durable: bool) -> None:
        """Write the run's record after a change of the weights; one that cannot be written is left to the next save."""

        def write(_: "Engine") -> None:
            # Not a failure of the request: the client would send it again, and what is done would be done twice.
            try:
                self._store.save_run(self.run, durable=durable)
            except OSError as error:
                logger.warning("the record of training run %s could not be written: %s", self.run.run_id, error)

        # On the training thread: in the order of the changes, and the event loop does not wait for the disk.
        await self.host.train(write)

    async def save(
        self, kind: CheckpointKind, name: str, overwrite: bool, ttl_s: int | None, user_metadata: dict[str, str] | None
    ) -> CheckpointRecord:
        """Write a checkpoint of the current weights (kind weights: with the optimizer's state). Raises Refusal."""
        adapter = self._check_usable()

        def write(engine: "Engine") -> CheckpointRecord:
            fill = partial(engine.save_adapter, adapter, optimizer=kind == "weights")
            self._store.save_run(self.run)
            return self._store.write(
                self.run, kind, name, fill, overwrite=overwrite, ttl_seconds=ttl_s, user_metadata=user_metadata
            )

        return await self.host.train(write)

    async def snapshot(self) -> "Snapshot":
        """The current adapter for sampling, which later steps do not change."""
        adapter = self._check_usable()
        return await self.host.train(lambda engine: engine.snapshot(adapter))

    def close(self, reason: str) -> None:
        """End the model: what waits is given up and its memory can go."""
        self.queue.close(reason)
        self._broken = reason
        self.adapter = None

    def to_json(self) -> dict[str, object]:
        """What `/stats` shows of the model."""
        return {
            "base_model": self.run.base_model,
            "optimizer_steps": self.run.optimizer_steps,
            "steps_before": self.run.steps_before,
            "loaded_from": self.run.loaded_from,
            "next_seq": self.queue.next_seq,
            "waiting": self.queue.waiting,
        }

    def _check_usable(self, *, needs_adapter: bool = True) -> "Adapter":
        if self._broken is not None:
            raise BadRequest(f"model {self.run.run_id} cannot be used: {self._broken}; restore from a checkpoint")
        if self.adapter is None and needs_adapter:
            raise BadRequest(f"model {self.run.run_id} has no weights: the request that creates it failed")
        return self.adapter  # type: ignore[return-value]

    def _drop_gradient(self) -> None:
        self._has_gradient = False
        if self.adapter is not None:
            self.adapter.grads = None
