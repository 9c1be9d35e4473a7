"""Tables and values for people: on the console, in markdown (Prefect's artifacts) and in HTML (the report). Each
renderer escapes text of models and data sets in its way."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, Literal, TypeVar

import polars as pl
from markupsafe import Markup, escape
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from coderl_tasks.untrusted_text import csv_frame, printable, printable_json

Row = TypeVar("Row")
Output = Literal["table", "csv", "json"]
RICH_STYLES = {"good": "green", "bad": "bold red", "warn": "yellow", "muted": "dim"}
MOST_ROWS, LONGEST_TEXT, NARROW = 200, 200, 36
GAP = 2  # between two columns
LONGEST_SHOWN = 6000


@dataclass(frozen=True, slots=True)
class Tag:
    """A word for a state; `tone` is good, bad or warn."""

    text: str
    tone: str


@dataclass(frozen=True, slots=True)
class CountInDoubt:
    count: int
    doubtful: int  # how many of these may be counted wrongly


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share, or the difference of two (`signed`, in points), with its interval."""

    value: float
    low: float
    high: float
    signed: bool = False

    def texts(self, unit: str = "%") -> list[str]:
        """Value, low and high, in hundredths."""
        form, end = ("+.1f", "") if self.signed else (".1f", unit)
        return [f"{share * 100:{form}}{end}" for share in (self.value, self.low, self.high)]


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column: `value` of a row is a text, a number, None (a dash), or a Tag, a CountInDoubt or an Estimate. `style`
    has words of these: num (a number, to the right), name (which row it is), nowrap, muted, text (a long one). `short`
    is the heading on the console. Markdown shows intervals in a column of their own, under `interval_heading`."""

    heading: str
    value: Callable[[Row], Any]
    number_format: str = ""
    style: str = ""
    media: str = "console markdown html"
    short: str | None = None
    interval_heading: str = ""

    def text(self, row: Row) -> str:
        value = self.value(row)
        return "–" if value is None else format(value, self.number_format)


@dataclass(frozen=True, slots=True)
class Table(Generic[Row]):
    """Columns over rows. On a narrow page, `layout` stacked turns each row into a block, dense uses smaller type."""

    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    layout: str = ""

    def shown(self, medium: str) -> list[Column[Row]]:
        return [column for column in self.columns if medium in column.media]

    def is_total(self, row: Row) -> bool:
        return self.columns[0].value(row) == "all"


def plain_table(title: str | None = None, columns: Sequence[str] = ()) -> RichTable:
    return RichTable(*columns, title=title, header_style="bold", title_justify="left", box=None, pad_edge=False)


def rich_table(table: Table[Row], title: str) -> RichTable:
    """A table for the terminal. Cells are Text, which takes no markup; escape sequences are made visible."""

    def cell(column: Column[Row], row: Row) -> Text:
        value = column.value(row)
        if isinstance(value, Tag):
            return Text(value.text, style=RICH_STYLES[value.tone])
        if isinstance(value, Estimate):
            middle, low, high = value.texts(unit="")
            return Text(f"{middle} [{low}, {high}]")
        text = format(value.count, column.number_format) if isinstance(value, CountInDoubt) else column.text(row)
        return Text(printable(text), style=RICH_STYLES["muted"] if "muted" in column.style else "")

    shown = table.shown("console")  # without the columns that only other outputs have
    rendered = plain_table(title)
    for column in shown:
        is_number = "num" in column.style
        heading = column.heading if column.short is None else column.short
        # Numbers are never wrapped: half a number is another number.
        rendered.add_column(Text(printable(heading)), justify="right" if is_number else "left", no_wrap=is_number)
    for row in table.rows:
        rendered.add_row(*(cell(column, row) for column in shown), style="bold" if table.is_total(row) else None)
    return rendered


def markdown_table(table: Table[Row]) -> str:
    def cells(column: Column[Row], row: Row) -> list[str]:
        value = column.value(row)
        if column.interval_heading:
            middle, low, high = value.texts()
            return [middle, f"{low} to {high}"]
        if isinstance(value, CountInDoubt):
            doubtful = f" ({value.doubtful:{column.number_format}})" if value.doubtful else ""
            return [f"{value.count:{column.number_format}}{doubtful}"]
        return [value.text if isinstance(value, Tag) else column.text(row)]

    shown = table.shown("markdown")
    rows = [[text for column in shown for text in cells(column, row)] for row in table.rows]
    heads = [head for column in shown for head in (column.heading, *filter(None, [column.interval_heading]))]
    head, *lines = ("| " + " | ".join(map(markdown_text, row)) + " |" for row in (heads, *rows))
    return "\n".join([head, "|" + " --- |" * len(heads), *lines])


def markdown_text(value: Any) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", printable(str(value).replace("\n", " ")))


def html_table(table: Table[Row]) -> Markup:
    """An HTML <table>. On narrow screens, where a row is a block, page.html.j2 shows `data-label` before a cell."""

    def content(column: Column[Row], row: Row) -> Markup:
        value = column.value(row)
        if isinstance(value, Tag):
            return Markup('<span class="tag {}">{}</span>').format(value.tone, value.text)
        if isinstance(value, Estimate):
            return Markup('<span>{} <span class="ci">{} to {}</span></span>').format(*value.texts())
        if isinstance(value, CountInDoubt):  # a count, then in brackets how much of it is in doubt
            count, doubtful = format(value.count, column.number_format), format(value.doubtful, column.number_format)
            brackets = Markup(' <span class="few">({})</span>').format(doubtful) if value.doubtful else ""
            return Markup("{}{}").format(count, brackets)
        return escape(column.text(row))

    shown = table.shown("html")
    classes = [Markup(' class="num"') if "num" in column.style else "" for column in shown]
    heads = [Markup("<th{}>{}</th>").format(of, column.heading) for of, column in zip(classes, shown, strict=True)]
    lines = [Markup("<tr>{}</tr>").format(Markup("").join(heads))]
    # Names and long texts need no label.
    labels = ["" if {"name", "text"} & set(column.style.split()) else column.heading for column in shown]
    cell = Markup('<td class="{}" data-label="{}">{}</td>')
    for row in table.rows:
        columns = zip(shown, labels, strict=True)
        cells = [cell.format(column.style, label, content(column, row)) for column, label in columns]
        class_of_row = Markup(' class="all"') if table.is_total(row) else ""
        lines.append(Markup("<tr{}>{}</tr>").format(class_of_row, Markup("").join(cells)))
    return Markup('<table class="{}">\n{}\n</table>').format(table.layout, Markup("\n").join(lines))


def render_frame(frame: pl.DataFrame, console: Console, title: str | None = None) -> None:
    """Prints the first MOST_ROWS rows of `frame` as a table, each on one line, with numbers aligned. A terminal gets
    the first columns that fit its width, with long text cut; a pipe or a file gets all columns in full width."""
    columns = [(series, _column_cells(series)) for series in frame.head(MOST_ROWS).iter_columns()]
    widths = [max([cell_len(printable(series.name)), *map(cell_len, cells)]) for series, cells in columns]
    # How narrow a column can get: text is cut to NARROW characters, numbers are never cut.
    are_numbers = [series.dtype.is_numeric() for series, _ in columns]
    least_widths = [width if number else min(width, NARROW) for width, number in zip(widths, are_numbers, strict=True)]
    count = len(columns)  # of the columns shown
    if console.is_terminal:
        count = max(1, sum(end - GAP <= console.width for end in accumulate(width + GAP for width in least_widths)))
    else:
        # A pipe or a file has no width: rich would assume 80 columns and cut text that another program reads.
        console = Console(file=console.file, width=max(console.width, sum(widths) + GAP * len(widths)))
    table, spare = plain_table(title), console.width - sum(least_widths[:count]) - GAP * (count - 1)
    for (series, _), least, whole in zip(columns[:count], least_widths, widths, strict=False):
        # Set exact widths: by default rich drops a column of numbers to show more of a text.
        width = least + min(spare, whole - least)  # the first columns take what is spare
        spare -= width - least
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
    """The values of a frame's column as texts on one line each, floats with as many decimals as the longest needs."""
    if series.dtype.is_float():
        short = [f"{value:.6g}" for value in series.drop_nulls()]
        # With an exponent, nan or inf no number of decimals suits all: small numbers would be shown as 0.
        if any("e" in text or "n" in text for text in short):
            return ["–" if value is None else f"{value:.6g}" for value in series]
        decimals = max((len(text.partition(".")[2]) for text in short), default=0)
        return ["–" if value is None else f"{value + 0.0:.{decimals}f}" for value in series]  # no -0
    texts = ["–" if value is None else printable(str(value)) for value in series.to_list()]
    return [text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…" for text in texts]


def shorten(text: str, limit: int = LONGEST_SHOWN) -> str:
    """`text`, its middle left out where it is longer than `limit` characters: the code is usually at the end."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 3]}\n\n[… {len(text) - limit:,} characters left out …]\n\n{text[-2 * limit // 3 :]}"


def duration(seconds: float) -> str:
    """A length of time for people: 40 s, 12 min, 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def age(seconds: float) -> str:
    days = int(seconds // 86_400)
    return f"{days} days" if days >= 2 else duration(max(seconds, 0))
