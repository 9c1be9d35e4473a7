import math
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from coderl_tasks.curation.labels import (
    ALL,
    RATES,
    learn_prior,
    posterior,
    rules_for_labels,
    with_labels,
)
from coderl_tasks.curation.stopping_rule import Band, StoppingRule, difficulty
from coderl_tasks.problems.profile_columns import PROFILE_SCHEMA, SHARD_SCHEMA
from coderl_tasks.rollouts.rounds import SamplingPlan
from coderl_tasks.settings import CurateSettings

BAND = Band(0.1, 0.9)
RULE = StoppingRule(BAND)
PLAN = SamplingPlan(16, 2, RULE)


def shard(states: list[tuple[int, int]], split: str = "taco", tokens: int = 100) -> pl.DataFrame:
    """A profile with problems of so many (passes, samples)."""
    rows = [
        {"problem_id": f"{split}-{place}", "split": split, "n_correct": k, "n_samples": n, "infra_errors": 0}
        | {"prompt_tokens": tokens, "pass_rate": k / n if n else None, "difficulty": difficulty(k / n) if n else None}
        for place, (k, n) in enumerate(states)
    ]
    return pl.DataFrame(rows, schema=SHARD_SCHEMA)


def draws(rates: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Outcomes (P, 16)."""
    return generator.uniform(size=(len(rates), 16)) < rates[:, None]


def sampled(outcomes: np.ndarray, plan: SamplingPlan = PLAN) -> list[tuple[int, int]]:
    """Where a plan stops on outcomes (P, 16)."""
    return [
        next((k, n) for n in range(2, 17, 2) if plan.is_enough(k := int(row[:n].sum()), n, f"taco-{place}"))
        for place, row in enumerate(outcomes)
    ]


def test_posteriors_are_bayes_rule() -> None:
    even = np.full(len(RATES), 0.0)
    even[1:-1] = 1 / (len(RATES) - 2)
    # 1 of 2 under a uniform prior is Beta(2, 2), whose distribution function is 3 x^2 - 2 x^3.
    found = posterior(even, 1, 2)
    hard = 3 * 0.35**2 - 2 * 0.35**3
    assert found.by_difficulty == pytest.approx((hard, 1 - 2 * hard, hard), abs=1e-4)
    assert (found.difficulty, found.mean) == ("medium", 0.5)
    assert found.probability == found.by_difficulty[1]
    assert (found.low, found.high) == pytest.approx((0.0943, 0.9057), abs=0.005)
    assert found.by_bin[:7] == pytest.approx(
        [3 * (b**2 - a**2) - 2 * (b**3 - a**3) for a, b in ((i / 20, i / 20 + 0.05) for i in range(7))], abs=1e-4
    )
    for k, n in ((0, 3), (2, 5), (16, 16)):
        assert posterior(even, k, n).mean == pytest.approx((k + 1) / (n + 2), abs=1e-4)
    # Never solved, or as often as not: 0 of 3 leaves 1/2 to 1/2 x 1/8, one pass leaves nothing to doubt.
    two = np.zeros(len(RATES))
    two[[0, 100, 101]] = 0.5, 0.25, 0.25
    assert posterior(two, 0, 3).by_difficulty == pytest.approx((8 / 9, 1 / 9, 0), abs=1e-3)
    assert posterior(two, 1, 3).by_difficulty == (0, 1, 0)
    assert (posterior(two, 0, 3).low, posterior(two, 1, 3).low) == (0.0, RATES[100])


def test_a_prior_is_what_its_problems_show_and_small_groups_lean_on_the_whole() -> None:
    many = shard([(0, 4)] * 300 + [(4, 4)] * 100, "taco")
    few = shard([(2, 4)] * 4, "lcbv5")
    nobody = shard([(0, 0)], "lcbv5").with_columns(pl.lit(4, pl.Int64).alias("infra_errors"))
    whole = pl.concat([many, few, nobody])
    prior = learn_prior(whole)
    assert all(math.isclose(sum(weights), 1, abs_tol=1e-5) for weights in prior.weights.values())
    taco = prior.distribution("taco")
    assert (taco[RATES < 0.35].sum(), taco[RATES >= 0.65].sum()) == pytest.approx((0.74, 0.25), abs=0.03)
    assert prior.distribution("lcbv5") == pytest.approx(prior.distribution(ALL), abs=0.15)
    assert prior.distribution("lcbv5")[80:120].sum() > 5 * prior.distribution(ALL)[80:120].sum()
    assert prior.group("lcbv5", 99) == "lcbv5/short" and prior.group("lcbv5", 100) == "lcbv5/long"
    assert prior.group("elsewhere", 100) == ALL
    assert learn_prior(whole.sample(fraction=1, shuffle=True, seed=3)) == prior, "of the profile, not of its order"
    uniform = learn_prior(whole.clear()).distribution()
    assert uniform[1:-1].max() < 1.001 * uniform[1:-1].min()


def test_prompts_of_other_lengths_have_a_prior_of_their_own() -> None:
    short, long = shard([(4, 4)] * 60 + [(2, 4)] * 20), shard([(0, 4)] * 60 + [(2, 4)] * 20, tokens=900)
    labels = with_labels(pl.concat([short, long]), learn_prior(pl.concat([short, long])))
    half = labels.filter(n_correct=2).group_by("prompt_tokens").agg(pl.col("posterior_mean").first()).sort(pl.all())
    assert half["posterior_mean"][0] > 0.5 > half["posterior_mean"][1]


def test_labels_are_columns_of_the_profile() -> None:
    profile = pl.concat(
        [
            shard([(0, 16), (1, 2), (15, 16)]),
            shard([(0, 0)], "lcbv5").with_columns(pl.lit(2, pl.Int64).alias("infra_errors")),
        ]
    )
    prior = learn_prior(profile)
    labelled = with_labels(profile, prior)
    assert labelled.schema == pl.Schema(PROFILE_SCHEMA)
    assert labelled["difficulty"].to_list() == ["hard", "medium", "easy", None]
    assert labelled.row(3, named=True)["posterior"] is None and labelled["posterior_mean"].null_count() == 1
    shares = labelled.select("hard_probability", "medium_probability", "easy_probability")
    assert shares.max_horizontal().equals(labelled["difficulty_probability"], check_names=False)
    assert shares[:3].sum_horizontal().to_list() == pytest.approx([1, 1, 1], abs=1e-5)
    assert labelled["posterior"][:3].list.sum().to_list() == pytest.approx([1, 1, 1], abs=1e-4)
    assert with_labels(labelled, prior).equals(labelled)
    assert (labelled["posterior_low"] <= labelled["posterior_mean"]).drop_nulls().all()


@pytest.mark.parametrize("shape", [(0.5, 0.5), (0.3, 1.5)])
def test_labels_are_right_as_often_as_they_say_whatever_stopped_the_sampling(shape: tuple[float, float]) -> None:
    generator = np.random.default_rng(7)
    rates = generator.beta(*shape, 3000)
    states = sampled(draws(rates, generator))
    labelled = with_labels(shard(states), learn_prior(shard(states)))
    right = np.array([difficulty(rate) for rate in rates]) == labelled["difficulty"].to_numpy()
    said = labelled["difficulty_probability"].to_numpy()
    for low, high in ((0.3, 0.5), (0.5, 0.75), (0.75, 0.95), (0.95, 1.01)):
        part = (said >= low) & (said < high)
        assert part.sum() > 100
        assert right[part].mean() == pytest.approx(said[part].mean(), abs=0.09)
    inside = (labelled["posterior_low"].to_numpy() <= rates + 0.005) & (
        rates - 0.005 <= labelled["posterior_high"].to_numpy()
    )
    assert inside.mean() > 0.93
    # Stopping when the news is good biases the samples' mean, and not the posterior's.
    means = np.array([k / n for k, n in states])
    assert abs(labelled["posterior_mean"].to_numpy().mean() - rates.mean()) < 0.01
    assert means.mean() - rates.mean() > (0.02 if shape[1] > shape[0] else -1)


def test_further_samples_go_where_labels_are_in_doubt_within_the_budget() -> None:
    generator = np.random.default_rng(11)
    rates = generator.beta(0.5, 0.5, 1200)
    outcomes, true = draws(rates, generator), np.array([difficulty(rate) for rate in rates])
    states = sampled(outcomes)
    first, kept = shard(states), np.array([BAND.has(k, n) for k, n in states])
    prior = learn_prior(first)
    assert rules_for_labels(first, prior, PLAN, RULE, 0) == ({}, 0)
    right = []
    for budget in (1, 800, 1600, 10**6):
        rules, expected = rules_for_labels(first, prior, PLAN, RULE, budget)
        assert budget == 10**6 or budget - 16 < expected <= budget
        ended = shard(sampled(outcomes, replace(PLAN, rules=rules)))
        spent = ended["n_samples"] - first["n_samples"]
        assert spent.sum() == pytest.approx(expected, rel=0.1, abs=16)
        assert not spent.to_numpy()[~kept].any(), "what is dropped has no label to sample for"
        labels = with_labels(ended, learn_prior(ended))
        right.append((labels["difficulty"].to_numpy() == true)[kept].mean())
        if budget == 1600:
            doubt = with_labels(first, prior).filter(kept)["difficulty_probability"].to_numpy()
            on = spent.to_numpy()[kept] > 0
            assert doubt[on].mean() < doubt[~on].mean() - 0.1
    assert right[0] + 0.05 < right[1] < right[2] < right[3]


def test_label_samples_are_spent_where_labels_are_asked_for() -> None:
    def budget(**values: Any) -> float:
        return CurateSettings.model_validate({"preset": "nano", **values}).label_budget

    mix = {"mix": "hard:0.5,easy:0.5"}
    assert (budget(), budget(**mix), budget(**mix, label_samples=0), budget(label_samples=2)) == (0, 3, 0, 2)
    assert budget(**mix, profile_mode="fixed") == budget(**mix, profile_mode="screen") == 0
    assert budget(mix_splits="taco:1") == 0
