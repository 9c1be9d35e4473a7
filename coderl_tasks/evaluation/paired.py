"""Two evaluations compared on the problems graded in both: paired, so that the problems' own difficulty cancels out."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import polars as pl

from coderl_tasks import stats
from coderl_tasks.errors import DataError
from coderl_tasks.evaluation.policy import COMPLETIONS, TINKER_SCHEME
from coderl_tasks.stats import Difference, Interval

# What of an evaluation's summary says what was evaluated, and how; USUAL values are left out of a summary.
SIDE_KEYS = ("policy", "step", "temperature", "max_tokens", "n")
USUAL = {"n_samples": 1, "top_p": 1.0, "max_turns": 1, "max_tool_calls": 0}
SERVICE_KEY = "served_by"  # and what answered, where that is known
ROUNDING = 1e-9  # between differences of shares that are equal
MOST_IN_COMMON = 0.9  # of the smaller evaluation's problems; below, the data differ (a few may be ungraded)


def paired_outcomes(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """One row per problem graded in both rollout frames: problem_id, split, before, after (the share that passed)."""
    keys = ["split", "problem_id"]
    return _outcomes(before, "before").join(_outcomes(after, "after"), on=keys).sort(keys)


def paired_difference(pairs: pl.DataFrame) -> Difference:
    """after minus before with its 95% interval: Newcombe's for one completion per problem, else the bootstrap that
    draws problems, unless all differ by the same. Raises DataError if there is no pair."""
    if pairs.is_empty():
        raise DataError("the two evaluations share no graded problem")
    sides = list(pairs.select("before", "after").iter_rows())
    if _is_one_each(pairs):
        cells = Counter(sides)
        return stats.paired_proportion_difference(cells[1.0, 1.0], cells[1.0, 0.0], cells[0.0, 1.0], cells[0.0, 0.0])
    # Shares of several completions fall into no cell of a table of four.
    deltas = [after - before for before, after in sides]
    estimate, interval = math.fsum(deltas) / len(deltas), stats.clustered_bootstrap(deltas)
    # Where all are equal, so are all draws of the bootstrap: it would claim certainty. Instead, as many problems as
    # Wilson's interval allows may differ by all that they can; of zeros that is what Newcombe's interval says.
    if max(deltas) - min(deltas) < ROUNDING:
        others = stats.wilson_interval(0, len(deltas)).high
        interval = Interval(estimate - others * (1 + estimate), estimate + others * (1 - estimate))
    return Difference(estimate, max(-1.0, interval.low), min(1.0, interval.high))


def share_interval(passed: Sequence[float]) -> Interval:
    """The 95% interval of a mean of shares over problems: Wilson's for one completion each, else the bootstrap's."""
    if all(share in (0.0, 1.0) for share in passed):
        return stats.wilson_interval(round(sum(passed)), len(passed))
    interval = stats.clustered_bootstrap(passed)
    return Interval(max(0.0, interval.low), min(1.0, interval.high))


def changed(pairs: pl.DataFrame) -> dict[str, Any]:
    """Problems that did better (`gained`) and worse (`lost`); of one completion each, McNemar's p (`mcnemar_p`)."""
    gained = int((pairs["after"] > pairs["before"]).sum())
    lost = int((pairs["after"] < pairs["before"]).sum())
    # Of shares of several completions the counts say less than the difference's interval does.
    p_value = {"mcnemar_p": stats.mcnemar(gained, lost)} if _is_one_each(pairs) else {}
    return {"gained": gained, "lost": lost, **p_value}


def changed_text(found: Mapping[str, Any]) -> str:
    """What `changed` says, for the end of a line."""
    return f" ({found['gained']} gained, {found['lost']} lost{p_text(found)})"


def p_text(found: Mapping[str, Any]) -> str:
    """The p-value in what `changed` says, to follow its counts; empty without one."""
    return f", p = {found['mcnemar_p']:.2g} (McNemar, exact)" if "mcnemar_p" in found else ""


def _is_one_each(pairs: pl.DataFrame) -> bool:
    return all(share in (0.0, 1.0) for share in pairs["before"].to_list() + pairs["after"].to_list())


@dataclass(frozen=True, slots=True)
class Noise:
    """How noisy the Pass@1 of an evaluation is, as `stats.pairs_needed` takes it."""

    problems: int  # number of problems of the evaluation that says so
    within: float  # variance p * (1 - p) of one completion's success on its problem, as a mean over problems
    losses: float | None  # share of problems that a better policy fails and a worse one solves; None: not known
    explanation: str  # a sentence for people: what `within` and `losses` were estimated from


