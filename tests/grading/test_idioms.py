"""Honest programs do in the sandbox what they do on bare Python, whether or not tests share a process."""

import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import get_args

from coderl_tasks.grading import Judge, SandboxClient, Verdict
from coderl_tasks.problems.problem import Problem
from coderl_tasks.settings.flow_settings import IsolationPerTest
from tests.grading.idioms import ARGUMENTS, ATCODER, CODEFORCES, INPUTS, LEETCODE
from tests.grading.programs import call_problem, graded, stdin_problem

MARK = "\x01"
SOURCES = {"Codeforces": CODEFORCES, "AtCoder": ATCODER, "LeetCode": LEETCODE}
PRELUDE = """
from typing import *; from string import *; from re import *; from datetime import *; from heapq import *
from bisect import *; from math import *; from itertools import *; from functools import *; from collections import *
import bisect, collections, datetime, functools, heapq, io, itertools, json, math, operator, random, re, string, sys
"""
CALLER = """
import json, solution
maker = getattr(solution, "Solution", None)
solve = maker().solve if maker else solution.solve
print({mark!r} + json.dumps(solve(*json.loads({arguments!r}))))
"""


def on_bare_python(folder: Path, program: str, stdin: str) -> tuple[int, str]:
    """The exit status and the output of `python main.py < input`."""
    folder.mkdir()
    (folder / "main.py").write_bytes(program.encode())
    (folder.with_suffix(".in")).write_bytes(stdin.encode())
    with folder.with_suffix(".in").open("rb") as file:
        environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(folder)}
        command = [sys.executable, "main.py"]
        done = subprocess.run(command, cwd=folder, stdin=file, capture_output=True, timeout=60, env=environment)
    return done.returncode, done.stdout.decode("utf-8", "surrogateescape")


def value_on_bare_python(folder: Path, program: str, arguments: str) -> tuple[int, str]:
    """The exit status, and as JSON what `solve` returns, of a program that imports this one."""
    around = folder.with_suffix(".path")
    around.mkdir()
    (around / "solution.py").write_text(PRELUDE + program)
    caller = f"import sys\nsys.path.insert(0, {str(around)!r})\n" + CALLER.format(mark=MARK, arguments=arguments)
    status, output = on_bare_python(folder, caller, "")
    return status, output.partition(MARK)[2].partition("\n")[0]


def expected(folder: Path, source: str, program: str, test_input: str) -> tuple[Problem, str, Verdict]:
    """What bare Python makes of a program: a problem with this output, and the verdict that follows from its status."""
    is_call = source == "LeetCode"
    status, output = (value_on_bare_python if is_call else on_bare_python)(folder, program, test_input)
    tests = [(test_input, output)] * 2  # of which the second shares a process where it may
    problem = call_problem("solve", *tests) if is_call else stdin_problem(*tests)
    return problem, program, Verdict.RUNTIME_ERROR if status else Verdict.PASSED


async def test_honest_programs_do_what_they_do_on_bare_python(embedded_url: str, tmp_path: Path) -> None:
    idioms = {
        f"{source}: {name}": program for source, programs in SOURCES.items() for name, program in programs.items()
    }
    assert len(idioms) >= 200 and all(len(programs) >= 50 for programs in SOURCES.values())
    with ThreadPoolExecutor(2) as pool:
        started: dict[str, Future[tuple[Problem, str, Verdict]]] = {}
        for number, (name, program) in enumerate(idioms.items()):
            source = name.partition(":")[0]
            test_input = (ARGUMENTS if source == "LeetCode" else INPUTS)[number % 2]
            started[name] = pool.submit(expected, tmp_path / str(number), source, program, test_input)
        jobs = {name: future.result() for name, future in started.items()}
    assert {name for name, job in jobs.items() if job[2] is not Verdict.PASSED} == {"Codeforces: stdout detached"}
    differing: dict[str, str] = {}
    async with SandboxClient([embedded_url], max_concurrency=2) as client:
        for isolation in get_args(IsolationPerTest):
            grades = await graded(Judge(client, timeout_s=10.0, isolation_per_test=isolation), jobs)
            wrong = {name: grade.reason for name, grade in grades.items() if grade.verdict is not jobs[name][2]}
            differing |= {f"{name}, isolation_per_test={isolation}": reason for name, reason in wrong.items()}
    assert differing == {}
