"""A run on the terminal: what a command begins and ends with, and `coderl watch RUN`, a run while it goes on. Watching
reads the run's files alone: a run on another machine can be watched over a shared folder."""

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import polars as pl
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from coderl_tasks.curation.find_pool import FoundPool
from coderl_tasks.insight.diagnosis import checks_table, compare_evals, comparison_table, smoke_checks, weak_splits
from coderl_tasks.insight.logging import step_line
from coderl_tasks.insight.plots import with_signal
from coderl_tasks.insight.pool_view import make_up, make_up_table
from coderl_tasks.insight.record import RunRecord, load_curation, load_run, run_state
from coderl_tasks.insight.tables import age, duration, plain_table, rich_table
from coderl_tasks.insight.token_uses import costs, costs_table, uses, uses_table
from coderl_tasks.insight.viewer_link import query_command, where_to_look
from coderl_tasks.insight.warning_signs import hints
from coderl_tasks.policy.step_metrics import PHASES
from coderl_tasks.settings import TrainSettings
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
RUNNING = "running"  # the state, by `run_state`, of a run that a process works on


def print_summary(console: Console, run_dir: Path, pool_dir: Path | None = None) -> None:
    """Prints the closing summary of a run, after that of the pool that the same pipeline made, if any."""
    run = load_run(run_dir)
    parts: list[RenderableType] = []
    if pool_dir is not None:
        curation = load_curation(pool_dir)
        title = f"Pool: {len(curation.pool)} problems kept, {len(curation.dropped)} dropped"
        parts += [rich_table(make_up_table(make_up(curation.pool)), title), ""]
    checks = smoke_checks(run)
    failures = (Text(f"{check.name}: {check.explanation}", style="dim") for check in checks if not check.passed)
    parts += [pass_at_1_part(run), "", rich_table(checks_table(checks), "Checks"), *failures]
    parts += [Text(f"  hint: {hint}", style="yellow") for hint in hints(run)]
    if token_uses := uses(run):  # none before step 0
        parts += ["", rich_table(uses_table(token_uses), "Tokens by use")]
        parts += ["", rich_table(costs_table(costs(run)), "Tokens by kind, and cost")]
    console.print(Group(*parts, ""), crop=False)  # a path longer than the terminal's line is not cut
    quoted, report = shlex.quote(str(run.path)), run.path / "report.html"
    lines = {
        "run": str(run.path),
        "look": where_to_look(run.path),
        "query": f"coderl query {quoted} --name flips",
        "or SQL": query_command(run.path, "SELECT verdict, count(*) AS n FROM rollouts GROUP BY ALL ORDER BY n DESC"),
        "report": str(report) if report.is_file() else f"coderl report {quoted}",
        "UI": "coderl up   (starts the Prefect server over the same database and prints its address)",
    }
    next_steps = Text("\n").join(Text.assemble((f"{key:<8}", "dim"), text) for key, text in lines.items())
    console.print(next_steps, soft_wrap=True)  # commands are for copying: no line break but the terminal's


def pool_lines(pool: FoundPool, settings: TrainSettings, now: float) -> list[str]:
    """Two lines before a run: its pool, and what a step takes of it; a warning if it may be a mistake."""
    size, larger = pool.kept, pool.larger  # `larger`: the largest pool, if "latest" found a newer, smaller one
    facts = [f"{size:,} problems"] if size is not None else []  # None: a parquet file without a manifest
    facts += [] if pool.is_profiled else ["not profiled"]
    facts += [f"for the policy of {pool.of_run}"] if pool.of_run else []
    pool_line = f"pool: {pool.file} ({', '.join([*facts, f'written {age(now - pool.written)} ago'])})"
    if larger is not None:
        pool_line += f"; a larger one: pool={larger.name}, {larger.kept:,} problems, {age(now - larger.written)} old"
        if size is not None and larger.kept is not None and larger.kept > 2 * size:
            pool_line = f"warning: {pool_line}"
    problems, completions = settings.problems_per_step, settings.completions_per_problem
    step = f"per step: {problems} problems x {completions} completions per problem"
    if size is not None and size < problems:
        step = f"warning: {step}: the pool has {size}, and a step takes some twice: problems_per_step={size}"
    elif size is not None and size == problems and settings.refill > 1:
        step = f"warning: {step}: all of the pool, so that refill={settings.refill:g} replaces no group"
    elif settings.first_completions:
        step += (
            f", begun with {settings.first_completions}: a group without a signal ends there, and makes room for "
            f"others (at most {settings.most_completions:,} completions)"
        )
    elif settings.refill > 1:
        step += f", and up to {settings.most_groups - problems} problems in place of those without a signal (refill)"
    return [pool_line, step]


