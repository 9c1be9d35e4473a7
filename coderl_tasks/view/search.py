"""Finds completions of a run: by text, code, verdict, error, problem and steps, the newest steps first.

What the index knows (verdict, problem, step) is asked of it alone. Texts lie in the files of the steps, which DuckDB
reads a few at a time until there are enough hits or the time is up; then the answer says from which step to go on. So a
search of a million completions answers in seconds, whatever it looks for.
"""

import glob
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import duckdb
import polars as pl

from coderl_tasks.errors import ConfigError
from coderl_tasks.grading.scoring import Verdict
from coderl_tasks.journal.atomic import scan_parquet
from coderl_tasks.journal.steps import index_files, scored_files
from coderl_tasks.policy.rollout import TRUNCATED
from coderl_tasks.view.library import NotThereError, WrongValueError, address
from coderl_tasks.view.run_data import Place, RunData

MOST_HITS, MOST_SECONDS, PROMPTS_SECONDS = 100, 2.5, 1.0
MEMORY = "512MB"  # of DuckDB, which spills nothing here: a page has only so many rows
BEFORE, AFTER = 60, 140  # characters of a text around what was found
TEXTS = {"completion": "answer", "code": "code", "reason": "error", "failed_output": "output"}
"""The columns that can be searched for a text, and what people call them."""
OTHER_KINDS = {
    "truncated": f"stop_reason = '{TRUNCATED}'",
    "suspicious": "suspicion IS NOT NULL",
    "fails held-back tests": f"verdict = '{Verdict.PASSED}' AND NOT passes_held_back",
    "requests sent again": "sandbox.retries > 0",
    "left out of its group": "reward IS NULL",
}
"""What else the form offers beside the verdicts: kinds of completions, each with its condition in SQL."""
_ERROR = (
    pl.when(pl.col("verdict") == Verdict.RUNTIME_ERROR)
    .then(pl.col("reason").str.extract(r"^test \d+: ([A-Za-z_][\w.]{0,59}|ended by \w+|exit status \d+)(?::| \(|$)"))
    .fill_null("")
)
"""What ended a program, as its reason has it ("test 3: IndexError: ...", "test 3: ended by SIGSEGV"); else empty."""
_OPTIONS = "union_by_name = true, hive_partitioning = false"
"""How DuckDB reads files. It would take a folder called `step=7` for a partition, whose column replaces that of the
files."""
_SHOWN = "step, problem_id, group_index, sample_index, verdict, reward, tests_passed, tests_total"


