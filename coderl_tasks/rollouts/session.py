"""How a session with the services is opened: all that can fail is tried before anything is sampled."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from coderl_tasks.environments import environment_of
from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.judge import Judge, require_sandbox
from coderl_tasks.grading.trial import try_programs
from coderl_tasks.journal.ledger import Budget
from coderl_tasks.policy.clients import context_length, require_answer, served_by
from coderl_tasks.prompts.tokenizer import model_renderer
from coderl_tasks.rollouts.engine import Session
from coderl_tasks.services import Services
from coderl_tasks.settings import FlowSettings

ASSUMED_CONTEXT = 32768
logger = logging.getLogger(__name__)


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
    `settings` say; InfraError if nothing answers at the service's address, or no sandbox runs a known program right.
    """
    # Before the SDK is used: it silently retries a mistyped address for five minutes.
    await require_answer(used.tinker_url)
    model = settings.model_name
    async with SandboxClient(used.sandbox_urls, used.sandbox_concurrency) as client:
        # Concurrently: a start waits only for the slowest check. The first one that fails cancels the others.
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                address = used.tinker_url, used.tinker_api_key
                # In a thread: reading a tokenizer would block the event loop for seconds.
                read = asyncio.to_thread(model_renderer, model, settings.renderer_name, settings.thinking)
                rendering = tasks.create_task(read)
                asking = tasks.create_task(context_length(*address, model))
                identifying = tasks.create_task(served_by(*address, model))
                trying = tasks.create_task(try_programs(used.sandbox_urls))
                # Before anything is sampled: without a sandbox to grade them, samples would be paid for in vain.
                tasks.create_task(require_sandbox(client))
        renderer, context = rendering.result(), asking.result()
        if context is None:
            logger.warning("Tinker names no context length for %s: %d is assumed", model, ASSUMED_CONTEXT)
        # Only logged: the data may not have programs of these kinds.
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
