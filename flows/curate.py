"""curate: raw problems -> pass rates of the base model -> a mixed-difficulty pool in data/pools/."""

import sys
from datetime import datetime
from pathlib import Path

import polars as pl
from prefect import flow, task

from coderl_tasks.curation.difficulty import Band
from coderl_tasks.curation.find_pool import POOLS
from coderl_tasks.curation.measure import MeasureSettings, Progress
from coderl_tasks.curation.mix import Mix
from coderl_tasks.curation.pool import build_pool, require_problems, write_pool
from coderl_tasks.curation.profile import Prices, drop_long_prompts, profile_shard
from coderl_tasks.curation.sampling_plan import SamplingPlan, StoppingRule
from coderl_tasks.curation.solutions import split_by_solutions
from coderl_tasks.insight.artifacts import pool_markdown
from coderl_tasks.insight.record import load_curation
from coderl_tasks.insight.report import write_report
from coderl_tasks.policy.clients import create_sampling_client
from coderl_tasks.problems import PROFILE_SCHEMA, LoadResult, Problem, load_problems
from coderl_tasks.problems.sources import PINNED_REVISIONS
from coderl_tasks.services import for_this_machine, services
from coderl_tasks.settings import CurateSettings
from coderl_tasks.training.session import Session, open_session
from flows.check_solutions import check_all
from flows.display import Display
from flows.naming import deployed_name
from flows.publishing import publish_or_warn
from flows.retries import PHASE
from flows.shard_dispatch import profile_elsewhere


@task(name="load", **PHASE)
def load(settings: CurateSettings) -> LoadResult:
    return load_problems(
        settings.dataset, settings.splits, role="train", limit=settings.limit, max_tests=settings.max_tests
    )


@task(name="profile", task_run_name="profile-shard-{number}", **PHASE)
async def profile(
    session: Session, settings: CurateSettings, shard: "Shard", number: int, on_progress: Progress
) -> pl.DataFrame:
    return await session.supervised(_measure(session, settings, shard, on_progress))


async def _measure(session: Session, settings: CurateSettings, shard: "Shard", on_progress: Progress) -> pl.DataFrame:
    sampler = await create_sampling_client(await session.service(), base_model=settings.model_name)
    return await profile_shard(
        shard.problems,
        sampler,
        session.judge,
        session.renderer,
        MeasureSettings(
            purpose="profile",
            policy=settings.model_name,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            context=session.context,
            seed=settings.seed,
            concurrency=settings.sample_concurrency,
        ),
        sampling=_sampling_plan(settings),
        prices=Prices(settings.price_prompt, settings.price_completion),
        folder=shard.folder,
        on_progress=on_progress,
    )


def _sampling_plan(settings: CurateSettings) -> SamplingPlan:
    rule = StoppingRule(
        Band(settings.band_low, settings.band_high), settings.profile_risk_keep, settings.profile_risk_drop
    )
    adaptive = settings.profile_mode == "adaptive"
    return SamplingPlan(settings.profile_samples, settings.profile_round, rule if adaptive else None)


def _mix(settings: CurateSettings) -> Mix:
    size = None if settings.pool_size == -1 else settings.pool_size
    shares: dict[str, float] = dict(settings.mix.items())
    return Mix(shares, settings.mix_splits, size, settings.seed)


class Shard:
    """Some hundred problems profiled in one task, and the folder that records them."""

    def __init__(self, problems: list[Problem], folder: Path) -> None:
        self.problems = problems
        self.folder = folder


@flow(name="curate")
async def curate(settings: CurateSettings) -> str:
    """Profile the base model on a data set's problems and keep those in the band. Returns the pool's folder."""
    settings = for_this_machine(settings)
    display = Display()
    folder = (POOLS / (settings.name or deployed_name() or f"{datetime.now():%Y_%m_%d-%H_%M_%S}")).resolve()
    display.say(f"pool directory: {folder}")
    with services(settings.model_name) as used:
        for line in used.lines:
            display.say(line)
        loaded = load(settings)
        display.say(f"{loaded.read} rows read from {settings.dataset}: {len(loaded.problems)} problems")
        async with open_session(settings, used) as session:
            checks = await check_all(session, settings, _cut(loaded.problems, settings.shard_size), folder, display)
            sound, unsound = split_by_solutions(loaded.problems, checks)
            fitting, long = drop_long_prompts(
                sound, session.renderer, max_tokens=settings.max_tokens, context=session.context
            )
            measured = await _profile(session, settings, fitting, folder, display)
    pool = build_pool(
        loaded,
        measured,
        drops=[*unsound, *long],
        band_low=settings.band_low,
        band_high=settings.band_high,
        mix=_mix(settings),
    )
    inputs = {"dataset": settings.dataset, "revision": PINNED_REVISIONS.get(settings.dataset)}
    write_pool(folder, pool, settings.content(), inputs=inputs)
    await publish_or_warn("pool", folder.name, pool_markdown(load_curation(folder), pool.band))
    display.say(f"report: {write_report(folder)}")
    require_problems(pool, folder)
    display.say(f"{pool.pool.height} of {pool.read} problems kept")
    if pool.short:
        display.say(f"the pool does not have the mix asked for: {pool.mix.shortfall(pool.short)}")
    return str(folder)


async def _profile(
    session: Session, settings: CurateSettings, problems: list[Problem], folder: Path, display: Display
) -> pl.DataFrame:
    """The profiles of all `problems`, shard by shard."""
    shards = [
        Shard(part, folder / "shards" / f"{number:04d}")
        for number, part in enumerate(_cut(problems, settings.shard_size))
    ]
    if settings.shards == "deployment":
        return await profile_elsewhere(settings, [shard.problems for shard in shards], folder, display)
    frames = []
    for number, shard in enumerate(shards):
        with display.bar(f"profiling shard {number + 1} of {len(shards)}") as on_progress:
            frames.append(await profile(session, settings, shard, number, on_progress))
    return pl.concat([pl.DataFrame(schema=PROFILE_SCHEMA), *frames])


def _cut(problems: list[Problem], size: int) -> list[list[Problem]]:
    return [problems[start : start + size] for start in range(0, len(problems), size)]


if __name__ == "__main__":
    from coderl_tasks.cli import main

    sys.exit(main(["curate", *sys.argv[1:]]))