class LastListed(NamedTuple):
    """The last completion of a page of hits: its group in its step and its number there. In an evaluation, its row in
    the file takes the place of the group."""

    group_or_row: int
    sample: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is searched for; empty or None: anything. `text` stands in the column `within` as it is written; `verdict`
    may be one of OTHER_KINDS; `problem` is in a problem's id or statement; `evaluation` names the evaluation that is
    searched in place of the steps. The next page of a search is what comes `after` this completion of the step `last`,
    or of the evaluation."""

    text: str = ""
    within: str = "completion"
    verdict: str = ""
    problem: str = ""
    first: int | None = None
    last: int | None = None
    evaluation: str = ""
    after: LastListed | None = None

    def query(self) -> dict[str, Any]:
        """The values that the address of this search has."""
        asked = {"q": self.text, "within": self.within, "verdict": self.verdict, "problem": self.problem}
        after = f"{self.after.group_or_row}.{self.after.sample}" if self.after else None
        return asked | {"first": self.first, "last": self.last, "eval": self.evaluation, "after": after}


@dataclass(frozen=True, slots=True)
class Hits:
    """`rows` have the completions' columns, `row` in their file and `found`, the text around what was looked for.
    `searched` are the first and last of the steps whose hits are listed; `rest` is what is left to search, if anything;
    `is_cut`: there are more hits than are listed; `missing`: which statements could not be searched, if so."""

    rows: list[dict[str, Any]]
    searched: tuple[int, int] | None
    rest: Wanted | None
    is_cut: bool
    seconds: float
    missing: str = ""


def search(data: RunData, wanted: Wanted) -> Hits:
    """The completions of a run that `wanted` describes. WrongValueError if it names an unknown column or verdict."""
    started = monotonic()
    for value, known in ((wanted.within, [*TEXTS]), (wanted.verdict, ["", *map(str, Verdict), *OTHER_KINDS])):
        if value not in known:
            raise WrongValueError(f"{value!r} cannot be searched for; known are: {', '.join(filter(None, known))}")
    problems, missing = _problems(data, wanted.problem) if wanted.problem else (None, "")
    with duckdb.connect(config={"memory_limit": MEMORY}) as connection:
        hits = _Search(connection, wanted, problems, started).hits(data)
    return replace(hits, missing=missing)


@dataclass(frozen=True, slots=True)
class _Search:
    """A search of a run that `started` at a time; `problems` are the ids of those that `wanted.problem` names."""

    connection: duckdb.DuckDBPyConnection
    wanted: Wanted
    problems: list[str] | None
    started: float

    def hits(self, data: RunData) -> Hits:
        wanted = self.wanted
        if wanted.evaluation:
            return self._first(self._rows([data.file_of(Place(evaluation=wanted.evaluation))]), [])
        files = {int(file.parent.name): file for file in scored_files(data.path)}
        first, last = (wanted.first or 0), (max(files, default=0) if wanted.last is None else wanted.last)
        steps = sorted((step for step in files if first <= step <= last), reverse=True)
        indexed = index_files(data.path)
        if not wanted.text:
            rows = self._rows([*indexed]) + self._rows(scored_files(data.path, indexed.values()))
            rows.sort(key=lambda row: (-row["step"], row["group_index"], row["sample_index"]))
            return self._first(rows, steps)
        if indexed and (wanted.verdict or self.problems is not None):
            steps = self._with_others(steps, indexed)
        return self._by_text([(step, files[step]) for step in steps])

    def _with_others(self, steps: Sequence[int], indexed: Mapping[Path, Collection[int]]) -> list[int]:
        """Those of `steps` that have a completion which fits but for its text, as far as the index tells."""
        where, values = self._conditions(with_text=False)
        sql = f"SELECT DISTINCT step FROM read_parquet(?, {_OPTIONS}) WHERE {where}"
        fitting = {row[0] for row in self.connection.execute(sql, [_names(indexed), *values]).fetchall()}
        covered = {step for files in indexed.values() for step in files}
        return [step for step in steps if step in fitting or step not in covered]

    def _by_text(self, files: Sequence[tuple[int, Path]]) -> Hits:
        """Reads the steps' texts, a few files at a time, as many more as the last ones were quick."""
        rows: list[dict[str, Any]] = []
        place, size = 0, 1
        while place < len(files) and len(rows) <= MOST_HITS and (place == 0 or self._seconds_left() > 0):
            chunk, begun = files[place : place + size], monotonic()
            rows += self._rows([file for _, file in chunk])
            place += len(chunk)
            each = (monotonic() - begun) / len(chunk)
            size = max(1, min(16, int(max(0.0, self._seconds_left()) / 3 / max(each, 1e-4))))
        steps = [step for step, _ in files]
        return self._first(rows, steps[:place], steps[place] if place < len(steps) else None)

    def _seconds_left(self) -> float:
        return MOST_SECONDS - (monotonic() - self.started)

    def _first(self, rows: list[dict[str, Any]], searched: Sequence[int], following: int | None = None) -> Hits:
        """The first of `rows`, which are the hits in the steps `searched`; `following` is the step to go on with."""
        is_cut, rows, wanted = len(rows) > MOST_HITS, rows[:MOST_HITS], self.wanted
        looked = (searched[-1], searched[0]) if searched else None
        rest = None if following is None else replace(wanted, last=following, after=None)
        if is_cut:  # steps were read beyond the last row listed
            last = rows[-1]
            rest = replace(wanted, after=LastListed(last["row"], last["sample_index"]))
            if looked is not None:
                looked = last["step"], looked[1]
                listed = LastListed(last["group_index"], last["sample_index"])
                rest = replace(wanted, last=last["step"], after=listed)
        return Hits(rows, looked, rest, is_cut, monotonic() - self.started)

    def _conditions(self, *, with_text: bool) -> tuple[str, list[Any]]:
        """The SQL condition of the rows that `wanted` describes (what was asked for, and where to go on), and the
        values of the condition's `?`. Without `with_text` the text does not count: the index has no texts."""
        wanted = self.wanted
        conditions: list[tuple[str, list[Any]]] = []  # each with its values
        if wanted.verdict in OTHER_KINDS:
            conditions.append((OTHER_KINDS[wanted.verdict], []))  # it is SQL already
        elif wanted.verdict:
            conditions.append(("verdict = ?", [wanted.verdict]))
        if self.problems is not None:
            conditions.append(("problem_id IN (SELECT unnest(?::VARCHAR[]))", [self.problems]))
        if not wanted.evaluation:
            bounds = (("step >= ?", wanted.first), ("step <= ?", wanted.last))
            conditions += [(condition, [bound]) for condition, bound in bounds if bound is not None]
        if wanted.after is not None and wanted.evaluation:
            conditions.append(("file_row_number > ?", [wanted.after.group_or_row]))
        elif wanted.after is not None:
            # The newest step is listed first. `wanted.last` is the step of the row listed last: `_first` sets both.
            following = "(step < ? OR (group_index, sample_index) > (?, ?))"
            conditions.append((following, [wanted.last, *wanted.after]))
        if with_text and wanted.text:
            conditions.append((f"contains({wanted.within}, ?)", [wanted.text]))  # `search` has checked the column
        where = " AND ".join(["true", *(condition for condition, _ in conditions)])
        return where, [value for _, values in conditions for value in values]

    def _rows(self, files: Sequence[Path]) -> list[dict[str, Any]]:
        """The rows of the parquet `files` that `wanted` (text, verdict, problem and steps asked for) describes, in the
        order in which a page lists them: at most MOST_HITS, and one more if there are more. The SQL column `found` is
        the text asked for with what stands around it, or the suspicion of suspicious completions."""
        if not files:
            return []
        wanted, (where, values) = self.wanted, self._conditions(with_text=True)
        found = "suspicion AS found" if wanted.verdict == "suspicious" else "NULL AS found"
        column = wanted.within if wanted.text else None  # one of TEXTS: `search` has checked it
        if column is not None:
            start = f"greatest(strpos({column}, ?) - {BEFORE}, 1)"
            found = f"substr({column}, {start}, {BEFORE + AFTER} + length(?)) AS found"
        order = "row" if wanted.evaluation else "step DESC, group_index, sample_index"
        sql = (
            f"SELECT {_SHOWN}, file_row_number AS row, {found} "
            f"FROM read_parquet(?, {_OPTIONS}, file_row_number = true) "
            f"WHERE {where} ORDER BY {order} LIMIT {MOST_HITS + 1}"
        )
        try:
            for_found = [wanted.text, wanted.text] if column else []  # the values of its two `?`
            answer = self.connection.execute(sql, [*for_found, _names(files), *values])
        except duckdb.BinderException:  # a column is missing
            # Verdicts and answers were always recorded; what else is asked for may be newer than the run.
            if wanted.verdict in OTHER_KINDS or column not in (None, "completion"):
                return []
            raise
        columns = [each[0] for each in answer.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in answer.fetchall()]


