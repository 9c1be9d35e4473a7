"""The judge: sends a program and the inputs of a problem to the sandbox, and compares what comes back here.

1. Tests go out in growing chunks (1, 4, 16, ...) and grading stops at the first failure, so that a wrong program, the
   usual case, costs one small request, and a right one few. Where all tests are to run, the first chunk is a large one.
2. A program that kills or mutes the driver takes its whole chunk's results with it: those tests are run alone once
   more, each in its own request; the one that does it again is a runtime error.
3. A test that broke the wall clock's limit without having used its CPU time is run alone once more, with twice the
   time: it may have waited for the machine and not for itself. So is one that SIGKILL ended below its memory limit.
4. Before a program is blamed for missing results, a known one has to get through on the same server. One on which the
   driver does not work (an old Python, a full disk, no room for processes) is quarantined and the test run elsewhere;
   without another server it is an infra error, as is what the client could not get done at all.
5. Tests may share a process of the sandbox (`isolation_per_test="failures"`). Of a test that was not the first in its
   process, only a pass counts. One that fails there runs again, first in its process. If it then passes, the program
   depends on sharing, and is graded anew with one process per test.
6. Every request has an id, which its report names. A server that answers with another request's is quarantined too.

What runs in the sandbox is `payload/driver.py`, sent as text. Expected outputs are no part of a request. The driver's
report was within the program's reach, so it is parsed strictly: any but a well-formed one of plausible size is none.
"""

import asyncio
import base64
import json
import math
import re
import secrets
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from coderl_tasks.errors import ConfigError, DataError, InfraError
from coderl_tasks.grading.client import RunRequest, SandboxClient
from coderl_tasks.grading.judge_programs import VERDICTS, CheckerFault, JudgePrograms
from coderl_tasks.grading.scoring import Grade, SandboxUse, Verdict, shortened
from coderl_tasks.problems.assertion_tests import with_given_code
from coderl_tasks.problems.comparators import comparator, parse_value
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.sandbox_programs import DRIVER, OPERATIONS_DRIVER
from coderl_tasks.settings.flow_settings import IsolationPerTest

_DRIVER_FAILED = "the driver failed"  # what the driver writes to a test's stderr then
_FIRST_CHUNK, _GROWTH, _LARGEST_CHUNK = 1, 4, 64
_FIRST_CHUNK_BYTES = 256 << 10  # of input that may be sent along with the first test, for programs that are quick
_MOST_ROUNDS = 300  # of an assertion test, each of which knows the result of one call more
_MOST_ROUNDS_WITHOUT_PROGRESS = 100  # of those: a small set's other order in each process comes up within these
_REMAINDER = 3  # a remainder of up to three times the next chunk's size goes along with it
_LONGEST_CHUNK_S = 600.0
_BUSY_TIME_FACTOR = 10  # times the time of a request, for a test that got too little of the machine
_MAX_INPUT_BYTES = 16 << 20  # of one request; a test with more goes alone
_LEAST_OUTPUT_LIMIT = 16 << 20
_MIB = 1 << 20
_STACK_AND_LIBRARIES_MB = 768  # address space that a test needs besides what it allocates
_DRIVER_MB = 256
_SLOW_IMPORTS = ("numpy", "scipy", "pandas", "sympy", "networkx", "sortedcontainers")
_VERSION = re.compile(r"\d{1,3}(\.\d{1,3}){2}")
_ENDINGS = ("exit", "signal", "cpu", "wall", "starved", "output")
_OPERATIONS = "*"  # the driver's entry point for assertion tests, whose input is a list of operations
_KNOWN_PROGRAM = "print(input())"
_KNOWN_PROBLEM = Problem("known", "", "", "", "stdin", "", (Test("well\n", "well\n"),), 1, 1, None, (), 0)
_ISSUED: deque[str] = deque(maxlen=10_000)
"""The ids of the newest requests of this process. An answer that names one of them, and not its own request's, is
another program's: whoever passes requests on has mixed them up."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one test: CPU seconds, wall seconds (of sleeping), MiB of memory, bytes of output."""

    cpu_s: float
    wall_s: float
    memory_mb: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class TestResult:
    """What became of the test `index` of a problem, as the driver reports it; `verdict` and `reason` once judged."""

    index: int
    ended: str  # exit; signal; cpu, wall or output: the limit it broke; starved: it got no processor for so long;
    # compile: a SyntaxError; lost: no report
    code: int = 0  # exit status, or number of the signal
    cpu_s: float = 0.0
    rss_kb: int = 0
    answer: bytes = b""  # standard output, or for a call the JSON of {"value": ...}
    stderr: str = ""  # its end
    is_later_in_process: bool = False  # its process had run another test before, so only a pass counts
    verdict: Verdict = Verdict.RUNTIME_ERROR
    reason: str = ""

    @property
    def error(self) -> str:
        """The last line of the error output."""
        return self.stderr.strip().rpartition("\n")[2][:300]


