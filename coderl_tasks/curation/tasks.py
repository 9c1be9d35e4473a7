"""The phases of a curation as retried tasks: filter, check solutions, audit, profile, strengthen. None repeats
what is recorded."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import polars as pl
from prefect import task
from pydantic import TypeAdapter

from coderl_tasks.addresses import explained, filesystem, joined
from coderl_tasks.curation.from_run import RunPolicy
from coderl_tasks.curation.pool_audit import audit_problems
from coderl_tasks.curation.profile import Prices, profile_shard
from coderl_tasks.curation.solutions import check_solutions
from coderl_tasks.curation.stopping_rule import Band, Further, StoppingRule
from coderl_tasks.curation.stronger_tests import strengthen_problems
from coderl_tasks.environments import environment_of
from coderl_tasks.environments.benchmarks import benchmark_sources
from coderl_tasks.filtering.overlap import OverlapRules
from coderl_tasks.filtering.parts import KeptProblems
from coderl_tasks.filtering.rows import OnRows, RowRules
from coderl_tasks.filtering.stages import FilterRequest, FilterResult, filter_dataset
from coderl_tasks.journal.ledger import Budget
from coderl_tasks.policy.clients import create_sampling_client
from coderl_tasks.policy.sampling import OUTSIDE_TRAINING
from coderl_tasks.problems import Problem
from coderl_tasks.problems.profile_columns import N_FROM_RUN
from coderl_tasks.retries import PHASE
from coderl_tasks.rollouts.engine import Session, supervised
from coderl_tasks.rollouts.rounds import Progress, SamplingPlan
from coderl_tasks.settings import CurateSettings


@task(name="filter", **PHASE)
def filter_problems(settings: CurateSettings, folder: Path, on_rows: OnRows) -> FilterResult:
    """The stages that need no model, as `settings` want them, recorded in `folder`."""
    data = (settings.dataset, settings.splits, settings.limit, settings.evaluation_dataset, settings.test_share)
    rows = RowRules(settings.max_tests, settings.min_tests, settings.max_statement_chars, settings.max_row_mb * 2**20)
    overlap = OverlapRules(settings.ngram_overlap, settings.near_evaluation, settings.common_passage)
    how = (settings.readers, settings.environment, environment_of(settings).rows)
    benchmarks = benchmark_sources(settings.benchmark or ())
    request = FilterRequest(*data, rows, settings.near_duplicate, overlap, *how, benchmarks)
    return filter_dataset(folder, request, on_rows)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a profile asks of single problems, by problem id: `rules` has the stopping rules of those with one of their
    own, `sampled` those sampled at all (None: every one). `policy` is the one of a run that is profiled, None for the
    base model."""

    rules: Mapping[str, Further] = field(default_factory=dict)
    sampled: frozenset[str] | None = None
    policy: RunPolicy | None = None

    def of(self, problems: KeptProblems) -> "Asked":
        """What is asked of these problems."""
        problem_ids = problems.table["problem_id"].to_list()
        rules = {name: self.rules[name] for name in problem_ids if name in self.rules}
        sampled = None if self.sampled is None else self.sampled.intersection(problem_ids)
        return replace(self, rules=rules, sampled=sampled)

    def to_json(self) -> str:
        """As `from_json` reads it: the same text for the same content."""
        return json.dumps(asdict(self), default=sorted, sort_keys=True)  # sets are sorted

    @staticmethod
    def from_json(text: str) -> "Asked":
        return TypeAdapter(Asked).validate_json(text)


ALL_ALIKE = Asked()


@dataclass(frozen=True, slots=True, repr=False)
class Shard:
    """Some hundred problems, read when a task works on them, and the folder that records it. `budget` is the shard's
    own, in place of the session's."""

    session: Session
    settings: CurateSettings
    problems: Iterable[Problem]
    folder: Path
    asked: Asked = ALL_ALIKE
    budget: Budget | None = None


@task(name="check-solutions", task_run_name="check-solutions-{number}", **PHASE)
@supervised
async def check_shard(shard: Shard, number: int, on_progress: Progress) -> pl.DataFrame:
    """The checks (SOLUTION_SCHEMA) of one shard's problems with their own solutions."""
    work = (list(shard.problems), shard.session.judge, shard.settings.max_solutions)
    infer = shard.settings.seed if shard.settings.checkers == "infer" else None
    return await check_solutions(*work, inference_seed=infer, folder=shard.folder, on_progress=on_progress)


