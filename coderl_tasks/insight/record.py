"""Reads a run or a curation, also one at work, as far as it goes: small things loaded, rollouts left on disk. Lists the
runs and the pools there are, one row each, for `coderl runs` and `coderl pools`. Nothing here takes a lock."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.grading.scoring import UNGRADED, Verdict
from coderl_tasks.insight.tables import duration
from coderl_tasks.journal.atomic import DamagedFileError, read_parquet, read_rows, scan_parquet
from coderl_tasks.journal.directory_lock import held_by
from coderl_tasks.journal.recorded_json import (
    LOCK_FILE,
    SETTINGS_FILE,
    Config,
    Manifest,
    Summary,
    is_untouched,
    read_shaped,
    recorded_config,
    recorded_settings,
)
from coderl_tasks.journal.run_directory import committed_steps, has_ended, is_eval_row, is_unstarted, metrics_rows
from coderl_tasks.journal.steps import BASELINE, FINAL, INDEX_SCHEMA, LENGTHS, index_files, rollout_files, scored_files
from coderl_tasks.paths import POOLS, shown
from coderl_tasks.policy.rollout import NO_COMPLETION, REQUIRED_COLUMNS, ROLLOUT_SCHEMA, TRUNCATED
from coderl_tasks.problems.problem import DROPPED_SCHEMA, PROBLEM_SCHEMA
from coderl_tasks.problems.profile_columns import (
    ANSWER_COLUMNS,
    AUDIT_SCHEMA,
    PROFILE_COLUMNS,
    PROFILE_SCHEMA,
    SOLUTION_SCHEMA,
    STRENGTH_SCHEMA,
)

CURATION_SCHEMAS: dict[str, dict[str, pl.DataType]] = {
    "pool": PROBLEM_SCHEMA | PROFILE_COLUMNS | ANSWER_COLUMNS,
    "dropped": DROPPED_SCHEMA,
    "profile": PROFILE_SCHEMA,
    "solutions": SOLUTION_SCHEMA,
    "audit": AUDIT_SCHEMA,
    "strengthened": STRENGTH_SCHEMA,
}
"""The tables of a curation: NAME.parquet."""
MAX_POINTS = 250  # what a panel can show, and what the trend test, quadratic in it, does in milliseconds
STAGES = (
    "parse", "sanity", "trim", "test_side", "dedup", "decontaminate", "solution", "prompt", "audit", "screen",
    "profile", "band", "mix",
)  # fmt: skip
"""The stages of a curation in order; others follow in the order of the file."""
INT, FLOAT, TEXT = pl.Int64(), pl.Float64(), pl.String()
RUN_SCHEMA: dict[str, pl.DataType] = {
    "name": TEXT, "state": TEXT, "model": TEXT, "steps": INT, "max_steps": INT, "baseline_percent": FLOAT,
    "latest_percent": FLOAT, "megabytes": FLOAT, "age": TEXT,
}  # fmt: skip
POOL_SCHEMA: dict[str, pl.DataType] = {
    "name": TEXT, "state": TEXT, "model": TEXT, "problems": INT, "megabytes": FLOAT, "age": TEXT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class EvalRecord:
    """One evaluation: `step` is the last step trained before it (-1 the base model); rates are fractions."""

    name: str
    step: int
    summary: dict[str, Any]
    rollouts: Path | None

    @property
    def pass_at_1(self) -> float:
        return float(self.summary["pass_at_1"])

    @property
    def interval(self) -> tuple[float, float]:
        return float(self.summary["ci_low"]), float(self.summary["ci_high"])


@dataclass(frozen=True)
class RunRecord:
    path: Path
    config: dict[str, Any]
    metrics: pl.DataFrame  # one row per training step, in order
    evals: dict[str, EvalRecord]  # by step, without copies
    checkpoints: list[dict[str, Any]]
    scored_files: list[Path]

    @property
    def baseline(self) -> EvalRecord | None:
        return self.evals.get(BASELINE)

    @property
    def final(self) -> EvalRecord | None:
        return self.evals.get(FINAL)

    @cached_property
    def own_evals(self) -> list[EvalRecord]:
        """Those that the run made: evaluations of `coderl evaluate` have settings, perhaps problems, of their own."""
        folder = self.path / "evals"
        return [each for each in self.evals.values() if not (folder / each.name / SETTINGS_FILE).is_file()]

    @property
    def latest(self) -> EvalRecord | None:
        """The final evaluation, else the newest one of a trained policy, those that the run made before others."""
        trained = [each for each in [*self.evals.values()][::-1] if each.step >= 0]
        own = (each for each in reversed(self.own_evals) if each.step >= 0)
        return self.final or next(own, None) or (trained[0] if trained else None)

    @property
    def planned_steps(self) -> int | None:
        planned = self.config.get("max_steps")
        return planned if isinstance(planned, int) and planned > 0 else None

    def config_of(self, evaluation: str | None) -> dict[str, Any]:
        own = self.path / "evals" / (evaluation or "") / SETTINGS_FILE
        return self.config | (read_shaped(own, Config) if evaluation and own.is_file() else {})

    def rollouts(self, columns: Sequence[str]) -> pl.LazyFrame:
        """The scored training rollouts of all steps, `columns` of ROLLOUT_SCHEMA only."""
        if not self.scored_files:
            return pl.LazyFrame(schema={name: ROLLOUT_SCHEMA[name] for name in columns})
        return scan_parquet(self.scored_files, ROLLOUT_SCHEMA).select(columns)

    @cached_property
    def groups(self) -> pl.DataFrame:
        """The groups in order, as `groups_in` has them, with `why_skipped`."""
        return joined_groups([groups_in(file) for file in rollout_files(self.path)])


GROUP_KEY = ("step", "group_index")
_GROUP_COUNTS: dict[str, pl.Expr] = {
    "problem_id": pl.col("problem_id").first(),
    "split": pl.col("split").first(),
    "sampled": (pl.col("stop_reason") != NO_COMPLETION).sum(),
    "graded": pl.col("reward").count(),
    # Without those that `on_hack=quarantine` took the reward from: they are not graded either.
    "passed": ((pl.col("verdict") == Verdict.PASSED) & pl.col("reward").is_not_null()).sum(),
    "ungraded": pl.col("verdict").is_in(UNGRADED).sum(),
    "truncated": (pl.col("stop_reason") == TRUNCATED).sum(),
    "lowest": pl.col("reward").min(),
    "highest": pl.col("reward").max(),
    "mean_reward": pl.col("reward").mean(),
    "has_signal": pl.col("trained").any(),
    "prompt_tokens": pl.col("n_prompt_tokens").first(),
    "tokens": pl.col("n_completion_tokens").sum(),
    "cpu_seconds": pl.col("run_seconds").sum(),
}
_WHY_SKIPPED = (
    pl.when("has_signal")
    .then(None)
    .when(pl.col("graded") < 2)
    .then(pl.lit("fewer than two graded"))
    .when(pl.col("passed") == pl.col("graded"))
    .then(pl.lit("all passed"))
    .when(pl.col("highest") < 0)
    .then(pl.lit("none in format"))
    .when(pl.col("passed") == 0)
    .then(pl.lit("none passed"))
    .otherwise(pl.lit("equal rewards"))
)


def groups_in(file: Path) -> pl.DataFrame:
    """The groups in a file of the index, or of a step's scored rollouts, by step and group_index. `ungraded` are
    completions with a fault that is not theirs; `has_signal`: the update learned from some."""
    if file.name == "scored.parquet":
        lengths = {name: pl.col(of).list.len().cast(pl.Int64) for name, of in LENGTHS.items()}
        rows = scan_parquet(file, ROLLOUT_SCHEMA).with_columns(**lengths)
    else:
        rows = scan_parquet(file, INDEX_SCHEMA)
    return rows.group_by(GROUP_KEY).agg(**_GROUP_COUNTS).collect()


def joined_groups(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The groups of several files, in order, with `why_skipped`: why the update learned nothing, null if it did."""
    # Made when it is asked for: polars starts threads with its first frame, and a process that has them cannot fork.
    none = pl.DataFrame(schema=INDEX_SCHEMA).group_by(GROUP_KEY).agg(**_GROUP_COUNTS)
    return pl.concat([none, *frames]).sort(GROUP_KEY).with_columns(why_skipped=_WHY_SKIPPED)


