"""Training on the curated pool against training on an unfiltered one: the same model, budget and seeds.

    python benchmarks/curated_pool.py [--steps 50] [--seeds 3] [--folder DIR]

Both pools come from one data set and model (preset nano): the curated one holds the problems in the band, the
unfiltered one all that could be profiled. Each pool is trained on with each seed, and each result is evaluated greedily
on the test problems. A mixed group is one whose rewards differ: the others teach nothing. What DIR holds already is not
done again.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from coderl_tasks.journal.json_lines import read_rows

BANDS = {"curated": [], "unfiltered": ["band_low=0", "band_high=1"]}


def coderl(*arguments: str) -> None:
    """Run a command of the project, its output on ours."""
    print("coderl", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "coderl_tasks.cli", *arguments], check=True)


def train_and_evaluate(pool: Path, run: Path, seed: int, steps: int) -> tuple[float, float, float]:
    """The share of mixed groups and the mean reward over all steps of a run, and Pass@1 after it."""
    evaluation = run / "evals" / "greedy"
    coderl(
        "train", "preset=nano", f"pool={pool}", f"seed={seed}", f"max_steps={steps}", "eval_every=-1", f"log_path={run}"
    )
    if not (evaluation / "summary.json").is_file():
        coderl("evaluate", f"checkpoint={run}", f"log_path={evaluation}")
    rows = [row for row in read_rows(run / "metrics.jsonl") if "groups_total" in row]
    mixed = 1 - sum(row["groups_skipped"] for row in rows) / sum(row["groups_total"] for row in rows)
    reward = statistics.fmean(row["mean_reward"] for row in rows)
    return mixed, reward, json.loads((evaluation / "summary.json").read_text())["pass_at_1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where pools and runs are kept (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)).absolute()
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in BANDS}
        for name, band in BANDS.items():
            if not (folder / name / "manifest.json").is_file():
                coderl("curate", "preset=nano", f"name={folder / name}", *band)
        for seed in range(options.seeds):
            for name, results in found.items():
                run = folder / f"{name}-{options.steps}-steps-seed-{seed}"
                results.append(train_and_evaluate(folder / name, run, seed, options.steps))
    table = Table(title=f"{options.steps} steps of 8 x 16 completions, nano, {options.seeds} seeds")
    for heading in ("pool", "seed", "mixed groups", "mean reward", "Pass@1 after"):
        table.add_column(heading, justify="left" if heading == "pool" else "right")
    for name, results in found.items():
        means = tuple(map(statistics.fmean, zip(*results, strict=True)))
        for seed, row in [*enumerate(results), ("mean", means)]:
            table.add_row(name, str(seed), f"{row[0]:.1%}", f"{row[1]:.3f}", f"{row[2]:.1%}")
        table.add_section()
    Console().print(table)


if __name__ == "__main__":
    main()
