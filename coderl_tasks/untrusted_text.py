"""Text of others (completions, problems, outputs, errors, names) as a terminal and a CSV file may have it.

A terminal obeys what it is sent: escape sequences (ESC and the C1 controls) move the cursor, set the title, fill the
clipboard; a lone CR overwrites the line; direction overrides show code in another order than it runs in. A spreadsheet
takes a cell for a formula by its first character. Parquet and JSON files have texts as they are.
"""

import json
import logging
import re

import polars as pl

_NOT_PLAIN = re.compile(r"[^\x20-\x7e\n\t]")
_FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def printable(text: str) -> str:
    """`text` on one line: line breaks as ⏎, tabs as spaces, the rest as in `printable_lines`."""
    return printable_lines(text.replace("\r\n", "\n").replace("\t", " ")).replace("\n", "⏎")


def printable_lines(text: str) -> str:
    r"""`text` with its line breaks and tabs; what shows nothing of its own (controls, direction overrides, zero-width
    characters, lone surrogates) as Python writes it: \x1b, \u202e."""
    return text if text.isprintable() else _NOT_PLAIN.sub(_shown, text.replace("\r\n", "\n"))


def printable_json(text: str) -> str:
    """A JSON document in other characters: those that `printable_lines` replaces are escaped, as JSON allows."""
    return _NOT_PLAIN.sub(lambda match: match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1], text)


def csv_cell(text: str) -> str:
    """`printable_lines`, with an apostrophe before what a spreadsheet would take for a formula. A text that is a number
    stays one: -1 is an output of many programs."""
    guard = "'" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else ""
    return guard + printable_lines(text)


def csv_frame(frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` as a CSV file may have it: lists and structs as JSON, texts and column names as `csv_cell`s."""
    columns = []
    for name, series in zip(frame.columns, frame.iter_columns(), strict=True):
        if series.dtype.is_nested():
            texts = [None if value is None else json.dumps(value, default=str) for value in series.to_list()]
            series = pl.Series(texts, dtype=pl.String)
        elif series.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Binary):
            texts = [cell.decode("utf-8", "backslashreplace") if isinstance(cell, bytes) else cell for cell in series]
            series = pl.Series([None if text is None else csv_cell(text) for text in texts], dtype=pl.String)
        columns.append(series.alias(csv_cell(name)))
    return pl.DataFrame(columns)


def _shown(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable():
        return character
    is_blank = character.isspace() and character > "\x9f" and character not in "\u2028\u2029"
    return " " if is_blank else ascii(character)[1:-1]


class _OneLine(logging.Formatter):
    """A message is one line, whatever is in it: an id of a data set, which is untrusted, forges no other."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        # Here and not in `format`, which puts a traceback below the message: that one keeps its lines.
        record.message = printable(record.message)
        return super().formatMessage(record)
