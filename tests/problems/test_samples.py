"""Samples are read from a statement only where there is no doubt."""

import pytest

from coderl_tasks.problems import Problem, Test
from coderl_tasks.problems.samples import asserted, given_in_tests, samples

CODEFORCES = (
    "Add.\n\nInput\nTwo numbers.\n\nOutput\nOne.\n\n"
    "Examples\nInput\n1 2\n\nOutput\n3\n\nInput\n4 5\n\nOutput\n9\n\nNote\nEasy."
)
ATCODER = "### Sample Input 1\n```\n1 2\n```\n### Sample Output 1\n```\n3\n```\nThe sum is three, as one can see.\n"


def stating(statement: str, kind: str = "stdin", *tests: Test) -> Problem:
    name = "" if kind == "stdin" else "f"
    return Problem("p", "s", statement, "", kind, name, tests or (Test("1", "3"),), 1, 1, None, (), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        (CODEFORCES, [("1 2\n", "3\n"), ("4 5\n", "9\n")]),
        (ATCODER, [("1 2\n", "3\n")]),
        ("-----Example-----\nInput\n1 2\n\nOutput\n3\n\n-----Note-----\nx", [("1 2\n", "3\n")]),
        ("Sample Input 1\n\n1 2\n\nSample Output 1\n\n3\n\nThe sum is three, of course.", [("1 2\n", "3\n")]),
        ("Example\nInput:\n1 2\nOutput:\n3", [("1 2\n", "3\n")]),
        ("Input\n1 2\n\nOutput\n3", []),  # no heading says that these are samples
        ("Example\nInput\n1 2\n\n3 4\n\nOutput\n3", []),  # an empty line of the input, or one of the page?
        ("Example\nInput\n1 2\nOutput\n3\nThe sum is three, of course", []),
        ("Example\nInput\n1 2\nInput\n2 3\nOutput\n3", []),
        ("Sample Input\n1 2\nOutput for the Sample Input\n3", []),
        ("Example\nNothing is shown here.", []),
    ],
)
def test_blocks(statement: str, found: list[tuple[str, str]]) -> None:
    assert [(each.test.input, each.test.expected) for each in samples(stating(statement))] == found


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        (">>> f(1, 'a')\n[1, 2]\n>>> f(2)\nTrue", [('[1, "a"]', "[1, 2]"), ("[2]", "true")]),
        ("f(1) == 2", [("[1]", "2")]),
        ("Example: `f([1, 2])` returns `'a'`, as it should.", [("[[1, 2]]", '"a"')]),
        ("Example: f(4) returns 3.5. It is so.", [("[4]", "3.5")]),
        ("f(64) ==> true\nf(0) ➞ None", [("[64]", "true"), ("[0]", "null")]),
        ("assert f((1, 2)) == {'a': (1,)}", [("[[1, 2]]", '{"a": [1]}')]),
        ("`f('x')` is `'y'`", [('["x"]', '"y"')]),
        ("f(1) returns 2 * n", []),
        ("f(1) returns 1, 2", []),
        ("f(4) returns 4 characters", []),
        ("f(1) == [1] + [2]", []),
        ("2 * f(1) == 4; not f(2) == 3; sorted(f(1)) == [1]; g.f(1) == 2; half(1) == 2", []),
        ("f(n) == 2, f(x=1) == 2, f(1) == n", []),
        (">>> f(1)\nTraceback (most recent call last):\nValueError", []),
        (">>> round(f(1), 2)\n3", []),
        ("f(1) is the answer", []),
    ],
)
def test_calls(statement: str, found: list[tuple[str, str]]) -> None:
    problem = stating(statement, "call", Test("[1]", "2"))
    assert [(each.test.input, each.test.expected) for each in samples(problem)] == found


def test_a_tuple_is_known_and_not_run() -> None:
    (sample,) = samples(stating("f((1, 2)) == 3", "call", Test("[[1, 2]]", "3")))
    assert sample.given == [[1, 2]] and not sample.is_exact


def test_what_tests_give_is_known_unless_it_is_computed() -> None:
    assert given_in_tests(stating("", "stdin", Test(" 1  2\n", "3"))) == [["1", "2"]]
    assert given_in_tests(stating("", "call", Test("[1, [2]]", "3"))) == [[1, [2]]]
    script = "def check(candidate):\n    assert candidate(1, (2,)) == 3\n    assert f('a') is None\ncheck(f)"
    assert given_in_tests(stating("", "assert", Test("", script))) == [[1, [2]], ["a"]]
    assert given_in_tests(stating("", "assert", Test("", "for n in range(3):\n    assert f(n) == n"))) is None


def test_only_a_plain_assertion_says_what_is_expected() -> None:
    assert asserted("assert f(1, (2,)) == (3,)", "f") == ([1, [2]], [3])
    for script in (
        "assert f(1) > 2",
        "assert g(1) == 2",
        "assert f(n) == 2",
        "x = 1\nassert f(1) == 2",
        "assert f(",
        "",
    ):
        assert asserted(script, "f") is None
