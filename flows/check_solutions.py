"""The reference-solution check as tasks, one a shard of problems."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl
from prefect import task
from prefect.utilities.annotations import quote

from coderl_tasks.curation.measure import Progress
from coderl_tasks.curation.solution_check import SOLUTION_SCHEMA, SolutionSettings, Status
from coderl_tasks.curation.solutions import check_solutions
from coderl_tasks.journal.atomic import make_folder, write_parquet
from coderl_tasks.problems import Problem
from coderl_tasks.settings import CurateSettings
from coderl_tasks.training.session import Session
from flows.display import Display
from flows.retries import PHASE


async def check_all(
    session: Session, settings: CurateSettings, shards: Sequence[Iterable[Problem]], folder: Path, display: Display
) -> pl.DataFrame:
    """The checks (SOLUTION_SCHEMA) of the problems of all shards, in order; none if `check_solutions` is off.

    They are written to `folder`/solutions.parquet, and recorded in its solutions/ as they end.
    """
    frames = [pl.DataFrame(schema=SOLUTION_SCHEMA)]
    if settings.check_solutions:
        for number, shard in enumerate(shards):
            with display.bar(f"checking solutions, shard {number + 1} of {len(shards)}") as on_progress:
                record = folder / "solutions" / f"{number:04d}"
                frames.append(await check_shard(session, settings, quote(shard), record, number, on_progress))
        write_parquet(make_folder(folder) / "solutions.parquet", pl.concat(frames))
    checks = pl.concat(frames)
    undecided = checks.filter(status=Status.UNDECIDED.value).height
    if undecided:
        display.say(f"{undecided} problems stay in unchecked: the sandbox could not run their solutions")
    return checks


@task(name="check-solutions", task_run_name="check-solutions-{number}", **PHASE)
async def check_shard(
    session: Session,
    settings: CurateSettings,
    problems: Iterable[Problem],
    folder: Path,
    number: int,
    on_progress: Progress,
) -> pl.DataFrame:
    """The checks (SOLUTION_SCHEMA) of one shard, recorded in `folder`."""
    check = SolutionSettings(max_solutions=settings.max_solutions, timeout_s=settings.reward_timeout)
    return await session.supervised(
        check_solutions(list(problems), session.judge, check, folder=folder, on_progress=on_progress)
    )
