"""When an answer is right: the comparators by name, of which a problem names one (`tokens` unless it does).

| name | a program's standard output | a call's value |
|---|---|---|
| tokens | rules 1 to 5 | rules 6 to 8 |
| exact | the same bytes, but for one line feed at the end | equal, decimals too |
| float:ABS,REL | as tokens, but every number within ABS, or within REL times the expected one | likewise |
| case_insensitive | as tokens, ASCII letters in either case | likewise, in strings |
| lines_any_order | the lines in any order, each as tokens | a list's elements in any order |
| tokens_any_order | the tokens of the whole output in any order | likewise |
| set | the same tokens, however often and in whichever order | a list's elements, likewise |

Standard input problems, the whole standard output of a program:

1. The output is compared line by line, and within a line token by token. White space at either end of a line, how much
   of it separates two tokens, CRLF, and blank lines at the end do not matter; any other blank line does, but for those
   that the expected output begins with: an output that begins with none is right too. White space is ASCII, and only a
   line feed ends a line.
2. There must be as many lines and as many tokens as expected: a correct start is not enough.
3. An integer token (digits without leading zeros, perhaps a minus) is compared exactly, at any size. `3.0` is accepted
   for 3 and `-0` for 0; `3.0000001`, `+3`, `03` and `3e0` are not.
4. A decimal token (a point before digits, or an exponent) is compared by value, however many digits it has: an error of
   1e-6, absolute or relative to the expected value, is accepted, and so is an integer. Only the expected token decides:
   decimals get no tolerance for an integer. One too large for a float is text (rule 5).
5. Everything else, `nan` and `inf` included, is compared byte by byte and case-sensitively.

Call problems, the returned value as JSON (tuples, arrays, dictionary views and queues have become lists on the
way, a Decimal or a Fraction a number):

6. Integers are compared exactly, at any size. As in Python, `true` is 1, `3.0` is 3, and a string equals only itself.
7. Where the expected number is written as a decimal, rule 4 holds; NaN equals NaN, an infinity equals itself.
8. Lists agree in length, order and elements; objects in keys and values.

`float` alone is `float:1e-6,1e-6`, and `float:1e-9` has both tolerances 1e-9. A comparator is trusted code of ours: it
runs here, and a submission only ever sends it text.
"""

import json
import math
import operator
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from decimal import Decimal
from functools import cache, lru_cache, partial
from itertools import dropwhile
from typing import Any, NamedTuple, TypeVar

from coderl_tasks.untrusted_text import printable

DEFAULT = "tokens"
UNORDERED = ("lines_any_order", "tokens_any_order", "set")
TOLERANCE = 1e-6
SHOWN_CHARS = 60
_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]*)")
_DECIMAL = re.compile(rb"[+-]?(?:[0-9]*\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?")
_WHOLE_DECIMAL = re.compile(rb"(-?(?:0|[1-9][0-9]*))\.0+")
_LONGEST_NUMBER = 4000
"""Digits a JSON integer may have to be read as int; longer ones become Decimal (int() is quadratic)."""
MOST_PAIRS, MOST_PAIR_BYTES = 10**5, 1 << 25
"""Unequal elements, expected times found, that are all compared with each other where order does not matter, and the
sum of their lengths: whoever awaits a verdict waits meanwhile."""
MOST_SORTED = 10**5
"""Elements that are all sorted, equal ones too, to find another pairing: half a second, mostly for a wrong answer."""
_STRUCTURE = b' ,[{"'


Text = TypeVar("Text", str, bytes)
Agree = Callable[..., str | None]
"""Whether two sides have the same elements: None, or one line that names a difference."""


class Comparator(NamedTuple):
    """None if an answer is right, else one line that names a difference; `words` say for people how each compares."""

    text: Callable[[str, bytes], str | None]
    value: Callable[[Any, Any], str | None]
    words: tuple[str, str]

    def answer_difference(self, expected: Any, answer: Any) -> str | None:
        """As `value`, of a value that a program has chosen: one too deep to be compared differs."""
        try:
            return self.value(expected, answer)
        except (RecursionError, ValueError):
            return "nested too deeply to be compared"

    def accepts(self, kind: str, expected: str, answer: str) -> bool:
        """Whether an answer to a problem of this `kind` is right. Raises ValueError if a call's is no JSON."""
        if kind == "call":
            return self.answer_difference(parse_value(expected), parse_value(answer)) is None
        return self.text(expected, answer.encode("utf-8", "surrogatepass")) is None


