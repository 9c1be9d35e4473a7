"""selection=adaptive as a function of the pool and of the outcomes of the committed steps."""

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import comb

import numpy as np
import pytest

from coderl_tasks.policy.selection import EXPLORED, HALF_AGE, RESTS, Adaptive, Outcome, expected_signal, outcome
from coderl_tasks.problems.problem import Problem

G = 8
POOL = [f"p{i}" for i in range(40)]


def problem(name: str, split: str = "own", length: int = 100) -> Problem:
    return Problem(name, split, "x" * length, "", "stdin", "", (), 0, 0, None, (), 0)


def adaptive(
    steps: Sequence[Sequence[Outcome]],
    profiled: dict[str, tuple[int, int]] | None = None,
    lag: int = 0,
    problems: Sequence[Problem] | None = None,
) -> Adaptive:
    pool = problems or [problem(name) for name in POOL]
    return Adaptive(pool, profiled or {}, lambda: steps, completions=G, lag=lag)


def drawn(selection: Adaptive, step: int, seeds: int = 200, count: int = 4) -> Counter[str]:
    """How often each problem is among those of `step`, over many seeds."""
    pool = POOL
    return Counter(name for seed in range(seeds) for name in selection(pool, seed=seed, step=step, count=count))


@pytest.mark.parametrize(("right", "wrong"), [(1, 1), (3, 2), (1, 17), (17, 2)])
@pytest.mark.parametrize("completions", [2, 3, 4])
def test_the_expected_signal_is_the_integral_over_the_pass_rate(right: int, wrong: int, completions: int) -> None:
    # Of whole parameters the density is a polynomial, and its integral a fraction.
    density = right * comb(right + wrong - 1, right)

    def integral(a: int, b: int) -> Fraction:  # of p^a (1-p)^b from 0 to 1
        return Fraction(1, (a + b + 1) * comb(a + b, a))

    equal = sum(density * integral(right - 1 + ups, wrong - 1 + completions - ups) for ups in (0, completions))
    found = expected_signal(np.array([float(right)]), np.array([float(wrong)]), completions)
    assert found[0] == pytest.approx(float(1 - equal), abs=1e-12)


def test_an_outcome_is_of_what_counts_and_a_group_of_equal_rewards_is_pure() -> None:
    assert outcome([1.0, 0.0, None, 1.0]) == (2.0, 3)
    assert outcome([1.0, -0.1, -0.1]) == (1.0, 3), "what has no code is as wrong as any"
    assert outcome([0.25, 0.75]) == (1.0, 2)
    assert outcome([0.3, 0.3]) == (0.0, 2) and outcome([0.7, 0.7]) == (2.0, 2)
    assert outcome([None]) == (0.0, 0)


def test_solved_and_hopeless_problems_are_left_alone_and_come_back_as_their_evidence_fades() -> None:
    names = {"solved": POOL[:10], "hopeless": POOL[10:20], "between": POOL[20:]}
    right = {"solved": G, "hopeless": 0, "between": G / 2}
    steps = [[(name, float(right[kind]), G) for kind, group in names.items() for name in group] for _ in range(2)]
    quiet = [*steps, *([] for _ in range(400))]
    for selection, step, least, most in ((adaptive(steps), 2, 0.95, 0.99), (adaptive(quiet), 402, 0.8, 0.93)):
        times = drawn(selection, step, count=EXPLORED)
        share = {kind: sum(times[name] for name in group) / times.total() for kind, group in names.items()}
        assert least < share["between"] <= most
        # One in EXPLORED is of those least known, which here are any.
        assert share["solved"] > 0.15 / EXPLORED and share["hopeless"] > 0.15 / EXPLORED
    sizes = [G] * 4
    now = adaptive(steps).forecast(2, POOL[20:24], sizes)
    later = adaptive(quiet).forecast(402, POOL[20:24], sizes)
    assert (now.seen, now.solved, now.hopeless) == (40, 10, 10) and now.signal > 0.9
    assert later.seen == 40 and later.solved + later.hopeless < 20


def test_what_is_not_seen_is_explored_and_is_worth_what_problems_like_it_are() -> None:
    # Of each split half is seen: `hard` is never solved, of `mixed` every second completion.
    problems = [problem(name, "hard" if number < 20 else "mixed") for number, name in enumerate(POOL)]
    steps = [[(name, G / 2 if number >= 20 else 0.0, G) for number, name in enumerate(POOL) if number % 2]]
    selection = adaptive(steps, problems=problems)
    beliefs = selection.beliefs(1)
    unseen = [number for number in range(40) if not number % 2]
    assert not beliefs.evidence[unseen].any() and beliefs.evidence[1] > 0.9 * G
    hard, mixed = (beliefs.right / (beliefs.right + beliefs.wrong))[[0, 20]]
    assert 0.1 < hard < 0.22 < 0.3 < mixed < 0.4, "towards the whole pool's, which is a quarter"
    # All seen but one, and all that are seen between: it is drawn because nothing is known of it.
    seen = adaptive([[(name, 0.5 * G, G) for name in POOL[1:]] + [(POOL[1], G, G)] * 20])
    chosen = [seen(POOL, seed=seed, step=1, count=EXPLORED) for seed in range(20)]
    assert all(POOL[0] in names for names in chosen)
    assert drawn(adaptive([[]]), 1).keys() == set(POOL), "nothing is known: any of them"


def test_long_statements_are_worth_what_those_nearly_as_long_were() -> None:
    problems = [problem(name, length=100 + number) for number, name in enumerate(POOL)]
    steps = [[(name, G / 2 if number < 20 else 0.0, G) for number, name in enumerate(POOL) if number % 2]]
    beliefs = adaptive(steps, problems=problems).beliefs(1)
    unseen = (beliefs.right / (beliefs.right + beliefs.wrong))[::2]
    assert min(unseen[:8]) > 0.3 and max(unseen[13:]) < 0.18


