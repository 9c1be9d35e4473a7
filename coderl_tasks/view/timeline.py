"""Curves of a run on one axis of steps, as SVG without script: each step is a link, and so is each event.

A page gives colours by the classes s0 to s5; no element has a style of its own, which the page's policy forbids. Every
text is escaped.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from textwrap import wrap

import polars as pl
from markupsafe import Markup, escape

from coderl_tasks.insight.plots import smoothed
from coderl_tasks.untrusted_text import printable

WIDTH, LEFT, RIGHT = 1180, 178, 126
PANEL, TALL, GAP, LANE, AXIS = 70, 150, 32, 20, 24
LEAST_APART = 13  # of two labels at a panel's right edge, which are 11 units high
LONGEST_HEADING = 19  # characters of a line, left of the ticks
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Frame:
    """The picture: its width, the room left and right of the curves, and the steps at their ends."""

    width: int
    left: int
    right: int
    first: float
    last: float

    @property
    def end(self) -> int:
        return self.width - self.right

    def x(self, step: float) -> float:
        return self.left + (step - self.first) / max(1.0, self.last - self.first) * (self.end - self.left)


@dataclass(frozen=True, slots=True)
class Series:
    """Values by step, `label` at their right end; `band` are steps with low and high ends of an interval."""

    label: str
    steps: Sequence[float]
    values: Sequence[float | None]
    band: Sequence[tuple[int, float, float]] = ()

    def known(self) -> list[Point]:
        """The steps that have a value, with it."""
        pairs = zip(self.steps, self.values, strict=True)
        return [(step, value) for step, value in pairs if value is not None and math.isfinite(value)]


@dataclass(frozen=True, slots=True)
class Mark:
    """A value with its interval that stands for itself, as an evaluation's."""

    step: int
    value: float
    low: float
    high: float
    link: str
    said: str
    colour: int = 1


@dataclass(frozen=True, slots=True)
class Panel:
    """Series of one unit; `form` formats values; `limits` hold where they are no None; `tall` is of more weight."""

    heading: str
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    form: str = ".3g"
    limits: tuple[float | None, float | None] = (None, None)
    tall: bool = False

    @property
    def height(self) -> int:
        return TALL if self.tall else PANEL


