from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coderl_tasks.curation.pool import Mix, apportion, closest_weights, select


def candidates(**counts: int) -> pl.DataFrame:
    """So many problems by cell, named `difficulty_split`."""
    rows = [
        {"problem_id": f"{cell}-{number}", "difficulty": cell.split("_")[0], "split": cell.split("_")[1]}
        for cell, count in counts.items()
        for number in range(count)
    ]
    return pl.DataFrame(rows, schema={"problem_id": pl.String, "difficulty": pl.String, "split": pl.String})


THERE = candidates(hard_taco=30, hard_lcbv5=10, medium_taco=40, medium_lcbv5=5, easy_taco=20)


def kept(mix: Mix, frame: pl.DataFrame = THERE) -> list[str]:
    left_out = select(frame, mix)[0]
    return [name for name in frame["problem_id"] if name not in left_out]


def cells(names: list[str], part: int | None = None) -> Counter[str]:
    return Counter(name.split("-")[0] if part is None else name.split("-")[0].split("_")[part] for name in names)


def test_no_mix_keeps_all() -> None:
    assert select(THERE, Mix())[0] == {}
    assert kept(Mix()) == THERE["problem_id"].to_list()


def test_a_size_alone_takes_so_many() -> None:
    assert len(kept(Mix(size=17))) == 17
    assert select(THERE, Mix(size=200))[1] == {"": 95}


def test_shares_by_difficulty_and_a_size() -> None:
    left_out, short = select(THERE, Mix({"hard": 0.5, "medium": 0.3, "easy": 0.2}, size=50))
    assert cells(kept(Mix({"hard": 0.5, "medium": 0.3, "easy": 0.2}, size=50)), 0) == {
        "hard": 25,
        "medium": 15,
        "easy": 10,
    }
    assert short == {}
    reasons = Counter(left_out.values())
    assert reasons == {
        ("over_share", "25 of 40 hard taken"): 15,
        ("over_share", "15 of 45 medium taken"): 30,
        ("over_share", "10 of 20 easy taken"): 10,
    }


def test_without_a_size_the_pool_is_as_large_as_the_shares_allow() -> None:
    assert cells(kept(Mix({"easy": 1, "hard": 1})), 0) == {"easy": 20, "hard": 20}
    assert cells(kept(Mix(split={"taco": 0.9, "lcbv5": 0.1})), 1) == {"taco": 90, "lcbv5": 10}


def test_both_axes_are_independent() -> None:
    names = kept(Mix({"hard": 2, "medium": 1}, {"taco": 3, "lcbv5": 1}, size=24))
    assert cells(names) == {"hard_taco": 12, "hard_lcbv5": 4, "medium_taco": 6, "medium_lcbv5": 2}


def test_what_there_is_too_little_of_is_counted_and_not_filled_in() -> None:
    mix = Mix({"hard": 0.5, "easy": 0.5}, size=60)
    left_out, short = select(THERE, mix)
    assert short == {"easy": 10}
    assert cells(kept(mix), 0) == {"hard": 30, "easy": 20}
    assert mix.shortfall(short) == "short of 10 easy"
    assert left_out["medium_taco-0"] == ("not_in_mix", "medium has no share")


def test_a_share_of_what_there_is_none_of_leaves_nothing() -> None:
    mix = Mix(split={"taco": 1, "primeintellect": 1})
    assert kept(mix) == []
    assert "no problem" in mix.shortfall(select(THERE, mix)[1])


def test_who_is_taken_depends_on_seed_and_problem_only() -> None:
    mix = Mix({"hard": 1}, size=15)
    taken = kept(mix)
    assert kept(mix, THERE.sort("problem_id", descending=True))[::-1] == sorted(taken)
    assert set(taken) < set(kept(Mix({"hard": 1}, size=25))), "a larger pool adds to the smaller one"
    assert set(taken) != set(kept(Mix({"hard": 1}, size=15, seed=1)))


@given(weights=st.lists(st.integers(1, 50), min_size=1, max_size=8), size=st.integers(0, 500))
def test_parts_add_up_and_are_off_by_less_than_one(weights: list[int], size: int) -> None:
    shares: dict[tuple[str, ...], Fraction] = {
        (f"c{index}",): Fraction(weight, sum(weights)) for index, weight in enumerate(weights)
    }
    parts = apportion(shares, size)
    assert sum(parts.values()) == size
    assert all(abs(parts[cell] - shares[cell] * size) < 1 for cell in shares)


