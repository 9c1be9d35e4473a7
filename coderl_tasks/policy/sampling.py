"""Sampling one group of completions: one SDK call per prompt.

One bad completion does not fail its group: sampled again with its seed it would come out the same. It is
returned without log-probabilities, and training leaves it out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import tinker

from coderl_tasks.errors import InfraError
from coderl_tasks.policy.clients import tinker_errors
from coderl_tasks.policy.rollout import NO_COMPLETION

Stop = Sequence[int] | Sequence[str] | None
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled completion: tokens with the sampler's log-probabilities (natural log), equally many.

    `logprobs` is None where the service gave none, too few, or some that are not finite: there is nothing to train on.
    `stop_reason` is "stop" or "length" (truncated). The stop token, where one was sampled, is the last token. A
    completion that was asked for and never came is `MISSING`.
    """

    tokens: list[int]
    logprobs: list[float] | None
    stop_reason: str


MISSING = Completion([], None, NO_COMPLETION)


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """What to sample for one problem. `max_tokens` is the completion's limit, already capped at the context.

    `seed` None leaves the draw to the service. The rest says what the group is, for its record: the training step (-1
    outside training), which attempt at the problem it is (from 0), the last step trained into the policy that samples
    (-1: the base model), and the number of its first completion. `temperature` None is that of whoever samples.
    """

    group_index: int
    problem_id: str
    split: str
    prompt_tokens: list[int]
    num_samples: int
    max_tokens: int
    seed: int | None
    step: int = -1
    attempt: int = 0
    sampler_step: int = -1
    first_sample: int = 0
    temperature: float | None = None


def completion_budget(prompt_len: int, max_tokens: int, context: int) -> int:
    """`max_tokens`, lowered so that prompt and completion fit in `context` tokens; 0 if the prompt leaves no room."""
    return max(0, min(max_tokens, context - prompt_len))


async def sample_group(
    sampling_client: tinker.SamplingClient,
    prompt_tokens: Sequence[int],
    *,
    num_samples: int,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    stop: Stop = None,
) -> list[Completion]:
    """`num_samples` completions of one prompt, in one `sample` call. `stop` None means the model's own end token.

    Where fewer come, the rest is MISSING. Raises InfraError if the service fails or sends too many, ConfigError if it
    refuses for good, ValueError for an empty prompt, no room (max_tokens < 1) or an empty `stop`, which would disable
    all stopping.
    """
    if not prompt_tokens or max_tokens < 1 or num_samples < 1:
        raise ValueError(f"nothing to sample: {len(prompt_tokens)=}, {max_tokens=}, {num_samples=}")
    if stop is not None and not len(stop):
        raise ValueError("stop is empty: use None for the model's own end token")
    params = tinker.SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        stop=None if stop is None else list(stop),
    )
    try:
        with tinker_errors("sampling"):
            response = await sampling_client.sample(
                prompt=tinker.ModelInput.from_ints(list(prompt_tokens)), num_samples=num_samples, sampling_params=params
            )
    except AssertionError as error:  # how the SDK says that not as many sequences came as the service had promised
        raise InfraError(f"Tinker, sampling: {error}") from error
    came = [_completion(sequence) for sequence in response.sequences]
    if len(came) > num_samples:
        raise InfraError(f"Tinker, sampling: {num_samples} completions asked for, {len(came)} came")
    return came + [MISSING] * (num_samples - len(came))


async def try_all(
    work: Callable[[ItemT], Awaitable[ResultT]], items: Sequence[ItemT], what: str = "groups"
) -> list[ResultT]:
    """What `work` gives for each of `items`, all worked on together, in order; `what` they are.

    An InfraError leaves the others their try: the first in order is raised once all are through. Any other error stops
    the others at once.
    """

    async def one(item: ItemT) -> ResultT | InfraError:
        try:
            return await work(item)
        except InfraError as error:
            # Caught in here: a TaskGroup that saw it would cancel the groups still being sampled, which are paid for.
            return error

    stopped: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(item)) for item in items]
    except BaseExceptionGroup as group:
        stopped = _first(group)
    if stopped is not None:  # outside the handler, so that it keeps its own cause
        raise stopped
    results = [task.result() for task in running]
    failures = [result for result in results if isinstance(result, InfraError)]
    if failures:
        raise InfraError(f"{len(failures)} of {len(items)} {what} failed; first: {failures[0]}") from failures[0]
    return [result for result in results if not isinstance(result, InfraError)]


def _completion(sequence: tinker.SampledSequence) -> Completion:
    tokens, logprobs = list(sequence.tokens), list(sequence.logprobs or ())
    usable = bool(tokens) and len(logprobs) == len(tokens) and bool(np.isfinite(logprobs).all())
    return Completion(tokens, logprobs if usable else None, str(sequence.stop_reason))


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """The first leaf of an exception group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
