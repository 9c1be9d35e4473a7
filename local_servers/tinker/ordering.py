"""Sequence order: a model's requests run one at a time, in the order of their numbers, however they arrive.

A number that does not arrive holds back the later ones. After `gap_timeout_s` those that waited that long are given
up with a text that names the missing number. The client resends a lost request for five minutes; the default is longer.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

GAP_TIMEOUT_S = 600.0
_GIVEN_UP = float("inf")
logger = logging.getLogger(__name__)


@dataclass
class _Entry:
    work: Callable[[], Awaitable[None]]
    give_up: Callable[[str], None]
    arrived: float


class SequencedQueue:
    """One model's queue. `put` and `close` are called from the event loop that created it."""

    def __init__(self, name: str, gap_timeout_s: float = GAP_TIMEOUT_S, first: int = 1) -> None:
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
            if entry is None:
                await self._wait_for_arrival()
                continue
            # One at a time, and the next only when it is done: passes and steps change the same gradients and weights.
            await entry.work()
            self.next_seq += 1
            self._free_since = time.monotonic()

    async def _wait_for_arrival(self) -> None:
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
