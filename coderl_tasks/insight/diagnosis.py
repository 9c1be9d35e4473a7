"""Did the run learn? The smoke-test protocol as checks that pass or fail; `warning_signs.py` says what is off.

1. The mean format rate after the first 5 steps is over 95%.
2. The mean reward trends up: Mann-Kendall, one-sided, p < 0.05, over all steps. It fails where it falls as clearly, or
   has not risen in 30 steps: fewer steps of a run that learns may not show it through the noise.
3. Pass@1 is above the baseline. Below it, it fails only where the paired interval excludes zero.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import polars as pl

from coderl_tasks.insight.comparison import compare_evals
from coderl_tasks.insight.record import MAX_POINTS, RunRecord
from coderl_tasks.insight.tables import Column, Table, Tag

WARM_UP_STEPS = 5
FORMAT_THRESHOLD, TREND_P = 0.95, 0.05
TREND_MIN_STEPS, TREND_FAILS_FROM = 8, 30


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
    """One row per check; why it stands so is too long for the console."""
    return Table(
        (
            Column("", lambda check: check.mark, style="name"),
            Column("check", lambda check: check.name, style="name"),
            Column("value", lambda check: check.value, style="nowrap"),
            Column("wanted", lambda check: check.threshold, style="muted"),
            Column("why", lambda check: check.explanation, style="muted text", media="markdown html"),
        ),
        checks,
        "stacked",
    )


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
    """Whether the mean reward rises significantly. A run too short to tell is neither passed nor failed (None)."""
    name, threshold = "mean reward rises", f"p < {TREND_P} (Mann-Kendall, one-sided)"
    rewards = _values(metrics, "mean_reward")
    if len(rewards) < TREND_MIN_STEPS:
        return Check(name, None, "–", threshold, f"needs {TREND_MIN_STEPS} steps, has {len(rewards)}")
    width = -(-len(rewards) // MAX_POINTS)
    # `trend` costs the square of the number of points, so a long run is tested on means of neighbouring steps.
    parts = [rewards[start : start + width] for start in range(0, len(rewards), width)]
    slope, p_up = trend([sum(part) / len(part) for part in parts])
    tenth = max(1, len(rewards) // 10)
    first, last = sum(rewards[:tenth]) / tenth, sum(rewards[-tenth:]) / tenth
    explanation = (
        f"slope {slope / width * 10:+.3f} per 10 steps (Theil-Sen); mean of the first {tenth} steps {first:.3f}, "
        f"of the last {tenth} {last:.3f}"
    )
    passed: bool | None = p_up < TREND_P and slope > 0
    if not passed and len(rewards) < TREND_FAILS_FROM and p_up <= 1 - TREND_P:
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
        f"{overall.before:.1%} to {overall.after:.1%}, "
        f"95% interval {low * 100:+.1f} to {high * 100:+.1f} points; {weight}"
    )
    passed = True if overall.difference > 0 else None if high > 0 else False
    return Check(name, passed, f"{overall.difference * 100:+.1f} points", threshold, explanation)


def _values(metrics: pl.DataFrame, name: str) -> list[float]:
    return metrics[name].cast(pl.Float64).drop_nulls().to_list() if name in metrics.columns else []


def trend(values: Sequence[float]) -> tuple[float, float]:
    """The Theil-Sen slope (the median change per step) of equally spaced values, and the one-sided p value of "not
    rising" by the Mann-Kendall test (small: rising).

    Mann, "Nonparametric tests against trend" (1945); Kendall, "Rank Correlation Methods" (1975); Sen, "Estimates of the
    regression coefficient based on Kendall's tau" (1968). Both assume independent noise per step: true of mean rewards
    over freshly drawn problems, not of smoothed curves. Time and memory grow with the square of the number of values:
    average long series first.
    """
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
