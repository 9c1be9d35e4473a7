"""The format of a `stdin` problem's inputs: how their lines become records of values, and records become lines.

A format is inferred from all given inputs together: the simplest sequence of items that parses every one of them.

| item | lines | value |
|---|---|---|
| row | one line of a fixed number of tokens | each token |
| counted row | one line: a number, then so many tokens | the number, and the list of the tokens |
| array | one line of any number of tokens | a list |
| lines | as many lines as an earlier number says, else all that remain, each like one of the items above | a list |

An input may also be a number of cases, each in the same format: then every case is a record. Whether a number is the
length of a list is left to the constraints of `new_inputs`, except where it says how many lines follow. Of lines that
are counted rows, a record has the lists alone.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

from coderl_tasks.curation.new_inputs import Record

_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"-?\d+\.\d{1,12}")
_MOST_TOKENS = 8  # of a row: a longer line is an array
_MOST_LINES = 1000
_MOST_ATTEMPTS = 400  # to continue a format by an item; those of problems take a few


@dataclass(frozen=True, slots=True)
class _Item:
    """`kind` is row, counted, array or lines. `size` is a row's number of tokens. Of lines, `count` is the field that
    says how many there are, with `more` to be added (None: all that remain), and `each` what one of them is."""

    kind: str
    size: int = 0
    separator: str = " "
    count: int | None = None
    more: int = 0
    each: "_Item | None" = None


@dataclass(frozen=True, slots=True)
class InputFormat:
    """Items and, per field, whether its tokens are integers, decimals (with so many digits) or strings."""

    items: tuple[_Item, ...]
    has_cases: bool
    types: tuple[tuple[str, int], ...]

    def parse(self, text: str) -> list[Record] | None:
        """The records of an input, None if it is not in this format."""
        raw = _split(self.items, self.has_cases, _lines(text) or [])
        if raw is None:
            return None
        return [[_typed(value, *kind) for value, kind in zip(record, self.types, strict=True)] for record in raw]

    def render(self, records: Sequence[Record]) -> str:
        lines = [str(len(records))] if self.has_cases else []
        for record in records:
            texts = [_texts(value, digits) for value, (_, digits) in zip(record, self.types, strict=True)]
            lines += _rendered(self.items, texts)
        return "\n".join(lines) + "\n"


def infer_format(texts: Sequence[str], statement: str = "") -> InputFormat | None:
    """The format of these inputs, None if no sequence of items parses all of them. `statement` decides where few inputs
    leave open whether a 1 is the number of test cases, and whether numbers in a line are a list."""
    inputs = [_lines(text) for text in texts]
    if not inputs or any(not lines or len(lines) > _MOST_LINES for lines in inputs):
        return None
    whole = [lines for lines in inputs if lines is not None]
    with suppress(_TooManyAttempts):
        return _first_format(whole, _Search(statement))
    return None


class _Search:
    """What a statement says of the inputs, and how many items have been tried."""

    def __init__(self, statement: str) -> None:
        self.attempts = 0
        self.says_cases = bool(
            re.search(r"test ?cases?\b|number of (cases|tests|data ?sets)", statement, re.IGNORECASE)
        )
        self.says_list = bool(
            re.search(r"\b(line of|the|n) (integers|numbers|values|words)\b(?! `?\w\b)", statement, re.IGNORECASE)
        )

    def tries(self) -> None:
        self.attempts += 1
        if self.attempts > _MOST_ATTEMPTS:
            raise _TooManyAttempts


class _TooManyAttempts(Exception):
    """Lines that fit so many formats say nothing of what they mean."""


def _first_format(whole: Sequence[list[str]], search: _Search) -> InputFormat | None:
    for has_cases in (True, False):
        if has_cases and not _may_have_cases(whole):
            continue
        for items in _formats(whole, has_cases, search):
            raw = [record for lines in whole for record in _split(items, has_cases, lines) or ()]
            return InputFormat(items, has_cases, tuple(_type(values) for values in zip(*raw, strict=True)))
    return None


def _lines(text: str) -> list[str] | None:
    lines = [line.strip() for line in text.rstrip().splitlines()]
    return None if any(not line for line in lines) else lines


def _may_have_cases(inputs: Sequence[list[str]]) -> bool:
    """Whether the first line is a number that is no greater than that of the lines after it."""
    heads = [int(lines[0]) if _INTEGER.fullmatch(lines[0]) else 0 for lines in inputs]
    return all(0 < head <= len(lines) - 1 for head, lines in zip(heads, inputs, strict=True))


def _formats(inputs: Sequence[list[str]], has_cases: bool, search: _Search) -> Iterator[tuple[_Item, ...]]:
    """The formats that parse all inputs, the simplest first."""
    if not has_cases:
        yield from _continued(inputs, [(0, ()) for _ in inputs], (), search)
        return
    # A case has the format of the first case of each input; the others must fit.
    for items in _case_formats(inputs, search):
        if all(_split(items, True, lines) is not None for lines in inputs):
            yield items


def _case_formats(inputs: Sequence[list[str]], search: _Search) -> Iterator[tuple[_Item, ...]]:
    """Formats of one case: first those of as many lines in every case, then those that begin with a number of lines."""
    heads = [int(lines[0]) for lines in inputs]
    per_case = {(len(lines) - 1) / head for lines, head in zip(inputs, heads, strict=True)}
    # Cases of one line are a list of lines as well, and as such may have more in common.
    if len(per_case) == 1 and (size := per_case.pop()).is_integer() and 1 < size <= _MOST_TOKENS:
        cases = [lines[start : start + int(size)] for lines in inputs for start in range(1, len(lines), int(size))]
        yield from _continued(cases, [(0, ()) for _ in cases], (), search)
    lines = [*(_Item("row", size) for size in range(1, 5)), _Item("array")]
    for width in (1, 2, 3):
        for count, more, line in product(range(width), (0, -1, 1), lines):
            yield (_Item("row", width), _Item("lines", count=count, more=more, each=line))


def _continued(
    inputs: Sequence[list[str]],
    at: Sequence[tuple[int, tuple[str, ...]]],
    items: tuple[_Item, ...],
    search: _Search,
) -> Iterator[tuple[_Item, ...]]:
    """The formats that begin with `items`, which end in each input at a line, with the single tokens so far."""
    ended = [place == len(lines) for lines, (place, _) in zip(inputs, at, strict=True)]
    if all(ended):
        yield items
        return
    if any(ended) or len(items) > _MOST_TOKENS:
        return
    for item in _next_items(inputs, at, items, search):
        search.tries()
        after = []
        for lines, (place, numbers) in zip(inputs, at, strict=True):
            taken = _take(item, lines, place, numbers)
            if taken is None:
                break
            fields, place = taken
            after.append((place, (*numbers, *(each if isinstance(each, str) else "" for each in fields))))
        else:
            yield from _continued(inputs, after, (*items, item), search)


def _next_items(
    inputs: Sequence[list[str]],
    at: Sequence[tuple[int, tuple[str, ...]]],
    items: tuple[_Item, ...],
    search: _Search,
) -> Iterator[_Item]:
    lines = [texts[place] for texts, (place, _) in zip(inputs, at, strict=True)]
    separator = _separator(lines)
    sizes = {len(line.split(separator)) for line in lines}
    whole = [numbers for _, numbers in at]
    # Lines that an earlier number counts, where it counts more than one.
    for count in range(len(whole[0])):
        if not all(_INTEGER.fullmatch(numbers[count]) for numbers in whole):
            continue
        for more in (0, -1, 1):
            counts = [int(numbers[count]) + more for numbers in whole]
            if max(counts) < (1 if search.says_cases else 2) or min(counts) < 1:
                continue
            if any(place + number > len(texts) for number, texts, (place, _) in zip(counts, inputs, at, strict=True)):
                continue
            counted = [
                line
                for number, texts, (place, _) in zip(counts, inputs, at, strict=True)
                for line in texts[place : place + number]
            ]
            yield from (_Item("lines", count=count, more=more, each=each) for each in _line_items(counted, search))
    is_counted = all(_is_counted(line.split(separator)) for line in lines)
    is_last = all(place + 1 == len(texts) for texts, (place, _) in zip(inputs, at, strict=True))
    is_array = is_last and search.says_list and not is_counted and max(sizes) > 2
    if is_array:
        yield _Item("array", separator=separator)
    if is_counted and max(sizes) > 2:  # though all have one length: a row would let the count be any number
        yield _Item("counted", separator=separator)
    if len(sizes) == 1 and max(sizes) <= _MOST_TOKENS and (not items or max(sizes) <= 3):
        yield _Item("row", max(sizes), separator)
    if is_counted and max(sizes) <= 2:
        yield _Item("counted", separator=separator)
    if not is_array:
        yield _Item("array", separator=separator)
    if len(sizes) == 1 and max(sizes) <= _MOST_TOKENS and items and max(sizes) > 3:
        yield _Item("row", max(sizes), separator)
    if any(len(texts) - place > 1 for texts, (place, _) in zip(inputs, at, strict=True)):
        remaining = [line for texts, (place, _) in zip(inputs, at, strict=True) for line in texts[place:]]
        yield from (_Item("lines", each=each) for each in _line_items(remaining, search))


def _line_items(lines: Sequence[str], search: _Search) -> Iterator[_Item]:
    separator = _separator(lines)
    sizes = {len(line.split(separator)) for line in lines}
    if len(sizes) == 1 and max(sizes) <= 4 and not (search.says_list and max(sizes) > 1):
        yield _Item("row", max(sizes), separator)
    else:
        if all(_is_counted(line.split(separator)) for line in lines):
            yield _Item("counted", separator=separator)
        yield _Item("array", separator=separator)


def _separator(lines: Sequence[str]) -> str:
    for separator in (", ", ","):
        if any(separator in line for line in lines) and all(" " not in line.replace(", ", "") for line in lines):
            return separator
    return " "


def _is_counted(tokens: Sequence[str]) -> bool:
    return bool(_INTEGER.fullmatch(tokens[0])) and int(tokens[0]) == len(tokens) - 1


def _split(items: Sequence[_Item], has_cases: bool, lines: list[str]) -> list[list[Any]] | None:
    """The fields of each case as texts and lists of texts; None if the lines do not fit."""
    if not lines:
        return None
    place, cases = 0, 1
    if has_cases:
        if not _INTEGER.fullmatch(lines[0]):
            return None
        place, cases = 1, int(lines[0])
    records = []
    for _ in range(cases):
        fields: list[Any] = []
        for item in items:
            taken = _take(item, lines, place, fields)
            if taken is None:
                return None
            more, place = taken
            fields += more
        records.append(fields)
    return records if place == len(lines) else None


def _take(item: _Item, lines: list[str], place: int, fields: Sequence[Any]) -> tuple[list[Any], int] | None:
    """The fields of an item that begins at a line, and the line after it."""
    if item.kind == "lines":
        assert item.each is not None
        count = len(lines) - place
        if item.count is not None:
            said = fields[item.count]
            if not isinstance(said, str) or not _INTEGER.fullmatch(said):
                return None
            count = int(said) + item.more
        if count < 0 or place + count > len(lines):
            return None
        rows: list[Any] = []
        for line in range(place, place + count):
            taken = _take(item.each, lines, line, fields)
            if taken is None:
                return None
            row = taken[0]
            rows.append(row[-1] if len(row) == 1 or item.each.kind == "counted" else row)
        return [rows], place + count
    if place >= len(lines):
        return None
    tokens = lines[place].split(item.separator)
    if "" in tokens:
        return None
    if item.kind == "counted":
        return ([tokens[0], tokens[1:]], place + 1) if _is_counted(tokens) else None
    if item.kind == "array":
        return [tokens], place + 1
    return (list(tokens), place + 1) if len(tokens) == item.size else None


def _rendered(items: Sequence[_Item], fields: Sequence[Any]) -> Iterator[str]:
    waiting = iter(fields)
    for item in items:
        if item.kind == "lines":
            assert item.each is not None
            for row in next(waiting):
                own = row if item.each.kind == "row" and item.each.size > 1 else [row]
                yield from _rendered([item.each], [str(len(row)), row] if item.each.kind == "counted" else own)
        elif item.kind == "row":
            yield item.separator.join(next(waiting) for _ in range(item.size))
        elif item.kind == "counted":
            yield item.separator.join([next(waiting), *next(waiting)])
        else:
            yield item.separator.join(next(waiting))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _type(values: Sequence[Any]) -> tuple[str, int]:
    tokens = [token for value in values for token in _leaves(value)]
    if all(_INTEGER.fullmatch(token) and token != "-0" for token in tokens):
        return "integer", 0
    if all(_DECIMAL.fullmatch(token) or _INTEGER.fullmatch(token) for token in tokens):
        return "decimal", max(len(token.partition(".")[2]) for token in tokens)
    return "string", 0


def _typed(value: Any, kind: str, digits: int) -> Any:
    if isinstance(value, list):
        return [_typed(inner, kind, digits) for inner in value]
    return {"integer": int, "decimal": float, "string": str}[kind](value)


def _texts(value: Any, digits: int) -> Any:
    if isinstance(value, list):
        return [_texts(inner, digits) for inner in value]
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)
