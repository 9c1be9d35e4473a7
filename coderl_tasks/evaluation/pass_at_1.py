"""Pass@1 of a policy, all tests, with 95% intervals: of one completion per problem, or of several, then with pass@k.

One completion per problem: Wilson's interval. Several: those of a problem hang together, so the bootstrap draws
problems; a completion that could not be graded is left out of its problem, which then has fewer.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import tinker
from prefect import task

from coderl_tasks.errors import InfraError
from coderl_tasks.evaluation.paired import USUAL
from coderl_tasks.evaluation.policy import FoundPolicy
from coderl_tasks.grading.scoring import UNGRADED, Verdict
from coderl_tasks.journal.steps import GroupFiles
from coderl_tasks.policy.clients import create_sampling_client
from coderl_tasks.policy.rollout import TRUNCATED
from coderl_tasks.problems import Problem
from coderl_tasks.retries import PHASE
from coderl_tasks.rollouts.engine import RolloutEngine, Session, supervised
from coderl_tasks.rollouts.rounds import Progress, SamplingPlan, sample_in_rounds
from coderl_tasks.settings import EvaluateSettings
from coderl_tasks.stats import clustered_bootstrap, pass_at_k, wilson_interval


async def evaluate_policy(
    problems: Sequence[Problem],
    sampler: tinker.SamplingClient,
    engine: RolloutEngine,
    *,
    n_samples: int = 1,
    groups: GroupFiles | None = None,
    on_progress: Progress | None = None,
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Samples and grades `n_samples` completions per problem; returns rollouts (ROLLOUT_SCHEMA, in problem order) and
    their summary. `groups` records them: completions that an unfinished evaluation recorded there are reused.
    Raises InfraError if sampling fails or nothing could be graded, ValueError without problems."""
    if not problems:
        raise ValueError("there are no problems to evaluate on")
    plan = SamplingPlan(max_samples=n_samples, round_size=n_samples)  # all in one round
    rollouts = await sample_in_rounds(problems, sampler, engine, plan, groups=groups, on_progress=on_progress)
    used = engine.settings
    summary = summarize(rollouts, temperature=used.temperature, max_tokens=used.max_tokens, policy=used.policy)
    summary |= {"served_by": used.served_by} if used.served_by else {}  # empty: not known
    turns = engine.environment.turns
    others = {"top_p": used.top_p, "max_turns": turns.most - turns.tool_calls, "max_tool_calls": turns.tool_calls}
    return rollouts, summary | {key: value for key, value in others.items() if value != USUAL[key]}


def evaluation_subset(problems: Sequence[Problem], limit: int, *, seed: int) -> list[Problem]:
    """Returns `limit` of `problems` in their order, or all if `limit` is -1 or exceeds their number. Each split keeps
    its share, rounded by largest remainder. Raises ValueError for a limit of 0 or below -1."""
    if limit == 0 or limit < -1:
        raise ValueError(f"limit must be positive, or -1 for all, got {limit}")
    if limit == -1 or limit >= len(problems):
        return list(problems)
    by_split: dict[str, list[str]] = {}
    for problem in problems:
        by_split.setdefault(problem.split, []).append(problem.problem_id)
    shares = {split: limit * len(ids) / len(problems) for split, ids in by_split.items()}
    counts = {split: int(share) for split, share in shares.items()}
    by_remainder = sorted(shares, key=lambda split: (-(shares[split] - counts[split]), split))  # the largest first
    for split in by_remainder[: limit - sum(counts.values())]:
        counts[split] += 1
    chosen: set[tuple[str, str]] = set()
    for split, ids in by_split.items():
        # By a hash, so that adding problems changes few choices.
        ids.sort(key=lambda problem_id: hashlib.sha256(f"{seed}/{problem_id}".encode()).digest())
        chosen |= {(split, problem_id) for problem_id in ids[: counts[split]]}
    return [problem for problem in problems if (problem.split, problem.problem_id) in chosen]


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation:
    """The evaluation of a checkpoint; `groups` record it while it is sampled."""

    session: Session
    settings: EvaluateSettings
    policy: FoundPolicy
    problems: Sequence[Problem]
    groups: GroupFiles


@task(name="evaluate", **PHASE)
@supervised
async def evaluate_checkpoint(evaluation: Evaluation, on_progress: Progress) -> tuple[pl.DataFrame, dict[str, Any]]:
    settings, session, path = evaluation.settings, evaluation.session, evaluation.policy.sampler_path
    base = None if path else settings.model_name
    return await evaluate_policy(
        evaluation.problems,
        await create_sampling_client(await session.service(), sampler_path=path, base_model=base),
        session.engine(
            *(settings, "evaluate", path or settings.model_name),
            sampler_step=evaluation.policy.step,
            top_p=settings.top_p,
            served_by=session.served_by,
        ),
        n_samples=settings.n_samples,
        groups=evaluation.groups,
        on_progress=on_progress,
    )