def _names(files: Iterable[Path]) -> list[str]:
    """Files as DuckDB takes them, to whom a directory's own * and [ are a pattern."""
    return [glob.escape(str(file)) for file in files]


def grouped(data: RunData, rows: Sequence[dict[str, Any]], evaluation: str) -> list[list[dict[str, Any]]]:
    """The rows of a search: those with one problem, program (without one: answer), verdict, reward, `failure` (why
    it failed, as `RunData.programs` has it, which is added to each row) and text found together, in the order of the
    first of each. A row whose step has no file any more is by itself."""
    for step in {row["step"] for row in rows}:
        own = [row for row in rows if row["step"] == step]
        try:
            found: Sequence[Any] = data.programs(Place(evaluation=evaluation) if evaluation else Place(step), own)
        except NotThereError:
            found = [((step, number), None) for number in range(len(own))]  # a program of its own each
        for row, (program, failure) in zip(own, found, strict=True):
            row |= {"program": program, "failure": failure}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        same = ("problem_id", "verdict", "reward", "found", "failure", "program")
        groups.setdefault(tuple(row[name] for name in same), []).append(row)
    return [*groups.values()]


class Failure(NamedTuple):
    """A kind of failure: `n` completions have the verdict, and `error`, if it is not empty, in their `reason`."""

    verdict: str
    error: str
    n: int

    def link(self, name: str, place: Place) -> str:
        """The search that lists these completions, of a place of the run `name`."""
        words = {"q": self.error, "within": "reason"} if self.error else {}
        where = {"first": place.step, "last": place.step, "eval": place.evaluation}
        return address("run", name, "search", verdict=self.verdict, **words, **where)


