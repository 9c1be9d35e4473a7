"""How long the named queries take over a million rollouts: in one run, and in ten.

    python benchmarks/queries.py --folder FOLDER [--rows 1000000] [--batch 128]

Writes into FOLDER, if it is new or empty, a run of so many rollouts, ten runs that have as many together, and a
pool of 25,000 problems, by the journal's own writer. One completion in a hundred has 24,000 tokens, the others 50 to
600; their text is cut out of this package's source. sampled.parquet, which no query reads, is left out. Everything
follows from the seed. Then each named query is asked as `coderl query` asks it, views included, on two cores: the
median of five, by the clock and of the processors.
"""

import argparse
import os
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import coderl_tasks
from coderl_tasks.insight.named_queries import CURATION, NAMED_QUERIES
from coderl_tasks.insight.query import query
from coderl_tasks.insight.record import STAGES
from coderl_tasks.journal.atomic import write_json, write_parquet, write_rows
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.steps import BASELINE, FINAL, Commit, index_step, step_name
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.policy.step_metrics import METRICS
from coderl_tasks.problems.problem import DROPPED_SCHEMA, PROBLEM_SCHEMA
from coderl_tasks.problems.profile_columns import PROFILE_COLUMNS, PROFILE_SCHEMA, SOLUTION_SCHEMA

SEED, REPEATS, CORES, RUNS = 0, 5, 2, 10
GROUP = 16
PROBLEMS, TEST_PROBLEMS, POOL = 5_000, 200, 25_000
EVALS, CHECKPOINTS, UPDATES = 10, 50, 4
LONG_SHARE, LONG_TOKENS = 0.01, 24_000
VOCABULARY, CHARACTERS_PER_TOKEN = 150_000, 3.5
VERDICTS = ("passed", "wrong_answer", "runtime_error", "time_limit", "format_error", "infra_error")
SPLITS = np.array(["taco", "primeintellect", "lcbv5"])

Draw = np.random.Generator


