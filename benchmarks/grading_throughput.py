"""Candidates graded per second: the judge on the embedded sandbox, against one cold Python per candidate.

    python benchmarks/grading_throughput.py [--candidates 200] [--repeats 3] [--url http://...]
        [--harness tinker-cookbook/tinker_cookbook/recipes/code_rl/lcb_utils.py --fusion http://...]

Each candidate is a tiny program on a problem of ten tests; half of them are right, the others fail at the first test,
or all are right. All rows are measured in turn, `--repeats` times, and the medians shown. Scored as in training are
groups of GROUP completions, by the environment and not the judge alone. The cold Python imports numpy
and runs all tests of a candidate in its one process, with nothing around it: no requests, no files, no isolation, no
verdict. With `--harness` and `--fusion` the Tinker cookbook's harness is measured too, unmodified, on a stock Sandbox
Fusion server with as many requests at once as the cookbook sends. Tests per second are set against bare forks that run
the same code, as many loops at once as there are cores: of a bare interpreter, and of one that has imported the prelude
whose names every candidate may use. CPU seconds tell more than wall seconds on a machine that others use.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import get_args

from rich.console import Console
from rich.table import Table

from coderl_tasks.environments.environment import CODE
from coderl_tasks.grading import Judge, RunRequest, SandboxClient
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.services import embedded_sandbox
from coderl_tasks.settings.flow_settings import IsolationPerTest

N_TESTS = 10
GROUP = 16
HARNESS_AT_ONCE, HARNESS_TEST_TIMEOUT_S = 4, 6
"""What the cookbook's client and `sandbox_check_correctness` take by default."""
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


def candidates(n: int, half_wrong: bool) -> list[str]:
    return [(WRONG if half_wrong and index % 2 == 0 else RIGHT) + f"# {index}" for index in range(n)]


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


async def by_judge(url: str, n: int, half_wrong: bool, isolation_per_test: IsolationPerTest) -> Measured:
    async with SandboxClient([url]) as client:
        judge = Judge(client, isolation_per_test=isolation_per_test)
        await asyncio.gather(*(judge.grade(problem(), code) for code in candidates(4, half_wrong)))
        with measuring(n) as measured:
            grades = await asyncio.gather(*(judge.grade(problem(), code) for code in candidates(n, half_wrong)))
    assert sum(grade.passed for grade in grades) == (n // 2 if half_wrong else n)
    measured.tests = sum(grade.tests_run for grade in grades)
    return measured


async def by_environment(url: str, n: int) -> Measured:
    """Completions of which half are right, scored as a training step scores its groups."""
    completions = [f"```python\n{code}\n```" for code in candidates(n, half_wrong=True)]
    groups = [completions[first : first + GROUP] for first in range(0, n, GROUP)]
    async with SandboxClient([url]) as client:
        judge = Judge(client)
        await CODE.score(judge, problem(), completions[:4])
        with measuring(n) as measured:
            scored = await asyncio.gather(*(CODE.score(judge, problem(), texts) for texts in groups))
    grades = [each.grade for group in scored for each in group]
    assert sum(grade.passed for grade in grades) == n // 2
    measured.tests = sum(grade.tests_run for grade in grades)
    return measured


def by_cold_python(n: int) -> Measured:
    lines = "".join(test.input for test in problem().tests)

    def run(code: str) -> None:
        subprocess.run([sys.executable, "-c", COLD, code], input=lines, text=True, check=True)

    with measuring(n) as measured, ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, candidates(n, half_wrong=True)))
    measured.tests = n * N_TESTS
    return measured


