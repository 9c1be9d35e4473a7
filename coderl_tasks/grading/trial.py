"""What a sandbox's Python makes of programs whose verdict depends on it: tried when a run starts, and by doctor.

A program should get the verdict that Python 3.11 gives it. What depends on the server (interpreter, packages, limits)
is found out by running such programs, not by asking for versions.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.judge import Judge
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.server_addresses import without_credentials

_DEPTH = 100_000
_RECURSION = "@lru_cache(None)\ndef depth(n):\n    return 0 if n == 0 else 1 + depth(n - 1)\n"
_PROGRAMS = {
    "deep recursion": f"def depth(n):\n    return 0 if n == 0 else 1 + depth(n - 1)\nprint(depth({_DEPTH}))",
    "deep recursion through C code (lru_cache)": f"{_RECURSION}print(depth({_DEPTH}))",
    "threads with large stacks": (
        "import threading, time\nthreading.stack_size(1 << 27)\n"
        f"threading.Thread(target=lambda: (time.sleep(0.05), print({_DEPTH}))).start()"
    ),
    "numpy": f"import numpy\nprint(numpy.int64({_DEPTH}))",
}
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Trial:
    """What the sandbox at `url` did."""

    url: str
    python: str  # its version, "" if unknown
    misjudged: tuple[str, ...]  # kinds of right programs
    fault: str = ""  # why it could not be tried

    def __str__(self) -> str:
        if self.fault:
            return f"programs at {self.url}: not tried: {self.fault}"
        line = f"programs are run by Python {self.python or '(unknown)'} at {self.url}"
        kinds = ", ".join(self.misjudged)
        return f"{line}, which cannot judge {kinds}: right programs that use it fail there" if kinds else line


async def try_programs(urls: Sequence[str]) -> list[Trial]:
    """Run the programs on each of these servers, in a second or so. An outage is a `fault`, not an exception."""
    return list(await asyncio.gather(*map(_tried, urls)))


async def _tried(url: str) -> Trial:
    problem = Problem("trial", "", "", "", "stdin", "", (Test("", f"{_DEPTH}\n"),), 1, 1, None, (), 0)
    shown = without_credentials(url)
    try:
        async with asyncio.timeout(_PATIENCE_S), SandboxClient([url], attempts=1, outage_patience_s=5.0) as client:
            judge = Judge(client)
            grades = await asyncio.gather(*(judge.grade(problem, code) for code in _PROGRAMS.values()))
    except TimeoutError:
        return Trial(shown, "", (), f"no answer in {_PATIENCE_S:g} s")
    for grade in grades:
        if not grade.gradable:
            return Trial(shown, grades[0].python, (), grade.reason)
    misjudged = (name for name, grade in zip(_PROGRAMS, grades, strict=True) if not grade.passed)
    return Trial(shown, grades[0].python, tuple(misjudged))
