"""Rows to parts, on several cores: each row becomes a problem with the tests it keeps, or a drop with stage and reason.

Parsing is a step by itself so that its caller can let go of the raw row, which may be 200 MB, before the checks.

The sanity checks, in order, on all tests of the row:

    row_too_large         more bytes than a row may have: it is not even parsed
    statement_too_long    more characters than a statement may have
    too_few_tests         fewer different tests than a reward needs to mean something (DeepCoder: 5)
    no_expected_output    every test expects nothing: an empty program would be right
    contradictory_tests   two tests with one input and answers that exclude each other: no program can be right

Each worker reads, filters and writes whole segments of the data by itself. Segments in which something large has to be
held at once (HEAVY) are worked on one at a time, beside light ones. Workers end with their parent, also when it is
killed.
"""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.connection import wait as wait_for_end
from pathlib import Path
from typing import Any, Literal, TypeVar

from coderl_tasks.errors import InfraError
from coderl_tasks.filtering.parts import PART_SCHEMA, dropped_file, part_row, writing
from coderl_tasks.filtering.signature import signature_of
from coderl_tasks.journal.atomic import write_parquet
from coderl_tasks.problems.assertion_tests import count_assertions
from coderl_tasks.problems.comparators import comparator
from coderl_tasks.problems.loading import CODE_ROWS, RowReader, is_held_out, parse_row
from coderl_tasks.problems.problem import Drop, Problem, RowDropped, dropped_frame, trim_tests
from coderl_tasks.problems.raw_files import MAX_ROW_BYTES, RawRow, Segment
from coderl_tasks.problems.sources import RowSource

MIB = 2**20
LONG_STATEMENT_CHARS = 4000  # how much is recorded of a statement that was dropped for its length
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
class RowRules:
    """What a row needs to become a problem (`min_tests` distinct tests), and how many tests it keeps (-1: all)."""

    max_tests: int = 15
    min_tests: int = 5
    max_statement_chars: int = 50_000
    max_row_bytes: int = MAX_ROW_BYTES


def parse(row: RawRow, rows: RowReader = CODE_ROWS) -> Problem | Drop:
    """The problem in `row` with all its tests, or why there is none."""
    try:
        return parse_row(row, rows)
    except RowDropped as drop:
        stage = "sanity" if drop.reason == "row_too_large" else "parse"
        return Drop(stage, drop.reason, drop.detail, None, row.split, row.source_row)


def filter_problem(whole: Problem, rules: RowRules | None) -> Problem | Drop:
    """`whole` with only the tests it keeps, or its drop. Without `rules` nothing is dropped, and one test is kept."""
    if rules is None:
        return trim_tests(whole, 1)
    if (fault := sanity(whole, rules)) is not None:
        return Drop.of(replace(whole, statement=whole.statement[:LONG_STATEMENT_CHARS]), "sanity", *fault)
    return trim_tests(whole, rules.max_tests)


def sanity(problem: Problem, rules: RowRules) -> tuple[str, str] | None:
    """Why `problem` cannot be used for grading, as (reason, detail); None if it can."""
    if len(problem.statement) > rules.max_statement_chars:
        return "statement_too_long", f"{len(problem.statement)} characters, at most {rules.max_statement_chars}"
    tests = {(test.input, test.expected) for test in problem.tests}
    is_assertions = problem.kind == "assert"
    distinct = sum(count_assertions(script) for _, script in tests) if is_assertions else len(tests)
    if distinct < rules.min_tests:
        return "too_few_tests", f"{distinct} different test{'s' if distinct != 1 else ''}, at least {rules.min_tests}"
    if problem.kind == "stdin" and not any(test.expected.strip() for test in problem.tests):
        return "no_expected_output", f"all {len(problem.tests)} tests expect an empty output"
    if is_assertions or problem.checker:
        return None
    for first, number in same_inputs(problem):
        one, other = problem.tests[first].expected, problem.tests[number].expected
        if one != other and not agree(problem, one, other):
            return "contradictory_tests", f"tests {first} and {number} have one input and different answers"
    return None


def same_inputs(problem: Problem) -> Iterator[tuple[int, int]]:
    """The index of each test whose input an earlier test has, but for white space at its end, after that test's."""
    # Keyed by hash, because stripped copies of all inputs can be as large as the row. Equal hashes are checked below.
    first_with_input: dict[int, int] = {}
    for number, test in enumerate(problem.tests):
        stripped = test.input.rstrip()
        first = first_with_input.setdefault(hash(stripped), number)
        if first != number and problem.tests[first].input.rstrip() == stripped:
            yield first, number


def agree(problem: Problem, one: str, other: str) -> bool:
    """Whether an answer can be right for both expectations."""
    accepts = comparator(problem.comparator).accepts
    try:
        return accepts(problem.kind, one, other) or accepts(problem.kind, other, one)
    except ValueError:
        return one == other


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

    @property
    def is_heavy(self) -> bool:
        """Whether doing it means to hold much at once."""
        return self.segment.block >= HEAVY


_report_row: Callable[[int], None] | None = None
"""`make_part` calls it, where it is set, with the size of each row that this process has read (for the progress)."""


