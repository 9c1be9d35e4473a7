"""Generated tests, on the embedded sandbox: wrong programs that they catch, and right ones that they must not fail."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from coderl_tasks.curation.stronger_tests import Strengthened, strengthen
from coderl_tasks.errors import InfraError
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.problems import Problem, Test
from coderl_tasks.services import Services


@pytest.fixture
async def judge(embedded: Services) -> AsyncIterator[Judge]:
    async with SandboxClient(embedded.sandbox_urls, max_concurrency=4) as client:
        yield Judge(client)


def problem(kind: str, tests: Sequence[tuple[str, str]], *solutions: str, words: str = "") -> Problem:
    made = tuple(Test(given, expected) for given, expected in tests)
    entry_point = "" if kind == "stdin" else "f"
    about = ("p", "taco", words, "", kind, entry_point)
    return Problem(*about, made, len(made), len(made), None, solutions, 0)  # type: ignore[arg-type]


LARGEST = problem(
    "stdin",
    [("3\n2 1 9\n", "9\n"), ("2\n4 5\n", "5\n"), ("4\n-3 2 0 7\n", "7\n")],
    "n = int(input())\nprint(max(map(int, input().split())))",
    "input()\nbest = -(10**9)\nfor x in map(int, input().split()):\n    best = x if x > best else best\nprint(best)",
)
LAST = "input()\nprint(input().split()[-1])"
AS_TEXT = "input()\nprint(max(input().split()))"
SORTED = "input()\nprint(sorted(map(int, input().split()))[-1])"
COUNT = problem("call", [("[[1, 2, 3], 2]", "1"), ("[[5, 5], 5]", "2")], "def f(xs, x):\n    return xs.count(x)")
FIRST = "def f(xs, x):\n    return len([y for y in xs if y >= x]) if xs[0] == x else 1"
MIDDLE = problem(
    "assert",
    [("", "assert f([1, 2, 3]) == 2"), ("", "assert f([4, 7, 6, 5]) == 6")],
    "def f(xs):\n    return sorted(xs)[len(xs) // 2]",
    words="Return the upper median, as f([9, 1, 4, 4]) == 4.",
)
UNSORTED = "def f(xs):\n    return xs[len(xs) // 2]"


@pytest.mark.parametrize(
    ("weak", "wrong", "right"),
    [
        (LARGEST, [LAST, AS_TEXT], SORTED),
        (COUNT, [FIRST], "def f(xs, x):\n    return sum(y == x for y in xs)"),
        (MIDDLE, [UNSORTED], "def f(xs):\n    ys = list(xs)\n    ys.sort()\n    return ys[len(ys) // 2]"),
    ],
    ids=["stdin", "call", "assert"],
)
async def test_wrong_programs_that_passed_are_caught_and_right_ones_are_not(
    judge: Judge, weak: Problem, wrong: list[str], right: str
) -> None:
    for code in (*wrong, right):
        assert (await judge.grade(weak, code)).passed
    found = await strengthen(weak, judge, [*wrong, right], most=8, seed=1)
    assert 1 <= len(found.tests) <= 8 and not found.reason
    assert set(found.first_failed) == set(wrong)
    stronger = weak.with_generated(found.tests)
    assert stronger.tests_total == len(weak.tests) + len(found.tests) and stronger.given() == weak
    for code in (right, *weak.solutions):
        grade = await judge.grade(stronger, code)
        assert grade.passed, grade.reason
    assert not any([(await judge.grade(stronger, code)).passed for code in wrong])
    assert await strengthen(weak, judge, [*wrong, right], most=8, seed=1) == found


async def test_mutants_of_the_reference_show_what_tests_are_missing(judge: Judge) -> None:
    found = await strengthen(MIDDLE, judge, [], most=8, seed=1)
    assert found.caught > 0 and not (await judge.grade(MIDDLE.with_generated(found.tests), UNSORTED)).passed
    assert len((await strengthen(MIDDLE, judge, [], most=1, seed=1)).tests) == 1


async def test_inputs_count_only_where_independent_references_agree(judge: Judge) -> None:
    # The second one is right for the given tests alone.
    two = replace(LARGEST, solutions=(LARGEST.solutions[0], LAST))
    found = await strengthen(two, judge, [AS_TEXT], most=8, seed=1)
    for given in found.tests:
        numbers = list(map(int, given.input.split()[1:]))
        assert max(numbers) == numbers[-1]


async def test_answers_that_change_from_run_to_run_are_no_tests(judge: Judge) -> None:
    code = (
        "import os\ndef f(xs):\n    return 2 if xs == [1, 2, 3] else 6 if xs == [4, 7, 6, 5] else os.urandom(9).hex()"
    )
    found = await strengthen(replace(MIDDLE, solutions=(code,), statement=""), judge, [UNSORTED], most=8, seed=1)
    assert found.tests == () and found.reason == "the references agree on no new input"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"statement": "If there are several answers, print any of them."}, "several answers may be right"),
        ({"solutions": ("print(0)",)}, "no reference passes"),
        ({"solutions": ()}, "no reference passes"),
        ({"tests": (Test("a\n\nb\n", "1\n"),)}, "their format is not understood"),
        ({"checker": json.dumps({"language": "python"})}, "a checker decides"),
        ({"comparator": "exact"}, "the comparator is exact"),
    ],
)
async def test_problems_that_cannot_be_strengthened_say_why(
    judge: Judge, changes: dict[str, object], reason: str
) -> None:
    found = await strengthen(replace(LARGEST, **changes), judge, [LAST], most=8, seed=1)  # type: ignore[arg-type]
    assert found == Strengthened(reason=found.reason) and reason in found.reason


async def test_a_slow_program_is_not_called_wrong(judge: Judge) -> None:
    slow = "def f(xs):\n    while xs not in ([1, 2, 3], [4, 7, 6, 5]): pass\n    return sorted(xs)[len(xs) // 2]"
    quick = replace(MIDDLE, time_limit_s=0.3)
    assert (await judge.grade(quick, slow)).passed
    found = await strengthen(quick, judge, [slow], most=4, seed=1)
    assert slow not in found.first_failed


async def test_a_program_of_the_reference_that_raises_is_no_test(judge: Judge) -> None:
    code = "def f(xs):\n    assert len(set(xs)) == len(xs)\n    return sorted(xs)[len(xs) // 2]"
    found = await strengthen(replace(MIDDLE, solutions=(code,), statement=""), judge, [UNSORTED], most=8, seed=1)
    assert found.tests and all("raises" not in test.expected for test in found.tests)
    assert (await judge.grade(MIDDLE.with_generated(found.tests), code)).passed


async def test_a_dead_sandbox_is_an_error_and_not_an_empty_result(closed: str) -> None:
    async with SandboxClient([closed], attempts=2, backoff_s=0.05, outage_patience_s=0.2) as client:
        with pytest.raises(InfraError):
            await strengthen(MIDDLE, Judge(client), [], most=4, seed=1)
