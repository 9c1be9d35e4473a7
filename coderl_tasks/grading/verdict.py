"""What grading says of a program: the verdict, how far it got and why; and whether an answer is right.

The comparison of outputs: the expected side is ours, the actual side is anything at all.

Standard input problems, the whole standard output of a program:

1. The output is compared line by line, and within a line token by token. White space at either end of a line, how much
   of it separates two tokens, CRLF, and blank lines at the end do not matter; any other blank line does. White space is
   ASCII, and only a line feed ends a line.
2. There must be as many lines and as many tokens as expected: a correct start is not enough.
3. An integer token (digits without leading zeros, perhaps a minus) is compared exactly, at any size. `3.0` is accepted
   for 3 and `-0` for 0; `3.0000001`, `+3`, `03` and `3e0` are not.
4. A decimal token (a point before digits, or an exponent) is compared by value, however many digits it has: an error of
   1e-6, absolute or relative to the expected value, is accepted, and so is an integer. Only the expected token decides:
   decimals get no tolerance for an integer. One too large for a float is text (rule 5).
5. Everything else, `nan` and `inf` included, is compared byte by byte and case-sensitively.

Call problems, the returned value as JSON (a tuple has become a list on the way):

6. Integers are compared exactly, at any size. As in Python, `true` is 1, `3.0` is 3, and a string equals only itself.
7. Where the expected number is written as a decimal, rule 4 holds; NaN equals NaN, an infinity equals itself.
8. Lists agree in length, order and elements; objects in keys and values.
"""

import json
import math
import re
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from coderl_tasks.untrusted_text import printable

SHOWN_CHARS = 1000
TOLERANCE = 1e-6
_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]*)")
_DECIMAL = re.compile(rb"[+-]?(?:[0-9]*\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?")
_WHOLE_DECIMAL = re.compile(rb"(-?(?:0|[1-9][0-9]*))\.0+")
_LONGEST_NUMBER = 4000
"""Digits a JSON integer may have to be read as int; longer ones become Decimal (int() is quadratic)."""


class Verdict(StrEnum):
    """The nine verdicts. `infra_error` is ours, never the program's, and never becomes a reward; `reward_error` is the
    user's compute_reward's, and a reward of 0."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    FORMAT_ERROR = "format_error"
    INFRA_ERROR = "infra_error"
    REWARD_ERROR = "reward_error"


@dataclass(frozen=True, slots=True)
class Grade:
    """The grade of one program on one problem. Grading stops at the first failure, unless all tests were asked for."""

    verdict: Verdict
    tests_passed: int
    tests_run: int
    tests_total: int
    first_failed: int | None  # index, among the problem's tests, of the test that failed first
    run_seconds: float  # CPU seconds summed over the tests
    reason: str = ""  # one line for people, empty for a pass
    output: str | None = None  # what that test printed or returned, `shortened`; None where nothing came back
    error: str = ""  # the last line of its error output
    python: str = ""  # version of the interpreter that ran it, as far as it is known

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED

    @property
    def gradable(self) -> bool:
        return self.verdict is not Verdict.INFRA_ERROR


@dataclass(frozen=True, slots=True)
class ScoredCompletion:
    """A completion's grade and its scores by the table in `grading.scoring`, all None for the verdict `infra_error`."""

    code: str | None  # None if the format was wrong: then the verdict is `format_error`
    grade: Grade
    format_score: float | None
    correctness: float | None
    reward: float | None


def shortened(text: str | bytes) -> str:
    """The first 1,000 characters of `text`, and how much there is where that is not all. What UTF-8 cannot hold (odd
    bytes, lone surrogates) is shown as escapes, so that any table takes the result."""
    size, unit = len(text), "bytes" if isinstance(text, bytes) else "characters"
    if isinstance(text, bytes):
        text = text[: 4 * SHOWN_CHARS + 1].decode("utf-8", "backslashreplace")  # a character has four bytes at most
    shown = text[:SHOWN_CHARS].encode("utf-8", "backslashreplace").decode()
    return shown if len(text) <= SHOWN_CHARS else f"{shown}... ({size:,} {unit})"


