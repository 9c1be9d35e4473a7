"""The reference-solution check as tasks, one a shard of problems."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
from prefect import task

from coderl_tasks.curation.measure import Progress
from coderl_tasks.curation.solution_check import SOLUTION_SCHEMA, SolutionSettings
from coderl_tasks.curation.solutions import check_solutions, split_by_solutions
from coderl_tasks.journal.atomic import make_folder, write_parquet
from coderl_tasks.problems import Drop, Problem
from coderl_tasks.settings import CurateSettings
from coderl_tasks.training.session import Session
from flows.display import Display
from flows.retries import PHASE


async def drop_failing(
    session: Session, settings: CurateSettings, problems: Sequence[Problem], folder: Path, display: Display
) -> tuple[list[Problem], list[Drop]]:
    """The problems whose own solutions do not speak against them, and the drops of the others.

    All that was found is written to `folder`/solutions.parquet (SOLUTION_SCHEMA); checks are recorded in its
    solutions/ as they end.
    """
    if not settings.check_solutions:
        return list(problems), []
    size = settings.shard_size
    starts = range(0, len(problems), size)
    frames = [pl.DataFrame(schema=SOLUTION_SCHEMA)]
    for number, start in enumerate(starts):
        shard = problems[start : start + size]
        with display.bar(f"checking solutions, shard {number + 1} of {len(starts)}") as on_progress:
            record = folder / "solutions" / f"{number:04d}"
            frames.append(await check_shard(session, settings, shard, record, number, on_progress))
    checks = pl.concat(frames)
    write_parquet(make_folder(folder) / "solutions.parquet", checks)
    undecided = checks.filter(status="undecided").height
    if undecided:
        display.say(f"{undecided} problems stay in unchecked: the sandbox could not run their solutions")
    return split_by_solutions(problems, checks)


@task(name="check-solutions", task_run_name="check-solutions-{number}", **PHASE)
async def check_shard(
    session: Session,
    settings: CurateSettings,
    problems: Sequence[Problem],
    folder: Path,
    number: int,
    on_progress: Progress,
) -> pl.DataFrame:
    """The checks (SOLUTION_SCHEMA) of one shard, recorded in `folder`."""
    check = SolutionSettings(max_solutions=settings.max_solutions, timeout_s=settings.reward_timeout)
    return await session.supervised(
        check_solutions(problems, session.judge, check, folder=folder, on_progress=on_progress)
    )
