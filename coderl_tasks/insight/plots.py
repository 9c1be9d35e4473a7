"""Figures: the one style that all have; a run's history, one question per panel; Pass@1 before and after.

They are drawn without pyplot: there is no global state, and nothing to close. Text stays text in SVG: small files, the
page's own font. Series colours read on white and on near-black.
"""

import base64
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from coderl_tasks.insight import shown_metrics
from coderl_tasks.insight.record import EvalRecord, RunRecord, thin
from coderl_tasks.insight.shown_metrics import CORRECT, KL, KL_NOISE, SHOWN, Shown
from coderl_tasks.policy.step_metrics import METRICS, PHASES

if TYPE_CHECKING:  # half a second to import, which a command that starts to train can spend later
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, MUTED, RULE, PAPER = "#1f2430", "#6b7280", "#e3e6ea", "#ffffff"
BLUE, ORANGE, TEAL, ROSE, VIOLET, GREY = "#3f7fd9", "#e08a2c", "#26a08a", "#d9546e", "#8b6fd1", "#9aa3af"
SERIES = (BLUE, ORANGE, TEAL, VIOLET, ROSE, GREY)
THEMED = {INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)", PAPER: "var(--paper)"}

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9, "text.color": INK,
    "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 8,
    "axes.titlecolor": INK, "axes.labelsize": 8.5, "axes.labelcolor": MUTED, "axes.edgecolor": RULE,
    "axes.facecolor": "none", "axes.linewidth": 1.0, "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.formatter.limits": (-3, 5),
    "axes.formatter.useoffset": False,  # 1.00002 on an axis and not 2 below a corner's 1e-5+1
    "grid.color": RULE, "grid.linewidth": 0.8,
    "xtick.color": RULE, "xtick.labelcolor": MUTED, "xtick.labelsize": 8.5,
    "ytick.color": RULE, "ytick.labelcolor": MUTED, "ytick.labelsize": 8.5, "ytick.major.size": 0,
    "legend.frameon": False, "legend.fontsize": 8, "legend.handlelength": 1.1, "legend.borderaxespad": 0.0,
    "lines.linewidth": 1.8, "lines.solid_capstyle": "round", "path.simplify": True,
    "figure.facecolor": PAPER,
    "svg.fonttype": "none",
    # Fixed, as the ids in an SVG are hashes with a random salt otherwise: the same data draws the same bytes.
    "svg.hashsalt": "coderl",
    # Names come from data: a dollar sign in one is no formula.
    "text.parse_math": False,
}  # fmt: skip

TOP, BOTTOM, RIGHT = 0.42, 0.5, 0.16
WIDTH, LABELS = 4.6, 1.1
"""Inches: a panel's width, two of which fill a page, and the margin of a panel whose rows are named."""

