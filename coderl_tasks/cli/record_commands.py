"""`coderl runs`, `pools`, `query`, `shell`, `watch`, `show`, `report` and `power`: what was recorded. `validate`,
`grade` and `audit`: a user's own rows, of problems and of completions."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import polars as pl
import rich.table
from rich.console import Console

from coderl_tasks.errors import ConfigError
from coderl_tasks.evaluation.paired import Noise, sampling_noise
from coderl_tasks.insight.named_queries import CURATION, NAMED_QUERIES
from coderl_tasks.insight.record import naming_damaged_tables, pools_table, runs_table
from coderl_tasks.insight.tables import render_frame, write_frame
from coderl_tasks.journal.recorded_json import Summary, read_shaped
from coderl_tasks.journal.run_names import record_path, runs_root
from coderl_tasks.journal.steps import FINAL, EvalJournal
from coderl_tasks.paths import POOLS, find_local
from coderl_tasks.problems.problem import Problem
from coderl_tasks.stats import pairs_needed, seen_difference


def runs(options: Namespace) -> int:
    return _listed(options, runs_table, runs_root())


def pools(options: Namespace) -> int:
    return _listed(options, pools_table, POOLS)


def _listed(options: Namespace, table_of: Callable[[Path], pl.DataFrame], usual: Path) -> int:
    """Prints the table of the records in `options.folder`, by default `usual`, in the format asked for."""
    folder = options.folder or usual
    frame = table_of(folder)
    if options.format != "table":
        write_frame(frame, Console(), options.format)
    elif frame.is_empty():
        print(f"none in {folder}")
    else:
        render_frame(frame, Console(), f"in {folder}")
    return 0


def query(options: Namespace) -> int:
    # A pool and a run of one name, as a pipeline makes them: the query says which is meant.
    pools_first = options.name in NAMED_QUERIES and NAMED_QUERIES[options.name].over == CURATION
    run = record_path(options.run, pools_first=pools_first) if options.run is not None else None
    from coderl_tasks.insight.query import print_query, write_answer  # which takes seconds to import

    if options.out is not None:
        if options.format != "table":
            raise ConfigError("--out writes the format that the file's name ends with: leave --format out")
        written = write_answer(run, options.out, options.sql, options.name, external_access=options.external_access)
        print(f"{written:,} rows: {options.out}")
    else:
        how = {"list_names": options.list, "output": options.format, "external_access": options.external_access}
        print_query(run, options.sql, options.name, **how)
    return 0


def shell(options: Namespace) -> int:
    record = record_path(options.run)
    from coderl_tasks.insight.query import answer_statements  # which takes seconds to import

    access = options.external_access
    answer_statements(record, sys.stdin, Console(), interactive=sys.stdin.isatty(), external_access=access)
    return 0


def watch(options: Namespace) -> int:
    if not options.every > 0:
        raise ConfigError("--every is a number of seconds above 0")
    record = record_path(options.run)
    from coderl_tasks.insight.terminal import watch_run  # which takes seconds to import

    watch_run(record, Console(), every_s=options.every, once=options.once)
    return 0


def show(options: Namespace) -> int:
    """Prints a problem of a run and its completions; without a problem, those that the run solves least."""
    record = record_path(options.run)
    from coderl_tasks.insight.problem_view import print_problem, problems_frame, view_problem  # slow to import

    if options.problem is None:
        if options.step is not None or options.eval is not None:
            raise ConfigError("--step and --eval need a problem: name one")
        with naming_damaged_tables(record):
            hardest = problems_frame(record)
        if options.json:
            write_frame(hardest, Console(), "json")
        else:
            render_frame(hardest, Console(), "the problems that the run solves least in training")
        return 0
    with naming_damaged_tables(record):
        view = view_problem(record, options.problem, options.step, options.eval)
    if options.json:
        print(json.dumps(asdict(view), indent=2))
    else:
        print_problem(view, Console(), full=options.full)
    return 0


def report(options: Namespace) -> int:
    if len(options.runs) > 2:
        raise ConfigError(f"takes one or two runs, not {len(options.runs)}")
    first, *others = map(record_path, options.runs)
    from coderl_tasks.insight.report import write_comparison, write_report  # which takes seconds to import

    with naming_damaged_tables(first), naming_damaged_tables(*(others or [first])):
        written = write_comparison(first, others[0], options.out) if others else write_report(first, options.out)
    print(written.absolute())
    return 0


def power(options: Namespace) -> int:
    """For each number of completions per problem, prints how many problems an evaluation needs to show a difference of
    `--points` between two policies, and the least difference that a recorded evaluation can show. That one (a folder,
    or a run: then its final one) tells how noisy outcomes are."""
    if not 0 < options.points < 100 or not 0 < options.power < 1:
        raise ConfigError("--points is between 0 and 100, and --power between 0 and 1")
    # Losses are the share of problems that get worse, gains of those that get better: gains = losses + difference, and
    # both together are at most 1. If neither --losses nor the evaluation tells, they are guessed to be the difference.
    most_losses = (100 - options.points) / 2
    if options.losses is not None and not 0 <= options.losses <= most_losses:
        raise ConfigError(f"--losses is from 0 to {most_losses:g} with --points {options.points:g}")
    noise, difference = _noise_of(options.evaluation), options.points / 100
    if options.losses is not None:
        noise = replace(noise, losses=options.losses / 100)
    losses = min(difference if noise.losses is None else noise.losses, most_losses / 100)
    Console().print(_power_table(noise, difference, losses, options.power))
    print(noise.explanation)  # how the noise was estimated
    print(
        f"Taken to get worse, whatever is sampled: {losses:.1%} of the problems, beside {losses + difference:.1%} that "
        f"get better{' (a guess: --losses says another)' if noise.losses is None else ''}."
    )
    return 0


def _noise_of(evaluation: str) -> Noise:
    """The noise of the finished evaluation in this folder, or of this run's final one."""
    folder = find_local(evaluation)
    journal = None if folder is None else EvalJournal(folder)
    if journal is None or journal.read_summary() is None:  # no evaluation's folder: a run
        journal = EvalJournal(record_path(evaluation) / "evals" / FINAL)
    rollouts = journal.read_rollouts()
    if journal.read_summary() is None or rollouts is None:
        raise ConfigError(f"there is no finished evaluation in {journal.folder}")
    summary = read_shaped(journal.folder / "summary.json", Summary)
    return sampling_noise(rollouts, summary.get("compare"))


