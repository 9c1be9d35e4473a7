"""Grading for programs that are not coderl: `Grader`, completions to rewards from any thread and any event loop;
`CodeEnv`, a problem as an environment of one step; and `sandbox_check_correctness`, a verdict in one call.

`SandboxClient` and `Judge`, which it is made of, belong to one event loop and one `async with`. Trainers call a reward
function from threads and loops of their own (TRL from its main thread, verl from the loop of a Ray actor, a notebook
from a loop that is running already), so the grader has a thread with a loop and one pool of connections for all.
"""

import asyncio
import atexit
import contextvars
import logging
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, Self, TypeVar

from coderl_tasks.errors import CoderlError, ConfigError, DataError, InfraError
from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.scoring import FORMAT_COEF, ScoredCompletion, Verdict, score_completion, score_group
from coderl_tasks.problems.problem import Problem, RowDropped
from coderl_tasks.problems.raw_row import problem_from_row, statement_of
from coderl_tasks.prompts.renderers import Renderer, problem_prompt
from coderl_tasks.server_addresses import sandbox_addresses
from coderl_tasks.services import named_sandboxes, sandbox_concurrency, services
from coderl_tasks.settings.flow_settings import IsolationPerTest

Problems = Sequence[Problem | Mapping[str, Any]]
"""Problems, or rows with tests in any shape that `coderl validate` takes; the statement may be missing."""
Ungraded = Literal["raise", "none"]
Completions = Sequence[str | Sequence[Mapping[str, Any]]]
"""Texts of answers, or chats, whose last message is the answer (TRL's conversational data sets)."""
AnswerT = TypeVar("AnswerT")
_Started = tuple[asyncio.AbstractEventLoop, asyncio.Event, Judge]
_NO_STATEMENT = "(graded without a statement)"
_INTERRUPT_S = 0.2
logger = logging.getLogger(__name__)


def result_of(future: Future[AnswerT]) -> AnswerT:
    """The result of another thread's work. Ctrl-C ends the wait."""
    # Not `future.result()`: polars installs a SIGINT handler with SA_RESTART, so Ctrl-C would not end that wait.
    while not future.done():
        wait((future,), timeout=_INTERRUPT_S)
    return future.result()


@dataclass
class _InProcess:
    starting: threading.Lock = field(default_factory=threading.Lock)
    running: tuple[_Started, threading.Thread] | None = None


