"""Kills a curation at random moments and starts it again until it is done: same pool, nothing recorded sampled twice.

    python benchmarks/curation_kills.py [--kills 10] [--problems 120] [--seed 0] [--screen] [--strengthen] [--json]

A real `coderl curate` of data/mini with the nano model is killed with SIGKILL at moments drawn from the seed: after so
many sampling requests of that start, and then up to a second and a half later, so that starting up, sampling, grading
and writing are all hit. With --strengthen the second half of the kills come after so many problems whose tests that
start has strengthened. Servers are the embedded ones, or those that the environment names. A gateway in front of the
Tinker server notes each sampling request; a request's seed names its problem and round, and so tells whether what is
asked for was recorded before that start. What was in flight at a kill is asked for again: it was not recorded.

Exit code 1 if a file of the pool differs from that of an undisturbed run, or a recorded round was asked for again.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from rich.console import Console
from rich.table import Table
from sampling_gateway import Gateway
from started_commands import Launch, launch

from coderl_tasks.paths import NANO_MODEL
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.runtime.prefect_server import embedded_prefect, found_api_url
from coderl_tasks.services import configured_sandboxes, embedded_sandbox, embedded_tinker

FILES = ("pool.parquet", "dropped.parquet", "profile.parquet", "manifest.json")
DELAY_S = 1.5
STRENGTHEN_DELAY_S = 0.2
"""Shorter: all problems of a small curation are strengthened within seconds."""
FINISH_S = 600.0


class Moment(NamedTuple):
    """When a start is killed: so many seconds after it has made so many requests and strengthened so many problems."""

    requests: int
    strengthened: int
    seconds: float


@dataclass(frozen=True)
class Start:
    """One start of the command: rounds recorded before it, problems strengthened before it, requests it made, those of
    rounds already recorded."""

    recorded: int
    strengthened: int
    requests: int
    again: int
    killed: bool


class Curation:
    """`coderl curate` of some problems in `folder`, as often as it takes."""

    def __init__(
        self,
        folder: Path,
        gateway: Gateway,
        environment: dict[str, str],
        options: argparse.Namespace,
        launch: Launch = launch,
    ) -> None:
        self.folder = folder
        problems = options.problems
        self.gateway = gateway
        self.environment = environment
        self.launch = launch
        sizes = (f"limit={problems}", f"shard_size={max(1, problems // 3)}", "max_tests=3", "sample_concurrency=8")
        # Further passes over shards that are finished. The limits are such that some of few problems are left out.
        screening = ("profile_mode=screen", "screen_skip=0.5", "screen_drop=0.3")
        passes: tuple[str, ...] = screening if options.screen else ("label_samples=2",)
        passes += ("strengthen=4",) if options.strengthen else ()
        data = ("dataset=data/skewed",) if options.screen else ()
        settings = ("preset=nano", "seed=0", *data, *sizes, *passes, f"name={folder}")
        self.files = (*FILES, "strengthened.parquet") if options.strengthen else FILES
        self.words = ("curate", *settings)

    def recorded(self) -> set[int]:
        """The seeds of the rounds recorded so far."""
        seeds = set()
        for file in [*self.folder.glob("shards/*/groups/*.parquet"), *self.folder.glob("shards/*/rollouts.parquet")]:
            for name, number in pl.read_parquet(file, columns=["problem_id", "attempt"]).unique().iter_rows():
                seeds.add(seed_for(0, "profile", number, name))
        return seeds

    def strengthened(self) -> int:
        """How many problems' generated tests are recorded."""
        return sum(file.read_bytes().count(b"\n") for file in self.folder.glob("strengthened/*/checks.jsonl"))

    def start(self, moment: Moment | None) -> Start:
        """Start the command and let it end, or kill it at `moment`."""
        before, first, tested = self.recorded(), len(self.gateway.seeds), self.strengthened()
        with tempfile.TemporaryFile("w+") as output:
            process = self.launch(self.environment, self.words, output)
            killed = False
            try:
                if moment is not None:
                    while process.poll() is None and (
                        len(self.gateway.seeds) - first < moment.requests
                        or self.strengthened() - tested < moment.strengthened
                    ):
                        time.sleep(0.05)
                process.wait(FINISH_S if moment is None else moment.seconds)
            except subprocess.TimeoutExpired:
                killed = True
            finally:
                process.kill()
                code = process.wait()
            if not killed and code != 0:
                output.seek(0)
                raise RuntimeError(f"coderl {' '.join(self.words)} ended with {code}: {output.read()}")
        asked = self.gateway.seeds[first:]
        return Start(len(before), tested, len(asked), sum(seed in before for seed in asked), killed)

    def hashes(self) -> dict[str, str]:
        return {name: sha256((self.folder / name).read_bytes()).hexdigest() for name in self.files}


