"""Profiles problems: how often the base model solves each, and what its answers look like."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import tinker

from coderl_tasks.curation.stopping_rule import difficulty
from coderl_tasks.environments import CODE, Environment
from coderl_tasks.grading.priority import count_catches
from coderl_tasks.journal.atomic import make_folder, write_json, write_parquet
from coderl_tasks.journal.ledger import add_lost, files_tokens
from coderl_tasks.journal.steps import FINGERPRINT_FILE, GroupFiles, read_frame
from coderl_tasks.policy.rollout import ORDER, ROLLOUT_SCHEMA, TRUNCATED
from coderl_tasks.policy.sampling import completion_budget, first_failures
from coderl_tasks.problems.problem import Drop, Problem
from coderl_tasks.problems.profile_columns import SHARD_SCHEMA
from coderl_tasks.prompts import Renderer
from coderl_tasks.rollouts import rounds
from coderl_tasks.rollouts.engine import RolloutEngine
from coderl_tasks.rollouts.rounds import Progress, SamplingPlan, sample_in_rounds
from coderl_tasks.stats import jeffreys_interval


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens cost, in any one currency; None where that is not known."""

    prompt: float | None = None
    completion: float | None = None

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """None if no price is known. One that is not known counts as 0 beside one that is."""
        if self.prompt is None and self.completion is None:
            return None
        return (prompt_tokens * (self.prompt or 0.0) + completion_tokens * (self.completion or 0.0)) / 1e6


NO_PRICES = Prices()


def drop_long_prompts(
    problems: Sequence[Problem], renderer: Renderer, *, max_tokens: int, context: int, environment: Environment = CODE
) -> tuple[list[Problem], list[Drop]]:
    """The problems whose prompt leaves room for a completion in `context` tokens, and the drops of the others."""
    kept, drops = [], []
    for problem in problems:
        length = len(environment.prompt(problem, renderer))
        if completion_budget(length, max_tokens, context) > 0:
            kept.append(problem)
        else:
            drops.append(Drop.of(problem, "prompt", "prompt_too_long", f"{length} tokens in a context of {context}"))
    return kept, drops


async def profile_shard(
    problems: Sequence[Problem],
    sampler: tinker.SamplingClient,
    engine: RolloutEngine,
    plan: SamplingPlan,
    *,
    prices: Prices = NO_PRICES,
    folder: Path | None = None,
    on_progress: Progress | None = None,
) -> pl.DataFrame:
    """Samples and grades completions of each problem; returns SHARD_SCHEMA, one row per problem sampled, in order.

    `folder` records the shard: groups/ as they arrive, then rollouts.parquet. A second call with the same problems and
    settings samples only what is missing and re-grades what could not be graded, or was with another time limit. Raises
    InfraError if sampling fails.
    """
    work = (problems, sampler, engine, plan)
    if folder is None:
        return profile_frame(problems, await sample_in_rounds(*work, on_progress=on_progress), prices)
    # The fingerprint leaves out the plan's stopping rule: rollouts recorded under another rule are the same draws, of
    # which this rule needs fewer or more.
    request = rounds.fingerprint(problems, engine, plan)
    file = folder / "rollouts.parquet"
    are_samples_valid, are_grades_valid = rounds.validity(folder, request)
    recorded = read_frame(file, ROLLOUT_SCHEMA) if are_samples_valid else None
    if recorded is not None and not are_grades_valid:
        recorded = rounds.ungraded(recorded)
    groups = GroupFiles(folder / "groups")
    rollouts = await sample_in_rounds(*work, groups=groups, recorded=recorded, on_progress=on_progress)
    to_record = rollouts
    if recorded is None:
        # First, since it vouches for the file that is replaced.
        (folder / FINGERPRINT_FILE).unlink(missing_ok=True)
        if file.exists():  # of other settings: what it cost stays counted
            add_lost(folder, files_tokens([file]))
    else:
        # The rollouts that this rule does not need stay for a rule that needs more.
        unused = recorded.select(ROLLOUT_SCHEMA.keys()).join(rollouts, on=ORDER, how="anti")
        to_record = pl.concat([rollouts, unused]).sort(ORDER)
    if recorded is None or not to_record.equals(recorded) or not are_grades_valid:
        write_parquet(make_folder(folder) / file.name, to_record)
        # The fingerprint after the file that it vouches for, and groups/ removed last: after a crash in between, the
        # next start reads the groups again and samples nothing.
        write_json(folder / FINGERPRINT_FILE, request)
    # `rounds` names the files in groups/ so: problem * ROUNDS + round.
    recorded_places = (to_record["group_index"].cast(pl.Int64) * rounds.ROUNDS + to_record["attempt"]).unique()
    # Further files in groups/ were left by a process that ended early under a rule that needs more samples. A later
    # start with that rule will read them, so groups/ stays.
    if groups.indices() <= set(recorded_places):
        groups.remove()
    return profile_frame(problems, rollouts, prices)


def profile_frame(problems: Sequence[Problem], rollouts: pl.DataFrame, prices: Prices = NO_PRICES) -> pl.DataFrame:
    """Summarizes `rollouts` (ROLLOUT_SCHEMA) as SHARD_SCHEMA: one row per problem that has any, in order. Rates are
    over the graded ones; the sandbox failed on the others, which have no scores. A prompt's tokens count once per round
    (`attempt`), since each round is a request."""
    graded = pl.col("correctness_score").is_not_null()
    by_problem = rollouts.group_by("problem_id").agg(
        n_samples=graded.sum(),
        n_correct=(pl.col("correctness_score") == 1.0).sum(),
        format_ok=(pl.col("format_score") >= 0).sum(),  # below 0: not as asked for
        truncated_rate=(pl.col("stop_reason") == TRUNCATED).mean(),
        infra_errors=(~graded).sum(),
        mean_completion_tokens=pl.col("completion_tokens").list.len().mean(),
        prompt_tokens=pl.col("prompt_tokens").list.len().first(),
        rounds=pl.col("attempt").n_unique(),
        completion_tokens_spent=pl.col("completion_tokens").list.len().sum(),
    )
    measured = {row["problem_id"]: row for row in by_problem.iter_rows(named=True)}
    failures = first_failures(rollouts)  # by problem: the first test that each graded program failed, None if none
    rows = []
    for problem in problems:
        if problem.problem_id not in measured:
            continue
        # By test: how many programs ran it, and how many failed it first.
        runs, catches = count_catches(len(problem.tests), failures.get(problem.problem_id, []))
        row = measured[problem.problem_id]
        row |= {"split": problem.split, "test_runs": runs, "test_catches": catches}
        row["prompt_tokens_spent"] = row["rounds"] * row["prompt_tokens"]
        row["cost"] = prices.cost(row["prompt_tokens_spent"], row["completion_tokens_spent"])
        if n := row["n_samples"]:  # else the rates stay null
            row |= rates(row["n_correct"], n) | {"format_rate": row["format_ok"] / n}
        rows.append(row)
    return pl.DataFrame(rows, schema=SHARD_SCHEMA)


def rates(n_correct: int, n: int) -> dict[str, Any]:
    """What a profile says of `n_correct` of `n` completions."""
    interval, rate = jeffreys_interval(n_correct, n), n_correct / n
    counts: dict[str, Any] = {"n_correct": n_correct, "n_samples": n, "pass_rate": rate}
    return counts | {"difficulty": difficulty(rate), "ci_low": interval.low, "ci_high": interval.high}
