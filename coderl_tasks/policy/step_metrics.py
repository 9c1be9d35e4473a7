"""The metrics of a training step: one entry says what a number means and how it is computed.

metrics.jsonl, W&B and `coderl query` are drawn from these entries, and docs/file-formats.md repeats the meanings. Their
order is that of the keys in recorded runs: a new metric goes to the end of its tuple.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import polars as pl

from coderl_tasks.grading.scoring import UNGRADED, Verdict
from coderl_tasks.policy.rollout import ENVIRONMENT, KEPT, NO_COMPLETION, REPEATED, TRUNCATED, TURN_TOKENS

if TYPE_CHECKING:  # the SDK behind it takes seconds to import, and showing a metric needs none
    from coderl_tasks.policy.selection import Forecast
    from coderl_tasks.policy.update import UpdateResult
    from coderl_tasks.settings import TrainSettings

Source = TypeVar("Source")
FLOAT, INT = pl.Float64(), pl.Int64()
IMPROBABLE = 1e-6
"""A group of equal completions is called clones where independent draws would repeat its first one so rarely."""
TOKENS_AND_TEXTS = ("prompt_tokens", "completion_tokens", "logprobs", "base_logprobs", "completion", "turns", "code")
"""The columns of tokens and texts, of which a filter would copy a step's."""
REPEATED_MORE = 0.2
"""A step's `duplicate_rate` this much above what the probe found is warned of."""
REPEATS_SCHEMA = {
    "group_index": pl.Int32(),
    "n": pl.Int32(),
    "repeated": pl.Int32(),
    "expected": pl.Float64(),
    "clones": pl.Boolean(),
}


@dataclass(frozen=True, slots=True)
class Metric(Generic[Source]):
    """A number of a step. `compute` takes the step's scored rollouts or its update."""

    name: str
    meaning: str
    compute: Callable[[Source], Any]
    dtype: pl.DataType = FLOAT


@dataclass(frozen=True, slots=True)
class ScoredRollouts:
    """The scored rollouts of one step (ROLLOUT_SCHEMA), and the parts of them that several metrics are taken over."""

    rows: pl.DataFrame
    graded: pl.DataFrame  # those with a reward, without their tokens and texts
    logprobs: pl.Series  # of the completions that have them
    advantages: pl.Series  # of the completions that are trained on
    received: pl.DataFrame  # stop_reason and number of tokens of those that the service sent, the shortest first
    repeats: pl.DataFrame  # as `group_repeats` returns them
    groups: pl.DataFrame  # one row each: trained, all_zero, all_one, prompt (its tokens), tokens (of its completions)
    turns: pl.DataFrame  # one row per completion: turns, lost_reply, later_passed, TURN_TOKENS
    settings: "TrainSettings | None"  # the run's; None: not known


@dataclass(frozen=True, slots=True)
class UpdatedStep:
    """What the metrics of one step's update are computed from."""

    result: "UpdateResult"
    learning_rate: float
    seed: int
    seconds: Mapping[str, float]  # of each phase and of the whole `step`
    forecast: "Forecast | None" = None  # with selection=adaptive: what was known when the problems were chosen
    cost_usd: float | None = None
    sandbox_faults: Mapping[str, int] = field(default_factory=dict)  # failed requests, by the sandbox's address
    base_tokens: int = 0  # that the base model read to measure the KL


def group_repeats(sampled: pl.DataFrame) -> pl.DataFrame:
    """Counts the completions of each group of `sampled` (SAMPLED_SCHEMA) that repeat another one token for token: one
    row per group (REPEATS_SCHEMA), over its `n` completions that have log-probabilities.

    `repeated` completions equal another one; with independent draws `expected` of them would: one of probability p, the
    product over its tokens, equals one of n - 1 others with probability 1 - (1 - p)^(n - 1). `clones`: all are equal,
    and that is improbable, as of a service that draws all samples of a request with one seed: the group has no signal.

    Not covered: log-probabilities at another temperature than that of sampling. Below 1 they understate chance."""
    known = sampled.select("completion_tokens", "logprobs")
    rows = []
    for index in sampled["group_index"].unique().sort():  # one group at a time: a step's tokens can be gigabytes
        group = known.filter((sampled["group_index"] == index) & sampled["logprobs"].is_not_null())
        n = group.height
        if not n:
            continue
        # Exact sums: the last bits of polars' sums depend on how a frame lies in memory, which a kill changes.
        probabilities = [min(1.0, math.exp(math.fsum(each))) for each in group["logprobs"]]
        counts = Counter(each.to_numpy().tobytes() for each in group["completion_tokens"])
        repeated = sum(count for count in counts.values() if count > 1)
        expected = math.fsum(1 - (1 - p) ** (n - 1) for p in probabilities)
        # Equal tokens can have different log-probabilities: by all of them the repeats must be improbable.
        clones = n > 1 and len(counts) == 1 and all(p ** (n - 1) < IMPROBABLE for p in probabilities)
        rows.append((index, n, repeated, expected, clones))
    return pl.DataFrame(rows, schema=REPEATS_SCHEMA, orient="row")


