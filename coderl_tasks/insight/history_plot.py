"""The figures of a run's history. Each panel answers one question, written as its title."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from coderl_tasks.insight.figure import BLUE, GREY, INK, MUTED, ORANGE, TEAL, Draw, Plot, draw_panels
from coderl_tasks.insight.panel import WIDTH, add_legend, prepare
from coderl_tasks.insight.record import EvalRecord, RunRecord, thin

PANEL = (WIDTH, 2.4)


def history_plot(run: RunRecord) -> Plot:
    """All history panels in one image, two columns."""
    return draw_panels(list(history_panels(run).values()), 2, PANEL, history_alt(run))


def history_plots(run: RunRecord) -> list[Plot]:
    """The history panels one image each, for a page that lays them out itself."""
    return [draw_panels([draw], 1, PANEL, title) for title, draw in history_panels(run).items()]


def history_alt(run: RunRecord) -> str:
    if not len(run.metrics):
        return "No step has been recorded yet."
    rewards = run.metrics["mean_reward"].drop_nulls()
    span = f", mean reward from {rewards[0]:.2f} to {rewards[-1]:.2f}" if len(rewards) else ""
    return f"Training history: {len(run.metrics)} steps{span}."


def history_panels(run: RunRecord) -> dict[str, Draw]:
    """The panels of a run's history by title, in reading order."""
    metrics = thin(run.metrics)
    return {
        "Mean reward": partial(_reward, metrics=metrics),
        "Correct in training, and Pass@1 of the evaluations": partial(
            _correct, metrics=metrics, evals=list(run.evals.values())
        ),
        "Format and truncation": partial(_format, metrics=metrics),
        "Groups without signal": partial(_groups, metrics=metrics),
        "Sampler against trainer: mean log-probability gap": partial(_kl, metrics=metrics),
        "Loss": partial(_loss, metrics=metrics),
        "Completion length": partial(_length, metrics=metrics),
        "Seconds per step, by phase": partial(_times, metrics=metrics),
    }


def _series(metrics: pl.DataFrame, name: str) -> np.ndarray | None:
    """A metric's values by step, None where the run does not record it."""
    if name not in metrics.columns or metrics[name].null_count() == len(metrics):
        return None
    return metrics[name].cast(pl.Float64).to_numpy()


