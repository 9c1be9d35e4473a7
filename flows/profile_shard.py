"""profile-shard: one shard of problems profiled on whatever machine runs it, from address to address."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from prefect import flow
from prefect.concurrency.asyncio import concurrency
from prefect.states import State

import flows  # noqa: F401 - first: Prefect loads this file by its path, without its package
from coderl_tasks.curation.tasks import ALL_ALIKE, Asked, Shard, profile
from coderl_tasks.errors import BudgetReachedError
from coderl_tasks.journal.atomic import write_parquet
from coderl_tasks.journal.ledger import shard_budget
from coderl_tasks.planning.early_checks import with_decided_model
from coderl_tasks.problems.problem import read_problem_rows
from coderl_tasks.rollouts.engine import open_session
from coderl_tasks.runtime.display import Display, exclusive_flow
from coderl_tasks.runtime.remote_shards import at_cap, profile_file, read_asked, recorded_at
from coderl_tasks.services import for_this_machine, services
from coderl_tasks.settings import CurateSettings

# Prefect's global concurrency limits of which a shard takes a slot each while it runs, where they have been made.
LIMITS = ["coderl-sampler", "coderl-sandbox"]


@flow(name="profile-shard")
# The first start waits too: another flow run, one that is lost or not heard of, may still be at work on the shard.
@partial(exclusive_flow, first_start_waits=True)
async def profile_shard(
    problems: list[str], output: str, settings: CurateSettings, start: int = 0, count: int = -1, job: str | None = None
) -> int | State[int]:
    """Samples problems `start` to `start + count` (-1: to the end) of the parquet files `problems`, and records how
    often they are solved. Returns how many were profiled, or, where a spending cap is reached, the failed state that
    says so; the cap counts all that is recorded in `output`.

    `output` (a folder) and `problems` are paths or addresses such as s3://bucket/name. The work is recorded in `output`
    as it goes, so that any machine can resume a killed run. The result is profile.parquet there. Only a curation sets
    `job`, a hash: job-HASH.json in `output` says how far each problem is to be sampled, profile-HASH.parquet is then
    the result."""
    settings = await with_decided_model(for_this_machine(settings))
    display = Display()
    problems_of_shard = await asyncio.to_thread(read_problem_rows, problems, start, count)
    # Take the slots first: a shard that waits for them must not lock the folder while another run could work on it.
    async with concurrency(LIMITS), recorded_at(output) as (folder, send_changes):
        with services(settings.model_name, settings.model_reason) as used:
            for line in used.lines:
                display.say(line)
            used.require_hidden(folder)
            async with open_session(settings, used) as session:
                asked = ALL_ALIKE if job is None else Asked.from_json(read_asked(str(folder), job))
                shard = Shard(session, settings, problems_of_shard, folder, asked)
                result = "profile.parquet" if job is None else profile_file(job)
                try:
                    profiled = await profile_recorded(shard, start, result, send_changes)  # `start` names the task
                except BudgetReachedError as error:
                    return at_cap(error)
    display.say(f"{profiled} problems profiled: {output}")
    return profiled


async def profile_recorded(shard: Shard, number: int, result: str, send_changes: Callable[[], None]) -> int:
    """Profile a shard in its folder within the caps of its settings, and write the profile to the file `result` there.
    Calls `send_changes` after each round of samples (see `recorded_at`). Returns how many problems were profiled."""
    shard = replace(shard, budget=shard_budget(shard.settings, shard.folder))
    frame = await profile(shard, number, lambda done, total: send_changes())
    write_parquet(shard.folder / result, frame)
    return frame.height


if __name__ == "__main__":
    sys.exit("this flow runs as a deployment: prefect deployment run profile-shard/local --params ...")
