"""A group of completions: what is asked for, what came, and the frames that it is recorded in.

One SDK call per prompt. One bad completion does not fail its group: sampled again with its seed it would come out the
same. It is returned without log-probabilities, and training leaves it out.

sample_group      a prompt                   -> completions
group_frame       GroupRequest + completions -> SAMPLED_SCHEMA, one group
graded_group      group + ScoredCompletions  -> ROLLOUT_SCHEMA, advantage null, trained false
in_order          groups                     -> one frame, in group and sample order
split_groups      such a frame               -> its groups
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import polars as pl
import tinker

from coderl_tasks.errors import BudgetReachedError, CoderlError, InfraError, SandboxDownError
from coderl_tasks.grading.scoring import ScoredCompletion, Verdict
from coderl_tasks.policy import rollout
from coderl_tasks.policy.clients import tinker_errors

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
OUTSIDE_TRAINING = -1
"""The step of what a profile or an evaluation samples."""
MOST_LOST = 0.1
"""Of a step's samples, or of its programs: what is left when more fails is no fair sample."""
MOST_REWARD_ERRORS = 0.05
"""Of a step's completions: a reward function that fails more often is to be mended, not trained through."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled completion; its last token is the stop token, where one was sampled. MISSING: it never came."""

    tokens: list[int]
    logprobs: list[float] | None  # natural, one per token; None: none, too few or not finite, nothing to train on
    stop_reason: str  # "stop" or "length" (truncated)


MISSING = Completion([], None, rollout.NO_COMPLETION)


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """What to sample for one problem, and what the group is, for its record."""

    group_index: int
    problem_id: str
    split: str
    prompt_tokens: list[int]
    num_samples: int
    max_tokens: int  # the completion's limit, already capped at the context
    seed: int | None  # None leaves the draw to the service
    temperature: float
    step: int = OUTSIDE_TRAINING
    attempt: int = 0
    sampler_step: int = -1  # the last step trained into the policy that samples; -1: the base model
    first_sample: int = 0  # the number of its first completion


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
    stop: Sequence[int] | Sequence[str] | None = None,
    top_p: float = 1.0,
) -> list[Completion]:
    """Samples `num_samples` completions of one prompt in one request. `stop` None means the model's own end token. If
    fewer come, the rest are MISSING. Raises InfraError if the service fails or sends too many, ConfigError if it
    refuses for good, ValueError if there is nothing to sample or `stop` is empty, which would disable stopping."""
    if not prompt_tokens or max_tokens < 1 or num_samples < 1:
        raise ValueError(f"nothing to sample: {len(prompt_tokens)=}, {max_tokens=}, {num_samples=}")
    if stop is not None and not len(stop):
        raise ValueError("stop is empty: use None for the model's own end token")
    stops = None if stop is None else list(stop)
    params = tinker.SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, stop=stops)
    prompt = tinker.ModelInput.from_ints(list(prompt_tokens))
    try:
        with tinker_errors("sampling"):
            response = await sampling_client.sample(prompt=prompt, num_samples=num_samples, sampling_params=params)
    except AssertionError as error:  # the SDK asserts that the service sends as many sequences as it promised
        raise InfraError(f"Tinker, sampling: {error}") from error
    if len(response.sequences) > num_samples:
        raise InfraError(f"Tinker, sampling: {num_samples} completions asked for, {len(response.sequences)} came")
    completions = []
    for sequence in response.sequences:
        # Arrays if there are any: lists that the SDK makes of them stay in its answers, which it keeps for long.
        if sequence.tokens_np is not None:
            tokens = sequence.tokens_np.tolist()
            logprobs = [] if sequence.logprobs_np is None else sequence.logprobs_np.tolist()
        else:
            tokens, logprobs = list(sequence.tokens), list(sequence.logprobs or ())
        # One non-finite log-probability would make the whole step's loss and gradient non-finite.
        usable = bool(tokens) and len(logprobs) == len(tokens) and bool(np.isfinite(np.array(logprobs, float)).all())
        completions.append(Completion(tokens, logprobs if usable else None, str(sequence.stop_reason)))
    return completions + [MISSING] * (num_samples - len(completions))


async def try_all(
    work: Callable[[ItemT], Awaitable[ResultT]], items: Sequence[ItemT], what: str = "groups"
) -> list[ResultT]:
    """Runs `work` on all `items` concurrently and returns the results in order; `what` names the items in errors. After
    an InfraError or a BudgetReachedError the others finish, since they are paid for; then the first InfraError is
    raised, as a retry may help, else the BudgetReachedError. Any other error cancels the rest at once."""
    tasks = [asyncio.ensure_future(work(item)) for item in items]
    running = set(tasks)
    try:
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
            errors = [error for task in done if (error := task.exception()) is not None]
            for error in errors:
                if not isinstance(error, InfraError | BudgetReachedError):
                    raise error
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    failures = [error for task in tasks if isinstance(error := task.exception(), InfraError)]
    if failures:
        raise InfraError(f"{len(failures)} of {len(items)} {what} failed; first: {failures[0]}") from failures[0]
    return [task.result() for task in tasks]  # raises the BudgetReachedError, if there is one


def group_frame(
    request: GroupRequest, completions: Sequence[Completion], *, decode: Callable[[list[int]], str]
) -> pl.DataFrame:
    """One sampled group (SAMPLED_SCHEMA); `decode` turns completion tokens into the text that is graded."""
    group = {name: getattr(request, name) for name in rollout.SAMPLED_SCHEMA if hasattr(request, name)}
    own = [(name, column.value) for name, column in rollout.SAMPLED_COLUMNS.items() if column.value is not None]
    rows = []
    for sample_index, completion in enumerate(completions, request.first_sample):
        text = decode(completion.tokens)
        rows.append(group | {"sample_index": sample_index} | {name: value(completion, text) for name, value in own})
    return pl.DataFrame(rows, schema=rollout.SAMPLED_SCHEMA)


