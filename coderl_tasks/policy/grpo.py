"""Group-relative policy optimisation: the datums of a step, its loss, and one optimizer step on them.

The advantage of a completion, and which groups are left out, is `policy.advantages`' affair.

Losses are sums over completion tokens. With l the trainer's log-probability of a token, q the sampler's, A the
completion's advantage and r = exp(l - q) the importance ratio:

    importance_sampling   -r A
    ppo                   -min(r A, clip(r, low, high) A)
    cispo                 -clip(r, low, high) l A            the gradient is that of l alone
    gspo                  -min(s A, clip(s, low, high) A)    s = exp(mean of l - q over the completion) for each token
    dro                   -(l A - beta / 2 (l - q)^2)

The service computes gradients. The value is worked out here from the log-probabilities that it returns, in float64,
since services name and add up theirs in their own ways. Thresholds are always sent: defaults are theirs too.

Not covered: stable_reinforce. It reads records of the sampler that end with its session, and after a day: an update
that a crash lost could not be replayed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tinker

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.policy.advantages import compute_advantages as compute_advantages
from coderl_tasks.policy.advantages import should_skip as should_skip
from coderl_tasks.policy.clients import describe, is_fatal
from coderl_tasks.settings.families import LossName

Advantage = float | np.ndarray
"""Of a completion, or of each of its tokens (T,)."""
AnswerT = TypeVar("AnswerT")
LOSS_FN: LossName = "importance_sampling"


@dataclass(frozen=True, slots=True)
class CompletionLoss:
    """The loss of one completion, summed over its tokens."""

    loss: float
    ratios: np.ndarray  # the tokens' importance ratios (T,) as the loss takes them
    clipped: int | None  # how many tokens it cuts at a threshold; None: it has none


@dataclass(frozen=True)
class PolicyLoss:
    """A loss with all that it is told (a key for each that LOSS_CONFIG has of it)."""

    name: LossName = LOSS_FN
    config: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """What the service is asked for: its name of the loss, and its configuration."""
        return {"loss_fn": self.name, "loss_fn_config": dict(self.config) or None}

    def of_completion(self, trainer: np.ndarray, sampler: np.ndarray, advantage: Advantage) -> CompletionLoss:
        """The loss from both sides' log-probabilities (T,) of a completion's tokens, float64."""
        logs = trainer - sampler
        ratios = np.full(len(logs), np.exp(logs.mean())) if self.name == "gspo" else np.exp(logs)
        if self.name == "importance_sampling":
            return CompletionLoss(-_weighted(ratios, advantage), ratios, None)
        if self.name == "dro":
            penalty = self.config["beta"] / 2 * (logs**2).sum()
            return CompletionLoss(float(penalty) - _weighted(trainer, advantage), ratios, None)
        low, high = self.config["clip_low_threshold"], self.config["clip_high_threshold"]
        cut = np.clip(ratios, low, high)
        if self.name == "cispo":
            return CompletionLoss(-_weighted(cut * trainer, advantage), ratios, int((cut != ratios).sum()))
        # Only on the side where the advantage would push the ratio on: the other one is still to be pulled back.
        clipped = cut * advantage < ratios * advantage
        return CompletionLoss(-float(np.minimum(ratios * advantage, cut * advantage).sum()), ratios, int(clipped.sum()))


def _weighted(values: np.ndarray, advantage: Advantage) -> float:
    """The sum of `values` (T,), each times its advantage."""
    # One advantage is taken out of the sum: recorded losses are such products, to the bit.
    return float((values * advantage).sum()) if isinstance(advantage, np.ndarray) else float(values.sum()) * advantage


def with_input(datum: tinker.Datum, name: str, values: np.ndarray) -> tinker.Datum:
    """`datum` with the loss input `name` (one value per target) as `values`."""
    inputs = {**datum.loss_fn_inputs, name: tinker.TensorData.from_numpy(values)}
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)


IMPORTANCE_SAMPLING = PolicyLoss()


class UpdateFailedError(InfraError):
    """An update failed half-way. The training client is no longer trustworthy: restore from the last durable state."""


class UpdateRefusedError(ConfigError):
    """The service refused an update for good (bad request, authentication, billing); the training client is lost."""


class TrainStepOutput(NamedTuple):
    forward_backward: tinker.ForwardBackwardOutput
    optim_step: tinker.OptimStepResponse


def make_datum(
    tokens: Sequence[int] | np.ndarray, logprobs: Sequence[float] | np.ndarray, ob_len: int, advantage: Advantage
) -> tinker.types.Datum:
    """The training example of one completion.

    `tokens` is prompt + completion (n of them) and `ob_len` >= 1 the prompt's length. `logprobs` are the sampler's, per
    completion token (n - ob_len), per token (n) or per target (n - 1). `advantage` is the completion's, or one per
    completion token. Input is tokens[:-1], targets are tokens[1:]; logprobs and advantages are 0 on the first
    ob_len - 1 targets, the prompt's. Raises ValueError for any other length, an empty prompt or completion.
    """
    datum = array_datum(np.asarray(tokens), logprobs, ob_len, advantage)
    inputs = np.asarray(tokens)[:-1].tolist()
    return tinker.types.Datum(tinker.types.ModelInput.from_ints(inputs), datum.loss_fn_inputs)


def array_datum(
    tokens: np.ndarray,
    logprobs: Sequence[float] | np.ndarray,
    ob_len: int,
    advantage: Advantage,
    loss_fn: LossName = LOSS_FN,
) -> tinker.types.Datum:
    """As `make_datum` (`tokens`: prompt + completion, `ob_len`: the prompt's length), but the input's tokens stay an
    array, and what else `loss_fn` reads is added. A step's 24 million tokens take 0.1 GB as arrays, 1 GB as lists. The
    SDK sends both as the same bytes, but can neither compare nor dump the array."""
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
    # Target i is token i + 1: the completion's targets begin at ob_len - 1, and the prompt's stay 0.
    sampler_logprobs = np.zeros(n - 1, dtype=np.float32)
    sampler_logprobs[ob_len - 1 :] = completion_logprobs
    advantages = np.zeros(n - 1, dtype=np.float32)
    advantages[ob_len - 1 :] = advantage
    inputs: Any = tokens[:-1].astype(np.int32)
    chunk = tinker.types.EncodedTextChunk.model_construct(tokens=inputs)
    targets: dict[str, np.ndarray] = {
        "target_tokens": tokens[1:].astype(np.int64),
        "logprobs": sampler_logprobs,
        "advantages": advantages,
    }
    if loss_fn == "gspo":
        targets["sequence_ratio_mask"] = (np.arange(n - 1) >= ob_len - 1).astype(np.float32)
    return tinker.types.Datum(
        model_input=tinker.types.ModelInput(chunks=[chunk]),
        loss_fn_inputs={name: tinker.types.TensorData.from_numpy(values) for name, values in targets.items()},
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
        forward_backward = training_client.forward_backward(list(datums), **loss.arguments)
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
    try:
        return future.result()
    except Exception as error:
        return error


def _update_error(failures: Sequence[BaseException]) -> UpdateFailedError | UpdateRefusedError:
    """The error for a step of which `failures` came back. The first one is the cause: the optimizer step is refused for
    good even where its gradient failed for a retryable reason."""
    if is_fatal(failures[0]):
        return UpdateRefusedError(f"the update was refused: {describe(failures[0])}")
    return UpdateFailedError(f"the update failed: {describe(failures[0])}")
