import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coderl_tasks.stats import (
    beta_posterior,
    jeffreys_interval,
    paired_bootstrap,
    paired_proportion_difference,
    pass_at_k,
    regularized_incomplete_beta,
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


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.001, 0.999))
def test_incomplete_beta_is_the_binomial_tail(a: int, b: int, x: float) -> None:
    n = a + b - 1
    tail = math.fsum(math.comb(n, j) * x**j * (1 - x) ** (n - j) for j in range(a, n + 1))
    assert regularized_incomplete_beta(a, b, x) == pytest.approx(tail, abs=1e-10)


def test_incomplete_beta_of_the_arcsine_law() -> None:
    for x in (0.0, 0.01, 0.3, 0.5, 0.99, 1.0):
        assert regularized_incomplete_beta(0.5, 0.5, x) == pytest.approx(2 / math.pi * math.asin(math.sqrt(x)))


def test_beta_posterior() -> None:
    posterior = beta_posterior(3, 8, prior=(1, 1))
    assert (posterior.alpha, posterior.beta) == (4, 6)
    assert posterior.mean == pytest.approx(0.4)
    # tails of the binomial distribution: P(X >= 4) of 9 draws
    assert posterior.cdf(0.1) == pytest.approx(0.008331094, abs=1e-9)
    assert posterior.cdf(0.9) == pytest.approx(0.999935766, abs=1e-9)
    assert posterior.probability_between(0.1, 0.9) == pytest.approx(0.991604672, abs=1e-9)
    assert posterior.quantile(0.9) == pytest.approx(0.599420489, abs=1e-9)


def test_jeffreys_against_a_known_value() -> None:
    # Brown, Cai and DasGupta 2001, table of limits: n = 10, x = 3
    assert jeffreys_interval(3, 10) == pytest.approx((0.093, 0.606), abs=1e-3)


def test_pass_at_k_is_the_mean_over_subsets() -> None:
    from itertools import combinations

    for correct in range(6):
        results = [True] * correct + [False] * (5 - correct)
        for k in range(1, 6):
            subsets = list(combinations(results, k))
            assert pass_at_k(5, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(("n", "correct", "k"), [(5, 1, 0), (5, 1, 6), (5, 6, 1), (5, -1, 1)])
def test_pass_at_k_refuses_nonsense(n: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError):
        pass_at_k(n, correct, k)


def test_the_two_paired_methods_agree_on_many_pairs() -> None:
    generator = np.random.default_rng(1)
    first = generator.random(600) < 0.3
    second = first | (generator.random(600) < 0.2)
    both = int((first & second).sum())
    exact = paired_proportion_difference(
        both, int((first & ~second).sum()), int((second & ~first).sum()), int((~first & ~second).sum())
    )
    resampled = paired_bootstrap(first.astype(float).tolist(), second.astype(float).tolist())
    assert resampled == pytest.approx(exact, abs=0.01)


def test_paired_bootstrap_is_seeded_and_refuses_unpaired() -> None:
    assert paired_bootstrap([0, 0.5], [1, 0.25], seed=3) == paired_bootstrap([0, 0.5], [1, 0.25], seed=3)
    with pytest.raises(ValueError):
        paired_bootstrap([1.0], [])
    with pytest.raises(ValueError):
        paired_proportion_difference(0, 0, 0, 0)