def grown(group: pl.DataFrame, arrived: pl.DataFrame) -> pl.DataFrame:
    """A group with completions that have arrived, or with some that have had further turns."""
    others = group.filter(~pl.col("sample_index").is_in(arrived["sample_index"].to_list()))
    return arrived if others.is_empty() else pl.concat([others, arrived]).sort("sample_index")


def graded_group(sampled: pl.DataFrame, scored: Sequence[ScoredCompletion | None]) -> pl.DataFrame:
    """One sampled group with what grading says of it (ROLLOUT_SCHEMA). `scored` has one per sample (else ValueError),
    None for one that was left out."""
    if len(scored) != sampled.height:
        raise ValueError(f"{len(scored)} of {sampled.height} completions of a group were scored")
    left_out = {**dict.fromkeys(rollout.GRADED_SCHEMA), "trained": False}
    rows = []
    for completion in scored:
        if completion is None:
            rows.append(left_out)
        else:
            rows.append({name: each.value and each.value(completion) for name, each in rollout.GRADED_COLUMNS.items()})
    graded = pl.DataFrame(rows, schema=rollout.GRADED_SCHEMA)
    return pl.concat([sampled, graded], how="horizontal").select(list(rollout.ROLLOUT_SCHEMA))


def in_order(groups: Iterable[pl.DataFrame], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """The groups of a step as one frame of `schema`, in group and sample order."""
    # Groups arrive in any order, and the last bits of a sum of gradients depend on it: a replay needs one order.
    arrived = sorted((group for group in groups if group.height), key=lambda group: group.select(rollout.ORDER).row(0))
    rollouts = pl.concat([pl.DataFrame(schema=schema), *arrived])
    order = rollouts.select(rollout.ORDER)
    # Not copied where they are in order: a step's tokens can be gigabytes.
    return rollouts if order.equals(order.sort(rollout.ORDER)) else rollouts.sort(rollout.ORDER)


def split_groups(rollouts: pl.DataFrame) -> list[pl.DataFrame]:
    """The groups of a step in order, each in sample order: views of `rollouts`, where these are in order."""
    rows = in_order([rollouts], rollouts.schema)
    sizes = rows["group_index"].rle().struct.field("len").to_list()
    ends = list(accumulate(sizes))
    return [rows.slice(end - size, size) for end, size in zip(ends, sizes, strict=True)]


def first_failures(rollouts: pl.DataFrame) -> dict[str, list[int | None]]:
    """By problem id: the first failing test of each program that was graded, None for one that passed all. Identical
    code of a group counts once."""
    graded = rollouts.filter(
        pl.col("code").is_not_null() & ((pl.col("verdict") == Verdict.PASSED) | pl.col("first_failed").is_not_null())
    )
    # The same code ran once: counted per completion, a test would look the better for clones.
    programs = graded.unique(["step", "group_index", "problem_id", "code"], maintain_order=True)
    return dict(programs.group_by("problem_id", maintain_order=True).agg("first_failed").iter_rows())


def require_sampled(sampled: pl.DataFrame, what: str) -> None:
    """Raises InfraError if over MOST_LOST of the samples came without usable log-probabilities."""
    lost = int(sampled["logprobs"].is_null().sum())
    if lost > MOST_LOST * sampled.height:
        raise InfraError(
            f"{what}: {lost} of {sampled.height} samples came without a finite log-probability for each token, and "
            "cannot be trained on: their groups are sampled again"
        )


def require_graded(rollouts: pl.DataFrame, what: str) -> None:
    """Raises SandboxDownError if over MOST_LOST of the programs met an outage instead of a verdict (format errors need
    no sandbox); CoderlError if compute_reward failed on over MOST_REWARD_ERRORS of the completions, or if over
    MOST_LOST of the programs met a problem's tests or checker that failed by itself. The samples stay recorded."""
    programs = rollouts.filter(pl.col("verdict") != Verdict.FORMAT_ERROR)["verdict"]
    lost = int((programs == Verdict.INFRA_ERROR).sum())
    if lost > MOST_LOST * len(programs):
        raise SandboxDownError(
            f"{what}: {lost} of {len(programs)} programs could not be graded: is the sandbox up? (coderl doctor)"
        )
    undecided = rollouts.filter(pl.col("verdict") == Verdict.CHECKER_ERROR)
    if undecided.height > MOST_LOST * len(programs):
        first = undecided.row(0, named=True)
        raise CoderlError(
            f"{what}: the tests or the checker failed by themselves on {undecided.height} of {len(programs)} programs, "
            f"more than {MOST_LOST:.0%}, first on problem {first['problem_id']}: {first['reason']}. coderl validate "
            "finds such problems: leave them out, then start again"
        )
    failed = rollouts.filter(pl.col("verdict") == Verdict.REWARD_ERROR)
    if failed.height > MOST_REWARD_ERRORS * rollouts.height:
        first = failed.row(0, named=True)
        raise CoderlError(
            f"{what}: compute_reward failed on {failed.height} of {rollouts.height} completions, more than "
            f"{MOST_REWARD_ERRORS:.0%}: mend the reward function, then start again. On completion "
            f"{first['sample_index']} of problem {first['problem_id']}:\n{first['reward_error']}"
        )
