"""The graders that a score card can be made of: coderl's own on any sandbox, and a user's function."""

import ast
import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

from coderl_tasks.errors import ConfigError
from coderl_tasks.grading import Grader
from coderl_tasks.problems.problem import Kind, Problem, Test
from coderl_tasks.scorecard.corpus import Case

WORKER = Path(__file__).with_name("function_worker.py")
START_S = 20.0
"""Seconds of wall clock time that a call of a function has beside the time limits of its tests."""
_FUNCTION = re.compile(r"[\w.]+:\w+")
_ADDRESS = re.compile(r"https?://")


@dataclass(frozen=True)
class Outcome:
    """What a grader made of a case: its reward, None without a verdict, and why, in a line."""

    reward: float | None
    reason: str = ""


Grade = Callable[[Case], Awaitable[Outcome]]


@asynccontextmanager
async def started(target: str, sandbox: str | None = None) -> AsyncIterator[Grade]:
    """Starts the grader that `target` names, and yields the function that grades a case with it. `target` is "coderl",
    or the address of a sandbox that coderl's grader uses, or MODULE:FUNCTION for a user's function. `sandbox` is an
    address that replaces the one of `target` or, for a function, SANDBOX_URL. Raises ConfigError for a target that is
    none of these, or whose function cannot be imported."""
    if _ADDRESS.match(target) or target == "coderl":
        async with Grader(sandbox or (None if target == "coderl" else target)) as grader:

            async def grade(case: Case) -> Outcome:
                [scored] = await grader.agrade([as_problem(case)], [case.completion])
                return Outcome(scored.reward, f"{scored.grade.verdict}: {scored.grade.reason}".removesuffix(": "))

            yield grade
    elif _FUNCTION.fullmatch(target):
        function = FunctionGrader(target, {} if sandbox is None else {"SANDBOX_URL": f"{sandbox}/run_code"})
        await function.check()
        yield function.grade
    else:
        raise ConfigError(f"{target!r} is no grader: give coderl, the http address of a sandbox, or module:function")


def as_problem(case: Case) -> Problem:
    given = case.problem
    tests = tuple(Test(test["input"], test["expected"]) for test in given["tests"])
    kind, count, limit_s = cast(Kind, case.kind), len(tests), given["time_limit_s"]
    texts = (given["statement"], given["starter_code"])
    return Problem(case.id, "", *texts, kind, given["entry_point"], tests, count, count, limit_s, (), 0)


@dataclass(frozen=True)
class FunctionGrader:
    """A user's function. Each call has its own process (`function_worker`), empty working directory and time limit."""

    target: str
    environment: Mapping[str, str]

    async def check(self) -> None:
        """Raises ConfigError where the function cannot be imported."""
        outcome = await self._call({"check": True}, START_S)
        if outcome.reason:
            raise ConfigError(outcome.reason)

    async def grade(self, case: Case) -> Outcome:
        limit_s = START_S + len(case.problem["tests"]) * float(case.problem["time_limit_s"])
        call = {"check": False, "problem": dict(case.problem), "completion": case.completion}
        return await self._call(call, limit_s)

    async def _call(self, call: Mapping[str, Any], limit_s: float) -> Outcome:
        """Runs the user's function in a process of its own, which gets `call` as JSON, and writes a line `TOKEN REWARD
        FAULT` to a pipe. Graded programs may write to the pipe too, but do not know the token."""
        token = token_hex(16)
        reader, writer = os.pipe()
        try:
            # `folder`: the worker has another working directory, and imports the user's module from this one.
            text = json.dumps({**call, "token": token, "descriptor": writer, "folder": str(Path.cwd())}).encode()
            with tempfile.TemporaryDirectory(prefix="coderl-scorecard-", ignore_cleanup_errors=True) as folder:
                # Some attacks rename, replace or lock the folders above theirs: grader/sandbox are there for that.
                work = Path(folder) / "grader" / "sandbox" / "work"
                work.mkdir(parents=True)
                is_late = await self._run(text, writer, work, limit_s)
            os.close(writer)
            writer = -1
            lines = await asyncio.to_thread(_read_all, reader)
        finally:
            for descriptor in (reader, writer):
                if descriptor >= 0:
                    os.close(descriptor)
        answers = [line for line in lines.decode(errors="replace").split("\n") if line.startswith(token)]
        if not answers:
            return Outcome(None, f"grader hung: no verdict in {limit_s:.0f} s" if is_late else "grader died")
        _, reward, fault = answers[-1].split(" ", 2)
        return Outcome(None if reward == "None" else float(reward), ast.literal_eval(fault))

    async def _run(self, text: bytes, writer: int, folder: Path, limit_s: float) -> bool:
        """Runs a call to its end; whether it took longer than it may."""
        named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in named if entry)  # it runs in another folder
        environment = {**os.environ, "PYTHONPATH": path, **self.environment}
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(WORKER), self.target, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL, pass_fds=(writer,), cwd=folder, env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            await asyncio.wait_for(process.communicate(text), limit_s)
        except TimeoutError:
            process.terminate()  # it kills what the call has left, in other groups too
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 2.0)
            return True
        finally:
            with suppress(ProcessLookupError):  # the group outlives a worker that a program has killed
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        return False


def _read_all(descriptor: int) -> bytes:
    """What is in a pipe; a process that has left the group may still hold its other end, so nothing is waited for."""
    os.set_blocking(descriptor, False)
    parts = []
    with suppress(BlockingIOError):
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
    return b"".join(parts)
