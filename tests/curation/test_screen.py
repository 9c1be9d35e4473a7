"""profile_mode=screen: what a round of each problem, and of those like it, says of whether it is learnable."""

import numpy as np
import polars as pl
import pytest

from coderl_tasks.curation.labels import RATES, posterior, with_labels
from coderl_tasks.curation.pool import build_pool, pool_manifest
from coderl_tasks.curation.screen import PARTS, Screen, Screened
from coderl_tasks.curation.stopping_rule import Band
from coderl_tasks.problems.loading import LoadResult
from coderl_tasks.problems.problem import Problem, dropped_frame
from coderl_tasks.problems.profile_columns import SHARD_SCHEMA
from tests.curation.conftest import MakeProblem

BAND = Band(0.1, 0.9)
KINDS = {
    "never": ("Prove that no closed walk visits {} vertices of the planar graph twice, then print its genus.", 0.0),
    "always": ("Print the sum of the {} numbers in the list.", 1.0),
    "half": ("Sort the {} words by their last letter and join them.", 0.5),
}


@pytest.fixture
def problems(make_problem: MakeProblem) -> list[Problem]:
    return [
        make_problem(f"{kind}-{number}", "1", statement=statement.format(number))
        for number in range(60)
        for kind, (statement, _) in KINDS.items()
    ]


def screen_of(problems: list[Problem]) -> Screen:
    return Screen(problems, [100] * len(problems), BAND, 16, seed=3)


def profile_of(problems: list[Problem], seed: int = 0) -> pl.DataFrame:
    """Two samples of each, by the rate of its kind."""
    generator = np.random.default_rng(seed)
    rows = []
    for problem in problems:
        passes = int(generator.binomial(2, KINDS[problem.problem_id.split("-")[0]][1]))
        row = {"problem_id": problem.problem_id, "split": problem.split, "n_samples": 2, "n_correct": passes}
        rows.append(
            row
            | {"pass_rate": passes / 2, "infra_errors": 0, "prompt_tokens": 100}
            | {"prompt_tokens_spent": 100, "completion_tokens_spent": 20}
        )
    return pl.DataFrame(rows, schema=SHARD_SCHEMA)


def kind_of(problem: Problem) -> str:
    return problem.problem_id.split("-")[0]


def test_problems_like_unsolved_ones_are_not_sampled(problems: list[Problem]) -> None:
    screen = screen_of(problems)
    parts = screen.parts()
    assert [len(part) for part in parts] == [len(problems) // PARTS] * PARTS
    assert sorted(p.problem_id for part in parts for p in part) == sorted(p.problem_id for p in problems)
    assert screen_of(problems[::-1]).parts() == parts, "the order of a hash, not of the rows"
    assert screen.split(parts[0], pl.DataFrame(schema=SHARD_SCHEMA), 0.15) == (parts[0], [])
    profile = profile_of(parts[0] + parts[1])
    worth, drops = screen.split(parts[2], profile, 0.15)
    assert {kind_of(problem) for problem in worth} >= {"half"}
    skipped = {str(drop.problem_id) for drop in drops}
    never = {problem.problem_id for problem in parts[2] if kind_of(problem) == "never"}
    assert never and never <= skipped
    assert not any(name.startswith("half") for name in skipped)
    assert len(worth) + len(drops) == len(parts[2])
    chances = screen.beliefs(profile).chances
    for drop in drops:
        assert (drop.stage, drop.reason) == ("screen", "hardly_learnable")
        assert drop.detail == f"unsampled, learnable with a probability of {chances[str(drop.problem_id)]:.3f}"
    shuffled = profile.sample(fraction=1, shuffle=True, seed=5)
    assert screen.beliefs(shuffled).chances == pytest.approx(chances, abs=2e-6), "of the samples, not their order"
    assert screen.split(parts[2], profile, 0.0)[1] == []


def test_own_samples_and_those_of_like_problems_decide_together(problems: list[Problem]) -> None:
    screen, profile = screen_of(problems), profile_of(problems)
    beliefs = screen.beliefs(profile)
    by_kind = {kind: [] for kind in KINDS}  # type: dict[str, list[float]]
    for (name, chance), passes in zip(beliefs.chances.items(), profile["n_correct"], strict=True):
        if passes == 0:
            by_kind[name.split("-")[0]].append(chance)
    # 0 of 2 is all that is known of each: what differs is how the others of its kind fared.
    assert max(by_kind["never"]) < 0.1 < 0.5 < min(by_kind["half"])
    # One problem passed once where its kind never does: its own samples count, and the kind still speaks against it.
    odd = profile.with_columns(
        n_correct=pl.when(pl.col("problem_id") == "never-7").then(1).otherwise(pl.col("n_correct"))
    )
    assert screen.beliefs(odd).chances["never-7"] > 0.5
    # What could not be graded tells nothing, neither of itself nor of others.
    lost = profile.with_columns(infra_errors=pl.when(pl.col("n_correct") == 1).then(2).otherwise(0))
    none = screen.beliefs(lost.filter(infra_errors=2))
    assert len(set(none.chances.values())) == 1
    in_band = _in_band()
    for name, chance in none.chances.items():
        assert chance == pytest.approx(float(none.distributions[name] @ in_band), abs=1e-3)


def _in_band() -> np.ndarray:
    """The probability (J,) that 2 to 14 of 16 samples pass, by drawing them."""
    draws = np.random.default_rng(1).binomial(16, RATES, size=(20_000, len(RATES)))
    return ((draws >= 2) & (draws <= 14)).mean(axis=0)


def test_the_pool_keeps_by_chances_and_says_what_it_may_have_lost(problems: list[Problem]) -> None:
    screen = screen_of(problems)
    parts = screen.parts()
    profile = profile_of(parts[0] + parts[1])
    worth, hardly = screen.split(parts[2] + parts[3], profile, 0.15)
    profile = profile_of(parts[0] + parts[1] + worth)
    beliefs = screen.beliefs(profile)
    chances, distributions = beliefs.chances, beliefs.distributions
    labelled = with_labels(profile, beliefs.prior, distributions)
    first = labelled.row(0, named=True)
    own = posterior(distributions[first["problem_id"]], first["n_correct"], 2)
    assert (first["posterior_mean"], first["difficulty"]) == (own.mean, own.difficulty)
    loaded = LoadResult(problems, dropped_frame([]), len(problems))
    pool = build_pool(loaded, labelled, drops=hardly, prior=beliefs.prior, screened=Screened(chances, 0.1))
    kept = set(pool.pool["problem_id"])
    assert kept == {name for name in profile["problem_id"] if chances[name] >= 0.1}
    half = {problem.problem_id for problem in problems if kind_of(problem) == "half"}
    assert half <= kept and pool.pool.filter(pl.col("n_correct") != 1).height > 10, "0 and 2 of 2 stay, of that kind"
    out = pool.dropped.filter(stage="band")
    assert {(row["problem_id"].split("-")[0], row["reason"]) for row in out.iter_rows(named=True)} <= {
        ("never", "too_hard"),
        ("always", "too_easy"),
    }
    assert out["detail"].str.contains(r"^[02] of 2 samples pass, learnable with a probability of 0\.0\d\d$").all()
    said = pool_manifest(pool, {"model_name": "m"})["learnable"]
    assert set(said) == {"kept", "dropped", "unsampled"}
    assert sum(said.values()) == pytest.approx(sum(chances.values()), abs=0.05)
    assert said["unsampled"] == pytest.approx(sum(chances[str(drop.problem_id)] for drop in hardly), abs=0.01)
