"""The comparators that a problem may name; the default's rules are in tests/grading/test_compare.py."""

import json
import math
from typing import Any

import pytest

from coderl_tasks.problems import comparators
from coderl_tasks.problems.comparators import comparator, parse_value

TEXTS = [
    ("exact", "1 2\n", "1 2", True),
    ("exact", "1 2\n", "1 2\n\n", False),
    ("exact", "1 2", "1  2", False),
    ("exact", "0.5", "0.50", False),
    ("exact", "a\nb", "a\nc", False),
    ("exact", "\n1", "1", False),
    ("float", "3", "3.0000009", True),
    ("float", "\n3", "3.0000009", True),
    ("float", "3", "\n3", False),
    ("float", "3", "3.1", False),
    ("float:0.01", "3", "2.995", True),
    ("float:0.01", "3", "2.975", True),  # relative
    ("float:0.01,0", "3", "2.975", False),
    ("float:0,0.01", "0", "0.001", False),
    ("float:0,0.01", "1000000", "1009999.9", True),
    ("float:1e-9", "0.5", "0.5000001", False),
    ("float:0.1", "yes 1", "yes 1.05", True),
    ("float:0.1", "yes 1", "no 1", False),
    ("float:0.1", "nan", "nan", True),
    ("float:0.1", "1", "nan", False),
    ("float:0.1", "1", "1e999", False),
    ("float:0.1", "1 2", "1", False),
    ("float", "1" * 400, "2" * 400, False),  # each is infinite as a float
    ("float", "1e999", "1e999", True),
    ("case_insensitive", "YES\nNo", "yes\nnO", True),
    ("case_insensitive", "\nYES", "yes", True),
    ("case_insensitive", "Ä", "ä", False),  # ASCII letters alone
    ("case_insensitive", "YES", "YE", False),
    ("lines_any_order", "1 2\n3 4", "3  4\n1 2\n", True),
    ("lines_any_order", "1 2\n3 4", "4 3\n1 2", False),
    ("lines_any_order", "1\n1\n2", "1\n2\n2", False),
    ("lines_any_order", "0.5\n1", "1\n0.50000001", True),
    ("lines_any_order", "1\n2", "1\n2\n3", False),
    ("lines_any_order", "\n1\n2", "2\n1", True),
    ("lines_any_order", "\n1\n2", "2\n\n1", True),  # a blank line as one of them
    ("lines_any_order", "\n1\n2", "\n2", False),
    ("lines_any_order", "1\n2", "\n2\n1", False),
    ("tokens_any_order", "1 2\n3", "3 1\n\n2", True),
    ("tokens_any_order", "1 1 2", "1 2 2", False),
    ("tokens_any_order", "0.5 7", "7 0.5000000001", True),
    ("set", "1 2 3", "3 3 2 1 1", True),
    ("set", "1 2 3", "1 2", False),
    ("set", "0.5", "0.5 0.50000001", True),
    ("set", "0.5 0.50000001", "0.5", True),
    ("tokens_any_order", "0.0 0.0000015", "0.0000009 -0.0000005", True),  # crosswise only
    ("tokens_any_order", "0.0 0.0000015", "0.0000019 0.0000025", False),
    # The equal ones are not for each other.
    ("tokens_any_order", "1.0 1.000001", "1.000001 1.000002", True),
    ("tokens_any_order", "1.0 1.000001", "1.000001 1.000004", False),
    ("lines_any_order", "a 0.5\nb 10\nb 9", "b 9\nb 10\na 0.5000001", True),
    ("set", "1 2", "1 2 3", False),
]
VALUES = [
    ("exact", 0.5, 0.5000001, False),
    ("exact", [1, "a"], [1, "a"], True),
    ("float:0.1", [1, 2], [1.05, 2], True),
    ("float:0.1", {"a": 1}, {"a": 2}, False),
    ("float:0.1", "1", 1, False),
    ("float:0.1", None, 0, False),
    ("float", math.inf, math.inf, True),
    ("float", [math.nan], [math.nan], True),
    ("case_insensitive", ["Yes", {"a": "B"}], ["yEs", {"a": "b"}], True),
    ("case_insensitive", {"A": 1}, {"a": 1}, False),
    ("tokens_any_order", [[1, 2], [3]], [[3], [1, 2]], True),
    ("tokens_any_order", [[1, 2], [3]], [[3], [2, 1]], False),
    ("lines_any_order", [0.5, 1], [1, 0.50000001], True),
    ("lines_any_order", [[0.5, "b"], [10.5, "a"]], [[10.50000001, "a"], [0.50000001, "b"]], True),
    ("set", [0.5], [0.5, 0.50000001], True),
    ("lines_any_order", [1, True], [True, True], True),  # as in Python
    ("lines_any_order", [1, 1, 2], [1, 2, 2], False),
    ("set", [1, 2], [2, 2, 1], True),
    ("set", [1, 2], [2], False),
    ("set", 1, 1, True),
    ("set", [1], 1, False),
]