@dataclass(frozen=True)
class CurationRecord:
    """A finished curation. Its tables are without tests and solutions, which can be gigabytes."""

    path: Path
    manifest: dict[str, Any]

    pool = cached_property(lambda self: light_frame(self.path / "pool.parquet"))
    dropped = cached_property(lambda self: light_frame(self.path / "dropped.parquet"))
    profile = cached_property(lambda self: light_frame(self.path / "profile.parquet"))
    # One row per problem checked with its own solutions; empty where the check was left out.
    solutions = cached_property(lambda self: light_frame(self.path / "solutions.parquet"))

    @property
    def band(self) -> tuple[float, float] | None:
        """The lowest and the highest pass rate kept, where the manifest names them."""
        low, high = self.manifest.get("band_low"), self.manifest.get("band_high")
        return (float(low), float(high)) if low is not None and high is not None else None


def is_run(path: Path) -> bool:
    """Evaluations alone make no run directory: those of base models lie in an evals/ beside the runs."""
    return any((path / mark).exists() for mark in ("run.lock", "metrics.jsonl", "checkpoints.jsonl", "steps"))


def is_curation(path: Path) -> bool:
    return any((path / name).is_file() for name in ("manifest.json", "pool.parquet", "dropped.parquet"))


def load_run(path: Path) -> RunRecord:
    """The record of the run directory `path`; ConfigError if it is none, DamagedFileError if a file cannot be read."""
    if not path.is_dir() or not is_run(path):
        raise ConfigError(f"{path} is not a run directory: it has no metrics.jsonl or steps")
    rows = metrics_rows(path / "metrics.jsonl")
    metrics = training_metrics(rows)
    evals = load_evals(path / "evals", int(metrics["step"][-1]) if len(metrics) else -1)
    return RunRecord(
        path=path,
        config=recorded_config(path) or {},
        metrics=metrics,
        evals={name: record for name, record in evals.items() if record.summary.get("taken_from") is None},
        checkpoints=read_rows(path / "checkpoints.jsonl"),
        scored_files=scored_files(path),
    )


