"""What kills cost: the time of a training run that nobody disturbs over that of one which is killed again and again.

    python benchmarks/effective_time.py [--steps 21] [--every 10] [--slow 7]

A real `coderl train` of nano on servers that stay up (Tinker, sandbox, Prefect). The second run is killed with SIGKILL
whenever so many more steps are committed, at a moment drawn from the step that then is under way, and started again by
the same command at once: what it had in flight, its start, the restored state and replayed updates all count. With
`--slow` gateways in front of the servers make a step take about so many seconds, three sevenths of them to sample and
two each to grade and to train; without, steps take what nano's take.

A start's seconds are those from the command to its first request for samples.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from overlap import POOL, Turns, both, coderl, servers
from sampling_gateway import Gateway

from coderl_tasks.journal.atomic import read_rows
from coderl_tasks.journal.run_directory import committed_steps

GROUPS, COMPLETIONS = 8, 2
SIZES = (f"batch_size={GROUPS * COMPLETIONS}", f"group_size={GROUPS}", "max_tokens=64")
LOOK_S = 0.05
SHARES = {"/asample": 3 / 7 / GROUPS, "/run_code": 2 / 7 / (GROUPS * COMPLETIONS), "/optim_step": 2 / 7}
"""Of a slowed step's seconds, what one request of its kind takes."""


@dataclass
class Run:
    """A run: how long it took in all, and each start until its first request for samples."""

    seconds: float = 0.0
    starts: list[float] = field(default_factory=list)


def train(command: list[str], environment: dict[str, str], folder: Path, gateway: Gateway, every: int) -> Run:
    """Run `command` to its end, killed after each `every` steps (0: never)."""
    draw, run, begun = random.Random(0), Run(), time.monotonic()
    with (folder / "output").open("a") as output:
        while True:
            due = committed_steps(folder / "run") // every * every + every if every else sys.maxsize
            requests, started = len(gateway.seeds), time.monotonic()
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
            if gateway.wait_for(requests + 1, process):
                run.starts.append(time.monotonic() - started)
            while process.poll() is None and committed_steps(folder / "run") < due:
                time.sleep(LOOK_S)
            if process.poll() is None:
                rows = [row["time_step_s"] for row in read_rows(folder / "run" / "metrics.jsonl")]
                time.sleep(draw.uniform(0, median(rows)))
                process.kill()
            if process.wait() == 0:
                run.seconds = time.monotonic() - begun
                return run
            if process.returncode > 0:
                sys.exit(f"ended with {process.returncode}: {(folder / 'output').read_text()[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=21)
    parser.add_argument("--every", type=int, default=10, help="steps between kills (default: 10)")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds of a step (default: nano's own)")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        environment = stack.enter_context(servers())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="effective-time-")))
        coderl(environment, "curate", *POOL, f"name={folder / 'pool'}")
        turns = {path: Turns(path, share * arguments.slow) for path, share in SHARES.items()}
        tinker = Gateway(environment["TINKER_BASE_URL"], both(turns["/asample"], turns["/optim_step"]))
        sandbox = Gateway(environment["SANDBOX_URL"], turns["/run_code"])
        stack.enter_context(tinker.serving())
        stack.enter_context(sandbox.serving())
        environment = {**environment, "TINKER_BASE_URL": tinker.url, "SANDBOX_URL": sandbox.url}
        runs = []
        for name, every in (("quiet", 0), ("killed", arguments.every)):
            (folder / name).mkdir()
            words = ["preset=nano", f"pool={folder / 'pool'}", f"max_steps={arguments.steps}", "eval_every=-1"]
            words += [f"log_path={folder / name / 'run'}", *(SIZES if arguments.slow else ())]
            command = [sys.executable, "-m", "coderl_tasks.cli", "train", *words]
            runs.append(train(command, environment, folder / name, tinker, every))
            steps = [row["time_step_s"] for row in read_rows(folder / name / "run" / "metrics.jsonl")]
            starts = ", ".join(f"{seconds:.1f}" for seconds in runs[-1].starts)
            print(f"{name}: {runs[-1].seconds:.1f} s, step {median(steps):.2f} s (median), starts {starts}", flush=True)
    print(f"{arguments.steps} steps, killed every {arguments.every}; load {os.getloadavg()[0]:.1f}: ", end="")
    print(f"effective training time {runs[0].seconds / runs[1].seconds:.1%}")


if __name__ == "__main__":
    main()