def excess_rate(repeats: pl.DataFrame) -> float | None:
    """The share of completions that repeat another beyond chance (0 to 1), of `group_repeats`; None without any."""
    n, repeated = (int(repeats[column].sum()) for column in ("n", "repeated"))
    return max(0.0, (repeated - math.fsum(repeats["expected"])) / n) if n else None


def _mean(values: pl.Series) -> float | None:
    # Exact: the last bits of polars' mean depend on how a frame lies in memory, which a kill changes.
    return math.fsum(values) / len(values) if len(values) else None


def _length(percent: int, meaning: str) -> Metric[ScoredRollouts]:
    # By nearest rank: the smallest of the sorted lengths that so many percent do not exceed.
    return Metric(
        f"completion_tokens_p{percent}",
        meaning,
        lambda step: int(sizes[-(-percent * len(sizes) // 100) - 1]) if len(sizes := step.received["tokens"]) else None,
        INT,
    )


def _seconds(phase: str, meaning: str) -> Metric[UpdatedStep]:
    return Metric(f"time_{phase}_s", f"seconds {meaning}", lambda step: round(step.seconds[phase], 3))


PHASES = ("sample", "score", "base", "train")

# fmt: off
ROLLOUT_METRICS: tuple[Metric[ScoredRollouts], ...] = (
    Metric("mean_reward", "mean over the graded completions",
        lambda step: _mean(step.graded["reward"])),
    Metric("mean_correct", "share of the graded completions that pass all tests, whatever their reward",
        lambda step: (step.graded["verdict"] == Verdict.PASSED).mean()),
    Metric("format_rate", "share of the graded completions in the right format",
        lambda step: (step.graded["format_score"] >= 0).mean()),
    Metric("groups_total", "groups of the step", lambda step: step.groups.height, INT),
    Metric("groups_skipped", "groups of equal rewards: none of their completions is trained on",
        lambda step: int((~step.groups["trained"]).sum()), INT),
    Metric("infra_errors", "completions that could not be graded",
        lambda step: int(step.rows["verdict"].is_in(UNGRADED).sum()), INT),
    Metric("truncated_rate", "share of the received completions that reached max_tokens",
        lambda step: (step.received["stop_reason"] == TRUNCATED).mean()),
    Metric("mean_completion_tokens", "mean length of the received completions",
        lambda step: step.received["tokens"].mean()),
    Metric("samples_skipped", "completions without log-probabilities to train on",
        lambda step: int(step.rows["logprobs"].is_null().sum()), INT),
    Metric("duplicate_rate",
        "share of the completions that repeat another of their group, minus the share that their log-probabilities "
        "predict",
        lambda step: excess_rate(step.repeats)),
    Metric("clone_groups", "groups of equal completions that chance does not explain",
        lambda step: int(step.repeats["clones"].sum()), INT),
    Metric("entropy",
        "mean of -log-probability over the sampled tokens, in nats: at temperature 1 an estimate of the policy's "
        "entropy per token",
        # Completion by completion: all of a step's as Python's numbers would be gigabytes.
        lambda step: -math.fsum(value for each in step.logprobs for value in each) / n
            if (n := int(step.logprobs.list.len().sum())) else None),
    _length(50, "median length of the received completions"),
    _length(90, "length that 90% of them do not exceed"),
    _length(99, "length that 99% of them do not exceed"),
    Metric("advantage_std", "standard deviation of the advantages trained on",
        lambda step: math.sqrt(math.fsum((each - mean) ** 2 for each in step.advantages) / len(step.advantages))
            if (mean := _mean(step.advantages)) is not None else None),
    # Of each group's own rewards: a step of which half is all 0 and half all 1 has the mean of one that learns.
    Metric("groups_all_zero", "share of the groups whose rewards are equal and at most 0",
        lambda step: _mean(step.groups["all_zero"])),
    Metric("groups_all_one", "share of the groups whose rewards are equal and at least 1",
        lambda step: _mean(step.groups["all_one"])),
    Metric("time_limit_rate", "share of the graded completions whose program exceeded a time limit",
        lambda step: (step.graded["verdict"] == Verdict.TIME_LIMIT).mean()),
    Metric("reward_errors", "completions on which compute_reward raised, took too long or returned no number",
        lambda step: int((step.rows["verdict"] == Verdict.REWARD_ERROR).sum()), INT),
    Metric("groups_refilled",
        "with `refill` or `first_completions`: groups sampled in place of others without a signal",
        lambda step: max(0, step.groups.height - step.settings.problems_per_step)
            if step.settings is not None and (step.settings.refill > 1 or step.settings.first_completions) else None,
        INT),
    Metric("tokens_without_signal", "share of the sampled tokens in groups without a signal",
        lambda step: int(step.groups.filter(~pl.col("trained"))["tokens"].sum()) / total
            if (total := int(step.groups["tokens"].sum())) else None),
    Metric("tokens_prompt", "prompt tokens: each group's prompt once, and the environment's messages between turns",
        lambda step: int(step.groups["prompt"].sum()) + int(step.turns[ENVIRONMENT].sum()), INT),
    Metric("tokens_prompt_cached",
        "cached prompt tokens: the prompt of each group's other completions, and what later turns repeat",
        lambda step: int(step.rows["prompt_tokens"].list.len().sum()) - int(step.groups["prompt"].sum())
            + int(step.turns[KEPT].sum()), INT),
    Metric("tokens_completion", "completion tokens sampled", lambda step: int(step.received["tokens"].sum()), INT),
    Metric("tokens_training", "prompt and completion tokens trained on, once per epoch",
        lambda step: (step.settings.epochs_per_rollout_batch if step.settings is not None else 1) * int(
            step.rows.select(
                "trained",
                tokens=pl.col("prompt_tokens").list.len() + pl.col("completion_tokens").list.len()
                + step.turns[ENVIRONMENT] + step.turns[REPEATED],
            ).filter("trained")["tokens"].sum()
        ), INT),
    Metric("suspicious", "programs with a `suspicion`",
        lambda step: int(step.rows["suspicion"].is_not_null().sum()), INT),
    Metric("holdback_checked", "passing programs that also ran on the tests held back (`holdback`)",
        lambda step: int(step.rows["passes_held_back"].count()) or None, INT),
    Metric("holdback_gap", "share of these programs that fail a test held back",
        lambda step: None if (passing := _mean(step.rows["passes_held_back"].drop_nulls())) is None else 1 - passing),
    Metric("mean_turns", "with several turns: answers per completion",
        lambda step: _mean(step.turns["turns"].drop_nulls())),
    Metric("mended_rate", "share of the graded completions that pass all tests with a later answer than the first",
        lambda step: _mean(step.turns["later_passed"].drop_nulls())),
    Metric("replies_failed", "completions left out because a program could not be run for a reply",
        lambda step: int(step.turns["lost_reply"].sum()) if step.turns["turns"].count() else None, INT),
)

UPDATE_METRICS: tuple[Metric[UpdatedStep], ...] = (
    Metric("n_datums", "sequences trained on", lambda step: step.result.n_datums, INT),
    Metric("n_tokens", "completion tokens trained on", lambda step: step.result.n_tokens, INT),
    Metric("loss",
        "`loss_fn` before each optimizer step, summed over completion tokens as Tinker defines it; with several "
        "epochs the mean",
        lambda step: step.result.loss),
    Metric("kl_sample_train",
        "mean over completion tokens of the sampler's minus the trainer's log-probability before each optimizer "
        "step, in nats",
        lambda step: step.result.kl_sample_train),
    Metric("lr", "the step's learning rate", lambda step: step.learning_rate),
    Metric("seed", "the run's seed", lambda step: step.seed, INT),
    _seconds("sample", "of sampling"),
    _seconds("score",
        "of scoring after the last group was sampled (`refill` and `first_completions` grade while sampling)"),
    _seconds("train", "of the update"),
    _seconds("save", "of saving the states that the commit names"),
    _seconds("step", "of the whole step"),
    Metric("n_updates", "optimizer steps of the update", lambda step: len(step.result.steps), INT),
    Metric("ratio_mean",
        "mean importance ratio (trainer to sampler; gspo: of the sequence) over completion tokens, before each "
        "optimizer step",
        lambda step: step.result.ratio_mean),
    Metric("ratio_max", "the largest of these ratios", lambda step: step.result.ratio_max),
    Metric("clipped_share", "share of the completion tokens that the loss clipped",
        lambda step: step.result.clipped_share),
    Metric("grad_norm",
        "largest gradient norm of the step, before clipping (Tinker sends it where `grad_clip_norm` is set)",
        lambda step: step.result.grad_norm),
    Metric("sandbox_faults",
        "failed sandbox requests since the previous step, in this process; `sandbox_faults/ADDRESS` has those of one "
        "server, if any",
        lambda step: sum(step.sandbox_faults.values()), INT),
    Metric("kl_base",
        "KL to the base model, estimate k1: mean of the sampler's minus the base model's log-probability, in nats, "
        "over the tokens of `base_logprobs`",
        lambda step: step.result.kl_base and step.result.kl_base[0]),
    Metric("signal_expected",
        "with `selection=adaptive`: expected share of groups with a signal (observed: 1 - groups_skipped / "
        "groups_total)",
        lambda step: step.forecast and step.forecast.signal),
    Metric("problems_seen", "problems with results in the earlier steps that the selection used",
        lambda step: step.forecast and step.forecast.seen, INT),
    Metric("problems_solved",
        "problems that looked solved (expected pass rate above 95%)",
        lambda step: step.forecast and step.forecast.solved, INT),
    Metric("problems_hopeless", "problems that looked hopeless (below 5%)",
        lambda step: step.forecast and step.forecast.hopeless, INT),
    Metric("evidence_half_age", "selection: steps after which results count half",
        lambda step: step.forecast and step.forecast.half_age, INT),
    Metric("cost_usd", "cost of the step's tokens in USD, training included, if known and billed",
        lambda step: step.cost_usd),
    Metric("kl_base_k3", "`kl_base` by estimate k3, which is never negative",
        lambda step: step.result.kl_base and step.result.kl_base[1]),
    Metric("tokens_base", "tokens that the base model read for `kl.base_every`", lambda step: step.base_tokens, INT),
    Metric("time_base_s", "seconds of the base model's log-probabilities",
        lambda step: round(step.seconds["base"], 3) if "base" in step.seconds else None),
)
# fmt: on

METRICS: tuple[Metric[Any], ...] = (*ROLLOUT_METRICS, *UPDATE_METRICS)


def rollout_metrics(rollouts: pl.DataFrame, settings: "TrainSettings | None" = None) -> dict[str, Any]:
    """Returns the value of each of ROLLOUT_METRICS, by its name, for a step's scored rollouts (ROLLOUT_SCHEMA).
    `settings` are the run's. Without them no group replaced another one, and the update is one epoch."""
    lengths = rollouts.select("stop_reason", tokens=pl.col("completion_tokens").list.len().cast(pl.Int64))
    low, high = pl.col("reward").min(), pl.col("reward").max()
    groups = rollouts.group_by("group_index").agg(
        pl.col("trained").any(),
        all_zero=((low == high) & (high <= 0)).fill_null(False),  # null: no completion has a reward
        all_one=((low == high) & (low >= 1)).fill_null(False),
        prompt=pl.col("prompt_tokens").first().list.len().cast(pl.Int64),
        tokens=pl.col("completion_tokens").list.len().cast(pl.Int64).sum(),
    )
    n_turns = pl.col("turns").list.len()  # null if the run has one turn only
    # The verdict on the last answer that the environment was to reply to.
    last_check = pl.col("turns").list.last().struct.field("check")
    is_graded = pl.col("reward").is_not_null() & pl.col("turns").is_not_null()
    step = ScoredRollouts(
        rollouts,
        graded=rollouts.select(pl.exclude(TOKENS_AND_TEXTS)).filter(pl.col("reward").is_not_null()),
        logprobs=rollouts["logprobs"].drop_nulls(),
        advantages=rollouts.select("trained", "advantage").filter("trained")["advantage"],
        received=lengths.filter(pl.col("stop_reason") != NO_COMPLETION).sort("tokens"),  # for quantiles
        repeats=group_repeats(rollouts),
        groups=groups,
        turns=rollouts.select(
            turns=n_turns,
            lost_reply=last_check.is_in(UNGRADED).fill_null(False),  # an outage, or a checker that failed
            later_passed=pl.when(is_graded).then((n_turns > 1) & (pl.col("verdict") == Verdict.PASSED)),  # else null
            **TURN_TOKENS,
        ),
        settings=settings,
    )
    return {metric.name: metric.compute(step) for metric in ROLLOUT_METRICS}
