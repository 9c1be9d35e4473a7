"""The figures of runs: a run's history, one question per panel; Pass@1 before and after."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from markupsafe import Markup

from coderl_tasks.evaluation.paired import MOST_IN_COMMON
from coderl_tasks.insight import drawing, shown_metrics
from coderl_tasks.insight.drawing import CHARACTER, HALF, Plot, circle, line, number, short_name, text, ticks
from coderl_tasks.insight.record import EvalRecord, RunRecord, thin
from coderl_tasks.insight.shown_metrics import CORRECT, KL, KL_NOISE, SECONDS, SHOWN, SIGNAL
from coderl_tasks.insight.tables import Estimate
from coderl_tasks.insight.timeline import Mark, Panel, Series, Timeline
from coderl_tasks.policy.step_metrics import METRICS, PHASES

SHARE = (-0.02, 1.04)
FLAT = 1e-4  # how far a curve's values may lie apart, as a share of the largest, for it to count as level
PANELS = {
    shown_metrics.REWARD: Panel("Mean reward"),
    CORRECT: Panel("Correct", number_format=".0%", tall=True),
    shown_metrics.FORMAT: Panel("Format", number_format=".0%", level=0.95, limits=SHARE),
    SIGNAL: Panel("Groups with a signal", number_format=".0%", limits=SHARE),
    KL: Panel("KL, sampler to trainer", number_format=".3g", level=0.0, least=KL_NOISE),
    shown_metrics.LOSS: Panel("Loss, summed over tokens"),
    shown_metrics.LENGTH: Panel("Completion tokens", limits=(0, None)),
    shown_metrics.ENTROPY: Panel("Entropy, nats per token", limits=(0, None)),
    shown_metrics.EQUAL: Panel("Groups of one reward", number_format=".0%", limits=SHARE),
    shown_metrics.TIME_LIMIT: Panel("Out of time", number_format=".0%", limits=(0, None)),
    shown_metrics.SPREAD: Panel("Spread of the advantages", limits=(0, None)),
    SECONDS: Panel("Seconds", number_format=".3g", limits=(0, None)),
}
"""The panels whose look is more than their title, in reading order."""
FIRST = (
    shown_metrics.REWARD, CORRECT, shown_metrics.FORMAT, SIGNAL, shown_metrics.LENGTH, KL, shown_metrics.KL_BASE,
)  # fmt: skip
"""The panels that tell how a run went; a page has the others behind a heading."""
NOTE_ON_CURVES = (
    "Faint lines are single steps of training (of a long run means of neighbouring ones), clear lines a centred moving "
    "mean over a tenth of the run, numbers at the right where it ends. A healthy run stays above the dotted line of "
    "the format, and near that of the KL. Circles are Pass@1 of evaluations with its 95% interval; an open one is on "
    "fewer problems, and so not comparable by eye."
)


def history_plot(run: RunRecord) -> Plot:
    """All history panels that have something to show in one image, two columns."""
    alt = "No step has been recorded yet."
    if len(run.metrics):
        rewards = run.metrics["mean_reward"].drop_nulls()
        span = f", mean reward from {rewards[0]:.2f} to {rewards[-1]:.2f}" if len(rewards) else ""
        alt = f"Training history: {len(run.metrics)} steps{span}."
    drawn = [_small(title, panel) for title, panel in _panels_of(run).items() if panel.ends()]
    return drawing.in_columns(drawn, 2, alt)


def history_plots(run: RunRecord) -> dict[str, Plot]:
    """The history panels that are not `flat_panels`, by title, one image each."""
    flat = flat_panels(run)
    return {title: _small(title, panel) for title, panel in _panels_of(run).items() if title not in flat}


def _panels_of(run: RunRecord) -> dict[str, Panel]:
    return history_panels(thin(run.metrics), evaluation_marks(run.own_evals, most_evaluated(run)))


def _small(title: str, panel: Panel) -> Plot:
    return Timeline([panel], name=title, small=True).plot()


def flat_panels(run: RunRecord) -> dict[str, str]:
    """The panels that would show nothing but level lines: by title a text that names the panel and its values."""
    if len(run.metrics) < 2:
        return {}
    flat = {}
    for title, panel in history_panels(run.metrics).items():
        curves = {each.label: np.array([value for _, value in each.known()]) for each in panel.series if each.known()}
        level = all(np.ptp(values) <= FLAT * abs(values.max()) for values in curves.values())
        # Pass@1 of the evaluations is drawn too, and may move where the curve of training is level.
        if level and not (title == CORRECT and run.own_evals):
            texts = (f"{label} {number(values.max(), panel.number_format)}".strip() for label, values in curves.items())
            flat[title] = f"{panel.heading} ({', '.join(texts) or 'not recorded'})"
    return flat


def history_pairs(runs: Sequence[RunRecord], names: Sequence[str]) -> list[Plot]:
    """The history panels that are not flat in all `runs`, an image each: the runs beside each other, on one scale."""
    sides = list(map(_panels_of, runs))
    flat = set.intersection(*({*flat_panels(run)} for run in runs))
    pairs = []
    for title in dict.fromkeys(title for panels in sides for title in panels if title not in flat):
        drawn = {name: panels[title] for name, panels in zip(names, sides, strict=True) if title in panels}
        scale = drawing.extent([end for panel in drawn.values() for end in panel.ends()], panel_of(title).limits)
        headed = (replace(panel, heading=f"{name}: {panel.heading}", limits=scale) for name, panel in drawn.items())
        pairs.append(drawing.in_columns([_small(title, panel) for panel in headed], len(runs), title))
    return pairs


def panel_of(title: str) -> Panel:
    """The panel of this title, without data; one without a look of its own has its title as heading."""
    return PANELS.get(title, Panel(title))


def history_panels(metrics: pl.DataFrame, marks: Sequence[Mark] = ()) -> dict[str, Panel]:
    """The panels of `metrics` (a row per step) by title, in reading order; what PANELS does not have comes last, if it
    was recorded. `marks`, those of evaluations, are in the panel CORRECT."""
    recorded = (metric.name for metric in METRICS if metric.name in SHOWN and is_recorded(metrics, metric.name))
    titles = dict.fromkeys([*PANELS, *filter(None, (SHOWN[name].panel for name in recorded))])
    return {
        title: replace(panel_of(title), series=_series(title, metrics), marks=marks if title == CORRECT else ())
        for title in titles
    }


def _series(title: str, metrics: pl.DataFrame) -> list[Series]:
    """The curves of a panel. One that was not recorded has no points, so that the others keep their colours."""
    if title == SECONDS:
        return _seconds(metrics)
    names = {shown.curve: name for name, shown in SHOWN.items() if shown.panel == title}
    if title == SIGNAL:
        metrics, names = with_signal(metrics), {"found": "signal", "expected": "signal_expected"}
    elif title == KL and is_recorded(metrics, "kl_sample_train"):
        gap = pl.col("kl_sample_train")
        metrics = metrics.with_columns(pl.when(gap.abs() < KL_NOISE).then(0.0).otherwise(gap).alias("kl_sample_train"))
    return [curve(metrics, name, label) for label, name in names.items()]


def curve(metrics: pl.DataFrame, name: str, label: str) -> Series:
    if not is_recorded(metrics, name):
        return Series(label)
    return Series(label, metrics["step"].to_list(), metrics[name].cast(pl.Float64).to_list())


def is_recorded(metrics: pl.DataFrame, name: str) -> bool:
    return name in metrics.columns and metrics[name].null_count() < len(metrics)


def with_signal(metrics: pl.DataFrame) -> pl.DataFrame:
    """`metrics` with the share of groups that had a signal, if it was recorded; null of a step without a group."""
    if not {"groups_total", "groups_skipped"} <= set(metrics.columns):
        return metrics
    share = 1 - pl.col("groups_skipped") / pl.col("groups_total")
    return metrics.with_columns(signal=pl.when(pl.col("groups_total") > 0).then(share))


def _seconds(metrics: pl.DataFrame) -> list[Series]:
    """The seconds per step, stacked by phase, and the rest of the step's own time as `other`; if phases overlap, the
    step's own time as a line instead. Nothing if no phase was recorded; a missing value counts as 0."""
    recorded = [series for phase in PHASES if (series := curve(metrics, f"time_{phase}_s", phase)).steps]
    if not recorded:
        return []
    steps, whole = metrics["step"].to_list(), curve(metrics, "time_step_s", "step")
    seconds = {series.label: np.nan_to_num(np.array(series.values, dtype=float)) for series in recorded}
    rest = np.nan_to_num(np.array(whole.values, dtype=float)) - sum(seconds.values()) if whole.steps else None
    # If phases of neighbouring steps overlap, a step takes less time than the sum of its phases, by more than rounding.
    overlap = rest is not None and bool((rest < -0.05 * sum(seconds.values())).any())
    if rest is not None and not overlap:
        seconds["other"] = np.clip(rest, 0.0, None)
    drawn = {"step": whole} if overlap else {}
    for (label, values), ends in zip(seconds.items(), np.cumsum([*seconds.values()], axis=0), strict=True):
        band = list(zip(steps, (ends - values).tolist(), ends.tolist(), strict=True))
        drawn[label] = Series(label, steps, values.tolist(), band, is_area=True)
    return [drawn.get(label, Series(label)) for label in (*PHASES, "step", "other")]