def load_curation(path: Path) -> CurationRecord:
    """The record of the curation directory `path`; ConfigError if it is none."""
    if not path.is_dir() or not is_curation(path):
        raise ConfigError(f"{path} is not a curation directory: it has no manifest.json or pool.parquet")
    manifest = path / "manifest.json"
    return CurationRecord(path, read_shaped(manifest, Manifest) if manifest.is_file() else {})


@contextmanager
def naming_damaged_tables(path: Path) -> Iterator[None]:
    """Where polars fails in the block, raise DamagedFileError for the table in `path` that is to blame. Only then: to
    read all of them takes as long as what is asked of them."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        tables = {path / f"{name}.parquet": schema for name, schema in CURATION_SCHEMAS.items()}
        rollouts = [*scored_files(path), *sorted(path.glob("evals/*/rollouts.parquet"))]
        tables |= dict.fromkeys(rollouts, ROLLOUT_SCHEMA) | dict.fromkeys(index_files(path), INDEX_SCHEMA)
        for file, schema in tables.items():
            if file.is_file():
                required = schema if file.parent == path else REQUIRED_COLUMNS
                read_parquet(file, schema, others=False, required=required)
        raise


def training_metrics(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """The training rows of metrics.jsonl by step. A step done again after a crash counts once, as it was done last."""
    by_step = {int(row["step"]): row for row in rows if not is_eval_row(row)}
    if not by_step:
        return pl.DataFrame(schema={"step": pl.Int64(), "mean_reward": pl.Float64()})
    # Types from all rows: a metric may be null in as many of the first steps as polars looks at.
    return pl.DataFrame([by_step[step] for step in sorted(by_step)], infer_schema_length=None)


def thin(metrics: pl.DataFrame) -> pl.DataFrame:
    """At most MAX_POINTS rows, neighbouring steps averaged: what is drawn and tested of a long run stays small."""
    if len(metrics) <= MAX_POINTS:
        return metrics
    width = -(-len(metrics) // MAX_POINTS)
    numeric = metrics.select(pl.selectors.numeric())
    bucket = pl.int_range(pl.len()) // width
    return numeric.group_by(bucket.alias("_bucket"), maintain_order=True).mean().drop("_bucket")


def load_evals(folder: Path, last_step: int) -> dict[str, EvalRecord]:
    """The finished evaluations in `folder`, by step; the final one counts as `last_step`."""
    records = []
    for file in sorted(folder.glob("*/summary.json")):
        name, summary = file.parent.name, read_shaped(file, Summary)
        step = summary.get("step")
        if not isinstance(step, int):
            match = re.fullmatch(r"step-(\d+)", name)
            step = -1 if name == BASELINE else int(match[1]) if match else last_step
        rollouts = file.parent / "rollouts.parquet"
        records.append(EvalRecord(name, step, summary, rollouts if rollouts.is_file() else None))
    # The final evaluation has the step of a periodic one that was due then, and was made after it.
    records.sort(key=lambda record: (record.step, record.name == FINAL, record.name))
    return {record.name: record for record in records}


def light_frame(path: Path) -> pl.DataFrame:
    """The table without tests, solutions and token lists, empty if there is none; DamagedFileError if not parquet."""
    if not path.exists():
        return pl.DataFrame()
    if not path.is_file():  # a pipe would be waited for
        raise DamagedFileError(path, "no regular file")
    heavy = ("tests", "solutions", "prompt_tokens", "completion_tokens", "logprobs")
    # Columns are chosen before anything is read: the heavy ones can be gigabytes.
    scan = scan_parquet(path)
    try:
        return scan.select([name for name in scan.collect_schema().names() if name not in heavy]).collect()
    except pl.exceptions.ComputeError as error:
        raise DamagedFileError(path, f"not parquet ({error})") from error


def runs_table(root: Path) -> pl.DataFrame:
    """The runs in `root` (RUN_SCHEMA), newest first. Weights are the Tinker service's, and count into no size."""
    runs = (folder for folder in _folders(root) if (folder / "config.json").is_file() or is_unstarted(folder))
    return pl.DataFrame([_name_size_and_age(folder) | run_row(folder) for folder in runs], schema=RUN_SCHEMA)