Draw = Callable[["Axes"], None]


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawn figure and `alt`, one sentence that says what it shows to those who cannot see it."""

    figure: "Figure"
    alt: str

    def inline_svg(self) -> str:
        """SVG to put into a page that defines --ink, --muted, --rule and --paper; transparent, as wide as its place."""
        svg = self.svg(transparent=True)
        for colour, variable in THEMED.items():
            svg = svg.replace(colour, variable)
        head, body = svg.replace("'DejaVu Sans'", "inherit").split(">", 1)
        head = re.sub(r' (width|height)="[^"]*"', "", head)
        return f'{head} role="img" aria-label="{escape(self.alt)}" class="plot">{body}'

    def markdown(self) -> list[str]:
        """Lines that show the figure in markdown that escapes raw HTML: an image with its data in the address."""
        return [f"![{self.alt}](data:image/svg+xml;base64,{base64.b64encode(self.svg().encode()).decode()})", ""]

    def svg(self, *, transparent: bool = False) -> str:
        """The <svg> element alone: no XML header, no metadata, no ids that clash with those of a second figure."""
        import matplotlib

        buffer = io.BytesIO()
        # No date and no version of matplotlib: the same data draws the same bytes, today and tomorrow.
        metadata = {"Date": None, "Creator": None}
        # The style again: fonts, ids and simplified paths are settled when a figure is saved, not when it is drawn.
        with matplotlib.rc_context(STYLE):
            self.figure.savefig(buffer, format="svg", metadata=metadata, transparent=transparent)
        svg = "<svg" + buffer.getvalue().decode().partition("<svg")[2]
        svg = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
        return re.sub(r"\n\s*", "\n", re.sub(r'<g id="[^"]*"', "<g", svg))


def draw_panels(
    panels: list[Draw],
    columns: int,
    panel_size: tuple[float, float],
    alt: str,
    left: float = 0.6,
    bottom: float = BOTTOM,
    same_heights: bool = False,
) -> Plot:
    """A grid of axes, one drawn on by each of `panels`; sizes and margins are in inches. Margins are fixed: fitting
    them would double the drawing time, during training. With `same_heights` all with data get the widest y limits."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = -(-len(panels) // columns)  # rounded up
    width, height = panel_size[0] * columns, panel_size[1] * rows
    inner_width, inner_height = panel_size[0] - left - RIGHT, panel_size[1] - TOP - bottom
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        for index, draw in enumerate(panels):
            row, column = divmod(index, columns)
            x, y = column * panel_size[0] + left, height - (row + 1) * panel_size[1] + bottom  # y: upwards
            draw(figure.add_axes((x / width, y / height, inner_width / width, inner_height / height)))
        with_data = [axes for axes in figure.axes if axes.has_data()] if same_heights else []
        limits = [limit for axes in with_data for limit in axes.get_ylim()]
        for axes in with_data:
            axes.set_ylim(min(limits), max(limits))
    return Plot(figure, alt)


def prepare(axes: "Axes", title: str, metrics: pl.DataFrame | None = None) -> None:
    """The title and, for a panel over steps, the step axis."""
    axes.set_title(title)
    if metrics is not None:
        axes.set_xlabel("step")
        whole_numbers(axes.xaxis, 6)
        if not len(metrics):
            axes.text(0.5, 0.5, "no steps yet", transform=axes.transAxes, ha="center", color=MUTED)


def whole_numbers(axis: "Axis", most: int = 5) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most, integer=True))


def percentages(axis: "Axis") -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def add_legend(axes: "Axes", columns: int = 3) -> None:
    """A legend in one row under the title's line, out of the data's way."""
    style: dict[str, Any] = {"columnspacing": 0.9, "handletextpad": 0.45, "labelcolor": MUTED}
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=columns, **style)


def short_name(name: str) -> str:
    """A split's name as a label: cut where it would not fit the margin."""
    return name if len(name) <= 15 else f"{name[:14]}…"


SIZE, SHARE = (WIDTH, 2.4), (-0.02, 1.04)


@dataclass(frozen=True, slots=True)
class Panel:
    """How a panel of the history looks: `draw` draws what is no lines, a dashed line is at `level`."""

    heading: str
    draw: Callable[["Axes", pl.DataFrame], None] | None = None
    colours: tuple[str, ...] = SERIES
    level: float | None = None
    limits: tuple[float | None, float | None] = (None, None)
    number: str = ""


def history_plot(run: RunRecord) -> Plot:
    """All history panels in one image, two columns."""
    alt = "No step has been recorded yet."
    if len(run.metrics):
        rewards = run.metrics["mean_reward"].drop_nulls()
        span = f", mean reward from {rewards[0]:.2f} to {rewards[-1]:.2f}" if len(rewards) else ""
        alt = f"Training history: {len(run.metrics)} steps{span}."
    return draw_panels(list(history_panels(run).values()), 2, SIZE, alt)


def history_plots(run: RunRecord) -> dict[str, Plot]:
    """The history panels that are not `flat_panels`, by title, one image each."""
    flat = flat_panels(run)
    panels = {title: draw for title, draw in history_panels(run).items() if title not in flat}
    return {title: draw_panels([draw], 1, SIZE, title) for title, draw in panels.items()}


