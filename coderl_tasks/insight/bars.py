"""Bars: named rows, and columns side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from markupsafe import Markup

from coderl_tasks.insight.drawing import (
    CHARACTER,
    FULL,
    N_COLOURS,
    Plot,
    axis_below,
    axis_left,
    bar,
    extent,
    legend,
    number,
    short_name,
    text,
    ticks,
)

TOP, ROW, BAR, AXIS = 32, 27, 18, 24


@dataclass(frozen=True, slots=True)
class BarRow:
    """A bar: its name, what stands behind its end, and its parts, each with the class of its colour."""

    name: str
    parts: Sequence[tuple[float, str]]
    behind: str = ""


def rows_of_bars(
    heading: str, rows: Sequence[BarRow], alt: str, names: Mapping[str, str] | None = None, width: int = FULL
) -> Plot:
    """A bar per row, from the left. If no text stands behind the bars, an axis is below them. `names` has the colour of
    what is in the legend."""
    left = round(16 + CHARACTER * max((len(row.name) for row in rows), default=0))
    right = round(16 + CHARACTER * max((len(row.behind) for row in rows), default=0))
    most = max((sum(value for value, _ in row.parts) for row in rows), default=0) or 1
    scale, bottom = (width - left - right) / most, TOP + ROW * len(rows)
    parts = [text(0, 12, heading, "heading"), legend(names or {}, width, 12)]
    has_axis = not any(row.behind for row in rows)
    places = ticks(0, most, 5) if has_axis and rows else []
    parts.append(axis_below(places, "", lambda value: left + scale * value, TOP, bottom))
    for place, row in enumerate(rows):
        y, x = TOP + ROW * place, float(left)
        parts.append(text(left - 8, y + 15, row.name, "name end"))
        for value, colour in row.parts:
            parts.append(bar(colour, x, y + 2, scale * value, BAR, number(value)))
            x += scale * value
        parts.append(text(x + 6, y + 15, row.behind, "name"))
    return Plot(Markup().join(parts), width, bottom + AXIS * has_axis, alt)


def columns_of_bars(
    heading: str,
    stacks: Mapping[str, Sequence[float]],
    labels: Sequence[tuple[float, str]],
    axes: tuple[str, str],
    alt: str,
    size: tuple[int, int],
    band: tuple[float, float] | None = None,
) -> Plot:
    """Columns of the values in `stacks`, one name's on another's. `labels` are at distances from the left in columns,
    as is the shaded `band`; `axes` are the names of the axis of columns and of that of values."""
    width, height = size
    left, right, top, bottom = 48, width - 12, 52, height - 42
    totals = [sum(values) for values in zip(*stacks.values(), strict=True)]
    _, high = extent(totals, (0, None))
    column, unit = (right - left) / max(1, len(totals)), (bottom - top) / high
    colours = [f"s{number % N_COLOURS}" for number in range(len(stacks))]
    names = dict(zip(map(short_name, stacks), colours, strict=True))
    parts = [text(0, 12, heading, "heading"), legend(names, width, 12), text(0, 38, axes[1], "tick")]
    if band is not None:
        parts.append(bar("s0 band", left + column * band[0], top, column * (band[1] - band[0]), bottom - top))
    places = [place for place in ticks(0, high, 5) if float(place).is_integer()]
    parts.append(axis_left(places, "", lambda value: bottom - unit * value, left, right))
    for place, values in enumerate(zip(*stacks.values(), strict=True)):
        x = left + column * place + 1.5
        for colour, value, end in zip(colours, values, accumulate(values), strict=True):
            parts.append(bar(colour, x, bottom - unit * end, column - 3, unit * value, number(value)))
    parts += [text(left + column * place, bottom + 15, words, "tick middle") for place, words in labels]
    parts.append(text((left + right) / 2, bottom + 33, axes[0], "tick middle"))
    return Plot(Markup().join(parts), width, height, alt)
