"""Judge programs: tests and checkers that decide in a process of the sandbox which no submission shares. They are
trusted, and they get data: what the submission's own process gave back. What goes wrong in them is no verdict on the
submission but a `CheckerFault`.

The request.json of assertion tests (payload/assertions.py) has `id`, `seconds` and `tests`, a list for each program. A
test is its `script`, the `operations` that were asked for (a JSON list as text), and the program's `answers` to the
first of them (a line each; null in a rehearsal). results.json gets `id` and `results`, a list for each program: for
each test its `end`, and `reason`, `shown` or the `operations` to ask for. What a test compares with never leaves that
process: an operator between an object of the program and a value of the test is decided there, by the object's value.
"""

import asyncio
import base64
import hashlib
import json
import os
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, TimeoutExpired, run
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Generic, TypeVar
from zlib import compress

from coderl_tasks.errors import CoderlError, InfraError
from coderl_tasks.grading.client import RunRequest, RunResult, SandboxClient
from coderl_tasks.grading.scoring import Verdict
from coderl_tasks.paths import coderl_home, private_folder, put
from coderl_tasks.problems.output_checker import CPP_SUFFIXES, MAIN_FILES, Checker
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.sandbox_programs import ASSERTION_JUDGE, CHECKER_RUNNER

JUDGE_S = 10.0  # CPU seconds for a test or for a checker on one output
CHECKER_WALL_S = 25.0
_LONGEST_S = 600.0
_MEMORY_MB = 2048
_COMPILE_S = 120.0
_COMPILING = Lock()
# Older checkers use what a newer standard has renamed, or headers that older compilers included by themselves.
_DIALECTS = ["-std=gnu++20"], ["-std=gnu++17"], ["-std=gnu++17", "-include", "bits/stdc++.h"]
_TESTLIB = ["-DPC_BASE_EXIT_CODE=50"]  # else its partial verdict 0 would end as a pass does
_REHEARSALS = 1000
_TESTS_WAIT_S, _GROUP_WAITS_S = 0.1, 0.02
_NO_NEW_PROGRAM_AFTER_S = 1.0  # what is left of a group then waits for the next one
_MOST_BYTES = 4 << 20
VERDICTS = {
    "passed": Verdict.PASSED, "failed": Verdict.WRONG_ANSWER, "error": Verdict.RUNTIME_ERROR,
    "fault": Verdict.CHECKER_ERROR,
}  # fmt: skip
_ENDINGS = {*VERDICTS, "needs"}
AnsweredTest = tuple[Test, str | None]
"""An assertion test, whose `input` are operations, and the program's answers to them (None in a rehearsal)."""
Record = dict[str, Any]
GroupReport = Record | None
"""What the driver reports of one program of a group, with the `server` on which it ran."""
FaultOf = Callable[[SandboxClient, str], Awaitable[str | None]]
"""Says why a server does not run programs, None if it does."""


class CheckerFault(CoderlError):
    """A problem's tests or checker cannot decide; the text says why."""


