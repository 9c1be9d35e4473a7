"""What sampling one step ahead saves, with services of known speed, and what it does to a real run.

    python benchmarks/overlap.py [--steps 10]
    python benchmarks/overlap.py --nano [--steps 30]

Without --nano the services are slowed down by gateways in front of the embedded ones: they sample 8 groups in 3 s, one
after the other, grade the programs of a step in at most 2 s, likewise, and take 2 s for an optimizer step. What the
embedded servers themselves take comes on top; completions are few and short. A step's time is that between two commits.

With --nano a pool of nano is trained on as the demo does, one step after the other and one step ahead, on the embedded
servers as they are, which share this machine's cores: wall time, and Pass@1 before and after.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from sampling_gateway import Gateway

from coderl_tasks.journal.atomic import read_rows
from coderl_tasks.paths import NANO_MODEL
from coderl_tasks.runtime.prefect_server import embedded_prefect, found_api_url
from coderl_tasks.services import embedded_sandbox, embedded_tinker

SAMPLE_S, SCORE_S, TRAIN_S = 3.0, 2.0, 2.0
GROUPS, COMPLETIONS = 8, 2
MODES = {"one after the other": 0, "one step ahead": 1}
POOL = ("preset=nano", "limit=24", "profile_samples=2", "max_tests=1", "band_low=0", "band_high=1")
SIZES = (f"batch_size={GROUPS * COMPLETIONS}", f"group_size={GROUPS}", "max_tokens=64")
WARM_UP = 2
"""Steps at the beginning that are not counted."""


class Turns:
    """Lets one request after the other pass, each after `seconds`; those whose path ends in `path`."""

    def __init__(self, path: str, seconds: float) -> None:
        self.passed = 0
        self._path = path
        self._seconds = seconds
        self._turn = asyncio.Lock()

    async def __call__(self, path: str) -> None:
        if path.endswith(self._path):
            async with self._turn:
                await asyncio.sleep(self._seconds)
                self.passed += 1


def both(*turns: Turns) -> Callable[[str], Awaitable[None]]:
    async def admit(path: str) -> None:
        for turn in turns:
            await turn(path)

    return admit


@contextmanager
def servers(model: str = NANO_MODEL) -> Iterator[dict[str, str]]:
    """The embedded servers, Tinker with `model`, as an environment that makes a command use them."""
    with ExitStack() as stack:
        prefect = found_api_url() or stack.enter_context(embedded_prefect())
        tinker = stack.enter_context(embedded_tinker(model))
        sandbox = stack.enter_context(embedded_sandbox())
        yield {
            **os.environ,
            "TINKER_BASE_URL": tinker.url,
            "TINKER_API_KEY": tinker.key,
            "SANDBOX_URL": sandbox.address,
            "PREFECT_API_URL": prefect,
        }


def coderl(environment: dict[str, str], *words: str) -> float:
    """Run a command; its seconds."""
    started = time.monotonic()
    command = [sys.executable, "-m", "coderl_tasks.cli", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return time.monotonic() - started


def step_seconds(run: Path) -> list[float]:
    """Seconds from each commit to the next."""
    times = [file.stat().st_mtime for file in sorted(run.glob("steps/*/commit.json"))]
    return [later - earlier for earlier, later in pairwise(times)][WARM_UP:]


def slowed(environment: dict[str, str], folder: Path, steps: int) -> list[dict[str, Any]]:
    coderl(environment, "curate", *POOL, f"name={folder / 'pool'}")
    rows = []
    for mode, ahead in MODES.items():
        sampling = Turns("/asample", SAMPLE_S / GROUPS)
        training = Turns("/optim_step", TRAIN_S)
        scoring = Turns("/run_code", SCORE_S / (GROUPS * COMPLETIONS))
        tinker = Gateway(environment["TINKER_BASE_URL"], both(sampling, training))
        sandbox = Gateway(environment["SANDBOX_URL"], scoring)
        run = folder / f"slowed-{ahead}"
        with tinker.serving(), sandbox.serving():
            slow = {**environment, "TINKER_BASE_URL": tinker.url, "SANDBOX_URL": sandbox.url}
            words = ("preset=nano", f"pool={folder / 'pool'}", f"log_path={run}", f"max_steps={steps}", *SIZES)
            coderl(slow, "train", *words, "eval_every=-1", "save_every=0", f"max_steps_off_policy={ahead}")
        score_s = SCORE_S / (GROUPS * COMPLETIONS) * scoring.passed / steps
        train_s = TRAIN_S * training.passed / steps
        step_s = median(step_seconds(run))
        rows.append(
            {
                "mode": mode,
                "sample": f"{SAMPLE_S:.2f} s",
                "score": f"{score_s:.2f} s",
                "train": f"{train_s:.2f} s",
                "sum": f"{SAMPLE_S + score_s + train_s:.2f} s",
                "step, median": f"{step_s:.2f} s",
                "step / longest stage": f"{step_s / max(SAMPLE_S, score_s, train_s):.2f}",
                "step / sum": f"{step_s / (SAMPLE_S + score_s + train_s):.2f}",
            }
        )
    return rows


def nano(environment: dict[str, str], folder: Path, steps: int) -> list[dict[str, Any]]:
    coderl(environment, "curate", "preset=nano", f"name={folder / 'pool'}")
    rows = []
    for mode, ahead in MODES.items():
        run = folder / f"nano-{ahead}"
        words = ("preset=nano", f"pool={folder / 'pool'}", f"log_path={run}", f"max_steps={steps}", "eval_every=1000")
        coderl(environment, "train", *words, f"max_steps_off_policy={ahead}")
        seconds = step_seconds(run)
        gaps = [abs(row["kl_sample_train"]) for row in read_rows(run / "metrics.jsonl") if row.get("kl_sample_train")]
        before, after = (json.loads((run / f"evals/{name}/summary.json").read_text()) for name in ("baseline", "final"))
        rows.append(
            {
                "mode": mode,
                "steps": steps,
                "steps counted": len(seconds),
                "together": f"{sum(seconds):.1f} s",
                "step, median": f"{median(seconds):.2f} s",
                "|kl|, median": f"{median(gaps):.1e}",
                "Pass@1 before": f"{before['pass_at_1']:.1%}",
                "after": f"{after['pass_at_1']:.1%} [{after['ci_low']:.1%}, {after['ci_high']:.1%}]",
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nano", action="store_true", help="real runs of nano instead of slowed services")
    parser.add_argument("--steps", type=int, help="of each run (default: 10, with --nano 30)")
    arguments = parser.parse_args()
    measure, steps = (nano, arguments.steps or 30) if arguments.nano else (slowed, arguments.steps or 10)
    with servers() as environment, tempfile.TemporaryDirectory(prefix="overlap-") as folder:
        rows = measure(environment, Path(folder), steps)
    table = Table(title="real runs of nano" if arguments.nano else "services slowed down")
    for title in rows[0]:
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
