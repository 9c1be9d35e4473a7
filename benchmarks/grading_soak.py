"""Many candidates in a row through judge, client and embedded sandbox: what grows?

    python benchmarks/grading_soak.py [--candidates 20000]

Right, wrong, crashing, forking, memory-hungry, driver-killing and slow programs, and some that are given up on the way.
After each tenth, when nothing runs, a row says what there is: memory (MiB, shared pages split) of the server, its fork
servers, their workers and this process, the client; open descriptors and TCP connections of all of them; processes,
orphans included; mounts that they see; files in the temporary folder. A quantity has grown if the median of its last
third is over that of its first third by more than the allowance in the last line. Exit status 1 if one has, or if a
verdict was not what it should be.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from sandbox_throughput import family, resident_mib

from coderl_tasks.grading import Judge, SandboxClient, Verdict
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.server_addresses import authorization, without_credentials
from coderl_tasks.services import DEFAULT_SANDBOX_CONCURRENCY, embedded_sandbox
from local_servers.sandbox import kernel

ROWS = 10
SETTLED_S, LONGEST_SETTLING_S = 0.5, 15.0
PR_SET_CHILD_SUBREAPER = 36
READ = "a, b = map(int, input().split())\n"


@dataclass(frozen=True)
class Kind:
    """Programs of one kind: how many in a thousand, and the verdict they must get (None: given up on the way)."""

    per_mille: int
    code: str
    verdict: Verdict | None
    time_limit_s: float | None = None


KINDS = {
    "right": Kind(480, READ + "print(a + b)", Verdict.PASSED),
    "wrong": Kind(250, READ + "print(a - b - 1)", Verdict.WRONG_ANSWER),
    "wrong later": Kind(60, READ + "print(a + b if a < 4 else 0)", Verdict.WRONG_ANSWER),
    "raises": Kind(60, READ + "[][a]", Verdict.RUNTIME_ERROR),
    "no Python": Kind(20, "print(", Verdict.RUNTIME_ERROR),
    "dies": Kind(20, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", Verdict.RUNTIME_ERROR),
    "recursion": Kind(10, "def f(n): return f(n + 1)\nf(0)", Verdict.RUNTIME_ERROR),
    "kills the driver": Kind(5, "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", Verdict.RUNTIME_ERROR),
    "forks": Kind(
        40,
        "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(600)\n"
        + READ
        + "print(a + b)",
        Verdict.PASSED,
    ),
    "leaves files": Kind(
        20,
        "import os\nfor n in range(20):\n    os.mkdir(f'd{n}')\n    open(f'd{n}/f', 'w').write('x' * 9999)\n"
        + READ
        + "print(a + b)",
        Verdict.PASSED,
    ),
    "memory": Kind(10, "x = b'x' * (100 << 20)\n" + READ + "print(a + b)", Verdict.PASSED),
    "too much memory": Kind(10, "x = bytearray(8 << 30)", Verdict.MEMORY_LIMIT),
    "numpy": Kind(5, "import numpy as np\nprint(np.array(list(map(int, input().split()))).sum())", Verdict.PASSED),
    "slow": Kind(5, "while True: pass", Verdict.TIME_LIMIT, 0.2),
    "given up": Kind(5, "import time\ntime.sleep(5)", None),
}
TESTS = tuple(Test(f"{n} {7 * n}\n", f"{8 * n}\n") for n in range(1, 6))
PROBLEM = Problem("add", "", "", "", "stdin", "", TESTS, len(TESTS), len(TESTS), None, (), 0)

# Quantity -> how much more of it is none: a share of what there is, and an amount.
ALLOWANCES = {
    "server MiB": (0.05, 4.0),
    "parents MiB": (0.05, 4.0),
    "workers MiB": (0.05, 4.0),
    "client MiB": (0.05, 8.0),
    "descriptors": (0.0, 0.0),
    "connections": (0.0, 2.0 * DEFAULT_SANDBOX_CONCURRENCY),
    "processes": (0.0, 0.0),
    "mounts": (0.0, 0.0),
    "files": (0.0, 0.0),
}


def kind_of(index: int) -> str:
    """The kind of a candidate; each thousand has all of them, spread."""
    place = index * 389 % 1000
    for name, kind in KINDS.items():
        place -= kind.per_mille
        if place < 0:
            return name
    raise AssertionError("per_mille does not add up to 1000")


def tcp_inodes() -> set[str]:
    return {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]}


def descriptors(pids: list[int]) -> tuple[int, int]:
    """(open descriptors but for TCP connections, TCP connections) of these processes."""
    connections, others = tcp_inodes(), 0
    n_connections = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - a name is enough
                with contextlib.suppress(FileNotFoundError):
                    target = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115 - not a path
                    is_connection = target.removeprefix("socket:[").rstrip("]") in connections
                    n_connections += is_connection
                    others += not is_connection
    return others, n_connections


def mounts(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    return total


def settled_family() -> list[int]:
    """This process and all below it, once none of them has come or gone for `SETTLED_S`."""
    deadline = time.monotonic() + LONGEST_SETTLING_S
    members, since = family(os.getpid()), time.monotonic()
    while time.monotonic() - since < SETTLED_S and time.monotonic() < deadline:
        time.sleep(0.05)
        now = family(os.getpid())
        if now != members:
            members, since = now, time.monotonic()
    return members


def measure(url: str, temporary: str) -> dict[str, float]:
    """Every quantity of `ALLOWANCES`, as it is now."""
    members = settled_family()
    asked = urllib.request.Request(f"{without_credentials(url)}/v1/info", headers=authorization(url))
    with urllib.request.urlopen(asked) as answer:
        info = json.load(answer)
    client, parents = [os.getpid()], info["fork_server_pids"]
    workers = [pid for parent in parents for pid in family(parent)[1:]]
    server = [pid for pid in members if pid not in {*client, *parents, *workers}]
    n_descriptors, n_connections = descriptors(members)
    return {
        "server MiB": resident_mib(server),
        "parents MiB": resident_mib(parents),
        "workers MiB": resident_mib(workers),
        "client MiB": resident_mib(client),
        "descriptors": n_descriptors,
        "connections": n_connections,
        "processes": len(members),
        "mounts": mounts(members),
        "files": sum(1 for _ in Path(temporary).rglob("*")),
    }


async def grade(judge: Judge, index: int) -> str | None:
    """Grade one candidate; what is wrong with its verdict, if anything."""
    name = kind_of(index)
    kind = KINDS[name]
    problem = replace(PROBLEM, time_limit_s=kind.time_limit_s)
    grading = judge.grade(problem, f"{kind.code}\n# {index}")
    if kind.verdict is None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await grading
        return None
    result = await grading
    return None if result.verdict is kind.verdict else f"{name}: {result.verdict} ({result.reason})"


async def soak(url: str, n: int, temporary: str, progress: Progress) -> tuple[list[dict[str, float]], Counter[str]]:
    """A row of quantities for each tenth of `n` candidates, and the verdicts that were not right."""
    rows: list[dict[str, float]] = []
    misjudged: Counter[str] = Counter()
    bar = progress.add_task("grading", total=n)
    async with SandboxClient([url]) as client:
        judge = Judge(client)

        async def work() -> None:
            for index in left:
                fault = await grade(judge, index)
                if fault is not None:
                    misjudged[fault] += 1
                progress.advance(bar)

        numpy_users = [index for index in range(1000) if kind_of(index) == "numpy"]
        await asyncio.gather(*(grade(judge, index) for index in 8 * numpy_users))  # starts every slot's workers
        for tenth in range(ROWS):
            left = iter(range(n * tenth // ROWS, n * (tenth + 1) // ROWS))
            started = time.monotonic()
            await asyncio.gather(*(work() for _ in range(2 * DEFAULT_SANDBOX_CONCURRENCY)))
            seconds = time.monotonic() - started
            done = n * (tenth + 1) // ROWS
            rows.append(measure(url, temporary))
            shown = "  ".join(f"{name} {value:.0f}" for name, value in rows[-1].items())
            progress.console.print(f"{done:6} at {n / ROWS / seconds:3.0f}/s  {shown}", highlight=False)
    return rows, misjudged


def growth(rows: list[dict[str, float]]) -> dict[str, tuple[float, float, float]]:
    """For each quantity: its medians over the first and the last third, and how much growth is allowed."""
    third = max(1, len(rows) // 3)
    medians = {}
    for name, (share, amount) in ALLOWANCES.items():
        first = statistics.median(row[name] for row in rows[:third])
        last = statistics.median(row[name] for row in rows[-third:])
        medians[name] = first, last, max(share * first, amount)
    return medians


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--candidates", type=int, default=20_000)
    n = parser.parse_args().candidates
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans of the sandbox become children of this process, and are counted
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="grading-soak-") as temporary:
        os.environ["TMPDIR"] = temporary
        with embedded_sandbox() as server, Progress(TextColumn("grading"), *columns, console=console) as progress:
            rows, misjudged = asyncio.run(soak(server.address, n, temporary, progress))
    minutes = (time.monotonic() - started) / 60
    table = Table(title=f"{n} candidates, {minutes:.1f} min, {os.cpu_count()} cores")
    for heading in ("candidates", *ALLOWANCES):
        table.add_column(heading, justify="right")
    for tenth, row in enumerate(rows, 1):
        table.add_row(str(n * tenth // ROWS), *(f"{value:.0f}" for value in row.values()))
    table.add_section()
    medians = growth(rows)
    grown = [name for name, (first, last, allowed) in medians.items() if last - first > allowed]
    table.add_row("growth", *(f"{last - first:+.1f}" for first, last, _ in medians.values()))
    table.add_row("allowed", *(f"{allowed:.1f}" for _, _, allowed in medians.values()))
    Console(width=140).print(table)
    for fault, count in misjudged.most_common(10):
        print(f"misjudged {count} times: {fault}")
    print(f"grown: {', '.join(grown) or 'nothing'}; misjudged: {misjudged.total()} of {n}")
    return 1 if grown or misjudged else 0


if __name__ == "__main__":
    sys.exit(main())