@dataclass(eq=False)
class JudgePrograms:
    """Runs judge programs on the servers of `client`."""

    client: SandboxClient
    fault_of: FaultOf
    running: int = 0  # requests in which programs run, whose tests will come
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _tests: "_Batches[Sequence[AnsweredTest], list[Record] | None]" = field(init=False)
    _programs: "_Batches[RunRequest, GroupReport]" = field(init=False)
    _rehearsals: dict[tuple[Test, ...], asyncio.Task[tuple[Test, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tests = _Batches(self._send, self._wait_for_tests, most=64, most_requests=3)
        wait_for_more = partial(asyncio.sleep, _GROUP_WAITS_S)
        self._programs = _Batches(self._run_programs, wait_for_more, most=32, most_requests=32)

    async def run_with_others(self, job: RunRequest) -> GroupReport:
        """Run a program in a sandbox in which other programs run before and after it: that costs a third. None where it
        has to run alone: its code may do harm, no other one waits, or there is no report."""
        return await self._programs.result_of(job, sum(map(len, job.files.values())))

    async def run_program(self, job: RunRequest) -> RunResult:
        """Run a program, whose tests may be asked for next."""
        self.running += 1
        try:
            return await self.client.run_code(job)
        finally:
            self.running -= 1
            self._changed.set()

    async def rehearsed(self, problem: Problem) -> Problem:
        """`problem`, its tests with the operations that they are expected to ask for: those of a run without a program.
        Raises CheckerFault for a test that gives the program what cannot be given, or fails by itself."""
        tests = tuple(problem.tests)
        task = self._rehearsals.get(tests)
        if task is None or task.cancelled() or (task.done() and task.exception() is not None):
            self._rehearsals.pop(tests, None)
            if len(self._rehearsals) >= _REHEARSALS:
                del self._rehearsals[next(iter(self._rehearsals))]
            task = self._rehearsals[tests] = asyncio.ensure_future(self._rehearse(tests))
        # One caller that is cancelled must not take it from the others.
        return replace(problem, tests=await asyncio.shield(task))

    async def _rehearse(self, tests: tuple[Test, ...]) -> tuple[Test, ...]:
        results = await self.results_of([(test, None) for test in tests])
        for number, result in enumerate(results):
            # Results that are not known may be to blame for other faults, but not before the first operation.
            if result["end"] == "fault" and (result.get("is_certain") or result["operations"] == "[]"):
                raise CheckerFault(f"test {number}: {result['reason']}")
        if all(result["operations"] == "[]" for result in results):  # any program would pass
            raise CheckerFault("the tests call nothing of the program (import names of the library's from solution)")
        return tuple(replace(test, input=result["operations"]) for test, result in zip(tests, results, strict=True))

    async def results_of(self, tests: Sequence[AnsweredTest]) -> list[Record]:
        """How tests end with these answers of a program: `end` is a key of VERDICTS, with the `reason` and what was
        `shown` of the program's last value; or "needs", where a test cannot go on before the program has done these
        `operations` (`again`: it was asked for them and did not do them)."""
        self._changed.set()
        n_bytes = sum(len(test.input) + len(answers or "") for test, answers in tests)
        results = await self._tests.result_of(tests, n_bytes)
        if results is None:
            raise CheckerFault("the tests' own process ended without a result")
        return results

    async def check(self, checker: str, outputs: Sequence[tuple[Test, bytes]]) -> list[tuple[Verdict, str]]:
        """Runs a checker (`Checker.to_text`) in the sandbox on a program's outputs of tests: returns, in order, its
        verdict on each and why. CHECKER_ERROR if it fails itself on one; CheckerFault if it cannot be run at all."""
        try:
            parsed = Checker.from_text(checker)
        except (ValueError, TypeError, RecursionError) as error:
            raise CheckerFault(f"it has no checker that can be read: {error}") from None
        tests = [
            {"input": test.input, "expected": test.expected, "output": base64.b64encode(output).decode()}
            for test, output in outputs
        ]
        main = MAIN_FILES[parsed.language]
        compressed: dict[str, bytes] = {}
        if parsed.language == "cpp":
            # The key of the cache: protocol and flags change how a program is run, not what it is compiled to.
            cache_key = replace(parsed, protocol="kattis", flags=()).to_text()
            compressed["checker.z"] = await asyncio.to_thread(compiled, cache_key)
        sources = {} if compressed else {**parsed.files, main: parsed.source}
        about = {"protocol": parsed.protocol, "language": parsed.language, "flags": parsed.flags, "main": main}
        limits = {"seconds": JUDGE_S, "wall_seconds": CHECKER_WALL_S}
        request = {**limits, "checker": {**about, "files": sources}, "tests": tests}
        run_timeout_s = (CHECKER_WALL_S + 1) * len(tests) + 5
        results = await self._results(CHECKER_RUNNER, compressed, request, run_timeout_s)
        if _are_results(results, len(outputs)):
            verdicts = []
            for result in results:
                verdict = VERDICTS[result["end"]]
                fault = "the checker fails: " if verdict is Verdict.CHECKER_ERROR else ""
                verdicts.append((verdict, fault + result["reason"]))
            return verdicts
        if len(outputs) > 1:  # the checker may have died of one output: check each in a request of its own
            return [verdict for output in outputs for verdict in await self.check(checker, [output])]
        raise CheckerFault("the checker's own process ended without a result")

    async def _wait_for_tests(self) -> None:
        """Until there are enough for a request, no program runs whose tests may come, or it has been a moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_TESTS_WAIT_S):
                while self.running and len(self._tests.waiting) < self._tests.most:
                    self._changed.clear()
                    await self._changed.wait()

    async def _send(self, programs: Sequence[Sequence[AnsweredTest]]) -> list[list[Record] | None]:
        values = [
            [{"script": test.expected, "operations": test.input, "answers": answers} for test, answers in tests]
            for tests in programs
        ]
        run_timeout_s = 4 * JUDGE_S * sum(map(len, programs)) + 5 * len(programs) + 5
        results = await self._results(ASSERTION_JUDGE, {}, {"tests": values, "seconds": JUDGE_S}, run_timeout_s)
        if isinstance(results, list) and len(results) == len(programs):
            pairs = zip(results, programs, strict=True)
            return [found if _are_results(found, len(tests)) else None for found, tests in pairs]
        if len(programs) > 1:  # one of them may have ended the process
            return [(await self._send([tests]))[0] for tests in programs]
        return [None]

    async def _run_programs(self, jobs: Sequence[RunRequest]) -> Sequence[GroupReport]:
        """Runs several programs, each with its tests, in one request to the sandbox, which is cheaper. Returns the
        driver's reports on the first jobs, at least one, in order. None stands for a program that has to run alone."""
        all_run_alone: list[GroupReport] = [None] * len(jobs)
        if len(jobs) == 1:
            return all_run_alone
        # The driver repeats the id, which no program knows: a report with another one is forged.
        request_id, requests = secrets.token_hex(8), [json.loads(job.files["tests.json"]) for job in jobs]
        # After a while the driver begins no further program, so the last one has the time that it would have alone.
        run_timeout_s = _NO_NEW_PROGRAM_AFTER_S + max(job.run_timeout_s for job in jobs)
        memory_bytes = requests[0]["memory_bytes"]  # the same for all: it depends on the judge alone
        limits = {"stops_s": _NO_NEW_PROGRAM_AFTER_S, "run_timeout_s": run_timeout_s, "memory_bytes": memory_bytes}
        group = {"id": request_id, "group": requests, **limits}
        sources = {f"{number}-solution.py": job.files["solution.py"] for number, job in enumerate(jobs)}
        files = {"tests.json": json.dumps(group).encode(), **sources}
        # The jobs differ in files and time alone: they have one driver and one limit of memory.
        request = replace(jobs[0], files=files, run_timeout_s=run_timeout_s)
        try:
            result = await self.run_program(request)
        except InfraError:  # one of the programs may be to blame
            return all_run_alone
        report = result.report()
        reports = report.get("group")
        if report.get("id") != request_id or not isinstance(reports, list) or not 0 < len(reports) <= len(jobs):
            return all_run_alone  # some program has kept the driver from reporting, or has forged its report
        of_server = {"python": report.get("python"), "server": result.server}
        # The driver writes {"alone": true} where a program does not compile, or may do harm to the others.
        return [{**one, **of_server} if isinstance(one, dict) and "alone" not in one else None for one in reports]

    async def _results(self, program: str, files: Mapping[str, bytes], request: Record, run_timeout_s: float) -> Any:
        """What a judge program reports, None if it does not."""
        job = RunRequest(program, files, (), min(_LONGEST_S, run_timeout_s), _MEMORY_MB)
        return (await own_report(self.client, self.fault_of, job, request)).get("results")


async def own_report(client: SandboxClient, fault_of: FaultOf, job: RunRequest, request: Record) -> Record:
    """What `job`, a program of ours, reports in its results.json on a `request`, which is sent along as request.json;
    empty if what it runs prevented that. A server that is faulty, or that answers with the report of another request,
    is quarantined, and another one asked. Raises InfraError if there is none."""
    while True:
        request_id = secrets.token_hex(8)
        files = {**job.files, "request.json": json.dumps({"id": request_id, **request}).encode()}
        result = await client.run_code(replace(job, files=files, fetch_files=("results.json",)))
        report = result.report()
        if report.get("id") == request_id:
            return report
        # What the job runs is to blame for a missing report only if a known program works on the same server.
        fault = await fault_of(client, result.server)
        if fault is None and not report:
            return {}
        fault = fault or f"the sandbox at {result.server} answered with the result of another request"
        if not client.quarantine(result.server, fault):  # there is no other server to ask
            raise InfraError(fault)


_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")


@dataclass(eq=False)
class _Batches(Generic[_Item, _Outcome]):
    """Requests that each carry what several callers want, as a request costs more than most of that.

    `send` returns an outcome for each item of a batch, in order, or for the first of them: the others are sent later.
    `wait` returns when there is nothing to wait for any more. A batch has at most so many items, and of so many bytes.
    """

    send: Callable[[Sequence[_Item]], Awaitable[Sequence[_Outcome]]]
    wait: Callable[[], Awaitable[None]]
    most: int
    most_requests: int  # at once
    waiting: deque[tuple[_Item, int, asyncio.Future[_Outcome]]] = field(default_factory=deque)
    _senders: set[asyncio.Task[None]] = field(default_factory=set)

    async def result_of(self, item: _Item, n_bytes: int) -> _Outcome:
        future: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        self.waiting.append((item, n_bytes, future))
        if len(self._senders) < self.most_requests:
            self._senders.add(asyncio.ensure_future(self._send_waiting()))
        return await future

    async def _send_waiting(self) -> None:
        try:
            while self.waiting:
                await self.wait()
                batch: list[tuple[_Item, int, asyncio.Future[_Outcome]]] = []
                n_bytes = 0
                while self.waiting and len(batch) < self.most and n_bytes < _MOST_BYTES:
                    one = self.waiting.popleft()
                    if not one[-1].done():  # else its caller was cancelled
                        batch.append(one)
                        n_bytes += one[1]
                if batch:
                    await self._send_batch(batch)
        finally:  # at once: what comes later in this turn of the loop needs another sender
            self._senders.discard(asyncio.current_task())

    async def _send_batch(self, batch: list[tuple[_Item, int, asyncio.Future[_Outcome]]]) -> None:
        try:
            outcomes = await self.send([item for item, *_ in batch])
        except BaseException as error:
            for *_, future in batch:
                if not future.done():
                    future.set_exception(error) if isinstance(error, Exception) else future.cancel()
            if not isinstance(error, Exception):
                raise
            return
        for (*_, future), outcome in zip(batch, outcomes, strict=False):
            if not future.done():
                future.set_result(outcome)
        self.waiting.extendleft(reversed(batch[len(outcomes) :]))


def _are_results(results: Any, number: int) -> bool:
    are_as_many = isinstance(results, list) and len(results) == number
    return are_as_many and all(isinstance(one, dict) and one.get("end") in _ENDINGS for one in results)


def compiled(checker: str) -> bytes:
    """A C++ checker's program, compressed by zlib: compiled once, then kept in CODERL_HOME by the hash of its text.
    Raises CheckerFault where it does not compile, or no compiler is there."""
    try:
        with _COMPILING:  # by one thread: the others find it compiled
            program = _compiled(checker)
    except OSError as error:
        raise InfraError(f"a checker cannot be compiled: {error}") from error
    if isinstance(program, str):
        raise CheckerFault(program)
    return program


@lru_cache(maxsize=64)
def _compiled(checker: str) -> bytes | str:
    """Compiles a C++ checker (`Checker.to_text`): the program, compressed, or a text that says why it does not compile.
    Raises CheckerFault if that could not be tried: unlike a result, it is not cached, so a later call tries again."""
    folder = private_folder(coderl_home() / "checkers")
    file = folder / f"{hashlib.sha256(checker.encode()).hexdigest()}.z"
    if file.is_file():
        return file.read_bytes()
    parsed, said = Checker.from_text(checker), ""
    with TemporaryDirectory(dir=folder) as place:
        texts = {**parsed.files, MAIN_FILES["cpp"]: parsed.source}
        for name, text in texts.items():
            (Path(place) / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        sources = [name for name in texts if Path(name).suffix in CPP_SUFFIXES]
        # Without the libraries of this machine where that is possible: the sandbox may have others.
        links = ["-static"], ["-static-libstdc++", "-static-libgcc"]
        for dialect, libraries in product(_DIALECTS, links):  # until one of them compiles
            options = ["-O2", "-s", "-w", "-fpermissive", *_TESTLIB, *dialect, *libraries]
            command = [cpp_compiler(), *options, "-o", "program", *sources]
            try:
                done = run(command, cwd=place, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, timeout=_COMPILE_S)
            except FileNotFoundError:
                raise CheckerFault(f"there is no C++ compiler {command[0]} here: install g++, or set CXX") from None
            except TimeoutExpired:
                raise CheckerFault(f"the checker does not compile within {_COMPILE_S:g} s") from None
            said = done.stdout.decode("utf-8", "replace")
            if done.returncode == 0:
                data = compress((Path(place) / "program").read_bytes())
                put(file, data)
                return data
    errors = [line for line in said.splitlines() if "error" in line] or said.splitlines() or ["no message"]
    return f"the checker does not compile: {errors[0][:300]}"


def cpp_compiler() -> str:
    """The C++ compiler's command: CXX, or g++."""
    return os.environ.get("CXX") or "g++"
