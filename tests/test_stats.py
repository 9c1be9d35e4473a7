import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coderl_tasks.stats import (
    clustered_bootstrap,
    crossed_interval,
    fisher_fall,
    jeffreys_interval,
    mcnemar,
    paired_proportion_difference,
    pairs_needed,
    pass_at_k,
    seen_difference,
    wilson_interval,
)

COUNTS = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def test_wilson_against_published_values() -> None:
    # Newcombe 1998 (single proportion), table I: 81/263, 15/148, 0/20, 1/29
    for successes, n, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        assert wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_paired_difference_against_published_values() -> None:
    # Newcombe 1998 (paired), table II, method 10; pairs are both, only first, only second, neither, and the
    # difference there is first minus second
    for cells, estimate, low, high in [
        ((36, 12, 2, 0), 0.2, 0.0569, 0.3404),
        ((54, 0, 0, 0), 0.0, -0.0664, 0.0664),
        ((0, 30, 0, 0), 1.0, 0.8395, 1.0),
    ]:
        both, only_first, only_second, neither = cells
        result = paired_proportion_difference(both, only_second, only_first, neither)
        assert result == pytest.approx((estimate, low, high), abs=5e-5)


@given(COUNTS)
def test_intervals_hold_the_estimate_and_mirror(counts: tuple[int, int]) -> None:
    successes, n = counts
    for interval in (wilson_interval, jeffreys_interval):
        low, high = interval(successes, n)
        assert 0 <= low <= successes / n <= high <= 1
        assert interval(n - successes, n) == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_wilson_of_nothing_is_everything() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@given(COUNTS, st.sampled_from([0.5, 0.8, 0.95, 0.99]))
def test_jeffreys_leaves_half_of_the_rest_on_either_side(counts: tuple[int, int], confidence: float) -> None:
    successes, n = counts
    low, high = jeffreys_interval(successes, n, confidence)
    below, above = posterior_mass(successes, n, 0, low), posterior_mass(successes, n, high, 1)
    assert below == pytest.approx(0 if successes == 0 else (1 - confidence) / 2, abs=1e-6)
    assert above == pytest.approx(0 if successes == n else (1 - confidence) / 2, abs=1e-6)


def posterior_mass(successes: int, n: int, low: float, high: float, points: int = 20_001) -> float:
    """P(low <= rate <= high) where the rate is Beta(successes + 1/2, n - successes + 1/2), by the trapezoidal rule on
    rate = sin(t)^2: there the density is 2 sin(t)^(2 successes) cos(t)^(2 failures) / B, without its poles."""
    t = np.linspace(math.asin(math.sqrt(low)), math.asin(math.sqrt(high)), points)
    log_beta = math.lgamma(successes + 0.5) + math.lgamma(n - successes + 0.5) - math.lgamma(n + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = 2 * successes * np.log(np.sin(t)) if successes else np.zeros_like(t)
        logs = logs + (2 * (n - successes) * np.log(np.cos(t)) if successes < n else 0)
    return float(np.trapezoid(2 * np.exp(logs - log_beta), t))


def test_jeffreys_against_a_known_value() -> None:
    # Brown, Cai and DasGupta 2001, table of limits: n = 10, x = 3
    assert jeffreys_interval(3, 10) == pytest.approx((0.093, 0.606), abs=1e-3)


def test_the_two_paired_methods_agree_on_many_pairs() -> None:
    generator = np.random.default_rng(1)
    first = generator.random(600) < 0.3
    second = first | (generator.random(600) < 0.2)
    both = int((first & second).sum())
    exact = paired_proportion_difference(
        both, int((first & ~second).sum()), int((second & ~first).sum()), int((~first & ~second).sum())
    )
    resampled = clustered_bootstrap((second.astype(float) - first).tolist())
    assert resampled == pytest.approx(exact[1:], abs=0.01)


def test_the_bootstrap_is_seeded_and_needs_values() -> None:
    assert clustered_bootstrap([0, 0.5, 1], seed=3) == clustered_bootstrap([0, 0.5, 1], seed=3)
    assert clustered_bootstrap([0.5]) == (-math.inf, math.inf)
    with pytest.raises(ValueError):
        clustered_bootstrap([])
    with pytest.raises(ValueError):
        paired_proportion_difference(0, 0, 0, 0)


def test_crossed_interval_by_hand_and_in_repeated_experiments() -> None:
    # Two runs a unit off their mean, six items the root of 5 off theirs, no rest: mean squares 12, 12 and 0. So the
    # variance of the mean is (12 + 12) / 12, with 24^2 / 12^2 = 4 degrees of freedom (t = 2.7764).
    items = [math.sqrt(5) * sign for sign in (-1, -1, -1, 1, 1, 1)]
    estimate, low, high = crossed_interval([[2 + item for item in items], [4 + item for item in items]])
    assert (estimate, (high - low) / 2) == pytest.approx((3.0, 2.7764 * math.sqrt(2)), abs=1e-4)

    # 95% of the intervals hold the mean of the population, whichever of runs, items or chance varies most.
    generator = np.random.default_rng(0)
    for spread_runs, spread_items, spread_rest in [(1.0, 0.1, 0.1), (0.1, 2.0, 0.5), (0.3, 1.0, 3.0)]:
        held = 0
        for _ in range(400):
            runs, offsets = generator.normal(0, spread_runs, (3, 1)), generator.normal(0, spread_items, (1, 40))
            _, low, high = crossed_interval((runs + offsets + generator.normal(0, spread_rest, (3, 40))).tolist())
            held += low <= 0 <= high
        assert held / 400 > 0.92

    with pytest.raises(ValueError, match="at least two of each"):
        crossed_interval([[1.0, 2.0]])


def test_mcnemar_against_scipy() -> None:
    binomtest = pytest.importorskip("scipy.stats").binomtest
    for gained, lost in [(0, 0), (1, 0), (5, 5), (12, 3), (0, 9), (140, 90)]:
        expected = binomtest(gained, gained + lost, 0.5).pvalue if gained + lost else 1.0
        assert mcnemar(gained, lost) == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ValueError):
        mcnemar(-1, 2)