def lists(flat: np.ndarray, lengths: np.ndarray) -> pl.Series:
    """`flat` cut into lists of `lengths`."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    series = pl.from_arrow(pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat)))
    assert isinstance(series, pl.Series)
    return series


def tokens(draw: Draw, lengths: np.ndarray) -> pl.Series:
    """Token ids of which some are much more frequent than others."""
    return lists((draw.random(int(lengths.sum())) ** 4 * VOCABULARY).astype(np.int32), lengths)


def rollouts(draw: Draw, text: str, problems: np.ndarray, **columns: int) -> pl.DataFrame:
    """A group of completions for each of `problems`, or one with `group=1`, graded."""
    group = columns.pop("group", GROUP)
    n, per_problem = len(problems) * group, np.repeat(problems, group)
    lengths = np.where(draw.random(n) < LONG_SHARE, LONG_TOKENS, draw.integers(50, 600, n))
    logprobs = -draw.exponential(0.3, int(lengths.sum())).astype(np.float32)
    sizes = (lengths * CHARACTERS_PER_TOKEN).astype(int)
    starts = draw.integers(0, len(text) - sizes.max(), n)
    completions = [text[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    ability = 0.1 + 0.8 * (per_problem * 7919 % 1000) / 1000
    failure = draw.choice(np.array(VERDICTS[1:]), n, p=[0.7, 0.1, 0.1, 0.095, 0.005])
    verdict = np.where(draw.random(n) < ability, VERDICTS[0], failure)
    passed, infra, bare = verdict == "passed", verdict == "infra_error", verdict == "format_error"
    failed = draw.integers(0, 15, n)
    frame = pl.DataFrame(
        {
            "attempt": np.zeros(n, np.int32),
            "problem_id": [f"{SPLITS[number % 3]}-{number:05d}" for number in per_problem],
            "split": SPLITS[per_problem % 3],
            "group_index": np.repeat(np.arange(len(problems)), group),
            "sample_index": np.tile(np.arange(group), len(problems)),
            "prompt_tokens": tokens(draw, np.full(n, 400)),
            "completion_tokens": tokens(draw, lengths),
            "logprobs": lists(logprobs, lengths),
            "completion": completions,
            "stop_reason": np.where(lengths == LONG_TOKENS, "length", "stop"),
            "code": [None if none else whole[-700:] for none, whole in zip(bare, completions, strict=True)],
            "verdict": verdict,
            "tests_passed": np.where(passed, 15, failed),
            "tests_run": np.where(passed, 15, failed + 1),
            "tests_total": np.full(n, 15),
            "first_failed": pl.Series(np.where(passed | infra | bare, -1, failed)).replace(-1, None),
            "format_score": pl.Series(np.where(bare, -1.0, 0.0)),
            "correctness_score": passed.astype(float),
            "run_seconds": np.where(verdict == "time_limit", 6.0, draw.gamma(2, 0.05, n)),
        }
    ).with_columns(reward=pl.col("correctness_score") + 0.1 * pl.col("format_score"))
    mean = pl.col("reward").mean().over("group_index")
    frame = frame.with_columns(
        advantage=pl.col("reward") - mean, trained=(pl.col("reward") != mean).any().over("group_index")
    ).with_columns(pl.lit(value).alias(name) for name, value in columns.items())
    nothing = [pl.lit(None).alias(name) for name in ROLLOUT_SCHEMA if name not in frame.columns]
    return frame.with_columns(nothing).select(pl.col(name).cast(kind) for name, kind in ROLLOUT_SCHEMA.items())


def write_run(path: Path, seed: int, rows: int, batch: int, text: str) -> None:
    """A run of `rows` rollouts, `batch` in a step; each step with UPDATES optimizer steps."""
    draw = np.random.default_rng([SEED, seed])
    steps = rows // batch
    with RunDirectory.open(path, {"model_name": "synthetic", "batch_size": batch}) as run:
        for step in range(steps):
            problems = draw.integers(0, PROBLEMS, batch // GROUP)
            scored = rollouts(draw, text, problems, step=step, sampler_step=step - 1)
            run.step(step).write("scored", scored)
            commit(run, draw, step)
            index_step(run.path, step, scored)
        add_the_rest(run, draw, text, steps)


def commit(run: RunDirectory, draw: Draw, step: int) -> None:
    """Commit `step`, whose metrics are drawn."""
    values = {metric.name: 1 if metric.dtype.is_integer() else draw.random() for metric in METRICS}
    row = {"epoch": 0, "n_datums": 32, "n_tokens": 9_000, "loss": 0.1, "ratio_mean": 1.0, "grad_norm": 0.5}
    run.step(step).write_commit(Commit(step, {"step": step, **values, "n_updates": UPDATES}, updates=[row] * UPDATES))


def add_the_rest(run: RunDirectory, draw: Draw, text: str, steps: int) -> None:
    """Evaluations, metrics.jsonl and checkpoints.jsonl of a run of `steps` steps."""
    metrics: list[dict[str, Any]] = [commit.metrics for commit in run.commits()]
    during = {step_name(step): step for step in range(0, steps, max(steps // EVALS, 1))}
    for name, step in {BASELINE: -1, **during, FINAL: steps - 1}.items():
        frame = rollouts(draw, text, np.arange(TEST_PROBLEMS), group=1, step=-1, sampler_step=step)
        share = {"n": TEST_PROBLEMS, "pass_at_1": 0.5, "ci_low": 0.43, "ci_high": 0.57}
        by_split = {"by_split": dict.fromkeys(SPLITS.tolist(), share)}
        run.evaluation(name).write(frame, share | by_split | {"step": step, "infra_errors": 0})
        metrics.append({"step": step, "eval/name": name, "eval/mean_correct": 0.5})
    write_rows(run.metrics.path, metrics)
    saved = range(0, steps, max(steps // CHECKPOINTS, 1))
    rows = [{"name": f"{step:06d}", "step": step, "state_path": f"tinker://s/{step}"} for step in saved]
    write_rows(run.path / "checkpoints.jsonl", rows)


def made_up(draw: Draw, schema: dict[str, pl.DataType], size: int, **columns: Any) -> pl.DataFrame:
    """`size` rows of `schema`: numbers drawn, `columns` as given, all else null."""

    def column(name: str, kind: pl.DataType) -> pl.Series | pl.Expr:
        if name in columns:
            return pl.lit(columns[name]) if np.isscalar(columns[name]) else pl.Series(columns[name])
        if kind.is_integer():
            return pl.Series(draw.integers(1, 17, size))
        return pl.Series(draw.random(size)) if kind.is_float() else pl.lit(None)

    empty = pl.DataFrame({"_": np.zeros(size)})
    return empty.select(column(name, kind).cast(kind).alias(name) for name, kind in schema.items())


def write_curation(path: Path, text: str) -> None:
    """A curation of POOL problems in each of its tables, with their statements and tests."""
    draw = np.random.default_rng([SEED, RUNS + 1])
    path.mkdir(parents=True)
    starts = draw.integers(0, len(text) - 3_000, POOL)
    problem_id, split = [f"problem-{number:05d}" for number in range(POOL)], np.tile(SPLITS, POOL)[:POOL]
    names = {"problem_id": problem_id, "split": split}
    statements = [text[start : start + 1_500] for start in starts]
    tests = [[{"input": text[start : start + 200], "expected": "1"}] * 10 for start in starts]
    levels = draw.choice(["hard", "medium", "easy"], POOL)
    reasons = np.array([f"reason-{number}" for number in range(4)])
    write_parquet(
        path / "pool.parquet",
        made_up(
            draw, PROBLEM_SCHEMA | PROFILE_COLUMNS, POOL, statement=statements, tests=tests, difficulty=levels, **names
        ),
    )
    stages = {"stage": draw.choice(STAGES, POOL), "reason": draw.choice(reasons, POOL), "statement": statements}
    write_parquet(path / "dropped.parquet", made_up(draw, DROPPED_SCHEMA, POOL, detail="a line", **stages, **names))
    write_parquet(path / "profile.parquet", made_up(draw, PROFILE_SCHEMA, POOL, difficulty=levels, **names))
    suspects = {"status": "good", "multi_answer_suspect": draw.random(POOL) < 0.1, "suspicion": "prints any"}
    write_parquet(path / "solutions.parquet", made_up(draw, SOLUTION_SCHEMA, POOL, **suspects, **names))
    write_json(path / "manifest.json", {"model_name": "synthetic"})


def write_all(folder: Path, rows: int, batch: int) -> None:
    """What is asked of: FOLDER/one/run, FOLDER/ten/run-0 to run-9, FOLDER/pool."""
    files = sorted(Path(coderl_tasks.__file__).parent.rglob("*.py"))
    text = "".join(file.read_text() for file in files)
    write_curation(folder / "pool", text)
    write_run(folder / "one" / "run", 0, rows, batch, text)
    for number in range(RUNS):
        write_run(folder / "ten" / f"run-{number}", 1 + number, rows // RUNS, batch, text)


def seconds(path: Path, name: str) -> tuple[float, float]:
    """Median seconds of the named query over `path`, by the clock and of the processors."""
    times = []
    for _ in range(REPEATS):
        started, used = perf_counter(), process_time()
        query(path, name=name)
        times.append((perf_counter() - started, process_time() - used))
    return median(wall for wall, _ in times), median(cpu for _, cpu in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the runs are, or are to be written")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rollouts of the run, and of the ten together")
    parser.add_argument("--batch", type=int, default=128, help="rollouts per step")
    arguments = parser.parse_args()
    folder = arguments.folder
    if not any(folder.glob("*")):  # it is new or empty
        write_all(folder, arguments.rows, arguments.batch)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # DuckDB starts as many threads
    one, ten, pool = folder / "one" / "run", folder / "ten", folder / "pool"
    for path in (one, ten):
        files = list(path.rglob("scored.parquet"))
        size = sum(file.stat().st_size for file in files) / 1e9
        print(f"{path}: {len(files):,} files of rollouts, {size:.2f} GB")
    table = Table(title=f"seconds, median of {REPEATS}, {CORES} cores")
    for title in ("query", "one run", "of CPU", "ten runs", "of CPU"):
        table.add_column(title, justify="right")
    for name, entry in NAMED_QUERIES.items():
        paths = (pool,) if entry.over == CURATION else (one, ten)
        table.add_row(name, *(f"{value:.2f}" for path in paths for value in seconds(path, name)))
    Console().print(table)
    print(f"load at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
