"""The judge: sends a program and the inputs of a problem to the sandbox, and compares what comes back here.

1. Tests go out in growing chunks (1, 4, 16, ...) and grading stops at the first failure, so that a wrong program, the
   usual case, costs one small request, and a right one few. Where all tests are to run, the first chunk is a large one.
2. A program that kills or mutes the driver takes its whole chunk's results with it: those tests are run alone once
   more, each in its own request; the one that does it again is a runtime error.
3. A test that broke the wall clock's limit without having used its CPU time is run alone once more, with twice the
   time: it may have waited for the machine and not for itself.
4. Before a program is blamed for missing results, a known one has to get through on the same server. One on which the
   driver does not work (an old Python, a full disk, no room for processes) is distrusted and the test run elsewhere;
   without another server it is an infra error, as is what the client could not get done at all.
5. Every request has an id, which its report names. A server that answers with another request's result is distrusted
   in the same way.
"""

import asyncio
import logging
import math
import secrets
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from coderl_tasks.errors import ConfigError, DataError, InfraError
from coderl_tasks.grading import compare
from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.exchange import (
    DRIVER_FAILED,
    Limits,
    Report,
    TestRecord,
    answered_request,
    build_request,
    parse_report,
)
from coderl_tasks.grading.verdict import Grade, Verdict, shortened
from coderl_tasks.problems.problem import Problem

_FIRST_CHUNK, _GROWTH, _LARGEST_CHUNK = 1, 4, 64
_REMAINDER = 3  # a remainder of up to three times the next chunk's size goes along with it
_LONGEST_CHUNK_S = 600.0
_PATIENCE = 10  # times the time of a request, for a test that got too little of the machine
_MAX_INPUT_BYTES = 16 << 20  # of one request; a test with more goes alone
_LEAST_OUTPUT_LIMIT = 16 << 20
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One test judged; `cpu_s` its CPU seconds, `uncertain` where it broke a limit that may not have been its own.

    `output` and `error` as in `Grade`, of a test that was not passed.
    """

    verdict: Verdict
    cpu_s: float
    reason: str = ""
    uncertain: bool = False
    output: str | None = None
    error: str = ""


class Judge:
    """Grades programs through `client`. `timeout_s` is CPU seconds a test, where a problem names none of its own;
    `memory_mb` is what a test may allocate, in MiB. Raises ConfigError for a timeout that is not above 0 and finite."""

    def __init__(self, client: SandboxClient, timeout_s: float = 6.0, *, memory_mb: int = 1024) -> None:
        if not 0 < timeout_s < math.inf:
            raise ConfigError(f"a timeout of {timeout_s} s: give CPU seconds above 0")
        self._client = client
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb

    async def grade(
        self, problem: Problem, code: str, *, order: Sequence[int] | None = None, run_all: bool = False
    ) -> Grade:
        """The grade of a program on a problem's tests.

        `order` is a permutation of the test indices to run them in; `run_all` runs every test instead of stopping at
        the first failure (for partial credit). An outage is the verdict `infra_error`, not an exception; a problem
        without tests, a bad order or time limit raises DataError.
        """
        every = list(range(len(problem.tests)))
        indices = every if order is None else list(order)
        if not every or sorted(indices) != every:
            raise DataError(f"problem {problem.problem_id}: no tests, or the order given is no permutation of them")
        limits = self._limits(problem)
        run = _Run(self._client, problem, code, limits, run_all)
        infra: InfraError | None = None
        try:
            for chunk in _chunks(problem, indices, limits.cpu_s, _LARGEST_CHUNK if run_all else _FIRST_CHUNK):
                if not await run.tests(chunk):
                    break
        except InfraError as error:
            infra = error
        return run.grade(infra)

    def _limits(self, problem: Problem) -> Limits:
        cpu_s = problem.time_limit_s or self._timeout_s
        if not 0 < cpu_s < math.inf:
            raise DataError(f"problem {problem.problem_id}: a time limit of {cpu_s} s")
        longest = max(len(test.expected.encode("utf-8", "surrogatepass")) for test in problem.tests)
        # In steps of powers of two, and never below the least, so that the limit says next to nothing of the answer.
        output_bytes = max(_LEAST_OUTPUT_LIMIT, 1 << (2 * longest).bit_length())
        return Limits(cpu_s, cpu_s + 1.0, self._memory_mb, output_bytes)


_ISSUED: deque[str] = deque(maxlen=10_000)
"""The ids of the newest requests of this process. An answer that names one of them, and not its own request's, is
another program's: whoever passes requests on has mixed them up."""


