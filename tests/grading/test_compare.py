"""The comparison rules as a table: expected, actual, whether it is right."""

import json
from typing import Any

import pytest

from coderl_tasks.problems.comparators import first_difference, parse_value, value_difference


def is_right(expected: str, actual: bytes | str) -> bool:
    return first_difference(expected, actual) is None


def is_right_value(expected: Any, actual: Any) -> bool:
    return value_difference(expected, actual) is None


OUTPUTS: list[tuple[str, str | bytes, bool]] = [
    # lines, tokens and white space
    ("1 2\n3\n", "1 2\n3\n", True),
    ("1 2\n3\n", "1 2\n3", True),
    ("1 2\n3", "1  2 \n3 \n\n\n", True),
    ("1 2\n3", "  1\t2\r\n3\r\n", True),
    ("1 2\r\n3\r\n", "1 2\n3\n", True),
    ("1 2 3", "1\n2\n3", False),
    ("1\n2", "1 2", False),
    ("1\n2", "1\n\n2", False),
    ("1\n\n2", "1\n2", False),
    ("1\n\n2", "1\n   \n2", True),
    ("1", "\n1", False),
    ("  1", "\n1", False),
    ("\n12\n6\n", "12\n6\n", True),
    ("\n12\n6\n", "\n12\n6\n\n", True),
    ("\n \r\n1", "1", True),
    ("\n1", "\n\n1", False),
    ("\n\n1", "\n1", False),
    ("\n1\n\n2", "1\n2", False),
    ("\n1", "2", False),
    ("\n0", "", False),
    ("a b", "a b", True),
    ("a b", "a\u00a0b", False),
    ("a b", b"a\xa0b", False),
    ("ab", "a b", False),
    ("", "", True),
    ("", "\n \n", True),
    ("\n", "", True),
    ("", "0", False),
    ("0", "", False),
    ("1 2\n3", "1 2\n3\n \t\r\n\n", True),
    ("1 2\n3\n\n\n", "1 2\n3", True),
    ("\t1 2", "1 2", True),
    ("1 2", "1\x0b\x0c2", True),
    ("1 2", "1\r2", True),
    ("1\n2", "1\r2", False),
    ("1\n2", "1\u20282", False),
    ("1\n2", "1\x852", False),
    ("1 2", "1\x1c2", False),
    ("1 2", "1\u20032", False),
    ("1", "\u200b1", False),
    ("1", "1\u3000", False),
    ("1", "\ufeff1", False),
    ("1\u00a02", "1\u00a02", True),
    ("1\u00a02", "1 2", False),
    # nothing missing, nothing more
    ("1\n2\n3", "1\n2", False),
    ("1\n2\n3", "1\n2\n3\n4", False),
    ("1 2 3", "1 2", False),
    ("1 2 3", "1 2 3 4", False),
    ("12", "1", False),
    ("1", "12", False),
    ("YES", "YES\nNO", False),
    # text
    ("Yes", "YES", False),
    ("YES", "YES", True),
    ("naïve", "naïve".encode(), True),
    ("naïve", b"na\xefve", False),
    ("a\0b", "a\0b", True),
    ("a", "a\0", False),
    ("5", "\uff15", False),
    # integers
    ("-1000000", "-1000005", False),
    ("1000000", "1000001", False),
    ("123456789012345678901234567890", "123456789012345678901234567891", False),
    ("1" * 5000, "1" * 5000, True),
    ("1" * 5000, "1" * 4999 + "2", False),
    ("5", "+5", False),
    ("5", "05", False),
    ("0011", "11", False),
    ("11", "0011", False),
    ("0011", "0011", True),
    ("0", "-0", True),
    ("3", "3.0", True),
    ("3", "3.", False),
    ("3", "3.000000", True),
    ("3", "3.0000001", False),
    ("3", "2.9999999", False),
    ("0", "-0.0", True),
    ("0", "0.0000001", False),
    ("1000", "1e3", False),
    ("1000000007", "1000000007.0", True),
    ("123456789012345678901", "123456789012345678901.0", True),
    ("123456789012345678901", "123456789012345678902.0", False),
    ("-5", "-5", True),
    ("-5", "5", False),
    ("-5", "- 5", False),
    ("-5", "\u22125", False),
    ("-5", "-5.0", True),
    ("-5", "-05", False),
    ("+5", "5", False),
    ("+5", "+5", True),
    ("-0", "0", True),
    ("-0", "0.0", True),
    ("5", "5.0.0", False),
    ("5", "05.0", False),
    ("5", "5.00000000000000000001", False),
    ("5", "0x5", False),
    ("5", "5e0", False),
    ("5", "5L", False),
    ("1000", "1,000", False),
    ("1000", "1_000", False),
    ("1000000000000", "1e12", False),
    ("9007199254740993", "9007199254740992", False),
    ("9007199254740993", "9007199254740992.0", False),
    ("9007199254740993", "9007199254740993.0", True),
    ("-" + "9" * 100_000, "-" + "9" * 100_000, True),
    ("-" + "9" * 100_000, "9" * 100_000, False),
    ("9" * 100_000, "9" * 99_999 + "8", False),
    ("9" * 100_000, "9" * 100_000 + ".00", True),
    ("9" * 100_000, "9" * 99_999, False),
    # decimals
    ("0.5", "0.5000001", True),
    ("0.5", "0.5001", False),
    ("0.5", ".5", True),
    ("0.5", "+0.50", True),
    ("0.5", "5e-1", True),
    ("2.0", "2", True),
    ("2.0", "3", False),
    ("1000000.0", "1000000.9", True),
    ("1000000.0", "1000002.0", False),
    ("0.0", "0.0000009", True),
    ("0.0", "0.000002", False),
    ("1e-07", "0.0000001", True),
    ("-0.25", "0.25", False),
    ("0.5", "nan", False),
    ("0.5", "inf", False),
    ("0.5", "1e999", False),
    ("1e999", "1e999", True),
    ("0.5", "1/2", False),
    ("0.5", "0,5", False),
    ("0.5", "0x0.8", False),
    ("0.5", "0_0.5", False),
    ("0.5", "0." + "5" * 5000, False),
    ("0.3333333333", "0.33333", False),
    ("nan", "nan", True),
    ("nan", "NaN", False),
    ("inf", "inf", True),
    ("inf", "1e999", False),
    ("1.0", "1", True),
    ("1.0", "01.0", True),
    ("1.0", "1.", False),
    ("1.0", "1.0f", False),
    ("1.0", "+1", False),
    ("-.5", "-0.5", True),
    ("0.0", "-0.0", True),
    ("-0.0", "0", True),
    ("0.0", "0.000001", True),
    ("0.0", "1e-400", True),
    ("1e-400", "0", True),
    ("1e3", "1000", True),
    ("1E3", "1e+3", True),
    ("1e3", "1000.0009", True),
    ("1e3", "1000.002", False),
    ("1e-3", "0.0011", False),
    ("12345678901234567890.5", "12345678901234567890", True),
    ("12345678901234567890.5", "12345679901234567890", True),
    ("12345678901234567890.5", "12345878901234567890", False),
    ("0." + "3" * 5000, "0." + "3" * 5000, True),
    ("0." + "3" * 5000, "0." + "3" * 4999 + "4", True),
    ("0." + "3" * 5000, "0.333333333", True),
    ("0.3333333333", "0." + "3" * 100_000, True),
    ("0.3333333333", "0.34" + "3" * 100_000, False),
    ("0.5", "5" * 100_000, False),
    ("1e999", "2e999", False),
    ("1e999", "inf", False),
    ("-inf", "-inf", True),
    ("inf", "-inf", False),
    ("inf", "Infinity", False),
    ("nan", "-nan", False),
    ("0.0", "nan", False),
    ("1e", "1e0", False),
    ("e5", "e5", True),
    ("1.2.3", "1.2.3", True),
    ("1.2.3", "1.2.30", False),
    ("Answer: 5.", "Answer: 5", False),
    ("x=0.5", "x=0.50", False),
    ("0.1 0.2\n0.3", "0.1 0.2\n0.30000004", True),
]