@dataclass(frozen=True, eq=False)
class Judge:
    """Grades programs through `client`. `timeout_s` is CPU seconds per test, where a problem names none of its own;
    `memory_mb` is what a test may allocate, in MiB. Raises ConfigError for a timeout that is not above 0 and finite."""

    client: SandboxClient
    timeout_s: float = 6.0
    _: KW_ONLY
    memory_mb: int = 1024
    isolation_per_test: IsolationPerTest = "failures"
    programs: JudgePrograms = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "programs", JudgePrograms(self.client, driver_fault))
        if not 0 < self.timeout_s < math.inf:
            raise ConfigError(f"a timeout of {self.timeout_s} s: give CPU seconds above 0")

    async def grade(
        self,
        problem: Problem,
        code: str,
        *,
        priority: Sequence[int] | None = None,
        run_all: bool = False,
        only: Sequence[int] | None = None,
    ) -> Grade:
        """Grade a program on a problem's tests, or `only` those of these indices, in the order `priority`, a
        permutation of the indices. Stops at the first failure unless `run_all` (for partial credit). An outage is the
        verdict `infra_error`. Raises DataError for a problem without tests, a bad priority or a bad time limit."""
        all_indices = list(range(len(problem.tests)) if only is None else only)
        indices = all_indices if priority is None else list(priority)
        # A priority that left out tests would let a wrong program pass.
        if not all_indices or sorted(indices) != sorted(all_indices):
            raise DataError(f"problem {problem.problem_id}: no tests, or the test priority is no permutation of them")
        limits = self._limits(problem)
        # With "failures", tests share a process, and only those that fail in it run again in processes of their own.
        shared_process = self.isolation_per_test == "failures" and len(all_indices) > 1
        run = _Run(self.programs, problem, code, limits, run_all, shared_process)
        verdict, reason = Verdict.PASSED, ""
        try:
            if problem.kind == "assert":
                # The tests run once without a program, which tells the calls to ask of every program.
                run.problem = problem = await self.programs.rehearsed(problem)
                run.code = code = with_given_code(problem.starter_code, code)
                run.may_share_request = True  # with other programs: these calls take less time than a request does
            try:
                await run.run_until_over(indices)
            except _DependsOnSharing:  # so its earlier passes do not count: start again, one process per test
                run = _Run(self.programs, problem, code, limits, run_all, shared_process=False, retries=run.retries)
                await run.run_until_over(indices)
        except InfraError as outage:
            verdict, reason = Verdict.INFRA_ERROR, str(outage)
        except CheckerFault as fault:
            verdict, reason = Verdict.CHECKER_ERROR, f"problem {problem.problem_id}: {fault}"
        failed = run.failed if verdict is Verdict.PASSED else None  # after an error no test is to blame
        output: bytes | None = None
        if failed is not None:
            verdict, reason = failed.verdict, f"test {failed.index}: {failed.reason}"
            if failed.ended == "exit":  # otherwise the output was cut off
                output = _value_text(failed.answer) if problem.kind == "call" else failed.answer
        return Grade(
            verdict,
            tests_passed=run.tests_passed,
            tests_run=run.tests_run,
            tests_total=len(problem.tests),
            first_failed=None if failed is None else failed.index,
            run_seconds=sum(run.test_seconds, 0.0),
            reason=reason,
            output=None if output is None else shortened(output),
            error="" if failed is None else shortened(failed.error),
            python=run.python,
            test_seconds=tuple(run.test_seconds),
            sandbox=SandboxUse(run.server, run.retries) if run.server else None,
        )

    async def outputs(self, problem: Problem, code: str) -> list[str]:
        """What a program answers to the tests of a `stdin` or `call` problem, in order: its standard output, or the
        JSON of the returned value. Nothing is compared. The list ends before the first test without an answer: a crash,
        a broken limit, more than 1 MiB beside a short expected output, no UTF-8, no JSON. Raises InfraError."""
        limits = self._limits(problem, least_output=_MIB)  # all answers are held: these may not be 16 MiB each
        asked = replace(problem.whole(), checker="")
        run = _Run(self.programs, asked, code, limits, run_all=False, shared_process=False, not_compared=[])
        await run.run_until_over(range(len(asked.tests)))
        texts: list[str] = []
        for answer in (result.answer for result in run.not_compared or ()):
            found = _value_text(answer) if problem.kind == "call" else answer
            try:
                if found is None or (problem.kind == "call" and "value" not in parse_value(answer)):
                    break
                texts.append(found.decode())
            except (ValueError, TypeError):
                break
        return texts

    async def run(self, code: str, stdin: str) -> TestResult:
        """One run of a program, at most 1 MiB of output: `passed` if it ends with status 0. Raises InfraError."""
        asked = replace(_KNOWN_PROBLEM, tests=(Test(stdin, ""),))
        limits = self._limits(asked, least_output=_MIB)
        run = _Run(self.programs, asked, code, limits, run_all=False, shared_process=False, not_compared=[])
        await run.run_until_over([0])
        return run.failed or (run.not_compared or [])[0]

    def _limits(self, problem: Problem, least_output: int = _LEAST_OUTPUT_LIMIT) -> Limits:
        """The limits of one test. Raises DataError for a bad time limit."""
        cpu_s = problem.time_limit_s or self.timeout_s
        if not 0 < cpu_s < math.inf:
            raise DataError(f"problem {problem.problem_id}: a time limit of {cpu_s} s")
        longest = max(len(test.expected.encode("utf-8", "surrogatepass")) for test in problem.tests)
        # A power of two with a minimum: the sandbox learns the limit, which must not reveal the length of the answer.
        return Limits(cpu_s, cpu_s + 1.0, self.memory_mb, max(least_output, 1 << (2 * longest).bit_length()))


