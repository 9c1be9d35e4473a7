"""Values and frames on a terminal. Model output is untrusted: no escape sequence or markup in it takes effect."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal

import polars as pl
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coderl_tasks.untrusted_text import csv_frame, printable, printable_json

Output = Literal["table", "csv", "json"]
MOST_ROWS, LONGEST_TEXT, NARROW = 200, 200, 36
GAP = 2  # between two columns


def plain_table(title: str | None = None, columns: Sequence[str] = ()) -> Table:
    return Table(*columns, title=title, header_style="bold", title_justify="left", box=None, pad_edge=False)


def duration(seconds: float) -> str:
    """A length of time for people: 40 s, 12 min, 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def age(seconds: float) -> str:
    """As `duration`, and days from two days on."""
    days = int(seconds // 86_400)
    return f"{days} days" if days >= 2 else duration(max(seconds, 0))


def render_frame(frame: pl.DataFrame, console: Console, title: str | None = None) -> None:
    """Prints the first MOST_ROWS rows, each on one line: numbers right-aligned with equal decimals, long text cut. A
    terminal gets the first columns that fit; a pipe or a file gets all columns in full width."""
    columns = [(series, _column_cells(series)) for series in frame.head(MOST_ROWS).iter_columns()]
    widths = [max([cell_len(printable(series.name)), *map(cell_len, cells)]) for series, cells in columns]
    least = [
        width if series.dtype.is_numeric() else min(width, NARROW)
        for (series, _), width in zip(columns, widths, strict=True)
    ]
    count = len(columns)
    if console.is_terminal:
        count = max(1, sum(end - GAP <= console.width for end in accumulate(width + GAP for width in least)))
    else:
        # A pipe or a file has no width: rich would assume 80 columns and cut text that another program reads.
        console = Console(file=console.file, width=max(console.width, sum(widths) + GAP * len(widths)))
    table, spare = plain_table(title), console.width - sum(least[:count]) - GAP * (count - 1)
    for (series, _), narrow, whole in zip(columns[:count], least, widths, strict=False):
        # Set exact widths: by default rich drops a column of numbers to show more of a text.
        width = narrow + min(spare, whole - narrow)
        spare -= width - narrow
        justify: Literal["right", "left"] = "right" if series.dtype.is_numeric() else "left"
        table.add_column(Text(printable(series.name)), justify=justify, overflow="ellipsis", no_wrap=True, width=width)
    for row in zip(*(cells for _, cells in columns[:count]), strict=True):
        table.add_row(*[Text(cell) for cell in row])
    console.print(table)
    if count < len(columns):
        console.print(f"+{len(columns) - count} columns not shown (use --format csv)", style="dim", highlight=False)
    if len(frame) > MOST_ROWS:
        console.print(f"… {len(frame) - MOST_ROWS} more rows", style="dim")


def write_frame(frame: pl.DataFrame, console: Console, output: Literal["csv", "json"]) -> None:
    if output == "csv":
        console.file.write(csv_frame(frame).write_csv())
    else:
        console.file.write(printable_json(frame.write_json()) + "\n")


def _column_cells(series: pl.Series) -> list[str]:
    if series.dtype.is_float():
        short = [f"{value:.6g}" for value in series.drop_nulls()]
        # With an exponent, nan or inf no number of decimals suits all: small numbers would be shown as 0.
        if not any("e" in text or "n" in text for text in short):
            decimals = max((len(text.partition(".")[2]) for text in short), default=0)
            return ["–" if value is None else f"{value + 0.0:.{decimals}f}" for value in series]  # no -0
    return [_cell(value) for value in series.to_list()]


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = printable(str(value))
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
