"""Checks of problems in the sandbox, one recorded row per problem, so that a stopped check goes on where it stopped."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.errors import InfraError
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.scoring import Grade, Verdict
from coderl_tasks.journal.atomic import DamagedFileError, append_row, make_folder, read_rows, set_aside, write_json
from coderl_tasks.journal.steps import FINGERPRINT_FILE
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.rollouts.engine import first_error
from coderl_tasks.rollouts.rounds import Progress, content_digest, read_fingerprint

logger = logging.getLogger(__name__)

CHECKS_FILE = "checks.jsonl"
PASSES_OVER = 3
CONCURRENCY = 32  # problems checked at once: how many programs run at once is up to the sandbox client
_PROBE = Problem("probe", "", "", "", "stdin", "", (Test("1\n", "1\n"),), 1, 1, None, (), 0)

Row = dict[str, Any]
Check = Callable[[Problem], Awaitable[Row]]
"""Makes the row of a problem, with its `problem_id`. Raises InfraError if the sandbox could not run what it takes."""


async def graded(judge: Judge, problem: Problem, code: str, *, run_all: bool = False) -> Grade:
    """The grade of a program, as `Judge.grade` gives it. Raises InfraError if it could not be run."""
    grade = await judge.grade(problem, code, run_all=run_all)
    if grade.verdict is Verdict.INFRA_ERROR:
        raise InfraError(grade.reason)
    return grade


async def recorded_checks(
    problems: Sequence[Problem],
    check: Check,
    judge: Judge,
    request: Mapping[str, Any],
    schema: Mapping[str, pl.DataType],
    undecided: Callable[[Problem], Row],
    *,
    folder: Path | None = None,
    on_progress: Progress | None = None,
) -> pl.DataFrame:
    """Runs `check` on each problem, CONCURRENCY at once, and returns the rows (`schema`) in the order of the problems.
    A problem for which it raises InfraError is tried in up to PASSES_OVER passes; then `undecided` makes its row, which
    is not recorded. `folder` records each row as it comes: a second call with the same problems, `request` (JSON, what
    else decides the rows) and time limit of the judge checks only the missing ones. Raises InfraError if the sandbox
    is down."""
    request = {**request, "timeout_s": judge.timeout_s, "problems": content_digest(problems)}
    rows = {} if folder is None else _read_checks(make_folder(folder), request)  # by problem_id
    unchecked = [problem for problem in problems if problem.problem_id not in rows]

    async def work(waiting: Iterator[Problem], ungraded: list[Problem]) -> None:
        for problem in waiting:
            try:
                row = await check(problem)
            except InfraError:
                ungraded.append(problem)
                continue
            if folder is not None:
                append_row(folder / CHECKS_FILE, row)
            rows[row["problem_id"]] = row
            if on_progress is not None:
                on_progress(len(rows), len(problems))

    for _ in range(PASSES_OVER):
        # All workers share one iterator. Taking the next problem awaits nothing, so no two workers take the same one.
        waiting, unchecked = iter(unchecked), []
        # Raises a worker's own error instead of the TaskGroup's ExceptionGroup: callers, such as Prefect's retries of
        # InfraError, look at the error's type.
        with first_error():
            async with asyncio.TaskGroup() as group:
                for _ in range(CONCURRENCY):
                    group.create_task(work(waiting, unchecked))
        if not unchecked:
            break
        # If the sandbox grades the probe, it is not down: the remaining problems may be the cause, and are retried.
        grade = await judge.grade(_PROBE, "print(input())")
        if not grade.passed:
            raise InfraError(f"the sandbox cannot check solutions: {grade.reason}")
    if unchecked:
        logger.warning("the solutions of %d problems could not be run: these stay in, undecided", len(unchecked))
    whole = [  # a row need not repeat what its problem says
        {"problem_id": problem.problem_id, "split": problem.split, "statement": problem.statement}
        | (rows.get(problem.problem_id) or undecided(problem))
        for problem in problems
    ]
    return pl.DataFrame(whole, schema=schema)


def _read_checks(folder: Path, request: Mapping[str, Any]) -> dict[str, Row]:
    """The rows recorded in `folder`, by problem id, none if they are of another `request`, or damaged."""
    file = folder / CHECKS_FILE
    if read_fingerprint(folder) != request:
        # Delete checks first: a crash in between must not leave old checks under a new fingerprint.
        if file.exists():
            logger.warning("%s holds checks of other problems or settings: they are deleted", folder)
            file.unlink()
        write_json(folder / FINGERPRINT_FILE, dict(request))
    try:
        return {row["problem_id"]: row for row in read_rows(file)}
    except DamagedFileError as error:
        logger.warning("%s; set aside as %s", error, set_aside(file).name)
        return {}