def failures(rows: pl.DataFrame) -> list[Failure]:
    """The kinds of failures in `rows` (verdict, reason), most frequent first: a verdict, and what ended a program."""
    kinds = rows.filter(pl.col("verdict") != Verdict.PASSED).select("verdict", error=_ERROR).unique()
    found = [_failure(rows, *kind) for kind in kinds.iter_rows()]
    return sorted(found, key=lambda each: (-each.n, each.verdict, each.error))


def same_failure(rows: pl.DataFrame, row: int) -> Failure | None:
    """The kind of the failure of the completion in `row`; None if it passed or was not graded."""
    verdict, error = rows.select("verdict", error=_ERROR).row(row)
    return None if verdict in (None, Verdict.PASSED) else _failure(rows, verdict, error)


def _failure(rows: pl.DataFrame, verdict: str, error: str) -> Failure:
    fits = pl.col("reason").str.contains(error, literal=True) if error else pl.lit(value=True)
    return Failure(verdict, error, len(rows.filter(pl.col("verdict") == verdict, fits)))


def is_of(kind: str) -> pl.Expr:
    """Whether a completion is of `kind`, a verdict or one of OTHER_KINDS."""
    return pl.sql_expr(OTHER_KINDS[kind]) if kind in OTHER_KINDS else pl.col("verdict") == kind


def counted(data: RunData, kinds: Sequence[str]) -> dict[str, int | None]:
    """How many completions of training are of each of `kinds` (verdicts, OTHER_KINDS); None without the column."""
    files = data.of_files(f"counted {kinds}", partial(_counted, kinds=kinds))
    known = {kind: [n for counts in files if (n := counts[kind]) is not None] for kind in kinds}
    return {kind: sum(counts) if counts or not files else None for kind, counts in known.items()}


def _counted(file: Path, kinds: Sequence[str]) -> dict[str, int | None]:
    """`counted` of one file. A page asks for it after each commit: to open a DuckDB would take five times as long."""
    counts = [is_of(kind).sum().alias(kind) for kind in kinds]
    try:
        return scan_parquet(file).select(counts).collect().row(0, named=True)
    except (pl.exceptions.ColumnNotFoundError, pl.exceptions.StructFieldNotFoundError):  # newer than the file
        return dict.fromkeys(kinds) if len(kinds) == 1 else {kind: _counted(file, [kind])[kind] for kind in kinds}


def _problems(data: RunData, words: str) -> tuple[list[str], str]:
    """The ids of the run's problems with `words` in their id or statement, and a sentence that says which statements
    could not be searched, or "". In statements neither case nor spacing counts. Statements are read from the pool and,
    for the other problems, from recorded prompts."""
    ids = {name for name in data.problem_ids() if words in name}
    words, no_pool = _plain(words), ""
    try:
        plain = pl.col("statement").str.to_lowercase().str.replace_all(r"\s+", " ")
        in_pool = scan_parquet(data.pool_file()).filter(plain.str.contains(words, literal=True))
        ids |= {*in_pool.select("problem_id").collect()["problem_id"]}
    except ConfigError as error:  # the pool is not on this machine
        no_pool = str(error)
    prompted, unread = data.prompted_statements(PROMPTS_SECONDS)
    ids |= {name for name, statement in prompted.items() if words in _plain(statement)}
    if not unread:
        return sorted(ids), ""
    if data.decode() is not None:  # then a missing pool does not matter: prompts have its statements too
        return sorted(ids), f"The statements of {unread:,} problems have not been read yet: search again for these"
    no_prompts = "prompts cannot be read: the model's tokenizer is not on this machine"
    reasons = ", and ".join(filter(None, (no_pool, no_prompts)))
    return sorted(ids), f"Only the ids of {unread:,} problems were searched: {reasons}"


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