class _DependsOnSharing(Exception):
    """A program has passed a test alone that it had failed in a process that had run another test before."""


@dataclass(slots=True)
class _Run:
    """One program on one problem, as far as it has got."""

    programs: JudgePrograms
    problem: Problem
    code: str
    limits: Limits
    run_all: bool
    shared_process: bool  # several tests may run in one process
    may_share_request: bool = False  # its first request may run other programs too
    server: str = ""  # the one that answered last
    python: str = ""  # its version there
    tests_run: int = 0
    tests_passed: int = 0
    test_seconds: list[float] = field(default_factory=list)  # CPU seconds of each that counts
    retries: int = 0  # requests that came to nothing and were sent again
    failed: TestResult | None = None  # the first
    not_compared: list[TestResult] | None = None  # where only the answers are wanted: those of programs that ended well

    async def run_until_over(self, indices: Sequence[int]) -> None:
        """Run these tests until grading is over. Raises _DependsOnSharing and InfraError."""
        first, rest = _LARGEST_CHUNK if self.run_all else _FIRST_CHUNK, list(indices)
        if self.shared_process and not self.run_all:
            # The first request holds all tests that its first process may run. If that process cannot be shared, only
            # the first test runs, and a wrong program costs no more than otherwise.
            chunk = next(_chunks(self.problem, rest, self.limits.cpu_s, _LARGEST_CHUNK, _FIRST_CHUNK_BYTES))
            n_done = await self._run_tests(chunk, one_process=True)
            if n_done is None:
                return
            first, rest = _LARGEST_CHUNK if n_done == len(chunk) > 1 else _GROWTH, rest[n_done:]
        for chunk in _chunks(self.problem, rest, self.limits.cpu_s, first):
            if await self._run_tests(chunk) is None:
                return

    async def _run_tests(self, chunk: Sequence[int], *, one_process: bool = False) -> int | None:
        """Run the tests `chunk` and count their results. Returns how many were counted, or None when grading is over.
        With `one_process` the sandbox starts one process, and the tests that it does not run are not counted here.

        While `self.shared_process`, a process runs several tests. The first has it to itself, so its failure counts;
        docs/rewards.md says why a later pass does. If a later one fails, it runs again, first in a process. A pass then
        shows that the program depends on sharing: raises _DependsOnSharing."""
        waiting = list(chunk)
        failed_later_in_process: int | None = None
        report_was_lost = False
        while waiting:
            results = None if report_was_lost else await self._send(waiting, self.limits, one_process=one_process)
            if results is None:  # the program may have killed the driver, so from now on each test gets its own request
                report_was_lost = True
                results = [await self._run_alone(waiting[0], self.limits)]
            n_counted = 0
            for result in await self._judge_results(results):
                if self.shared_process and result.is_later_in_process and result.verdict is not Verdict.PASSED:
                    # An earlier test may be to blame. From now on each test has its own process, this one first.
                    self.shared_process, failed_later_in_process = False, result.index
                    break
                # Where the driver does not work, its server is quarantined now, and another one runs the test.
                if result.reason.startswith(_DRIVER_FAILED) and not await self._driver_works():
                    result = await self._run_and_judge_alone(result.index, self.limits)
                # It used little CPU time before the wall-clock limit: perhaps the machine was busy, so it runs alone.
                # So does what SIGKILL ended below its own memory limit: the machine's memory may have been full.
                is_signal, has_waited = result.ended == "signal", result.ended in ("wall", "starved")
                was_killed = is_signal and result.code == signal.SIGKILL and result.verdict is Verdict.RUNTIME_ERROR
                if was_killed or (has_waited and result.verdict is not Verdict.PASSED):
                    limits = replace(self.limits, wall_s=2 * self.limits.wall_s)
                    result = await self._run_and_judge_alone(result.index, limits, time_factor=_BUSY_TIME_FACTOR)
                    if result.ended == "starved":
                        raise InfraError(f"the machine of the sandbox at {self.server} is too busy to run programs")
                if result.index == failed_later_in_process and result.verdict is Verdict.PASSED:
                    raise _DependsOnSharing
                # A program that does not compile fails every test: stop, even with `run_all`.
                goes_on = self._count(result) and result.ended != "compile"
                if not goes_on:
                    return None
                n_counted += 1
            if one_process and n_counted == len(results):  # all that the one process has run
                return n_counted
            # Send the rest again: the driver also stops at the time and output limits of the whole request.
            del waiting[:n_counted]
            if failed_later_in_process is not None and not self.run_all:
                del waiting[1:]  # the repetition of this test ends grading: as a failure, or by _DependsOnSharing
        return len(chunk)

    async def _run_and_judge_alone(self, index: int, limits: Limits, time_factor: int = 1) -> TestResult:
        result = await self._run_alone(index, limits, time_factor)
        return (await self._judge_results([result], limits, time_factor))[0]

    async def _run_alone(self, index: int, limits: Limits, time_factor: int = 1) -> TestResult:
        """One test in a request of its own; its result, not judged yet."""
        while True:
            results = await self._send([index], limits, time_factor)
            if results is not None and not results[0].error.startswith(_DRIVER_FAILED):
                return results[0]
            # If it does not work, the server is quarantined now, and the same test goes to another one.
            if await self._driver_works():
                lost = TestResult(index, "lost", reason="the program killed or muted the process that runs it")
                return lost if results is None else results[0]

    async def _driver_works(self) -> bool:
        """Whether the driver works on the last server; if not, quarantines it. InfraError if it is the only one."""
        fault = await driver_fault(self.programs.client, self.server)
        if fault is not None and not self.programs.client.quarantine(self.server, fault):
            raise InfraError(fault)
        return fault is None

    def _count(self, result: TestResult) -> bool:
        """Count a test's result. Returns whether grading goes on. Raises CheckerFault if the test itself has failed."""
        if result.verdict is Verdict.CHECKER_ERROR:
            raise CheckerFault(f"test {result.index}: {result.reason}")
        passed = result.verdict is Verdict.PASSED
        self.tests_run += 1
        self.tests_passed += passed
        self.test_seconds.append(result.cpu_s)
        if passed and self.not_compared is not None:
            self.not_compared.append(result)
        if not passed and self.failed is None:  # of the others nothing is kept: an answer may be 16 MiB long
            self.failed = result
        return passed or self.run_all

    async def _send(
        self, indices: Sequence[int], limits: Limits, time_factor: int = 1, *, one_process: bool = False
    ) -> list[TestResult] | None:
        """Run tests in one request. Returns their results, in order and without verdicts: of all of them, or of the
        first ones if the driver stopped early, at a failure or a limit. Returns None if there is no valid report."""
        # The driver runs tests in turn, and reports what it has before the time is over. All tests of one process have
        # one test's time together, and if that process fails, the first test runs again: hence twice.
        n_test_times = min(2, len(indices)) if one_process else len(indices)
        start_s = 5  # of the interpreter
        run_timeout_s = time_factor * (limits.cpu_s + 1) * n_test_times + start_s
        while True:
            request_id = secrets.token_hex(8)
            _ISSUED.append(request_id)
            sharing = {"shared_process": self.shared_process, "one_process": one_process}
            request = build_request(
                self.problem, self.code, indices, limits, run_timeout_s, request_id, stop=not self.run_all, **sharing
            )
            if self.may_share_request:
                self.may_share_request = False  # only once: what has to run again runs without other programs
                results = await self._run_with_other_programs(request, indices, limits)
                if results is not None:
                    return results
            # `run_program` notes that assertion tests will follow: a batch of other programs' tests waits for them.
            run = self.programs.run_program if self.problem.kind == "assert" else self.programs.client.run_code
            result = await run(request)
            self.server, self.retries = result.server, self.retries + result.retries
            report = result.report(8 * limits.output_bytes + _MIB)  # the driver writes no more
            answered_id = report.get("id")
            # Only another issued id proves a mix-up. Any other id is the program's invention, and its report is read.
            if answered_id == request_id or answered_id not in _ISSUED:
                results = self._read(report, indices, limits)
                if answered_id != request_id and results is not None:  # the driver alone may say that it starved
                    results = [replace(one, ended="wall") if one.ended == "starved" else one for one in results]
                return results
            fault = f"the sandbox at {result.server} answered with the result of another request"
            if not self.programs.client.quarantine(result.server, fault):  # there is no other server to ask
                raise InfraError(fault)
            self.retries += 1

    async def _run_with_other_programs(
        self, request: RunRequest, indices: Sequence[int], limits: Limits
    ) -> list[TestResult] | None:
        """As `_send`, after other programs. None where that did not go well: only what the program itself did, and how
        long that took, may count."""
        report = await self.programs.run_with_others(request)
        if report is None:
            return None
        results = self._read(report, indices, limits)
        for result in results or ():
            if result.ended not in ("exit", "cpu", "compile") or result.error.startswith(_DRIVER_FAILED):
                return None
        self.server = report["server"]
        return results

    def _read(self, report: dict[str, Any], indices: Sequence[int], limits: Limits) -> list[TestResult] | None:
        results, python = reported_tests(report, indices, limits), report.get("python")
        if results is not None:
            self.python = python if isinstance(python, str) and _VERSION.fullmatch(python) else ""
        return results

    async def _judge_results(
        self, results: Sequence[TestResult], limits: Limits | None = None, time_factor: int = 1
    ) -> list[TestResult]:
        """Returns `results` with their verdicts and reasons; of assertion tests, unless `run_all`, only those up to the
        first that did not pass.

        An assertion test does not run where the program does. Its input is a list of operations (calls and the like) on
        the program, its answer their results. With these the test either ends, or names further operations that it
        needs. The program then runs anew and does all of them, with `limits` and `time_factor` as in `_send`."""
        judged = [self._judge_result(result) for result in results]
        if self.problem.checker:
            return await self._checked(judged)
        if self.problem.kind != "assert":
            return judged
        undecided = [place for place, result in enumerate(judged) if _has_answers_for_test(result)]
        n_operations = dict.fromkeys(undecided, 0)
        without_progress = dict.fromkeys(undecided, 0)  # the last rounds in which a test got no further
        for _ in range(_MOST_ROUNDS):
            if not self.run_all:  # what comes after the first failure does not count
                decided = [place for place in range(len(judged)) if place not in undecided]
                failed = [place for place in decided if judged[place].verdict is not Verdict.PASSED]
                if failed:
                    judged = judged[: failed[0] + 1]
                    undecided = [place for place in undecided if place < failed[0]]
            if not undecided:
                return judged
            waiting = [judged[place] for place in undecided]
            answered = [(self.problem.tests[one.index], one.answer.decode(errors="replace")) for one in waiting]
            still_undecided = []
            for place, of_test in zip(undecided, await self.programs.results_of(answered), strict=True):
                result = judged[place]
                if of_test["end"] != "needs":
                    verdict, shown = VERDICTS[of_test["end"]], of_test.get("shown", "").encode("utf-8", "surrogatepass")
                    reason = of_test["reason"]
                    judged[place] = replace(result, ended="exit", verdict=verdict, reason=reason, answer=shown)
                elif of_test["again"]:  # the program's process ended before these operations: how, decides
                    judged[place] = replace(result, answer=b"")
                elif without_progress[place] == _MOST_ROUNDS_WITHOUT_PROGRESS:
                    reason = "its arguments differ in each run"
                    judged[place] = replace(result, verdict=Verdict.CHECKER_ERROR, reason=reason)
                else:
                    n_before, n_operations[place] = n_operations[place], len(json.loads(of_test["operations"]))
                    without_progress[place] = 0 if n_operations[place] > n_before else without_progress[place] + 1
                    tests = list(self.problem.tests)  # which are this run's own
                    tests[result.index] = replace(tests[result.index], input=of_test["operations"])
                    self.problem = replace(self.problem, tests=tuple(tests))
                    result = await self._run_alone(result.index, limits or self.limits, time_factor)
                    judged[place] = self._judge_result(result)
                    if _has_answers_for_test(judged[place]):
                        still_undecided.append(place)
            undecided = still_undecided
        reason = f"its calls depend on each other: more than {_MOST_ROUNDS} runs of a program for one test"
        for place in undecided:
            judged[place] = replace(judged[place], verdict=Verdict.CHECKER_ERROR, reason=reason)
        return judged

    async def _checked(self, results: list[TestResult]) -> list[TestResult]:
        """`results` of programs that ended as they should, with the checker's verdict in place of a comparison."""
        printed = [place for place, result in enumerate(results) if result.verdict is Verdict.PASSED]
        outputs = [(self.problem.tests[results[place].index], results[place].answer) for place in printed]
        if printed:
            outcomes = await self.programs.check(self.problem.checker, outputs)
            for place, (verdict, reason) in zip(printed, outcomes, strict=True):
                results[place] = replace(results[place], verdict=verdict, reason=reason)
        return results

    def _judge_result(self, result: TestResult) -> TestResult:
        """Returns `result` with its verdict and, unless it passed, the reason: by how the program ended, then by its
        output. That of an assertion test, or of one with a checker, is preliminary."""
        limits, expected = self.limits, self.problem.tests[result.index].expected
        verdict = Verdict.RUNTIME_ERROR
        # Causes come before effects: a broken limit explains the exit status, and the exit status a missing output.
        if result.ended in ("compile", "lost"):  # a SyntaxError; no report, as the program killed the driver
            reason = result.stderr or result.reason
        elif result.ended == "output":
            verdict, reason = Verdict.OUTPUT_LIMIT, f"more than {limits.output_bytes >> 20} MiB of output"
        elif result.ended in ("wall", "starved"):  # it slept, or got no processor: the caller lets it run again
            verdict, reason = Verdict.TIME_LIMIT, f"not done after {limits.wall_s:g} s, mostly asleep"
        elif result.ended == "cpu" or result.cpu_s > limits.cpu_s:
            whose = "the problem's own limit" if self.problem.time_limit_s else "the limit of problems that name none"
            verdict, reason = Verdict.TIME_LIMIT, f"more than {limits.cpu_s:g} s of CPU time, {whose}"
        # `code` is the exit status or the signal's number: after a MemoryError either may end the program.
        elif result.error.startswith("MemoryError") and result.code != 0:
            verdict, reason = Verdict.MEMORY_LIMIT, f"more than {limits.memory_mb} MiB of memory"
        elif result.ended == "signal":
            has_name = result.code in set(signal.Signals)
            reason = f"ended by {signal.Signals(result.code).name if has_name else f'signal {result.code}'}"
            # The kernel's out-of-memory killer says no more than this.
            if result.code == signal.SIGKILL and result.rss_kb > 0.8 * 1024 * limits.memory_mb:
                verdict, reason = Verdict.MEMORY_LIMIT, f"killed at {result.rss_kb >> 10} MiB of memory"
        elif result.code != 0:
            reason = result.error or f"exit status {result.code}"
        elif self.problem.kind == "assert" or (self.problem.kind == "call" and not result.answer):
            reason = "the program ended before the call returned"
        elif self.problem.checker or self.not_compared is not None:  # a checker decides later; only the answer counts
            verdict, reason = Verdict.PASSED, ""
        else:
            compare = comparator(self.problem.comparator)
            if self.problem.kind == "call":
                difference = _call_difference(expected, result.answer, compare.answer_difference)
            else:
                difference = compare.text(expected, result.answer)
            verdict, reason = (Verdict.PASSED, "") if difference is None else (Verdict.WRONG_ANSWER, difference)
        return replace(result, verdict=verdict, reason=reason)


