"""All figures: a run's history, one question per panel; Pass@1 before and after; what a curation dropped and kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from coderl_tasks.insight import figure, shown_metrics
from coderl_tasks.insight.figure import Draw, Plot, draw_panels, short_name
from coderl_tasks.insight.pool_view import Remaining
from coderl_tasks.insight.record import DIFFICULTIES, EvalRecord, RunRecord, thin
from coderl_tasks.insight.shown_metrics import CORRECT, KL, KL_NOISE, SHOWN, Shown
from coderl_tasks.policy.step_metrics import METRICS, PHASES
from coderl_tasks.problems.profile_columns import POSTERIOR_BINS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE, SHARE = (figure.WIDTH, 2.4), (-0.02, 1.04)
DIFFICULTY_COLOURS = {"hard": figure.ROSE, "medium": figure.ORANGE, "easy": figure.TEAL}


@dataclass(frozen=True, slots=True)
class Panel:
    """How a panel of the history looks: `draw` draws what is no lines, a dashed line is at `level`."""

    heading: str
    draw: Callable[["Axes", pl.DataFrame], None] | None = None
    colours: tuple[str, ...] = figure.SERIES
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
    """Panels that would show nothing but level lines, as they are to be named with their values, by title."""
    if len(run.metrics) < 2:
        return {}
    flat = {}
    for title in history_panels(run):
        shown = _in_panel(title).items()
        series = {one.curve: values for name, one in shown if (values := _series(run.metrics, name)) is not None}
        if title == KL:
            series = {label: np.where(np.abs(values) < KL_NOISE, 0, values) for label, values in series.items()}
        levels = {label: float(np.nanmax(values)) for label, values in series.items()}
        level = all(np.ptp(values[~np.isnan(values)]) <= FLAT * abs(levels[label]) for label, values in series.items())
        if level and not (title == CORRECT and run.evals):
            panel = PANELS.get(title, Panel(title))
            said = (f"{label} {value:{panel.number or '.4g'}}".strip() for label, value in levels.items())
            flat[title] = f"{panel.heading} ({', '.join(said) or 'not recorded'})"
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
    """Draws the history panel `title`: by its own function, else a line per metric; CORRECT also shows Pass@1."""
    panel = PANELS.get(title, Panel(title))
    figure.prepare(axes, prefix + panel.heading, metrics)
    if panel.draw is not None:
        panel.draw(axes, metrics)
        return
    if panel.level is not None and len(metrics):
        axes.axhline(panel.level, color=figure.MUTED, linewidth=1.0, linestyle=(0, (2, 3)))
    # The other colours follow the panel's own, so that a metric added to a panel has one.
    colours = cycle(dict.fromkeys((*panel.colours, *figure.SERIES)))
    shown = zip(_in_panel(title).items(), colours, strict=False)
    drawn = [_line(axes, metrics, name, colour, one.curve) for (name, one), colour in shown]
    if title == CORRECT and evals:
        rates = np.array([record.pass_at_1 for record in evals])
        errors = np.abs(np.array([record.interval for record in evals]).T - rates)
        style: dict[str, Any] = {"fmt": "o", "color": figure.ORANGE, "markersize": 4, "elinewidth": 1.4}
        axes.errorbar([record.step for record in evals], rates, yerr=errors, **style, label="Pass@1, 95%")
    if any(values is not None for values in drawn):
        axes.set_ylim(*panel.limits)
    if panel.number:
        axes.yaxis.set_major_formatter(lambda value, _: format(value, panel.number))
    if axes.get_legend_handles_labels()[0]:
        figure.add_legend(axes)


def _in_panel(title: str) -> dict[str, Shown]:
    return {name: shown for name, shown in SHOWN.items() if shown.panel == title}


def _series(metrics: pl.DataFrame, name: str) -> np.ndarray | None:
    if name not in metrics.columns or metrics[name].null_count() == len(metrics):
        return None
    return metrics[name].cast(pl.Float64).to_numpy()


def _line(axes: "Axes", metrics: pl.DataFrame, name: str, colour: str, label: str) -> np.ndarray | None:
    """A faint line of each step's value under a clear line of its centred moving mean over a tenth of the run."""
    values = _series(metrics, name)
    if values is None:
        return None
    known = ~np.isnan(values)  # of what is measured every so many steps the line goes from one to the next
    steps, values = metrics["step"].to_numpy()[known], values[known]
    # Too few steps for a mean to be smoother than its points.
    if len(steps) < 8:
        axes.plot(steps, values, color=colour, marker="o", markersize=3, label=label)
        return values
    # An odd number of steps, else the mean would be of a time between two of them.
    window = max(3, len(values) // 10) | 1
    axes.plot(steps, values, color=colour, alpha=0.28, linewidth=1.0)
    smooth = pl.Series(values).rolling_mean(window, center=True, min_samples=1).to_numpy()
    axes.plot(steps, smooth, color=colour, label=label)
    return values


def _signal(axes: "Axes", metrics: pl.DataFrame) -> None:
    skipped, total = _series(metrics, "groups_skipped"), _series(metrics, "groups_total")
    if skipped is None or total is None:
        return
    share = pl.Series("signal", 1 - skipped / np.maximum(total, 1))
    _line(axes, metrics.with_columns(share), "signal", figure.BLUE, "found")
    _line(axes, metrics, "signal_expected", figure.ORANGE, "expected when chosen")
    axes.set_ylim(*SHARE)
    figure.percentages(axes.yaxis)
    figure.add_legend(axes)


def _times(axes: "Axes", metrics: pl.DataFrame) -> None:
    """Draws the seconds per step, stacked by phase; if phases overlap, also the step's own time as a line."""
    series = {phase: _series(metrics, f"time_{phase}_s") for phase in PHASES}
    known = {label: np.nan_to_num(values) for label, values in series.items() if values is not None}
    if not known:
        return
    whole = _series(metrics, "time_step_s")
    phases_s = sum(known.values())
    # If phases of neighbouring steps overlap, a step takes less time than the sum of its phases.
    overlap = whole is not None and bool((np.nan_to_num(whole) < 0.95 * phases_s).any())
    if whole is not None and not overlap:
        known["other"] = np.clip(np.nan_to_num(whole) - phases_s, 0.0, None)
    colours, steps = (figure.BLUE, figure.TEAL, figure.ORANGE, figure.GREY), metrics["step"].to_numpy()
    # An area is invisible with one step.
    if len(steps) == 1:
        bottom = 0.0
        for (label, values), colour in zip(known.items(), colours, strict=False):
            axes.bar(steps, values, bottom=bottom, color=colour, label=label)
            bottom += float(values[0])
    else:
        axes.stackplot(steps, *known.values(), labels=list(known), colors=colours, alpha=0.85, linewidth=0)
    if whole is not None and overlap:
        axes.plot(steps, whole, color=figure.INK, linewidth=1.5, label="step")
    axes.set_ylim(bottom=0)
    figure.add_legend(axes, columns=4)


FLAT = 1e-4
"""How far a curve's values may lie apart, as a share of the largest, for it to count as level."""
PANELS = {
    shown_metrics.REWARD: Panel("Mean reward"),
    CORRECT: Panel("Correct", colours=(figure.BLUE,), number=".0%"),
    shown_metrics.FORMAT: Panel("Format", colours=(figure.TEAL, figure.ORANGE), level=0.95, limits=SHARE, number=".0%"),
    shown_metrics.SIGNAL: Panel("Groups with a signal", _signal),
    KL: Panel("KL, sampler to trainer", level=0.0, number=".3g"),
    shown_metrics.LOSS: Panel("Loss, summed over tokens"),
    shown_metrics.LENGTH: Panel("Completion tokens", limits=(0, None)),
    shown_metrics.ENTROPY: Panel("Entropy, nats per token", limits=(0, None)),
    shown_metrics.EQUAL: Panel("Groups of one reward", colours=(figure.ROSE, figure.TEAL), limits=SHARE, number=".0%"),
    shown_metrics.TIME_LIMIT: Panel("Out of time", limits=(0, None), number=".0%"),
    shown_metrics.SPREAD: Panel("Spread of the advantages", limits=(0, None)),
    shown_metrics.SECONDS: Panel("Seconds", _times),
}
"""The panels that are more than one line per metric under the metric's own title, in reading order."""
FIRST = (shown_metrics.REWARD, CORRECT, shown_metrics.FORMAT, shown_metrics.SIGNAL, shown_metrics.LENGTH, KL)
"""The panels that tell how a run went; a page has the others behind a heading."""


def pass_at_1_plot(before: EvalRecord, after: EvalRecord, labels: Sequence[str] = ("before", "after")) -> Plot:
    """Pass@1 of two evaluations, labelled `labels`, with 95% intervals, overall and by split."""
    names = ["overall", *[name for name in before.summary.get("by_split", {}) if name in after.summary["by_split"]]]
    looks = ((before, figure.GREY, 0.14), (after, figure.BLUE, -0.14))

    def draw(axes: "Axes") -> None:
        figure.prepare(axes, "Pass@1")
        axes.grid(axis="x", color=figure.RULE)
        axes.grid(visible=False, axis="y")
        style: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center", "fontsize": 8.5}
        for label, (record, colour, offset) in zip(labels, looks, strict=True):
            for row, name in enumerate(names):
                share = record.summary if name == "overall" else record.summary["by_split"][name]
                rate, low, high = share["pass_at_1"], share["ci_low"], share["ci_high"]
                y = len(names) - 1 - row + offset
                axes.plot([low, high], [y, y], color=colour, linewidth=2.4, alpha=0.55)
                axes.plot(rate, y, "o", color=colour, markersize=6, label=label if row == 0 else None)
                axes.annotate(f"{rate:.1%}", (rate, y), xytext=(0, 60 * offset), **style, color=figure.INK)
        axes.set_yticks(range(len(names)), [short_name(name) for name in reversed(names)])
        axes.tick_params(axis="y", labelcolor=figure.INK)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.margins(x=0.12)
        figure.percentages(axes.xaxis)
        figure.add_legend(axes)

    alt = f"Pass@1 from {before.pass_at_1:.1%} to {after.pass_at_1:.1%}."
    return draw_panels([draw], 1, (figure.WIDTH, 1.2 + 0.5 * len(names)), alt, left=figure.LABELS)


def pass_rate_plot(profile: pl.DataFrame, band: tuple[float, float] | None = None) -> Plot:
    """A histogram of pass rates, stacked by split: counts are expected ones, by the posteriors. `band` is shaded."""
    splits, bins = sorted(profile["split"].unique()) if len(profile) else [], POSTERIOR_BINS

    def draw(axes: "Axes") -> None:
        figure.prepare(axes, "Pass rate of the base model")
        bottom = np.zeros(bins)
        for split, colour in zip(splits, figure.SERIES, strict=False):
            counts = expected_counts(profile.filter(split=split))
            axes.bar(range(bins), counts, bottom=bottom, width=0.86, color=colour, label=short_name(split))
            bottom += counts
        if band is not None:
            axes.axvspan(*(bins * end - 0.5 for end in band), color=figure.BLUE, alpha=0.07, linewidth=0, zorder=0)
        axes.set_xticks(np.arange(0, bins + 1, 2) - 0.5, [f"{k / bins:.1f}" for k in range(0, bins + 1, 2)])
        axes.tick_params(axis="x", labelsize=7.5)
        axes.set_xlabel("pass rate")
        axes.set_ylabel("problems expected")
        figure.whole_numbers(axes.yaxis)
        if splits:
            figure.add_legend(axes, columns=4)

    return draw_panels([draw], 1, (9.4, 2.9), f"Histogram of the pass rates of {len(profile)} profiled problems.")


def expected_counts(profile: pl.DataFrame) -> np.ndarray:
    """How many problems are expected in each of POSTERIOR_BINS equal parts of 0 to 1, by their posteriors."""
    known = profile["posterior"].drop_nulls()
    return np.array(known.to_list()).sum(axis=0) if len(known) else np.zeros(POSTERIOR_BINS)


def funnel_plot(rows: Sequence[Remaining]) -> Plot:
    """Bars of the problems left after each stage, from the rows read to the pool, and of those that it dropped."""
    places, left, dropped = range(len(rows)), [row.left for row in rows], [row.dropped for row in rows]

    def draw(axes: "Axes") -> None:
        figure.prepare(axes, "Problems left after each stage")
        axes.grid(visible=False)
        axes.barh(places, left, height=0.68, color=figure.BLUE)
        axes.barh(places, dropped, left=left, height=0.68, color=figure.ROSE, alpha=0.45)
        style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8}
        for place, row in enumerate(rows):
            text = f"{row.left:,}" + (f" ({row.dropped:,} dropped)" * bool(row.dropped))
            axes.annotate(text, (row.left + row.dropped, place), (5, 0), **style)
        axes.set_yticks(places, [row.stage for row in rows])
        axes.tick_params(axis="y", labelcolor=figure.INK)
        axes.set_xlim(0, 1.2 * max(1, rows[0].left))
        axes.invert_yaxis()
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)

    alt = f"Problems left after each stage: {', '.join(f'{row.stage} {row.left}' for row in rows)}."
    return draw_panels([draw], 1, (9.4, 0.52 + 0.27 * len(rows)), alt, left=figure.LABELS, bottom=0.1)


