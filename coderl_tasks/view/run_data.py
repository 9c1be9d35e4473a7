"""What pages show of a run, read from its files and kept as long as these stay as they are.

What is asked of a whole run comes from its index, which has neither tokens nor texts, and is kept by file of the index:
the next step of a run at work costs reading its rows alone. A step, a group or a completion comes from the step's file.
"""

import mmap
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from os.path import commonprefix
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar, cast
from weakref import proxy

import polars as pl

from coderl_tasks.errors import CoderlError, ConfigError, DataError
from coderl_tasks.insight.diagnosis import Comparison, compare_evals
from coderl_tasks.insight.problem_view import (
    Decode,
    pool_file,
    problems_at_hand,
    prompt_decoder,
    prompts_in,
    statement_in,
)
from coderl_tasks.insight.record import EvalRecord, RunRecord, groups_in, joined_groups, load_run, run_state
from coderl_tasks.insight.viewer_link import view_command
from coderl_tasks.insight.warning_signs import Watch, watched
from coderl_tasks.journal.atomic import read_json, scan_parquet
from coderl_tasks.journal.directory_lock import held_by
from coderl_tasks.journal.recorded_json import Config, read_shaped
from coderl_tasks.journal.steps import StepJournal, rollout_files
from coderl_tasks.policy.rollout import ORDER, ROLLOUT_SCHEMA
from coderl_tasks.problems.problem import Problem
from coderl_tasks.stats import student_t
from coderl_tasks.view.library import NotThereError, last_entry, state_of