async def require_sandbox(client: SandboxClient) -> None:
    """Run a known program on every server. Quarantines those that do not run it right; InfraError if none does."""
    urls = client.urls
    faults = dict(zip(urls, await asyncio.gather(*(driver_fault(client, url) for url in urls)), strict=True))
    found = {url: fault for url, fault in faults.items() if fault is not None}
    if len(found) == len(faults):
        raise InfraError("; ".join(found.values()))
    # Only once all are known: nothing is quarantined where no other server is up.
    for url, fault in found.items():
        client.quarantine(url, fault)


async def driver_fault(client: SandboxClient, server: str) -> str | None:
    """What is wrong with a server on which a known program does not get its known output; None if it does."""
    limits = Limits(10.0, 11.0, 256, _MIB)
    try:
        request = build_request(_KNOWN_PROBLEM, _KNOWN_PROGRAM, [0], limits, run_timeout_s=30.0, stop=True)
        result = await client.run_code(request, at=server)
    except InfraError as error:
        return str(error)
    results = reported_tests(result.report(), [0], limits)
    if results is not None and results[0].answer == b"well\n":
        return None
    stderr = results[0].stderr if results is not None else result.stderr
    last_line = stderr.strip().rpartition("\n")[2][:200]
    return f"the sandbox at {server} cannot run the grading driver: {last_line or 'no result'}"