def samples_plot(profile: pl.DataFrame) -> Plot:
    """How many problems took how many graded completions, stacked by split."""

    def draw(axes: "Axes") -> None:
        figure.prepare(axes, "Samples")
        numbers = sorted(profile["n_samples"].unique())
        bottom = np.zeros(len(numbers))
        for split, colour in zip(sorted(profile["split"].unique()), figure.SERIES, strict=False):
            counts = np.array([profile.filter(split=split, n_samples=n).height for n in numbers])
            axes.bar(range(len(numbers)), counts, bottom=bottom, width=0.7, color=colour, label=short_name(split))
            bottom += counts
        axes.set_xticks(range(len(numbers)), [str(n) for n in numbers])
        axes.set_xlabel("samples per problem")
        axes.set_ylabel("problems")
        figure.whole_numbers(axes.yaxis)
        figure.add_legend(axes)

    return draw_panels([draw], 1, SIZE, f"Histogram of the samples spent on {len(profile)} profiled problems.")


def difficulty_plot(pool: pl.DataFrame) -> Plot:
    """The expected number of problems of each split and difficulty: the sum of the labels' probabilities."""
    splits = sorted(pool["split"].unique(), reverse=True) if len(pool) else []

    def draw(axes: "Axes") -> None:
        figure.prepare(axes, "Pool, as expected")
        axes.grid(axis="x", color=figure.RULE)
        axes.grid(visible=False, axis="y")
        left = np.zeros(len(splits))
        for difficulty in DIFFICULTIES:
            colour, column = DIFFICULTY_COLOURS[difficulty], f"{difficulty}_probability"
            expected = np.array([pool.filter(split=split)[column].sum() for split in splits])
            axes.barh(range(len(splits)), expected, left=left, height=0.6, color=colour, label=difficulty)
            left = left + expected
        axes.set_yticks(range(len(splits)), [short_name(split) for split in splits])
        axes.tick_params(axis="y", labelcolor=figure.INK)
        figure.whole_numbers(axes.xaxis, 6)
        if splits:
            figure.add_legend(axes, columns=4)

    size = (figure.WIDTH, 1.2 + 0.4 * (len(splits) or 1))
    return draw_panels([draw], 1, size, f"The pool's {len(pool)} problems by split and difficulty.", left=figure.LABELS)