@contextmanager
def environment() -> Iterator[tuple[Gateway, dict[str, str]]]:
    """The gateway, and the environment that makes a command use it; servers that are missing are started."""
    with ExitStack() as stack:
        target, key = os.environ.get("TINKER_BASE_URL"), os.environ.get("TINKER_API_KEY", "")
        if not target:
            tinker = stack.enter_context(embedded_tinker(NANO_MODEL))
            target, key = tinker.url, tinker.key
        sandboxes = configured_sandboxes() or (stack.enter_context(embedded_sandbox()).address,)
        prefect = found_api_url() or stack.enter_context(embedded_prefect())
        gateway = Gateway(target)
        stack.enter_context(gateway.serving())
        named = {
            "TINKER_BASE_URL": gateway.url,
            "TINKER_API_KEY": key,
            "SANDBOX_URL": ",".join(sandboxes),
            "PREFECT_API_URL": prefect,
        }
        yield gateway, {**os.environ, **named}


def kill_and_compare(
    folder: Path,
    gateway: Gateway,
    environment: dict[str, str],
    options: argparse.Namespace,
    launch: Launch = launch,
) -> dict[str, Any]:
    """A curation undisturbed, then one that is killed as often as the options say; what was found."""
    draw = random.Random(options.seed)
    quiet = Curation(folder / "quiet", gateway, environment, options, launch)
    undisturbed = quiet.start(None)
    harmed = Curation(folder / "harmed", gateway, environment, options, launch)
    starts: list[Start] = []
    first = len(gateway.seeds)
    later = options.kills // 2 if options.strengthen else 0
    for kills_left in range(options.kills - later, 0, -1):
        missing = undisturbed.requests - len(harmed.recorded())
        requests = draw.randint(0, 2 * missing // (kills_left + 1))
        starts.append(harmed.start(Moment(requests, 0, draw.uniform(0, DELAY_S))))
    for kills_left in range(later, 0, -1):
        missing = quiet.strengthened() - harmed.strengthened()
        strengthened = draw.randint(min(1, missing), max(1, 2 * missing // (kills_left + 1)))
        starts.append(harmed.start(Moment(0, strengthened, draw.uniform(0, STRENGTHEN_DELAY_S))))
    starts.append(harmed.start(None))
    times = Counter(gateway.seeds[first:])
    return {
        "kills": sum(start.killed for start in starts),
        "starts": [[start.recorded, start.strengthened, start.requests, start.again, start.killed] for start in starts],
        "undisturbed_requests": undisturbed.requests,
        "requests": sum(times.values()),
        "rounds": len(times),
        "recorded_asked_again": sum(start.again for start in starts),
        "same_files": {name: digest == quiet.hashes()[name] for name, digest in harmed.hashes().items()},
    }


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--problems", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--screen", action="store_true", help="with profile_mode=screen, on data/skewed")
    parser.add_argument("--strengthen", action="store_true", help="with strengthen=4, and kills while tests are made")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON instead of tables")
    return parser


def main() -> None:
    arguments = parser().parse_args()
    with environment() as (gateway, names), tempfile.TemporaryDirectory(prefix="curation-kills-") as temporary:
        outcome = kill_and_compare(Path(temporary), gateway, names, arguments)
    if arguments.json:
        print(json.dumps(outcome))
    else:
        show(outcome, arguments)
    sys.exit(0 if all(outcome["same_files"].values()) and not outcome["recorded_asked_again"] else 1)


def show(outcome: dict[str, Any], arguments: argparse.Namespace) -> None:
    table = Table(
        title=f"{outcome['kills']} kills of a curation of {arguments.problems} problems, seed {arguments.seed}"
    )
    titles = ("start", "rounds recorded before", "problems strengthened before", "requests", "of them recorded before")
    for title in (*titles, "end"):
        table.add_column(title, justify="right")
    for number, (*counts, killed) in enumerate(outcome["starts"], 1):
        table.add_row(*map(str, (number, *counts)), "killed" if killed else "done")
    console = Console(width=120)
    console.print(table)
    console.print(f"requests {outcome['requests']}, undisturbed {outcome['undisturbed_requests']}")
    console.print(f"same bytes: {outcome['same_files']}")


if __name__ == "__main__":
    main()