def build_request(
    problem: Problem,
    code: str,
    indices: Sequence[int],
    limits: Limits,
    run_timeout_s: float,
    request_id: str = "",
    *,
    stop: bool,
    shared_process: bool = False,
    one_process: bool = False,
) -> RunRequest:
    """The request that runs a program on the tests `indices`, in this order; with `stop`, up to the first that crashes
    or breaks a limit. A test has a process of its own, but with `shared_process` one process runs as many as it can.
    With `one_process` the driver starts no second one, and tests that the first did not run are missing in the report:
    a wrong program then costs one process. The report repeats `request_id`, so that a mixed-up answer is noticed."""
    # An assertion test runs elsewhere, on the results of the operations in its input: calls of the program, and so on.
    does_operations = problem.kind == "assert"
    tests = {
        "id": request_id,
        "kind": problem.kind,
        "entry_point": _OPERATIONS if does_operations else problem.entry_point,
        "inputs": [problem.tests[index].input for index in indices],
        "preload": [name for name in _SLOW_IMPORTS if name in code],  # once, not by each test
        "cpu_limit_s": limits.cpu_s,
        "wall_limit_s": limits.wall_s,
        "run_timeout_s": run_timeout_s,
        "memory_bytes": (limits.memory_mb + _STACK_AND_LIBRARIES_MB) * _MIB,
        "output_limit": limits.output_bytes,
        "total_output_limit": 2 * limits.output_bytes,  # of all tests: beyond, the rest is sent again
        "stop_on_failure": stop,
        "company": shared_process,  # the driver's word: a test has others in its process
        "one_process": one_process,
    }
    return RunRequest(
        code=OPERATIONS_DRIVER if does_operations else DRIVER,
        files={"solution.py": code.encode("utf-8", "surrogatepass"), "tests.json": json.dumps(tests).encode()},
        fetch_files=("results.json",),
        run_timeout_s=run_timeout_s,
        memory_limit_mb=limits.memory_mb + _STACK_AND_LIBRARIES_MB + _DRIVER_MB,
    )