@given(
    there=st.lists(st.integers(0, 40), min_size=3, max_size=3),
    weights=st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any),
)
def test_the_largest_size_is_the_largest(there: list[int], weights: list[int]) -> None:
    names = ("hard", "medium", "easy")
    frame = candidates(**{f"{name}_taco": count for name, count in zip(names, there, strict=True)})
    mix = Mix(dict(zip(names, weights, strict=True)))
    size = len(kept(mix, frame))
    assert select(frame, mix)[1] == {}
    for larger in range(size + 1, sum(there) + 2):
        assert select(frame, Mix(mix.difficulty, size=larger))[1]


def test_shares_that_make_no_sense() -> None:
    for bad in ({"hrad": 1.0}, {"hard": -1.0, "easy": 2.0}, {"hard": 0.0}):
        with pytest.raises(ValueError, match=r"difficult|shares"):
            Mix(bad)


PROBABILITIES = {"hard": (0.8, 0.2, 0.0), "medium": (0.3, 0.6, 0.1), "easy": (0.0, 0.2, 0.8)}


def with_probabilities(frame: pl.DataFrame, known: Mapping[str, tuple[float, ...]]) -> pl.DataFrame:
    shares = [known[label] for label in frame["difficulty"]]
    names = [f"{name}_probability" for name in ("hard", "medium", "easy")]
    return frame.hstack(pl.DataFrame(shares, schema=dict.fromkeys(names, pl.Float64()), orient="row"))


def test_shares_are_those_of_the_difficulties_expected() -> None:
    many = candidates(hard_taco=400, medium_taco=400, easy_taco=400)
    frame = with_probabilities(many, PROBABILITIES)
    mix = Mix({"hard": 0.5, "medium": 0.3, "easy": 0.2}, size=200)
    taken = kept(mix, frame)
    expected = frame.filter(pl.col("problem_id").is_in(taken)).select("^.*_probability$").sum().row(0)
    assert len(taken) == 200 and expected == pytest.approx((100, 60, 40), abs=1)
    assert cells(taken, 0)["hard"] > 100, "some of those that are labelled hard are not"
    assert kept(mix, with_probabilities(many, {"hard": (1, 0, 0), "medium": (0, 1, 0), "easy": (0, 0, 1)})) == kept(
        mix, many
    ), "certain labels are taken as they are"


def test_shares_beyond_what_labels_can_tell_come_as_close_as_they_can() -> None:
    frame = with_probabilities(THERE, PROBABILITIES)
    left_out, short = select(frame, Mix({"hard": 0.1, "medium": 0.8, "easy": 0.1}))
    assert cells([name for name in frame["problem_id"] if name not in left_out], 0) == {"medium": 45}
    assert short == {}
    left_out, _ = select(frame, Mix({"medium": 1, "easy": 1}))
    assert {reason for reason, _ in left_out.values()} == {"over_share", "not_in_mix"}
    both = Mix({"hard": 0.5, "medium": 0.5}, {"taco": 0.5, "lcbv5": 0.5}, size=12)
    assert sorted(cells(kept(both, frame), 1).values()) == [6, 6]
    missing = with_probabilities(candidates(hard_taco=30), PROBABILITIES)
    assert select(missing, Mix({"hard": 0.5, "easy": 0.5}, size=10))[1].keys() == {"easy"}


def test_weights_that_come_closest() -> None:
    rows = np.array([[0.8, 0.2, 0.0], [0.3, 0.6, 0.1], [0.0, 0.2, 0.8]])
    for weights in ([1.0, 0.0, 0.0], [0.2, 0.5, 0.3], [0.0, 0.5, 0.5]):
        assert closest_weights(rows, np.array(weights) @ rows) == pytest.approx(weights, abs=1e-9)
    target = np.array([0.0, 1.0, 0.0])
    grid = [(i / 50, j / 50, 1 - i / 50 - j / 50) for i in range(51) for j in range(51 - i)]
    best = min(grid, key=lambda weights: float(np.square(np.array(weights) @ rows - target).sum()))
    assert closest_weights(rows, target) == pytest.approx(best, abs=0.02)
