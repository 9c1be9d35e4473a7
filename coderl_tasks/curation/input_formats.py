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
from typing import Any, NamedTuple

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
        raw = _split(self.items, self.has_cases, _lines(text))
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
    if not inputs or any(not 0 < len(lines) <= _MOST_LINES for lines in inputs):
        return None
    with suppress(_TooManyAttempts):
        search = _Search(statement)
        for has_cases in (True, False) if _may_have_cases(inputs) else (False,):
            found = search.case_formats(inputs) if has_cases else search.continued(list(map(_Position, inputs)))
            for items in found:
                raw = [_split(items, has_cases, lines) for lines in inputs]
                if None not in raw:  # further cases may not have the format of the first ones
                    fields = zip(*(record for records in raw for record in records or ()), strict=True)
                    return InputFormat(items, has_cases, tuple(map(_type, fields)))
    return None


def _lines(text: str) -> list[str]:
    """The lines of an input, none if one of them is empty."""
    lines = [line.strip() for line in text.rstrip().splitlines()]
    return lines if all(lines) else []


def _may_have_cases(inputs: Sequence[list[str]]) -> bool:
    """Whether the first line is a number that is no greater than that of the lines after it."""
    return all(_INTEGER.fullmatch(lines[0]) and 0 < int(lines[0]) <= len(lines) - 1 for lines in inputs)


class _TooManyAttempts(Exception):
    """Lines that fit so many formats say nothing of what they mean."""


class _Position(NamedTuple):
    """Where in the lines of an input some items end, and the single tokens of these ("" for a list)."""

    lines: list[str]
    place: int = 0
    numbers: tuple[str, ...] = ()

    def following(self, count: int) -> list[str]:
        """So many lines; fewer at the end."""
        return self.lines[self.place : self.place + count]


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

    def case_formats(self, inputs: Sequence[list[str]]) -> Iterator[tuple[_Item, ...]]:
        """Formats of one case: first with as many lines in every case, then those that begin with a number of lines."""
        per_case = {(len(lines) - 1) / int(lines[0]) for lines in inputs}
        # Cases of one line are a list of lines as well, and as such may have more in common.
        if len(per_case) == 1 and (size := per_case.pop()).is_integer() and 1 < size <= _MOST_TOKENS:
            cases = [lines[start : start + int(size)] for lines in inputs for start in range(1, len(lines), int(size))]
            yield from self.continued(list(map(_Position, cases)))
        lines = [*(_Item("row", size) for size in range(1, 5)), _Item("array")]
        for width in (1, 2, 3):
            for count, more, line in product(range(width), (0, -1, 1), lines):
                yield (_Item("row", width), _Item("lines", count=count, more=more, each=line))

    def continued(self, at: Sequence[_Position], items: tuple[_Item, ...] = ()) -> Iterator[tuple[_Item, ...]]:
        """Yields every sequence of items that begins with `items` and parses all inputs to their end, the simplest
        first. `at` says of each input where `items` end in it. Depth first: each item that may follow is tried."""
        ended = [place == len(lines) for lines, place, _ in at]
        if all(ended):
            yield items
            return
        if any(ended) or len(items) > _MOST_TOKENS:  # one input ends here and another does not
            return
        for item in self.next_items(at, is_first=not items):
            self.attempts += 1
            if self.attempts > _MOST_ATTEMPTS:
                raise _TooManyAttempts
            after = []
            for lines, place, numbers in at:
                taken = _take(item, lines, place, numbers)
                if taken is None:  # this input does not have the item here
                    break
                fields, place = taken
                numbers = (*numbers, *(each if isinstance(each, str) else "" for each in fields))
                after.append(_Position(lines, place, numbers))
            else:  # every input has it
                yield from self.continued(after, (*items, item))

    def next_items(self, at: Sequence[_Position], is_first: bool) -> Iterator[_Item]:
        """Yields the items that may come next in all inputs (next line of each: `at`), the likeliest first: lines that
        an earlier number counts, one line as an array, a counted row or a row, and last all remaining lines. The order
        matters: the first sequence of items that parses all inputs is taken."""
        lines = [each.lines[each.place] for each in at]
        separator = _separator(lines)
        sizes = {len(line.split(separator)) for line in lines}
        # Each earlier number may count lines, or one less (edges of a tree), or one more. A count of 1 says little.
        for count in range(len(at[0].numbers)):
            if not all(_INTEGER.fullmatch(each.numbers[count]) for each in at):
                continue
            for more in (0, -1, 1):
                counts = [int(each.numbers[count]) + more for each in at]
                if max(counts) < (1 if self.says_cases else 2) or min(counts) < 1:
                    continue
                counted = [line for each, number in zip(at, counts, strict=True) for line in each.following(number)]
                if len(counted) == sum(counts):  # else an input ends before
                    yield from (_Item("lines", count=count, more=more, each=each) for each in self.line_items(counted))
        is_counted = all(_is_counted(line.split(separator)) for line in lines)
        is_last = all(each.place + 1 == len(each.lines) for each in at)
        is_array = is_last and self.says_list and not is_counted and max(sizes) > 2
        is_row = len(sizes) == 1 and max(sizes) <= _MOST_TOKENS  # longer lines are arrays
        if is_array:
            yield _Item("array", separator=separator)
        if is_counted and max(sizes) > 2:  # though all have one length: a row would let the count be any number
            yield _Item("counted", separator=separator)
        if is_row and (is_first or max(sizes) <= 3):
            yield _Item("row", max(sizes), separator)
        if is_counted and max(sizes) <= 2:
            yield _Item("counted", separator=separator)
        if not is_array:
            yield _Item("array", separator=separator)
        if is_row and not is_first and max(sizes) > 3:
            yield _Item("row", max(sizes), separator)
        if any(len(each.lines) - each.place > 1 for each in at):
            remaining = [line for each in at for line in each.lines[each.place :]]
            yield from (_Item("lines", each=each) for each in self.line_items(remaining))

    def line_items(self, lines: Sequence[str]) -> Iterator[_Item]:
        separator = _separator(lines)
        sizes = {len(line.split(separator)) for line in lines}
        if len(sizes) == 1 and max(sizes) <= 4 and not (self.says_list and max(sizes) > 1):
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
    """Parses the lines of one input by a format, `items`: returns each case's fields (a token or a list each); None if
    they do not fit. `has_cases`: the first line says how many cases follow; otherwise the input is one case."""
    if not lines:
        return None
    place, cases = 0, 1  # `place` is the next line to read
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
    """Parses one item of a format at line `place`: returns its fields (a token or a list each) and the number of the
    next line, or None if the lines do not fit. A token among the `fields` before it may say how many lines it has."""
    if item.kind == "lines":
        assert item.each is not None
        count = len(lines) - place  # all that remain
        if item.count is not None:
            count_text = fields[item.count]
            if not isinstance(count_text, str) or not _INTEGER.fullmatch(count_text):
                return None
            count = int(count_text) + item.more  # `more` is -1, 0 or 1
        if count < 0 or place + count > len(lines):
            return None
        rows: list[Any] = []
        for line in range(place, place + count):
            taken = _take(item.each, lines, line, fields)
            if taken is None:
                return None
            row = taken[0]
            # Of a counted row only the list of its tokens: the number in front follows from it.
            rows.append(row[-1] if len(row) == 1 or item.each.kind == "counted" else row)
        return [rows], place + count
    if place >= len(lines):
        return None
    tokens = lines[place].split(item.separator)
    if "" in tokens:  # two separators in a row: it separates something else
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
