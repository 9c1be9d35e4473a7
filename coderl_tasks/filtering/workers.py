"""Segments of rows to parts, on several cores. A part depends on its segment only, never on who made it or when.

1. Each worker reads, filters and writes whole segments by itself; nothing large passes between processes.
2. Segments in which something large has to be held at once (HEAVY) are worked on one at a time, beside light ones: a
   hundred rows of 200 MB cost the memory of one.
3. Workers end with their parent, also when it is killed.
"""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import wait as wait_for_end
from pathlib import Path
from typing import Any, Literal, TypeVar

from coderl_tasks.errors import InfraError
from coderl_tasks.filtering.parts import PART_SCHEMA, dropped_file, part_row, writing
from coderl_tasks.filtering.rows import MIB, RowRules, filter_problem, parse
from coderl_tasks.filtering.signature import signature_of
from coderl_tasks.journal.atomic import write_parquet
from coderl_tasks.problems.loading import CODE_ROWS, RowReader, is_held_out
from coderl_tasks.problems.problem import Drop, dropped_frame
from coderl_tasks.problems.raw_files import MAX_ROW_BYTES, Segment
from coderl_tasks.problems.sources import RowSource

HEAVY = 64 * MIB
POLL_S = 0.2
WORKER_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
"""The system's allocator gives back what is freed; arrow's own keeps it. Arrow's readers follow the environment only:
`pyarrow.set_memory_pool` does not reach the buffers in which they decompress pages."""
BYTES_WORTH_A_PROCESS = 64 * MIB
MOST_WORKERS = 8

Phase = Literal["hashing", "reading", "comparing"]
JobT = TypeVar("JobT")
DoneT = TypeVar("DoneT")


@dataclass(frozen=True, slots=True)
class RowsProgress:
    """Rows and bytes read so far, and bytes in all (uncompressed), 0 while the files are hashed."""

    rows: int
    bytes_read: int
    bytes_total: int
    phase: Phase = "reading"


OnRows = Callable[[RowsProgress], None]
OnCount = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class PartJob:
    """Make `part` of `segment`, of its first `limit` rows only where that is given. Without `rules` it is of evaluation
    problems: whatever parses is kept, with one test; with `held_out` only what that share holds out."""

    source: RowSource
    segment: Segment
    part: Path
    rules: RowRules | None
    limit: int | None = None
    held_out: float | None = None
    reader: RowReader = CODE_ROWS


class _LocalCounter:
    """Counts the rows that are read in this process for a callback."""

    def __init__(self, on_progress: OnCount | None = None) -> None:
        self._on_progress = on_progress
        self._rows = self._bytes = 0

    def count(self, size: int) -> None:
        """One more row has been read."""
        self._rows += 1
        self._bytes += size
        if self._on_progress is not None:
            self._on_progress(self._rows, self._bytes)


class _SharedCounter:
    """Counts the rows that all workers have read."""

    def __init__(self, context: Any) -> None:
        self.rows, self.bytes_read = context.Value("q"), context.Value("q")

    def count(self, size: int) -> None:
        """One more row has been read."""
        for counter, more in ((self.rows, 1), (self.bytes_read, size)):
            with counter.get_lock():
                counter.value += more


_counter: _LocalCounter | _SharedCounter = _LocalCounter()


def make_part(job: PartJob) -> int:
    """Make the part of `job` from its segment. Returns how many rows it read. Raises DataError for unreadable data."""
    drops: list[Drop] = []
    read = 0
    with writing(job.part, PART_SCHEMA) as table:
        max_row_bytes = MAX_ROW_BYTES if job.rules is None else job.rules.max_row_bytes
        rows = job.source.read(job.segment, max_row_bytes=max_row_bytes, scratch=job.part.parent)
        for row in islice(rows, job.limit):
            read += 1
            size = row.size
            parsed = parse(row, job.reader)
            # A row may be hundreds of MB: each form of it is freed as soon as the next form exists.
            del row
            _counter.count(size)
            filtered = parsed if isinstance(parsed, Drop) else filter_problem(parsed, job.rules)
            del parsed
            if isinstance(filtered, Drop):
                drops.append(filtered)
            # An evaluation part leaves out, uncounted, what its share does not hold out: that is in the train part.
            elif job.held_out is None or is_held_out(filtered.problem.problem_id, job.held_out):
                table.add(*part_row(filtered.problem, signature_of(filtered.whole)))
            del filtered
        # Write the drops before the part appears: an existing part says that the segment is done.
        write_parquet(dropped_file(job.part), dropped_frame(drops))
    return read