@lru_cache(maxsize=256)
def comparator(name: str) -> Comparator:
    """The comparator with this name: one of _COMPARATORS, or "float", "float:TOLERANCE" or "float:ABSOLUTE,RELATIVE".
    Raises ValueError, which says what there is, for a name that is none."""
    kind, _, arguments = name.partition(":")
    if kind == "float":
        try:
            tolerances = [float(each) for each in arguments.split(",")] if arguments else [TOLERANCE]
        except ValueError:
            tolerances = []
        if len(tolerances) in (1, 2) and all(0 <= each < math.inf for each in tolerances):
            return _within(tolerances[0], tolerances[-1])
        raise ValueError(f"{name}: tolerances look like float:1e-6, or float:ABSOLUTE,RELATIVE")
    if arguments or kind not in _COMPARATORS:
        raise ValueError(f"{name}: there are {', '.join(_COMPARATORS)}, and float:ABSOLUTE,RELATIVE")
    return _COMPARATORS[kind]


def lines(text: bytes) -> list[bytes]:
    """The lines up to the last that is not blank, without the white space at their ends."""
    text = text.rstrip()
    return [line.rstrip() for line in text.split(b"\n")] if text else []


def is_number(token: bytes) -> bool:
    """Whether a token is an integer or a decimal, as rules 3 and 4 have them."""
    return bool(_INTEGER.fullmatch(token) or _DECIMAL.fullmatch(token))


def tokens_match(expected: bytes, actual: bytes) -> bool:
    """Whether two tokens agree by rules 3 to 5 above."""
    if expected == actual:
        return True
    if _INTEGER.fullmatch(expected):
        whole = _WHOLE_DECIMAL.fullmatch(actual)
        found = whole[1] if whole else actual
        return found == expected or {found, expected} == {b"0", b"-0"}
    if not _DECIMAL.fullmatch(expected) or not is_number(actual):
        return False
    wanted = float(expected)
    return math.isfinite(wanted) and _close(wanted, float(actual))


def _scalars_match(expected: Any, actual: Any) -> bool:
    if isinstance(expected, float) and isinstance(actual, int | float | Decimal):
        try:
            return _close(expected, float(actual))
        except OverflowError:
            return _close(expected, math.inf if actual > 0 else -math.inf)
    return bool(expected == actual)


def _close(expected: float, actual: float, absolute: float = TOLERANCE, relative: float = TOLERANCE) -> bool:
    if not (math.isfinite(expected) and math.isfinite(actual)):
        return expected == actual or (math.isnan(expected) and math.isnan(actual))
    return abs(expected - actual) <= max(absolute, relative * abs(expected))


def first_difference(
    expected: str, actual: bytes | str, match: Callable[[bytes, bytes], bool] = tokens_match
) -> str | None:
    """None if a program's standard output is as expected, but for spacing and what `match` allows between two tokens;
    else one line that names the first difference: another number of lines only if no line differs."""
    wanted_text = expected.encode("utf-8", "surrogatepass")
    got_text = actual.encode("utf-8", "surrogatepass") if isinstance(actual, str) else actual
    if wanted_text == got_text:  # the usual case of a right program, without splitting it
        return None
    wanted_lines, got_lines = lines(wanted_text), lines(got_text)
    if wanted_lines[:1] == [b""] != got_lines[:1]:  # as on pages that outputs were scraped from
        wanted_lines = list(dropwhile(operator.not_, wanted_lines))
    for number, (wanted_line, got_line) in enumerate(zip(wanted_lines, got_lines, strict=False), start=1):
        if wanted_line == got_line:
            continue
        wanted, got = wanted_line.split(), got_line.split()
        for place, (wanted_token, got_token) in enumerate(zip(wanted, got, strict=False), start=1):
            if not match(wanted_token, got_token):
                return f"line {number}, token {place}: expected {shown(wanted_token)}, got {shown(got_token)}"
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


def value_difference(
    expected: Any, actual: Any, where: str = "value", match: Callable[[Any, Any], bool] = _scalars_match
) -> str | None:
    """None if a returned value is as expected, else a line on the first difference; `match` decides of two unequal
    scalars. Both sides are parsed JSON (`parse_value`); `where` is their path in the whole, as `value[0]['a']`."""
    if expected == actual:  # what is unequal here may still be right: close decimals, NaN
        return None
    keys: Iterable[Any]
    if isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            return f"{where}: expected {len(expected)} elements, got {len(actual)}"
        keys = range(len(expected))
    elif isinstance(expected, dict) and isinstance(actual, dict):
        if expected.keys() != actual.keys():
            return f"{where}: expected the keys {shown(sorted(expected))}, got {shown(sorted(actual))}"
        keys = expected
    elif match(expected, actual):
        return None
    else:
        return f"{where}: expected {shown(expected)}, got {shown(actual)}"
    for key in keys:  # no generator: its frames would halve how deep values may be nested
        difference = value_difference(expected[key], actual[key], f"{where}[{key!r}]", match)
        if difference is not None:
            return difference
    return None


