"""Finds completions of a run: by text, code, verdict, error, problem and steps, the newest steps first.

What the index knows (verdict, problem, step) is asked of it alone. Texts lie in the files of the steps, which are read
a few at a time until there are enough hits or the time is up; then the answer says from which step to go on. So a
search of a million completions answers in seconds, whatever it looks for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import polars as pl

from coderl_tasks.errors import ConfigError
from coderl_tasks.grading.scoring import Verdict
from coderl_tasks.journal.atomic import scan_parquet
from coderl_tasks.journal.steps import index_files, rollout_files, scored_files
from coderl_tasks.policy.rollout import TRUNCATED
from coderl_tasks.view.library import NotThereError, WrongValueError, address
from coderl_tasks.view.run_data import Place, RunData

MOST_HITS, MOST_SECONDS, PROMPTS_SECONDS = 100, 2.5, 1.0
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
_SHOWN = (
    "step", "problem_id", "group_index", "sample_index", "verdict", "reward", "tests_passed", "tests_total",
)  # fmt: skip
_NEWER = (pl.exceptions.ColumnNotFoundError, pl.exceptions.StructFieldNotFoundError)
"""A column, or a part of one, is newer than the file."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is searched for; empty or None: anything. `text` stands in the column `within`; `verdict` may be one of
    OTHER_KINDS; `problem` is in a problem's id or statement; `evaluation` is searched in place of the steps. The next
    page comes `after` this completion of the step `last`, or of the evaluation."""

    text: str = ""
    within: str = "completion"
    verdict: str = ""
    problem: str = ""
    first: int | None = None
    last: int | None = None
    evaluation: str = ""
    after: tuple[int, int] | None = None

    def query(self) -> dict[str, Any]:
        """The values that the address of this search has."""
        asked = {"q": self.text, "within": self.within, "verdict": self.verdict, "problem": self.problem}
        after = "{}.{}".format(*self.after) if self.after else None
        return asked | {"first": self.first, "last": self.last, "eval": self.evaluation, "after": after}


@dataclass(frozen=True, slots=True)
class Hits:
    """`rows` have the completions' columns, an evaluation's `row` in its file, and `found`, the text around a hit.
    `searched`: the first and last of the steps whose hits are listed; `rest`: what is left to search; `is_cut`: there
    are more hits; `missing`: which statements could not be searched."""

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
    fits = _conditions(wanted, problems)
    searched: Sequence[int] = ()  # steps
    following: int | None = None
    if wanted.evaluation:
        rows = _rows(data.scan(Place(evaluation=wanted.evaluation)), wanted, fits)
    else:
        rows, searched, following = _in_steps(data, wanted, fits, started)
    is_cut, rows = len(rows) > MOST_HITS, rows[:MOST_HITS]
    looked = (searched[-1], searched[0]) if searched else None
    rest = None if following is None else replace(wanted, last=following, after=None)
    if is_cut and wanted.evaluation:
        rest = replace(wanted, after=(rows[-1]["row"], rows[-1]["sample_index"]))
    elif is_cut:  # steps were read beyond the last row listed
        last = rows[-1]
        looked = looked and (last["step"], looked[1])
        rest = replace(wanted, last=last["step"], after=(last["group_index"], last["sample_index"]))
    return Hits(rows, looked, rest, is_cut, monotonic() - started, missing)


def _conditions(wanted: Wanted, problems: list[str] | None) -> list[pl.Expr]:
    """What the rows fulfil that `wanted` describes, but for the text, which the index does not have. `problems` are the
    ids of those that it names."""
    fits = [pl.lit(value=True)]
    if wanted.verdict:
        fits.append(is_of(wanted.verdict))
    if problems is not None:
        fits.append(pl.col("problem_id").is_in(problems))
    if wanted.after is not None:
        place, sample = wanted.after
    if wanted.evaluation:
        return [*fits, pl.col("row") > place] if wanted.after is not None else fits
    if wanted.first is not None:
        fits.append(pl.col("step") >= wanted.first)
    if wanted.last is not None:
        fits.append(pl.col("step") <= wanted.last)
    if wanted.after is not None:
        # The newest step is listed first, and `wanted.last` is the step of the row listed last: `search` sets both.
        group, number = pl.col("group_index"), pl.col("sample_index")
        fits.append((pl.col("step") < wanted.last) | (group > place) | ((group == place) & (number > sample)))
    return fits


def _in_steps(
    data: RunData, wanted: Wanted, fits: Sequence[pl.Expr], started: float
) -> tuple[list[dict[str, Any]], list[int], int | None]:
    """The rows of training that fit, the steps that were searched, newest first, and the one to go on with."""
    files = {int(file.parent.name): file for file in scored_files(data.path)}
    first, last = (wanted.first or 0), (max(files, default=0) if wanted.last is None else wanted.last)
    steps = sorted((step for step in files if first <= step <= last), reverse=True)
    if not wanted.text:
        every = rollout_files(data.path)
        return _rows(_all_of(every), wanted, fits) if every else [], steps, None
    if (indexed := index_files(data.path)) and (wanted.verdict or wanted.problem):
        # Those with a completion which fits but for its text, as far as the index tells.
        fitting = {*_all_of(indexed).filter(*fits).select("step").collect()["step"]}
        covered = {step for held in indexed.values() for step in held}
        steps = [step for step in steps if step in fitting or step not in covered]

    def seconds_left() -> float:
        return MOST_SECONDS - (monotonic() - started)

    rows: list[dict[str, Any]] = []
    place, size = 0, 1  # of a chunk of steps: the next ones are as many more as the last ones were quick
    while place < len(steps) and len(rows) <= MOST_HITS and (place == 0 or seconds_left() > 0):
        chunk, begun = steps[place : place + size], monotonic()
        rows += _rows(_all_of(files[step] for step in chunk), wanted, fits)
        place += len(chunk)
        each = (monotonic() - begun) / len(chunk)
        size = max(1, min(16, int(max(0.0, seconds_left()) / 3 / max(each, 1e-4))))
    return rows, steps[:place], steps[place] if place < len(steps) else None


def _all_of(files: Iterable[Path]) -> pl.LazyFrame:
    """The rows of files of which some lack columns: those of the index have no texts, older ones not the newest."""
    return pl.concat([scan_parquet(file) for file in files], how="diagonal_relaxed")


def _rows(completions: pl.LazyFrame, wanted: Wanted, fits: Sequence[pl.Expr]) -> list[dict[str, Any]]:
    """The rows that fit and have the text, in the order in which a page lists them: at most MOST_HITS, and one more if
    there are more. `found` is the text with what stands around it, or the suspicion of suspicious completions."""
    if wanted.text:
        completions = completions.filter(pl.col(wanted.within).str.contains(wanted.text, literal=True))
    source = wanted.within if wanted.text else "suspicion" if wanted.verdict == "suspicious" else None
    found = (pl.lit(None) if source is None else pl.col(source)).alias("found")
    keys = ["row"] if wanted.evaluation else ["step", "group_index", "sample_index"]
    some = completions.filter(*fits).select(*dict.fromkeys([*_SHOWN, *keys]), found)
    try:
        rows = some.sort(keys, descending=[key == "step" for key in keys]).head(MOST_HITS + 1).collect().to_dicts()
    except (*_NEWER, pl.exceptions.SchemaError) as error:
        # Verdicts and answers were always recorded; what else is asked for may be newer than the run, as `retries` in
        # the column `sandbox` is. No other schema than the run's is expected.
        is_other_schema = isinstance(error, pl.exceptions.SchemaError) and wanted.verdict != "requests sent again"
        if not is_other_schema and (wanted.verdict in OTHER_KINDS or source not in (None, "completion")):
            return []
        raise
    for row in rows if wanted.text else ():
        start = max(row["found"].find(wanted.text) - BEFORE, 0)
        row["found"] = row["found"][start : start + BEFORE + len(wanted.text) + AFTER]
    return rows


def grouped(data: RunData, rows: Sequence[dict[str, Any]], evaluation: str) -> list[list[dict[str, Any]]]:
    """The rows of a search, those with one problem, program (else: answer), result and text found together; each gets
    its `failure`, as `RunData.programs` has it. A row whose step has no file any more is by itself."""
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
    return sorted(
        (_failure(rows, *kind) for kind in kinds.iter_rows()), key=lambda each: (-each.n, each.verdict, each.error)
    )


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
    """`counted` of one file."""
    counts = [is_of(kind).sum().alias(kind) for kind in kinds]
    try:
        return scan_parquet(file).select(counts).collect().row(0, named=True)
    except _NEWER:
        return dict.fromkeys(kinds) if len(kinds) == 1 else {kind: _counted(file, [kind])[kind] for kind in kinds}


def _problems(data: RunData, words: str) -> tuple[list[str], str]:
    """The ids of the run's problems with `words` in their id or statement (neither case nor spacing counts), and a
    sentence that says which statements could not be searched, or "". Statements are read from the pool, else from
    recorded prompts."""
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
