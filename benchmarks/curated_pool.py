"""Training on the curated pool against training on an unfiltered one: the same model, budget and seeds.

    python benchmarks/curated_pool.py [--steps 50] [--seeds 3] [--folder DIR] [--tokens]

Both pools come from one data set and model (preset nano): the curated one holds the problems in the band, the
unfiltered one all that could be profiled. Each pool is trained on with each seed, and each result is evaluated greedily
on the test problems, as is the base model. A mixed group is one whose rewards differ: the others teach nothing. With
--tokens the runs on the unfiltered pool then go on until they have sampled as much as the profile of the curated pool
took besides the steps. What DIR holds already is not done again.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table

from coderl_tasks.journal.atomic import read_rows
from coderl_tasks.paths import NANO_MODEL

BANDS = {"curated": [], "unfiltered": ["band_low=0", "band_high=1"]}


@dataclass(frozen=True)
class Result:
    """Of the steps of one run: the share of mixed groups, the mean reward, completion tokens sampled, and Pass@1."""

    steps: int
    mixed: float
    reward: float
    tokens: int
    pass_at_1: float


def coderl(*arguments: str) -> None:
    """Run a command of the project, its output on ours."""
    print("coderl", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "coderl_tasks.cli", *arguments], check=True)


def evaluate(checkpoint: str, folder: Path) -> float:
    """Pass@1 of `checkpoint`, greedy, recorded in `folder`."""
    if not (folder / "summary.json").is_file():
        coderl("evaluate", "preset=nano", f"checkpoint={checkpoint}", f"log_path={folder}")
    return float(json.loads((folder / "summary.json").read_text())["pass_at_1"])


def train_and_evaluate(pool: Path, run: Path, seed: int, steps: int) -> Result:
    """Train `run` up to `steps` steps, a run of fewer going on, and evaluate it then."""
    evaluation = run / "evals" / f"greedy-after-{steps}"
    if not (evaluation / "summary.json").is_file():
        settings = (f"pool={pool}", f"seed={seed}", f"max_steps={steps}", "eval_every=-1")
        coderl("train", "preset=nano", *settings, f"log_path={run}")
    pass_at_1 = evaluate(str(run), evaluation)
    rows = [row for row in read_rows(run / "metrics.jsonl") if "groups_total" in row and row["step"] < steps]
    files = [run / "steps" / f"{step:06d}" / "scored.parquet" for step in range(steps)]
    tokens = pl.scan_parquet(files).select(pl.col("completion_tokens").list.len().sum()).collect().item()
    mixed = 1 - sum(row["groups_skipped"] for row in rows) / sum(row["groups_total"] for row in rows)
    return Result(steps, mixed, statistics.fmean(row["mean_reward"] for row in rows), tokens, pass_at_1)


def results_table(found: dict[str, list[Result]], seeds: int, before: float, profile_tokens: int) -> Table:
    table = Table(
        title=f"8 x 16 completions per step, nano, {seeds} seeds; Pass@1 before: {before:.1%}; "
        f"profile of the curated pool: {profile_tokens:,} tokens"
    )
    for heading in ("pool", "seed", "steps", "tokens sampled", "mixed groups", "mean reward", "Pass@1 after"):
        table.add_column(heading, justify="left" if heading == "pool" else "right")
    for name, results in found.items():
        for seed, row in enumerate(results):
            cells = (str(row.steps), f"{row.tokens:,}", f"{row.mixed:.1%}", f"{row.reward:.3f}", f"{row.pass_at_1:.1%}")
            table.add_row(name, str(seed), *cells)
        for label, of in (("mean", statistics.fmean), ("least", min), ("most", max)):
            table.add_row(
                name,
                label,
                f"{of(row.steps for row in results):.0f}",
                f"{of(row.tokens for row in results):,.0f}",
                f"{of(row.mixed for row in results):.1%}",
                f"{of(row.reward for row in results):.3f}",
                f"{of(row.pass_at_1 for row in results):.1%}",
            )
        table.add_section()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where pools and runs are kept (default: a temporary one)")
    parser.add_argument("--tokens", action="store_true", help="a longer run too, for what the profile sampled")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)).absolute()
        for name, band in BANDS.items():
            if not (folder / name / "manifest.json").is_file():
                coderl("curate", "preset=nano", f"name={folder / name}", *band)
        before = evaluate(NANO_MODEL, folder / "base-model")
        runs = {(name, seed): folder / f"{name}-seed-{seed}" for seed in range(options.seeds) for name in BANDS}
        found: dict[str, list[Result]] = {name: [] for name in BANDS}
        for (name, seed), run in runs.items():
            found[name].append(train_and_evaluate(folder / name, run, seed, options.steps))
        spent = json.loads((folder / "curated" / "manifest.json").read_text())["spent"]["completion_tokens"]
        if options.tokens:
            a_step = statistics.fmean(result.tokens for result in found["unfiltered"]) / options.steps
            steps = options.steps + math.ceil(spent / a_step)
            found["unfiltered, and the profile's tokens"] = [
                train_and_evaluate(folder / "unfiltered", runs["unfiltered", seed], seed, steps)
                for seed in range(options.seeds)
            ]
        Console(width=120).print(results_table(found, options.seeds, before, spent))


if __name__ == "__main__":
    main()
