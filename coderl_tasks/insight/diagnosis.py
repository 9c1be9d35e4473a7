"""Did the run learn? Two evaluations compared, paired by problem, and the smoke-test protocol as checks:

1. The mean format rate after the first 5 steps is over 95%.
2. The mean reward trends up: Mann-Kendall, one-sided, p < 0.05, over all steps. It fails where it falls as clearly, or
   has not risen in 30 steps: fewer steps of a run that learns may not show it through the noise.
3. Pass@1 is above the baseline. Below it, it fails only where the paired interval excludes zero.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl

from coderl_tasks.errors import DataError
from coderl_tasks.evaluation import paired
from coderl_tasks.insight.drawing import Plot, markdown
from coderl_tasks.insight.plots import pass_at_1_plot
from coderl_tasks.insight.record import MAX_POINTS, EvalRecord, RunRecord, is_run
from coderl_tasks.insight.tables import Column, Estimate, Table, Tag, markdown_text
from coderl_tasks.insight.viewer_link import in_markdown
from coderl_tasks.journal.atomic import scan_parquet
from coderl_tasks.settings import HUB_DATASET
from coderl_tasks.stats import CONFIDENCE

WARM_UP_STEPS = 5
FORMAT_THRESHOLD, TREND_P = 0.95, 0.05
TREND_MIN_STEPS, TREND_FAILS_FROM = 8, 30
FEWEST_RESAMPLED = 20  # problems with several completions each, below which a bootstrap's interval proves nothing


def weak_splits(splits: Collection[str], dataset: str) -> dict[str, str]:
    """Those of `splits` whose passes prove less, with the reason: of the hub's data set, or a copy under its name."""
    if "codeforces" not in splits or Path(dataset).name != Path(HUB_DATASET).name:
        return {}
    return {"codeforces": "DeepCoder's rows carry the public samples only, so a pass there is weak evidence"}