def _power_table(noise: Noise, difference: float, losses: float, power: float) -> rich.table.Table:
    table = rich.table.Table(
        "completions per problem",
        f"problems to see {100 * difference:g} points",
        f"points seen on these {noise.problems:,}",
        title=f"Two policies on the same problems, 5% two-sided, power {power:.0%}",
    )
    variance = noise.within  # of a completion's outcome within a problem; at 0 more completions change nothing
    for samples in (1, 2, 4, 8, 16) if variance else (1,):
        needed = pairs_needed(difference, variance, samples, losses, power=power)
        smallest_seen = seen_difference(noise.problems, variance, samples, losses, power=power)
        table.add_row(str(samples), f"{needed:,}", f"{100 * smallest_seen:.1f}")
    return table


def validate(options: Namespace) -> int:
    """1 if curate would drop a row."""
    from coderl_tasks.filtering.rows import RowRules
    from coderl_tasks.insight.row_report import print_row_report, row_report
    from coderl_tasks.settings import CurateSettings
    from coderl_tasks.settings.setting import PROGRAMS, environment_defaults

    if options.min_tests is not None and options.environment not in PROGRAMS:
        raise ConfigError("--min-tests is of --environment=code: other rows have no tests")
    # Not settings of that environment, as curate has them: those may need what is not asked for here (reward_file).
    usual = CurateSettings().model_dump() | environment_defaults(CurateSettings, options.environment)
    rules = RowRules(min_tests=options.min_tests or usual["min_tests"])
    asked = (options.dataset, rules, usual["near_duplicate"], options.limit, options.environment)
    rows = row_report(*asked, faulty_tests=_faulty_tests)
    print_row_report(rows, Console(), options.format)
    return 0 if rows["kept"].all() else 1


