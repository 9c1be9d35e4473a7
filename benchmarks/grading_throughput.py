"""Candidates graded a second: the judge on the embedded sandbox, against one cold Python a candidate.

    python benchmarks/grading_throughput.py [--candidates 200] [--url http://...]

Each candidate is a tiny program on a problem of ten tests, half of them right. The cold Python imports numpy and runs
all tests of a candidate in its one process, as the usual harness does. Tests a second are set against bare forks that
run the same code, as many loops at once as there are cores: of a bare interpreter, and of one that has imported the
prelude whose names every candidate may use. CPU seconds tell more than wall seconds on a machine that others use.
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.services import embedded_sandbox

N_TESTS = 10
RIGHT = "a, b = map(int, input().split())\nprint(a + b)\n"
WRONG = "a, b = map(int, input().split())\nprint(a - b - 1)\n"
PRELUDE = """
import typing, string, re, datetime, heapq, bisect, copy, math, random, statistics, itertools, functools, operator, io
import sys, json, collections, builtins
"""
COLD = """
import contextlib, io, sys
import numpy
code = compile(sys.argv[1], "solution.py", "exec")
for line in sys.stdin.read().splitlines():
    sys.stdin = io.StringIO(line)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, {"__name__": "__main__"})
"""
BARE = """
import io, os, sys
exec(sys.argv[4])
code = compile(sys.argv[1], "solution.py", "exec")
for _ in range(int(sys.argv[3])):
    pid = os.fork()
    if pid == 0:
        sys.stdin, sys.stdout = io.StringIO(sys.argv[2]), io.StringIO()
        exec(code, {"__name__": "__main__"})
        os._exit(0)
    os.waitpid(pid, 0)
"""


@dataclass
class Measured:
    candidates: int
    tests: int
    wall_s: float
    cpu_s: float


def problem() -> Problem:
    tests = tuple(Test(f"{n} {7 * n}\n", f"{8 * n}\n") for n in range(1, N_TESTS + 1))
    return Problem("add", "", "", "", "stdin", "", tests, N_TESTS, N_TESTS, None, (), 0)


def candidates(n: int) -> list[str]:
    return [(WRONG, RIGHT)[index % 2] + f"# {index}" for index in range(n)]


def cpu_of_tree(pid: int) -> float:
    """CPU seconds of a process, of its living descendants, and of all those that were waited for."""
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
            times[int(stat.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total, waiting = 0.0, [pid]
    while waiting:
        current = waiting.pop()
        total += times.get(current, 0.0)
        waiting += children.get(current, [])
    return total


@contextlib.contextmanager
def measuring(n: int) -> Iterator[Measured]:
    measured = Measured(n, 0, 0.0, 0.0)
    started, cpu = time.perf_counter(), cpu_of_tree(os.getpid())
    yield measured
    measured.wall_s = time.perf_counter() - started
    measured.cpu_s = cpu_of_tree(os.getpid()) - cpu


async def by_judge(url: str, n: int) -> Measured:
    async with SandboxClient([url]) as client:
        judge = Judge(client)
        await asyncio.gather(*(judge.grade(problem(), code) for code in candidates(4)))
        with measuring(n) as measured:
            grades = await asyncio.gather(*(judge.grade(problem(), code) for code in candidates(n)))
    assert [grade.passed for grade in grades] == [index % 2 == 1 for index in range(n)]
    measured.tests = sum(grade.tests_run for grade in grades)
    return measured


def by_cold_python(n: int) -> Measured:
    lines = "".join(test.input for test in problem().tests)

    def run(code: str) -> None:
        subprocess.run([sys.executable, "-c", COLD, code], input=lines, text=True, check=True)

    with measuring(n) as measured, ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, candidates(n)))
    measured.tests = n * N_TESTS
    return measured


def by_bare_fork(n: int, before: str = "") -> Measured:
    """One process after the other on each core, with nothing around it: no isolation, no limits, no results.

    `before` is run once in each parent.
    """
    cores = os.cpu_count() or 1
    command = [sys.executable, "-I", "-S", "-c", BARE, RIGHT, problem().tests[0].input, str(n // cores), before]
    with measuring(n) as measured:
        loops = [subprocess.Popen(command) for _ in range(cores)]
        if max(loop.wait() for loop in loops) != 0:
            raise RuntimeError("the loop of bare forks failed")
    measured.tests = cores * (n // cores)
    measured.candidates = measured.tests
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--candidates", type=int, default=200)
    parser.add_argument("--url", help="a running sandbox server (its CPU time is not counted)")
    options = parser.parse_args()
    n = options.candidates
    rows = {
        "bare fork + exec, no isolation": by_bare_fork(N_TESTS * n),
        "the same, the prelude imported": by_bare_fork(N_TESTS * n, PRELUDE),
    }
    if options.url:
        rows["judge"] = asyncio.run(by_judge(options.url, n))
    else:
        with embedded_sandbox() as server:
            rows["judge, embedded sandbox"] = asyncio.run(by_judge(server.address, n))
    rows["cold Python with numpy, a candidate each"] = by_cold_python(max(4, n // 10))
    table = Table(title=f"{N_TESTS} tests a candidate, half of the candidates right, {os.cpu_count()} cores")
    for heading in ("", "candidates/s", "tests/s", "CPU ms/candidate", "CPU ms/test"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, row in rows.items():
        per_candidate = f"{1000 * row.cpu_s / row.candidates:.1f}" if row.candidates != row.tests else "-"
        rate = f"{row.candidates / row.wall_s:.1f}" if row.candidates != row.tests else "-"
        table.add_row(name, rate, f"{row.tests / row.wall_s:.0f}", per_candidate, f"{1000 * row.cpu_s / row.tests:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
