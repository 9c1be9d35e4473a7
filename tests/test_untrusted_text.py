"""Text of others on a terminal and in a CSV file."""

import csv
import json
import subprocess
import sys
from io import StringIO

import polars as pl
import pytest
from rich.console import Console

from coderl_tasks.insight.tables import markdown_text, render_frame, write_frame
from coderl_tasks.untrusted_text import csv_cell, printable, printable_json, printable_lines

HOSTILE = [
    "\x1b]0;title\x07",
    "\x9b2J",
    "a\rb",
    "\u202eevil",
    "\u2066x\u2069",
    "\ud800",
    "\x00",
    "\x7f",
    "\u2028",
    "\u200b",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    assert printable(text).isprintable() and printable_lines(text).isprintable() and csv_cell(text).isprintable()


def test_ordinary_text_stays_as_it_is() -> None:
    text = "def f(x):\n\treturn 'größer, 漢字, 😀, עברית'"
    assert printable_lines(text) == text
    assert printable("a\r\nb\tc\xa0d\u3000e") == "a⏎b c d e"
    assert printable("\x1b[2J\u202e\ud800") == r"\x1b[2J\u202e\ud800"


def test_json_is_the_same_document() -> None:
    text = json.dumps({"a": "".join(HOSTILE[:4]) + "\U000e0041"}, ensure_ascii=False)
    assert printable_json(text).isprintable() and json.loads(printable_json(text)) == json.loads(text)


@pytest.mark.parametrize(
    "text", ["=1+1", "+1-2", "-cmd|'/c x'!A1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "＝1", "-", "-1 2"]
)
def test_no_text_is_a_formula(text: str) -> None:
    assert csv_cell(text).startswith("'")


@pytest.mark.parametrize("text", ["", "-1", "+2.5", "-1e-7", "-.5", "1-2", "a=b", "yes\nno"])
def test_numbers_and_other_texts_are_not_guarded(text: str) -> None:
    assert csv_cell(text) == text


def test_what_is_written_as_csv_and_shown_as_a_table_obeys_nobody() -> None:
    frame = pl.DataFrame(
        {"=x": ["=1", "\x1b[2J", None], "n": [-1, 2, 3], "l": [["=1"], [], None]},
        schema_overrides={"=x": pl.Categorical},
    ).with_columns(b=pl.lit(b"=\xff"))
    file = StringIO()
    write_frame(frame, Console(file=file), "csv")
    rows = list(csv.reader(StringIO(file.getvalue())))
    assert rows == [
        ["'=x", "n", "l", "b"],
        ["'=1", "-1", '["=1"]', r"'=\xff"],
        [r"\x1b[2J", "2", "[]", r"'=\xff"],
        ["", "3", "", r"'=\xff"],
    ]
    table = StringIO()
    render_frame(
        frame.rename({"n": "\x1b]0;n\x07"}), Console(file=table, width=80, force_terminal=True, color_system=None)
    )
    assert "\x1b]0" not in table.getvalue() and r"\x1b[2J" in table.getvalue()


def test_text_in_markdown_neither_acts_nor_hides() -> None:
    assert markdown_text("![x](http://a)\x1b[2J\u202e<b>&lt;~~") == r"!\[x\](http://a)\\x1b\[2J\\u202e\<b\>\&lt;\~\~"


def test_odd_escapes_in_the_programs_of_data_sets_are_not_reported() -> None:
    odd = "import warnings, coderl_tasks; warnings.warn_explicit('invalid escape', SyntaxWarning, {!r}, 3)"
    told = [
        subprocess.run([sys.executable, "-c", odd.format(file)], capture_output=True, text=True, check=True).stderr
        for file in ("<unknown>", "own.py")
    ]
    assert told[0] == "" and "own.py:3: SyntaxWarning" in told[1]
