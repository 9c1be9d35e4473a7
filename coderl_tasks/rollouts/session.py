"""What a run holds open while it works: clients of the services, the renderer, the judge. One per process."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import tinker

from coderl_tasks.environments import CODE, Environment, environment_of
from coderl_tasks.errors import CoderlError, ConfigError, InfraError, SandboxDownError
from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.judge import Judge, require_sandbox
from coderl_tasks.grading.trial import try_programs
from coderl_tasks.journal.ledger import Budget
from coderl_tasks.policy.clients import (
    connect,
    context_length,
    disconnect,
    is_about_the_account,
    lost,
    require_answer,
    rest_client,
    served_by,
    service_address,
    tinker_errors,
)
from coderl_tasks.policy.sampling import first_error
from coderl_tasks.prompts.renderers import Renderer
from coderl_tasks.prompts.tokenizer import model_renderer
from coderl_tasks.rollouts.engine import Purpose, RolloutEngine, RolloutSettings
from coderl_tasks.services import Services
from coderl_tasks.settings import CurateSettings, EvaluateSettings, FlowSettings, TrainSettings

ASSUMED_CONTEXT = 32768
CLOSE_TIMEOUT_S = 5.0
SUPERVISION_S = 1.0
logger = logging.getLogger(__name__)
T = TypeVar("T")


class Session:
    """Open clients of the services in use. `context` is the model's context length in tokens, `environment` what is
    sampled and rewarded through them, `service_address` that of the Tinker service, None for a server that this process
    started; `served_by` says what answers there for the model; `budget` bounds what is sampled.

    With `model_name`, a session with Tinker that takes the place of another is opened only if the service still has it.
    """

    def __init__(
        self,
        used: Services,
        judge: Judge,
        renderer: Renderer,
        context: int,
        model_name: str | None = None,
        environment: Environment = CODE,
        served_by: str = "",
        budget: Budget | None = None,
    ) -> None:
        self.judge = judge
        self.renderer = renderer
        self.context = context
        self.environment = environment
        self.service_address = None if used.tinker_is_embedded else service_address(used.tinker_url)
        self.served_by = served_by
        self.budget = budget or Budget()
        self._used = used
        self._model_name = model_name
        self._reopens = False
        self._service: tinker.ServiceClient | None = None
        # Sampling ahead and training may both find no session: the second waits for the first one's.
        self._opening = asyncio.Lock()
        self._released: list[tinker.ServiceClient] = []
        self._working = 0

    async def supervised(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which uses these services; it is cancelled when one of them is gone.

        The SDK waits without end for a server that is gone. An embedded one is started again by its supervisor, and
        CoderlError raised if it stays down; a service that is silent for ten minutes is an InfraError. On InfraError,
        unless it is the sandbox's, the session with Tinker is released, since a restarted server does not know it: the
        retry opens a new one. What else is under way may go on with the old one, which is closed when nothing is.
        """
        before = self._service
        task = asyncio.ensure_future(work)
        silence = asyncio.ensure_future(lost(self._used.tinker_url))
        self._working += 1
        try:
            while not task.done():
                # Polled, as `down` is set by a supervisor's thread, which no event loop wakes up for.
                await asyncio.wait((task, silence), timeout=SUPERVISION_S, return_when=asyncio.FIRST_COMPLETED)
                for server in self._used.embedded:
                    if server.down.is_set():
                        raise CoderlError(server.fault)
                if silence.done():
                    silence.result()
            return task.result()
        except SandboxDownError:
            # Nothing is wrong with Tinker here, and a new session would restore the policy for nothing.
            raise
        except InfraError:
            if before is None or self.is_current(before):  # else other work has released it, and this one is new
                self._release()
            raise
        finally:
            silence.cancel()
            if not task.done():
                # A cancelled SDK call may hang on a server that is gone, so that it is waited for only so long.
                task.cancel()
                await asyncio.wait((task,), timeout=CLOSE_TIMEOUT_S)
            # Closing ends a session's models and samplers, and other work may still use those of a released one.
            self._working -= 1
            if not self._working:
                await self._close_released()

    async def service(self) -> tinker.ServiceClient:
        """The open session with the Tinker service; ConfigError if the model was retired since the last one."""
        async with self._opening:
            if self._service is None:
                if self._reopens and self._model_name is not None:
                    # A retired model looks like an evicted one, a 404, which would be restored again and again.
                    await self._require_model(self._model_name)
                self._service = await connect(self._used.tinker_url, self._used.tinker_api_key)
            return self._service

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
        values = {
            "temperature": settings.temperature,
            "max_tokens": settings.max_tokens,
            "seed": settings.seed,
            "concurrency": settings.sample_concurrency,
        }
        sampled = RolloutSettings(purpose, policy, context=self.context, **(values | others))
        environment = environment or self.environment
        return RolloutEngine(self.judge, self.renderer, sampled, environment=environment, budget=self.budget)

    async def rest(self) -> tinker.RestClient:
        """A client of what the Tinker service has stored, which needs no session."""
        with tinker_errors("asking what it has stored"):
            return await rest_client(self._used.tinker_url, self._used.tinker_api_key)

    async def _require_model(self, name: str) -> None:
        try:
            await context_length(self._used.tinker_url, self._used.tinker_api_key, name)
        except ConfigError as error:
            if is_about_the_account(error):
                raise
            raise ConfigError(f"{name} was retired while the run was at work: {error}") from error

    def is_current(self, service: tinker.ServiceClient) -> bool:
        """Whether `service` is the open session, and has not been released: else its clients end soon."""
        return service is self._service

    async def close(self) -> None:
        """End the sessions with the Tinker service."""
        self._release()
        await self._close_released()

    def _release(self) -> None:
        """Let the next use open a new session."""
        if self._service is not None:
            self._released.append(self._service)
            self._service = None
            self._reopens = True

    async def _close_released(self) -> None:
        """End the released sessions; the log says so if the service is gone."""
        while self._released:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    # Popped first: one that does not answer is not asked again.
                    await disconnect(self._released.pop())
            except (InfraError, ConfigError, TimeoutError) as error:
                logger.warning("the Tinker session could not be closed: %s", error or "no answer")