def _smooth(values: np.ndarray) -> np.ndarray:
    """A centred moving mean over a tenth of the run."""
    window = max(3, len(values) // 10) | 1
    return pl.Series(values).fill_nan(None).rolling_mean(window, center=True, min_samples=1).to_numpy()


def _line(axes: Axes, metrics: pl.DataFrame, name: str, colour: str, label: str) -> np.ndarray | None:
    """A faint line of what was measured under a clear line of its moving mean."""
    values = _series(metrics, name)
    if values is None:
        return None
    steps = metrics["step"].to_numpy()
    if len(steps) < 8:
        axes.plot(steps, values, color=colour, marker="o", markersize=3, label=label)
        return values
    axes.plot(steps, values, color=colour, alpha=0.28, linewidth=1.0)
    axes.plot(steps, _smooth(values), color=colour, label=label)
    return values


def _reward(axes: Axes, metrics: pl.DataFrame) -> None:
    prepare(axes, "Mean reward", metrics)
    _line(axes, metrics, "mean_reward", BLUE, "moving mean")


def _correct(axes: Axes, metrics: pl.DataFrame, evals: Sequence[EvalRecord]) -> None:
    prepare(axes, "Correct", metrics)
    _line(axes, metrics, "mean_correct", BLUE, "training")
    if evals:
        steps = [record.step for record in evals]
        rates = np.array([record.pass_at_1 for record in evals])
        bounds = np.array([record.interval for record in evals]).T
        errors = np.abs(bounds - rates)
        axes.errorbar(
            steps, rates, yerr=errors, fmt="o", color=ORANGE, markersize=4, elinewidth=1.4, label="Pass@1, 95%"
        )
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if axes.get_legend_handles_labels()[0]:
        add_legend(axes)


def _format(axes: Axes, metrics: pl.DataFrame) -> None:
    prepare(axes, "Format", metrics)
    if len(metrics):
        axes.axhline(0.95, color=MUTED, linewidth=1.0, linestyle=(0, (2, 3)))
    drawn = [
        _line(axes, metrics, "format_rate", TEAL, "format ok"),
        _line(axes, metrics, "truncated_rate", ORANGE, "truncated"),
    ]
    if any(values is not None for values in drawn):
        axes.set_ylim(-0.02, 1.04)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        add_legend(axes)


def _groups(axes: Axes, metrics: pl.DataFrame) -> None:
    prepare(axes, "Groups skipped", metrics)
    skipped, total = _series(metrics, "groups_skipped"), _series(metrics, "groups_total")
    if skipped is None or total is None:
        return
    steps = metrics["step"].to_numpy()
    if len(steps) <= 100:
        axes.bar(steps, total - skipped, width=0.8, color=BLUE, label="trained on")
        axes.bar(steps, skipped, bottom=total - skipped, width=0.8, color=GREY, alpha=0.55, label="skipped")
    else:
        labels, colours = ["trained on", "skipped"], [BLUE, "#9aa3af8c"]
        axes.stackplot(steps, total - skipped, skipped, labels=labels, colors=colours, step="mid", linewidth=0)
    axes.set_ylim(0, max(1.0, float(np.nanmax(total))))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    add_legend(axes)


def _kl(axes: Axes, metrics: pl.DataFrame) -> None:
    prepare(axes, "KL, sampler to trainer", metrics)
    if len(metrics):
        axes.axhline(0.0, color=MUTED, linewidth=1.0, linestyle=(0, (2, 3)))
    _line(axes, metrics, "kl_sample_train", BLUE, "moving mean")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))


def _length(axes: Axes, metrics: pl.DataFrame) -> None:
    prepare(axes, "Completion length, tokens", metrics)
    if _line(axes, metrics, "mean_completion_tokens", BLUE, "moving mean") is not None:
        axes.set_ylim(bottom=0)


def _loss(axes: Axes, metrics: pl.DataFrame) -> None:
    prepare(axes, "Loss, summed over tokens", metrics)
    _line(axes, metrics, "loss", BLUE, "moving mean")


def _times(axes: Axes, metrics: pl.DataFrame) -> None:
    prepare(axes, "Seconds per step", metrics)
    phases = {"sample": "time_sample_s", "score": "time_score_s", "train": "time_train_s"}
    series = {label: _series(metrics, name) for label, name in phases.items()}
    known = {label: np.nan_to_num(values) for label, values in series.items() if values is not None}
    if not known:
        return
    whole = _series(metrics, "time_step_s")
    phases_s = sum(known.values())
    # Where phases of neighbouring steps overlap, a step takes less than its phases together.
    overlap = whole is not None and bool((np.nan_to_num(whole) < 0.95 * phases_s).any())
    if whole is not None and not overlap:
        known["other"] = np.clip(np.nan_to_num(whole) - phases_s, 0.0, None)
    colours = (BLUE, TEAL, ORANGE, GREY)
    steps = metrics["step"].to_numpy()
    if len(steps) == 1:
        bottom = 0.0
        for (label, values), colour in zip(known.items(), colours, strict=False):
            axes.bar(steps, values, bottom=bottom, color=colour, label=label)
            bottom += float(values[0])
    else:
        axes.stackplot(steps, *known.values(), labels=list(known), colors=colours, alpha=0.85, linewidth=0)
    if whole is not None and overlap:
        axes.plot(steps, whole, color=INK, linewidth=1.5, label="step")
    axes.set_ylim(bottom=0)
    add_legend(axes, columns=4)