@pytest.mark.parametrize(("name", "expected", "actual", "right"), TEXTS)
def test_an_output_is_right_or_not(name: str, expected: str, actual: str, right: bool) -> None:
    difference = comparator(name).text(expected, actual.encode())
    assert (difference is None) == right, difference
    assert comparator(name).text(expected, expected.encode()) is None, "the expected output itself is right"


@pytest.mark.parametrize(("name", "expected", "actual", "right"), VALUES)
def test_a_value_is_right_or_not(name: str, expected: Any, actual: Any, right: bool) -> None:
    wanted, got = (parse_value(json.dumps(value)) for value in (expected, actual))
    assert (comparator(name).value(wanted, got) is None) == right
    assert comparator(name).value(wanted, wanted) is None


def test_a_value_of_another_length_is_not_written_as_text() -> None:
    cyclic: list[Any] = []
    cyclic.append(cyclic)  # which has no text
    assert comparator("lines_any_order").value([1], [cyclic, 1]) == "elements: expected 1, got 2"


def test_numbers_too_large_for_a_float_are_not_close() -> None:
    assert not comparator("float").accepts("call", "1" * 5000, "2" * 5000)


@pytest.mark.parametrize("name", ["tokens", "exact", "float", "case_insensitive", "lines_any_order", "set"])
@pytest.mark.parametrize("depth", [500, 900])
def test_a_deep_value_is_an_answer_like_any_other(name: str, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    assert not comparator(name).accepts("call", "[1]", deep)
    assert not comparator(name).accepts("call", deep, "[1]")


@pytest.mark.parametrize("name", ["", "token", "float:", "float:x", "float:-1", "float:1,2,3", "float:inf", "set:1"])
def test_a_name_that_is_none_says_what_there_is(name: str) -> None:
    if name == "float:":  # without tolerances
        assert comparator(name).text("1", b"1.0000001") is None
        return
    with pytest.raises(ValueError, match="float:"):
        comparator(name)


@pytest.mark.parametrize("name", ["exact", "float", "lines_any_order", "tokens_any_order", "set"])
def test_any_bytes_may_come_and_differences_are_named(name: str) -> None:
    compare = comparator(name)
    for got in (b"", b"\xff\xfe\x00", b"\x1b[31m" * 1000, "\u202e".encode(), b"9" * 100_000):
        difference = compare.text("1 2\n3", got)
        assert difference is not None and len(difference) < 300 and difference.isprintable()


def test_many_elements_that_differ_by_little_are_refused_without_trying_all_pairs() -> None:
    wanted = "\n".join(f"{number}.5" for number in range(20_000))
    got = "\n".join(f"{number}.7" for number in range(20_000)).encode()
    assert comparator("lines_any_order").text(wanted, got) == "lines: 0.5 is missing"
    close = "\n".join(f"{number}.50000001" for number in reversed(range(20_000))).encode()
    assert comparator("lines_any_order").text(wanted, close) is None


@pytest.mark.parametrize("name", ["lines_any_order", "tokens_any_order", "set"])
def test_long_elements_are_refused_without_comparing_them_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []
    match = comparators._values_match

    def counting(expected: Any, actual: Any) -> bool:
        compared.append(expected)
        return match(expected, actual)

    monkeypatch.setattr(comparators, "_values_match", counting)
    wanted = [[number, 1, 2, 3] for number in range(300)]
    said = comparator(name).value(wanted, [[number + 1000] + [1] * 2000 for number in range(300)])
    assert said is not None and said.endswith(" is missing") and compared == []
    long = [[1] * 1000 + [number] for number in range(300)]
    assert comparator(name).value(long, [[*row[:-1], row[-1] + 1000] for row in long]) is not None
    assert len(compared) < 10_000
    close = [[item + 1e-9 for item in row] for row in reversed([[*map(float, row)] for row in long])]
    decimals = [[*map(float, row)] for row in long]
    assert name == "set" or comparator(name).value(decimals, close) is None