def pass_at_1_part(run: RunRecord) -> RenderableType:
    """Pass@1 of the baseline and of the newest evaluation by split, what differs between them, and weak evidence."""
    comparison = compare_evals(run.baseline, run.latest)
    if comparison is None:
        return Text("Pass@1: no baseline and later evaluation on the same problems to compare", style="yellow")
    before, after = comparison.before, comparison.after
    weak = weak_splits(comparison.results, str(run.config.get("dataset", "")))
    title = f"Pass@1 in %, with 95% intervals: baseline and {after.name} (step {after.step})"
    table = rich_table(comparison_table(comparison, weak), title)
    notes = [Text(f"* {split}: {why}", style="dim") for split, why in weak.items()]
    change = Text("{gained} problems gained, {lost} lost".format(**comparison.overall.changed), style="dim")
    sides = [
        Text(f"{record.name}: {side}", style="dim", overflow="ignore", no_wrap=True)  # a path is for copying
        for record, side in zip((before, after), comparison.sides, strict=True)
    ]
    warning = [Text(f"warning: {comparison.warning}", style="yellow")] if comparison.warning else []
    return Group(table, change, *sides, *warning, *notes)


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
    """The screen of `coderl watch`: progress, curves, evaluations, last steps, hints. `state`: the run's, in words."""
    steps, planned = len(run.metrics), run.planned_steps  # planned: None for a run without an end
    step = f"step {steps}" + (f" of {planned}" if planned else "")
    head = [f"{run.path.name}: {run.config.get('model_name', '')}", state, step]
    parts: list[RenderableType] = []
    if steps:
        # The median of the last 20 steps: the pace changes with the length of completions.
        per_step = median(run.metrics["time_step_s"].tail(20).drop_nulls().to_list() or [0.0])
        head.append(f"{per_step:.1f} s per step")
        if planned and state == RUNNING and planned > steps:
            head.append(f"{duration((planned - steps) * per_step)} left")
    # Names and hints may hold anything, so escape sequences in them are made visible.
    parts.append(Text("  ".join(printable(part) for part in head), style="bold"))
    if planned:
        parts.append(ProgressBar(total=planned, completed=min(steps, planned)))
    if steps:
        metrics, curves = with_signal(run.metrics), plain_table()
        for column in ("", "first", "curve", "last"):
            curves.add_column(column, justify="left" if column in ("", "curve") else "right", no_wrap=True)
        for name, (label, form) in CURVES.items():
            values = metrics[name].cast(pl.Float64).to_list() if name in metrics.columns else []
            if known := [value for value in values if value is not None]:
                curves.add_row(label, format(known[0], form), sparkline(values), format(known[-1], form))
        parts += ["", curves]
    if run.evals:
        table = plain_table()
        for column in ("evaluation", "Pass@1", "95% interval", "mean reward", "problems"):
            table.add_column(column, justify="left" if column == "evaluation" else "right")
        for record in run.evals.values():
            (low, high), reward = record.interval, record.summary.get("mean_reward")
            rates = (f"{record.pass_at_1:.1%}", f"{low:.1%} to {high:.1%}", "–" if reward is None else f"{reward:.3f}")
            table.add_row(record.name, *rates, str(record.summary["n"]))
        parts += ["", table]
    if steps:
        rows = run.metrics.drop(UNSAID, strict=False).tail(8).rows(named=True)  # without metrics that a line leaves out
        parts += ["", *(Text(printable(step_line(row, planned))) for row in rows)]
    parts += [Text(f"! {printable(hint)}", style="yellow") for hint in hints(run)]
    look = Text(f"look: {where_to_look(run.path)}", "dim", overflow="ignore", no_wrap=True)
    return Group(*parts, "", look)


def watch_run(
    path: Path, console: Console, *, every_s: float, once: bool, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Shows the run in `path`, anew every `every_s` seconds, until no process works on it any more, or `once`."""
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