class _Run:
    """One program on one problem, as far as it has got."""

    def __init__(self, client: SandboxClient, problem: Problem, code: str, limits: Limits, run_all: bool) -> None:
        self._client, self._problem, self._code, self._limits = client, problem, code, limits
        self._run_all = run_all
        self._server = self._python = ""  # of the one that answered last
        self._outcomes: list[tuple[int, _Outcome]] = []

    async def tests(self, chunk: Sequence[int]) -> bool:
        """Run these tests; False when grading is over."""
        left = list(chunk)
        while left:
            report = await self._send(left, self._limits)
            if report is None:
                return await self._one_by_one(left)
            if report.compile_error is not None:
                error = shortened(report.compile_error.strip().rpartition("\n")[2])
                self._note(left[0], _Outcome(Verdict.RUNTIME_ERROR, 0.0, report.compile_error, error=error))
                return False
            for index, record in zip(left, report.records, strict=False):
                outcome = self._judged(index, record)
                if outcome.reason.startswith(DRIVER_FAILED) and not await self._driver_works():
                    outcome = await self._alone(index, self._limits)
                if outcome.uncertain:
                    limits = replace(self._limits, wall_s=2 * self._limits.wall_s)
                    outcome = await self._alone(index, limits, _PATIENCE)
                if not self._note(index, outcome):
                    return False
            del left[: len(report.records)]
        return True

    async def _one_by_one(self, indices: Sequence[int]) -> bool:
        for index in indices:
            if not self._note(index, await self._alone(index, self._limits)):
                return False
        return True

    async def _alone(self, index: int, limits: Limits, patience: int = 1) -> _Outcome:
        while True:
            report = await self._send([index], limits, patience)
            outcome = _Outcome(Verdict.RUNTIME_ERROR, 0.0, "the program killed or muted the process that runs it")
            if report is not None and report.records:
                outcome = self._judged(index, report.records[0])
                if not outcome.reason.startswith(DRIVER_FAILED):
                    return outcome
            if await self._driver_works():
                return outcome

    async def _driver_works(self) -> bool:
        """Whether the driver works on the server that answered last; if not, that one is distrusted.

        Raises InfraError if there is no other.
        """
        fault = await _driver_fault(self._client, self._server)
        if fault is not None and not self._client.distrust(self._server, fault):
            raise InfraError(fault)
        return fault is None

    def _note(self, index: int, outcome: _Outcome) -> bool:
        """Keep an outcome; whether grading goes on."""
        self._outcomes.append((index, outcome))
        return outcome.verdict is Verdict.PASSED or self._run_all

    async def _send(self, indices: Sequence[int], limits: Limits, patience: int = 1) -> Report | None:
        while True:
            request_id = secrets.token_hex(8)
            _ISSUED.append(request_id)
            request = build_request(
                self._code,
                self._problem.kind,
                self._problem.entry_point,
                [self._problem.tests[index].input for index in indices],
                limits,
                run_timeout_s=patience * (limits.cpu_s + 1) * len(indices) + 5,
                stop=not self._run_all,
                request_id=request_id,
            )
            result = await self._client.run_code(request)
            self._server = result.server
            report = parse_report(result, len(indices), limits)
            answered = report.request_id if report is not None else answered_request(result)
            # Another id than those issued here is the program's own invention, and gains it nothing.
            if answered == request_id or answered not in _ISSUED:
                self._python = report.python if report is not None else self._python
                return report
            fault = f"the sandbox at {result.server} answered with the result of another request"
            if not self._client.distrust(result.server, fault):
                raise InfraError(fault)

    def _judged(self, index: int, record: TestRecord) -> _Outcome:
        verdict, reason = self._verdict(self._problem.tests[index].expected, record)
        # Stopped by the wall clock, with CPU time to spare.
        uncertain = record.ended == "wall"
        if verdict is Verdict.PASSED:
            return _Outcome(verdict, record.cpu_s)
        output = _shown_output(record, is_call=self._problem.kind == "call")
        return _Outcome(verdict, record.cpu_s, reason, uncertain, output, _last_line(record))

    def _verdict(self, expected: str, record: TestRecord) -> tuple[Verdict, str]:
        limits = self._limits
        if record.ended == "output":
            return Verdict.OUTPUT_LIMIT, f"more than {limits.output_bytes >> 20} MiB of output"
        if record.ended == "wall":
            return Verdict.TIME_LIMIT, f"not done after {limits.wall_s:g} s, mostly asleep"
        if record.ended == "cpu" or record.cpu_s > limits.cpu_s:
            whose = "the problem's own limit" if self._problem.time_limit_s else "the limit of problems that name none"
            return Verdict.TIME_LIMIT, f"more than {limits.cpu_s:g} s of CPU time, {whose}"
        last_line = _last_line(record)
        if last_line.startswith("MemoryError") and record.code != 0:
            return Verdict.MEMORY_LIMIT, f"more than {limits.memory_mb} MiB of memory"
        if record.ended == "signal":
            if record.code == signal.SIGKILL and record.rss_kb > 0.8 * 1024 * limits.memory_mb:
                return Verdict.MEMORY_LIMIT, f"killed at {record.rss_kb >> 10} MiB of memory"
            return Verdict.RUNTIME_ERROR, f"ended by {_signal_name(record.code)}"
        if record.code != 0:
            return Verdict.RUNTIME_ERROR, last_line or f"exit status {record.code}"
        if self._problem.kind == "call":
            return _call_verdict(expected, record.answer)
        difference = compare.first_difference(expected, record.answer)
        return (Verdict.PASSED, "") if difference is None else (Verdict.WRONG_ANSWER, difference)

    def grade(self, infra: InfraError | None) -> Grade:
        """The grade so far; with `infra`, no verdict could be had."""
        failures = [(index, outcome) for index, outcome in self._outcomes if outcome.verdict is not Verdict.PASSED]
        first = failures[0] if failures and infra is None else None
        verdict = first[1].verdict if first is not None else Verdict.PASSED
        reason = f"test {first[0]}: {first[1].reason}" if first is not None else ""
        return Grade(
            verdict=verdict if infra is None else Verdict.INFRA_ERROR,
            tests_passed=len(self._outcomes) - len(failures),
            tests_run=len(self._outcomes),
            tests_total=len(self._problem.tests),
            first_failed=first[0] if first is not None else None,
            run_seconds=sum(outcome.cpu_s for _, outcome in self._outcomes),
            reason=reason if infra is None else str(infra),
            output=first[1].output if first is not None else None,
            error=first[1].error if first is not None else "",
            python=self._python,
        )


