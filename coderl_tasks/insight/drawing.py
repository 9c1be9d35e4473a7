"""Figures as SVG without script: what all of them consist of, how a page or a markdown text shows one, and bars.
Elements have classes and no style of their own, which the viewer's content security policy forbids: `look.css` has the
colours. The same data draws the same bytes."""

import base64
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import accumulate
from typing import Any

from markupsafe import Markup, escape

from coderl_tasks.insight.tables import Table, markdown_table
from coderl_tasks.untrusted_text import printable

# The style sheet of figures and the colours of all pages; it has no character that XML or HTML would escape.
LOOK = (files("coderl_tasks.insight") / "templates" / "look.css").read_text()
FULL, HALF, GAP = 940, 460, 20  # widths of a figure that fills a page, of one of two in a row, and of the gap between
MARGIN = 12
CHARACTER = 7.6  # units that a character of 11.5 pixels is wide on average, in the widest of the fonts
N_COLOURS = 6
TOP, ROW, BAR, AXIS = 32, 27, 18, 24  # of rows of bars


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure: its elements, its size in units, a text for those who cannot see it; its role is group if it links."""

    drawn: Markup
    width: int
    height: int
    alt: str
    role: str = "img"

    def __html__(self) -> str:
        """The figure in a page that has `look.css`, as wide as its place; templates call it."""
        return self._element("", "", 0)

    def markdown(self) -> str:
        """The figure in markdown that escapes raw HTML: an image with its data in the address."""
        return f"![{self.alt}](data:image/svg+xml;base64,{base64.b64encode(self.svg().encode()).decode()})"

    def svg(self) -> str:
        """The figure as a file of its own: with its size, style sheet and paper, which has a margin."""
        size = Markup('width="{}" height="{}"').format(self.width + 2 * MARGIN, self.height + 2 * MARGIN)
        style = Markup('<style>{0}</style><rect class="paper" x="{1}" y="{1}" {2}/>')
        style = style.format(Markup(LOOK), -MARGIN, size)
        return self._element(Markup(' xmlns="http://www.w3.org/2000/svg" {}').format(size), style, MARGIN)

    def _element(self, attributes: str, before: str, margin: int) -> str:
        head = Markup('<svg class="figure" viewBox="{0} {0} {1} {2}" role="{3}" aria-label="{4}"{5}>')
        size = (self.width + 2 * margin, self.height + 2 * margin)
        opened = head.format(-margin, *size, self.role, printable(self.alt), attributes)
        return Markup().join([opened, before, self.drawn, Markup("</svg>")])


def markdown(parts: Iterable[Plot | Table[Any] | str | None]) -> str:
    """Figures, tables and paragraphs of markdown below one another; what is None or empty is left out."""
    texts = (
        part.markdown() if isinstance(part, Plot) else markdown_table(part) if isinstance(part, Table) else part
        for part in parts
    )
    return "\n\n".join(filter(None, texts)) + "\n"


def in_columns(plots: Sequence[Plot], columns: int, alt: str) -> Plot:
    """Figures of one size in one figure, in rows of `columns`."""
    width, height = (plots[0].width, plots[0].height) if plots else (HALF, 0)
    moved = Markup('<g transform="translate({} {})">{}</g>')
    places = [(place % columns * (width + GAP), place // columns * height) for place in range(len(plots))]
    drawn = [moved.format(*place, plot.drawn) for place, plot in zip(places, plots, strict=True)]
    return Plot(Markup().join(drawn), columns * (width + GAP) - GAP, -(-len(plots) // columns) * height, alt)


def text(x: float, y: float, words: str, kind: str) -> Markup:
    """`words` from `x` on, or as the class `end` or `middle` in `kind` says; `y` is that of the line they stand on."""
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(kind, x, y, escape(printable(words)))


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<path class="{}" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(kind, x1, y1, x2, y2)


def circle(kind: str, x: float, y: float, radius: float) -> Markup:
    return Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}"/>').format(kind, x, y, radius)


def legend(colours: Mapping[str, str], right: float, y: float) -> Markup:
    """The names of colours in a row that ends at `right`."""
    parts, x = [], right
    for name, colour in reversed([*colours.items()]):
        x -= CHARACTER * len(name)
        parts += [text(x, y, name, "tick"), bar(colour, x - 14, y - 9, 10, 10)]
        x -= 26
    return Markup().join(reversed(parts))


def bar(kind: str, x: float, y: float, width: float, height: float, said: str = "") -> Markup:
    """A rectangle, which says `said` to a pointer that rests on it."""
    title = Markup("<title>{}</title>").format(printable(said)) if said else ""
    rect = Markup('<rect class="part {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">{}</rect>')
    return rect.format(kind, x, y, width, height, title)


def extent(values: Sequence[float], limits: tuple[float | None, float | None] = (None, None)) -> tuple[float, float]:
    """The ends of an axis for `values`: those that `limits` has, else a little beyond the values."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low < 1e-12:
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    edge = 0.06 * (high - low)
    low = low - edge if limits[0] is None else limits[0]
    high = high + edge if limits[1] is None else limits[1]
    return (low, high) if high > low else (low, low + 1.0)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers between `low` and `high`, at most `most` and a few."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    steps = [size * factor for factor in (0.5, 1, 2, 5, 10)]
    fitting = next(number for number, step in enumerate(steps) if step >= rough)
    for step in (steps[fitting], steps[max(0, fitting - 1)]):  # one tick alone gives no scale
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last > first:
            break
    return [number * step for number in range(first, last + 1)]


