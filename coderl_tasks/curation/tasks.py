"""The phases of a curation as retried tasks: filter, check solutions, profile. What is recorded is not done again."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from prefect import task

from coderl_tasks.curation.from_run import RunPolicy
from coderl_tasks.curation.profile import Prices, profile_shard
from coderl_tasks.curation.solutions import check_solutions
from coderl_tasks.curation.stopping_rule import Band, StoppingRule
from coderl_tasks.environments import environment_of
from coderl_tasks.filtering.overlap import OverlapRules
from coderl_tasks.filtering.rows import OnRows, RowRules
from coderl_tasks.filtering.stages import FilterRequest, FilterResult, filter_dataset
from coderl_tasks.policy.clients import create_sampling_client
from coderl_tasks.policy.sampling import OUTSIDE_TRAINING
from coderl_tasks.problems import Problem
from coderl_tasks.retries import PHASE
from coderl_tasks.rollouts.engine import Session, supervised
from coderl_tasks.rollouts.rounds import Progress, RuleOf, SamplingPlan
from coderl_tasks.settings import CurateSettings


@task(name="filter", **PHASE)
def filter_problems(settings: CurateSettings, folder: Path, on_rows: OnRows) -> FilterResult:
    """The stages that need no model, as `settings` want them, recorded in `folder`."""
    data = (settings.dataset, settings.splits, settings.limit, settings.evaluation_dataset, settings.test_share)
    rows = RowRules(settings.max_tests, settings.min_tests, settings.max_statement_chars, settings.max_row_mb * 2**20)
    overlap = OverlapRules(settings.ngram_overlap, settings.near_evaluation, settings.common_passage)
    how = (settings.readers, settings.environment, environment_of(settings).rows)
    return filter_dataset(folder, FilterRequest(*data, rows, settings.near_duplicate, overlap, *how), on_rows)


@dataclass(frozen=True, slots=True, repr=False)
class Shard:
    """Some hundred problems of a curation, read when a task works on them, and the folder that records it. `policy` is
    the one of a run that is profiled, None for the base model."""

    session: Session
    settings: CurateSettings
    problems: Iterable[Problem]
    folder: Path
    policy: RunPolicy | None = None


@task(name="check-solutions", task_run_name="check-solutions-{number}", **PHASE)
@supervised
async def check_shard(shard: Shard, number: int, on_progress: Progress) -> pl.DataFrame:
    """The checks (SOLUTION_SCHEMA) of one shard's problems with their own solutions."""
    work = (list(shard.problems), shard.session.judge, shard.settings.max_solutions)
    return await check_solutions(*work, folder=shard.folder, on_progress=on_progress)


@task(name="profile", task_run_name="profile-shard-{number}", **PHASE)
@supervised
async def profile(
    shard: Shard,
    number: int,
    on_progress: Progress,
    rule_of: RuleOf | None = None,
    sampled: frozenset[str] | None = None,
) -> pl.DataFrame:
    """The profile (SHARD_SCHEMA) of one shard. By problem id, `rule_of` gives the stopping rules of problems that are
    sampled further for their labels (`curation.labels`), and `sampled` has those sampled at all (None: every one)."""
    settings, session, policy = shard.settings, shard.session, shard.policy
    service = await session.service()
    if policy is None:  # the base model
        sampler = await create_sampling_client(service, base_model=settings.model_name)
        engine = session.engine(settings, "profile", policy=settings.model_name, sampler_step=OUTSIDE_TRAINING)
    else:
        sampler = await create_sampling_client(service, sampler_path=policy.sampler_path)
        engine = session.engine(settings, "profile", policy=policy.sampler_path, sampler_step=policy.step)
    work = (list(shard.problems), sampler, engine, profile_plan(settings, rule_of, sampled))
    prices = Prices(settings.price_prompt, settings.price_completion)
    return await profile_shard(*work, prices=prices, folder=shard.folder, on_progress=on_progress)


def profile_plan(
    settings: CurateSettings, rule_of: RuleOf | None = None, sampled: frozenset[str] | None = None
) -> SamplingPlan:
    """How many samples of a problem `settings` want, where it has no rule of its own."""
    if settings.profile_mode == "screen":
        one_round = min(settings.profile_round, settings.profile_samples)
        return SamplingPlan(one_round, settings.profile_round, sampled=sampled)
    rule = None
    if settings.profile_mode == "adaptive":
        band = Band(settings.band_low, settings.band_high)
        rule = StoppingRule(band, settings.profile_risk_keep, settings.profile_risk_drop)
    return SamplingPlan(settings.profile_samples, settings.profile_round, rule, rule_of, sampled)
