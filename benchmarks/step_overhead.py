"""What a GRPO step costs beside sampling, scoring, training and saving: Prefect, the journal, logs, artifacts.

    python benchmarks/step_overhead.py [--steps 25]
    python benchmarks/step_overhead.py --log

A real `coderl train` of nano, with small steps, on the embedded servers and a real Prefect server. A step's overhead is
the time from one commit to the next, less the seconds that its phases measured.

With --log steps as `preset=nano` has them, and what of a step's time it takes to record it: what the run recorded is
written again, by the same journal and on the same disk, right after the run (groups, sampled.parquet, scored.parquet,
the commit, and a step's part of a file of the index).
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from overlap import POOL, WARM_UP, coderl, servers, step_seconds
from rich.console import Console
from rich.table import Table

from coderl_tasks.journal.atomic import read_rows
from coderl_tasks.journal.steps import STEPS_PER_FILE, StepJournal, index_step

SETTINGS = ("batch_size=16", "group_size=8", "max_tokens=32", "eval_every=-1", "save_every=0")
LOG_SETTINGS = ("eval_every=-1", "save_every=0")
PHASES = ("sample", "score", "base", "train", "save")


def recording_seconds(run: Path, again: Path) -> tuple[list[float], float]:
    """What recording each step of `run` takes, in the new folder `again`, and a step's part of the index."""
    times, indexing = [], 0.0
    for step in sorted(int(folder.name) for folder in run.glob("steps/*")):
        source, target = StepJournal(run, step), StepJournal(again, step)
        sampled, scored, commit = source.read("sampled"), source.read("scored"), source.read_commit()
        assert sampled is not None and scored is not None and commit is not None
        groups = sampled.partition_by("group_index", maintain_order=True)
        started = time.perf_counter()
        for index, group in enumerate(groups):
            target.groups.write(index, group)
        target.write("sampled", sampled)
        target.write("scored", scored)
        target.write_commit(commit)
        times.append(time.perf_counter() - started)
        started = time.perf_counter()
        index_step(again, step, scored)
        indexing += time.perf_counter() - started
    return times, indexing / len(times)


def log_share(environment: dict[str, str], folder: Path) -> None:
    """Prints what part of a nano step is recording it."""
    pool, run = folder / "pool", folder / "run"
    coderl(environment, "curate", *POOL, f"name={pool}")
    words = ("preset=nano", f"pool={pool}", f"log_path={run}", f"max_steps={STEPS_PER_FILE}", *LOG_SETTINGS)
    coderl(environment, "train", *words)
    whole, (recording, index) = median(step_seconds(run)), recording_seconds(run, folder / "again")
    print(f"load {os.getloadavg()[0]:.1f}; {STEPS_PER_FILE} steps of nano, medians: {whole:.3f} s per step, of which")
    print(f"recording {1000 * median(recording):.1f} ms, the index {1000 * index:.1f} ms", end=": ")
    print(f"{(median(recording) + index) / whole:.2%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--log", action="store_true", help="what recording takes of a step of nano")
    arguments = parser.parse_args()
    if arguments.log:
        with servers() as environment, tempfile.TemporaryDirectory(prefix="step-log-") as folder:
            log_share(environment, Path(folder))
        return
    with servers() as environment, tempfile.TemporaryDirectory(prefix="step-overhead-") as folder:
        pool, run = Path(folder) / "pool", Path(folder) / "run"
        coderl(environment, "curate", *POOL, f"name={pool}")
        words = ("preset=nano", f"pool={pool}", f"log_path={run}", f"max_steps={arguments.steps}", *SETTINGS)
        coderl(environment, "train", *words)
        whole = step_seconds(run)
        rows = read_rows(run / "metrics.jsonl")[1 + WARM_UP :]
    phases = [sum(row[f"time_{name}_s"] or 0.0 for name in PHASES) for row in rows]
    overhead = [step - phase for step, phase in zip(whole, phases, strict=True)]
    table = Table(title=f"{len(whole)} steps, milliseconds")
    for title in ("", *PHASES, "overhead", "whole step"):
        table.add_column(title, justify="right")
    series = [*([row[f"time_{name}_s"] or 0.0 for row in rows] for name in PHASES), overhead, whole]
    for label, number in (("median", median), ("90%", lambda values: quantiles(values, n=10)[-1])):
        table.add_row(label, *(f"{1000 * number(values):.0f}" for values in series))
    Console().print(table)


if __name__ == "__main__":
    main()
