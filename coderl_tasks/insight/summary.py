"""What a command begins and ends with on the console: the pool, Pass@1 before and after, what to try next."""

import shlex
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from coderl_tasks.curation.find_pool import FoundPool
from coderl_tasks.insight.comparison import PairedPassAt1, compare_evals, weak_splits
from coderl_tasks.insight.console import plain_table
from coderl_tasks.insight.diagnosis import Check, hints, smoke_checks
from coderl_tasks.insight.progress import age
from coderl_tasks.insight.record import DIFFICULTIES, CurationRecord, EvalRecord, RunRecord, load_curation, load_run
from coderl_tasks.settings import TrainSettings

MARKS = {True: ("pass", "green"), False: ("FAIL", "bold red"), None: ("undecided", "yellow")}


def print_summary(console: Console, run_dir: Path, pool_dir: Path | None = None, ui_url: str | None = None) -> None:
    """Prints the closing summary of a pipeline: pool, Pass@1, checks, run directory, what to try.

    `ui_url` is the Prefect UI's address if it still answers.
    """
    run = load_run(run_dir)
    parts: list[RenderableType] = []
    if pool_dir is not None:
        parts += [pool_table(load_curation(pool_dir)), ""]
    parts += [pass_at_1_table(run), "", checks_table(smoke_checks(run))]
    parts += [Text(f"  hint: {hint}", style="yellow") for hint in hints(run)]
    console.print(Group(*parts, ""), crop=False)  # nor is a path cut
    console.print(next_steps(run, ui_url), soft_wrap=True)  # commands are for copying: no line break but the terminal's


def pool_lines(pool: FoundPool, settings: TrainSettings, now: float) -> list[str]:
    """Which pool a run takes, how large and how old (`now`: seconds since the epoch), and what a step takes of it."""
    kept = pool.kept
    size = [f"{kept:,} problems"] if kept is not None else []
    about = ", ".join([*size, f"written {age(now - pool.written)} ago"])
    taken = f"pool: {pool.file} ({about})"
    if pool.larger is not None:
        larger = pool.larger
        taken += f"; a larger one: pool={larger.name}, {larger.kept:,} problems, {age(now - larger.written)} old"
        if kept is not None and larger.kept is not None and larger.kept > 2 * kept:
            taken = f"warning: {taken}"
    problems, completions = settings.problems_per_step, settings.completions_per_problem
    step = f"per step: {problems} problems x {completions} completions per problem"
    if kept is not None and kept < problems:
        step = f"warning: {step}: the pool has fewer, which repeat within a step (problems_per_step={kept})"
    return [taken, step]


def pool_table(curation: CurationRecord) -> RenderableType:
    """Problems of the pool by split and difficulty."""
    pool = curation.pool
    table = plain_table(f"Pool: {len(pool)} problems kept, {len(curation.dropped)} dropped")
    table.add_column("split")
    for difficulty in (*DIFFICULTIES, "all"):
        table.add_column(difficulty, justify="right")
    splits = sorted(pool["split"].unique()) if len(pool) else []
    for split in [*splits, "all"]:
        rows = pool if split == "all" else pool.filter(pool["split"] == split)
        counts = [int((rows["difficulty"] == name).sum()) for name in DIFFICULTIES] if len(rows) else [0, 0, 0]
        style = "bold" if split == "all" else None
        table.add_row(split, *[str(count) for count in counts], str(len(rows)), style=style)
    return table


def pass_at_1_table(run: RunRecord) -> RenderableType:
    """Pass@1 before and after with 95% intervals and the paired difference; what there is of it."""
    before, after = run.baseline, run.latest
    comparison = compare_evals(before, after)
    if before is None or after is None or comparison is None:
        return Text("Pass@1: no baseline and later evaluation on the same problems to compare", style="yellow")
    table = plain_table(f"Pass@1 in %, with 95% intervals: baseline and {after.name} (step {after.step})")
    table.add_column("split")
    for column in ("n", "before", "after", "paired difference"):
        table.add_column(column, justify="right", no_wrap=True)
    rows = {"all": comparison.overall, **comparison.by_split}
    weak = weak_splits(comparison.by_split, str(run.config.get("dataset", "")))
    for split, found in rows.items():
        star = "*" if split in weak else ""
        table.add_row(
            split + star,
            str(found.n),
            _share(before, split),
            _share(after, split),
            _points(found),
            style="bold" if split == "all" else None,
        )
    notes = [Text(f"* {split}: {why}", style="dim") for split, why in weak.items()]
    change = Text(f"{comparison.gained} problems gained, {comparison.lost} lost", style="dim")
    sides = [
        Text(f"{record.name}: {side}", style="dim", overflow="ignore", no_wrap=True)  # a path is for copying
        for record, side in zip((before, after), comparison.sides, strict=True)
    ]
    warning = [Text(f"warning: {comparison.warning}", style="yellow")] if comparison.warning else []
    return Group(table, change, *sides, *warning, *notes)


def checks_table(checks: list[Check]) -> RenderableType:
    """The smoke-test protocol: one line per check, and why one did not pass."""
    table = plain_table("Checks")
    for column in ("", "check", "value", "wanted"):
        table.add_column(column)
    for check in checks:
        word, style = MARKS[check.passed]
        table.add_row(Text(word, style=style), check.name, check.value, Text(check.threshold, style="dim"))
    why = [Text(f"{check.name}: {check.explanation}", style="dim") for check in checks if not check.passed]
    return Group(table, *why)


def next_steps(run: RunRecord, ui_url: str | None = None) -> Text:
    """Where the run is and what to try on it, a line each."""
    place = shlex.quote(str(run.path))
    lines = {
        "run": str(run.path),
        "query": f"coderl query {place} --name flips",
        "or SQL": f'coderl query {place} "SELECT verdict, count(*) AS n FROM rollouts GROUP BY ALL ORDER BY n DESC"',
        "report": str(run.path / "report.html") if (run.path / "report.html").is_file() else f"coderl report {place}",
        "UI": ui_url or "coderl up   (starts the Prefect server over the same database and prints its address)",
    }
    return Text("\n").join(Text.assemble((f"{key:<8}", "dim"), text) for key, text in lines.items())


def _share(record: EvalRecord, split: str) -> str:
    share = record.summary if split == "all" else record.summary.get("by_split", {}).get(split)
    if share is None:
        return "–"
    rate, low, high = (share[key] * 100 for key in ("pass_at_1", "ci_low", "ci_high"))
    return f"{rate:.1f} [{low:.1f}, {high:.1f}]"


def _points(found: PairedPassAt1) -> str:
    difference, low, high = (value * 100 for value in (found.difference, found.ci_low, found.ci_high))
    return f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]"
