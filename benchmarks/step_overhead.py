"""What a GRPO step costs beside sampling, scoring, training and saving: Prefect, the journal, logs, artifacts.

    python benchmarks/step_overhead.py [--steps 25]

A real `coderl train` of nano, with small steps, on the embedded servers and a real Prefect server. A step's overhead is
the time from one commit to the next, less the seconds that its phases measured.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median, quantiles

from overlap import POOL, WARM_UP, coderl, servers, step_seconds
from rich.console import Console
from rich.table import Table

from coderl_tasks.journal.atomic import read_rows

SETTINGS = ("batch_size=16", "group_size=8", "max_tokens=32", "eval_every=-1", "save_every=0")
PHASES = ("sample", "score", "train", "save")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25)
    arguments = parser.parse_args()
    with servers() as environment, tempfile.TemporaryDirectory(prefix="step-overhead-") as folder:
        pool, run = Path(folder) / "pool", Path(folder) / "run"
        coderl(environment, "curate", *POOL, f"name={pool}")
        words = ("preset=nano", f"pool={pool}", f"log_path={run}", f"max_steps={arguments.steps}", *SETTINGS)
        coderl(environment, "train", *words)
        whole = step_seconds(run)
        rows = read_rows(run / "metrics.jsonl")[1 + WARM_UP :]
    phases = [sum(row[f"time_{name}_s"] for name in PHASES) for row in rows]
    overhead = [step - phase for step, phase in zip(whole, phases, strict=True)]
    table = Table(title=f"{len(whole)} steps, milliseconds")
    for title in ("", *PHASES, "overhead", "whole step"):
        table.add_column(title, justify="right")
    series = [*([row[f"time_{name}_s"] for row in rows] for name in PHASES), overhead, whole]
    for label, number in (("median", median), ("90%", lambda values: quantiles(values, n=10)[-1])):
        table.add_row(label, *(f"{1000 * number(values):.0f}" for values in series))
    Console().print(table)


if __name__ == "__main__":
    main()
