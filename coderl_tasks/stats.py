"""Intervals, predictions and paired comparisons: pure maths, two-sided and 95% unless told otherwise. Not by
scipy.stats, which takes over a second to import, and whose bootstrap knows no widened percentiles."""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95


class Interval(NamedTuple):
    low: float
    high: float


class Difference(NamedTuple):
    estimate: float
    low: float
    high: float


def wilson_interval(successes: int, n: int) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927); (0, 1) for n = 0. Unlike the textbook p +- 1.96 s it is
    sensible at 0 and n successes and for small n."""
    _check_counts(successes, n)
    if n == 0:
        return Interval(0.0, 1.0)
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half)


@lru_cache(maxsize=4096)  # a profile asks for the same few counts thousands of times
def jeffreys_interval(successes: int, n: int, confidence: float = CONFIDENCE) -> Interval:
    """Jeffreys' interval of a proportion: the equal-tailed interval of its posterior, Beta(successes + 1/2, failures +
    1/2), to 1e-12, with end points 0 and 1 where nothing or all succeeded. Source: Brown, Cai and DasGupta 2001,
    "Interval Estimation for a Binomial Proportion"."""
    from scipy.special import betainc  # a quarter of a second that only a profile needs

    _check_counts(successes, n)

    def quantile(probability: float) -> float:
        # By bisection, not betaincinv: pools have these numbers, and a pool that is made again has to have its bytes,
        # which are a run's pool_sha256. Halves of intervals come out the same where the last bits of betainc differ.
        low, high = 0.0, 1.0
        while high - low > 1e-12:
            middle = (low + high) / 2
            below = betainc(successes + 0.5, n - successes + 0.5, middle) < probability
            low, high = (middle, high) if below else (low, middle)
        return (low + high) / 2

    low = 0.0 if successes == 0 else quantile((1 - confidence) / 2)
    return Interval(low, 1.0 if successes == n else quantile((1 + confidence) / 2))


def log_beta(a: float, b: float) -> float:
    """The logarithm of the beta function. log_beta(a + successes, b + failures) - log_beta(a, b) is that of the
    probability of samples in one order, where the rate is Beta(a, b)."""
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def beta_binomial(successes: int, n: int, alpha: float, beta: float) -> float:
    """P(`successes` of `n` further samples) where the rate is Beta(alpha, beta): what a posterior predicts."""
    _check_counts(successes, n)
    log_ratio = log_beta(alpha + successes, beta + n - successes) - log_beta(alpha, beta)
    return math.comb(n, successes) * math.exp(log_ratio)


def paired_proportion_difference(both: int, only_first: int, only_second: int, neither: int) -> Difference:
    """Second proportion minus first, with its interval, of items that passed on both sides, one or neither. Raises
    ValueError for no item or a negative count. Source: Newcombe 1998, "Improved confidence intervals for the difference
    between binomial proportions based on paired data", method 10: it combines the two Wilson intervals as a root of
    squares, corrected for the correlation of the pairs."""
    n = both + only_first + only_second + neither
    if min(both, only_first, only_second, neither) < 0 or n == 0:
        raise ValueError("a paired difference needs at least one pair and no negative count")
    first, second = both + only_first, both + only_second
    p1, p2 = first / n, second / n
    (low1, high1), (low2, high2) = wilson_interval(first, n), wilson_interval(second, n)
    # Newcombe's correlation of the pairs (0 if a side passed all or none): a positive numerator loses n/2, down to 0.
    product = first * (only_second + neither) * second * (only_first + neither)
    numerator = float(both * neither - only_first * only_second)
    phi = (max(numerator - n / 2, 0.0) if numerator > 0 else numerator) / math.sqrt(product) if product else 0.0
    difference = p2 - p1

    def root_of_squares(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))  # below 0 only by rounding

    low = difference - root_of_squares(p2 - low2, high1 - p1)
    high = difference + root_of_squares(high2 - p2, p1 - low1)
    return Difference(difference, max(-1.0, low), min(1.0, high))


def mcnemar(gained: int, lost: int) -> float:
    """The two-sided p-value of McNemar's exact test, 1.0 where no pair differs. ValueError for a negative count."""
    if gained < 0 or lost < 0:
        raise ValueError(f"{gained} gained and {lost} lost make no sense")
    n, fewer = gained + lost, min(gained, lost)
    # Of whole numbers, and so exact: the tail of a binomial distribution with p = 1/2, twice.
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n)


@lru_cache(maxsize=4096)  # a page asks for the same few counts for thousands of problems
def fisher_fall(first_passed: int, first_n: int, last_passed: int, last_n: int) -> float:
    """The one-sided p-value of Fisher's exact test that the last proportion is lower than the first; 1.0 without a
    trial on one side. Source: Fisher 1934, "Statistical Methods for Research Workers", section 21.02."""
    _check_counts(first_passed, first_n)
    _check_counts(last_passed, last_n)
    n, passed = first_n + last_n, first_passed + last_passed
    # Of whole numbers, and so exact: the upper tail of a hypergeometric distribution.
    tail = range(first_passed, min(first_n, passed) + 1)
    return sum(math.comb(first_n, k) * math.comb(last_n, passed - k) for k in tail) / math.comb(n, passed)