class HasSession(Protocol):
    """What work that needs the services is given first."""

    @property
    def session(self) -> Session:
        """The open session that it works with."""


P = ParamSpec("P")
WorkerT = TypeVar("WorkerT", bound=HasSession)


def supervised(
    work: Callable[Concatenate[WorkerT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[WorkerT, P], Coroutine[Any, Any, T]]:
    """`work` supervised by the session of its first argument (see `Session.supervised`)."""

    @wraps(work)
    async def under_supervision(worker: WorkerT, *args: P.args, **kwargs: P.kwargs) -> T:
        return await worker.session.supervised(work(worker, *args, **kwargs))

    return under_supervision


@asynccontextmanager
async def open_session(settings: FlowSettings, used: Services, budget: Budget | None = None) -> AsyncIterator[Session]:
    """The services `used`, opened for a run of `settings` with that budget; closed when the block ends.

    Raises ConfigError if the service does not have the model, the chat format asked for does not fit it, or rewards
    cannot be computed as `settings` say, InfraError
    if nothing answers at the service's address, or no sandbox runs a known program right.
    """
    # Before the SDK is used, which tries a mistyped address for five minutes without a word.
    await require_answer(used.tinker_url)
    model = settings.model_name
    async with SandboxClient(used.sandbox_urls, used.sandbox_concurrency) as client:
        # Side by side: a start waits for the slowest of them. The first that fails ends the others.
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                # A thread, since reading a tokenizer takes seconds in which nothing else would go on.
                read = asyncio.to_thread(model_renderer, model, settings.renderer_name, settings.thinking)
                rendering = tasks.create_task(read)
                asking = tasks.create_task(context_length(used.tinker_url, used.tinker_api_key, model))
                identifying = tasks.create_task(served_by(used.tinker_url, used.tinker_api_key, model))
                trying = tasks.create_task(try_programs(used.sandbox_urls))
                # Before anything is sampled: with a sandbox that cannot grade it would be paid for in vain.
                tasks.create_task(require_sandbox(client))
        renderer, context = rendering.result(), asking.result()
        if context is None:
            logger.warning("Tinker names no context length for %s: %d is assumed", model, ASSUMED_CONTEXT)
        # Said and no more: programs of these kinds may not be in the data at all.
        for trial in trying.result():
            logger.log(logging.WARNING if trial.misjudged or trial.fault else logging.INFO, "%s", trial)
        judge = Judge(client, settings.reward_timeout, isolation_per_test=settings.isolation_per_test)
        environment = environment_of(settings)
        await environment.require_usable(judge)
        session = Session(
            used, judge, renderer, context or ASSUMED_CONTEXT, model, environment, identifying.result(), budget
        )
        try:
            yield session
        finally:
            await session.close()