def _values_match(expected: Any, actual: Any) -> bool:
    """Whether `value_difference` finds none, in a quarter of its time."""
    if expected == actual:
        return True
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(_values_match, expected, actual))
    if isinstance(expected, dict) and isinstance(actual, dict):
        return expected.keys() == actual.keys() and all(_values_match(expected[key], actual[key]) for key in expected)
    return _scalars_match(expected, actual)


def shown(value: Any) -> str:
    """`value` in at most SHOWN_CHARS characters: a token as it is, anything else as Python writes it."""
    is_token = isinstance(value, bytes)
    text = printable(value[: SHOWN_CHARS + 1].decode("utf-8", "backslashreplace") if is_token else reprlib.repr(value))
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."


def _within(absolute: float, relative: float) -> Comparator:
    """The comparator `float` with these tolerances."""

    def is_close(wanted: Any, got: Any) -> bool:
        # Numbers too large for a float would all be the same infinity.
        return not math.isinf(float(wanted)) and _close(float(wanted), float(got), absolute, relative)

    def tokens(wanted: bytes, got: bytes) -> bool:
        return wanted == got or (is_number(wanted) and is_number(got) and is_close(wanted, got))

    def scalars(wanted: Any, got: Any) -> bool:
        if isinstance(wanted, str | None) or isinstance(got, str | None):
            return bool(wanted == got)
        try:
            return bool(wanted == got) or is_close(wanted, got)
        except (OverflowError, TypeError, ValueError):
            return False

    by = f"numbers may be off by {absolute:g}, or by {relative:g} times the expected one"
    return Comparator(
        text=partial(first_difference, match=tokens),
        value=partial(value_difference, match=scalars),
        words=(f"{_BY_TOKENS} ({_SPACE}; {by})", f"item by item ({by})"),
    )


def _bytes_difference(expected: str, actual: bytes) -> str | None:
    wanted, got = (text.removesuffix(b"\n") for text in (expected.encode("utf-8", "surrogatepass"), actual))
    if wanted == got:
        return None
    wanted_lines, got_lines = wanted.split(b"\n"), got.split(b"\n")
    for number, (wanted_line, got_line) in enumerate(zip(wanted_lines, got_lines, strict=False), start=1):
        if wanted_line != got_line:
            return f"line {number}: expected {shown(wanted_line)}, got {shown(got_line)}"
    return f"lines: expected {len(wanted_lines)}, got {len(got_lines)}"


