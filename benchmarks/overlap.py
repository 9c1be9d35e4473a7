"""How near sampling ahead comes to a service that samples all the time, with services of drawn speed.

    python benchmarks/overlap.py [--groups 8] [--steps 40] [--lags 0 1 2 4]

The services are slowed down by gateways in front of the embedded ones. A group is sampled in a time drawn from a
log-normal distribution with the median SAMPLE_S and sigma 1, so that the slowest of a step takes several times as long
as most; SLOTS groups are sampled at a time. The programs of a step are graded in at most SCORE_S, one after the other,
and an optimizer step takes TRAIN_S. What the embedded servers themselves take comes on
top; completions are few and short. Every run meets the same times in the order of its requests.

With SLOTS busy all the time sampling would take the sum of these times over SLOTS: that is the limit. Printed is how
much of it is reached from the first request to the last commit; and up to the last request, without the end of the run,
where there is nothing left to sample. A step's time is that between two commits.
"""

import argparse
import asyncio
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from sampling_gateway import Gateway

from coderl_tasks.paths import NANO_MODEL
from coderl_tasks.runtime.prefect_server import embedded_prefect, found_api_url
from coderl_tasks.services import embedded_sandbox, embedded_tinker

SAMPLE_S, SIGMA, SCORE_S, TRAIN_S = 3.0, 1.0, 2.0, 2.0
SLOTS, COMPLETIONS = 8, 2
POOL = ("preset=nano", "limit=24", "profile_samples=2", "max_tests=1", "band_low=0", "band_high=1")
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


class Sampling:
    """Lets requests to sample pass, each after seconds drawn from a log-normal distribution; `passed` has when each of
    them came (time.monotonic), and its seconds."""

    def __init__(self, seed: int) -> None:
        self.passed: list[tuple[float, float]] = []
        self._draw = random.Random(seed)

    async def __call__(self, path: str) -> None:
        if path.endswith("/asample"):
            seconds = self._draw.lognormvariate(math.log(SAMPLE_S), SIGMA)
            self.passed.append((time.monotonic(), seconds))
            await asyncio.sleep(seconds)


def both(*delays: Callable[[str], Awaitable[None]]) -> Callable[[str], Awaitable[None]]:
    async def admit(path: str) -> None:
        for delay in delays:
            await delay(path)

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


def slowed(environment: dict[str, str], folder: Path, groups: int, steps: int, lag: int) -> dict[str, str]:
    """One run of so many steps, as a row of the table."""
    sampling, training = Sampling(seed=0), Turns("/optim_step", TRAIN_S)
    scoring = Turns("/run_code", SCORE_S / (groups * COMPLETIONS))
    tinker = Gateway(environment["TINKER_BASE_URL"], both(sampling, training))
    sandbox = Gateway(environment["SANDBOX_URL"], scoring)
    run = folder / f"lag-{lag}"
    with tinker.serving(), sandbox.serving():
        slow = {**environment, "TINKER_BASE_URL": tinker.url, "SANDBOX_URL": sandbox.url}
        words = ("preset=nano", f"pool={folder / 'pool'}", f"log_path={run}", "max_tokens=64")
        sizes = (f"max_steps={steps}", f"batch_size={groups * COMPLETIONS}", f"group_size={groups}")
        quiet = ("eval_every=-1", "save_every=0", f"sample_concurrency={SLOTS}")
        coderl(slow, "train", *words, *sizes, *quiet, f"max_steps_off_policy={lag}")
    # Clocks of the file system and of this process differ by a constant.
    offset = time.time() - time.monotonic()
    committed = max(file.stat().st_mtime for file in run.glob("steps/*/commit.json")) - offset
    # Without those of the probe, with which a run on a service begins.
    sampling.passed = sorted(sampling.passed)[-steps * groups :]
    begun, last = sampling.passed[0][0], sampling.passed[-1][0]
    wanted = sum(seconds for _, seconds in sampling.passed)
    by_then = sum(min(seconds, last - came) for came, seconds in sampling.passed)
    times = step_seconds(run)
    return {
        "groups": str(groups),
        "max_steps_off_policy": str(lag),
        "a group's sampling, mean": f"{wanted / len(sampling.passed):.2f} s",
        "score per step": f"{SCORE_S / (groups * COMPLETIONS) * scoring.passed / steps:.2f} s",
        "step, median": f"{median(times):.2f} s",
        "mean": f"{fmean(times):.2f} s",
        "limit per step": f"{wanted / SLOTS / steps:.2f} s",
        "of the limit, whole run": f"{wanted / SLOTS / (committed - begun):.0%}",
        "of the limit, while there is something to sample": f"{by_then / SLOTS / (last - begun):.0%}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=SLOTS, help=f"of a step; {SLOTS} are sampled at a time")
    parser.add_argument("--steps", type=int, default=40, help="of each run")
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2, 4], help="max_steps_off_policy of each run")
    arguments = parser.parse_args()
    rows = []
    with servers() as environment, tempfile.TemporaryDirectory(prefix="overlap-") as folder:
        coderl(environment, "curate", *POOL, f"name={Path(folder) / 'pool'}")
        for lag in arguments.lags:
            rows.append(slowed(environment, Path(folder), arguments.groups, arguments.steps, lag))
            print(rows[-1], flush=True)
    table = Table(*rows[0], box=MARKDOWN)
    for row in rows:
        table.add_row(*row.values())
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
