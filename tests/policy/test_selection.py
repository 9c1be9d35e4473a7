"""Seeds and the choice of problems: stateless, stable, complete."""

from collections import Counter
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coderl_tasks.policy.selection import SELECTIONS, Selection, cycle, epoch_order, seed_for, shuffle
from coderl_tasks.settings import TrainSettings


def test_seed_is_the_same_for_ever() -> None:
    assert seed_for(0, "sample", 12, "abc") == 1116764445


@given(st.lists(st.one_of(st.integers(), st.text()), min_size=1, max_size=5))
def test_seed_fits_31_bits(parts: list[int | str]) -> None:
    assert 0 <= seed_for(*parts) < 2**31
    assert seed_for(*parts) == seed_for(*parts)


def test_seed_tells_parts_apart() -> None:
    variants: list[tuple[int | str, ...]] = [
        (1, "ab", "c"),
        (1, "a", "bc"),
        ("1", "ab", "c"),
        (1, "abc"),
        (1, "c", "ab"),
        (1, "ab", "c", ""),
    ]
    assert len({seed_for(*parts) for parts in variants}) == len(variants)


@pytest.mark.parametrize("parts", [(), (1.5,), (True,), (None,), (b"x",)])
def test_seed_refuses(parts: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        seed_for(*parts)  # type: ignore[arg-type]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_every_problem_once_an_epoch(size: int, count: int, seed: int) -> None:
    pool = [f"p{i}" for i in range(size)]
    stream = [name for step in range(3 * size) for name in shuffle(pool, seed=seed, step=step, count=count)]
    for epoch in range(len(stream) // size):
        assert stream[epoch * size : (epoch + 1) * size] == epoch_order(pool, seed=seed, epoch=epoch)
    assert set(Counter(stream[:size]).values()) == {1}


def test_selection_ignores_the_order_of_the_pool_and_follows_the_seed() -> None:
    pool = [f"p{i}" for i in range(50)]
    first = shuffle(pool, seed=0, step=7, count=8)
    assert first == shuffle(pool[::-1], seed=0, step=7, count=8)
    assert first != shuffle(pool, seed=1, step=7, count=8)
    assert first != shuffle(pool, seed=0, step=8, count=8)


@given(st.integers(1, 20), st.integers(1, 12), st.integers(0, 30))
def test_a_cycle_is_the_pool_in_its_order_again_and_again(size: int, count: int, step: int) -> None:
    pool = [f"p{i}" for i in range(size)]
    assert cycle(pool, seed=step, step=step, count=count) == [
        pool[i % size] for i in range(step * count, (step + 1) * count)
    ]


def test_a_cycle_by_hand() -> None:
    pool = ["easy", "middle", "hard"]
    steps = [cycle(pool, seed=0, step=step, count=2) for step in range(3)]
    assert steps == [["easy", "middle"], ["hard", "easy"], ["middle", "hard"]]


@pytest.mark.parametrize("select", SELECTIONS.values(), ids=SELECTIONS)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(0, 30), st.integers(1, 25))
def test_further_problems_are_others_in_an_order_that_rounds_go_on_with(
    select: Selection, size: int, count: int, step: int, more: int
) -> None:
    pool = [f"p{i}" for i in range(size)]
    taken = select(pool, seed=3, step=step, count=count)
    further = select(pool, seed=3, step=step, count=more, taken=taken)
    assert len(set(taken) | set(further)) == len(set(taken)) + len(further) == min(size, len(set(taken)) + more)
    one = select(pool, seed=3, step=step, count=1, taken=taken)
    rest = select(pool, seed=3, step=step, count=more, taken=[*taken, *one])
    assert [*one, *rest][:more] == further, "all at once, or one and then the rest"


def test_further_problems_by_hand() -> None:
    pool = ["easy", "middle", "hard", "harder", "hardest"]
    assert cycle(pool, seed=0, step=1, count=2, taken=["hard", "harder"]) == ["hardest", "easy"]
    orders = {tuple(shuffle(pool, seed=0, step=step, count=9, taken=["hard"])) for step in range(9)}
    assert len(orders) > 3, "each step has an order of its own"


def test_each_selection_has_its_word_in_the_settings() -> None:
    words = TrainSettings.model_fields["selection"].annotation
    assert set(get_args(words)) == SELECTIONS.keys() | {"adaptive"} and TrainSettings().selection == "shuffle"


@pytest.mark.parametrize("select", SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize(("pool", "step", "count"), [([], 0, 1), (["a", "a"], 0, 1), (["a"], -1, 1), (["a"], 0, 0)])
def test_selection_refuses(select: Selection, pool: list[str], step: int, count: int) -> None:
    with pytest.raises(ValueError):
        select(pool, seed=0, step=step, count=count)
