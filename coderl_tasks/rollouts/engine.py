"""What samples and grades while a run works: a session, which holds the services open, and its engines, through which
each group goes: request -> sampled -> recorded -> graded.

A group is one request. Its seed is part of it: a group that is sampled again comes out the same. It is recorded as it
arrives, before anything else happens to it. Grading, which is deterministic, runs beside sampling, in memory only. A
group that fails does not take the others with it: they finish and are recorded, then the failure is raised.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

import polars as pl
import tinker

from coderl_tasks.environments import CODE, Environment, environment_of, renderer_of
from coderl_tasks.errors import CoderlError, ConfigError, InfraError, SandboxDownError
from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.judge import Judge, require_sandbox
from coderl_tasks.grading.scoring import ScoredCompletion
from coderl_tasks.grading.trial import try_programs
from coderl_tasks.journal.ledger import Budget, Charge
from coderl_tasks.policy import clients, sampling
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA, TRUNCATED
from coderl_tasks.problems.problem import Problem
from coderl_tasks.prompts.renderers import Renderer
from coderl_tasks.rollouts import turns
from coderl_tasks.rollouts.turns import Record
from coderl_tasks.services import DEFAULT_SANDBOX_CONCURRENCY, Services
from coderl_tasks.settings import CurateSettings, EvaluateSettings, FlowSettings, TrainSettings

Purpose = Literal["train", "profile", "evaluate"]
logger = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 5.0
SUPERVISION_S = 1.0
ASSUMED_CONTEXT = 32768
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How completions are sampled and scored."""

    purpose: Purpose  # keeps the random draws of different uses apart
    policy: str  # what is sampled from, where the folder that records it does not imply that
    temperature: float
    max_tokens: int  # the completion's limit
    context: int  # the model's, in tokens
    seed: int
    concurrency: int = 64  # requests to Tinker in flight
    sampler_step: int = -1  # the last step trained into the policy; -1: the base model
    top_p: float = 1.0
    served_by: str = ""  # what answers for the policy, where that is to be recorded


