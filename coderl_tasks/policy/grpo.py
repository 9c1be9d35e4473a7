"""Group-relative policy optimisation: a step of it, and the functions that it is made of.

1. The advantage is the deviation from the group's mean reward; there are other estimators (`policy.advantages`).
2. A group whose members all have the same reward carries no signal and is left out.
3. The loss is Tinker's `importance_sampling`: the sum over tokens of -exp(trainer - sampler logprob) * advantage; there
   are others (`policy.policy_loss`).
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import tinker

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.policy.advantages import compute_advantages as compute_advantages
from coderl_tasks.policy.advantages import should_skip as should_skip
from coderl_tasks.policy.clients import describe, is_fatal
from coderl_tasks.policy.policy_loss import Advantage, PolicyLoss
from coderl_tasks.settings.update_settings import LossName

AnswerT = TypeVar("AnswerT")
LOSS_FN: LossName = "importance_sampling"
IMPORTANCE_SAMPLING = PolicyLoss(LOSS_FN)


class UpdateFailedError(InfraError):
    """An update failed half-way. The training client is no longer trustworthy: restore from the last durable state."""


class UpdateRefusedError(ConfigError):
    """The service refused an update for good (bad request, authentication, billing); the training client is lost."""


class TrainStepOutput(NamedTuple):
    """What the service answered to one step."""

    forward_backward: tinker.ForwardBackwardOutput
    optim_step: tinker.OptimStepResponse


def make_datum(tokens: list[int], logprobs: list[float], ob_len: int, advantage: Advantage) -> tinker.types.Datum:
    """The training example of one completion.

    `tokens` is prompt + completion (n of them) and `ob_len` >= 1 the prompt's length. `logprobs` are the sampler's,
    given per completion token (n - ob_len), per token (n) or per target (n - 1); where two of these lengths coincide,
    both mean the same. `advantage` is the completion's, or one per completion token. Input is tokens[:-1], targets are
    tokens[1:]; logprobs and advantages are 0 on the first ob_len - 1 targets, which belong to the prompt. Raises
    ValueError for any other length, an empty prompt or an empty completion.
    """
    n = len(tokens)
    if ob_len < 1:
        raise ValueError(f"ob_len must be at least 1 (the prompt's length), got {ob_len}")
    if ob_len >= n:
        raise ValueError(f"the completion is empty: {n} tokens of which {ob_len} are the prompt")
    if len(logprobs) not in (n - ob_len, n, n - 1):
        raise ValueError(
            f"{len(logprobs)} logprobs for {n} tokens with a prompt of {ob_len}: expected {n - ob_len} (completion), "
            f"{n} (all tokens) or {n - 1} (targets)"
        )
    completion_logprobs = logprobs[len(logprobs) - (n - ob_len) :]
    sampler_logprobs = np.zeros(n - 1, dtype=np.float32)
    sampler_logprobs[ob_len - 1 :] = completion_logprobs
    advantages = np.zeros(n - 1, dtype=np.float32)
    advantages[ob_len - 1 :] = advantage
    return tinker.types.Datum(
        model_input=tinker.types.ModelInput.from_ints(list(tokens[:-1])),
        loss_fn_inputs={
            "target_tokens": tinker.types.TensorData.from_numpy(np.asarray(tokens[1:], dtype=np.int64)),
            "logprobs": tinker.types.TensorData.from_numpy(sampler_logprobs),
            "advantages": tinker.types.TensorData.from_numpy(advantages),
        },
    )


def train_step(
    training_client: tinker.TrainingClient, datums: Sequence[tinker.types.Datum], adam_params: tinker.AdamParams
) -> TrainStepOutput | None:
    """One optimizer step on `datums`: submits forward_backward and optim_step back to back, then waits on both.

    Blocks; in async code run it in a thread. Does nothing and returns None without datums. If either part fails, or
    is refused, raises UpdateFailedError or UpdateRefusedError: the training client must then not be used again.
    """
    if not datums:
        return None
    forward_backward, optim_step = submit_train_step(training_client, datums, adam_params)
    # Both are waited for: the SDK posts optim_step even if forward_backward was refused.
    output = _wait(forward_backward)
    update = _wait(optim_step)
    return finish_train_step(output, update)


def submit_train_step(
    training_client: tinker.TrainingClient,
    datums: Sequence[tinker.types.Datum],
    adam_params: tinker.AdamParams,
    loss: PolicyLoss = IMPORTANCE_SAMPLING,
) -> tuple[tinker.APIFuture[tinker.ForwardBackwardOutput], tinker.APIFuture[tinker.OptimStepResponse]]:
    """Submit both parts of a step, so that the service runs them in one go; raises as `train_step` does."""
    try:
        forward_backward = training_client.forward_backward(list(datums), **loss.named())
        return forward_backward, training_client.optim_step(adam_params)
    except Exception as error:
        raise _update_error([error]) from error


def finish_train_step(
    output: tinker.ForwardBackwardOutput | BaseException, update: tinker.OptimStepResponse | BaseException
) -> TrainStepOutput:
    """The answer to a step, from what its two parts answered or failed with; raises as `train_step` does."""
    if isinstance(output, BaseException) or isinstance(update, BaseException):
        failures = [answer for answer in (output, update) if isinstance(answer, BaseException)]
        raise _update_error(failures) from failures[0]
    return TrainStepOutput(output, update)


def _wait(future: tinker.APIFuture[AnswerT]) -> AnswerT | Exception:
    """What `future` answers, or what it failed with."""
    try:
        return future.result()
    except Exception as error:
        return error


def _update_error(failures: Sequence[BaseException]) -> UpdateFailedError | UpdateRefusedError:
    """The error for a step of which `failures` came back; the first one is the cause, the second often its echo.

    The optimizer step is refused for good even where its gradient failed for a retryable reason.
    """
    if is_fatal(failures[0]):
        return UpdateRefusedError(f"the update was refused: {describe(failures[0])}")
    return UpdateFailedError(f"the update failed: {describe(failures[0])}")