def flat_panels(run: RunRecord) -> dict[str, str]:
    """The panels that would show nothing but level lines: by title a text that names the panel and its values."""
    if len(run.metrics) < 2:
        return {}
    flat = {}
    for title in history_panels(run):
        curves = {}
        for name, shown in _in_panel(title).items():
            if (values := _series(run.metrics, name)) is not None:
                # Of the KL, values that are rounding alone count as 0.
                curves[shown.curve] = np.where(np.abs(values) < KL_NOISE, 0, values) if title == KL else values
        largest = {label: float(np.nanmax(values)) for label, values in curves.items()}
        level = all(np.ptp(values[~np.isnan(values)]) <= FLAT * abs(largest[label]) for label, values in curves.items())
        # Pass@1 of the evaluations is drawn too, and may move where the curve of training is level.
        if level and not (title == CORRECT and run.evals):
            panel = PANELS.get(title, Panel(title))
            texts = (f"{label} {value:{panel.number or '.4g'}}".strip() for label, value in largest.items())
            flat[title] = f"{panel.heading} ({', '.join(texts) or 'not recorded'})"
    return flat


def history_pairs(runs: Sequence[RunRecord], names: Sequence[str]) -> list[Plot]:
    """The history panels that are not flat in all `runs`, an image each: the runs beside each other, on one scale."""
    panels = [history_panels(run, f"{name}: ") for run, name in zip(runs, names, strict=True)]
    flat = set.intersection(*({*flat_panels(run)} for run in runs))
    titles = dict.fromkeys(title for by_title in panels for title in by_title if title not in flat)
    drawn = {title: [by_title[title] for by_title in panels if title in by_title] for title in titles}
    return [draw_panels(sides, len(runs), SIZE, title, same_heights=True) for title, sides in drawn.items()]


def history_panels(run: RunRecord, prefix: str = "") -> dict[str, Draw]:
    """The panels by title, in reading order; what PANELS does not have comes last, if the run recorded it."""
    metrics, evals = thin(run.metrics), list(run.evals.values())
    recorded = (metric.name for metric in METRICS if metric.name in SHOWN and _series(metrics, metric.name) is not None)
    titles = dict.fromkeys([*PANELS, *filter(None, (SHOWN[name].panel for name in recorded))])
    return {title: partial(_panel, title=title, prefix=prefix, metrics=metrics, evals=evals) for title in titles}


def _panel(axes: "Axes", title: str, prefix: str, metrics: pl.DataFrame, evals: Sequence[EvalRecord]) -> None:
    """Draws the history panel `title` of `metrics` (a row per step): by the panel's own function if it has one, else a
    line per metric. The panel CORRECT also shows Pass@1 of `evals`. `prefix` goes before the heading."""
    panel = PANELS.get(title, Panel(title))  # those without a style of their own have their title as heading
    prepare(axes, prefix + panel.heading, metrics)
    if panel.draw is not None:
        panel.draw(axes, metrics)
        return
    if panel.level is not None and len(metrics):
        axes.axhline(panel.level, color=MUTED, linewidth=1.0, linestyle=(0, (2, 3)))
    # The other colours follow the panel's own, so that a metric added to a panel has one.
    colours = cycle(dict.fromkeys((*panel.colours, *SERIES)))
    coloured = zip(_in_panel(title).items(), colours, strict=False)  # strict=False: the colours never end
    is_drawn = [_line(axes, metrics, name, colour, label=shown.curve) for (name, shown), colour in coloured]
    if title == CORRECT and evals:
        rates = np.array([record.pass_at_1 for record in evals])
        errors = np.abs(np.array([record.interval for record in evals]).T - rates)  # below and above each rate
        style: dict[str, Any] = {"fmt": "o", "color": ORANGE, "markersize": 4, "elinewidth": 1.4}
        axes.errorbar([record.step for record in evals], rates, yerr=errors, **style, label="Pass@1, 95%")
    if any(is_drawn):  # an empty panel has no values to fit the open end of its limits to
        axes.set_ylim(*panel.limits)
    if panel.number:
        axes.yaxis.set_major_formatter(lambda value, _: format(value, panel.number))
    if axes.get_legend_handles_labels()[0]:  # a single metric's line has no label
        add_legend(axes)


