"""Which candidate inputs become tests, and how one program is run on many inputs."""

import json
from collections.abc import AsyncIterator

import pytest

from coderl_tasks.curation.chosen_tests import (
    Answer,
    Goal,
    choose,
    features,
    is_meant,
    kind_of_text,
    kind_of_value,
    kinds_of_inputs,
    quick_answers,
)
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.problems import Problem, Test
from coderl_tasks.services import Services


@pytest.fixture
async def judge(embedded: Services) -> AsyncIterator[Judge]:
    async with SandboxClient(embedded.sandbox_urls, max_concurrency=4) as client:
        yield Judge(client)


def problem(kind: str) -> Problem:
    return Problem("p", "taco", "", "", kind, "f", (Test("", ""),), 1, 1, None, (), 0)  # type: ignore[arg-type]


def test_tests_are_chosen_that_fail_the_most_programs_then_those_that_few_tests_fail() -> None:
    assert choose([Goal({0}, 0), Goal({1, 2}, 0), Goal({1}, 0)], 2) == [1, 0]
    # Failed by two given tests, a program needs a third one less than another needs its first.
    assert choose([Goal({0}, 2), Goal({1}, 0)], 1) == [1]
    assert choose([Goal({0}, 3)], 4) == []
    assert choose([Goal({4, 5, 6, 7}, 0)], 9) == [4, 5, 6]


def test_a_test_of_a_new_kind_counts_less_than_one_that_fails_a_program() -> None:
    given, new = [{"short"}, {"short"}, {"short"}], [{"short"}, {"long"}, {"short", "even"}]
    assert sorted((goal.times, sorted(goal.tests)) for goal in kinds_of_inputs(given, new)) == [
        (0, [1]), (0, [2]), (3, [0, 2]),
    ]  # fmt: skip
    assert choose(kinds_of_inputs(given, new), 3) == [1, 2]
    assert choose([*kinds_of_inputs(given, new), Goal({0}, 0)], 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([[[3, 1, 2]]], [[[1, 2, 3]]]),
        ([[[1, 2]]], [[[1, 1]]]),
        ([["Ab"]], [["ab"]]),
        ([[3, 3]], [[3, 2]]),
        ([[-4]], [[4]]),
        ([[5]], [[5], [5]]),
        ([[0, 3]], [[0, 0]]),
        ([["a b c"]], [["a b c d"]]),
        ([[{"a": 1}]], [[{"a": -1}]]),
    ],
)
def test_inputs_of_other_kinds_have_other_features(one: list[list[object]], other: list[list[object]]) -> None:
    assert features(one, "7") != features(other, "7") and features(one, "7") != features(one, "-7")
    assert features(one, "7") == features(json.loads(json.dumps(one)), "7")


@pytest.mark.parametrize(
    ("text", "kind"),
    [("3 -4\n", "integers"), ("0.5\n2\n", "decimals"), ("YES\n1\n", "text"), ("1\n\n2\n", "empty"), ("", "empty")],
)
def test_kinds_of_printed_answers(text: str, kind: str) -> None:
    assert kind_of_text(text) == kind


@pytest.mark.parametrize(
    ("value", "given", "statement", "is_right"),
    [
        (8, {"int"}, "", True),
        (0.5, {"int"}, "Compute 2 to the power of n.", False),
        (2, {"float"}, "", True),
        (None, {"int"}, "Return the index.", False),
        (None, {"int"}, "Return None if there is none.", True),
        ([], {"list"}, "Keep the even numbers.", True),
        ([], {"list"}, "Keep the even numbers. At least one number remains.", False),
        ("", {"int"}, "", False),
    ],
)
def test_answers_of_another_kind_show_an_input_that_is_not_meant(
    value: object, given: set[str], statement: str, is_right: bool
) -> None:
    assert is_meant(Answer(json.dumps(value)), kind_of_value(value), given, statement) == is_right


def test_a_word_that_the_statement_names_may_be_printed_where_numbers_are() -> None:
    assert is_meant(Answer("IMPOSSIBLE\n"), "text", {"integers"}, "Print Impossible if there is no way.")
    assert not is_meant(Answer("nan\n"), "text", {"integers"}, "Print the mean.")


async def test_a_program_answers_many_inputs_in_one_process(judge: Judge) -> None:
    code = (
        "import sys\nn = int(input())\nif n == 2: sys.exit(0)\nif n == 3: sys.exit('no')\n"
        "while n == 4: pass\nprint(n, sys.stdin.read().split())"
    )
    inputs = ["1\na b\n", "2\n", "3\n", "x\n", "4\n", "5\n"]
    assert await quick_answers(problem("stdin"), code, inputs, judge, 0.3) == [
        Answer("1 ['a', 'b']\n"), Answer(""), Answer("", "SystemExit"), Answer("", "ValueError"), None,
        Answer("5 []\n"),
    ]  # fmt: skip


async def test_a_function_answers_many_inputs_in_one_process(judge: Judge) -> None:
    code = "def f(a, b):\n    print('noise')\n    return [a // b]"
    found = await quick_answers(problem("call"), code, ["[7, 2]", "[1, 0]"], judge, 0.3, "f")
    assert found == [Answer("[3]"), Answer("", "ZeroDivisionError")]
    assert await quick_answers(problem("assert"), code, ["(7, 2)"], judge, 0.3, "f") == [Answer("[3]")]
    ends = "import os\ndef f(a, b):\n    os._exit(0)"
    assert await quick_answers(problem("call"), ends, ["[7, 2]", "[1, 0]"], judge, 0.3, "f") == [None, None]
