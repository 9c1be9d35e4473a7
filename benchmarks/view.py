"""How long the pages of `coderl view` take over a run of a million rollouts, and how much memory.

    python benchmarks/view.py --folder FOLDER [--rows 1001600] [--batch 5008]
    python benchmarks/view.py --folder FOLDER --beside-run PAIRS [--steps 40]

Writes into FOLDER, if it is new or empty, a run of so many rollouts as benchmarks/queries.py writes it (200 steps
of 313 groups of 16; one completion in a hundred has 24,000 tokens, the others 50 to 600) and a pool with its problems.
Then `coderl view` serves it on two cores, and each page is asked for over HTTP: the first time in a fresh process, and
the median of five times after that, in seconds by the clock; the processor's seconds of the server per request; the
most memory that it has had resident. Last, what a page that is left open costs: a look per second for `--looks`.

With `--beside-run` it trains nano twice per pair, with one seed and so with the same completions: once alone, once with
the run's page open in `coderl view`, asked for as the page's script asks. It prints what the steps took, their ratio,
and the viewer's share of the two cores, which tells more: the times of two equal runs differ by several percent. What
the viewer takes to start and to open the page is a column by itself.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from html import unescape
from http.cookiejar import CookieJar
from pathlib import Path
from statistics import median

import polars as pl
from queries import CORES, GROUP, PROBLEMS, REPEATS, SPLITS, write_run
from rich.console import Console
from rich.table import Table

import coderl_tasks
from coderl_tasks.journal.atomic import write_parquet
from coderl_tasks.paths import POOL_FILE, PROJECT_ROOT
from coderl_tasks.problems.problem import Problem, Test, problems_frame
from coderl_tasks.view.library import address

TESTS = 15
RARE, COMMON = "stacked, dense uses smaller type", "return"
"""Texts that a few completions have, and most: they are cut out of the package's source."""