@dataclass(frozen=True, slots=True)
class Event:
    """What happened at a step: `kind` names the lane that it stands in."""

    kind: str
    step: int
    said: str
    link: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Panels and events over steps. `link` is a step's page, None where a step has none; `said` is what a step's column
    says of it."""

    panels: Sequence[Panel]
    events: Sequence[Event] = ()
    link: Callable[[float], str | None] = lambda step: None
    said: Callable[[float], str] = lambda step: f"step {step:g}"
    name: str = "Curves"
    steps: Sequence[float] = field(default_factory=list)
    small: bool = False

    def svg(self) -> Markup:
        steps = [*self.steps, *(mark.step for panel in self.panels for mark in panel.marks)]
        if not steps:
            return Markup()
        room = (460, 62, 44) if self.small else (WIDTH, LEFT, RIGHT)
        frame = Frame(*room, min(steps), max(steps))
        lanes = list(dict.fromkeys(event.kind for event in self.events))
        top = len(lanes) * LANE + (10 if lanes else 0)
        height = top + sum(panel.height + GAP for panel in self.panels) + AXIS
        parts = [self._columns(frame, height), *self._lanes(frame, lanes)]
        for panel in self.panels:
            parts += _panel(panel, frame, top + GAP)
            top += panel.height + GAP
        parts += _axis(frame, top)
        head = Markup('<svg class="timeline{}" viewBox="0 0 {} {}" role="group" aria-label="{}">')
        opened = head.format(" small" if self.small else "", frame.width, height, printable(self.name))
        return Markup().join([opened, *parts, Markup("</svg>")])

    def _columns(self, frame: Frame, height: int) -> Markup:
        """A column per step, as high as all panels: nobody has to aim at a point."""
        steps = sorted(set(self.steps))
        ends = [(before + after) / 2 for before, after in pairwise(steps)]
        columns = []
        for step, low, high in zip(steps, [steps[0] - 0.5, *ends], [*ends, steps[-1] + 0.5], strict=True):
            left, right = max(frame.x(low), frame.left - 6), min(frame.x(high), frame.end + 6)
            rect = Markup('<rect x="{:.1f}" y="0" width="{:.1f}" height="{}"/><line x1="{:.1f}" x2="{:.1f}" y2="{}"/>')
            drawn = rect.format(left, max(1.0, right - left), height - AXIS, *[frame.x(step)] * 2, height - AXIS)
            columns.append(_linked(self.link(step), self.said(step), drawn, "hit"))
        return Markup().join(columns)

    def _lanes(self, frame: Frame, lanes: Sequence[str]) -> Iterable[Markup]:
        for number, kind in enumerate(lanes):
            y = number * LANE + LANE / 2 + 2
            yield _text(0, y + 4, kind, "lane")
            yield Markup('<line class="rule" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(frame.left, frame.end, y, y)
            for event in self.events:
                if event.kind == kind:
                    shape = _shape(number, frame.x(event.step), y)
                    yield _linked(event.link, event.said, shape, "event")


def _shape(number: int, x: float, y: float) -> Markup:
    """Events differ by the form of their mark as well as by their lane."""
    if number % 3 == 0:
        return Markup('<circle class="s1" cx="{:.1f}" cy="{:.1f}" r="4.5"/>').format(x, y)
    forms = ("M{0} {2}L{1} {3}L{0} {4}L{5} {3}Z", "M{0} {2}L{1} {4}L{5} {4}Z")
    corners = [f"{value:.1f}" for value in (x, x + 5, y - 5, y, y + 5, x - 5)]
    return Markup('<path class="s{}" d="{}"/>').format(number % 6 + 1, forms[number % 3 - 1].format(*corners))


def _linked(link: str | None, said: str, drawn: Markup, kind: str) -> Markup:
    # Not in the order of the tab key, where hundreds of steps would stand before the page: its tables have the links.
    if link is None:
        return Markup('<g class="{}" data-say="{}">{}</g>').format(kind, printable(said), drawn)
    opened = Markup('<a class="{}" href="{}" tabindex="-1" aria-label="{}" data-say="{}">{}</a>')
    return opened.format(kind, link, printable(said), printable(said), drawn)


def _panel(panel: Panel, frame: Frame, top: float) -> Iterable[Markup]:
    ends = [value for series in panel.series for _, value in series.known()]
    ends += [end for series in panel.series for _, low, high in series.band for end in (low, high)]
    ends += [end for mark in panel.marks for end in (mark.low, mark.high)]
    low, high = _limits(ends, panel.limits)

    def y(value: float) -> float:
        return top + panel.height - (value - low) / (high - low) * panel.height

    above = 22 if frame.left < LEFT else 0  # a small picture has no room beside its curves
    for number, words in enumerate(wrap(panel.heading, LONGEST_HEADING)):
        yield _text(0, top + 10 + 15 * number - above, words, "heading")
    for tick in _ticks(low, high, 4 if panel.tall else 2):
        line = Markup('<line class="rule" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
        yield line.format(frame.left, frame.end, y(tick), y(tick))
        yield _text(frame.left - 8, y(tick) + 4, format(tick, panel.form), "tick end")
    labels = []
    for number, series in enumerate(panel.series):
        if known := series.known():
            yield from _curve(series, [(frame.x(step), y(value)) for step, value in known], number, frame, y)
            newest = known[-1][1]
            labels.append((y(newest), number, f"{series.label} {format(newest, panel.form)}".strip()))
    yield from (_whiskers(mark, frame, y) for mark in panel.marks)
    for place, number, text in _apart(labels, top + panel.height):
        yield _text(frame.end + 10, place + 4, text, f"label s{number % 6}")


def _whiskers(mark: Mark, frame: Frame, y: Callable[[float], float]) -> Markup:
    place = frame.x(mark.step)
    ends = Markup('<path class="whisker" d="M{:.1f} {:.1f}V{:.1f}"/>').format(place, y(mark.low), y(mark.high))
    dot = Markup('<g class="s{}">{}<circle cx="{:.1f}" cy="{:.1f}" r="4.5"/></g>')
    return _linked(mark.link, mark.said, dot.format(mark.colour % 6, ends, place, y(mark.value)), "event")


def _curve(
    series: Series, points: Sequence[Point], number: int, frame: Frame, y: Callable[[float], float]
) -> Iterable[Markup]:
    """An interval as a band, each step's value as a faint line, and a clear one of their centred moving mean over a
    tenth of the run; of few steps the values alone."""
    kind = f"s{number % 6}"
    if series.band:
        upper = [f"{frame.x(step):.1f} {y(high):.1f}" for step, _, high in series.band]
        lower = [f"{frame.x(step):.1f} {y(low):.1f}" for step, low, _ in reversed(series.band)]
        yield Markup('<path class="band {}" d="M{}Z"/>').format(kind, "L".join([*upper, *lower]))
    smooth = smoothed(pl.Series([value for _, value in points]))
    yield Markup('<path class="line {}" d="{}"/>').format(kind if smooth is None else f"{kind} faint", _path(points))
    if smooth is None:
        dot = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="2.5"/>')
        yield from (dot.format(kind, *point) for point in points)
        return
    means = [(place, value) for (place, _), value in zip(points, smooth, strict=True)]
    yield Markup('<path class="line {}" d="{}"/>').format(kind, _path(means))


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _axis(frame: Frame, top: float) -> Iterable[Markup]:
    yield _text(0, top + 18, "step", "tick")
    for tick in _ticks(max(frame.first, 0), frame.last, frame.width // 150):
        if float(tick).is_integer():
            yield _text(frame.x(tick), top + 18, f"{tick:.0f}", "tick middle")
    if frame.first < 0:
        yield _text(frame.x(frame.first) - 8, top + 18, "base", "tick middle")


def _apart(labels: Sequence[tuple[float, int, str]], bottom: float) -> Iterable[tuple[float, int, str]]:
    """Labels from above, moved down where they would lie on one another, and all of them up again from the bottom."""
    placed: list[tuple[float, int, str]] = []
    for place, number, text in sorted(labels):
        lowest = placed[-1][0] + LEAST_APART if placed else -math.inf
        placed.append((max(place, lowest), number, text))
    beyond = max(0.0, placed[-1][0] - bottom) if placed else 0.0
    return [(place - beyond, number, text) for place, number, text in placed]


def _text(x: float, y: float, text: str, kind: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(kind, x, y, escape(printable(text)))


def _limits(values: Sequence[float], limits: tuple[float | None, float | None]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low < 1e-12:
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    edge = 0.06 * (high - low)
    low, high = low - edge, high + edge
    if limits[0] is not None:
        low = max(low, limits[0])
    if limits[1] is not None:
        high = min(high, limits[1])
    return (low, high) if high > low else (low, low + 1.0)


def _ticks(low: float, high: float, most: int) -> list[float]:
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
