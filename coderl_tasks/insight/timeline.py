"""Curves of a run on one axis of steps; each step and each event may be a link."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from textwrap import wrap

import polars as pl
from markupsafe import Markup

from coderl_tasks.insight import drawing
from coderl_tasks.insight.drawing import CHARACTER, HALF, N_COLOURS, Plot, circle, line, number, text, ticks
from coderl_tasks.untrusted_text import printable

WIDTH, LEFT, RIGHT = 1180, 178, 126
SMALL_LEFT, SMALL_RIGHT = 62, 44
PANEL, TALL, GAP, LANE, AXIS = 70, 150, 32, 20, 24
LEAST_APART = 13  # of two labels at a panel's right edge, which are 11 units high
LONGEST_HEADING = 19  # characters of a line, left of the ticks
SMOOTHED_FROM = 8
MOST_NAMED, TICKS_APART = 8, 22  # steps on the axis; from the middle of one number to that of the next
Point = tuple[float, float]
Band = Sequence[tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class Frame:
    """The horizontal scale: the width of the picture, where the curves begin and end in it, and the steps there."""

    width: int
    left: int
    end: int
    first: float
    last: float

    def x(self, step: float) -> float:
        return self.left + (step - self.first) / max(1.0, self.last - self.first) * (self.end - self.left)


@dataclass(frozen=True)
class Series:
    """Values by step, `label` at their right end; `band` are steps with low and high ends of an interval. Of an area
    the band is drawn, and no line: a stack is areas each of which begins where the one before ends."""

    label: str
    steps: Sequence[float] = ()
    values: Sequence[float | None] = ()
    band: Band = ()
    is_area: bool = False

    def known(self) -> list[Point]:
        """The steps that have a value, with it."""
        pairs = zip(self.steps, self.values, strict=True)
        return [(step, value) for step, value in pairs if value is not None and math.isfinite(value)]

    @cached_property
    def clear_line(self) -> list[float] | None:
        """The centred moving mean over a tenth of the curve, one per known step; None for an area or too few points."""
        values = [value for _, value in self.known()]
        if self.is_area or len(values) < SMOOTHED_FROM:
            return None
        # An odd number of steps, else the mean would be of a time between two of them.
        return pl.Series(values).rolling_mean(max(3, len(values) // 10) | 1, center=True, min_samples=1).to_list()


@dataclass(frozen=True, slots=True)
class Mark:
    """A value with its interval that stands for itself, as an evaluation's; `label` is for the last mark of a panel.
    One that `is_open`, of fewer problems, is no point of the others' curve; `shift` moves it right, in pixels."""

    step: int
    value: float
    low: float
    high: float
    said: str
    link: str | None = None
    label: str = ""
    colour: int = 1
    is_open: bool = False
    shift: float = 0.0


@dataclass(frozen=True, slots=True)
class Panel:
    """Series of one unit. A dashed line is at `level`; `limits` are the ends of the axis where they are not None;
    `tall` is of more weight. A curve that ends below `least`, as rounding makes it, is said to."""

    heading: str
    series: Sequence[Series] = ()
    marks: Sequence[Mark] = ()
    number_format: str = ""
    level: float | None = None
    limits: tuple[float | None, float | None] = (None, None)
    tall: bool = False
    least: float = 0.0

    def steps(self) -> set[float]:
        return {step for series in self.series for step, _ in series.known()}

    def ends(self) -> list[float]:
        """All that the axis of values has to show; nothing of an empty panel."""
        ends = [value for series in self.series if not series.is_area for _, value in series.known()]
        ends += [end for series in self.series for _, *interval in series.band for end in interval]
        ends += [end for mark in self.marks for end in (mark.low, mark.high)]
        return [*ends, self.level] if ends and self.level is not None else ends

    def labels(self) -> list[tuple[float, int, str]]:
        """What stands at the right: the value beside which it does, the number of its colour, and a text."""
        labels = []
        for colour, series in enumerate(self.series):
            if known := series.known():
                end = (series.clear_line or [known[-1][1]])[-1]
                place = sum(series.band[-1][1:]) / 2 if series.is_area else end
                is_less = abs(end) < self.least
                said = f"<{self.least:g}".replace("e-0", "e-") if is_less else number(end, self.number_format)
                labels.append((place, colour, f"{series.label} {said}".strip()))
        for mark in self.marks[-1:]:
            if mark.label:
                labels.append((mark.value, mark.colour, f"{mark.label} {number(mark.value, self.number_format)}"))
        return labels


