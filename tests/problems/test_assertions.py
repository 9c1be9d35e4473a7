"""Rows whose tests are assertions: MBPP's, HumanEval's, pytest files and plain statements."""

from typing import Any

import pytest

from coderl_tasks.filtering.rows import RowRules, sanity
from coderl_tasks.problems.assertion_tests import count_assertions, entry_point_of, signatures, with_given_code
from coderl_tasks.problems.problem import Problem, RowDropped
from coderl_tasks.problems.raw_row import problem_from_row
from coderl_tasks.problems.raw_tests import normalize_tests
from coderl_tasks.sandbox_programs import ASSERTION_JUDGE

TESTS = ["assert longest([Pair(5, 24)], 1) == 1", "assert longest([Pair(1, 2), Pair(3, 4)], 2) == 2"]
MBPP = {
    "task_id": 601,
    "text": "Write a function to find the longest chain.",
    "code": "class Pair(object):\r\n\tdef __init__(self, a, b):\r\n\t\tpass\r\ndef longest(arr, n):\r\n\treturn n",
    "test_setup_code": "import math",
    "test_list": TESTS,
    "challenge_test_list": ["assert longest([], 0) == 0"],
}
HUMAN_EVAL = {
    "task_id": "HumanEval/38",
    "prompt": 'import math\n\ndef encode(s: str):\n    return s[::-1]\n\n\ndef decode(s: str):\n    """ Undo it. """\n',
    "canonical_solution": "    return s[::-1]\n",
    "test": "\ndef check(candidate):\n    assert candidate(encode('ab')) == 'ab'\n    assert candidate('') == ''",
    "entry_point": "decode",
}


def problem(row: dict[str, Any]) -> Problem:
    return problem_from_row(row, split="s", source_row=0)


def test_a_row_of_mbpp_is_a_problem_with_a_test_per_assertion() -> None:
    found = problem(MBPP)
    assert found.kind == "assert" and found.entry_point == "longest" and found.statement == MBPP["text"]
    assert found.problem_id == "601"
    scripts = [test.expected for test in found.tests]
    assert scripts == [f"import math\n{text}" for text in [*TESTS, "assert longest([], 0) == 0"]]
    assert {test.input for test in found.tests} == {""}
    assert "\r" not in found.solutions[0] and found.solutions[0].startswith("class Pair")
    # What the tests call has to be named to the policy, and nothing else: no bodies, no answers.
    assert "def longest(arr, n):" in found.starter_code and "def __init__(self, a, b)" in found.starter_code
    assert "return" not in found.starter_code and "assert" not in found.starter_code


def test_an_empty_test_list_takes_no_other_tests_place() -> None:
    found = problem({"prompt": "p", "test_list": [], "tests": ["assert f(1) == 2"]})
    assert [test.expected for test in found.tests] == ["assert f(1) == 2"]


def test_the_sanitized_mbpp_has_other_columns() -> None:
    row = {"prompt": "Add.", "code": "def add(a, b):\n    return a + b", "test_imports": ["import math"],
           "test_list": ["assert math.isclose(add(1, 2), 3)"]}  # fmt: skip
    found = problem(row)
    assert found.statement == "Add." and found.entry_point == "add" and found.solutions == (row["code"],)
    assert found.tests[0].expected == "import math\nassert math.isclose(add(1, 2), 3)"


def test_a_function_with_the_name_of_a_builtin_is_the_programs() -> None:
    row = {"text": "t", "code": "def sum(a, b):\n    return 6", "test_list": ["assert sum(10, 15) == 6"]}
    found = problem(row)
    assert found.entry_point == "sum" and found.tests[0].expected.startswith("from solution import sum\n")


def test_a_class_with_the_name_of_a_library_class_is_the_programs_where_the_tests_use_nothing_else_of_it() -> None:
    judge: dict[str, Any] = {"__name__": "judge"}
    exec(ASSERTION_JUDGE, judge)
    names = judge["USUAL_NAMES"].keys() - {"np"}
    assert len(names) >= 6
    for name in names:
        row = {
            "prompt": "p",
            "tests": [f"assert {name}(1).size == 1", f"from solution import {name}\nassert {name}(2)"],
        }
        found = problem(row)
        assert [test.expected for test in found.tests] == [
            f"from solution import {name}\n\nassert {name}(1).size == 1",
            row["tests"][1],
        ]
        assert found.entry_point == name and problem({**row, "tests": normalize_tests(row["tests"])}) == found
    future = (
        problem({"prompt": "p", "tests": ["from __future__ import annotations\nassert deque(1)"]}).tests[0].expected
    )
    compile(future, "test", "exec")
    assert "from solution import deque" in future
    for tests in (
        ["assert Counter(f([1])) == Counter([1])"],
        ["assert Counter([1]) == {1: 1}", "assert f(1) == 1"],
        ["import solution\nassert Counter(solution.f([1])) == Counter([1])"],
        ["from collections import deque\nassert f(deque([1])) == 1"],
    ):
        assert [test.expected for test in problem({"prompt": "p", "tests": tests}).tests] == tests
    assert entry_point_of(["assert Counter(f([1])) == Counter([1])"]) == entry_point_of(["assert np.all(f(1))"]) == "f"