def pass_at_k(n: int, passed: int, k: int) -> float:
    """The unbiased estimate of the probability that one of `k` completions passes, where `passed` of `n` did. Source:
    Chen et al. 2021, "Evaluating Large Language Models Trained on Code". Raises ValueError for k below 1 or above n."""
    _check_counts(passed, n)
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {n} completions: k has to be from 1 to n")
    return 1 - math.comb(n - passed, k) / math.comb(n, k)


def clustered_bootstrap(values: Sequence[float], *, seed: int = 0, resamples: int = 10_000) -> Interval:
    """The percentile bootstrap's 95% interval of the mean of `values`: each is the mean of a cluster (a problem's
    samples), and clusters are resampled whole. (-inf, inf) for one cluster, ValueError for none.

    With few clusters plain percentiles are too narrow, so they are widened by the ratio of Student's t to the normal
    distribution. Source: Hesterberg 2015, "What Teachers Should Know About the Bootstrap", expanded percentiles."""
    if not values:
        raise ValueError("an interval needs at least one value")
    n = len(values)
    if n == 1:
        return Interval(-math.inf, math.inf)
    expanded = NormalDist().cdf(student_t(n - 1) * math.sqrt(n / (n - 1)))
    generator, array = np.random.default_rng(seed), np.asarray(values, dtype=np.float64)
    # In batches: 10,000 resamples of some thousand problems at once would take hundreds of megabytes.
    batch = max(1, min(resamples, 2_000_000 // n))
    sizes = [min(batch, resamples - first) for first in range(0, resamples, batch)]
    means = np.concatenate([array[generator.integers(0, n, (size, n))].mean(axis=1) for size in sizes])
    low, high = np.quantile(means, [1 - expanded, expanded])
    return Interval(float(low), float(high))


def student_t(freedom: float) -> float:
    """How many standard errors the two-sided 95% interval of a mean reaches, with so many degrees of freedom."""
    from scipy.special import stdtrit  # a quarter of a second that few commands need

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def pairs_needed(difference: float, within: float, samples: int, losses: float, *, power: float = 0.8) -> int:
    """The problems, each with `samples` completions on either side, on which a true `difference` of mean pass rates is
    seen (two-sided at 5%, paired) with probability `power`. `within` is the mean variance of one completion given its
    problem, p(1 - p); `losses` the share of the problems that the worse policy always solves and the better one
    never; as the difference stays, so many more are gained. Raises ValueError for values outside their range."""
    if not 0 < difference <= 1 or not 0 <= losses <= (1 - difference) / 2 or samples < 1:
        raise ValueError(f"a difference of {difference} with {losses} lost, on {samples} samples, makes no sense")
    normal = NormalDist()
    reach = normal.inv_cdf((1 + CONFIDENCE) / 2) + normal.inv_cdf(power)
    between = difference + 2 * losses - difference**2
    return math.ceil(reach**2 * (2 * within / samples + between) / difference**2)


def seen_difference(problems: int, within: float, samples: int, losses: float, *, power: float = 0.8) -> float:
    """The smallest difference, to a thousandth, for which `pairs_needed` is no more than `problems`; 1.0 if none is."""
    for difference in (thousandths / 1000 for thousandths in range(1, 1000)):
        if pairs_needed(difference, within, samples, min(losses, (1 - difference) / 2), power=power) <= problems:
            return difference
    return 1.0


def crossed_interval(scores_R_I: Sequence[Sequence[float]]) -> Difference:
    """The mean of `scores_R_I` (runs x items, R >= 2, I >= 2) with a 95% interval that covers new runs and new items:
    both are random samples, and crossed, as each run is measured on the same items. With few runs Student's t widens
    it. Source: Dorfman, Berbaum and Metz 1992 (readers and cases), with the degrees of freedom of Hillis 2007. Raises
    ValueError for fewer runs or items, or rows of unequal length."""
    if len({len(row) for row in scores_R_I}) != 1 or len(scores_R_I) < 2 or len(scores_R_I[0]) < 2:
        raise ValueError("an interval over runs and items needs at least two of each, and every run on every item")
    scores = np.asarray(scores_R_I, dtype=np.float64)
    n_runs, n_items = scores.shape
    mean = scores.mean()
    by_run, by_item = scores.mean(axis=1, keepdims=True), scores.mean(axis=0, keepdims=True)
    # The mean squares of a two-way analysis of variance with one observation per cell.
    ms_runs = n_items * ((by_run - mean) ** 2).sum() / (n_runs - 1)
    ms_items = n_runs * ((by_item - mean) ** 2).sum() / (n_items - 1)
    ms_rest = ((scores - by_run - by_item + mean) ** 2).sum() / ((n_runs - 1) * (n_items - 1))
    total = ms_runs + max(ms_items - ms_rest, 0.0)  # by chance the difference can be negative, a variance cannot
    freedom = float(n_items - 1)
    if ms_runs > 0:  # otherwise all runs have the same mean, and only the items vary
        freedom = min(freedom, total**2 / (ms_runs**2 / (n_runs - 1)))  # Hillis; at most what the items have
    half = student_t(freedom) * math.sqrt(total / scores.size)
    return Difference(float(mean), float(mean - half), float(mean + half))


def _check_counts(successes: int, n: int) -> None:
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} make no sense")