def workers_for(size: int, workers: int | None) -> int:
    """How many processes to share `size` bytes among: one per core if not said, fewer where there is little to do."""
    most = workers or min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    # A process has to start and to import first, which takes longer than reading less.
    return max(1, min(most, size // BYTES_WORTH_A_PROCESS))


def run_jobs(
    work: Callable[[JobT], DoneT],
    jobs: Sequence[JobT],
    workers: int,
    *,
    is_heavy: Callable[[JobT], bool] = lambda job: False,
    on_progress: OnCount | None = None,
) -> list[DoneT]:
    """The results of `work(job)`, in the order of `jobs`; `work` must be picklable. Heavy jobs run one at a time.
    Calls `on_progress` with the rows and bytes read so far. Raises what a job raises, InfraError if a worker dies."""
    global _counter
    if workers == 1 or len(jobs) < 2:
        _counter = _LocalCounter(on_progress)
        return [work(job) for job in jobs]
    # Spawn, not fork: Arrow chooses its allocator by the environment at start, and a fork of a process with threads
    # (polars has some) may wait forever for a lock that none of its own threads holds.
    context = multiprocessing.get_context("spawn")
    shared = _SharedCounter(context)
    executor = ProcessPoolExecutor(min(workers, len(jobs)), context, _start_worker, (shared,))
    waiting = {heavy: deque(n for n, job in enumerate(jobs) if is_heavy(job) is heavy) for heavy in (True, False)}
    running: dict[Future[DoneT], tuple[int, bool]] = {}  # index in `jobs`, and whether it is heavy
    done: dict[int, DoneT] = {}
    try:
        while len(done) < len(jobs):
            while len(running) < workers:
                # Start heavy jobs first: they run one after the other, and light jobs fill the other workers meanwhile.
                heavy = bool(waiting[True]) and not any(heavy for _, heavy in running.values())
                if not waiting[heavy]:
                    break
                # Submit only what a worker is free for: the pool's own queue could run two heavy jobs at once.
                number = waiting[heavy].popleft()
                with _environment(WORKER_ENVIRONMENT):  # the first jobs start the workers
                    running[executor.submit(work, jobs[number])] = (number, heavy)
            for future in wait(running, POLL_S, FIRST_COMPLETED).done:
                number, _ = running.pop(future)
                done[number] = future.result()
            if on_progress is not None:
                on_progress(shared.rows.value, shared.bytes_read.value)
    except BrokenProcessPool as error:
        raise InfraError("a process that reads the data was killed, perhaps for want of memory") from error
    finally:
        # Wait for the workers: one that goes on could write a part while the next start writes the same part.
        executor.shutdown(cancel_futures=True)
    return [done[number] for number in range(len(jobs))]


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Processes started in the block get `variables`, where they are not set already."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _start_worker(shared: _SharedCounter) -> None:
    global _counter
    _counter = shared
    parent = multiprocessing.parent_process()
    assert parent is not None
    # Nothing else would end a worker whose parent was killed: it may be in a job of minutes.
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait_for_end([sentinel])
    # At once, without the cleaning up of an exit: the temporary file it was writing is removed by the next start.
    os._exit(1)


def is_heavy(job: PartJob) -> bool:
    """Whether doing `job` means to hold much at once."""
    return job.segment.block >= HEAVY
