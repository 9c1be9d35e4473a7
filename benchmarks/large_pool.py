"""What memory a training run takes whose pool has gigabytes of tests.

    python benchmarks/large_pool.py [--gigabytes 4] [--problems 24000] [--steps 5]

The train problems of data/mini, over and over under other ids, their tests' inputs padded with blank lines to as many
bytes as asked for: as many problems and as much text as a pool of DeepCoder has, of which the nano model solves some. A
real `coderl train` runs on it, on the embedded servers; its largest resident set is what the kernel counted, its time
that of the whole command, reading the pool and making 24,000 prompts included. In the same run a pool of the first 240
of these problems, for what the run takes anyway.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from overlap import servers
from rich.console import Console
from rich.table import Table

from coderl_tasks.filtering.parts import PROBLEM_FIELDS, writing
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.problems import Test, load_problems

SMALL = 240


def write_pool(path: Path, count: int, size: int) -> None:
    """A pool of `count` problems, whose tests have about `size` bytes in all."""
    problems = load_problems(str(PROJECT_ROOT / "data" / "mini"), role="train").problems
    with writing(path, pa.schema(PROBLEM_FIELDS), "zstd") as add:
        for number in range(count):
            problem = problems[number % len(problems)]
            padding = "\n" * (size // count // len(problem.tests))
            tests = tuple(Test(test.input + padding, test.expected) for test in problem.tests)
            add(replace(problem, problem_id=f"{number:016x}", tests=tests).to_row(), size // count)


def trained(environment: dict[str, str], *words: str) -> tuple[float, float]:
    """Run `coderl train`; its seconds, and the megabytes of its largest resident set."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        command = [sys.executable, "-m", "coderl_tasks.cli", "train", *words]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            output.seek(0)
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {output.read().decode()}")
    return time.monotonic() - started, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--problems", type=int, default=24_000)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    table = Table("problems", "tests, GB", "pool.parquet, MB", "largest resident set, MB", "seconds")
    with servers() as environment, tempfile.TemporaryDirectory(prefix="large-pool-") as temporary:
        for count in (SMALL, options.problems):
            folder = Path(temporary) / str(count)
            folder.mkdir()
            gigabytes = options.gigabytes * count / options.problems
            write_pool(folder / "pool.parquet", count, round(gigabytes * 1e9))
            words = ("preset=nano", f"pool={folder / 'pool.parquet'}", f"log_path={folder / 'run'}")
            seconds, megabytes = trained(environment, *words, f"max_steps={options.steps}", "eval_every=-1")
            on_disk = (folder / "pool.parquet").stat().st_size / 1e6
            table.add_row(f"{count:,}", f"{gigabytes:.2f}", f"{on_disk:.0f}", f"{megabytes:,.0f}", f"{seconds:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