def most_evaluated(*runs: RunRecord) -> int:
    """How many problems the largest evaluation has that one of the runs made."""
    return max((int(record.summary["n"]) for run in runs for record in run.own_evals), default=0)


def evaluation_marks(
    records: Sequence[EvalRecord], most: int, link: Callable[[EvalRecord], str] | None = None
) -> list[Mark]:
    """Pass@1 of evaluations in the panel CORRECT, open for those of clearly fewer problems than `most`."""
    marks = []
    for record in records:
        leads_to, is_open = link(record) if link else None, record.summary["n"] < MOST_IN_COMMON * most
        (low, high), said = record.interval, evaluation_said(record)
        marks.append(Mark(record.step, record.pass_at_1, low, high, said, leads_to, "Pass@1", is_open=is_open))
    return marks


def evaluation_said(record: EvalRecord) -> str:
    (low, high), n = record.interval, record.summary["n"]
    return f"evaluation {record.name}: Pass@1 {record.pass_at_1:.1%}, {low:.1%} to {high:.1%}, n = {n}"


def pass_at_1_plot(
    by_split: Mapping[str, tuple[Estimate, Estimate]], labels: Sequence[str] = ("before", "after")
) -> Plot:
    """Pass@1 of two evaluations on the same problems, overall (`all`, the first key) and per split."""
    colours = ("s5", "s0")
    names, shares = ["overall", *list(by_split)[1:]], list(by_split.values())
    low, high = drawing.extent([end for pair in shares for share in pair for end in (share.low, share.high)])
    top, row_height = 34, 60
    left = round(16 + CHARACTER * max(len(short_name(name)) for name in names))  # the widest name fits
    bottom = top + row_height * len(names)

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (HALF - 12 - left)

    parts = [text(0, 12, "Pass@1", "heading"), drawing.legend(dict(zip(labels, colours, strict=True)), HALF, 12)]
    parts.append(drawing.axis_below(ticks(low, high, 4), ".0%", x, top, bottom))
    for row, (name, pair) in enumerate(zip(names, shares, strict=True)):
        middle = top + row_height * (row + 0.5)
        parts.append(text(left - 8, middle + 4, short_name(name), "name end"))
        # `before` above the row's middle, `after` below, each with its number on the outer side.
        for share, colour, y, y_text in zip(
            pair, colours, (middle - 8, middle + 8), (middle - 15, middle + 23), strict=True
        ):
            parts.append(line(f"interval {colour}", x(share.low), y, x(share.high), y))
            parts.append(circle(colour, x(share.value), y, 4.5))
            parts.append(text(x(share.value), y_text, f"{share.value:.1%}", "name middle"))
    alt = f"Pass@1 from {shares[0][0].value:.1%} to {shares[0][1].value:.1%}."
    return Plot(Markup().join(parts), HALF, bottom + 24, alt)