def make_part(job: PartJob) -> None:
    """Parses, checks and trims the rows of one segment of a data file, and writes its part. Raises DataError for
    unreadable data."""
    drops: list[Drop] = []
    with writing(job.part, PART_SCHEMA) as add:
        # Evaluation data have no rules: each of their problems counts.
        max_row_bytes = MAX_ROW_BYTES if job.rules is None else job.rules.max_row_bytes
        rows = job.source.read(job.segment, max_row_bytes, scratch=job.part.parent)
        for row in islice(rows, job.limit):
            size = row.size
            whole = parse(row, job.reader)
            # A row may be hundreds of MB: each form of it is freed as soon as the next form exists.
            del row
            if _report_row is not None:  # for the progress bar
                _report_row(size)
            if isinstance(whole, Drop):
                drops.append(whole)
                continue
            trimmed = filter_problem(whole, job.rules)
            if isinstance(trimmed, Drop):
                drops.append(trimmed)
            # With `held_out`, one data set has both sides: problems outside the held-out share are train problems. The
            # train side's own job writes them, so this job neither writes them nor counts them as drops.
            elif job.held_out is None or is_held_out(trimmed.problem_id, job.held_out):
                add(*part_row(trimmed, signature_of(whole)))  # of all tests: trimming hides no duplicate
            del whole, trimmed
        # Write the drops before the part appears: an existing part says that the segment is done.
        write_parquet(dropped_file(job.part), dropped_frame(drops))


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
    """The results of `work(job)`, run in `workers` processes, in the order of `jobs`; `work` must be picklable. Heavy
    jobs run one at a time, as two may not fit into memory. Calls `on_progress` with the rows and bytes read so far.
    Raises what a job raises, InfraError if a worker dies."""
    global _report_row  # which `make_part` calls for each row, in this process or (see `_start_worker`) in a worker
    if workers == 1 or len(jobs) < 2:  # not worth starting a process
        _report_row = None if on_progress is None else _row_counter(on_progress)
        return [work(job) for job in jobs]
    # Spawn, not fork: Arrow chooses its allocator by the environment at start, and a fork of a process with threads
    # (polars has some) may wait forever for a lock that none of its own threads holds.
    context = multiprocessing.get_context("spawn")
    counts = context.Value("q"), context.Value("q")  # the rows and bytes that all workers have read
    executor = ProcessPoolExecutor(min(workers, len(jobs)), context, _start_worker, counts)
    waiting = {heavy: deque(n for n, job in enumerate(jobs) if is_heavy(job) is heavy) for heavy in (True, False)}
    running: dict[Future[DoneT], tuple[int, bool]] = {}  # index in `jobs`, and whether it is heavy
    done: dict[int, DoneT] = {}
    try:
        while len(done) < len(jobs):
            while len(running) < workers:
                # Start heavy jobs first: they run one after the other, and light jobs fill the other workers meanwhile.
                heavy = bool(waiting[True]) and not any(heavy for _, heavy in running.values())
                if not waiting[heavy]:  # none, or heavy ones that wait for the one at work
                    break
                # Submit only what a worker is free for: the pool's own queue could run two heavy jobs at once.
                number = waiting[heavy].popleft()
                with _worker_environment():  # the first jobs start the workers
                    running[executor.submit(work, jobs[number])] = (number, heavy)
            for future in wait(running, POLL_S, FIRST_COMPLETED).done:  # POLL_S: progress shows meanwhile
                number, _ = running.pop(future)
                done[number] = future.result()
            if on_progress is not None:
                on_progress(*(counter.value for counter in counts))
    except BrokenProcessPool as error:
        raise InfraError("a process that reads the data was killed, perhaps for want of memory") from error
    finally:
        # Wait for the workers: one that goes on could write a part while the next start writes the same part.
        executor.shutdown(cancel_futures=True)
    return [done[number] for number in range(len(jobs))]


@contextmanager
def _worker_environment() -> Iterator[None]:
    """Processes started in the block get WORKER_ENVIRONMENT, where it is not set already."""
    added = WORKER_ENVIRONMENT.keys() - os.environ.keys()
    os.environ.update({name: WORKER_ENVIRONMENT[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _row_counter(on_progress: OnCount) -> Callable[[int], None]:
    """What counts the rows of this process: called with the bytes of each, it calls `on_progress` with the sums."""
    rows = bytes_read = 0

    def count(size: int) -> None:
        nonlocal rows, bytes_read
        rows, bytes_read = rows + 1, bytes_read + size
        on_progress(rows, bytes_read)

    return count


def _start_worker(rows: Any, bytes_read: Any) -> None:
    """Prepare a process of the pool: it counts in values that all of them share, and ends with its parent."""
    global _report_row

    def count(size: int) -> None:
        for counter, more in ((rows, 1), (bytes_read, size)):
            with counter.get_lock():
                counter.value += more

    _report_row = count
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent(sentinel: int = parent.sentinel) -> None:
        # Nothing else would end a worker whose parent was killed: it may be in a job of minutes.
        wait_for_end([sentinel])
        # At once, without the cleaning up of an exit: the temporary file it was writing is removed by the next start.
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