def reported_tests(report: dict[str, Any], indices: Sequence[int], limits: Limits) -> list[TestResult] | None:
    """The results in a driver's report, not judged yet, for the first tests of `indices` (at least one); None if the
    driver would not write such a report. A program that does not compile has one result for all tests."""
    compile_error = report.get("compile_error")
    if isinstance(compile_error, str):
        return [TestResult(indices[0], "compile", stderr=compile_error[:300])]
    tests = report.get("tests")
    if not isinstance(tests, list) or not 0 < len(tests) <= len(indices):
        return None
    results: list[TestResult] = []
    try:
        for index, test in zip(indices, tests, strict=False):  # the driver may stop early: the last tests may be absent
            ended, code, cpu_s, rss_kb = test["ended"], test["code"], test["cpu_s"], test["rss_kb"]
            answer = base64.b64decode(test["answer"], validate=True)
            # Compare the type itself: to isinstance, True is an int.
            if ended not in _ENDINGS or type(code) is not int or type(rss_kb) is not int:
                return None
            later_in_process = test["in_company"]  # its process had run another test before
            if type(later_in_process) is not bool or len(answer) > limits.output_bytes:
                return None
            if type(cpu_s) not in (int, float) or not math.isfinite(cpu_s) or not 0 <= cpu_s < 1e6:
                return None
            stderr = base64.b64decode(test["stderr"], validate=True)[-1000:].decode("utf-8", "replace")
            results.append(TestResult(index, ended, code, float(cpu_s), rss_kb, answer, stderr, later_in_process))
    except (ValueError, KeyError, TypeError, OverflowError):  # not the driver's form
        return None
    return results