@dataclass(eq=False)
class RolloutEngine:
    """Samples and grades groups as `settings` say."""

    judge: Judge
    renderer: Renderer
    settings: RolloutSettings
    environment: Environment = CODE  # makes the prompts and the rewards
    budget: Budget = field(default_factory=Budget)  # is asked before each group
    graded_at_once: int = DEFAULT_SANDBOX_CONCURRENCY  # groups: one per program that the sandbox runs at a time

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.settings.concurrency)
        self._grading = asyncio.Semaphore(self.graded_at_once)

    @cached_property
    def _stop(self) -> Sequence[int] | Sequence[str]:
        """What ends a completion, in every request."""
        return self.environment.stop(self.renderer)

    def request(
        self, problem: Problem, group_index: int, num_samples: int, seed: int | None, **others: Any
    ) -> sampling.GroupRequest:
        """Builds the request for `num_samples` completions of `problem`. Without a `seed` the service draws freely.
        `others` are further fields of GroupRequest."""
        prompt = self.environment.prompt(problem, self.renderer)
        of_turns, limit = self.environment.turns, self.settings.max_tokens
        if of_turns.most > 1 and of_turns.tokens is not None:
            limit = min(limit, of_turns.tokens)  # all answers together: the first one too
        usual: dict[str, Any] = {"temperature": self.settings.temperature, "sampler_step": self.settings.sampler_step}
        return sampling.GroupRequest(
            group_index=group_index,
            problem_id=problem.problem_id,
            split=problem.split,
            prompt_tokens=prompt,
            num_samples=num_samples,
            max_tokens=sampling.completion_budget(len(prompt), limit, self.settings.context),
            seed=seed,
            **(usual | others),
        )

    async def sample(
        self,
        sampler: tinker.SamplingClient,
        problem: Problem,
        request: sampling.GroupRequest,
        record: Record | None = None,
    ) -> pl.DataFrame:
        """Samples a group of `problem` (SAMPLED_SCHEMA), all turns of its completions. `record` is called with the
        group once it is sampled and as `further_turns` says. If the prompt leaves no room, its completions are empty
        and truncated. Raises as `sample_group` and `Budget.reserve` do."""
        decode = partial(self.environment.text, renderer=self.renderer)
        if request.max_tokens < 1:
            cut_off = [sampling.Completion([], [], TRUNCATED)] * request.num_samples
            group = sampling.group_frame(request, cut_off, decode=decode)
        else:
            async with self.sampled_within_budget(sampler, request) as (completions, charge):
                group = sampling.group_frame(request, completions, decode=decode)
                charge(group, None)  # None: nothing of the group was charged before
        has_several_turns = self.environment.turns.most > 1
        if has_several_turns:
            group = turns.with_first_turn(group)
        if record is not None:
            record(group)
        if not has_several_turns:
            return group
        return await turns.further_turns(self, sampler, problem, group, request.temperature, record)

    @asynccontextmanager
    async def sampled_within_budget(
        self, sampler: tinker.SamplingClient, request: sampling.GroupRequest
    ) -> AsyncIterator[tuple[list[sampling.Completion], Charge]]:
        """Yields the completions of a request, and `charge(group, before)` as `Budget.reserve` does."""
        # Hold a slot only for the request: recording and grading must not delay other groups.
        async with self._slots, self.budget.reserve(request) as charge:
            completions = await sampling.sample_group(
                sampler,
                request.prompt_tokens,
                num_samples=request.num_samples,
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                top_p=self.settings.top_p,
                seed=request.seed,
                stop=self._stop,
            )
            yield completions, charge

    async def grade(self, problem: Problem, sampled: pl.DataFrame) -> pl.DataFrame:
        """Returns a sampled group of `problem` with its grades (ROLLOUT_SCHEMA), without advantages. Of several turns
        the last answer is rewarded; outside training the earlier ones get verdicts too. There is no reward if the last
        reply met an outage or a checker that failed. In training a completion without log-probabilities is not graded:
        it cannot be trained on, and would move the mean of those that are."""
        # Before they are graded: the sandbox need not run what no update will learn from.
        is_training = self.settings.purpose == "train"
        wanted = sampled["logprobs"].is_not_null().to_list() if is_training else [True] * sampled.height
        faults = [None if each is None else turns.fault_of_last_reply(each) for each in sampled["turns"]]
        last_answers = [
            text
            for text, is_wanted, fault in zip(sampled["completion"], wanted, faults, strict=True)
            if is_wanted and fault is None
        ]
        earlier_answers = [] if is_training else turns.earlier_texts(sampled)
        # A problem's tests can be 200 MB, and stay in the pool's file until it is the group's turn. Fewer groups at a
        # time would leave the sandbox idle: of some only one program is left to run.
        async with self._grading:
            whole = await asyncio.to_thread(problem.whole)
            scores = await self.environment.score(self.judge, whole, [*last_answers, *earlier_answers])
        scores_of_last, scores_of_earlier = iter(scores[: len(last_answers)]), scores[len(last_answers) :]
        scored: list[ScoredCompletion | None] = []  # by completion; None: left out
        for is_wanted, fault in zip(wanted, faults, strict=True):
            if is_wanted:
                scored.append(next(scores_of_last) if fault is None else turns.not_graded(fault, problem))
            else:
                scored.append(None)
        graded = sampling.graded_group(sampled, scored)
        verdicts_of_earlier = [each.grade.verdict for each in scores_of_earlier]
        return graded if is_training else turns.with_verdicts(graded, verdicts_of_earlier)


