"""A long training run of nano on servers of its own: memory of each process and space on the disk, row by row.

    python benchmarks/long_run.py [--steps 2000] [--every 200] [--problems 2] [--completions 4] [--folder FOLDER]

Trains on the problems of data/mini, unprofiled: what grows, and not what is learned, is the question. A row is printed
whenever so many more steps are committed. Memory is what is resident (MB) of the run and of each server that it
started; the disk's columns (MB) are the checkpoints and states of the embedded Tinker server, Prefect's database and
the run directory. Small steps are the default, so that 2,000 of them take half an hour on two idle cores; a bare run
(`--problems 8 --completions 16`) takes well over an hour.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import polars as pl

from coderl_tasks.filtering.stages import FilterRequest, filter_dataset
from coderl_tasks.insight.record import tree_bytes
from coderl_tasks.journal.run_directory import committed_steps
from coderl_tasks.services.supervisor import processes_with

LOOK_S = 5.0
PAGE = os.sysconf("SC_PAGE_SIZE")
KINDS = {" train ": "run", "prefect_app": "Prefect", "serve tinker": "Tinker", "sandbox": "sandbox"}
"""What is in the command line of each kind of process, the first that fits."""


def make_pool(folder: Path) -> Path:
    """The problems of data/mini that filtering keeps, as a pool's file."""
    kept = filter_dataset(folder / "screening", FilterRequest("data/mini")).kept
    kept.write(folder / "pool.parquet", pl.DataFrame({"pass_rate": [0.5] * len(kept)}))
    return folder / "pool.parquet"


def resident_mb(home: Path) -> Counter[str]:
    """Resident megabytes by kind of process, of all that were started with this CODERL_HOME."""
    found: Counter[str] = Counter()
    for pid in processes_with("CODERL_HOME", str(home)):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:  # ended meanwhile
            continue
        if "guard.py" not in words:
            found[next((kind for part, kind in KINDS.items() if part in words), "other")] += round(pages * PAGE / 1e6)
    return found


def print_row(*cells: str) -> None:
    print("  ".join(f"{cell:>8}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=200, help="steps between rows (default: 200)")
    parser.add_argument("--problems", type=int, default=2, help="per step (default: 2)")
    parser.add_argument("--completions", type=int, default=4, help="per problem (default: 4)")
    parser.add_argument("--folder", type=Path, help="where everything goes, and stays (default: a temporary one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="long-run-") as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        home, run = folder / "home", folder / "run"
        sizes = (f"problems_per_step={arguments.problems}", f"completions_per_problem={arguments.completions}")
        words = ("preset=nano", f"pool={make_pool(folder)}", f"log_path={run}", f"max_steps={arguments.steps}", *sizes)
        names = ("PREFECT_API_URL", "TINKER_API_KEY", "TINKER_BASE_URL", "SANDBOX_URL")  # empty: servers of its own
        environment = {**os.environ, **dict.fromkeys(names, ""), "CODERL_HOME": str(home)}
        command = [sys.executable, "-m", "coderl_tasks.cli", "train", *words, f"eval_every={arguments.steps}"]
        begun = time.monotonic()
        columns = ("run", "Prefect", "Tinker", "sandbox")
        print(f"{arguments.steps} steps of nano, {arguments.problems} x {arguments.completions} per step; MB")
        print_row("step", "min", *columns, "states", "database", "folder")
        with (folder / "output").open("w") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
            due = arguments.every
            while process.poll() is None:
                time.sleep(LOOK_S)
                steps = committed_steps(run) if run.is_dir() else 0
                if steps < due or not (memory := resident_mb(home))["run"]:
                    continue
                database = sum(file.stat().st_size for file in (home / "prefect").glob("prefect.db*"))
                disk = (tree_bytes(home / "tinker"), database, tree_bytes(run))
                print_row(
                    str(steps),
                    f"{(time.monotonic() - begun) / 60:.0f}",
                    *(str(memory[name]) for name in columns),
                    *(f"{size / 1e6:.0f}" for size in disk),
                )
                due = steps + arguments.every
        if process.returncode:
            sys.exit(f"the run ended with {process.returncode}:\n{(folder / 'output').read_text()[-2000:]}")


if __name__ == "__main__":
    main()
