"""What a sandbox's Python makes of programs whose verdict depends on it: tried when a run starts, and by doctor.

A program should get the verdict that Python 3.11 gives it. The driver sees to that where it can; what is left depends
on the server (its interpreter, its packages, its limits) and is found out by running such programs, not by asking for
versions.
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
    """What the sandbox at `url` did: the version of its Python ("" if unknown), the kinds of right programs that it
    misjudges, and why it could not be tried, if so."""

    url: str
    python: str
    misjudged: tuple[str, ...]
    fault: str = ""

    def __str__(self) -> str:
        if self.fault:
            return f"programs at {self.url}: not tried: {self.fault}"
        line = f"programs are run by Python {self.python or '(unknown)'} at {self.url}"
        if not self.misjudged:
            return line
        return f"{line}, which cannot judge {', '.join(self.misjudged)}: right programs that use it fail there"


async def try_programs(urls: Sequence[str]) -> list[Trial]:
    """Run the programs on each of these servers, in a second or so. An outage is a `fault`, not an exception."""
    return list(await asyncio.gather(*map(_tried, urls)))


async def _tried(url: str) -> Trial:
    problem = Problem("trial", "", "", "", "stdin", "", (Test("", f"{_DEPTH}\n"),), 1, 1, None, (), 0)
    try:
        async with asyncio.timeout(_PATIENCE_S), SandboxClient([url], attempts=1, outage_patience_s=5.0) as client:
            judge = Judge(client)
            grades = await asyncio.gather(*(judge.grade(problem, code) for code in _PROGRAMS.values()))
    except TimeoutError:
        return Trial(without_credentials(url), "", (), f"no answer in {_PATIENCE_S:g} s")
    faults = [grade.reason for grade in grades if not grade.gradable]
    misjudged = [name for name, grade in zip(_PROGRAMS, grades, strict=True) if not grade.passed]
    fault = faults[0] if faults else ""
    return Trial(without_credentials(url), grades[0].python, () if faults else tuple(misjudged), fault)