class GradedAhead:
    """Groups that are graded while others are sampled, each completion at most once until its step is released."""

    def __init__(self, grade: Callable[[pl.DataFrame], Awaitable[pl.DataFrame]]) -> None:
        self._grade = grade
        # By (step, group_index), each part with its height.
        self._parts: dict[tuple[int, int], list[tuple[int, asyncio.Task[pl.DataFrame]]]] = {}

    def start(self, group: pl.DataFrame) -> None:
        """Begin to grade what of `group` (SAMPLED_SCHEMA) is not yet: of one that has grown, what it grew by."""
        # By what it is a group of and not by the frame: read back from its file it is another object.
        parts = self._parts.setdefault((group["step"][0], group["group_index"][0]), [])
        begun = sum(height for height, _ in parts)
        if begun < group.height:
            # Each part by a task of its own: one that waited for another, cancelled before it began, would leave that.
            parts.append((group.height - begun, asyncio.ensure_future(self._grade(group.slice(begun)))))

    async def graded(self, sampled: pl.DataFrame, what: str) -> pl.DataFrame:
        """The rollouts of a step, `what` in messages, with their grades (ROLLOUT_SCHEMA). Raises what grading raises,
        and as `require_graded` does if too many could not be graded; the step is then released."""
        groups = sampling.split_groups(sampled)
        for group in groups:
            self.start(group)
        keys = [(group["step"][0], group["group_index"][0]) for group in groups]
        try:
            # The first failure is raised while others go on: `release` cancels them before the step is graded anew.
            parts = await asyncio.gather(*(task for key in keys for _, task in self._parts[key]))
            graded = sampling.in_order(parts, ROLLOUT_SCHEMA)
            sampling.require_graded(graded, what)
        except BaseException:
            # So that a retry grades again. Also if cancelled (by `Session.supervise`, say), which cancels the grading
            # too: a retry that found it would be cancelled itself.
            await self.release(*{step for step, _ in keys})
            raise
        return graded

    async def release(self, *steps: int) -> None:
        """Cancel what is under way of these steps (all if none is named), and let their groups be graded afresh."""
        # Out of the table before anything is awaited: `start` must not hand out a task that is being cancelled.
        keys = [key for key in self._parts if not steps or key[0] in steps]
        tasks = [task for key in keys for _, task in self._parts.pop(key)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Session:
    """Open clients of the services in use: of the Tinker service, one session after another, and of the sandbox."""

    def __init__(
        self,
        services: Services,
        judge: Judge,
        renderer: Renderer,
        context: int,
        model_name: str | None = None,
        environment: Environment = CODE,
        served_by: str = "",
        budget: Budget | None = None,
    ) -> None:
        """`context` is in tokens, `served_by` names the engine and weights that serve the model. With `model_name`, a
        new Tinker session replaces a released one only if the service still has that model."""
        self.judge, self.renderer, self.context, self.environment = judge, renderer, context, environment
        self.service_address = None if services.tinker_is_embedded else clients.service_address(services.tinker_url)
        """None for a server that this process started."""
        self.served_by, self.budget = served_by, budget or Budget()
        self._services, self._model_name = services, model_name
        self.current: tinker.ServiceClient | None = None  # the open Tinker session: clients of any other end soon
        # Sessions to be closed, each with the works that were under way at its release: once these end, none uses it.
        self._released: list[tuple[tinker.ServiceClient, set[asyncio.Future[Any]]]] = []
        self._reopens = False  # whether a session was released: the next one asks whether the model is still offered
        # Sampling ahead and training may both find no session: one opens it, and the other waits for it.
        self._opening = asyncio.Lock()
        self._under_way: set[asyncio.Future[Any]] = set()  # the works that `supervise` runs

    async def supervise(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `work`, and cancels it when a service is gone: the SDK itself would wait forever.

        Raises CoderlError if an embedded server stays down although its supervisor restarts it, InfraError if a service
        is silent for ten minutes. An InfraError, unless it is the sandbox's, releases the Tinker session: the retry
        opens a new one. Other work may go on with the released session."""
        session_before = self.current
        task = asyncio.ensure_future(work)
        silence = asyncio.ensure_future(clients.lost(self._services.tinker_url))
        self._under_way.add(task)
        try:
            while not task.done():
                # Poll: a supervisor's thread sets `down`, which does not wake the event loop.
                await asyncio.wait((task, silence), timeout=SUPERVISION_S, return_when=asyncio.FIRST_COMPLETED)
                for server in self._services.embedded:
                    if server.down.is_set():
                        raise CoderlError(server.fault)
                if silence.done():
                    silence.result()  # raises its InfraError
            return task.result()
        except InfraError as error:
            # None: the work opened the session itself. Another than `current`: other work has already replaced it. If
            # the sandbox is down, a new session would restore the policy for nothing.
            if session_before in (None, self.current) and not isinstance(error, SandboxDownError):
                self._release()
            raise
        finally:
            silence.cancel()
            if not task.done():
                # A cancelled SDK call may hang on a server that is gone: do not wait for it longer than this.
                task.cancel()
                await asyncio.wait((task,), timeout=CLOSE_TIMEOUT_S)
            # Closing ends a session's models and samplers: only sessions that no other work uses. Later work is on the
            # next one.
            self._under_way.discard(task)
            for _, works in self._released:
                works.discard(task)
            await self._close_released()

    async def service(self) -> tinker.ServiceClient:
        """The open session with the Tinker service; ConfigError if the model was retired since the last one."""
        async with self._opening:
            if self.current is not None:
                return self.current
            url_and_key = self._services.tinker_url, self._services.tinker_api_key
            if self._reopens and self._model_name is not None:
                # A retired model looks like an evicted one, a 404, which would be restored again and again.
                try:
                    await clients.context_length(*url_and_key, self._model_name)
                except ConfigError as error:
                    if clients.is_about_the_account(error):
                        raise
                    retired = f"{self._model_name} was retired while the run was at work"
                    raise ConfigError(f"{retired}: {error}") from error
            self.current = await clients.connect(*url_and_key)
            return self.current

    def engine(
        self,
        settings: CurateSettings | EvaluateSettings | TrainSettings,
        purpose: Purpose,
        policy: str,
        environment: Environment | None = None,
        **others: Any,
    ) -> RolloutEngine:
        """An engine that samples `policy` as `settings` and `others` (of RolloutSettings) say; rewards are those of
        `environment`, else of the session's."""
        values = {name: getattr(settings, name) for name in ("temperature", "max_tokens", "seed")}
        values |= {"context": self.context, "concurrency": settings.sample_concurrency, **others}
        sampled, environment = RolloutSettings(purpose, policy, **values), environment or self.environment
        at_once = self._services.sandbox_concurrency
        return RolloutEngine(self.judge, self.renderer, sampled, environment, self.budget, graded_at_once=at_once)

    async def rest(self) -> tinker.RestClient:
        """A client of what the Tinker service has stored, which needs no session."""
        with clients.tinker_errors("asking what it has stored"):
            return await clients.rest_client(self._services.tinker_url, self._services.tinker_api_key)

    async def close(self) -> None:
        """End the sessions with the Tinker service."""
        self._release()
        for _, works in self._released:
            works.clear()  # work that is still under way is not waited for
        await self._close_released()

    def _release(self) -> None:
        """Let the next use open a new session."""
        if self.current is not None:
            self._released.append((self.current, set(self._under_way)))
            self.current = None
            self._reopens = True

    async def _close_released(self) -> None:
        """End the released sessions that no work uses; the log says so if the service is gone."""
        unused = [service for service, works in self._released if not works]
        # Taken out first: one that does not answer is not asked again.
        self._released = [(service, works) for service, works in self._released if works]
        for service in unused:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await clients.disconnect(service)
            except (InfraError, ConfigError, TimeoutError) as error:
                logger.warning("the Tinker session could not be closed: %s", error or "no answer")


class HasSession(Protocol):
    @property
    def session(self) -> Session: ...


WorkerT = TypeVar("WorkerT", bound=HasSession)


def supervised(
    work: Callable[Concatenate[WorkerT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[WorkerT, P], Coroutine[Any, Any, T]]:
    """`work` supervised by the session of its first argument (see `Session.supervise`)."""

    @wraps(work)
    async def under_supervision(worker: WorkerT, *args: P.args, **kwargs: P.kwargs) -> T:
        return await worker.session.supervise(work(worker, *args, **kwargs))

    return under_supervision


@contextmanager
def first_error() -> Iterator[None]:
    """Raise what stopped the TaskGroup in the block by itself, not as the group that asyncio makes of it."""
    stopped: BaseException | None = None
    try:
        yield
    except BaseExceptionGroup as group:
        stopped = group
        while isinstance(stopped, BaseExceptionGroup):
            stopped = stopped.exceptions[0]
    if stopped is not None:  # outside the handler, so that it keeps its own cause
        raise stopped


@asynccontextmanager
async def open_session(settings: FlowSettings, used: Services, budget: Budget | None = None) -> AsyncIterator[Session]:
    """Opens the services `used` for `settings` and `budget`, and closes them when the block ends.
    Raises ConfigError if the service lacks the model, the chat format does not fit it, or rewards cannot be computed as
    `settings` say; InfraError if nothing answers at the service's address, or no sandbox runs a known program right."""
    # Before the SDK is used: it silently retries a mistyped address for five minutes.
    await clients.require_answer(used.tinker_url)
    model = settings.model_name
    async with SandboxClient(used.sandbox_urls, used.sandbox_concurrency) as client:
        # Concurrently: a start waits only for the slowest check. The first that fails cancels the others and is raised.
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                url_and_key = used.tinker_url, used.tinker_api_key
                # In a thread: reading a tokenizer would block the event loop for seconds.
                renderer_task = tasks.create_task(asyncio.to_thread(renderer_of, settings))
                context_task = tasks.create_task(clients.context_length(*url_and_key, model))
                served_by_task = tasks.create_task(clients.served_by(*url_and_key, model))
                trials_task = tasks.create_task(try_programs(used.sandbox_urls))
                # Before anything is sampled: without a sandbox to grade them, samples would be paid for in vain.
                tasks.create_task(require_sandbox(client))
        renderer, context = renderer_task.result(), context_task.result()
        if context is None:
            logger.warning("Tinker names no context length for %s: %d is assumed", model, ASSUMED_CONTEXT)
        # Trials are right programs that depend on the sandbox's Python (deep recursion, numpy). A misjudged one is only
        # a warning: the data may have no such programs.
        for trial in trials_task.result():
            logger.log(logging.WARNING if trial.misjudged or trial.fault else logging.INFO, "%s", trial)
        judge = Judge(client, settings.reward_timeout, isolation_per_test=settings.isolation_per_test)
        environment = environment_of(settings)
        await environment.require_usable(judge)
        session = Session(
            used, judge, renderer, context or ASSUMED_CONTEXT, model, environment, served_by_task.result(), budget
        )
        try:
            yield session
        finally:
            await session.close()
