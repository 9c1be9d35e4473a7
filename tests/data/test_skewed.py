"""data/skewed: what its card says, right solutions, and rows that the recipe makes again."""

import json
import random
import re
import subprocess
import sys
from itertools import islice

import pytest

from coderl_tasks.paths import DATA
from coderl_tasks.problems.loading import LoadResult, load_problems
from data.recipes.cases import solves
from data.recipes.compose import Combination, Composed
from data.recipes.layouts import STDIN_LAYOUTS
from data.recipes.make_skewed import (
    ALWAYS,
    SAMPLES,
    TEST_SIZES,
    TRAIN_SIZES,
    candidates,
    chosen,
    rows_of_test_side,
    with_tests,
)
from data.recipes.operations import AGGREGATES, FILTERS, TRANSFORMS

FOLDER = DATA / "skewed"
CARD = (FOLDER / "README.md").read_text()
RECORDED = json.loads((FOLDER / "candidates.json").read_text())
PROFILE = [json.loads(line) for line in (FOLDER / "profile.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def sides() -> dict[str, LoadResult]:
    return {role: load_problems(str(FOLDER), role=role) for role in ("train", "test")}


def _lines(name: str) -> list[str]:
    return (FOLDER / f"{name}.jsonl").read_text().splitlines()


def test_the_card_says_how_many_problems_there_are(sides: dict[str, LoadResult]) -> None:
    said = re.findall(r"^\| (\w+) \| (train|test) \| (\d+) \| (\d+) \|", CARD, re.MULTILINE)
    found = [
        (split, role, str(len(of_split)), str(sum(problem.kind == "call" for problem in of_split)))
        for role, sizes in (("train", TRAIN_SIZES), ("test", TEST_SIZES))
        for split in sizes
        for of_split in [[problem for problem in sides[role].problems if problem.split == split]]
    ]
    assert said == found
    assert all(side.dropped.is_empty() for side in sides.values())
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 2**21


def test_the_card_gives_the_shares_of_the_recorded_samples(sides: dict[str, LoadResult]) -> None:
    assert [(each["split"], each["source_row"], each["problem_id"]) for each in PROFILE] == [
        (problem.split, problem.source_row, problem.problem_id) for problem in sides["train"].problems
    ]
    assert {len(each["passed"]) for each in PROFILE} == {SAMPLES}
    assert all(len(each["completion_tokens"]) == SAMPLES for each in PROFILE)
    passes = [each["passed"].count("1") for each in PROFILE]
    for name, low, high in (("never", 0, 0), ("sometimes", 1, ALWAYS - 1), ("always", ALWAYS, SAMPLES)):
        count = sum(low <= each <= high for each in passes)
        cells = f"| {count} | {count / len(PROFILE):.1%} |"
        assert re.search(rf"^\| {name}: .* {re.escape(cells)}$", CARD, re.MULTILINE), (name, cells)


def test_the_recipe_makes_the_rows_again() -> None:
    places = chosen("primeintellect", RECORDED["primeintellect"])
    assert len(places) == TRAIN_SIZES["primeintellect"][0]
    made = [json.dumps(row) for row in islice(candidates("primeintellect", set()), 12)]
    kept = [made[place] for place in places if place < len(made)]
    assert len(kept) > 4
    assert kept == _lines("primeintellect-train")[: len(kept)]
    assert [json.dumps(row) for row in islice(rows_of_test_side("codeforces", set()), 6)] == _lines("codeforces-test")[
        :6
    ]


def test_too_few_candidates_of_a_class_are_an_error() -> None:
    with pytest.raises(ValueError, match="0 candidates are always solved, 33 are wanted"):
        chosen("primeintellect", [0] * 300)


def test_no_combination_is_on_both_sides() -> None:
    def combinations(name: str) -> set[str]:
        metadata = [json.loads(line)["metadata"] for line in _lines(name)]
        return {(json.loads(each) if isinstance(each, str) else each)["combination"] for each in metadata}

    train = set.union(*(combinations(f"{split}-train") for split in TRAIN_SIZES))
    test = set.union(*(combinations(f"{split}-test") for split in TEST_SIZES))
    assert len(train) > 400
    assert len(test) > 100
    assert not train & test
    assert max(key.count("/") for key in train) == 5
    assert {key.count("/") for key in test} == {2}


def test_solutions_of_chains_and_untaught_layouts_pass_as_programs(sides: dict[str, LoadResult]) -> None:
    problems = [each for each in sides["train"].problems if each.solutions and each.kind == "stdin"]
    beyond = ("in this order", "semicolons", "followed by n.", "at most three of the integers")
    for mark in beyond:
        for problem in random.Random(0).sample([each for each in problems if mark in each.statement], 2):
            test = problem.tests[0]
            ran = subprocess.run(
                [sys.executable, "-I", "-S", "-c", problem.solutions[0]],
                input=test.input,
                text=True,
                capture_output=True,
            )
            assert ran.stdout.split() == str(test.expected).split(), problem.statement


def test_a_chain_is_a_sentence_and_a_step_of_the_program_each_in_their_order() -> None:
    step = {each.name: each for each in (*FILTERS, *TRANSFORMS)}
    total = next(each for each in AGGREGATES if each.name == "largest")
    earlier = (step["half"], step["not_first"], step["even"])
    combination = Combination(total, step["plus"], step["positive"], earlier)  # type: ignore[arg-type]
    chain = Composed(combination, STDIN_LAYOUTS[1], ("4", "", "", "", ""), (0, 0, 0), "solve")
    assert (combination.key, combination.operations) == ("largest/plus/positive/even/not_first/half", 6)
    assert chain.task() == (
        "You are given n integers (n >= 2). Do the following in this order, each on what the step before leaves. "
        "Halve each number, rounding down. Keep only the numbers after the first one. Keep only the even numbers. "
        "Keep only the positive numbers. Add 4 to each number. Print the largest number. Print 0 if no number remains."
    )
    assert chain.program().splitlines()[1:] == [
        "b = [x // 2 for x in a]",
        "b = b[1:]",
        "b = [x for x in b if x % 2 == 0]",
        "b = [x + 4 for x in b if x > 0]",
        "print(max(b, default=0))",
    ]
    assert (chain.apply([9, 9, -3, 5, 8], 0), chain.apply([8, 3], 0), len(chain.shortened())) == (8, 0, 5)
    problem, cases = next(with_tests(iter([chain] * 20), random.Random(1)))
    assert not any(all(solves(each.program(), problem, case) for case in cases) for each in chain.shortened())