def _faulty_tests(problems: Sequence[Problem]) -> dict[str, str]:
    """`curation.solutions.faulty_tests` with the sandbox that SANDBOX_URL names, or one of this command's own."""
    import asyncio

    from coderl_tasks.curation.solutions import faulty_tests
    from coderl_tasks.grading import Judge, SandboxClient
    from coderl_tasks.services import services

    async def found() -> dict[str, str]:
        async with SandboxClient(used.sandbox_urls, used.sandbox_concurrency) as client:
            return await faulty_tests(problems, Judge(client))

    with services(None) as used:
        print("\n".join(used.lines), file=sys.stderr)
        return asyncio.run(found())


def grade(options: Namespace) -> int:
    from coderl_tasks.grading.table import grade_files
    from coderl_tasks.services import services

    files = (options.problems, options.completions, options.out)
    with services(None) as used:
        print("\n".join(used.lines), file=sys.stderr)
        grades = grade_files(*files, used.sandbox_urls, options.timeout, max_concurrency=used.sandbox_concurrency)
    counts = grades["verdict"].value_counts(sort=True).iter_rows()
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts) or "none"
    print(f"{grades.height} completions graded ({said}): {options.out}")
    return 0


def audit(options: Namespace) -> int:
    """Looks for faults in the tests of problems by running programs in the sandbox: writes a table and a page to
    `--out`, and prints a summary. A command that was stopped goes on where it was, from its records in the folder."""
    import asyncio

    from coderl_tasks.curation.find_pool import named_problems
    from coderl_tasks.curation.pool_audit import audit_problems
    from coderl_tasks.grading import Judge, SandboxClient
    from coderl_tasks.grading.table import progress_bar
    from coderl_tasks.insight.audit_view import audit_in_words, findings_table, worst_table
    from coderl_tasks.insight.report import write_audit
    from coderl_tasks.insight.tables import rich_table
    from coderl_tasks.journal.atomic import make_folder
    from coderl_tasks.journal.directory_lock import DirectoryLock
    from coderl_tasks.services import services

    found = named_problems(options.pool, options.limit)
    folder = (options.out or found.folder or Path(f"audit-{found.name}")).absolute()

    async def audited(urls: Sequence[str], max_concurrency: int) -> pl.DataFrame:
        async with SandboxClient(urls, max_concurrency) as client:
            judge = Judge(client, options.timeout)
            # checks: what a curation found of the pool's solutions, which is not checked again
            how = {"seed": options.seed, "most": options.mutants, "checks": found.checks}
            with progress_bar(Console(stderr=True), "auditing") as update:
                return await audit_problems(
                    found.problems,
                    judge,
                    **how,
                    folder=folder / "audit",
                    on_progress=lambda done, total: update(completed=done, total=total),
                )

    with DirectoryLock(make_folder(folder / "audit"), instead="choose another --out"):
        with services(None) as used:
            print("\n".join([*used.lines, *filter(None, [found.unusable])]), file=sys.stderr)
            audits = asyncio.run(audited(used.sandbox_urls, used.sandbox_concurrency))
        page = write_audit(folder, audits, options.pool)
    console = Console()
    if (counts := findings_table(audits)).rows:
        console.print(rich_table(counts, "findings"))
        console.print(rich_table(worst_table(audits), "the worst problems"))
    print(f"{audit_in_words(audits)}\n{page}")
    return 0