def test_fisher_against_scipy() -> None:
    fisher_exact = pytest.importorskip("scipy.stats").fisher_exact
    for a, n, b, m in [(5, 16, 1, 16), (16, 16, 1, 16), (1, 1, 0, 1), (0, 4, 0, 9), (3, 8, 7, 8), (120, 256, 90, 250)]:
        expected = fisher_exact([[a, n - a], [b, m - b]], alternative="greater").pvalue
        assert fisher_fall(a, n, b, m) == pytest.approx(expected, rel=1e-9)
    assert fisher_fall(0, 0, 3, 4) == 1.0
    with pytest.raises(ValueError):
        fisher_fall(5, 4, 0, 4)


def test_pass_at_k_is_the_mean_over_all_subsets() -> None:
    for n, passed in [(1, 0), (4, 1), (6, 3), (7, 7)]:
        outcomes = [True] * passed + [False] * (n - passed)
        for k in range(1, n + 1):
            subsets = list(combinations(outcomes, k))
            assert pass_at_k(n, passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_at_k(1000, 1, 500) == pytest.approx(0.5)
    with pytest.raises(ValueError):
        pass_at_k(4, 2, 5)


def test_the_bootstrap_agrees_with_scipys_where_there_are_many_values() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(5).beta(0.5, 0.5, 500)
    found = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(6), n_resamples=4000)
    assert clustered_bootstrap(values.tolist()) == pytest.approx(found.confidence_interval, abs=0.003)


@pytest.mark.parametrize("n", [30, 100, 400])
def test_the_bootstrap_covers_the_mean_of_problems_with_several_samples(n: int) -> None:
    """Pass rates as a small model has them, mostly near 0 and 1, with four samples each, drawn 1,500 times."""
    generator = np.random.default_rng(n)
    rates = generator.beta(0.4, 0.6, (1500, n))
    shares = generator.binomial(4, rates) / 4
    covered = 0
    for row in shares:
        low, high = clustered_bootstrap(row.tolist(), resamples=400)
        covered += low <= 0.4 <= high
    # 93% to 97%, and what 1,500 draws and 400 resamples leave to chance.
    assert 0.925 <= covered / len(shares) <= 0.975


@pytest.mark.parametrize("n", [30, 100, 400])
def test_wilsons_interval_covers_on_average(n: int) -> None:
    """Exactly: over the binomial distribution, at rates from 5% to 95%. At a single rate it goes up and down with n."""
    binom = pytest.importorskip("scipy.stats").binom
    intervals = [wilson_interval(successes, n) for successes in range(n + 1)]
    covered = [
        sum(float(binom.pmf(k, n, rate)) for k, (low, high) in enumerate(intervals) if low <= rate <= high)
        for rate in np.linspace(0.05, 0.95, 91)
    ]
    assert 0.93 <= np.mean(covered) <= 0.97


@pytest.mark.parametrize("losses", [0.0, 0.06])
def test_the_power_that_is_promised_is_had(losses: float) -> None:
    """The second policy always solves some problems that the first never does, and the reverse; of the others half are
    noise."""
    generator = np.random.default_rng(8)
    difference, samples, rate = 0.08, 2, 0.6
    within = (1 - difference - 2 * losses) * 0.5 * rate * (1 - rate)
    n, seen = pairs_needed(difference, within, samples, losses), 0
    for _ in range(500):
        drawn, rates = generator.random(n), np.where(generator.random(n) < 0.5, rate, 0.0)
        gained, lost = drawn < difference + losses, drawn > 1 - losses
        before = generator.binomial(samples, np.where(gained, 0.0, np.where(lost, 1.0, rates))) / samples
        after = generator.binomial(samples, np.where(gained, 1.0, np.where(lost, 0.0, rates))) / samples
        seen += clustered_bootstrap((after - before).tolist(), resamples=400).low > 0
    assert seen / 500 == pytest.approx(0.8, abs=0.06)
    assert seen_difference(n, within, samples, losses) == pytest.approx(difference, abs=0.001)
    with pytest.raises(ValueError):
        pairs_needed(0.0, within, samples, losses)
    with pytest.raises(ValueError):
        pairs_needed(0.5, within, samples, 0.3)