def test_a_test_may_import_the_program_by_another_name() -> None:
    test = "from solution import f as g\n\ndef test_it():\n    assert g(1) == 2"
    assert entry_point_of([test]) == "f" and signatures([test], []).startswith("def f(arg1)")
    assert signatures([test], ["def g(x):\n    return 0\n\ndef f(y):\n    return 2 * y"]).startswith("def f(y)")


def test_a_row_of_human_eval_keeps_what_its_prompt_gives() -> None:
    found = problem(HUMAN_EVAL)
    assert found.entry_point == "decode" and found.statement == "Undo it."
    assert found.solutions == (HUMAN_EVAL["prompt"] + HUMAN_EVAL["canonical_solution"],)
    script = found.tests[0].expected
    assert script.startswith("import math") and "def encode" in script and script.endswith("check(decode)")
    assert found.starter_code.endswith("def decode(s: str):\n    ") and "return s[::-1]" in found.starter_code
    program = with_given_code(found.starter_code, "def decode(s):\n    return encode(s)")
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["decode"]("ab") == "ba"


@pytest.mark.parametrize(
    "imports",
    [
        "from __future__ import annotations",
        "from __future__ import (  # names\n    annotations,\n    division,\n)",
        "from __future__ import annotations, \\\n    division",
        '"""What it does."""\n# how\nfrom __future__ import(annotations)',
        "from __future__ import (annotations,\r\n    division)\r",
    ],
)
def test_what_is_given_stands_below_imports_that_have_to_come_first(imports: str) -> None:
    names: dict[str, Any] = {}
    exec(
        with_given_code(
            "def half(x):\n    return x / 2\n\ndef f(x):\n    ", f"{imports}\ndef f(x):\n    return half(x)"
        ),
        names,
    )
    assert names["f"](4) == 2


@pytest.mark.parametrize(
    ("tests", "scripts"),
    [
        (["assert f(1) == 2", "assert f(2) == 3"], ["assert f(1) == 2", "assert f(2) == 3"]),
        (
            "x = 1\nassert f(x) == 2\ny = 2\nassert f(y) == 3",
            ["x = 1\nassert f(x) == 2", "x = 1\ny = 2\nassert f(y) == 3"],
        ),
        (
            "x = [1]\nassert f(x) == 2\nx = [2]\nassert f(x) == 3",
            ["x = [1]\nassert f(x) == 2", "x = [1]\nx = [2]\nassert f(x) == 3"],
        ),
        (
            "x = math.pi\nassert f(x) == 2\nassert f(x) == 3",
            ["x = math.pi\nassert f(x) == 2", "x = math.pi\nassert f(x) == 3"],
        ),
        ("s = f(0)\nassert s.push(1) is None\nassert s.pop() == 1", None),
        ("l=[3,1]\nassert f(l) is None\nassert l == [1,3]", None),
        ("a = [3]\nb = a\nassert f(a) is None\nc = b\nassert c == []", None),
        ({"inputs": [], "outputs": [], "assert_case": ["assert f(1) == 2"]}, ["assert f(1) == 2"]),
        ('["assert f(1) == 2"]', ["assert f(1) == 2"]),
        ("from solution import f\n\ndef test_it():\n    assert f(1) == 2\n    assert f(2) == 3\n", None),
        (
            "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(f(1), 2)\n",
            None,
        ),
    ],
)
def test_assertions_are_read_wherever_tests_may_be(tests: Any, scripts: list[str] | None) -> None:
    for row in ({"tests": tests}, {"ground_truth": tests}, {"reward_model": {"ground_truth": tests}}):
        found = problem({"prompt": "p", **row})
        assert found.kind == "assert" and found.entry_point == "f"
        assert [test.expected for test in found.tests] == (scripts or [tests])
        assert found.starter_code.startswith("def f(arg1)")


def test_normalized_assertions_are_read_again() -> None:
    normalized = normalize_tests(["assert f(1) == 2"])
    assert normalized == [{"input": "", "output": "assert f(1) == 2", "testtype": "assert", "metadata": {}}]
    assert (
        problem({"prompt": "p", "tests": normalized}).tests
        == problem({"prompt": "p", "tests": ["assert f(1) == 2"]}).tests
    )


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (["assert f(1 == 2"], "bad_assertion"),
        (["assert f(1) == 2", "f(2)"], "bad_assertion"),
        (["assert 1 == 1"], "no_entry_point"),
    ],
)
def test_assertions_that_no_program_can_be_held_to_are_dropped(tests: list[str], reason: str) -> None:
    with pytest.raises(RowDropped) as caught:
        problem({"prompt": "p", "tests": tests})
    assert caught.value.reason == reason


def test_min_tests_counts_assertions() -> None:
    found = problem(HUMAN_EVAL)
    assert found.tests_total == 1 and count_assertions(found.tests[0].expected) == 2
    assert sanity(found, RowRules(min_tests=2)) is None
    assert sanity(found, RowRules(min_tests=3)) == ("too_few_tests", "2 different tests, at least 3")
    assert sanity(problem(MBPP), RowRules(min_tests=3)) is None


def test_asserts_on_an_object_of_solution_are_tests_of_their_own() -> None:
    found = problem({"prompt": "p", "tests": "s = Solution()\nassert s.f(1) == 2\nassert s.f(2) == 3"})
    assert [test.expected for test in found.tests] == [
        "s = Solution()\nassert s.f(1) == 2",
        "s = Solution()\nassert s.f(2) == 3",
    ]
