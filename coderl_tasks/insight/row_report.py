"""`coderl validate`: what curation's own stages make of each row of a data set, before anything is sampled. Assertions
and checkers are tried in the sandbox. Not covered: what needs a model, and reference solutions that fail."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.text import Text

from coderl_tasks.environments import ROWS
from coderl_tasks.errors import DataError
from coderl_tasks.filtering.rows import RowRules
from coderl_tasks.filtering.stages import FilterRequest, filter_dataset, min_tests_hint
from coderl_tasks.insight.tables import Output, write_frame
from coderl_tasks.problems.problem import Problem
from coderl_tasks.untrusted_text import printable

TEXT = pl.String()
ROWS_SCHEMA: dict[str, pl.DataType] = {
    "split": TEXT, "source_row": pl.Int64(), "kept": pl.Boolean(), "problem_id": TEXT, "kind": TEXT,
    "entry_point": TEXT, "tests": pl.Int32(), "stage": TEXT, "reason": TEXT, "detail": TEXT,
}  # fmt: skip
"""`tests` counts those of the row, before trimming; `source_row` counts from 0, blank lines of JSONL included."""
MOST_LINES = 200


def row_report(
    source: str,
    rules: RowRules,
    near_duplicate: float,
    limit: int = -1,
    environment: str = "code",
    *,
    faulty_tests: Callable[[Sequence[Problem]], dict[str, str]],
) -> pl.DataFrame:
    """What a curation would do with each row of the data `source`: ROWS_SCHEMA, sorted by split and number of the row.
    `near_duplicate` is the similarity from which a row is dropped; `faulty_tests` runs the tests that are programs, and
    returns what is wrong by problem id. Raises DataError if the source cannot be read or has no rows."""
    request = FilterRequest(source, limit=limit, rows=rules, near_duplicate=near_duplicate)
    request = replace(request, environment=environment, reader=ROWS[environment])
    with tempfile.TemporaryDirectory(prefix="coderl-validate-") as folder:
        filtered = filter_dataset(Path(folder), request)
        outlines = list(filtered.kept.outlines())  # the problems that passed the filters, without their tests
        # Assertions and checkers are programs: a curation drops problems of which they fail with every program.
        with_test_programs = [row.problem_id for row in outlines if row.kind == "assert" or row.checker]
        faults = faulty_tests(list(filtered.kept.only(with_test_programs))) if with_test_programs else {}
        passed_filters = []
        for row in outlines:
            values = {name: getattr(row, name, None) for name in ROWS_SCHEMA}
            values |= {"kept": row.problem_id not in faults, "tests": row.tests_original}
            if row.problem_id in faults:
                values |= {"stage": "solution", "reason": "tests_fail", "detail": faults[row.problem_id]}
            passed_filters.append(values)
    dropped = filtered.dropped.with_columns(kept=pl.lit(False))
    rows = pl.concat([pl.DataFrame(passed_filters, schema=ROWS_SCHEMA), dropped], how="diagonal")
    rows = rows.select(ROWS_SCHEMA.keys()).sort("split", "source_row")
    if rows.is_empty():
        raise DataError(f"{source} has no rows")
    return rows


def print_row_report(rows: pl.DataFrame, console: Console, output: Output = "table") -> None:
    """Prints `rows` (ROWS_SCHEMA), consecutive drops for one reason on one line, and counts by reason; or all as CSV or
    JSON. Of more than MOST_LINES rows it prints only dropped ones, on at most MOST_LINES lines."""
    if output != "table":
        write_frame(rows, console, output)
        return
    several_splits, dropped = rows["split"].n_unique() > 1, rows.filter(~pl.col("kept"))
    printed, what = rows if rows.height <= MOST_LINES else dropped, ["split", "kept", "stage", "reason", "detail"]
    # Consecutive rows that were dropped for one reason: the first, its `last` source row, and how many `rows`.
    same = pl.struct(pl.when("kept").then(pl.int_range(pl.len())), *what, pl.col("source_row") - pl.int_range(pl.len()))
    merged = printed.with_columns(run=same.rle_id()).group_by("run", maintain_order=True)
    lines = merged.agg(pl.all().first(), last=pl.col("source_row").last(), rows=pl.len()).head(MOST_LINES)
    for row in lines.iter_rows(named=True):
        first, last = row["source_row"], row["last"]
        place = f"row {first}" if first == last else f"rows {first} to {last}"
        place = f"{row['split']} {place}" if several_splits else place
        if row["kept"]:  # an answer is compared, not run: its kind and tests tell nothing
            call = f" of {row['entry_point']}" if row["entry_point"] else ""
            outcome = f"kept: {row['kind']}{call}, {row['tests']} tests" if row["kind"] != "answer" else "kept"
        else:
            detail = f": {row['detail']}" if row["detail"] else ""
            outcome = f"dropped, {row['stage']}/{row['reason']}{detail}"
        console.print(Text(printable(f"{place}  {outcome}")), soft_wrap=True)
    hidden = rows.height - lines["rows"].sum()
    if 0 < hidden < rows.height:  # if all are hidden, all were kept: the summary says so
        console.print(f"... and {hidden} more rows (--format csv prints all)", highlight=False)
    counts = dropped.group_by("stage", "reason").len().sort(["len", "reason"], descending=[True, False])
    reasons = ", ".join(f"{count} {stage}/{reason}" for stage, reason, count in counts.iter_rows())
    summary = f"{rows.height} rows, numbered from 0: {rows.height - dropped.height} kept, {dropped.height} dropped"
    for line in (summary + (f" ({reasons})" if reasons else ""), min_tests_hint(dropped)):
        if line is not None:  # None: no hint
            console.print(line, highlight=False, soft_wrap=True)
