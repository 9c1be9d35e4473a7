"""Checks many problems with their own solutions, resumably, and drops those whose solutions fail.

1. `own_solution_fails` and `flaky_solution` are dropped; a problem without solutions, or with one that is merely slow,
   stays. Each problem's check is in the table, the suspects of several right answers too (see `solution_check`).
2. An outage drops nothing. What could not be graded is tried again; while the sandbox grades nothing at all that is an
   InfraError, and a problem that alone cannot be graded stays in as `undecided`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.curation.solution_check import SolutionCheck, SolutionSettings, Status, check_problem, undecided
from coderl_tasks.errors import InfraError
from coderl_tasks.grading.judge import Judge
from coderl_tasks.journal.atomic import DamagedFileError, append_row, make_folder, read_rows, set_aside, write_json
from coderl_tasks.problems import SOLUTION_SCHEMA, Drop, Problem, Test
from coderl_tasks.rollouts.rounds import FINGERPRINT_FILE, Progress, read_fingerprint

logger = logging.getLogger(__name__)

STAGE = "solution"
DROPPED_FOR = frozenset({Status.FAILS, Status.FLAKY})
CHECKS_FILE = "checks.jsonl"
PASSES_OVER = 3
_PROBE = Problem("probe", "", "", "", "stdin", "", (Test("1\n", "1\n"),), 1, 1, None, (), 0)


async def check_solutions(
    problems: Sequence[Problem],
    judge: Judge,
    settings: SolutionSettings,
    *,
    folder: Path | None = None,
    on_progress: Progress | None = None,
) -> pl.DataFrame:
    """Check each problem with its own solutions: a frame of SOLUTION_SCHEMA, one row per problem, in order.

    With a `folder`, checks are recorded there as they end: called again with the same problems and settings it does
    only what is left. Raises InfraError if the sandbox is down; what was checked until then stays recorded.
    """
    rows = {} if folder is None else _recorded(make_folder(folder), _request(problems, settings))
    left = [problem for problem in problems if problem.problem_id not in rows]

    def note(check: SolutionCheck) -> None:
        row = check.to_row()
        if folder is not None:
            append_row(folder / CHECKS_FILE, row)
        rows[check.problem_id] = row
        if on_progress is not None:
            on_progress(len(rows), len(problems))

    for _ in range(PASSES_OVER):
        left = await _pass_over(left, judge, settings, note)
        if not left:
            break
        # A sandbox that still grades the probe is not down: what is left may be at fault itself, and gets another try.
        grade = await judge.grade(_PROBE, "print(input())")
        if not grade.passed:
            raise InfraError(f"the sandbox cannot check solutions: {grade.reason}")
    if left:
        logger.warning("the solutions of %d problems could not be run: these stay in, undecided", len(left))
    # Not recorded: another call tries them again.
    rows |= {problem.problem_id: undecided(problem).to_row() for problem in left}
    return pl.DataFrame([rows[problem.problem_id] for problem in problems], schema=SOLUTION_SCHEMA)


def split_by_solutions(problems: Iterable[Problem], checks: pl.DataFrame) -> tuple[list[Problem], list[Drop]]:
    """The problems that stay, and the drops of those whose own solutions fail. `checks` is of SOLUTION_SCHEMA."""
    bad = {row["problem_id"]: row for row in checks.iter_rows(named=True) if row["status"] in DROPPED_FOR}
    kept, drops = [], []
    for problem in problems:
        row = bad.get(problem.problem_id)
        if row is None:
            kept.append(problem)
        else:
            drops.append(Drop.of(problem, STAGE, row["status"], row["detail"]))
    return kept, drops


async def _pass_over(
    problems: Sequence[Problem], judge: Judge, settings: SolutionSettings, note: Callable[[SolutionCheck], None]
) -> list[Problem]:
    """Check these, some side by side, and note what is known; the rest, which could not be graded."""
    # One iterator for all workers: taking the next problem awaits nothing, so no two of them take the same.
    waiting = iter(problems)
    ungraded: list[Problem] = []

    async def work() -> None:
        for problem in waiting:
            check = await check_problem(problem, judge, settings)
            if check is None:
                ungraded.append(problem)
            else:
                note(check)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(settings.concurrency):
                group.create_task(work())
    except ExceptionGroup as failures:
        # Retries go by the type of an error, and an InfraError inside a group would not count as one.
        raise failures.exceptions[0] from failures
    return ungraded


def _request(problems: Sequence[Problem], settings: SolutionSettings) -> dict[str, Any]:
    """What decides the checks, to be recorded beside them: problems and settings, but not the concurrency."""
    digest = sha256()
    for problem in problems:
        content = [
            problem.problem_id,
            *problem.solutions,
            *(text for t in problem.tests for text in (t.input, t.expected)),
        ]
        for text in content:
            digest.update(len(text).to_bytes(8, "little") + text.encode("utf-8", "surrogatepass"))
    values = asdict(settings)
    del values["concurrency"]
    return values | {"problems": digest.hexdigest()}


def _recorded(folder: Path, request: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The checks recorded in `folder`, by problem id; those of other problems or settings are deleted, and a damaged
    file is set aside."""
    file = folder / CHECKS_FILE
    if read_fingerprint(folder) != request:
        # Checks are deleted before the fingerprint is written: a crash in between must not leave old checks under a new
        # fingerprint.
        if file.exists():
            logger.warning("%s holds checks of other problems or settings: they are deleted", folder)
            file.unlink()
        write_json(folder / FINGERPRINT_FILE, request)
    try:
        return {row["problem_id"]: row for row in read_rows(file)}
    except DamagedFileError as error:
        logger.warning("%s; set aside as %s", error, set_aside(file).name)
        return {}