@dataclass(frozen=True, slots=True)
class Event:
    kind: str  # names the lane that it stands in
    step: int
    said: str
    link: str | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Panels and events over steps. If there is a `link`, a step's page, each step is a column, and `said` is what it
    says. `small` is for one panel: half as wide, with the heading above."""

    panels: Sequence[Panel]
    events: Sequence[Event] = ()
    link: Callable[[float], str] | None = None
    said: Callable[[float], str] = lambda step: f"step {step:g}"
    name: str = "Curves"
    small: bool = False

    def plot(self) -> Plot:
        """Draws, from above, a lane of marks per kind of event, the panels, and their common axis of steps."""
        steps = sorted({step for panel in self.panels for step in panel.steps()})
        steps_shown = [*steps, *(mark.step for panel in self.panels for mark in panel.marks)]
        longest_label = max((len(words) for panel in self.panels for _, _, words in panel.labels()), default=0)
        width, left, right = (HALF, SMALL_LEFT, SMALL_RIGHT) if self.small else (WIDTH, LEFT, RIGHT)
        right = max(right, round(16 + CHARACTER * longest_label))  # what is right of the curves
        frame = Frame(width, left, width - right, min(steps_shown, default=0), max(steps_shown, default=0))
        lanes = list(dict.fromkeys(event.kind for event in self.events))
        top = len(lanes) * LANE + (10 if lanes else 0)
        heights = [TALL if panel.tall or self.small else PANEL for panel in self.panels]
        height = top + sum(heights) + GAP * len(heights) + AXIS
        # First the columns that are links to steps: what is drawn later lies above them.
        elements = [*self._columns(frame, steps, height), *self._lanes(frame, lanes)]
        for panel, panel_height in zip(self.panels, heights, strict=True):
            elements += _panel(panel, frame, top + GAP, panel_height)
            top += panel_height + GAP
        if steps_shown:
            elements += _axis(frame, top, steps or sorted({*steps_shown}))
        else:
            elements.append(text((frame.left + frame.end) / 2, height / 2, "no steps yet", "middle"))
        role = "img" if self.link is None else "group"  # for screen readers, to which an image has no links
        return Plot(Markup().join(elements), width, height, self.name, role)

    def _columns(self, frame: Frame, steps: Sequence[float], height: int) -> Iterable[Markup]:
        """A column per step, as high as all panels: nobody has to aim at a point."""
        if self.link is None or not steps:
            return
        ends = [(before + after) / 2 for before, after in pairwise(steps)]
        for step, low, high in zip(steps, [steps[0] - 0.5, *ends], [*ends, steps[-1] + 0.5], strict=True):
            left, right = max(frame.x(low), frame.left - 6), min(frame.x(high), frame.end + 6)
            rect = Markup('<rect x="{:.1f}" y="0" width="{:.1f}" height="{}"/><line x1="{:.1f}" x2="{:.1f}" y2="{}"/>')
            drawn = rect.format(left, max(1.0, right - left), height - AXIS, *[frame.x(step)] * 2, height - AXIS)
            yield _linked(self.link(step), self.said(step), drawn, "hit")

    def _lanes(self, frame: Frame, lanes: Sequence[str]) -> Iterable[Markup]:
        forms = ("", "M{0} {2}L{1} {3}L{0} {4}L{5} {3}Z", "M{0} {2}L{1} {4}L{5} {4}Z")  # lanes differ by these too
        for place, kind in enumerate(lanes):
            y, form, colour = place * LANE + LANE / 2 + 2, forms[place % 3], f"s{(place + 1) % N_COLOURS}"
            yield text(0, y + 4, kind, "lane")
            yield line("rule", frame.left, y, frame.end, y)
            for event in self.events:
                if event.kind == kind:
                    x = frame.x(event.step)
                    corners = form.format(*(f"{value:.1f}" for value in (x, x + 5, y - 5, y, y + 5, x - 5)))
                    path = Markup('<path class="{}" d="{}"/>').format(colour, corners)
                    yield _linked(event.link, event.said, path if form else circle("s1", x, y, 4.5), "event")


def _linked(link: str | None, said: str, drawn: Markup, kind: str) -> Markup:
    # Not in the order of the tab key, where hundreds of steps would stand before the page: its tables have the links.
    if link is None:
        return Markup('<g class="{}"><title>{}</title>{}</g>').format(kind, printable(said), drawn)
    opened = Markup('<a class="{}" href="{}" tabindex="-1" aria-label="{}" data-say="{}">{}</a>')
    return opened.format(kind, link, printable(said), printable(said), drawn)


def _panel(panel: Panel, frame: Frame, top: float, height: float) -> Iterable[Markup]:
    """One panel, from `top` on: heading, axis of values, curves, marks with intervals, and labels at the right."""
    values = panel.ends()  # all that the axis has to span; none in an empty panel, which gets no axis
    low, high = drawing.extent(values, panel.limits)

    def y(value: float) -> float:
        return top + height - (value - low) / (high - low) * height

    if frame.width == HALF:  # a small figure: the heading stands above the panel, else left of it
        yield text(0, top - 12, panel.heading, "heading")
    else:
        yield from (
            text(0, top + 10 + 15 * row, words, "heading")
            for row, words in enumerate(wrap(panel.heading, LONGEST_HEADING))
        )
    values_named = ticks(low, high, 6 if height == TALL else 2) if values else []
    yield drawing.axis_left(values_named, panel.number_format, y, frame.left, frame.end)
    if panel.level is not None and values:
        yield line("level", frame.left, y(panel.level), frame.end, y(panel.level))
    for colour, series in enumerate(panel.series):
        if series.known():
            yield from _curve(series, f"s{colour % N_COLOURS}", lambda step, value: (frame.x(step), y(value)))
    for mark in panel.marks:
        place = frame.x(mark.step) + mark.shift
        ends = line("whisker", place, y(mark.low), place, y(mark.high))
        point = circle("open" if mark.is_open else "", place, y(mark.value), 4.0 if mark.is_open else 4.5)
        drawn = Markup('<g class="s{}">{}{}</g>').format(mark.colour % N_COLOURS, ends, point)
        yield _linked(mark.link, mark.said, drawn, "event")
    labels = [(y(value), colour, words) for value, colour, words in panel.labels()]
    for label_y, colour, words in _apart(labels, top + height):  # moved, so that none lies on another
        yield text(frame.end + 10, label_y + 4, words, f"label s{colour % N_COLOURS}")


def _curve(series: Series, colour: str, place: Callable[[float, float], Point]) -> Iterable[Markup]:
    """An interval as a band, each step's value as a faint line, and the series' clear line, if it has one."""
    if series.band:
        # Of a single step a band would have no width.
        band = series.band if len(series.band) > 1 else [*series.band, (series.band[0][0] + 0.5, *series.band[0][1:])]
        around = [place(step, high) for step, _, high in band] + [place(step, low) for step, low, _ in reversed(band)]
        yield _path(f"{'area' if series.is_area else 'band'} {colour}", around)
    if series.is_area:
        return
    known, smooth = series.known(), series.clear_line
    points = [place(*point) for point in known]
    yield _path(f"line {colour}" if smooth is None else f"line {colour} faint", points)
    if smooth is None:
        yield from (circle(colour, *point, 2.5) for point in points)
    else:
        yield _path(f"line {colour}", [place(step, value) for (step, _), value in zip(known, smooth, strict=True)])


def _path(kind: str, points: Sequence[Point]) -> Markup:
    return Markup('<path class="{}" d="M{}"/>').format(kind, "L".join(f"{x:.1f} {y:.1f}" for x, y in points))


def _axis(frame: Frame, top: float, steps: Sequence[float]) -> Iterable[Markup]:
    """Few steps are each named, as far as there is room; of many the round ones are."""
    yield text(0, top + 18, "step", "tick")
    if frame.first < 0:
        yield text(frame.x(frame.first) - 8, top + 18, "base", "tick middle")
    last = frame.x(frame.first) - 8 if frame.first < 0 else -math.inf  # the text before, which may be "base"
    places = steps if len(steps) <= MOST_NAMED else ticks(max(frame.first, 0), frame.last, frame.width // 150)
    for tick in places:
        apart = max(TICKS_APART, CHARACTER * len(f"{tick:.0f}") + 6)
        if tick >= 0 and float(tick).is_integer() and frame.x(tick) - last > apart:
            last = frame.x(tick)
            yield text(last, top + 18, f"{tick:.0f}", "tick middle")


def _apart(labels: Sequence[tuple[float, int, str]], bottom: float) -> Iterable[tuple[float, int, str]]:
    """Labels from above, moved down where they would lie on one another, and all of them up again from the bottom."""
    placed: list[tuple[float, int, str]] = []
    for place, colour, words in sorted(labels):
        lowest = placed[-1][0] + LEAST_APART if placed else -math.inf
        placed.append((max(place, lowest), colour, words))
    beyond = max(0.0, placed[-1][0] - bottom) if placed else 0.0
    return [(place - beyond, colour, words) for place, colour, words in placed]
