"""What a command begins and ends with on the console: the pool, Pass@1 before and after, what to try next."""

import shlex
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from coderl_tasks.curation.find_pool import FoundPool
from coderl_tasks.insight.comparison import compare_evals, comparison_table, weak_splits
from coderl_tasks.insight.diagnosis import checks_table, smoke_checks
from coderl_tasks.insight.pool_view import make_up, make_up_table
from coderl_tasks.insight.record import RunRecord, load_curation, load_run
from coderl_tasks.insight.tables import age, rich_table
from coderl_tasks.insight.token_uses import costs, costs_table, uses, uses_table
from coderl_tasks.insight.warning_signs import hints
from coderl_tasks.settings import TrainSettings


def print_summary(console: Console, run_dir: Path, pool_dir: Path | None = None, ui_url: str | None = None) -> None:
    """Prints the closing summary of a pipeline. `ui_url` is the Prefect UI's address if it still answers."""
    run = load_run(run_dir)
    parts: list[RenderableType] = []
    if pool_dir is not None:
        curation = load_curation(pool_dir)
        title = f"Pool: {len(curation.pool)} problems kept, {len(curation.dropped)} dropped"
        parts += [rich_table(make_up_table(make_up(curation.pool)), title), ""]
    checks = smoke_checks(run)
    why = (Text(f"{check.name}: {check.explanation}", style="dim") for check in checks if not check.passed)
    parts += [pass_at_1_part(run), "", rich_table(checks_table(checks), "Checks"), *why]
    parts += [Text(f"  hint: {hint}", style="yellow") for hint in hints(run)]
    if spent := uses(run):
        parts += ["", rich_table(uses_table(spent), "Tokens by use")]
        parts += ["", rich_table(costs_table(costs(run)), "Tokens by kind, and cost")]
    console.print(Group(*parts, ""), crop=False)  # nor is a path cut
    console.print(next_steps(run, ui_url), soft_wrap=True)  # commands are for copying: no line break but the terminal's


def pool_lines(pool: FoundPool, settings: TrainSettings, now: float) -> list[str]:
    """Two lines before a run: its pool, and what a step takes from it. `now` is in seconds since the epoch."""
    kept, larger = pool.kept, pool.larger
    about = [f"{kept:,} problems"] if kept is not None else []
    about += [] if pool.is_profiled else ["not profiled"]
    about += [f"for the policy of {pool.of_run}"] if pool.of_run else []
    pool_line = f"pool: {pool.file} ({', '.join([*about, f'written {age(now - pool.written)} ago'])})"
    if larger is not None:
        pool_line += f"; a larger one: pool={larger.name}, {larger.kept:,} problems, {age(now - larger.written)} old"
        if kept is not None and larger.kept is not None and larger.kept > 2 * kept:
            pool_line = f"warning: {pool_line}"
    problems, completions = settings.problems_per_step, settings.completions_per_problem
    step = f"per step: {problems} problems x {completions} completions per problem"
    if kept is not None and kept < problems:
        step = f"warning: {step}: the pool has {kept}, and a step takes some twice: problems_per_step={kept}"
    elif kept is not None and kept == problems and settings.refill > 1:
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
    comparison = compare_evals(run.baseline, run.latest)
    if comparison is None:
        return Text("Pass@1: no baseline and later evaluation on the same problems to compare", style="yellow")
    before, after = comparison.before, comparison.after
    weak = weak_splits(comparison.by_split, str(run.config.get("dataset", "")))
    title = f"Pass@1 in %, with 95% intervals: baseline and {after.name} (step {after.step})"
    table = rich_table(comparison_table(comparison, weak), title)
    notes = [Text(f"* {split}: {why}", style="dim") for split, why in weak.items()]
    change = Text(f"{comparison.gained} problems gained, {comparison.lost} lost", style="dim")
    sides = [
        Text(f"{record.name}: {side}", style="dim", overflow="ignore", no_wrap=True)  # a path is for copying
        for record, side in zip((before, after), comparison.sides, strict=True)
    ]
    warning = [Text(f"warning: {comparison.warning}", style="yellow")] if comparison.warning else []
    return Group(table, change, *sides, *warning, *notes)


def next_steps(run: RunRecord, ui_url: str | None = None) -> Text:
    place = shlex.quote(str(run.path))
    lines = {
        "run": str(run.path),
        "query": f"coderl query {place} --name flips",
        "or SQL": f'coderl query {place} "SELECT verdict, count(*) AS n FROM rollouts GROUP BY ALL ORDER BY n DESC"',
        "report": str(run.path / "report.html") if (run.path / "report.html").is_file() else f"coderl report {place}",
        "UI": ui_url or "coderl up   (starts the Prefect server over the same database and prints its address)",
    }
    return Text("\n").join(Text.assemble((f"{key:<8}", "dim"), text) for key, text in lines.items())