@task(name="audit", task_run_name="audit-{number}", **PHASE)
@supervised
async def audit_shard(shard: Shard, number: int, on_progress: Progress, checks: pl.DataFrame) -> pl.DataFrame:
    """The audit (AUDIT_SCHEMA) of one shard's problems; `checks` (SOLUTION_SCHEMA) has what is known of solutions."""
    work, seed, known = (list(shard.problems), shard.session.judge), shard.settings.seed, checks.iter_rows(named=True)
    return await audit_problems(*work, seed=seed, checks=known, folder=shard.folder, on_progress=on_progress)


@task(name="strengthen", task_run_name="strengthen-{number}", **PHASE)
@supervised
async def strengthen_shard(
    shard: Shard, number: int, on_progress: Progress, profiles: str, profile: pl.DataFrame
) -> pl.DataFrame:
    """The generated tests (STRENGTH_SCHEMA) of one shard's problems. `profiles` is the address of the shards'
    profiles, whose rollouts are used as far as `profile` (SHARD_SCHEMA) counts them."""
    completions = pl.DataFrame(schema={"problem_id": pl.String(), "code": pl.String()})
    rollouts = joined(profiles, f"{number:04d}", "rollouts.parquet")
    fs, path = filesystem(rollouts)
    with explained(rollouts):
        if await asyncio.to_thread(fs.exists, path):
            with fs.open(path, "rb") as file:
                sampled = pl.read_parquet(file, columns=[*completions.columns, "sample_index", "correctness_score"])
            # A profile with another rule may have sampled more of a problem: `counted_again` must not subtract those.
            from_run = pl.col(N_FROM_RUN) if N_FROM_RUN in profile.columns else 0
            n_counted = pl.col("n_samples") + pl.col("infra_errors") - from_run
            counted = sampled.join(profile.select("problem_id", n=n_counted), on="problem_id", maintain_order="left")
            is_used = (pl.col("sample_index") < pl.col("n")) & (pl.col("correctness_score") == 1.0)
            completions = counted.filter(is_used).select(completions.columns)
    work = (list(shard.problems), shard.session.judge, completions, shard.settings.strengthen, shard.settings.seed)
    return await strengthen_problems(*work, folder=shard.folder, on_progress=on_progress)


@task(name="profile", task_run_name="profile-shard-{number}", **PHASE)
@supervised
async def profile(shard: Shard, number: int, on_progress: Progress) -> pl.DataFrame:
    """The profile (SHARD_SCHEMA) of one shard."""
    settings, session, policy = shard.settings, shard.session, shard.asked.policy
    service = await session.service()
    if policy is None:  # the base model
        sampler = await create_sampling_client(service, base_model=settings.model_name)
        engine = session.engine(settings, "profile", policy=settings.model_name, sampler_step=OUTSIDE_TRAINING)
    else:
        sampler = await create_sampling_client(service, sampler_path=policy.sampler_path)
        engine = session.engine(settings, "profile", policy=policy.sampler_path, sampler_step=policy.step)
    engine.budget = shard.budget or session.budget
    work = (list(shard.problems), sampler, engine, profile_plan(settings, shard.asked))
    prices = Prices(settings.price_prompt, settings.price_completion)
    return await profile_shard(*work, prices=prices, folder=shard.folder, on_progress=on_progress)


def profile_plan(settings: CurateSettings, asked: Asked = ALL_ALIKE) -> SamplingPlan:
    """How many samples of a problem `settings` want, and what is asked of single ones."""
    if settings.profile_mode == "screen":
        one_round = min(settings.profile_round, settings.profile_samples)
        return SamplingPlan(one_round, settings.profile_round, sampled=asked.sampled)
    return SamplingPlan(
        settings.profile_samples, settings.profile_round, stopping_rule(settings), asked.rules, asked.sampled
    )


def stopping_rule(settings: CurateSettings) -> StoppingRule | None:
    """The rule of problems without one of their own; None where all samples are taken."""
    if settings.profile_mode != "adaptive":
        return None
    return StoppingRule(
        Band(settings.band_low, settings.band_high), settings.profile_risk_keep, settings.profile_risk_drop
    )