def _lowered(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")  # ASCII letters alone
    return value


def _unordered(
    wanted: Sequence[Text], got: Sequence[Text], match: Callable[[Text, Text], bool], what: str
) -> str | None:
    """Compares elements in any order: None if they can be paired, each with one that it matches, else a line on a
    difference. `what` names the elements ("lines"). Cheap tests come first, as there may be millions of elements."""
    if len(wanted) != len(got):
        return f"{what}: expected {len(wanted)}, got {len(got)}"
    # Equal elements are paired at once. Those left are unequal, and may still match (1.0 and 1.0000001).
    wanted_counts, got_counts = Counter(wanted), Counter(got)
    missing = list((wanted_counts - got_counts).elements())
    more = list((got_counts - wanted_counts).elements())
    structures = Counter(map(_structure, more))  # elements that match have the same structure
    for each in missing:
        structure = _structure(each)
        if not structures[structure]:
            return f"{what}: {shown(each)} is missing"
        structures[structure] -= 1
    unlike = _first_unlike(missing, more, match)
    # Close numbers may match in another order: a bipartite matching decides, unless there are too many.
    if unlike is None or (_are_few(missing, more) and _can_be_paired(missing, more, match)):
        return None
    # An element that was paired with its equal may be the only one that another matches.
    if len(missing) < len(wanted) <= MOST_SORTED and _first_unlike(wanted, got, match) is None:
        return None
    return f"{what}: {shown(unlike)} is missing"


def _first_unlike(wanted: Sequence[Text], got: Sequence[Text], match: Callable[[Text, Text], bool]) -> Text | None:
    """The first of `wanted` that does not match the one at its place, if both are sorted by their numbers."""
    pairs = zip(sorted(wanted, key=_by_numbers), sorted(got, key=_by_numbers), strict=True)
    return next((each for each, other in pairs if not match(each, other)), None)


def _structure(text: str | bytes) -> tuple[int, ...]:
    """Counts that are the same of two elements that match."""
    return tuple(map((text if isinstance(text, bytes) else text.encode()).count, _STRUCTURE))


def _are_few(some: Collection[Text], others: Collection[Text]) -> bool:
    """Whether so few elements that each may be compared with all others."""
    lengths = len(others) * sum(map(len, some)) + len(some) * sum(map(len, others))
    return len(some) * len(others) <= MOST_PAIRS and lengths <= MOST_PAIR_BYTES


def _can_be_paired(wanted: Sequence[Text], got: Sequence[Text], match: Callable[[Text, Text], bool]) -> bool:
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    matches = csr_matrix([[match(each, other) for other in got] for each in wanted])
    return bool((maximum_bipartite_matching(matches) >= 0).all())


def _same_set(
    wanted: Sequence[Text], got: Sequence[Text], match: Callable[[Text, Text], bool], what: str
) -> str | None:
    """None if each element matches one of the other side, however often."""
    wanted_set, got_set = set(wanted), set(got)
    missing, more = wanted_set - got_set, got_set - wanted_set
    if _are_few(missing, got_set) and _are_few(more, wanted_set):
        missing = {each for each in missing if not any(match(each, other) for other in got_set)}
        more = {other for other in more if not any(match(each, other) for each in wanted_set)}
    if missing:
        return f"{what}: {shown(min(missing))} is missing"
    return f"{what}: {shown(min(more))} is not expected" if more else None


def _by_numbers(text: str | bytes) -> list[tuple[bool, float, bytes]]:
    """What sorts texts by the numbers in them."""
    tokens = (text if isinstance(text, bytes) else text.encode()).translate(None, b"[]{},").split()
    return [(False, float(token), b"") if is_number(token) else (True, 0.0, token) for token in tokens]


def _lines_difference(expected: str, actual: bytes) -> str | None:
    sides = expected.encode("utf-8", "surrogatepass"), actual
    wanted, got = ([b" ".join(line.split()) for line in lines(text)] for text in sides)
    if len(wanted) != len(got):
        wanted = list(dropwhile(operator.not_, wanted))
    tokens = cache(bytes.split)

    def match(wanted_line: bytes, got_line: bytes) -> bool:
        pair = tokens(wanted_line), tokens(got_line)
        return len(pair[0]) == len(pair[1]) and all(map(tokens_match, *pair))

    return _unordered(wanted, got, match, "lines")


def _tokens_difference(expected: str, actual: bytes, agree: Agree = _unordered) -> str | None:
    return agree(expected.encode("utf-8", "surrogatepass").split(), actual.split(), tokens_match, "tokens")


def _elements_difference(expected: Any, actual: Any, agree: Agree = _unordered) -> str | None:
    if not (isinstance(expected, list) and isinstance(actual, list)):
        return value_difference(expected, actual)
    if agree is _unordered and len(expected) != len(actual):  # before a long list becomes texts
        return f"elements: expected {len(expected)}, got {len(actual)}"

    def texts(values: list[Any]) -> list[str]:
        return [json.dumps(value, sort_keys=True, default="integer {}".format) for value in values]

    parsed = cache(parse_value)

    def match(wanted: str, got: str) -> bool:
        return _values_match(parsed(wanted), parsed(got))

    return agree(texts(expected), texts(actual), match, "elements")


_BY_TOKENS = "line by line and token by token"
_SPACE, _DECIMALS = "white space separates tokens", f"a decimal may be off by {TOLERANCE:f}"
_RULES, _ANY_ORDER = f"({_SPACE}; {_DECIMALS})", "item by item, in any order"
_COMPARATORS: dict[str, Comparator] = {
    DEFAULT: Comparator(first_difference, value_difference, (f"{_BY_TOKENS} {_RULES}", f"item by item ({_DECIMALS})")),
    "exact": Comparator(
        _bytes_difference,
        partial(value_difference, match=lambda wanted, got: bool(wanted == got)),
        ("byte by byte (but for a line feed at the end)", "item by item (decimals too have to be equal)"),
    ),
    "case_insensitive": Comparator(
        lambda wanted, got: first_difference(_lowered(wanted), got.lower()),
        partial(value_difference, match=lambda wanted, got: _scalars_match(_lowered(wanted), _lowered(got))),
        (f"{_BY_TOKENS}, ignoring case {_RULES}", f"item by item, ignoring case ({_DECIMALS})"),
    ),
    "lines_any_order": Comparator(_lines_difference, _elements_difference, ("line by line, in any order", _ANY_ORDER)),
    "tokens_any_order": Comparator(
        _tokens_difference, _elements_difference, (f"token by token, in any order {_RULES}", _ANY_ORDER)
    ),
    "set": Comparator(
        partial(_tokens_difference, agree=_same_set),
        partial(_elements_difference, agree=_same_set),
        (f"token by token, ignoring order and repetition {_RULES}", "item by item, ignoring order and repetition"),
    ),
}
