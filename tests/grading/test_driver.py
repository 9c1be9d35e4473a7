"""What the driver knows of the prelude without loading it, and what programs find of it."""

import ast
import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from coderl_tasks.grading import Judge
from coderl_tasks.sandbox_programs import DRIVER, PAYLOAD
from tests.grading.programs import stdin_problem


def constants() -> dict[str, object]:
    """The driver's constants that are made of literals."""
    space: dict[str, object] = {}
    for statement in ast.parse(DRIVER).body:
        if isinstance(statement, ast.Assign) and {"STAR_IMPORTED", "IMPORTED", "RARELY_USED"} & {
            ast.unparse(target) for target in statement.targets
        }:
            exec(compile(ast.Module([statement], []), "driver.py", "exec"), space)
    return space


@pytest.mark.parametrize("name", ["datetime", "random", "statistics"])
def test_every_name_of_a_rarely_used_module_is_known(name: str) -> None:
    known = constants()
    rarely_used, imported = known["RARELY_USED"], known["IMPORTED"]
    assert isinstance(rarely_used, dict) and isinstance(imported, list)
    assert set(importlib.import_module(name).__all__) - {"datetime_CAPI"} <= {*rarely_used[name], *imported}


async def test_programs_find_the_prelude_whether_it_was_loaded_or_not(judge: Judge) -> None:
    code = (
        "print(randint(3, 3), median([1, 5, 9]), timedelta(days=2).days, gcd(4, 6), len(datetime.__name__), sep='\\n')"
    )
    grade = await judge.grade(stdin_problem(("", "3\n5\n2\n2\n8\n")), code)
    assert grade.passed, grade.reason


async def test_programs_find_the_prelude_by_names_that_their_code_makes(judge: Judge) -> None:
    code = (
        "def f(gap: 'timedelta', seconds: 'List[Random]') -> 'median': 'mean'\n"
        "print(*(kind.__name__ for kind in (get_type_hints(f)['gap'], f.__globals__['median'], eval('gcd'))))\n"
    )
    grade = await judge.grade(stdin_problem(("", "timedelta median gcd\n")), code)
    assert grade.passed, grade.reason


FIELDS = """from __future__ import annotations
from dataclasses import dataclass
@dataclass
class P:
    limit: ClassVar[int] = 5
    x: int = 0
print(P(3))
"""
DISPATCH = """@singledispatch
def g(x): return 0
@g.register
def _(x: 'deque'): return 1
print(g(deque()))
"""
DOCTEST = """import doctest
def f(items):
    '''
    >>> f(deque([1, 2]))
    2
    '''
    return len(items)
print(doctest.testmod().failed)
"""


@pytest.mark.parametrize(
    ("code", "output"),
    [
        (FIELDS, "P(x=3)"),
        (DISPATCH, "1"),
        (DOCTEST, "0"),
        ("import timeit\nprint(timeit.timeit('gcd(4, 6)', 'from __main__ import gcd', number=1) >= 0)", "True"),
        (
            "import inspect\ndef f(x: 'OrderedDict'): pass\nprint(len(inspect.signature(f, eval_str=True).parameters))",
            "1",
        ),
    ],
)
async def test_the_library_finds_the_prelude_for_a_program(judge: Judge, code: str, output: str) -> None:
    grade = await judge.grade(stdin_problem(("", f"{output}\n")), code)
    assert grade.passed, grade.reason


@pytest.mark.parametrize(
    ("code", "is_harmless"),
    [
        ("def f(x):\n    'In this case, x; what match case import is meant.'\n    return x", False),
        ("def f(x):\n    'In this case, or that case.'\n    return x", True),
        ("from typing import List\nimport math\ndef f(x: List):\n    return math.floor(x[0])", True),
        ("def f(x):\n    match x:\n        case int(__class__=y):\n            return y", False),
        ("def f(x):\n    return x._os", False),
        ("def f(x):\n    return hashlib", False),
        ("\ufeffmatch 1:\n    case int(__class__=y):\n        pass", False),
        ("\ufeffimport pip", False),
    ],
)
def test_a_program_is_harmless_by_its_code(code: str, is_harmless: bool) -> None:
    driver = runpy.run_path(str(PAYLOAD / "driver.py"), run_name="driver")
    source = code.encode()
    assert driver["is_harmless"](source, compile(source, "solution.py", "exec")) is is_harmless


async def test_recursion_through_c_code_has_room(judge: Judge) -> None:
    code = (
        "from functools import lru_cache\n"
        "@lru_cache(None)\n"
        "def depth(n):\n"
        "    return 0 if n == 0 else 1 + depth(n - 1)\n"
        "print(depth(100_000))\n"
    )
    grade = await judge.grade(stdin_problem(("", "100000\n")), code)
    assert grade.passed, grade.reason


def test_processes_that_each_used_little_are_counted() -> None:
    """A fork bomb of hundreds of them, on a busy machine, was taken for a program that got no processor."""
    code = """if True:
        import os, runpy, signal, sys, time
        def use_little():
            while time.process_time() < 0.005: pass
            os.write(written, b"x")
            signal.pause()
        driver = runpy.run_path(sys.argv[1], run_name="driver")
        read, written = os.pipe()
        children = []
        for _ in range(20):
            children.append(os.fork())
            if children[-1] == 0: use_little()
        for _ in children: os.read(read, 1)
        several, seconds = driver["cpu_seconds"](children[0], {})
        for child in children: os.kill(child, signal.SIGKILL)
        print(several and 20 * 0.005 <= seconds)
    """
    run = subprocess.run(
        [sys.executable, "-c", code, PAYLOAD / "driver.py"], capture_output=True, text=True, check=True
    )
    assert run.stdout == "True\n"


def test_who_takes_a_lower_priority_waits_on_its_own_account() -> None:
    driver = runpy.run_path(str(PAYLOAD / "driver.py"), run_name="driver")
    (core, *_) = os.sched_getaffinity(0)
    spin = f"import os, sys\nos.sched_setaffinity(0, {{{core}}})\nos.nice(int(sys.argv[1]))\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin, nice]) for nice in ("0", "0", "19")]
    try:
        while os.getpriority(os.PRIO_PROCESS, spinning[2].pid) != 19:
            pass
        for process in spinning:
            schedstat = Path(f"/proc/{process.pid}/schedstat")
            while int(schedstat.read_text().split()[1]) < 2e8:
                pass
        usual, _, lower = (driver["starved_seconds"](process.pid) for process in spinning)
        assert (usual > 0.0, lower) == (True, 0.0)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
