"""What `coderl estimate` says after three steps against the tokens that a run really took.

    python benchmarks/forecast.py --folder FOLDER [--runs 20] [--steps 30]

A pool of nano, and runs on it that differ in their seed, all on one set of embedded servers. FOLDER keeps the runs: the
next start goes on where this one was stopped. For each run: the forecast by its first three steps, with its interval,
and what it took; below, in how many runs the forecast was within 10%, and in how many the interval held what came.
Beside it what the plain mean of the three steps says.
"""

import argparse
import os
from pathlib import Path

from overlap import coderl, servers
from rich.console import Console
from rich.table import Table

from coderl_tasks.curation.find_pool import find_pool
from coderl_tasks.insight.record import RunRecord, load_run
from coderl_tasks.journal.ledger import Tokens, metrics_tokens
from coderl_tasks.journal.recorded_json import recorded_config
from coderl_tasks.journal.run_directory import committed_steps
from coderl_tasks.planning.estimates import FIRST_STEPS, by_steps
from coderl_tasks.settings import TrainSettings

WITHIN = 0.1


def made(folder: Path, runs: int, steps: int) -> list[Path]:
    """The runs, those that are missing or unfinished trained now."""
    paths = [folder / f"run-{seed:02d}" for seed in range(runs)]
    missing = [seed for seed, path in enumerate(paths) if committed_steps(path) < steps]
    if missing:
        with servers() as environment:
            if not (folder / "pool" / "pool.parquet").is_file():
                coderl(environment, "curate", "preset=nano", f"name={folder / 'pool'}")
            for seed in missing:
                words = (f"pool={folder / 'pool'}", f"log_path={paths[seed]}", f"max_steps={steps}", f"seed={seed}")
                coderl(environment, "train", "preset=nano", *words, "eval_every=-1", "save_every=0")
                print(f"run {seed} done", flush=True)
    return [path for path in paths if committed_steps(path) >= steps]


def row(run: RunRecord, pool: Path, steps: int) -> dict[str, float]:
    """The forecast and what came, in counted tokens (prompts once per group, and completions)."""
    settings = TrainSettings.model_validate({"preset": "nano", "max_steps": steps})
    settings = settings.filled_from(recorded_config(run.path) or {})
    found = by_steps(settings, run, FIRST_STEPS, find_pool(str(pool)))
    took = [metrics_tokens(row) for row in run.metrics.head(steps).iter_rows(named=True)]
    whole = sum(took, Tokens())
    plain = sum(took[:FIRST_STEPS], Tokens()).counted * steps / FIRST_STEPS
    return {
        "took": whole.counted,
        "forecast": found.expected.counted,
        "low": found.low.counted,
        "high": found.high.counted,
        "off": found.expected.counted / whole.counted - 1,
        "completions off": found.expected.completion / whole.completion - 1,
        "plain mean off": plain / whole.counted - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the pool and the runs are kept")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    os.environ["CODERL_HOME"] = str(folder / "home")
    paths = made(folder, arguments.runs, arguments.steps)
    rows = [row(load_run(path), folder / "pool", arguments.steps) for path in paths]
    table = Table(title=f"{len(rows)} runs of {arguments.steps} steps: tokens forecast after {FIRST_STEPS}")
    for title in ("seed", *rows[0]):
        table.add_column(title, justify="right")
    for seed, each in enumerate(rows):
        texts = [f"{value:+.1%}" if "off" in name else f"{value:,}" for name, value in each.items()]
        table.add_row(str(seed), *texts)
    console = Console(width=120)
    console.print(table)
    for name in ("off", "completions off", "plain mean off"):
        console.print(
            f"{name}: within {WITHIN:.0%} in {sum(abs(each[name]) <= WITHIN for each in rows)} of {len(rows)}"
        )
    held = sum(each["low"] <= each["took"] <= each["high"] for each in rows)
    console.print(f"the interval held what came in {held} of {len(rows)}")


if __name__ == "__main__":
    main()