async def by_harness(url: str, n: int, half_wrong: bool, harness: Path) -> Measured:
    """The cookbook's harness, as its client sends it: all tests of a candidate in one request, four at once.

    CPU time is that of another process tree, and not counted.
    """
    parts = runpy.run_path(str(harness))
    inputs = [test.input for test in problem().tests]
    sums = [f"{sum(map(int, line.split()))}\n" for line in inputs]
    tests = {"input_output": json.dumps({"inputs": inputs, "outputs": sums})}
    files = {"test_cases.txt": json.dumps(tests).encode(), "testing_util.py": parts["TEST_UTIL"].encode()}

    async with SandboxClient([url], max_concurrency=HARNESS_AT_ONCE) as client:

        async def passed(code: str) -> bool:
            program = parts["TEST_CODE"] % {"timeout": HARNESS_TEST_TIMEOUT_S}
            limit_s = (HARNESS_TEST_TIMEOUT_S + 1) * N_TESTS + 5
            result = await client.run_code(RunRequest(program, files | {"code.py": code.encode()}, (), limit_s))
            return result.return_code == 0

        await asyncio.gather(*map(passed, candidates(4, half_wrong)))
        with measuring(n) as measured:
            verdicts = await asyncio.gather(*map(passed, candidates(n, half_wrong)))
    if sum(verdicts) != (n // 2 if half_wrong else n):
        raise RuntimeError(f"the harness passed {sum(verdicts)} of {n}: has its Python numpy?")
    measured.tests, measured.cpu_s = n * N_TESTS, math.nan
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
    parser.add_argument("--harness", type=Path, help="the cookbook's lcb_utils.py: measured on the server at --fusion")
    parser.add_argument("--fusion", metavar="URL", help="a running Sandbox Fusion server, whose Python has numpy")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if (options.harness is None) != (options.fusion is None):
        parser.error("--harness and --fusion go together")
    measured: dict[str, list[Measured]] = {}
    with contextlib.ExitStack() as stack:
        url = options.url or stack.enter_context(embedded_sandbox()).address
        for _ in range(options.repeats):
            for name, row in measured_once(url, options.candidates, options.harness, options.fusion):
                measured.setdefault(name, []).append(row)
    title = f"{N_TESTS} tests per candidate, {os.cpu_count()} cores, medians of {options.repeats}"
    table = Table(title=title)
    for heading in ("", "candidates/s", "tests/s", "CPU ms/candidate", "CPU ms/test"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, rows in measured.items():
        each = rows[0].candidates != rows[0].tests  # else a test is all there is of a candidate
        columns = [
            (1, [row.candidates / row.wall_s if each else math.nan for row in rows]),
            (0, [row.tests / row.wall_s for row in rows]),
            (1, [1000 * row.cpu_s / row.candidates if each else math.nan for row in rows]),
            (2, [1000 * row.cpu_s / row.tests for row in rows]),
        ]
        figures = ((digits, median(values)) for digits, values in columns)
        table.add_row(name, *("-" if math.isnan(figure) else f"{figure:.{digits}f}" for digits, figure in figures))
    Console().print(table)


def measured_once(url: str, n: int, harness: Path | None, fusion: str | None) -> Iterator[tuple[str, Measured]]:
    for half_wrong in (True, False):
        for isolation in get_args(IsolationPerTest):
            shape = "half wrong" if half_wrong else "all right"
            yield (
                f"judge, {shape}, isolation_per_test={isolation}",
                asyncio.run(by_judge(url, n, half_wrong, isolation)),
            )
    yield f"scored as in training, half wrong, groups of {GROUP}", asyncio.run(by_environment(url, n))
    if harness is not None and fusion is not None:
        for half_wrong in (True, False):
            shape = "half wrong" if half_wrong else "all right"
            measured = asyncio.run(by_harness(fusion, max(4, n // 10), half_wrong, harness))
            yield f"the cookbook's harness in Sandbox Fusion, {shape}", measured
    yield "cold Python with numpy, one per candidate", by_cold_python(max(4, n // 10))
    yield "bare fork + exec, no isolation", by_bare_fork(N_TESTS * n)
    yield "the same, the prelude imported", by_bare_fork(N_TESTS * n, PRELUDE)


if __name__ == "__main__":
    main()
