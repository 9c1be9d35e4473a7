"""The figures of a curation: pass rates of the profiled problems, and what the pool is made of."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from coderl_tasks.insight.figure import BLUE, GREY, INK, ORANGE, ROSE, RULE, SERIES, TEAL, Plot, draw_panels
from coderl_tasks.insight.funnel import Remaining
from coderl_tasks.insight.panel import LABELS, WIDTH, add_legend, prepare, short_name
from coderl_tasks.insight.pool_tables import FEW_SAMPLES, few_samples
from coderl_tasks.insight.record import DIFFICULTIES

DIFFICULTY_COLOURS = {"hard": ROSE, "medium": ORANGE, "easy": TEAL}
FEW_ALPHA = 0.45


def pass_rate_plot(profile: pl.DataFrame, band: tuple[float, float] | None = None) -> Plot:
    """How many profiled problems have which pass rate, stacked by split; the training band is shaded."""
    alt = f"Histogram of the pass rates of {len(profile)} profiled problems."
    return draw_panels([partial(_pass_rates, profile=profile, band=band)], 1, (9.4, 2.9), alt)


def _pass_rates(axes: Axes, profile: pl.DataFrame, band: tuple[float, float] | None) -> None:
    prepare(axes, "Pass rate of the base model")
    splits = sorted(profile["split"].unique()) if len(profile) else []
    bottom = np.zeros(12)
    for split, colour in zip(splits, SERIES, strict=False):
        rates = profile.filter(pl.col("split") == split)["pass_rate"].drop_nulls().to_numpy()
        counts = pass_rate_counts(rates)
        axes.bar(range(12), counts, bottom=bottom, width=0.86, color=colour, label=short_name(split))
        bottom += counts
    if band is not None:
        axes.axvspan(0.5 + 10 * band[0], 0.5 + 10 * band[1], color=BLUE, alpha=0.07, linewidth=0, zorder=0)
    labels = ["0", *[f"{k / 10:.1f}–{(k + 1) / 10:.1f}" for k in range(10)], "1"]
    axes.set_xticks(range(12), labels)
    axes.tick_params(axis="x", labelsize=7.5)
    axes.set_ylabel("problems")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    if splits:
        add_legend(axes, columns=4)


def pass_rate_counts(rates: np.ndarray) -> np.ndarray:
    """Counts in 12 bins: exactly 0, ten of a tenth each in between, exactly 1. The two ends mean "no signal"."""
    inner = rates[(rates > 0) & (rates < 1)]
    tenths = np.minimum((inner * 10 + 1e-9).astype(int), 9)
    return np.concatenate([[np.sum(rates == 0)], np.bincount(tenths, minlength=10), [np.sum(rates == 1)]])


def funnel_plot(rows: Sequence[Remaining]) -> Plot:
    """What is left after each stage, from the rows read to the pool, with what the stage dropped."""
    alt = f"Problems left after each stage: {', '.join(f'{row.stage} {row.left}' for row in rows)}."
    return draw_panels([partial(_funnel, rows=rows)], 1, (9.4, 0.52 + 0.27 * len(rows)), alt, LABELS, bottom=0.1)


def _funnel(axes: Axes, rows: Sequence[Remaining]) -> None:
    prepare(axes, "Problems left after each stage")
    axes.grid(visible=False)
    places = range(len(rows))
    axes.barh(places, [row.left for row in rows], height=0.68, color=BLUE)
    axes.barh(
        places, [row.dropped for row in rows], left=[row.left for row in rows], height=0.68, color=ROSE, alpha=0.45
    )
    for place, row in enumerate(rows):
        text = f"{row.left:,}" + (f"  −{row.dropped:,}" if row.dropped else "")
        axes.annotate(
            text, (row.left + row.dropped, place), (5, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.set_yticks(places, [row.stage for row in rows])
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_xlim(0, 1.13 * max(1, rows[0].left))
    axes.invert_yaxis()
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)


def samples_plot(profile: pl.DataFrame) -> Plot:
    """How many problems took how many graded completions, stacked by split."""
    alt = f"Histogram of the samples spent on {len(profile)} profiled problems."
    return draw_panels([partial(_samples, profile=profile)], 1, (WIDTH, 2.4), alt)


def _samples(axes: Axes, profile: pl.DataFrame) -> None:
    prepare(axes, "Samples")
    numbers = sorted(profile["n_samples"].unique())
    bottom = np.zeros(len(numbers))
    for split, colour in zip(sorted(profile["split"].unique()), SERIES, strict=False):
        part = profile.filter(pl.col("split") == split)
        counts = np.array([part.filter(pl.col("n_samples") == n).height for n in numbers])
        axes.bar(range(len(numbers)), counts, bottom=bottom, width=0.7, color=colour, label=short_name(split))
        bottom += counts
    axes.set_xticks(range(len(numbers)), [str(n) for n in numbers])
    axes.set_xlabel("samples per problem")
    axes.set_ylabel("problems")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    add_legend(axes)


def difficulty_plot(pool: pl.DataFrame) -> Plot:
    """The pool's problems by split, stacked by difficulty; lighter where the label comes from few samples."""
    alt = f"The pool's {len(pool)} problems by split and difficulty."
    splits = pool["split"].n_unique() if len(pool) else 1
    return draw_panels([partial(_difficulty, pool=pool)], 1, (WIDTH, 1.2 + 0.4 * splits), alt, left=LABELS)


def _difficulty(axes: Axes, pool: pl.DataFrame) -> None:
    prepare(axes, "Pool")
    axes.grid(axis="x", color=RULE)
    axes.grid(visible=False, axis="y")
    splits = sorted(pool["split"].unique(), reverse=True) if len(pool) else []
    left = np.zeros(len(splits))
    parts = {split: pool.filter(split=split) for split in splits}
    some_few = False
    for difficulty in DIFFICULTIES:
        colour = DIFFICULTY_COLOURS[difficulty]
        labelled = [part.filter(difficulty=difficulty) for part in parts.values()]
        few = np.array([few_samples(part).height for part in labelled])
        more = np.array([part.height for part in labelled]) - few
        axes.barh(range(len(splits)), more, left=left, height=0.6, color=colour, label=difficulty)
        axes.barh(range(len(splits)), few, left=left + more, height=0.6, color=colour, alpha=FEW_ALPHA)
        left = left + more + few
        some_few = some_few or bool(few.any())
    if some_few:
        axes.barh(0, 0, color=GREY, alpha=FEW_ALPHA, label=f"≤ {FEW_SAMPLES} samples")
    axes.set_yticks(range(len(splits)), [short_name(split) for split in splits])
    axes.tick_params(axis="y", labelcolor=INK)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if splits:
        add_legend(axes, columns=4)