VALUES: list[tuple[str, str, bool]] = [
    ("6", "6", True),
    ("6", "7", False),
    ("6", "6.0", True),
    ("6", "6.0000001", False),
    ("6", '"6"', False),
    ("6", "true", False),
    ("1", "true", True),
    ("true", "1", True),
    ("true", "false", False),
    ("true", '"true"', False),
    ("0", "null", False),
    ("null", "null", True),
    ("null", "false", False),
    ("false", "[]", False),
    ('""', "null", False),
    ('"a"', '"a"', True),
    ('"a"', '"A"', False),
    ('"a "', '"a"', False),
    ('"1.0"', '"1.00"', False),
    ("2.5", "2.5000001", True),
    ("2.5", "2.6", False),
    ("2.0", "2", True),
    ("2.0", '"2.0"', False),
    ("0.0", "false", True),
    ("1e400", "Infinity", True),
    ("Infinity", "Infinity", True),
    ("Infinity", "-Infinity", False),
    ("NaN", "NaN", True),
    ("2.5", "NaN", False),
    ("1", "NaN", False),
    ("100000000000000000000000", "100000000000000000000001", False),
    ("100000000000000000000000", "1e23", False),
    ("9007199254740993", "9007199254740992.0", False),
    ("1" * 5000, "1" * 5000, True),
    ("1" * 5000, "1" * 4999 + "2", False),
    ("1.5", "1" * 5000, False),
    ("1", "1.0", True),
    ("1.0", "1", True),
    ("1.0", "1.0000009", True),
    ("1.0", "1.000002", False),
    ("0", "-0.0", True),
    ("-0.0", "0", True),
    ("-5", "5", False),
    ("1e3", "1000", True),
    ("1000", "1e3", True),
    ("12345678901234567890.5", "12345678901234567890", True),
    ("9" * 5000, "9" * 4999 + "8", False),
    ("-" + "9" * 5000, "9" * 5000, False),
    ("0." + "3" * 5000, "0.333333333", True),
    ('""', '" "', False),
    ('"a\\r\\n"', '"a\\n"', False),
    ('"\\u00e9"', '"e\\u0301"', False),
    ("[NaN, -Infinity]", "[NaN, -Infinity]", True),
    ("[0.1, 0.2]", "[0.1, 0.20000001]", True),
    ("[1, 2]", "[1.0, 2]", True),
    ("[1, 2]", "[true, 2]", True),
    ("[[]]", "[]", False),
    ("[null]", "[]", False),
    ("{}", "[]", False),
    ('{"1": 2}', '{"1": 2.0}', True),
    ("[1, 2]", "[1, 2]", True),
    ("[1, 2]", "[2, 1]", False),
    ("[1, 2]", "[1, 2, 3]", False),
    ("[1, 2]", "[1]", False),
    ("[]", "[]", True),
    ("[]", "null", False),
    ("[1]", "1", False),
    ("1", "[1]", False),
    ("[[1, 0.5], []]", "[[1, 0.5000001], []]", True),
    ("[[1, 0.5], []]", "[[1.1, 0.5], []]", False),
    ('{"a": 1, "b": [2.0]}', '{"b": [2], "a": 1}', True),
    ('{"a": 1}', '{"a": 1, "b": 2}', False),
    ('{"a": 1}', '{"b": 1}', False),
    ('{"a": 1}', "[1]", False),
]