def axis_below(places: Sequence[float], form: str, x: Callable[[float], float], top: float, bottom: float) -> Markup:
    """The ticks of an axis: at each of `places` a rule, and its number."""
    parts = []
    for place, words in zip(places, tick_texts(places, form), strict=True):
        parts += [line("rule", x(place), top, x(place), bottom), text(x(place), bottom + 15, words, "tick middle")]
    return Markup().join(parts)


def axis_left(places: Sequence[float], form: str, y: Callable[[float], float], left: float, right: float) -> Markup:
    parts = []
    for place, words in zip(places, tick_texts(places, form), strict=True):
        parts += [line("rule", left, y(place), right, y(place)), text(left - 8, y(place) + 4, words, "tick end")]
    return Markup().join(parts)


def tick_texts(places: Sequence[float], form: str = "") -> list[str]:
    """The numbers at the ticks of an axis, all with the digits that tell neighbours apart."""
    largest = max(map(abs, places), default=0.0)
    percent = form.endswith("%")
    if len(places) < 2 or not (percent or 1e-3 <= largest < 1e6):
        return [number(place, form) for place in places]
    digits = max(0, math.ceil(-math.log10(places[1] - places[0]) - 1e-9) - 2 * percent)
    return [format(place, f".{digits}%" if percent else f",.{digits}f") for place in places]


def number(value: float, form: str = "") -> str:
    """A value as `form` has it; without one with four digits, or all of those before the point."""
    return format(value, form or (",.0f" if 1e3 <= abs(value) < 1e6 else ".4g"))


def short_name(name: str) -> str:
    """A split's name as a label, cut so that it fits the margin of a figure."""
    return name if len(name) <= 15 else f"{name[:14]}…"


@dataclass(frozen=True, slots=True)
class BarRow:
    name: str
    parts: Sequence[tuple[float, str]]  # each with the class of its colour
    behind: str = ""  # a text after the bar's end


def rows_of_bars(
    heading: str, rows: Sequence[BarRow], alt: str, names: Mapping[str, str] | None = None, width: int = FULL
) -> Plot:
    """A horizontal bar per row. `names` is the legend, from names to colours. An axis is drawn below unless rows have a
    text behind their bars, such as the number itself."""
    left = round(16 + CHARACTER * max((len(row.name) for row in rows), default=0))  # the widest name fits
    right = round(16 + CHARACTER * max((len(row.behind) for row in rows), default=0))
    largest = max((sum(value for value, _ in row.parts) for row in rows), default=0) or 1
    scale, bottom = (width - left - right) / largest, TOP + ROW * len(rows)
    elements = [text(0, 12, heading, "heading"), legend(names or {}, width, 12)]
    has_axis = not any(row.behind for row in rows)
    values_named = ticks(0, largest, 5) if has_axis and rows else []
    elements.append(axis_below(values_named, "", lambda value: left + scale * value, TOP, bottom))
    for index, row in enumerate(rows):
        y, x = TOP + ROW * index, float(left)
        elements.append(text(left - 8, y + 15, row.name, "name end"))
        for value, colour in row.parts:
            elements.append(bar(colour, x, y + 2, scale * value, BAR, number(value)))
            x += scale * value  # the next part begins where this one ends
        elements.append(text(x + 6, y + 15, row.behind, "name"))
    return Plot(Markup().join(elements), width, bottom + AXIS * has_axis, alt)


def columns_of_bars(
    heading: str,
    stacks: Mapping[str, Sequence[float]],
    labels: Sequence[tuple[float, str]],
    axes: tuple[str, str],
    alt: str,
    size: tuple[int, int],
    band: tuple[float, float] | None = None,
) -> Plot:
    """Stacked columns of counts: `stacks` has one value per column for each name in the legend. `labels` are texts
    below the columns, each at its distance from the left in columns (0.5: the middle of the first); `band` is shaded
    from one such distance to another. `axes` names the horizontal axis, then that of values."""
    width, height = size
    left, right, top, bottom = 48, width - 12, 52, height - 42
    totals = [sum(values) for values in zip(*stacks.values(), strict=True)]
    _, high = extent(totals, (0, None))  # the axis of values goes from 0 to a little above the highest column
    column, unit = (right - left) / max(1, len(totals)), (bottom - top) / high  # width of a column, height of a 1
    colours = [f"s{place % N_COLOURS}" for place in range(len(stacks))]
    names = dict(zip(map(short_name, stacks), colours, strict=True))
    elements = [text(0, 12, heading, "heading"), legend(names, width, 12), text(0, 38, axes[1], "tick")]
    if band is not None:
        elements.append(bar("s0 band", left + column * band[0], top, column * (band[1] - band[0]), bottom - top))
    counts_named = [tick for tick in ticks(0, high, 5) if float(tick).is_integer()]
    elements.append(axis_left(counts_named, "", lambda value: bottom - unit * value, left, right))
    for index, values in enumerate(zip(*stacks.values(), strict=True)):
        x = left + column * index + 1.5  # 3 units between two columns
        for colour, value, end in zip(colours, values, accumulate(values), strict=True):
            elements.append(bar(colour, x, bottom - unit * end, column - 3, unit * value, number(value)))
    elements += [text(left + column * distance, bottom + 15, words, "tick middle") for distance, words in labels]
    elements.append(text((left + right) / 2, bottom + 33, axes[0], "tick middle"))
    return Plot(Markup().join(elements), width, height, alt)
