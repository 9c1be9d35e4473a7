"""Row by row: parse, sanity, trim. Each row becomes a problem or a drop with stage and reason.

Parsing is a step by itself so that its caller can let go of the raw row, which may be 200 MB, before the checks.

The sanity checks, in order, on all tests of the row:

    row_too_large         more bytes than a row may have: it is not even parsed
    statement_too_long    more characters than a statement may have
    too_few_tests         fewer different tests than a reward needs to mean something (DeepCoder: 5)
    no_expected_output    every test expects nothing: an empty program would be right
    contradictory_tests   two tests with one input and answers that exclude each other: no program can be right
"""

from dataclasses import dataclass, replace

import polars as pl

from coderl_tasks.grading.verdict import matches, parse_value, values_match
from coderl_tasks.problems.loading import CODE_ROWS, RowReader, parse_row
from coderl_tasks.problems.problem import Drop, Problem, RowDropped, trim_tests
from coderl_tasks.problems.raw_files import MAX_ROW_BYTES, Oversized, RawRow

MIB = 2**20
LONG_STATEMENT_CHARS = 4000  # how much is recorded of a statement that was dropped for its length


@dataclass(frozen=True, slots=True)
class RowRules:
    """What a row needs to become a problem (`min_tests` distinct tests), and how many tests it keeps (-1: all)."""

    max_tests: int = 15
    min_tests: int = 5
    max_statement_chars: int = 50_000
    max_row_bytes: int = MAX_ROW_BYTES


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A row that became a problem: `problem` with the tests it keeps, `whole` with all it came with."""

    problem: Problem
    whole: Problem


def parse(row: RawRow, rows: RowReader = CODE_ROWS) -> Problem | Drop:
    """The problem in `row` with all its tests, or why there is none."""
    if isinstance(row.values, Oversized):
        return Drop("sanity", "row_too_large", f"{row.values.size / MIB:.0f} MiB", None, row.split, row.source_row)
    try:
        return parse_row(row, rows)
    except RowDropped as drop:
        return Drop("parse", drop.reason, drop.detail, None, row.split, row.source_row)


def filter_problem(whole: Problem, rules: RowRules | None) -> KeptRow | Drop:
    """`whole` with the tests it is to keep, or why it is dropped. Without `rules` nothing is; it keeps one test."""
    if rules is None:
        return KeptRow(trim_tests(whole, 1), whole)
    if (fault := sanity(whole, rules)) is not None:
        return Drop.of(replace(whole, statement=whole.statement[:LONG_STATEMENT_CHARS]), "sanity", *fault)
    return KeptRow(trim_tests(whole, rules.max_tests), whole)


def sanity(problem: Problem, rules: RowRules) -> tuple[str, str] | None:
    """Why `problem` cannot be used for grading, as (reason, detail); None if it can."""
    if len(problem.statement) > rules.max_statement_chars:
        return "statement_too_long", f"{len(problem.statement)} characters, at most {rules.max_statement_chars}"
    distinct = len({(test.input, test.expected) for test in problem.tests})
    if distinct < rules.min_tests:
        return "too_few_tests", f"{distinct} different test{'s' if distinct != 1 else ''}, at least {rules.min_tests}"
    if problem.kind == "stdin" and not any(test.expected.strip() for test in problem.tests):
        return "no_expected_output", f"all {len(problem.tests)} tests expect an empty output"
    # Keyed by hash, because stripped copies of all inputs can be as large as the row. Equal hashes are checked below.
    first_with_input: dict[int, int] = {}
    for number, test in enumerate(problem.tests):
        stripped = test.input.rstrip()
        first = first_with_input.setdefault(hash(stripped), number)
        earlier = problem.tests[first]
        if (
            earlier.expected != test.expected
            and earlier.input.rstrip() == stripped
            and not _agree(problem, earlier.expected, test.expected)
        ):
            return "contradictory_tests", f"tests {first} and {number} have one input and different answers"
    return None


def min_tests_hint(dropped: pl.DataFrame) -> str | None:
    """Which lower `min_tests` would keep how many of the rows that have too few; None if there are none."""
    few = dropped.filter(reason="too_few_tests")["detail"].str.extract(r"(\d+) different").cast(pl.Int64).drop_nulls()
    if few.is_empty():
        return None
    values = few.unique().sort(descending=True).to_list()
    shown = values if len(values) < 4 else [values[0], values[len(values) // 2], values[-1]]
    kept = ", ".join(f"{value} would keep {(few >= value).sum()}" for value in shown)
    return f"of {few.len()} rows with too few tests, min_tests={kept} (fewer tests: more wrong programs pass)"


def _agree(problem: Problem, one: str, other: str) -> bool:
    """Whether an answer can be right for both expectations."""
    if problem.kind == "stdin":
        return matches(one, other) or matches(other, one)
    try:
        left, right = parse_value(one), parse_value(other)
        return values_match(left, right) or values_match(right, left)
    except ValueError:
        return one == other
