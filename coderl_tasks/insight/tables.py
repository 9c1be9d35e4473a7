"""A table described once, and rendered for the console, for markdown (Prefect's artifacts) and for HTML (the report).

What differs by medium is in the renderers: how text is escaped (all three show text of models and data sets), and how
an interval or a note is set.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from markupsafe import Markup, escape
from rich.table import Table as RichTable
from rich.text import Text

from coderl_tasks.insight.console import plain_table
from coderl_tasks.untrusted_text import printable

Row = TypeVar("Row")
RICH_STYLES = {"good": "green", "bad": "bold red", "warn": "yellow", "muted": "dim"}


@dataclass(frozen=True, slots=True)
class Tag:
    """A word for a state; `tone` is good, bad or warn."""

    text: str
    tone: str


@dataclass(frozen=True, slots=True)
class Noted:
    """A count, and how many of these are in doubt."""

    n: int
    few: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share, or the difference of two (`signed`, in points), with its interval."""

    value: float
    low: float
    high: float
    signed: bool = False

    def texts(self, unit: str = "%") -> tuple[str, str, str]:
        """Value, low and high, in hundredths."""
        form = "+.1f" if self.signed else ".1f"
        end = "" if self.signed else unit
        return f"{self.value * 100:{form}}{end}", f"{self.low * 100:{form}}{end}", f"{self.high * 100:{form}}{end}"


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column: `value` of a row is a text, a number in `form`, None (a dash), or a Tag, a Noted or an Estimate.
    `style` has words of these: num (a number, to the right), name (which row it is), nowrap, muted, text (a long one).
    `short` is the heading on the console; `interval` the heading in markdown of the intervals of estimates."""

    heading: str
    value: Callable[[Row], Any]
    form: str = ""
    style: str = ""
    media: str = "console markdown html"
    short: str | None = None
    interval: str = ""

    def text(self, row: Row) -> str:
        value = self.value(row)
        return "–" if value is None else format(value, self.form)


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


def rich_table(table: Table[Row], title: str) -> RichTable:
    """For the terminal: an estimate's interval in brackets, percent signs and notes left to the title. Cells are Text,
    in which rich takes no markup for its own; escape sequences are made visible."""
    shown = table.shown("console")
    rendered = plain_table(title)
    for column in shown:
        right = "num" in column.style
        heading = column.heading if column.short is None else column.short
        # Numbers are never wrapped: half a number is another number.
        rendered.add_column(Text(printable(heading)), justify="right" if right else "left", no_wrap=right)
    for row in table.rows:
        cells = [_rich_cell(column, row) for column in shown]
        rendered.add_row(*cells, style="bold" if table.is_total(row) else None)
    return rendered


def markdown_table(table: Table[Row]) -> list[str]:
    shown = table.shown("markdown")
    rows = [[cell for column in shown for cell in _markdown_cells(column, row)] for row in table.rows]
    heads = [head for column in shown for head in (column.heading, *filter(None, [column.interval]))]
    lines = ["| " + " | ".join(map(markdown_text, heads)) + " |", "|" + " --- |" * len(heads)]
    return lines + ["| " + " | ".join(map(markdown_text, row)) + " |" for row in rows]


def html_table(table: Table[Row]) -> Markup:
    """A <table> with the CSS classes that page.html.j2 styles; narrow screens show `data-label` before a cell."""
    shown = table.shown("html")
    num = {True: Markup(' class="num"'), False: ""}
    heads = [Markup("<th{}>{}</th>").format(num["num" in column.style], column.heading) for column in shown]
    rows = [
        Markup("<tr{}>{}</tr>").format(
            Markup(' class="all"') if table.is_total(row) else "",
            Markup("").join(
                Markup('<td class="{}" data-label="{}">{}</td>').format(
                    column.style, "" if {"name", "text"} & set(column.style.split()) else column.heading,
                    _html_cell(column, row),
                )
                for column in shown
            ),
        )
        for row in table.rows
    ]  # fmt: skip
    head = Markup("<tr>{}</tr>").format(Markup("").join(heads))
    return Markup('<table class="{}">\n{}\n</table>').format(table.layout, Markup("\n").join([head, *rows]))


def markdown_text(value: Any) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", printable(str(value).replace("\n", " ")))


def _rich_cell(column: Column[Row], row: Row) -> Text:
    value = column.value(row)
    if isinstance(value, Tag):
        return Text(value.text, style=RICH_STYLES[value.tone])
    if isinstance(value, Estimate):
        middle, low, high = value.texts(unit="")
        return Text(f"{middle} [{low}, {high}]")
    text = format(value.n, column.form) if isinstance(value, Noted) else column.text(row)
    return Text(printable(text), style=RICH_STYLES["muted"] if "muted" in column.style else "")


def _markdown_cells(column: Column[Row], row: Row) -> list[str]:
    value = column.value(row)
    if column.interval:
        middle, low, high = value.texts()
        return [middle, f"{low} to {high}"]
    if isinstance(value, Noted):
        few = f" ({value.few:{column.form}})" if value.few else ""
        return [f"{value.n:{column.form}}{few}"]
    return [value.text if isinstance(value, Tag) else column.text(row)]


def _html_cell(column: Column[Row], row: Row) -> Markup:
    value = column.value(row)
    if isinstance(value, Tag):
        return Markup('<span class="tag {}">{}</span>').format(value.tone, value.text)
    if isinstance(value, Estimate):
        return Markup('<span>{} <span class="ci">{} to {}</span></span>').format(*value.texts())
    if isinstance(value, Noted):
        few = Markup(' <span class="few">({})</span>').format(format(value.few, column.form)) if value.few else ""
        return Markup("{}{}").format(format(value.n, column.form), few)
    return escape(column.text(row))