def write_all(folder: Path, rows: int, batch: int) -> None:
    text = "".join(file.read_text() for file in sorted(Path(coderl_tasks.__file__).parent.rglob("*.py")))
    write_run(folder / "run", 0, rows, batch, text)
    tests = tuple(Test(f"{number}\n" * 20, f"{number}\n") for number in range(TESTS))
    problems = []
    for number in range(PROBLEMS):
        split = str(SPLITS[number % 3])
        about = (f"{split}-{number:05d}", split, text[number : number + 1_500], "", "stdin", "")
        problems.append(Problem(*about, tests, TESTS, TESTS, None, (), number))  # type: ignore[arg-type]
    pool = folder / "pool" / POOL_FILE
    pool.parent.mkdir()
    write_parquet(pool, problems_frame(problems))
    config = folder / "run" / "config.json"
    # A tokenizer that is there: pages decode prompts, also where most of the drawn tokens are none of its own.
    own = {"pool": str(pool), "group_size": batch // GROUP, "model_name": str(PROJECT_ROOT / "data" / "nano")}
    config.write_text(json.dumps(json.loads(config.read_text()) | own))


def pages(run: Path) -> dict[str, str]:
    """What is asked for: a name for people, and the address."""
    groups = pl.scan_parquet(run / "index" / "*.parquet").group_by("problem_id").len().sort("len").collect()
    problem = groups["problem_id"][-1]
    steps = sorted(int(step.name) for step in (run / "steps").iterdir())
    middle, last = steps[len(steps) // 2], steps[-1]
    rows = pl.scan_parquet(run / "steps" / f"{middle:06d}" / "scored.parquet")
    long = rows.filter(pl.col("stop_reason") == "length").select("group_index", "sample_index").head(1).collect().row(0)

    def found(**asked: str) -> str:
        return address("run", "run", "search", **asked)

    return {
        "run": "/run/run",
        "run, all metrics": "/run/run?all=1",
        "step": f"/run/run/step/{middle}",
        "problem": address("run", "run", "problem", id=problem),
        "completion": f"/run/run/step/{middle}/0/0",
        "completion of 24,000 tokens": f"/run/run/step/{middle}/{long[0]}/{long[1]}",
        "evaluation": "/run/run/eval/final",
        "search in an evaluation": found(verdict="passed", eval="final"),
        "completion of an evaluation": "/run/run/eval/final/7",
        "search: verdict": found(verdict="time_limit"),
        "search: problem": found(problem=problem),
        "search: verdict and steps": found(verdict="passed", first="10", last="20"),
        "search: a frequent text": found(q=COMMON, within="code"),
        "search: a rare text": found(q=RARE),
        "search: a text that is nowhere": found(q="there is no such text"),
        "search: text and problem": found(q=COMMON, problem=problem),
        "whether it has gone on": "/run/run/state",
        "last step": f"/run/run/step/{last}",
    }


class Server:
    """`coderl view RUN` in a process of its own."""

    def __init__(self, run: Path) -> None:
        command = [sys.executable, "-m", "coderl_tasks.cli", "view", str(run), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        printed = self.process.stdout.readline().strip()
        self.origin = "/".join(printed.split("/")[:3])
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self.get(printed.replace("/run/run?", "/?").removeprefix(self.origin))

    def get(self, path: str) -> bytes:
        with self._opener.open(self.origin + path, timeout=300) as answer:
            return bytes(answer.read())

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1000

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


SKIPPED = 5  # first steps, while the servers start


def trained(pool: Path, run: Path, steps: int, *, watched: bool) -> tuple[float, float, float]:
    """Trains nano for `steps`: the seconds of those after step SKIPPED. With its page open (`watched`) also what
    `left_open` returns, else zeros."""
    settings = ["preset=nano", f"pool={pool}", f"max_steps={steps}", "eval_every=-1", "save_every=0", "seed=3"]
    command = [sys.executable, "-m", "coderl_tasks.cli", "train", *settings, f"log_path={run}"]
    with (run.parent / f"{run.name}.log").open("wb") as log:
        training = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    opening, share = 0.0, 0.0
    while not (run / "steps" / f"{SKIPPED - 1:06d}" / "commit.json").exists() and training.poll() is None:
        time.sleep(0.2)
    if watched:
        server = Server(run)
        try:
            opening, share = left_open(server, f"/run/{run.name}", training)
        finally:
            server.end()
    if training.wait():
        raise SystemExit(f"the training ended with status {training.returncode}: see {run}.log")
    rows = pl.read_ndjson(run / "metrics.jsonl", infer_schema_length=None).drop_nulls("time_step_s")
    return float(rows.filter(pl.col("step") > SKIPPED)["time_step_s"].sum()), opening, share


def left_open(server: Server, page: str, training: "subprocess.Popen[bytes]") -> tuple[float, float]:
    """Looks each second until the training ends, as view.js does. The server's seconds of CPU until the page is open,
    and its share of the cores from then on."""
    text = server.get(page).decode()
    time.sleep(5.0)  # what else it imports once the page is shown
    watched = unescape(text.partition('data-watched="')[2].partition('"')[0])
    began, before, state = time.perf_counter(), server.cpu_s(), None
    while training.poll() is None:
        found = json.loads(server.get(watched))["state"]
        if found != state:
            state = found
            server.get(page)
        time.sleep(1.0)
    return before, (server.cpu_s() - before) / (time.perf_counter() - began) / CORES


def beside_run(folder: Path, pairs: int, steps: int) -> None:
    pool = folder / "nano-pool"
    if not (pool / POOL_FILE).is_file():
        command = [sys.executable, "-m", "coderl_tasks.cli", "curate", "preset=nano", f"name={pool}"]
        subprocess.run(command, check=True)
    table = Table(title=f"seconds of {steps - SKIPPED - 1} steps of nano on {CORES} cores")
    for title in ("pair", "alone", "with the page open", "ratio", "s of CPU to open", "the viewer's share"):
        table.add_column(title, justify="right")
    shares: list[float] = []
    for pair in range(pairs):
        run, took = folder / f"nano-{os.getpid()}-{pair}", {}  # type: Path, dict[bool, float]
        opening = share = 0.0
        for watched in (False, True) if pair % 2 == 0 else (True, False):
            name = f"{run.name}-{'watched' if watched else 'alone'}"
            took[watched], *cpu = trained(pool, run.with_name(name), steps, watched=watched)
            opening, share = cpu if watched else (opening, share)
        shares.append(share)
        alone, beside = took[False], took[True]
        cells = f"{alone:.1f}", f"{beside:.1f}", f"{beside / alone:.3f}", f"{opening:.1f}", f"{share:.2%}"
        table.add_row(str(pair), *cells)
    table.add_row("median", "", "", "", "", f"{median(shares):.2%}")
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the run is, or is to be written")
    parser.add_argument("--rows", type=int, default=1_001_600, help="rollouts of the run")
    parser.add_argument("--batch", type=int, default=5_008, help="rollouts per step")
    parser.add_argument("--looks", type=int, default=20, help="looks of the page that is left open, one per second")
    parser.add_argument("--beside-run", type=int, metavar="PAIRS", help="instead: what an open page costs a run")
    parser.add_argument("--steps", type=int, default=40, help="steps of each run of --beside-run")
    arguments = parser.parse_args()
    folder = arguments.folder
    if arguments.beside_run:
        beside_run(folder, arguments.beside_run, arguments.steps)
        return
    if not any(folder.glob("*")):  # it is new or empty
        write_all(folder, arguments.rows, arguments.batch)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # the server inherits it
    run = folder / "run"
    files = list(run.glob("steps/*/scored.parquet"))
    print(f"{run}: {len(files):,} steps, {sum(file.stat().st_size for file in files) / 1e9:.2f} GB of rollouts")
    table = Table(title=f"seconds on {CORES} cores; median of {REPEATS}")
    for title in ("page", "first", "then", "of CPU", "kB", "peak MB"):
        table.add_column(title, justify="left" if title == "page" else "right")
    server = Server(run)
    try:
        for name, path in pages(run).items():
            first = seconds(lambda path=path: server.get(path))  # type: ignore[misc]
            before = server.cpu_s()
            later = [seconds(lambda path=path: server.get(path)) for _ in range(REPEATS)]  # type: ignore[misc]
            cpu = (server.cpu_s() - before) / REPEATS
            size = len(server.get(path)) / 1000
            table.add_row(
                name, f"{first:.2f}", f"{median(later):.2f}", f"{cpu:.2f}", f"{size:.0f}", f"{server.peak_mb():.0f}"
            )
        before = server.cpu_s()
        for _ in range(arguments.looks):
            server.get("/run/run/state")
            time.sleep(1.0)
        idle = (server.cpu_s() - before) / arguments.looks
    finally:
        server.end()
    Console(width=120).print(table)
    print(f"a page left open: {idle:.4f} s of CPU per second, without new steps")
    print(f"load at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
