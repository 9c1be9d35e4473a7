"""Grading a table of completions: a parquet in, a parquet of verdicts out, row by row in the same order.

What can be wrong with the files is found before anything is graded, and the output appears whole or not at all.
"""

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from coderl_tasks.errors import ConfigError, DataError, InfraError
from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.extract import extract_code
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.scoring import format_failure
from coderl_tasks.grading.verdict import Grade, Verdict
from coderl_tasks.problems.loading import SAME_ID_OTHER_TESTS, LoadResult, load_problems
from coderl_tasks.problems.problem import Problem

GRADES_SCHEMA: dict[str, pl.DataType] = {
    "problem_id": pl.String(),
    "row": pl.Int64(),
    "verdict": pl.String(),
    "tests_passed": pl.Int32(),
    "tests_run": pl.Int32(),
    "tests_total": pl.Int32(),
    "first_failed": pl.Int32(),
    "run_seconds": pl.Float64(),
}
_IN_WORK = 64  # programs graded side by side; how many run at once is the client's business

Progressed = Callable[[Grade], None]


def grade_files(
    problems_path: Path,
    completions_path: Path,
    out_path: Path,
    urls: Sequence[str],
    timeout_s: float = 6.0,
    *,
    max_concurrency: int = 34,
) -> pl.DataFrame:
    """Grade the completions of a parquet file, with a progress bar on stderr, and write a frame of `GRADES_SCHEMA`.

    Problems may be normalised or of DeepCoder's raw shape; rows that cannot be used are counted on stderr. Completions
    have `problem_id` and `code` or `completion` (`code` is taken where both are there; null means no code). At most
    `max_concurrency` programs run at a time. Raises DataError for files that cannot be read or do not fit, ConfigError
    for a timeout or a place that will not do, and InfraError, after writing, if a row could not be graded.
    """
    client = SandboxClient(urls, max_concurrency)
    judge = Judge(client, timeout_s)
    _require_writable(out_path, problems_path, completions_path)
    console = Console(stderr=True)
    loaded = load_problems(str(problems_path), role="test")
    unusable = _unusable(problems_path, loaded)
    ambiguous = loaded.dropped.filter(reason=SAME_ID_OTHER_TESTS)["problem_id"]
    if not ambiguous.is_empty():
        raise DataError(f"{problems_path}: the problem id {ambiguous[0]} stands for different tests")
    if not loaded.problems:
        raise DataError(unusable or f"{problems_path}: there are no problems in it")
    problems = {problem.problem_id: problem for problem in loaded.problems}
    try:
        ids, codes = _ids_and_codes(problems, _read_completions(completions_path))
    except DataError as error:
        raise DataError(f"{error}; {unusable}" if unusable else str(error)) from error
    if unusable:
        console.print(unusable, markup=False, highlight=False, soft_wrap=True)
    with _progress_bar(console, len(ids)) as progressed:
        grades = asyncio.run(_with(client, _grade_rows(problems, ids, codes, judge, progressed)))
    _write(out_path, grades)
    ungraded = grades.filter(pl.col("verdict") == Verdict.INFRA_ERROR.value).height
    if ungraded:
        raise InfraError(f"{ungraded} of {grades.height} rows of {out_path} are infra_error: the sandbox was failing")
    return grades


async def grade_table(
    problems: dict[str, Problem], completions: pl.DataFrame, judge: Judge, progressed: Progressed | None = None
) -> pl.DataFrame:
    """The grades of a frame of completions, as a frame of `GRADES_SCHEMA`, one row for each, in order.

    Identical code of one problem is graded once. `progressed` is called with each row's grade as it is known. Raises
    DataError for missing columns and for problem ids that `problems` lacks.
    """
    ids, codes = _ids_and_codes(problems, completions)
    return await _grade_rows(problems, ids, codes, judge, progressed)


