from itertools import product
from math import comb

import pytest

from coderl_tasks.curation.stopping_rule import Band, StoppingRule, chance_of_change
from coderl_tasks.rollouts.rounds import SamplingPlan
from coderl_tasks.settings import CurateSettings
from coderl_tasks.stats import beta_binomial

BAND = Band(0.1, 0.9)
EXACT = SamplingPlan(16, 4, StoppingRule(BAND, 0.0, 0.0))
ADAPTIVE = SamplingPlan(16, rule=StoppingRule(BAND))


def test_rounds_cover_all_samples() -> None:
    assert SamplingPlan(16, 4).round_sizes == [4, 4, 4, 4]
    assert SamplingPlan(10, 4).round_sizes == [4, 4, 2]
    assert SamplingPlan(3, 8).round_sizes == [3]
    for sizes in ((0, 4), (4, 0)):
        with pytest.raises(ValueError, match="needs samples"):
            SamplingPlan(*sizes)


def test_the_settings_have_the_same_defaults() -> None:
    settings = CurateSettings()
    rule = StoppingRule(
        Band(settings.band_low, settings.band_high), settings.profile_risk_keep, settings.profile_risk_drop
    )
    assert SamplingPlan(settings.profile_samples, settings.profile_round, rule) == ADAPTIVE


def test_a_fixed_plan_takes_them_all() -> None:
    plan = SamplingPlan(8, 4)
    assert [plan.is_enough(2, 4), plan.is_enough(2, 8)] == [False, True]


def test_two_passes_and_two_failures_settle_a_band_of_2_to_14() -> None:
    for n in (4, 8, 12):
        for correct in range(n + 1):
            assert EXACT.is_enough(correct, n) == (2 <= correct <= n - 2), (correct, n)


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.9), (0.0, 0.5), (0.5, 0.5), (0.3, 1.0), (0.2, 0.6)])
@pytest.mark.parametrize(("most", "size"), [(16, 4), (8, 4), (10, 3), (5, 1)])
def test_without_risk_every_decision_is_that_of_all_samples(low: float, high: float, most: int, size: int) -> None:
    """Every outcome, at every place the rule stops: exact curtailment."""
    band = Band(low, high)
    plan = SamplingPlan(most, size, StoppingRule(band, 0.0, 0.0))
    for n in range(size, most, size):
        for correct in range(n + 1):
            ends = {band.has(correct + more, most) for more in range(most - n + 1)}
            assert plan.is_enough(correct, n) == (ends == {band.has(correct, n)})
    assert plan.is_enough(0, most)


def test_the_chance_of_change_is_the_posteriors() -> None:
    """Against the sum over pass rates on a grid, weighted by Jeffreys' prior and the likelihood."""
    grid = [(i + 0.5) / 20_000 for i in range(20_000)]
    for correct, n in ((0, 4), (1, 4), (0, 8), (1, 8), (0, 12), (3, 4)):
        weights = [p ** (correct - 0.5) * (1 - p) ** (n - correct - 0.5) for p in grid]
        now = BAND.has(correct, n)
        changes = [more for more in range(16 - n + 1) if BAND.has(correct + more, 16) != now]
        chance = sum(
            w * sum(comb(16 - n, more) * p**more * (1 - p) ** (16 - n - more) for more in changes)
            for w, p in zip(weights, grid, strict=True)
        ) / sum(weights)
        assert chance_of_change(BAND, correct, n, 16) == pytest.approx(
            chance, abs=4e-3
        )  # the prior's poles are cut off


def test_nothing_of_8_is_not_thrown_away_and_the_rule_is_symmetric() -> None:
    assert not ADAPTIVE.is_enough(0, 4) and not ADAPTIVE.is_enough(0, 8)
    assert ADAPTIVE.is_enough(0, 12), "at most 1 in 50 of these would have shown two in 16"
    assert ADAPTIVE.is_enough(1, 2), "kept: nearly all of these show another of either kind"
    assert not ADAPTIVE.is_enough(1, 4)
    for n in range(2, 16, 2):
        for correct in range(n + 1):
            assert ADAPTIVE.is_enough(correct, n) == ADAPTIVE.is_enough(n - correct, n)


def test_every_early_stop_keeps_the_risk_it_was_given() -> None:
    """Over all sequences under the prior: of those that stop early in one place, the rule's share at most decides
    otherwise after all samples."""
    stops = [(c, n) for n, c in product(range(2, 16, 2), range(15)) if c <= n and ADAPTIVE.is_enough(c, n)]
    assert {(1, 2), (0, 12), (14, 14)} <= set(stops) and (0, 2) not in stops
    for correct, n in stops:
        wrong = chance_of_change(BAND, correct, n, 16)
        assert wrong <= (0.1 if BAND.has(correct, n) else 0.05)


def test_beta_binomial_is_a_distribution_and_uniform_for_a_flat_prior() -> None:
    assert sum(beta_binomial(k, 12, 0.5, 8.5) for k in range(13)) == pytest.approx(1, abs=1e-12)
    assert [beta_binomial(k, 4, 1, 1) for k in range(5)] == pytest.approx([0.2] * 5, abs=1e-12)
    with pytest.raises(ValueError, match="make no sense"):
        beta_binomial(5, 4, 1, 1)


def test_more_than_all_samples_is_refused() -> None:
    for n in (0, 17):
        with pytest.raises(ValueError, match="decide nothing"):
            chance_of_change(BAND, 0, n, 16)