def run_row(folder: Path) -> dict[str, Any]:
    """What a list says of the run in `folder`, of a damaged one only the `state`, with what is wrong."""
    try:
        config = recorded_config(folder) or {}  # none in a run that was never started
        # The run is loaded for its evaluations alone: without any there is nothing to load.
        run = load_run(folder) if config and any(folder.glob("evals/*/summary.json")) else None
        state = run_state(folder, config)
    except DataError as error:  # it gets a row all the same: one damaged run must not hide the others
        return {"state": shown(f"damaged: {error}")}
    row = {
        "state": state,
        "model": config.get("model_name"),
        "learning_rate": config.get("learning_rate"),
        "steps": committed_steps(folder),
        "max_steps": None if config.get("max_steps", -1) == -1 else config["max_steps"],  # -1: no limit
    }
    evaluations = (run.baseline, run.latest) if run is not None else (None, None)
    for name, record in zip(("baseline", "latest"), evaluations, strict=True):
        row[f"{name}_percent"] = None if record is None else round(record.pass_at_1 * 100, 1)
        row[f"{name}_n"] = None if record is None else record.summary["n"]
    return row


def pool_row(folder: Path) -> dict[str, Any]:
    """What a list says of the curation in `folder`: columns of POOL_SCHEMA, of a damaged one only the state."""
    file = folder / "manifest.json"
    try:
        manifest: dict[str, Any] | None = read_shaped(file, Manifest) if file.is_file() else None
    except DataError as error:  # a row of the list too: one damaged pool must not hide the others
        return {"state": shown(f"damaged: {error}")}
    started_with, outcome = recorded_settings(folder), manifest or {}
    if held_by(folder, LOCK_FILE) is not None:
        state = "running"
    elif manifest is None:
        state = "never started" if is_untouched(folder) else "unfinished"
    elif outcome.get("settings") and started_with not in (None, outcome["settings"]):  # a later start changed them
        state = "finished, then restarted"
    else:
        state = "finished" if outcome.get("kept") else "finished, empty"
    model = (manifest or started_with or {}).get("model_name")
    return {"state": state, "model": model, "problems": outcome.get("kept")}


def pools_at_hand() -> list[Path]:
    return [folder for folder in _folders(POOLS) if is_curation(folder)]


def pools_table(pools: Path) -> pl.DataFrame:
    """The curations in `pools` (POOL_SCHEMA), newest first. A finished one has a manifest, which counts problems."""
    return pl.DataFrame([_name_size_and_age(each) | pool_row(each) for each in _folders(pools)], schema=POOL_SCHEMA)


def run_state(folder: Path, config: dict[str, Any]) -> str:
    """Where the run in `folder` stands: running, never started, finished, or stopped, and at which step."""
    if held_by(folder) is not None:
        return "running"
    if is_unstarted(folder):
        return "never started"
    steps, planned = committed_steps(folder), config.get("max_steps", -1)
    every, steer = config.get("eval", {}).get("every", -1), config.get("steer", "advise")
    ended = has_ended(folder, steps - 1, max_steps=planned, eval_every=every, steer=steer)
    return "finished" if ended else f"stopped at step {steps}"


def tree_bytes(folder: Path) -> int:
    """The size of a file or of all in a folder. What a link leads to takes its space elsewhere; `clean` keeps it."""
    files = [folder] if folder.is_file() else folder.rglob("*")
    return sum(file.lstat().st_size for file in files if file.is_file() and not file.is_symlink())


def _name_size_and_age(folder: Path) -> dict[str, Any]:
    age = duration(max(0.0, time.time() - _last_written(folder)))
    return {"name": shown(folder.name), "megabytes": round(tree_bytes(folder) / 1e6, 1), "age": age}


def _last_written(folder: Path) -> float:
    """When the newest file or folder in `folder` was written, but for a report, which anyone may write at any time."""
    written = [path.stat().st_mtime for path in folder.glob("*") if path.name != "report.html"]
    return max(written or [folder.stat().st_mtime])


def _folders(root: Path) -> Iterable[Path]:
    children = [child for child in root.iterdir() if child.is_dir()] if root.is_dir() else []
    return sorted(children, key=lambda folder: (_last_written(folder), folder.name), reverse=True)
