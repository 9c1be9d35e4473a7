"""`coderl watch RUN`: a run on the terminal while it goes on. It reads the run's files alone and asks no server: a run
on another machine can be watched over a shared folder."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import polars as pl
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coderl_tasks.insight.listing import run_state
from coderl_tasks.insight.logging import step_line
from coderl_tasks.insight.record import RunRecord, load_run
from coderl_tasks.insight.tables import duration, plain_table
from coderl_tasks.insight.warning_signs import hints
from coderl_tasks.policy.step_metrics import PHASES
from coderl_tasks.untrusted_text import printable

CURVES = {
    "mean_reward": ("reward", ".3f"),
    "mean_correct": ("correct", ".0%"),
    "format_rate": ("format", ".0%"),
    "signal": ("groups with signal", ".0%"),
    "entropy": ("entropy", ".3f"),
    "truncated_rate": ("truncated", ".0%"),
    "time_step_s": ("seconds per step", ".1f"),
}
"""What is drawn, by the metric: its label, and how its last value is shown."""
BARS = "▁▂▃▄▅▆▇█"
UNSAID = {"format_rate", "truncated_rate", "entropy", *(f"time_{phase}_s" for phase in PHASES)}
"""Not on the lines of the last steps, which have little room: the curves or logs.log show them."""
RUNNING = "running"
"""The state of a run that a process works on (`insight.listing.run_state`)."""


def sparkline(values: Sequence[float | None], width: int = 60) -> str:
    """`values` as one character each, of at most `width` means of equal stretches; a blank where there is none."""
    size = -(-len(values) // width) if values else 1
    stretches = (values[first : first + size] for first in range(0, len(values), size))
    known = [[value for value in stretch if value is not None] for stretch in stretches]
    means = [sum(stretch) / len(stretch) if stretch else None for stretch in known]
    low = min((mean for mean in means if mean is not None), default=0.0)
    span = max((mean for mean in means if mean is not None), default=0.0) - low
    places = [None if mean is None else round((mean - low) / span * (len(BARS) - 1)) if span else 0 for mean in means]
    return "".join(" " if place is None else BARS[place] for place in places)


def view(run: RunRecord, state: str) -> RenderableType:
    """The screen of `coderl watch`: progress, curves, evaluations, the last steps and hints."""
    steps, planned = len(run.metrics), run.planned_steps
    step = f"step {steps}" + (f" of {planned}" if planned else "")
    head = [f"{run.path.name}: {run.config.get('model_name', '')}", state, step]
    parts: list[RenderableType] = []
    if steps:
        per_step = median(run.metrics["time_step_s"].tail(20).drop_nulls().to_list() or [0.0])
        head.append(f"{per_step:.1f} s per step")
        if planned and state == RUNNING and planned > steps:
            head.append(f"{duration((planned - steps) * per_step)} left")
    parts.append(Text("  ".join(printable(part) for part in head), style="bold"))
    if planned:
        parts.append(ProgressBar(total=planned, completed=min(steps, planned)))
    if steps:
        parts += ["", _curves(run.metrics)]
    if run.evals:
        table = plain_table()
        for column in ("evaluation", "Pass@1", "95% interval", "mean reward", "problems"):
            table.add_column(column, justify="left" if column == "evaluation" else "right")
        for record in run.evals.values():
            low, high = record.interval
            reward = record.summary.get("mean_reward")
            rates = (f"{record.pass_at_1:.1%}", f"{low:.1%} to {high:.1%}", "–" if reward is None else f"{reward:.3f}")
            table.add_row(record.name, *rates, str(record.summary["n"]))
        parts += ["", table]
    if steps:
        rows = run.metrics.drop(UNSAID, strict=False).tail(8).rows(named=True)
        parts += ["", *(Text(printable(step_line(row, planned))) for row in rows)]
    parts += [Text(f"! {printable(hint)}", style="yellow") for hint in hints(run)]
    return Group(*parts)


def _curves(metrics: pl.DataFrame) -> Table:
    if {"groups_skipped", "groups_total"} <= set(metrics.columns):
        metrics = metrics.with_columns(signal=1 - pl.col("groups_skipped") / pl.col("groups_total"))
    table = plain_table()
    for column in ("", "first", "curve", "last"):
        table.add_column(column, justify="left" if column in ("", "curve") else "right", no_wrap=True)
    for name, (label, form) in CURVES.items():
        values = metrics[name].cast(pl.Float64).to_list() if name in metrics.columns else []
        known = [value for value in values if value is not None]
        if known:
            table.add_row(label, format(known[0], form), sparkline(values), format(known[-1], form))
    return table


def watch_run(
    path: Path, console: Console, *, every_s: float, once: bool, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Show the run in `path`, anew every `every_s` seconds, until no process works on it any more, or `once`."""
    run = load_run(path)
    state = run_state(path, run.config)
    if once or not console.is_terminal:
        console.print(view(run, state))
        return
    with Live(view(run, state), console=console, auto_refresh=False, vertical_overflow="visible") as live:
        while state == RUNNING:
            sleep(every_s)
            run = load_run(path)
            state = run_state(path, run.config)
            live.update(view(run, state), refresh=True)