@dataclass(frozen=True, slots=True)
class PairedPassAt1:
    """Pass@1 of both sides on `n` shared problems, and their paired `difference` with its 95% interval. `changed`
    counts the problems `gained` and `lost`, and has mcnemar_p with one completion per problem."""

    n: int
    before: Estimate
    after: Estimate
    difference: float
    ci_low: float
    ci_high: float
    changed: Mapping[str, Any]

    def outcome(self, before: str, after: str) -> str:
        """What the interval says, in a sentence about the sides of these names."""
        p = self.changed.get("mcnemar_p")
        if p is None and self.n < FEWEST_RESAMPLED:
            return f"{self.n} problems in common are too few to tell which of {before} and {after} is better."
        if self.ci_low <= 0 <= self.ci_high:
            return f"The interval includes 0: these problems do not show which of {before} and {after} is better."
        if p is not None and p >= 1 - CONFIDENCE:
            return f"The interval excludes 0 narrowly, p does not: {before} and {after} may be equally good."
        does = ("solves more", "solves fewer") if p is not None else ("passes more often", "passes less often")
        which, on = does[self.difference < 0], "of these problems" if p is not None else "on these problems"
        return f"The interval excludes 0: {after} {which} {on} than {before}."

    @property
    def p_text(self) -> str:
        return paired.p_text(self.changed)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two evaluations and their paired `results`, overall ("all", the first) and by split. `pairs` has per shared
    problem split, problem_id, and the share that passed before and after. `sides` says what was evaluated and, of an
    evaluation with further problems, its own Pass@1. `warning` says what else differs."""

    before: EvalRecord
    after: EvalRecord
    results: dict[str, PairedPassAt1]
    pairs: pl.DataFrame
    sides: tuple[str, str]
    warning: str | None

    @property
    def overall(self) -> PairedPassAt1:
        return self.results["all"]

    @property
    def rates(self) -> dict[str, tuple[Estimate, Estimate]]:
        """Pass@1 of both sides on the shared problems, as `results`."""
        return {name: (result.before, result.after) for name, result in self.results.items()}


def compare_evals(before: EvalRecord | None, after: EvalRecord | None) -> Comparison | None:
    """None if no problem was graded in both, or if an evaluation or its rollouts are missing."""
    if before is None or after is None or before.rollouts is None or after.rollouts is None:
        return None
    pairs = paired.paired_outcomes(_rollouts(before), _rollouts(after))
    if pairs.is_empty():
        return None

    def pass_at_1(split: str, pairs: pl.DataFrame, recorded: tuple[float, float, float] | None = None) -> PairedPassAt1:
        """The comparison on `pairs`, the shared problems of `split`; `recorded`: the difference, low, high."""
        rates = []
        for record, passed in ((before, pairs["before"]), (after, pairs["after"])):
            result = _results_by_split(record).get(split)
            if result is not None and result["n"] == len(passed):  # it graded no other problem of the split
                rates.append(_estimate(result))
            else:
                rates.append(Estimate(sum(passed) / len(passed), *paired.share_interval(passed.to_list())))
        difference, low, high = recorded or paired.paired_difference(pairs)
        return PairedPassAt1(len(pairs), rates[0], rates[1], difference, low, high, paired.changed(pairs))

    # A difference that the run recorded of the same two evaluations is used: a report shows the interval that it
    # showed.
    compare = after.summary.get("compare") or {}
    recorded: Any = [compare.get(key) for key in ("difference", "ci_low", "ci_high")]
    # Evaluations of two runs may have one name, so the folders of evaluations (evals/NAME/rollouts.parquet) must agree.
    is_of_one_run = before.rollouts.parents[1] == after.rollouts.parents[1]
    if compare.get("to") != before.name or not is_of_one_run or None in recorded:
        recorded = None
    results = {"all": pass_at_1("all", pairs, recorded)}
    for split in pairs["split"].unique(maintain_order=True):
        results.setdefault(split, pass_at_1(split, pairs.filter(split=split)))  # a split named "all" is left out
    sides = (_side_text(before, pairs.height), _side_text(after, pairs.height))
    warning = paired.unlike(before.summary, after.summary, pairs.height)
    return Comparison(before, after, results, pairs, sides, warning)


def _side_text(record: EvalRecord, shared: int) -> str:
    text = paired.side_text(record.summary | {"step": record.step})
    if record.summary["n"] == shared:
        return text
    low, high = record.interval
    return f"{text}, Pass@1 on all of these {record.pass_at_1:.1%} [{low:.1%}, {high:.1%}]"


def comparison_table(
    comparison: Comparison, weak: Collection[str] = (), sides: tuple[str, str] | None = None
) -> Table[tuple[str, PairedPassAt1]]:
    """A row overall and per split, those in `weak` with a star; `sides` are headings in place of names."""
    before, after = sides or (comparison.before.name, comparison.after.name)

    def change(row: tuple[str, PairedPassAt1]) -> Estimate:
        return Estimate(row[1].difference, row[1].ci_low, row[1].ci_high, signed=True)

    interval = "paired 95% interval"
    columns: tuple[Column[tuple[str, PairedPassAt1]], ...] = (
        Column("split", lambda row: row[0] + ("*" if row[0] in weak else ""), style="name"),
        Column("problems", lambda row: row[1].n, ",", "num", short="n"),
        # The console is narrow, and markdown has both rates in the plot above.
        Column(before, lambda row: row[1].before, "", "num", media="console html", short="before"),
        Column(after, lambda row: row[1].after, "", "num", media="console html", short="after"),
        Column("points, paired", change, "", "num", short="paired difference", interval_heading=interval),
    )
    return Table(columns, [*comparison.results.items()], "stacked")


def compared_lines(sides: Sequence[Sequence[EvalRecord]]) -> list[str]:
    """Lines about one side, or two (A and B) and how they compare; a side has an evaluation per seed. DataError if the
    sides share no problem."""
    lines = []
    for number, records in enumerate(sides):
        for record in records:
            low, high = record.interval
            letter = chr(ord("A") + number) if len(sides) > 1 else " "
            policy = paired.side_text(record.summary | {"step": record.step})
            lines.append(f"{letter} {record.name}: Pass@1 {record.pass_at_1:.1%} [{low:.1%}, {high:.1%}]  {policy}")
    if len(sides) == 2 and len(sides[0]) == len(sides[1]) == 1:
        return lines + _lines_by_split(sides[0][0], sides[1][0])
    return lines + _lines_over_seeds(sides)


def _lines_by_split(side_a: EvalRecord, side_b: EvalRecord) -> list[str]:
    comparison = compare_evals(side_a, side_b)
    if comparison is None:
        for record in (side_a, side_b):
            _rollouts(record)  # raises DataError, which names the evaluation, if its rollouts are missing
        raise DataError("the two evaluations share no graded problem")
    lines = []
    for split, result in comparison.results.items():
        interval = f"[{100 * result.ci_low:+.1f}, {100 * result.ci_high:+.1f}]"
        change = f"{100 * result.difference:+.1f} points {interval}{paired.changed_text(result.changed)}"
        lines.append(f"B - A, {split}: {change} on {result.n} problems")
    return lines + ([f"warning: {comparison.warning}"] if comparison.warning else [])


def _lines_over_seeds(sides: Sequence[Sequence[EvalRecord]]) -> list[str]:
    """The mean over seeds of Pass@1, or of the difference B - A per seed, and what else differs in a pair."""
    n_seeds = max(map(len, sides))
    # A side with a single evaluation is compared with each seed of the other.
    records = [[*side] * n_seeds if len(side) == 1 else [*side] for side in sides]
    side_a, *side_b = ([_rollouts(record) for record in side] for side in records)
    warnings: list[str | None] = []
    if side_b:
        what, sign, lowest = "B - A, seed by seed", "+", -1.0
        seeds = paired.over_seeds(after=side_b[0], before=side_a)
        in_common = (paired.paired_outcomes(*frames).height for frames in zip(side_a, side_b[0], strict=True))
        warnings = [
            paired.unlike(before.summary, after.summary, n)
            for before, after, n in zip(*records, in_common, strict=True)
        ]
    else:
        what, sign, lowest = "Pass@1", "", 0.0
        seeds = paired.over_seeds(after=side_a)

    def percent(value: float) -> str:
        """`value` in hundredths. With few seeds an interval may reach beyond what a share or a difference can be."""
        return f"{100 * min(1.0, max(lowest, value)):{sign}.1f}"

    mean, low, high = map(percent, seeds.mean)
    by_seed = " ".join(map(percent, seeds.by_seed))
    line = (
        f"{what}: {by_seed}; mean {mean} [{low}, {high}] for other seeds and "
        f"problems, standard deviation between seeds {100 * seeds.spread:.1f}, on {seeds.n} problems"
    )
    return [line, *(f"warning: {warning}" for warning in dict.fromkeys(warnings) if warning)]


def evaluation_markdown(record: EvalRecord, before: EvalRecord | None = None, *, dataset: str = "") -> str:
    """About the evaluation `record`, made on `dataset`, and `before` if both graded some of the same problems."""
    summary = record.summary
    low, high = record.interval
    columns: tuple[Column[tuple[str, Any]], ...] = (  # a row is a split and its results in the summary
        Column("split", lambda row: row[0]),
        Column("problems", lambda row: row[1]["n"], number_format=",", style="num"),
        Column("Pass@1", lambda row: _estimate(row[1]), style="num", interval_heading="95% interval"),
    )
    facts = [f"{split}: {why}" for split, why in weak_splits(summary.get("by_split", {}), dataset).items()]
    if summary.get("mean_reward") is not None:
        facts.append(f"mean reward {summary['mean_reward']:.3f}")
    rates = {"format ok": "format_rate", "truncated": "truncated_rate"}
    facts += [f"{label} {summary[key]:.1%}" for label, key in rates.items() if summary.get(key) is not None]
    facts += [f"infra errors {summary.get('infra_errors', 0)}", f"policy `{summary.get('policy', '')}`"]
    parts: list[Plot | Table[Any] | str | None] = [
        f"# Evaluation: {markdown_text(record.name)}",
        f"**Pass@1 {record.pass_at_1:.1%}** [{low:.1%}, {high:.1%}] on {summary['n']} problems",
        Table(columns, [(split, result) for split, result in _results_by_split(record).items() if result]),
        "\n".join(f"- {fact}" for fact in facts),
    ]
    if before is not None and (comparison := compare_evals(before, record)) is not None:
        changed, sides = comparison.overall.changed, zip((before.name, record.name), comparison.sides, strict=True)
        parts += [
            f"## Against {markdown_text(before.name)}",
            pass_at_1_plot(comparison.rates),
            comparison_table(comparison),
            f"{changed['gained']} problems gained, {changed['lost']} lost{comparison.overall.p_text}.",
            "\n".join(f"- {markdown_text(name)}: {markdown_text(policy)}" for name, policy in sides),
            comparison.warning and f"**Warning: {markdown_text(comparison.warning)}.**",
        ]
    run = record.rollouts.parents[2] if record.rollouts is not None else None  # RUN/evals/NAME/rollouts.parquet
    if run is not None and is_run(run):
        parts.append(f"Its problems and completions: {in_markdown(run, 'eval', record.name)}")
    return markdown(parts)


def _results_by_split(record: EvalRecord) -> dict[str, Mapping[str, Any]]:
    """The recorded n, pass_at_1, ci_low and ci_high of "all" problems, the first key, and of each split."""
    return {"all": record.summary, **record.summary.get("by_split", {})}


def _estimate(result: Mapping[str, Any]) -> Estimate:
    return Estimate(result["pass_at_1"], result["ci_low"], result["ci_high"])


def _rollouts(record: EvalRecord) -> pl.DataFrame:
    if record.rollouts is None:
        raise DataError(f"evaluation {record.name} has no rollouts.parquet")
    return scan_parquet(record.rollouts).select("problem_id", "split", "correctness_score").collect()


@dataclass(frozen=True, slots=True)
class Check:
    """`value` and `threshold` as people read them; `passed` is None where it cannot be decided yet."""

    name: str
    passed: bool | None
    value: str
    threshold: str
    explanation: str

    @property
    def mark(self) -> Tag:
        return {True: Tag("pass", "good"), False: Tag("FAIL", "bad"), None: Tag("undecided", "warn")}[self.passed]


def smoke_checks(run: RunRecord) -> list[Check]:
    return [check_format(run.metrics), check_reward_trend(run.metrics), check_pass_at_1(run)]


def checks_table(checks: Sequence[Check]) -> Table[Check]:
    columns: tuple[Column[Check], ...] = (
        Column("", lambda check: check.mark, style="name"),
        Column("check", lambda check: check.name, style="name"),
        Column("value", lambda check: check.value, style="nowrap"),
        Column("wanted", lambda check: check.threshold, style="muted"),
        Column("why", lambda check: check.explanation, style="muted text", media="markdown html"),  # a long text
    )
    return Table(columns, checks, "stacked")


def check_format(metrics: pl.DataFrame) -> Check:
    name, threshold = "format rate", f"> {FORMAT_THRESHOLD:.0%} after step {WARM_UP_STEPS - 1}"
    later = _values(metrics.filter(pl.col("step") >= WARM_UP_STEPS), "format_rate")
    if not later:
        return Check(name, None, "–", threshold, f"needs more than {WARM_UP_STEPS} steps, has {len(metrics)}")
    mean = sum(later) / len(later)
    below = sum(rate <= FORMAT_THRESHOLD for rate in later)
    explanation = (
        f"mean of steps {WARM_UP_STEPS} to {metrics['step'][-1]}; lowest {min(later):.1%}, "
        f"{below} of {len(later)} steps at or below {FORMAT_THRESHOLD:.0%}"
    )
    return Check(name, mean > FORMAT_THRESHOLD, f"{mean:.1%}", threshold, explanation)


def check_reward_trend(metrics: pl.DataFrame) -> Check:
    name, threshold = "mean reward rises", f"p < {TREND_P} (Mann-Kendall, one-sided)"
    rewards = _values(metrics, "mean_reward")
    if len(rewards) < TREND_MIN_STEPS:
        return Check(name, None, "–", threshold, f"needs {TREND_MIN_STEPS} steps, has {len(rewards)}")
    width = -(-len(rewards) // MAX_POINTS)  # steps per point, rounded up
    # `trend` costs the square of the number of points, so a long run is tested on means of neighbouring steps.
    points = [rewards[start : start + width] for start in range(0, len(rewards), width)]
    slope, p_up = trend([sum(point) / len(point) for point in points])  # the slope is per point, of `width` steps
    tenth = max(1, len(rewards) // 10)
    first, last = sum(rewards[:tenth]) / tenth, sum(rewards[-tenth:]) / tenth
    explanation = (
        f"slope {slope / width * 10:+.3f} per 10 steps (Theil-Sen); mean of the first {tenth} steps {first:.3f}, "
        f"of the last {tenth} {last:.3f}"
    )
    passed: bool | None = p_up < TREND_P and slope > 0
    falls_clearly = p_up > 1 - TREND_P and min(rewards) < max(rewards)  # equal ones have p = 1
    if not passed and len(rewards) < TREND_FAILS_FROM and not falls_clearly:
        passed = None
        explanation += f"; not decided before {TREND_FAILS_FROM} steps, unless it rises or falls clearly"
    return Check(name, passed, f"p = {p_up:.2g}" if p_up > 1e-12 else "p < 1e-12", threshold, explanation)


def check_pass_at_1(run: RunRecord) -> Check:
    name, threshold = "Pass@1 above the baseline", "difference > 0"
    comparison = compare_evals(run.baseline, run.latest)
    if comparison is None:
        return Check(name, None, "–", threshold, "needs a baseline and a later evaluation on the same problems")
    overall = comparison.overall
    low, high = overall.ci_low, overall.ci_high
    weight = "the interval excludes 0" if low > 0 or high < 0 else "the interval includes 0: this may be chance"
    explanation = (
        f"{comparison.after.name} against baseline, paired over {overall.n} problems: "
        f"{overall.before.value:.1%} to {overall.after.value:.1%}, "
        f"95% interval {low * 100:+.1f} to {high * 100:+.1f} points; {weight}"
    )
    passed = True if overall.difference > 0 else None if high > 0 else False
    return Check(name, passed, f"{overall.difference * 100:+.1f} points", threshold, explanation)


def _values(metrics: pl.DataFrame, name: str) -> list[float]:
    return metrics[name].cast(pl.Float64).drop_nulls().to_list() if name in metrics.columns else []


def trend(values: Sequence[float]) -> tuple[float, float]:
    """The Theil-Sen slope (the median change per step) of equally spaced values, and the one-sided p value of "not
    rising" by the Mann-Kendall test (small: rising). Mann, "Nonparametric tests against trend" (1945); Kendall, "Rank
    Correlation Methods" (1975); Sen, "Estimates of the regression coefficient based on Kendall's tau" (1968). Both
    assume independent noise per step: true of mean rewards over freshly drawn problems, not of smoothed curves. Time
    and memory grow with the square of the number of values: average long series first."""
    n = len(values)
    earlier, later = np.triu_indices(n, k=1)
    series = np.asarray(values, dtype=np.float64)
    changes = series[later] - series[earlier]
    score = int(np.sign(changes).sum())
    slope = float(np.median(changes / (later - earlier)))
    ties = sum(t * (t - 1) * (2 * t + 5) for t in Counter(values).values())
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18
    if variance == 0:
        return 0.0, 1.0
    # The score changes in steps of two: the continuity correction subtracts half a step.
    z = (score - math.copysign(1, score)) / math.sqrt(variance) if score else 0.0
    return slope, NormalDist().cdf(-z)