def summarize(
    rollouts: pl.DataFrame, *, policy: str, temperature: float | None = None, max_tokens: int | None = None
) -> dict[str, Any]:
    """The summary of an evaluation's rollouts, as summary.json has it. All rates are over graded completions, except
    truncated_rate, which is over all; n counts problems. `temperature` and `max_tokens` are None where it is not known
    how the completions were sampled. Raises InfraError if nothing was graded."""
    graded = rollouts.filter(pl.col("correctness_score").is_not_null())
    if graded.is_empty():
        raise InfraError(f"none of {rollouts.height} completions could be graded: is the sandbox up?")
    splits = graded["split"].unique(maintain_order=True)
    n_samples = rollouts["sample_index"].n_unique()
    return {
        **_pass_rates(graded, n_samples),
        "by_split": {split: _pass_rates(graded.filter(split=split), n_samples) for split in splits},
        **({"n_samples": n_samples} if n_samples > 1 else {}),
        **_by_turn(rollouts, n_samples),  # nothing where no completion has several turns
        # Pass@1 counts correctness of 1, which a custom reward may never reach.
        "mean_reward": math.fsum(graded["reward"]) / graded.height,
        # format_score is 0 in the format that was asked for, below 0 otherwise.
        "format_rate": int((graded["format_score"] >= 0).sum()) / graded.height,
        "truncated_rate": int((rollouts["stop_reason"] == TRUNCATED).sum()) / rollouts.height,
        "infra_errors": rollouts.height - graded.height,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "policy": policy,
    }


def _by_turn(rollouts: pl.DataFrame, n_samples: int) -> dict[str, Any]:
    """Pass rates after each turn, if completions have several. One that ended earlier counts with its last answer."""
    verdicts = pl.col("turn_verdicts")
    most = int(rollouts.select(verdicts.list.len().max().fill_null(0)).item())
    rates = []
    for turn in range(most):
        verdict = pl.coalesce(verdicts.list.get(turn, null_on_oob=True), verdicts.list.last())
        then = rollouts.with_columns(verdict=verdict).filter(
            pl.col("verdict").is_not_null() & ~pl.col("verdict").is_in(UNGRADED)
        )
        passed = (pl.col("verdict") == Verdict.PASSED).cast(pl.Float64)
        rates.append(_pass_rates(then.with_columns(correctness_score=passed), n_samples))
    return {"by_turn": rates} if rates else {}


def _pass_rates(graded: pl.DataFrame, n_samples: int) -> dict[str, Any]:
    """How many problems have graded completions (`n`), and Pass@1 with its interval. With several completions per
    problem also `pass_at_k`, which has the same for each k (powers of two, and `n_samples`), over the problems with k
    graded completions (null if there are none)."""
    if n_samples == 1:  # then a row is a problem
        n, passed = graded.height, int((graded["correctness_score"] == 1.0).sum())
        interval = wilson_interval(passed, n)
        return {"n": n, "pass_at_1": passed / n, "ci_low": interval.low, "ci_high": interval.high}
    by_problem = graded.group_by("split", "problem_id", maintain_order=True).agg(
        passed=(pl.col("correctness_score") == 1.0).sum(), n=pl.len()
    )
    counts = by_problem.select("n", "passed").rows()
    by_k: dict[str, dict[str, Any]] = {}
    for k in sorted({*(2**power for power in range(n_samples.bit_length())), n_samples}):
        values = [pass_at_k(n, passed, k) for n, passed in counts if n >= k]
        if not values:
            by_k[str(k)] = {"n": 0, "estimate": None, "ci_low": None, "ci_high": None}
            continue
        if set(values) in ({0.0}, {1.0}):  # then all draws of the bootstrap are equal: it would claim certainty
            interval = wilson_interval(round(math.fsum(values)), len(values))
        else:
            interval = clustered_bootstrap(values)
        # Of one problem the bootstrap's interval is infinite.
        low, high = max(0.0, interval.low), min(1.0, interval.high)
        by_k[str(k)] = {"n": len(values), "estimate": math.fsum(values) / len(values), "ci_low": low, "ci_high": high}
    first = by_k["1"]
    interval_of_one = {key: first[key] for key in ("ci_low", "ci_high")}
    return {"n": first["n"], "pass_at_1": first["estimate"], **interval_of_one, "pass_at_k": by_k}