def sampling_noise(rollouts: pl.DataFrame, compare: Mapping[str, Any] | None = None) -> Noise:
    """Estimates, from the `rollouts` of one evaluation, how much the Pass@1 of another one will vary by chance: by the
    problems with several completions if there are any, else by `compare`, what the evaluation's summary says of its
    comparison with an earlier one, else by an upper bound. Raises DataError if nothing was graded."""
    graded = rollouts.filter(pl.col("correctness_score").is_not_null())
    if graded.is_empty():
        raise DataError("nothing of the evaluation was graded")
    n, passed = pl.col("n"), pl.col("passed")
    is_right = pl.col("correctness_score") == 1.0
    by_problem = graded.group_by("split", "problem_id").agg(passed=is_right.sum(), n=pl.len())
    problems, repeated = by_problem.height, by_problem.filter(n > 1)
    if not repeated.is_empty():  # the unbiased variance of their successes
        within = float(repeated.select((passed * (n - passed) / (n * (n - 1))).mean()).item())
        why = f"A problem's own chance was measured on several completions: their variance is {within:.3f}."
        return Noise(problems, within, losses=None, explanation=why)
    if compare and {"gained", "lost", "n", "to"} <= compare.keys():
        # The better policy lost the smaller number. One added to it, and two to all, keep the share above 0.
        losses = (min(compare["gained"], compare["lost"]) + 1) / (compare["n"] + 2)
        why = f"From the comparison with {compare['to']}: {compare['gained']} problems gained, {compare['lost']} lost."
        # Single completions do not show which changes were chance. Assume that none were: then no variance is left that
        # more completions per problem would average out.
        return Noise(problems, within=0.0, losses=losses, explanation=why)
    # The most that a pass rate allows: each problem is solved with the same chance. One pass and one failure more: if
    # ten of ten passed, the eleventh may still fail.
    pass_rate = (int(by_problem["passed"].sum()) + 1) / (problems + 2)
    why = (
        "One completion per problem says nothing of a problem's own chance: its noise is taken to be the most it can "
        "be. An evaluation with n_samples=4 temperature=0.7, say, measures it."
    )
    return Noise(problems, within=pass_rate * (1 - pass_rate), losses=None, explanation=why)


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """Several runs of one configuration."""

    n: int  # problems that all graded
    mean: Difference  # with the 95% interval for other runs and other problems
    by_seed: list[float]  # each run's own mean
    spread: float  # their standard deviation


def over_seeds(after: Sequence[pl.DataFrame], before: Sequence[pl.DataFrame] | None = None) -> OverSeeds:
    """Pass@1 of the evaluations `after` (rollouts, one per seed), or with `before` how much higher it is than there,
    seed by seed. Raises DataError for fewer than two seeds, or two problems that all of them graded."""
    outcomes = [_outcomes(side, str(number)) for number, side in enumerate([*after, *(before or [])])]
    shared = reduce(lambda frame, other: frame.join(other, on=["split", "problem_id"]), outcomes) if outcomes else None
    if shared is None or len(after) < 2 or shared.height < 2:
        raise DataError("several seeds are summarised of two or more evaluations, with two or more problems in common")
    shared = shared.sort("split", "problem_id")
    scores = [shared[str(number)].to_list() for number in range(len(outcomes))]
    if before is not None:
        pairs = zip(scores[: len(after)], scores[len(after) :], strict=True)
        scores = [[right - left for right, left in zip(*pair, strict=True)] for pair in pairs]
    means = [math.fsum(row) / len(row) for row in scores]
    return OverSeeds(shared.height, stats.crossed_interval(scores), means, statistics.stdev(means))


def compared(
    before: pl.DataFrame | None, after: pl.DataFrame, *, to: str, sides: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> dict[str, Any]:
    """What a summary says of the comparison with the earlier evaluation `to`, whose rollouts are `before`; `sides` are
    the summaries of both. {compare: {to, difference, ci_low, ci_high, n, before, after} and what `changed` says}: n
    problems were graded in both, before and after have the SIDE_KEYS of each. Empty where no problem was."""
    if before is None or (pairs := paired_outcomes(before, after)).is_empty():
        return {}
    difference = dict(zip(("difference", "ci_low", "ci_high"), paired_difference(pairs), strict=True))
    earlier, later = (
        {key: side.get(key) for key in SIDE_KEYS} | {key: side[key] for key in (*USUAL, SERVICE_KEY) if key in side}
        for side in sides
    )
    return {"compare": {"to": to, **difference, **changed(pairs), "n": pairs.height, "before": earlier, "after": later}}


def side_text(side: Mapping[str, Any]) -> str:
    """What was evaluated and how, of a summary or of its SIDE_KEYS, in a line."""
    step = side.get("step")
    named = [str(side["policy"])] if side.get("policy") else []
    # -1 is the base model, but also a path of saved weights of which nothing else is known.
    if step is not None and step >= 0:
        named.append(f"step {step}")
    elif named and not named[0].startswith((TINKER_SCHEME, COMPLETIONS)):
        named.append("not trained")
    settings = [f"{key} {side[key]:g}" for key in ("temperature", "max_tokens", *USUAL) if side.get(key) is not None]
    return ", ".join([*named, *settings, f"n={side['n']}"])


def unlike(before: Mapping[str, Any], after: Mapping[str, Any], n: int) -> str | None:
    """What besides the policies differs between two evaluations with `n` problems in common, by their summaries;
    None if nothing does. That one was made on some of the other's problems does not count: they are paired."""
    differing = []
    for key in ("temperature", "max_tokens", *USUAL):
        values = before.get(key, USUAL.get(key)), after.get(key, USUAL.get(key))
        if None not in values and values[0] != values[1]:
            differing.append(f"{key} {values[0]:g} against {values[1]:g}")
    services = [side[SERVICE_KEY] for side in (before, after) if side.get(SERVICE_KEY) is not None]
    if len(set(services)) == 2:
        differing.append(" against ".join(map(str, services)))
    if n < MOST_IN_COMMON * min(before["n"], after["n"]):
        differing.append(f"{n} problems in common of {before['n']} and {after['n']}")
    return f"the evaluations are unlike in more than the policy: {'; '.join(differing)}" if differing else None


def _outcomes(rollouts: pl.DataFrame, name: str) -> pl.DataFrame:
    # An infra error says nothing of the policy. The join of both sides then leaves the problem out of either.
    graded = rollouts.filter(pl.col("correctness_score").is_not_null())
    return graded.group_by("split", "problem_id").agg((pl.col("correctness_score") == 1.0).mean().alias(name))