def short(value: object) -> str:
    """A test's id: some values have 100,000 digits."""
    return repr(value)[:40]


@pytest.mark.parametrize(("expected", "actual", "right"), OUTPUTS, ids=short)
def test_outputs(expected: str, actual: str | bytes, right: bool) -> None:
    assert is_right(expected, actual) is right
    as_bytes = actual.encode() if isinstance(actual, str) else actual
    assert is_right(expected, as_bytes) is right


@pytest.mark.parametrize(("expected", "actual", "right"), VALUES, ids=short)
def test_values(expected: str, actual: str, right: bool) -> None:
    assert is_right_value(parse_value(expected), parse_value(actual)) is right


def test_the_first_difference_is_named() -> None:
    assert first_difference("1 2\n3 4", "1 2\n3 5") == "line 2, token 2: expected 4, got 5"
    assert first_difference("1\n2", "1") == "lines: expected 2, got 1"
    assert first_difference("1 2", "1") == "line 1, tokens: expected 2, got 1"
    assert value_difference([1, [2]], [1, [3]]) == "value[1][0]: expected 2, got 3"


def test_what_is_shown_is_short_and_printable() -> None:
    difference = first_difference("1", b"\x1b[31m" + b"x" * 10**6)
    assert difference is not None and len(difference) < 200 and difference.isprintable()
    assert len(value_difference(1, json.loads("[" * 500 + "]" * 500)) or "") < 300


@pytest.mark.parametrize("text", ["", "{", "[1] 2", "nan", "[" * 100_000, b"\xff", "'a'"])
def test_what_is_not_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_value(text)


def test_a_value_nested_deeper_than_expected_is_no_trouble() -> None:
    assert not is_right_value([1], parse_value("[" * 900 + "]" * 900))