async def require_sandbox(client: SandboxClient) -> None:
    """Run a known program on every server of `client`; one that does not run it right is not used for a while.

    Raises InfraError, which says what is wrong, if none does.
    """
    faults = dict(
        zip(client.urls, await asyncio.gather(*(_driver_fault(client, url) for url in client.urls)), strict=True)
    )
    found = {url: fault for url, fault in faults.items() if fault is not None}
    if len(found) == len(faults):
        raise InfraError("; ".join(found.values()))
    for url, fault in found.items():
        client.distrust(url, fault)
        logger.warning("%s; the other sandboxes are used", fault)


async def _driver_fault(client: SandboxClient, server: str) -> str | None:
    """What is wrong with a server on which a known program does not get its known output; None if it does."""
    limits = Limits(10.0, 11.0, 256, 1 << 20)
    request = build_request("print(input())", "stdin", "", ["well\n"], limits, 30.0, stop=True)
    try:
        result = await client.run_code(request, at=server)
    except InfraError as error:
        return str(error)
    report = parse_report(result, 1, limits)
    if report is not None and report.records and report.records[0].answer == b"well\n":
        return None
    said = report.records[0].stderr if report is not None and report.records else result.stderr
    last_line = said.strip().rpartition("\n")[2][:200]
    return f"the sandbox at {server} cannot run the grading driver: {last_line or 'no result'}"


def _last_line(record: TestRecord) -> str:
    return record.stderr.strip().rpartition("\n")[2][:300]


def _shown_output(record: TestRecord, *, is_call: bool) -> str | None:
    """What a test printed or returned, for people; None where nothing came back."""
    if record.ended != "exit":
        return None
    if not is_call:
        return shortened(record.answer)
    value = record.answer.removeprefix(b'{"value": ')
    return shortened(value.removesuffix(b"}")) if value != record.answer else None


def _call_verdict(expected: str, answer: bytes) -> tuple[Verdict, str]:
    if not answer:
        return Verdict.RUNTIME_ERROR, "the program ended before the call returned"
    try:
        returned = compare.parse_value(answer)
        if "value" not in returned:
            return Verdict.WRONG_ANSWER, str(returned["not_json"])
        value = returned["value"]
    except (ValueError, KeyError, TypeError):
        return Verdict.WRONG_ANSWER, "returned no JSON value"
    difference = compare.value_difference(compare.parse_value(expected), value)
    return (Verdict.PASSED, "") if difference is None else (Verdict.WRONG_ANSWER, difference)


def _chunks(problem: Problem, indices: Sequence[int], cpu_s: float, first: int) -> Iterator[list[int]]:
    """The indices in growing chunks, each of bounded input size and time; the last takes what is not worth another.

    `first` is the size to begin with: small where the first failure ends it all.
    """
    most = min(_LARGEST_CHUNK, max(1, int(_LONGEST_CHUNK_S / (cpu_s + 1))))
    start, size = 0, first
    while start < len(indices):
        left = len(indices) - start
        count = min(most, left if size > 1 and left <= _REMAINDER * size else size)
        chunk, n_bytes = [indices[start]], len(problem.tests[indices[start]].input)
        for index in indices[start + 1 : start + count]:
            n_bytes += len(problem.tests[index].input)
            if n_bytes > _MAX_INPUT_BYTES:
                break
            chunk.append(index)
        yield chunk
        start += len(chunk)
        size *= _GROWTH


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