def _has_answers_for_test(result: TestResult) -> bool:
    """Whether an assertion test has to decide: one whose program was ended in the middle may have failed before."""
    return b"\n" in result.answer or (result.ended, result.code) == ("exit", 0)


def _value_text(answer: bytes) -> bytes | None:
    """The JSON of the value that a call returned; None for what does not begin like one."""
    value = answer.removeprefix(b'{"value": ')
    return value.removesuffix(b"}") if value != answer else None


def _call_difference(expected: str, answer: bytes, compare: Callable[[Any, Any], str | None]) -> str | None:
    """What `compare` says of the value that a call returned, as the driver writes it."""
    try:
        returned = parse_value(answer)
        if "value" not in returned:
            return str(returned["not_json"])
        value = returned["value"]
    except (ValueError, KeyError, TypeError):
        return "returned no JSON value"
    return compare(parse_value(expected), value)


def _chunks(
    problem: Problem, indices: Sequence[int], cpu_s: float, first: int, most_bytes: int = _MAX_INPUT_BYTES
) -> Iterator[list[int]]:
    """The indices in chunks of bounded input size and time, growing from `first` tests; the last takes a remainder."""
    most = min(_LARGEST_CHUNK, max(1, int(_LONGEST_CHUNK_S / (cpu_s + 1))))
    start, size = 0, first
    while start < len(indices):
        left = len(indices) - start
        count = min(most, left if size > 1 and left <= _REMAINDER * size else size)
        chunk, n_bytes = [indices[start]], len(problem.tests[indices[start]].input)
        for index in indices[start + 1 : start + count]:
            n_bytes += len(problem.tests[index].input)
            if n_bytes > most_bytes:
                break
            chunk.append(index)
        yield chunk
        start += len(chunk)
        size *= _GROWTH