def test_what_was_sampled_rests_for_some_steps() -> None:
    steps = [[(name, G / 2, G) for name in POOL[:8]], *([] for _ in range(2 * RESTS))]
    shares = [
        sum(times[name] for name in POOL[:8]) / times.total()
        for times in (drawn(adaptive(steps), step) for step in (1, RESTS, RESTS + 1))
    ]
    assert max(shares[:2]) < 0.05 and shares[2] > 0.25, "nothing is known of the others"
    # Where all rest, they are drawn as if none did.
    every = [[(name, 0.0 if number < 20 else G / 2, G) for number, name in enumerate(POOL)]]
    times = drawn(adaptive(every), 1)
    assert sum(times[name] for name in POOL[20:]) > 0.8 * times.total()


def test_the_profile_is_evidence_that_grows_old() -> None:
    profiled = {name: (number % 3, 2) for number, name in enumerate(POOL)}
    fresh, old = adaptive([], profiled), adaptive([[] for _ in range(100)], profiled)
    times = drawn(fresh, 0)
    one_of_two = sum(times[name] for name in POOL[1::3]) / times.total()
    assert one_of_two > 0.6, "a third of the pool"
    assert fresh.beliefs(0).evidence[0] > 2 * old.beliefs(100).evidence[0] > 0
    assert fresh.forecast(0, POOL, [G] * len(POOL)).seen == 0, "by a step"
    assert not adaptive([], {"another": (1, 2), POOL[0]: (0, 0)}).beliefs(0).evidence.any()


def test_evidence_fades_as_fast_as_the_policy_moves() -> None:
    def evidence(right: Callable[[int, int], float]) -> tuple[float, float, int]:
        """Of the first problem, which every fifth of 40 steps samples: the evidence, and the pass rate it suggests; and
        the half age."""
        numbers = [[(step * G + place) % len(POOL) for place in range(G)] for step in range(40)]
        outcomes = [[(POOL[number], right(step, number), G) for number in each] for step, each in enumerate(numbers)]
        beliefs = adaptive(outcomes).beliefs(40)
        return beliefs.evidence[0], beliefs.right[0] / (beliefs.right[0] + beliefs.wrong[0]), beliefs.half_age

    steady, its_rate, slow = evidence(lambda _, number: 1.0 if number % 2 else 7.0)
    moved, new_rate, fast = evidence(lambda step, _: 1.0 if step < 20 else 7.0)
    assert steady > 40 and its_rate == pytest.approx(7 / G, abs=0.02), "all eight groups count"
    assert moved < 10 and new_rate > 0.65, "with a half age of 50 it would be a half"
    assert (slow, fast) == (HALF_AGE, 1)


def test_a_step_is_chosen_the_same_whenever_it_is_asked() -> None:
    rng = np.random.default_rng(0)
    steps = [[(name, float(rng.integers(2 * G + 1)) / 2, G) for name in rng.choice(POOL, 5)] for _ in range(48)]
    steps[3], steps[4] = [], [(POOL[0], 0.0, 0)]  # nothing was sampled, nothing was graded
    so_far: list[list[Outcome]] = []
    growing = adaptive(so_far, lag=2)
    chosen = {}
    half_ages = set()
    for step in range(50):
        chosen[step] = growing(POOL, seed=1, step=step, count=6)
        half_ages.add(growing.beliefs(step).half_age)
        assert len(set(chosen[step])) == 6
        so_far.extend(steps[step : step + 1])
    assert {HALF_AGE, 1} < half_ages
    for step in (49, 30, 13, 7, 5, 2, 0):
        assert (
            adaptive(steps, lag=2)(POOL, seed=1, step=step, count=6)
            == chosen[step]
            == growing(POOL, seed=1, step=step, count=6)
        ), "asked again when more is committed, by this process or another one"
    assert len({tuple(names) for names in chosen.values()}) == 50
    assert adaptive(steps[:5], lag=2)(POOL, seed=1, step=7, count=6) == chosen[7], "step 7 is sampled before 5 is done"
    with pytest.raises(ValueError, match="the first 6 steps, of which 5 are done"):
        adaptive(steps[:5], lag=1)(POOL, seed=1, step=7, count=6)
    assert adaptive(steps, lag=1)(POOL, seed=1, step=7, count=6) != chosen[7]


def test_further_problems_are_others_and_a_small_pool_repeats() -> None:
    selection = adaptive([[(POOL[0], 3.0, G)]])
    taken = selection(POOL, seed=3, step=1, count=20)
    further = selection(POOL, seed=3, step=1, count=15, taken=taken)
    assert len({*taken, *further}) == 35
    one = selection(POOL, seed=3, step=1, count=1, taken=taken)
    assert [*one, *selection(POOL, seed=3, step=1, count=14, taken=[*taken, *one])] == further
    few = adaptive([], problems=[problem(name) for name in "abc"])
    repeated = few(["a", "b", "c"], seed=0, step=0, count=7)
    assert sorted(repeated[:3]) == ["a", "b", "c"] and repeated[3:] == [*repeated[:3], repeated[0]]
    assert few(["a", "b", "c"], seed=0, step=0, count=2, taken=repeated) == []
    for pool, step, count in (([], 0, 1), (["a", "b", "c"], -1, 1), (["a", "b", "c"], 0, 0), (["a"], 0, 1)):
        with pytest.raises(ValueError):
            few(pool, seed=0, step=step, count=count)