Value = TypeVar("Value")
Version = tuple[Path, int]  # a file, and when it was written
HEAVY = ("prompt_tokens", "completion_tokens", "logprobs", "base_logprobs", "turns", "completion", "test_seconds")
"""Columns of rollouts that only the page of a completion shows."""
LIGHT = [name for name in ROLLOUT_SCHEMA if name not in (*HEAVY, "code", "failed_output", "reward_error")]
_N_TOKENS = pl.col("completion_tokens").list.len().alias("n_completion_tokens")
MOST_PROBLEMS, MOST_EVALUATIONS = 256, 64
"""Kept in memory: problems with their tests, and evaluations with their titles."""
FAILURE_CHARS, TITLE_CHARS = 200, 120
_OUTPUT = pl.col("failed_output")
_BEGINNING = _OUTPUT.str.slice(0, FAILURE_CHARS).str.strip_chars().str.replace_all("\n", r"\n", literal=True)
_GOT = (
    pl.when(_OUTPUT == "").then(pl.lit("no output"))
    .when(_OUTPUT.str.strip_chars() == "").then(pl.lit("white space alone"))
    .otherwise(pl.format("got {}", _BEGINNING))
)  # fmt: skip
_REASON = pl.coalesce("reward_error", "reason", pl.format("test {}: {}", "first_failed", _GOT))
_FAILURE = _REASON.str.slice(0, FAILURE_CHARS)
"""Why a completion failed: what its row says, else what it printed or returned in the first test that it failed."""
_RESUMED = re.compile(rb"\(resuming at step (\d+)\)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where rollouts lie: a step of training, or an evaluation by its name."""

    step: int | None = None
    evaluation: str | None = None

    @property
    def parts(self) -> tuple[str, str]:
        """As addresses have it."""
        return ("step", str(self.step)) if self.evaluation is None else ("eval", self.evaluation)

    @property
    def name(self) -> str:
        return f"step {self.step}" if self.evaluation is None else f"evaluation {self.evaluation}"


class RunData:
    """A run directory, read for pages. Threads may share it."""

    def __init__(self, path: Path, pools: Callable[[], Iterable[Path]] = tuple) -> None:
        """`pools` returns the folders of the pools that are shown beside the run."""
        self.path = path
        self._pools = pools
        self._kept: dict[str, tuple[str, Any]] = {}  # by name: the state it is of, and the value
        self._of_files: dict[str, dict[tuple[Path, int, int], Any]] = {}  # by name and version of a file
        # By a proxy: in a cycle, what is kept of a run that is let go of would stay until a collection.
        self._problem = lru_cache(MOST_PROBLEMS)(partial(RunData._read_problem, proxy(self)))
        self._titles = lru_cache(MOST_EVALUATIONS)(partial(RunData._read_titles, proxy(self)))
        self._statements: dict[str, str] = {}  # by problem, read from prompts
        self._read_files: set[tuple[Version, int]] = set()
        """Rollouts of evaluations whose prompts are among these statements, each with a hash of the pool's ids then."""

    def of_state(self, name: str, value: Callable[[], Value]) -> Value:
        """`value()`, computed once for each state of the run."""
        state, known = state_of(self.path), self._kept.get(name)
        if known is None or known[0] != state:
            known = self._kept[name] = (state, value())
        return cast(Value, known[1])

    def of_files(self, name: str, value: Callable[[Path], Value]) -> list[Value]:
        """`value(file)` of each file with rollouts of training (`rollout_files`), computed once for each version."""
        known, found = self._of_files.get(name, {}), dict[tuple[Path, int, int], Any]()
        for file in rollout_files(self.path):
            about = file.stat()
            version = file, about.st_mtime_ns, about.st_size
            found[version] = known[version] if version in known else value(file)
        self._of_files[name] = found
        return [*found.values()]

    @property
    def record(self) -> RunRecord:
        return self.of_state("record", lambda: load_run(self.path))

    @property
    def state(self) -> str:
        return self.of_state("run_state", lambda: run_state(self.path, self.record.config))

    @property
    def watch(self) -> Watch:
        return self.of_state("watch", lambda: watched(self.record))

    @property
    def groups(self) -> pl.DataFrame:
        """All groups of training in order, as `groups_in` has them, with `why_skipped`."""
        return self.of_state("groups", lambda: joined_groups(self.of_files("groups", groups_in)))

    def rates(self) -> pl.DataFrame:
        return self.of_state("rates", lambda: with_intervals(self.groups))

    def resumes(self) -> list[int]:
        """The steps at which the run was resumed, by its log."""
        file = self.path / "logs.log"
        if not file.is_file() or not file.stat().st_size:
            return []
        with file.open("rb") as log, mmap.mmap(log.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return sorted({int(match[1]) for match in _RESUMED.finditer(text)})

    def at_work(self) -> tuple[int, str] | None:
        """The step that is begun and not committed, and how far it is; None if there is none, or nobody works at it."""
        if held_by(self.path) is None:
            return None
        folder = last_entry(self.path / "steps")
        if folder is None or not folder.name.isdecimal() or (folder / "commit.json").is_file():
            return None
        for name, how_far in (("scored", "scored, being trained on"), ("sampled", "sampled, being scored")):
            if (folder / f"{name}.parquet").is_file():
                return int(folder.name), how_far
        return int(folder.name), f"being sampled, {len(list(folder.glob('groups/*.parquet'))):,} groups so far"

    def metrics_of(self, step: int) -> dict[str, Any] | None:
        """The step's row of metrics.jsonl; None if it is not committed."""
        rows = self.record.metrics.filter(pl.col("step") == step)
        return rows.row(0, named=True) if len(rows) else None

    def evaluation(self, name: str) -> EvalRecord:
        """An evaluation of the run; NotThereError if it has none of this name."""
        if name not in self.record.evals:
            raise NotThereError(f"the run has no evaluation {name}")
        return self.record.evals[name]

    def comparison(self, before: EvalRecord | None, after: EvalRecord | None) -> Comparison | None:
        ends = [each and each.name for each in (before, after)]  # a list: names may have any characters
        return self.of_state(f"comparison {ends}", lambda: compared(before, after)[0])

    def problem_ids(self) -> set[str]:
        """The problems of the run's steps, and of the evaluations whose rollouts are there."""

        def found() -> set[str]:
            files = [record.rollouts for record in self.record.evals.values() if record.rollouts is not None]
            evaluated = (scan_parquet(file).select("problem_id").unique().collect() for file in files)
            return {name for rows in (self.groups, *evaluated) for name in rows["problem_id"]}

        return self.of_state("problem_ids", found)

    def file_of(self, place: Place) -> Path:
        """The rollouts of a place; NotThereError if they are not there (yet, or any more)."""
        if place.evaluation is not None:
            file = self.evaluation(place.evaluation).rollouts
        else:
            assert place.step is not None
            file = StepJournal(self.path, place.step).files["scored"]
        if file is None or not file.is_file():
            raise NotThereError(f"{place.name} has no rollouts in {self.path}")
        return file

    def scan(self, place: Place) -> pl.LazyFrame:
        """The rollouts of a place, with their number in the file as `row`."""
        return scan_parquet(self.file_of(place), ROLLOUT_SCHEMA).with_row_index("row")

    def light_rows(self, place: Place) -> pl.DataFrame:
        """The rollouts of a place without tokens and texts, with the number of completion tokens."""
        return self.scan(place).select("row", *LIGHT, _N_TOKENS).sort("row").collect()

    def problem_rows(self, place: Place, problem_id: str) -> list[dict[str, Any]]:
        """The completions of a problem at a place, in order, without tokens."""
        columns = ["row", *LIGHT, "code", "completion", "turns", "failed_output", "reward_error", _N_TOKENS]
        rows = self.scan(place).filter(pl.col("problem_id") == problem_id).select(columns)
        return rows.sort(ORDER).collect().to_dicts()

    def programs(self, place: Place, rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, str | None]]:
        """Of each of `rows`, completions of a place by `group_index` and `sample_index`, in an evaluation by `row`: a
        hash of the program (else: of the answer), and the beginning of why it failed, if anything says it."""
        names = ("group_index", "sample_index") if place.evaluation is None else ("row",)
        keys = [tuple(row[name] for name in names) for row in rows]
        some = self.scan(place).filter(pl.col(names[0]).is_in(sorted({key[0] for key in keys})))
        found = some.select(*names, pl.coalesce("code", "completion").hash().alias("program"), failure=_FAILURE)
        known = {tuple(key): (program, failure) for *key, program, failure in found.collect().iter_rows()}
        return [known[key] for key in keys]

    def group(self, place: Place, group: int | None, sample: int) -> tuple[pl.DataFrame, int]:
        """The group of a completion with all columns, and its row there. `sample` is its number in the group or, of an
        evaluation (`group` None), its row in the file: then the group are the problem's completions of all rounds."""
        rows = self.scan(place)
        if group is None:
            own = rows.filter(pl.col("row") == sample).select("group_index", "problem_id")
            name, rows = "row", rows.join(own, on=["group_index", "problem_id"], how="semi")
        else:
            name, rows = "sample_index", rows.filter(pl.col("group_index") == group)
        members = rows.sort("attempt", *ORDER).collect()
        found = members.with_row_index("place").filter(pl.col(name) == sample)["place"]
        if not len(found):
            raise NotThereError(f"{place.name} has no such completion")
        return members, int(found[0])

    def trainer_logprobs(self, place: Place, group: int | None, sample: int) -> list[float] | None:
        """The trainer's log-probabilities of a completion's tokens; None if the step did not train on it (yet)."""
        if place.step is None or not (file := StepJournal(self.path, place.step).trainer_logprobs).is_file():
            return None
        own = scan_parquet(file).filter(pl.col("group_index") == group, pl.col("sample_index") == sample)
        found = own.select("trainer_logprobs").collect().to_series()
        return found[0].to_list() if len(found) else None

    def config_of(self, place: Place) -> Mapping[str, Any]:
        """The settings that say where a place's problems lie."""
        config = self.record.config
        if place.evaluation is not None:
            own = self.path / "evals" / place.evaluation / "settings.json"
            if own.is_file():
                config = {**config, **read_shaped(own, Config)}
        return config

    def problem(self, problem_id: str, place: Place) -> tuple[Problem | None, str | None]:
        """A problem with its tests, and why it is not at hand, if it is not."""
        if place.evaluation is not None:
            return self._problem(problem_id, place.evaluation)  # once: its data set is read whole for one problem
        try:
            return self._problem(problem_id, _version(self.pool_file()))  # a pool may come and go, and be made again
        except (CoderlError, OSError) as error:
            return None, str(error)

    def _read_problem(self, problem_id: str, source: Version | str) -> tuple[Problem | None, str | None]:
        problem, missing = None, None
        if isinstance(source, str):
            found, missing = problems_at_hand(self.config_of(Place(evaluation=source)), {problem_id})
            problem = found[problem_id].whole() if problem_id in found else None
        else:
            problem = problem_in_pool(source[0], problem_id)
        return problem, None if problem else missing or "the problem is not there any more"

    def pool_file(self) -> Path:
        """The file of the run's pool, also among the pools that are shown; ConfigError says how to name it if there is
        none."""
        config = self.record.config
        try:
            return pool_file(config, [*self._pools()])
        except ConfigError as error:
            if not config.get("pool_sha256"):
                raise
            raise ConfigError(f"{error}, or name it: {view_command(self.path)} POOL") from error

    def titles(self, evaluation: str | None = None) -> dict[str, str]:
        """How the statement of each problem of the pool, or of those of `evaluation`, begins, by id; empty if it cannot
        be read."""
        try:
            file = self.pool_file() if evaluation is None else self.file_of(Place(evaluation=evaluation))
            return self._titles(_version(file), evaluation)
        except (CoderlError, OSError, pl.exceptions.PolarsError):
            return {}

    def _read_titles(self, version: Version, evaluation: str | None) -> dict[str, str]:
        if evaluation is None:
            begun = pl.col("statement").str.slice(0, 4 * TITLE_CHARS)
            statements = dict(scan_parquet(version[0]).select("problem_id", begun).collect().iter_rows())
        else:
            decode = self.decode()
            prompts = {} if decode is None else prompts_in(self.scan(Place(evaluation=evaluation)), decode)
            statements = {name: statement_in(prompt) for name, prompt in prompts.items()}
            # In another form, as those of gsm8k: what follows their common beginning.
            if statements == prompts and len(prompts) > 1:
                shared = commonprefix([*prompts.values()])  # noqa: RUF071 - of characters, not of paths
                end = len(shared) - len(re.sub(r".*\s", "", shared, flags=re.DOTALL))  # whole words
                statements = {name: prompt[end:] for name, prompt in prompts.items()}
        titles = {name: " ".join((text or "")[: 4 * TITLE_CHARS].split()) for name, text in statements.items()}
        cut = {name: f"{title[:TITLE_CHARS]}…" for name, title in titles.items() if len(title) > TITLE_CHARS}
        return {name: title for name, title in (titles | cut).items() if title}

    def profiled(self, problem_id: str) -> tuple[int, int] | None:
        """How many of the base model's graded completions passed in the pool's profile, of how many; None if it is not
        known."""
        try:
            rows = scan_parquet(self.pool_file()).filter(pl.col("problem_id") == problem_id)
            found = rows.select("n_correct", "n_samples").head(1).drop_nulls().collect()
        except (CoderlError, OSError, pl.exceptions.PolarsError):  # no pool, or one without a profile
            return None
        return found.row(0) if len(found) else None

    def prompted_statements(self, most_seconds: float) -> tuple[dict[str, str], int]:
        """The statements, by id, of problems that are not in the pool, read from prompts ("": none is recorded), and
        how many problems are still unread: a call reads new evaluations, which are few, and steps for about
        `most_seconds`. Nothing is read if the model's tokenizer is not on this machine."""
        decode, in_pool, started = self.decode(), self.titles().keys(), monotonic()

        def read(place: Place, decode: Decode) -> None:
            prompts = prompts_in(self.scan(place), decode, {*self._statements, *in_pool})
            # A new dict: other threads may iterate over the last.
            self._statements = self._statements | {name: statement_in(prompt) for name, prompt in prompts.items()}

        pool_version = hash(frozenset(in_pool))  # with other problems in the pool, evaluations are read again
        for record in self.record.evals.values():
            if decode is not None and record.rollouts is not None:
                if (key := (_version(record.rollouts), pool_version)) not in self._read_files:
                    read(Place(evaluation=record.name), decode)
                self._read_files.add(key)
        # Each problem is read from the last step that sampled it, so that a step is read once; recent steps first.
        new = self.groups.filter(~pl.col("problem_id").is_in([*self._statements, *in_pool]))
        by_step = new.group_by("problem_id").agg(pl.col("step").last()).group_by("step").agg("problem_id").sort("step")
        for step, problem_ids in reversed(by_step.rows()):
            if decode is None or monotonic() - started > most_seconds:
                break
            with suppress(NotThereError):  # people remove the rollouts of old steps
                read(Place(step), decode)
            # Problems without a prompt count as read.
            self._statements = dict.fromkeys(problem_ids, "") | self._statements
        new_ids = by_step["problem_id"].explode().to_list()
        return self._statements, sum(problem_id not in self._statements for problem_id in new_ids)

    def test_order(self, problem: Problem) -> list[int]:
        """The order in which a problem's tests run in this run, as recorded at its start."""
        file = self.path / "test_order.json"
        recorded = self.of_state("test_order", lambda: read_json(file) if file.is_file() else {})
        own = list(range(len(problem.tests)))
        order = recorded.get(problem.problem_id, own)
        return order if isinstance(order, list) and sorted(order) == own else own

    def decode(self) -> Decode | None:
        """The model's tokens as text; None if its tokenizer is not on this machine."""
        return _decoder(str(self.record.config.get("model_name", "")))


def _version(file: Path) -> Version:
    return file, file.stat().st_mtime_ns


def compared(before: EvalRecord | None, after: EvalRecord | None) -> tuple[Comparison | None, str]:
    """The comparison of two evaluations, and if there is none, why: people remove the rollouts of old ones."""
    try:
        return compare_evals(before, after), "they share no evaluated problem, or the completions of one are gone"
    except CoderlError as error:
        return None, str(error)


def problem_in_pool(file: Path, problem_id: str) -> Problem | None:
    """A problem of a pool's file with its tests; DataError if the file cannot be read."""
    try:
        rows = scan_parquet(file).filter(pl.col("problem_id") == problem_id).head(1).collect()
        return Problem.from_row(rows.row(0, named=True)) if len(rows) else None
    except (pl.exceptions.PolarsError, KeyError) as error:
        raise DataError(f"the pool {file} cannot be read: {' '.join(str(error).split())[:300]}") from error


@lru_cache(maxsize=8)
def _decoder(model_name: str) -> Decode | None:
    try:
        return prompt_decoder(model_name)
    except CoderlError:
        return None


def with_intervals(groups: pl.DataFrame) -> pl.DataFrame:
    """By step the share of the graded completions that passed (`rate`) and `mean_reward`, each with its 95% interval
    (`..._low`, `..._high`; null for a single group). Completions of one group (a problem's, a row of `groups`) are
    alike, so groups are the clusters that vary: the interval is that of a ratio of sums over clusters (its variance by
    linearisation, and Student's t)."""
    n = pl.col("graded")
    clusters = (n > 0).sum()
    totals = {"rate": pl.col("passed").cast(pl.Float64), "mean_reward": pl.col("mean_reward").fill_null(0.0) * n}
    parts = {"clusters": clusters}
    for name, total in totals.items():  # of each group
        residual = total - total.sum() / n.sum() * n
        error = ((residual**2).sum() * clusters / (clusters - 1)).sqrt() / n.sum()
        parts[name] = pl.when(n.sum() > 0).then(total.sum() / n.sum())
        parts[f"{name}_error"] = pl.when(clusters > 1).then(error)
    by_step = groups.group_by("step").agg(**parts).sort("step")
    reach = {count: student_t(count - 1) for count in by_step["clusters"].unique() if count > 1}
    t = pl.col("clusters").replace_strict(reach, default=None, return_dtype=pl.Float64)
    # A mean lies between the least and the largest value, which the interval of a few groups may not.
    limits: dict[str, Any] = {"rate": (0.0, 1.0), "mean_reward": (groups["lowest"].min(), groups["highest"].max())}
    for name, (least, largest) in limits.items():
        half = t * pl.col(f"{name}_error")
        low, high = ((pl.col(name) + by).clip(least, largest) for by in (-half, half))
        by_step = by_step.with_columns(low.alias(f"{name}_low"), high.alias(f"{name}_high"))
    return by_step


def pieces(decode: Decode, tokens: Sequence[int]) -> list[str]:
    """The text of each token: together the text of all. A character of several tokens is its last one's; the others are
    empty."""
    texts: list[str] = []
    start = read = 0  # what is decoded to see a token in its context, and what is given out
    for end in range(1, len(tokens) + 1):
        before, now = decode(tokens[start:read]), decode(tokens[start:end])
        if now.endswith("�") and end < len(tokens) and end - read < 8:  # half a character
            texts.append("")
            continue
        texts.append(now[len(before) :])
        start, read = read, end
    return texts