async def _grade_rows(
    problems: dict[str, Problem],
    ids: Sequence[str],
    codes: Sequence[str | None],
    judge: Judge,
    progressed: Progressed | None,
) -> pl.DataFrame:
    rows_of: dict[tuple[str, str | None], list[int]] = {}
    for row, key in enumerate(zip(ids, codes, strict=True)):
        rows_of.setdefault(key, []).append(row)
    grades: dict[int, Grade] = {}
    jobs = iter(rows_of.items())

    async def work() -> None:
        for (problem_id, code), rows in jobs:
            problem = problems[problem_id]
            grade = format_failure(problem) if code is None else await judge.grade(problem, code)
            for row in rows:
                grades[row] = grade
                if progressed is not None:
                    progressed(grade)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_IN_WORK):
                group.create_task(work())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    columns = [(problem_id, row, *_columns(grades[row])) for row, problem_id in enumerate(ids)]
    return pl.DataFrame(columns, schema=GRADES_SCHEMA, orient="row")


async def _with(client: SandboxClient, grading: Awaitable[pl.DataFrame]) -> pl.DataFrame:
    async with client:
        return await grading


def _columns(grade: Grade) -> tuple[str, int, int, int, int | None, float]:
    return (
        grade.verdict.value,
        grade.tests_passed,
        grade.tests_run,
        grade.tests_total,
        grade.first_failed,
        grade.run_seconds,
    )


def _require_writable(out_path: Path, *inputs: Path) -> None:
    if out_path.is_dir() or not out_path.parent.is_dir():
        raise ConfigError(f"{out_path} is not a file in an existing folder: give --out such a path")
    if out_path.exists() and any(path.exists() and out_path.samefile(path) for path in inputs):
        raise ConfigError(f"{out_path} is one of the files to read: give --out another path")
    try:
        tempfile.TemporaryFile(dir=out_path.parent).close()
    except OSError as error:
        raise ConfigError(f"{out_path} cannot be written ({error.strerror}): give --out another path") from error


def _write(out_path: Path, grades: pl.DataFrame) -> None:
    partial = out_path.with_name(out_path.name + ".partial")
    try:
        grades.write_parquet(partial)
        partial.replace(out_path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _unusable(path: Path, loaded: LoadResult) -> str:
    """What is said of the rows that gave no problem; empty if all did."""
    if loaded.dropped.is_empty():
        return ""
    reasons = ", ".join(f"{reason} {count}" for reason, count in loaded.dropped_by_reason().items())
    return f"{path}: {loaded.dropped.height} of {loaded.read} rows give no problem to grade with ({reasons})"


def _read_completions(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: cannot be read as parquet ({reason})") from error


def _ids_and_codes(problems: dict[str, Problem], completions: pl.DataFrame) -> tuple[list[str], list[str | None]]:
    text_column = next((name for name in ("code", "completion") if name in completions.columns), None)
    if "problem_id" not in completions.columns or text_column is None:
        found = ", ".join(completions.columns) or "none"
        raise DataError(f"completions need the columns problem_id and code (or completion); there are: {found}")
    if not isinstance(completions.schema[text_column], pl.String | pl.Null):
        raise DataError(f"the column {text_column} of the completions is not text")
    if completions.schema["problem_id"].is_nested():
        raise DataError("the column problem_id of the completions is neither text nor a number")
    nameless = completions["problem_id"].is_null()
    if nameless.any():
        raise DataError(f"{nameless.sum()} completions have no problem_id, the first is row {nameless.arg_max()}")
    ids: list[str] = completions["problem_id"].cast(pl.String).to_list()
    missing = sorted(set(ids) - problems.keys())
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        known = next(iter(problems), "none")
        raise DataError(
            f"{len(missing)} problem ids of the completions are not among the problems' ({known}, ...): {shown}"
        )
    texts: list[str | None] = completions[text_column].to_list()
    if text_column == "completion":
        return ids, [None if text is None else extract_code(text) for text in texts]
    return ids, texts


@contextlib.contextmanager
def _progress_bar(console: Console, total: int) -> Iterator[Progressed]:
    counts: Counter[str] = Counter()
    bar = Progress(
        TextColumn("grading"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[counts]}"),
        console=console,
    )
    with bar:
        task = bar.add_task("grading", total=total, counts="")

        def progressed(grade: Grade) -> None:
            counts[grade.verdict.value] += 1
            shown = "  ".join(f"{verdict} {count}" for verdict, count in counts.most_common())
            bar.update(task, advance=1, counts=shown)

        yield progressed
