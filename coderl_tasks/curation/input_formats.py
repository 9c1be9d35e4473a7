"""The format of a `stdin` problem's inputs: how their lines become records of values, and records become lines.

A format is inferred from all given inputs together: the simplest sequence of items that parses every one of them. An
item is a row, an array, a counted row or several lines, each one of these (see `_parse_item`). An input may also be a
number of cases, each in the same format: then every case is a record. Whether a number is the length of a list is left
to the constraints of `new_inputs`, except where it says how many lines follow.
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
    """`kind` is row, counted, array or lines. `size` is a row's number of tokens. Of lines, `count_field` is the field
    that says how many there are, with `count_offset` added (None: all that remain), and `line` is what one is."""

    kind: str
    size: int = 0
    separator: str = " "
    count_field: int | None = None
    count_offset: int = 0  # -1, 0 or 1: a tree of n nodes has n - 1 lines of edges
    line: "_Item | None" = None


@dataclass(frozen=True, slots=True)
class InputFormat:
    """Items and, per field, the type of its tokens: integers, decimals (with so many digits) or strings."""

    items: tuple[_Item, ...]
    has_cases: bool
    types: tuple[tuple[type, int], ...]

    def parse(self, text: str) -> list[Record] | None:
        """The records of an input, None if it is not in this format."""
        raw = _parse_cases(self.items, self.has_cases, _lines(text))
        if raw is None:
            return None
        return [[_typed(value, kind) for value, (kind, _) in zip(record, self.types, strict=True)] for record in raw]

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
        # The first line may be a number of cases if it is no greater than that of the lines after it.
        may_have_cases = all(_INTEGER.fullmatch(lines[0]) and 0 < int(lines[0]) < len(lines) for lines in inputs)
        for has_cases in (True, False) if may_have_cases else (False,):
            found = search.case_formats(inputs) if has_cases else search.continued(list(map(_Position, inputs)))
            for items in found:
                raw = [_parse_cases(items, has_cases, lines) for lines in inputs]
                if None not in raw:  # further cases may not have the format of the first ones
                    fields = zip(*(record for records in raw for record in records or ()), strict=True)
                    return InputFormat(items, has_cases, tuple(map(_type, fields)))
    return None


def _lines(text: str) -> list[str]:
    """The lines of an input, none if one of them is empty."""
    lines = [line.strip() for line in text.rstrip().splitlines()]
    return lines if all(lines) else []


class _TooManyAttempts(Exception):
    """Lines that fit so many formats say nothing of what they mean."""


class _Position(NamedTuple):
    """How far some items parse an input: the `place` of its next line, and the fields of these items: a token or a list
    each. A token may be the number of lines of a later item."""

    lines: list[str]
    place: int = 0
    fields: tuple[Any, ...] = ()

    def number(self, field: int) -> int | None:
        """The number in a field; None if it is none."""
        token = self.fields[field]
        return int(token) if isinstance(token, str) and _INTEGER.fullmatch(token) else None


class _Search:
    """What a statement says of the inputs, and how many items have been tried."""

    def __init__(self, statement: str) -> None:
        self.attempts = 0
        cases, values = r"test ?cases?\b|number of (cases|tests|data ?sets)", r"(integers|numbers|values|words)"
        self.says_cases = bool(re.search(cases, statement, re.IGNORECASE))
        self.says_list = bool(re.search(rf"\b(line of|the|n) {values}\b(?! `?\w\b)", statement, re.IGNORECASE))

    def case_formats(self, inputs: Sequence[list[str]]) -> Iterator[tuple[_Item, ...]]:
        """Formats of one case: first with as many lines in every case, then those that begin with a number of lines."""
        per_case = {(len(lines) - 1) / int(lines[0]) for lines in inputs}
        # Cases of one line are a list of lines as well, and as such may have more in common.
        if len(per_case) == 1 and (size := per_case.pop()).is_integer() and 1 < size <= _MOST_TOKENS:
            cases = [lines[start : start + int(size)] for lines in inputs for start in range(1, len(lines), int(size))]
            yield from self.continued(list(map(_Position, cases)))
        lines = [*(_Item("row", size) for size in range(1, 5)), _Item("array")]
        for width in (1, 2, 3):
            for field, offset, line in product(range(width), (0, -1, 1), lines):
                yield (_Item("row", width), _Item("lines", count_field=field, count_offset=offset, line=line))

    def continued(self, at: Sequence[_Position], items: tuple[_Item, ...] = ()) -> Iterator[tuple[_Item, ...]]:
        """Yields every sequence of items that begins with `items` and parses all inputs to their end, depth first, in
        the order of `next_items`. `at` has for each input the place behind `items`. Raises _TooManyAttempts after
        _MOST_ATTEMPTS in all."""
        ended = [position.place == len(position.lines) for position in at]
        if all(ended):
            yield items
            return
        # One input ends here and another does not, or an input has no room for more items.
        if any(ended) or len(items) > _MOST_TOKENS:
            return
        for item in self.next_items(at, is_first=not items):
            self.attempts += 1
            if self.attempts > _MOST_ATTEMPTS:
                raise _TooManyAttempts
            after = [parsed for position in at if (parsed := _parse_item(item, position)) is not None]
            if len(after) == len(at):  # every input has the item here
                yield from self.continued(after, (*items, item))

    def next_items(self, at: Sequence[_Position], is_first: bool) -> Iterator[_Item]:
        """Yields the items that may come next in all inputs, the likeliest first, since the first sequence of items
        that parses all inputs is taken. The lines `3 1 2 3` and `2 5 7`, say, are first taken for counted rows (a
        number, and so many others), then for arrays."""
        yield from self._counted_lines(at)
        lines = [position.lines[position.place] for position in at]
        separator = _separator(lines)
        sizes = {len(line.split(separator)) for line in lines}
        longest = max(sizes)
        row, array = _Item("row", longest, separator), _Item("array", separator=separator)
        counted = _Item("counted", separator=separator)
        may_be_row = len(sizes) == 1 and longest <= _MOST_TOKENS  # longer lines are arrays
        may_be_counted = all(_is_counted(line.split(separator)) for line in lines)
        is_last_line = all(position.place + 1 == len(position.lines) for position in at)
        is_stated_list = is_last_line and self.says_list and not may_be_counted and longest > 2
        # The numbers of a short line, or of the first one, mostly mean different things (n and k): rather a row.
        are_parameters = may_be_row and (is_first or longest <= 3)
        by_likelihood = [
            (is_stated_list, array),
            # Before a row, which fits too where all lines have one length, but would let the count be any number.
            (may_be_counted and longest > 2, counted),
            (are_parameters, row),
            (may_be_counted and longest <= 2, counted),  # after a row: a number may be 1 by chance, as in `1 5`
            (not is_stated_list, array),
            (may_be_row and not are_parameters, row),
        ]
        yield from (item for is_possible, item in by_likelihood if is_possible)
        if any(len(position.lines) - position.place > 1 for position in at):
            remaining = [line for position in at for line in position.lines[position.place :]]
            yield from (_Item("lines", line=item) for item in self.line_items(remaining))

    def _counted_lines(self, at: Sequence[_Position]) -> Iterator[_Item]:
        """Yields items of as many lines as an earlier token says, or one less (edges of a tree), or one more."""
        least_of_all = 1 if self.says_cases else 2  # if every count is 1, that says little
        for field, offset in product(range(len(at[0].fields)), (0, -1, 1)):
            counts = [count + offset for position in at if (count := position.number(field)) is not None]
            if len(counts) < len(at) or max(counts) < least_of_all or min(counts) < 1:
                continue
            counted = [
                line for (lines, place, _), n in zip(at, counts, strict=True) for line in lines[place : place + n]
            ]
            if len(counted) == sum(counts):  # else an input ends before
                for item in self.line_items(counted):
                    yield _Item("lines", count_field=field, count_offset=offset, line=item)

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


def _parse_cases(items: Sequence[_Item], has_cases: bool, lines: list[str]) -> list[list[Any]] | None:
    """The fields of each case of one input; None if its lines are not in the format. `has_cases`: the first line says
    how many cases follow; otherwise the input is one case."""
    if not lines or (has_cases and not _INTEGER.fullmatch(lines[0])):
        return None
    place, cases = (1, int(lines[0])) if has_cases else (0, 1)
    records = []
    for _ in range(cases):
        at = _Position(lines, place)
        for item in items:
            parsed = _parse_item(item, at)
            if parsed is None:
                return None
            at = parsed
        place = at.place
        records.append([*at.fields])
    return records if place == len(lines) else None


def _parse_item(item: _Item, at: _Position) -> _Position | None:
    """The position behind an item, with the item's fields; None if the lines do not fit. By the item's kind, a line
    `2 5 7` has the fields

    row        a token each: "2", "5", "7"
    array      one list, of any length: ["2", "5", "7"]
    counted    a number, and the list of so many tokens: "2", ["5", "7"]
    lines      (as many as an earlier field says, or all that remain) one list, with a value for each line
    """
    lines, place, fields = at
    if item.kind == "lines":
        return _parse_lines(item, at)
    tokens = lines[place].split(item.separator) if place < len(lines) else [""]
    if "" in tokens:  # two separators in a row: it separates something else
        return None
    if item.kind == "counted":
        return _Position(lines, place + 1, (*fields, tokens[0], tokens[1:])) if _is_counted(tokens) else None
    if item.kind == "array":
        return _Position(lines, place + 1, (*fields, tokens))
    return _Position(lines, place + 1, (*fields, *tokens)) if len(tokens) == item.size else None


def _parse_lines(item: _Item, at: _Position) -> _Position | None:
    """As `_parse_item`, of an item of several lines."""
    assert item.line is not None
    lines, place, fields = at
    counted = len(lines) - place if item.count_field is None else at.number(item.count_field)
    end = -1 if counted is None else place + counted + item.count_offset
    if not place <= end <= len(lines):
        return None
    values: list[Any] = []
    for number in range(place, end):
        parsed = _parse_item(item.line, at._replace(place=number))
        if parsed is None:
            return None
        line_fields = [*parsed.fields[len(fields) :]]
        # Of a counted row only the list: the number in front follows from it.
        is_one_value = len(line_fields) == 1 or item.line.kind == "counted"
        values.append(line_fields[-1] if is_one_value else line_fields)
    return _Position(lines, end, (*fields, values))


def _rendered(items: Sequence[_Item], fields: Sequence[Any]) -> Iterator[str]:
    waiting = iter(fields)
    for item in items:
        if item.kind == "lines":
            assert item.line is not None
            for row in next(waiting):
                own = row if item.line.kind == "row" and item.line.size > 1 else [row]
                yield from _rendered([item.line], [str(len(row)), row] if item.line.kind == "counted" else own)
        elif item.kind == "row":
            yield item.separator.join(next(waiting) for _ in range(item.size))
        elif item.kind == "counted":
            yield item.separator.join([next(waiting), *next(waiting)])
        else:
            yield item.separator.join(next(waiting))


def _leaves(value: Any) -> list[str]:
    return [leaf for inner in value for leaf in _leaves(inner)] if isinstance(value, list | tuple) else [value]


def _type(values: Sequence[Any]) -> tuple[type, int]:
    """The type of a field's tokens, and with how many decimals they are written."""
    tokens = [*_leaves(values)]
    if all(_INTEGER.fullmatch(token) and token != "-0" for token in tokens):
        return int, 0
    if all(_DECIMAL.fullmatch(token) or _INTEGER.fullmatch(token) for token in tokens):
        return float, max(len(token.partition(".")[2]) for token in tokens)
    return str, 0


def _typed(value: Any, kind: type) -> Any:
    return [_typed(inner, kind) for inner in value] if isinstance(value, list) else kind(value)


def _texts(value: Any, digits: int) -> Any:
    if isinstance(value, list):
        return [_texts(inner, digits) for inner in value]
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)