class Grader:
    """Grades completions of coding problems. Starts with its first use, or with `with` or `async with`, and ends with
    the block, with `close`, or with the process. A process that is forked from one that uses it starts its own.

    `sandbox` is the address of a Sandbox Fusion server, or several. Without it the sandbox is found as `coderl` finds
    it: `SANDBOX_URL`, else one of this user on port 8080, else an embedded one, which ends with the grader. `timeout_s`
    is CPU seconds per test of problems that name no limit. A completion without a closed code block has the reward
    -`format_coef`; with `fraction` all tests are run, and correctness is the share passed. `isolation_per_test` is as
    in docs/rewards.md."""

    def __init__(
        self,
        sandbox: str | Sequence[str] | None = None,
        *,
        timeout_s: float = 6.0,
        format_coef: float = FORMAT_COEF,
        fraction: bool = False,
        max_concurrency: int | None = None,
        isolation_per_test: IsolationPerTest = "failures",
    ) -> None:
        """At most `max_concurrency` programs run at a time (default: `SANDBOX_MAX_CONCURRENCY`, else 34, or an embedded
        sandbox's own number if that is more)."""
        named = [sandbox] if isinstance(sandbox, str) else sandbox
        self._urls = None if named is None else sandbox_addresses(named)
        if self._urls == ():
            raise ConfigError("sandbox names no server: give an address, or none to have one found or started")
        self._timeout_s, self._format_coef, self._fraction = timeout_s, format_coef, fraction
        self._max_concurrency, self._isolation_per_test = max_concurrency, isolation_per_test
        self._by_process: dict[int, _InProcess] = {}

    def grade(self, problems: Problems, completions: Completions) -> list[ScoredCompletion]:
        """The grade of each completion on the problem beside it (N problems, N completions, N grades, in order).
        `reward` is None, and `grade.verdict` infra_error, where the sandbox could not be asked: an outage raises
        nothing here. Raises DataError for a row that cannot be read, ValueError for lengths that differ."""
        graded = self._submit(self._graded(_problems(problems, completions), _texts(completions)))
        try:
            return result_of(graded)
        except KeyboardInterrupt:
            graded.cancel()
            raise

    async def agrade(self, problems: Problems, completions: Completions) -> list[ScoredCompletion]:
        """`grade`, for a coroutine of any event loop; the loop is free meanwhile."""
        # In a thread: the first use waits for a sandbox to start, and rows of 200 MB take seconds to read.
        read = await asyncio.to_thread(_problems, problems, completions)
        await asyncio.to_thread(self.start)
        return await asyncio.wrap_future(self._submit(self._graded(read, _texts(completions))))

    def rewards(self, problems: Problems, completions: Completions, *, ungraded: Ungraded) -> list[float | None]:
        """The rewards alone. For completions that could not be graded `ungraded` "none" leaves None in their place,
        "raise" raises InfraError, which says how many they are and why."""
        return _rewards(self.grade(problems, completions), ungraded)

    async def arewards(self, problems: Problems, completions: Completions, *, ungraded: Ungraded) -> list[float | None]:
        """`rewards`, for a coroutine of any event loop."""
        return _rewards(await self.agrade(problems, completions), ungraded)

    def start(self) -> Self:
        """Start the thread, and a sandbox where none is found; nothing if it is started. Raises what that raises."""
        here = self._here
        with here.starting:
            if here.running is None:
                started: Future[_Started] = Future()
                # In the caller's context: inside `services(...)` the sandbox of that block is used.
                work = contextvars.copy_context()
                # A daemon, so that a script that never closes its grader ends; `close` at exit ends what it started.
                thread = threading.Thread(target=work.run, args=(self._run, started), name="grader", daemon=True)
                try:
                    thread.start()
                    here.running = (result_of(started), thread)
                except BaseException:  # interrupted: nobody holds the thread, which ends
                    if not started.cancel() and started.exception() is None:
                        loop, ended, _ = started.result()
                        loop.call_soon_threadsafe(ended.set)
                    raise
                atexit.register(self.close)
        return self

    def close(self) -> None:
        """End the thread, its connections, and the sandbox that it started. The next use starts them again."""
        here = self._here
        with here.starting:
            if here.running is None:
                return
            (loop, ended, _), thread = here.running
            here.running = None
            atexit.unregister(self.close)
            loop.call_soon_threadsafe(ended.set)
            thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    @property
    def _here(self) -> _InProcess:
        """Of this process: `fork` copies a grader without its thread, and with a lock that another thread may hold."""
        return self._by_process.setdefault(os.getpid(), _InProcess())  # atomic: threads may meet here

    def _run(self, started: "Future[_Started]") -> None:
        """The work of the grader's thread: finds or starts a sandbox, and serves until `close`."""
        try:
            with ExitStack() as stack:
                urls, concurrency = self._urls, sandbox_concurrency()
                if urls is None:
                    found = stack.enter_context(services(None))
                    logger.info("%s", "; ".join(found.lines))
                    urls, concurrency = found.sandbox_urls, found.sandbox_concurrency
                asyncio.run(self._serve(urls, self._max_concurrency or concurrency, started))
        except BaseException as error:
            if started.cancelled():  # `start` was interrupted
                return
            if started.done():  # nobody waits for this thread any more: the interpreter reports it
                raise
            started.set_exception(error)

    async def _serve(self, urls: Sequence[str], max_concurrency: int, started: "Future[_Started]") -> None:
        ended = asyncio.Event()
        async with SandboxClient(urls, max_concurrency) as client:
            judge = Judge(client, self._timeout_s, isolation_per_test=self._isolation_per_test)
            started.set_result((asyncio.get_running_loop(), ended, judge))
            await ended.wait()
            # Those of callers that other threads run: they get an answer, not a future that never ends.
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    def _submit(self, work: Coroutine[Any, Any, AnswerT]) -> "Future[AnswerT]":
        try:
            self.start()
            running = self._here.running
            if running is None:
                raise CoderlError("the grader was closed meanwhile")
            return asyncio.run_coroutine_threadsafe(work, running[0][0])
        except BaseException:
            work.close()
            raise

    async def _graded(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[ScoredCompletion]:
        running = self._here.running
        assert running is not None
        judge = running[0][2]
        places: dict[Problem, list[int]] = {}
        for place, problem in enumerate(problems):
            places.setdefault(problem, []).append(place)
        graded: dict[int, ScoredCompletion] = {}

        async def score(problem: Problem, own: list[int]) -> None:
            of_problem = [texts[place] for place in own]
            scored = await score_group(judge, problem, of_problem, self._format_coef, fraction=self._fraction)
            graded.update(zip(own, scored, strict=True))

        await asyncio.gather(*(score(problem, own) for problem, own in places.items()))
        return [graded[place] for place in range(len(problems))]


def _problems(rows: Problems, completions: Completions) -> list[Problem]:
    if isinstance(rows, str | Mapping) or isinstance(completions, str):
        raise ValueError("give lists: problems, and as many completions")
    if len(rows) != len(completions):
        raise ValueError(f"{len(rows)} problems and {len(completions)} completions: each completion needs its problem")
    problems = []
    for number, row in enumerate(rows):
        try:
            if not isinstance(row, Problem):
                stated = row if statement_of(row) is not None else {**row, "question": _NO_STATEMENT}
                row = problem_from_row(stated, split="graded", source_row=0)
        except RowDropped as drop:
            raise DataError(f"problem {number} cannot be graded on: {drop}") from drop
        problems.append(row)
    return problems


def _texts(completions: Completions) -> list[str]:
    texts = []
    for number, completion in enumerate(completions):
        text = completion if isinstance(completion, str) else completion[-1].get("content") if completion else None
        if not isinstance(text, str):
            raise DataError(f"completion {number} is neither a text nor a chat that ends with one")
        texts.append(text)
    return texts


def _rewards(graded: Sequence[ScoredCompletion], ungraded: Ungraded) -> list[float | None]:
    if ungraded not in ("raise", "none"):
        raise ValueError(f"ungraded={ungraded!r}: use 'raise' or 'none'")
    lost = [scored.grade.reason for scored in graded if scored.reward is None]
    if lost and ungraded == "raise":
        raise InfraError(f"{len(lost)} of {len(graded)} completions could not be graded (the last: {lost[-1]})")
    return [scored.reward for scored in graded]


@dataclass(frozen=True, slots=True)
class StepResult:
    """The end of an episode: its reward, numbers to log, and everything that was decided."""

    reward: float
    metrics: dict[str, float]
    scored: ScoredCompletion
    episode_done: bool = True


@dataclass(frozen=True, eq=False)
class CodeEnv:
    """One problem as an environment with a single step. `priority` and `fraction` as in `score_group`."""

    problem: Problem
    renderer: Renderer
    judge: Judge
    format_coef: float = FORMAT_COEF
    _: KW_ONLY
    priority: Sequence[int] | None = None
    fraction: bool = False

    def initial_observation(self) -> tuple[list[int], list[int]]:
        """The prompt's tokens, and the token ids that end a completion."""
        return problem_prompt(self.problem, self.renderer), self.renderer.stop_tokens

    async def step(self, tokens: Sequence[int]) -> StepResult:
        """Score a completion (n completion tokens, without the prompt). Raises InfraError where it cannot be graded."""
        text, complete = self.renderer.parse_response(tokens)
        scored = await score_completion(
            self.judge, self.problem, text, self.format_coef, priority=self.priority, fraction=self.fraction
        )
        if scored.reward is None:
            raise InfraError(scored.grade.reason)
        flags = {"format": scored.code is not None, "correct": scored.grade.passed, "complete": complete}
        numbers = ("tests_passed", "tests_run", "tests_total", "run_seconds")
        values = flags | {name: getattr(scored.grade, name) for name in numbers}
        return StepResult(scored.reward, {name: float(value) for name, value in values.items()}, scored)


async def sandbox_check_correctness(
    tests: Sequence[Mapping[str, Any]] | Mapping[str, Any] | str,
    code: str,
    timeout: float = 6,
    *,
    client: SandboxClient | None = None,
) -> Verdict:
    """The verdict on a program over raw tests of any shape that `normalize_tests` knows; `timeout` is CPU seconds per
    test. Without a `client`, the servers in `SANDBOX_URL` are asked. Raises ConfigError where that is not set,
    RowDropped for tests of an unknown shape; an outage is the verdict `infra_error`."""
    problem = problem_from_row({"problem": "(given by its tests)", "tests": tests}, split="", source_row=0)
    if client is not None:
        return (await Judge(client, timeout).grade(problem, code)).verdict
    urls = named_sandboxes()
    if not urls:
        raise ConfigError("SANDBOX_URL is not set: `coderl serve sandbox` starts a sandbox and prints its address")
    async with SandboxClient(urls) as own_client:
        return (await Judge(own_client, timeout).grade(problem, code)).verdict