def _in_panel(title: str) -> dict[str, Shown]:
    return {name: shown for name, shown in SHOWN.items() if shown.panel == title}


def _series(metrics: pl.DataFrame, name: str) -> np.ndarray | None:
    if name not in metrics.columns or metrics[name].null_count() == len(metrics):
        return None
    return metrics[name].cast(pl.Float64).to_numpy()


def _line(axes: "Axes", metrics: pl.DataFrame, name: str, colour: str, label: str) -> bool:
    """Draws a faint line of each step's value under a clear line of its centred moving mean over a tenth of the run.
    Returns whether the metric was recorded, and so drawn."""
    values = _series(metrics, name)
    if values is None:
        return False
    known = ~np.isnan(values)  # of what is measured every so many steps the line goes from one to the next
    steps, values = metrics["step"].to_numpy()[known], values[known]
    smooth = smoothed(pl.Series(values))
    if smooth is None:
        axes.plot(steps, values, color=colour, marker="o", markersize=3, label=label)
        return True
    axes.plot(steps, values, color=colour, alpha=0.28, linewidth=1.0)
    axes.plot(steps, smooth.to_numpy(), color=colour, label=label)
    return True


def smoothed(values: pl.Series) -> pl.Series | None:
    """The centred moving mean of a curve over a tenth of it; None for one of too few points to be smoother than they
    are."""
    if len(values) < SMOOTHED_FROM:
        return None
    # An odd number of steps, else the mean would be of a time between two of them.
    return values.rolling_mean(max(3, len(values) // 10) | 1, center=True, min_samples=1)


def _signal(axes: "Axes", metrics: pl.DataFrame) -> None:
    skipped, total = _series(metrics, "groups_skipped"), _series(metrics, "groups_total")
    if skipped is None or total is None:
        return
    share = pl.Series("signal", 1 - skipped / np.maximum(total, 1))
    _line(axes, metrics.with_columns(share), "signal", BLUE, "found")
    _line(axes, metrics, "signal_expected", ORANGE, "expected when chosen")
    axes.set_ylim(*SHARE)
    percentages(axes.yaxis)
    add_legend(axes)


def _times(axes: "Axes", metrics: pl.DataFrame) -> None:
    """Draws the seconds per step, stacked by phase, and the rest of the step's own time as `other`; if phases overlap,
    the step's own time as a line instead. Draws nothing if no phase was recorded; a missing value counts as 0."""
    recorded = {phase: _series(metrics, f"time_{phase}_s") for phase in PHASES}
    seconds = {phase: np.nan_to_num(values) for phase, values in recorded.items() if values is not None}
    if not seconds:
        return
    step_s = _series(metrics, "time_step_s")
    phases_s = sum(seconds.values())
    # If phases of neighbouring steps overlap, a step takes less time than the sum of its phases, by more than rounding.
    overlap = step_s is not None and bool((np.nan_to_num(step_s) < 0.95 * phases_s).any())
    if step_s is not None and not overlap:
        seconds["other"] = np.clip(np.nan_to_num(step_s) - phases_s, 0.0, None)
    by_phase = {**dict(zip(PHASES, (BLUE, TEAL, ROSE, ORANGE), strict=True)), "other": GREY}
    colours, steps = [by_phase[label] for label in seconds], metrics["step"].to_numpy()
    # An area is invisible with one step.
    if len(steps) == 1:
        bottom = 0.0
        for (label, values), colour in zip(seconds.items(), colours, strict=True):
            axes.bar(steps, values, bottom=bottom, color=colour, label=label)
            bottom += float(values[0])
    else:
        axes.stackplot(steps, *seconds.values(), labels=list(seconds), colors=colours, alpha=0.85, linewidth=0)
    if step_s is not None and overlap:
        axes.plot(steps, step_s, color=INK, linewidth=1.5, label="step")
    axes.set_ylim(bottom=0)
    add_legend(axes, columns=5)


SMOOTHED_FROM = 8
FLAT = 1e-4  # how far a curve's values may lie apart, as a share of the largest, for it to count as level
PANELS = {
    shown_metrics.REWARD: Panel("Mean reward"),
    CORRECT: Panel("Correct", colours=(BLUE,), number=".0%"),
    shown_metrics.FORMAT: Panel("Format", colours=(TEAL, ORANGE), level=0.95, limits=SHARE, number=".0%"),
    shown_metrics.SIGNAL: Panel("Groups with a signal", _signal),
    KL: Panel("KL, sampler to trainer", level=0.0, number=".3g"),
    shown_metrics.LOSS: Panel("Loss, summed over tokens"),
    shown_metrics.LENGTH: Panel("Completion tokens", limits=(0, None)),
    shown_metrics.ENTROPY: Panel("Entropy, nats per token", limits=(0, None)),
    shown_metrics.EQUAL: Panel("Groups of one reward", colours=(ROSE, TEAL), limits=SHARE, number=".0%"),
    shown_metrics.TIME_LIMIT: Panel("Out of time", limits=(0, None), number=".0%"),
    shown_metrics.SPREAD: Panel("Spread of the advantages", limits=(0, None)),
    shown_metrics.SECONDS: Panel("Seconds", _times),
}
"""The panels that are more than one line per metric under the metric's own title, in reading order."""
FIRST = (
    shown_metrics.REWARD,
    CORRECT,
    shown_metrics.FORMAT,
    shown_metrics.SIGNAL,
    shown_metrics.LENGTH,
    KL,
    shown_metrics.KL_BASE,
)
"""The panels that tell how a run went; a page has the others behind a heading."""


def pass_at_1_plot(before: EvalRecord, after: EvalRecord, labels: Sequence[str] = ("before", "after")) -> Plot:
    """Pass@1 of two evaluations, labelled `labels`, with 95% intervals, overall and by each split that both have."""
    splits = [record.summary.get("by_split", {}) for record in (before, after)]
    names = ["overall", *[name for name in splits[0] if name in splits[1]]]
    looks = ((before, GREY, 0.14), (after, BLUE, -0.14))  # offset: a row has `before` above its middle, `after` below

    def draw(axes: "Axes") -> None:
        prepare(axes, "Pass@1")
        axes.grid(axis="x", color=RULE)
        axes.grid(visible=False, axis="y")
        style: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center", "fontsize": 8.5}
        for label, (record, colour, offset) in zip(labels, looks, strict=True):
            for row, name in enumerate(names):
                share = record.summary if name == "overall" else record.summary["by_split"][name]
                rate, low, high = share["pass_at_1"], share["ci_low"], share["ci_high"]
                y = len(names) - 1 - row + offset  # y counts from the bottom, and "overall" is on top
                axes.plot([low, high], [y, y], color=colour, linewidth=2.4, alpha=0.55)
                axes.plot(rate, y, "o", color=colour, markersize=6, label=label if row == 0 else None)  # once
                axes.annotate(f"{rate:.1%}", (rate, y), xytext=(0, 60 * offset), **style, color=INK)
        axes.set_yticks(range(len(names)), [short_name(name) for name in reversed(names)])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.margins(x=0.12)
        percentages(axes.xaxis)
        add_legend(axes)

    alt = f"Pass@1 from {before.pass_at_1:.1%} to {after.pass_at_1:.1%}."
    return draw_panels([draw], 1, (WIDTH, 1.2 + 0.5 * len(names)), alt, left=LABELS)
