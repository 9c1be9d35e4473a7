"""What people see of an audit: counts per finding, the worst problems, and a page with each problem's evidence."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.insight.drawing import BarRow, Plot, rows_of_bars
from coderl_tasks.insight.record import is_curation
from coderl_tasks.insight.tables import Column, Table, Tag, shorten
from coderl_tasks.insight.viewer_link import query_command
from coderl_tasks.problems.profile_columns import FINDINGS, UNDECIDED, WRONG_REWARDS

ON_PAGE, IN_TERMINAL = 300, 5
STATEMENT_CHARS = 4000
MEANINGS = {
    "contradictory_tests": "tests with one input expect different answers",
    "samples_failed": "the reference does not reproduce a sample of the statement",
    "several_answers": "several answers seem to be right",
    "weak": "many programs with a small mistake pass all tests",
    "own_solution_fails": "no reference passes the tests",
    "tests_fail": "tests or checker fail with every program",
    "flaky_solution": "the reference answers differently from run to run",
    "too_slow": "the reference does not end, even with more time",
    "slow": "the reference passes, but not within the time limit",
    "samples_missing": "a sample of the statement is not among the tests",
    "duplicate_tests": "tests repeat an earlier one",
    UNDECIDED: "the sandbox could not run what it takes",
}
Row = Mapping[str, Any]
COLUMNS: dict[str, tuple[str, Callable[[Row], Any]]] = {
    "findings": ("findings", lambda row: (min(map([*MEANINGS].index, row["audit"])), -len(row["audit"]), -_share(row))),
    "problem_id": ("problem", lambda row: row["problem_id"]),
    "mutants_survive": ("mutants that pass", lambda row: -_share(row)),
    "contradictory_tests": ("contradictory tests", lambda row: -(row["contradictory_tests"] or 0)),
    "samples_failed": ("samples failed", lambda row: -(row["samples_failed"] or 0)),
    "samples_missing": ("samples missing", lambda row: -(row["samples_missing"] or 0)),
    "duplicate_tests": ("duplicate tests", lambda row: -(row["duplicate_tests"] or 0)),
}
"""The columns of the page's list: heading, and the order that a click on it gives."""


def _share(row: Row) -> float:
    return (row["mutants_survive"] or 0) / (row["mutants"] or 1)


def worst_first(audits: pl.DataFrame) -> list[dict[str, Any]]:
    """The problems that have findings, the worst first; problems without one are left out."""
    found = [row for row in audits.iter_rows(named=True) if row["audit"]]
    return sorted(found, key=lambda row: (COLUMNS["findings"][1](row), row["problem_id"]))


def findings_table(audits: pl.DataFrame) -> Table[tuple[str, int]]:
    columns: tuple[Column[tuple[str, int]], ...] = (
        Column("finding", lambda row: Tag(row[0], tone(row[0]))),
        Column("problems", lambda row: row[1], ",", "num"),
        Column("share", lambda row: row[1] / max(1, len(audits)), ".1%", "num"),
        Column("meaning", lambda row: MEANINGS[row[0]], "", "muted"),
    )
    return Table(columns, list(_counts(audits).items()))


def worst_table(audits: pl.DataFrame) -> Table[dict[str, Any]]:
    columns: tuple[Column[dict[str, Any]], ...] = (
        Column("problem", lambda row: row["problem_id"], "", "name"),
        Column("findings", lambda row: ", ".join(row["audit"])),
        Column("evidence", lambda row: shorten(row["evidence"][0], 160)),
    )
    return Table(columns, worst_first(audits)[:IN_TERMINAL])


def tone(finding: str) -> str:
    return "bad" if finding in WRONG_REWARDS else "warn"


def _counts(audits: pl.DataFrame) -> dict[str, int]:
    counts = dict(audits["audit"].explode().drop_nulls().value_counts().iter_rows())
    return {name: counts[name] for name in FINDINGS if name in counts}


def audit_in_words(audits: pl.DataFrame) -> str:
    wrong = audits["audit"].list.eval(pl.element().is_in(WRONG_REWARDS)).list.any().sum()
    tried, survive = int(audits["mutants"].sum()), int(audits["mutants_survive"].sum())
    share = f"; {survive:,} of {tried:,} mutants pass all tests ({survive / tried:.0%})" if tried else ""
    return f"{len(audits):,} problems audited, {wrong:,} with a finding that can make rewards wrong{share}"


def findings_plot(audits: pl.DataFrame) -> Plot:
    counts = _counts(audits)
    rows = [BarRow(name, [(size, "s4" if tone(name) == "bad" else "s1")], f"{size:,}") for name, size in counts.items()]
    alt = f"Problems per finding: {', '.join(f'{name} {size}' for name, size in counts.items()) or 'none'}."
    return rows_of_bars("Problems per finding", rows, alt)


def audit_page(folder: Path, audits: pl.DataFrame, name: str) -> dict[str, Any]:
    """The variables of the template audit.html.j2. `name` is the audited pool or data, as the command took it."""
    with_findings = worst_first(audits)
    shown = with_findings[:ON_PAGE]
    headings = {column: heading for column, (heading, _) in COLUMNS.items()}
    # The ranks of each row by every column: the page has no script, its style sheet sorts the rows by these. Sorting is
    # stable: rows that are equal in a column keep the order of `shown`, the worst first.
    ranks: list[dict[str, int]] = [{} for _ in shown]
    for column, (_, sort_key) in COLUMNS.items():
        for rank, index in enumerate(sorted(range(len(shown)), key=[*map(sort_key, shown)].__getitem__)):
            ranks[index][column] = rank
    command = query_command(folder, "SELECT problem_id, audit, evidence FROM audit WHERE len(audit) > 0")
    if not is_curation(folder):  # it cannot be queried
        command = f"coderl audit {shlex.quote(name)} --out {shlex.quote(str(folder))}"
    return {
        "title": name,
        "folder": folder,
        "audits": audits,
        "summary": audit_in_words(audits),
        "plot": findings_plot(audits) if with_findings else None,
        "findings": findings_table(audits),
        "headings": headings,
        "count_headings": {column: headings[column] for column in headings if column not in ("findings", "problem_id")},
        "rows": list(zip(shown, ranks, strict=True)),
        "n_not_shown": len(with_findings) - len(shown),
        "n_without_findings": len(audits) - len(with_findings),
        "tone_of_finding": {finding: tone(finding) for finding in MEANINGS},  # "bad" or "warn", for its colour
        "statement_chars": STATEMENT_CHARS,
        "commands": [command],
    }