def first_difference(expected: str, actual: bytes | str) -> str | None:
    """None if a program's standard output is as expected, but for spacing and tiny errors of decimals (rules 1 to 5
    above), else one line that names the first difference; the number of lines last. `actual` may hold any bytes."""
    wanted_text = expected.encode("utf-8", "surrogatepass")
    got_text = actual.encode("utf-8", "surrogatepass") if isinstance(actual, str) else actual
    if wanted_text == got_text:  # the usual case of a right program, without splitting it
        return None
    wanted_lines, got_lines = _lines(wanted_text), _lines(got_text)
    for number, (wanted_line, got_line) in enumerate(zip(wanted_lines, got_lines, strict=False), start=1):
        if wanted_line == got_line:
            continue
        wanted, got = wanted_line.split(), got_line.split()
        for place, (wanted_token, got_token) in enumerate(zip(wanted, got, strict=False), start=1):
            if not _tokens_match(wanted_token, got_token):
                return f"line {number}, token {place}: expected {_shown(wanted_token)}, got {_shown(got_token)}"
        if len(wanted) != len(got):
            return f"line {number}, tokens: expected {len(wanted)}, got {len(got)}"
    if len(wanted_lines) != len(got_lines):
        return f"lines: expected {len(wanted_lines)}, got {len(got_lines)}"
    return None


def parse_value(text: str | bytes) -> Any:
    """A JSON value with its integers exact. Raises ValueError for anything that is not one JSON value."""
    try:
        return json.loads(text, parse_int=lambda digits: (int if len(digits) <= _LONGEST_NUMBER else Decimal)(digits))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def value_difference(expected: Any, actual: Any, where: str = "value") -> str | None:
    """None if a returned value is as expected, but for tiny errors of decimals (rules 6 to 8 above), else a line on the
    first difference. Both sides come from `parse_value`; `where` is their path in the whole, as `value[0]['a']`."""
    if expected == actual:  # what is unequal here may still be right: close decimals, NaN
        return None
    pairs: Iterable[tuple[str, Any, Any]]
    if isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            return f"{where}: expected {len(expected)} elements, got {len(actual)}"
        elements = enumerate(zip(expected, actual, strict=True))
        pairs = ((f"{where}[{index}]", wanted, got) for index, (wanted, got) in elements)
    elif isinstance(expected, dict) and isinstance(actual, dict):
        if expected.keys() != actual.keys():
            return f"{where}: expected the keys {_shown(sorted(expected))}, got {_shown(sorted(actual))}"
        pairs = ((f"{where}[{key!r}]", wanted, actual[key]) for key, wanted in expected.items())
    elif _scalars_match(expected, actual):
        return None
    else:
        return f"{where}: expected {_shown(expected)}, got {_shown(actual)}"
    for inner_where, wanted, got in pairs:
        difference = value_difference(wanted, got, inner_where)
        if difference is not None:
            return difference
    return None


def _lines(text: bytes) -> list[bytes]:
    """The lines up to the last that is not blank, without the white space at their ends."""
    text = text.rstrip()
    return [line.rstrip() for line in text.split(b"\n")] if text else []


def _tokens_match(expected: bytes, actual: bytes) -> bool:
    if expected == actual:
        return True
    if _INTEGER.fullmatch(expected):
        whole = _WHOLE_DECIMAL.fullmatch(actual)
        found = whole[1] if whole else actual
        return found == expected or {found, expected} == {b"0", b"-0"}
    if not _DECIMAL.fullmatch(expected) or not (_INTEGER.fullmatch(actual) or _DECIMAL.fullmatch(actual)):
        return False
    wanted = float(expected)
    return math.isfinite(wanted) and _close(wanted, float(actual))


def _scalars_match(expected: Any, actual: Any) -> bool:
    if isinstance(expected, float) and isinstance(actual, int | float | Decimal):
        try:
            return _close(expected, float(actual))
        except OverflowError:
            return _close(expected, math.inf if actual > 0 else -math.inf)
    if isinstance(expected, str) or isinstance(actual, str):
        return isinstance(expected, str) and isinstance(actual, str) and expected == actual
    return bool(expected == actual)


def _close(expected: float, actual: float) -> bool:
    if not (math.isfinite(expected) and math.isfinite(actual)):
        return expected == actual or (math.isnan(expected) and math.isnan(actual))
    return abs(expected - actual) <= TOLERANCE * max(1.0, abs(expected))


def _shown(value: Any, length: int = 60) -> str:
    is_token = isinstance(value, bytes)
    text = printable(value[: length + 1].decode("utf-8", "backslashreplace") if is_token else reprlib.repr(value))
    return text if len(text) <= length else text[:length] + "..."
