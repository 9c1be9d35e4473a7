"""Honest programs with the habits of contestants do in the sandbox what they do on bare Python."""

import asyncio
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.scorecard.corpus import Case
from coderl_tasks.scorecard.graders import as_problem
from tests.grading.attacks import cases

MARK = "\x01"
SOURCES = ("codeforces", "atcoder", "leetcode")
HABITS = [case for source in SOURCES for case in cases(source)]
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


OF_SITE = re.compile(r"\b(copyright|credits|exit|help|license|quit|numpy)\b")
"""What the module `site` brings. A program that names none of it needs no `site`, which is most of Python's start."""


def on_bare_python(folder: Path, program: str, stdin: str, *options: str) -> tuple[int, str]:
    """The exit status and the output of `python main.py < input`."""
    folder.mkdir()
    (folder / "main.py").write_bytes(program.encode())
    (folder.with_suffix(".in")).write_bytes(stdin.encode())
    with folder.with_suffix(".in").open("rb") as file:
        environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(folder)}
        command = [sys.executable, *options, "main.py"]
        done = subprocess.run(command, cwd=folder, stdin=file, capture_output=True, timeout=60, env=environment)
    return done.returncode, done.stdout.decode("utf-8", "surrogateescape")


def value_on_bare_python(folder: Path, program: str, arguments: str, *options: str) -> tuple[int, str]:
    """The exit status, and as JSON what `solve` returns, of a program that imports this one."""
    around = folder.with_suffix(".path")
    around.mkdir()
    (around / "solution.py").write_text(PRELUDE + program)
    caller = f"import sys\nsys.path.insert(0, {str(around)!r})\n" + CALLER.format(mark=MARK, arguments=arguments)
    status, output = on_bare_python(folder, caller, "", *options)
    return status, output.partition(MARK)[2].partition("\n")[0]


def on_python(folder: Path, case: Case, test: int) -> str:
    """What bare Python makes of a case's program on one of the tests, or the status that it ends with."""
    run = value_on_bare_python if case.kind == "call" else on_bare_python
    assert case.program is not None
    options = [] if OF_SITE.search(case.program) else ["-S"]
    status, output = run(folder, case.program, case.problem["tests"][test]["input"], *options)
    return f"status {status}" if status else output


def test_the_score_card_expects_what_bare_python_prints(tmp_path: Path) -> None:
    assert len(HABITS) >= 200 and all(len(cases(source)) >= 50 for source in SOURCES)
    with ThreadPoolExecutor(2) as pool:
        started = [pool.submit(on_python, tmp_path / str(n), case, n % 2) for n, case in enumerate(HABITS)]
        outputs = [future.result() for future in started]
    expected = [case.problem["tests"][n % 2]["expected"] for n, case in enumerate(HABITS)]
    differing = {case.id: ends for case, *ends in zip(HABITS, outputs, expected, strict=True) if ends[0] != ends[1]}
    assert differing == {}


async def test_they_pass_where_each_test_has_its_own_process(embedded_url: str) -> None:
    """The score card's test has them in shared processes, each of which the first test finds as its own."""
    async with SandboxClient([embedded_url], max_concurrency=2) as client:
        judge = Judge(client, timeout_s=10.0, isolation_per_test="always")
        grades = await asyncio.gather(*(judge.grade(as_problem(case), str(case.program), only=[1]) for case in HABITS))
    assert {case.id: grade.reason for case, grade in zip(HABITS, grades, strict=True) if not grade.passed} == {}
