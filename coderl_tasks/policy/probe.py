"""What a Tinker service does, asked in a few hundred tokens and one forward pass before anything is trained on it.

| asked                                                | decides                                                     |
|------------------------------------------------------|-------------------------------------------------------------|
| do the samples of one seeded request differ          | seeds that clone are not sent; clones without one end it    |
| is greedy decoding repeatable                        | nothing; it is said                                         |
| sampled against trained log-probabilities, at 1      | over NOISE a warning, over GROSS an error                   |
| the same at the run's temperature                    | a warning says what the importance ratio means; an error    |
|                                                      | where they belong to neither temperature                    |
| does a completion that stops end with its stop token | a warning                                                   |
| which model does the service say it serves           | a warning where it is another one                           |

Trained log-probabilities come from a forward pass of the client, with the loss it is to be trained with and advantages
of 0: nothing is changed, and it is that very pair of numbers whose ratio training uses.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import polars as pl
import tinker

from coderl_tasks.errors import CoderlError, ConfigError, InfraError
from coderl_tasks.paths import same_model
from coderl_tasks.policy.clients import tinker_errors
from coderl_tasks.policy.grpo import IMPORTANCE_SAMPLING, PolicyLoss, array_datum
from coderl_tasks.policy.sampling import Completion, sample_group
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.policy.step_metrics import excess_rate, group_repeats
from coderl_tasks.prompts.renderers import Renderer

NOISE = 0.05
"""Nats per token, the mean of |sampled - trained|: what bfloat16 and two different kernels explain."""
GROSS = 0.5
"""Nats per token that only another policy or another quantity explains: ratios would be off by a factor of 1.6."""
LEAST_TOLERANCE = 0.005
"""Nats per token: what tells temperatures apart on a service whose two sides agree exactly at 1."""
QUESTION = "Write twenty random words."
SAMPLES, TOKENS = 8, 32
SAMPLES_AT_TEMPERATURE = 4
GREEDY_TOKENS = 16
TOP_K = 20
VOCABULARY = 2**18
"""No smaller than that of any model: what lies outside the top k is spread over at most so many tokens."""

LogprobsOf = Literal["scaled", "unscaled", "neither", "unknown"]
Stops = Literal["returned", "left out", "none seen"]


@dataclass(frozen=True, slots=True)
class Probe:
    """What the Tinker service at `service` was found to do for `model`; recorded in config.json."""

    service: str
    model: str
    temperature: float
    served: str | None  # the model it says it trains
    seeds_clone: bool
    greedy_repeats: bool
    stops: Stops
    gap: float  # nats per token: mean |sampled - trained| log-probability of the same tokens at temperature 1
    gap_at_temperature: float | None  # the same for tokens sampled at `temperature`; None at 1
    logprobs_at: LogprobsOf | None  # which distribution those are of; None at 1
    duplicate_rate: float  # as in metrics.jsonl
    tokens: int  # that the probe sampled

    def summary(self) -> str:
        parts = [
            f"{self.served or 'a model without a name'} is served",
            f"samples of one request {'are clones with a seed, and differ without' if self.seeds_clone else 'differ'}",
            f"greedy decoding {'repeats itself' if self.greedy_repeats else 'does not repeat itself'}",
            f"stop tokens: {self.stops}",
            f"sampled and trained log-probabilities differ by {self.gap:.2g} nats per token at temperature 1",
        ]
        if self.gap_at_temperature is not None:
            parts.append(f"by {self.gap_at_temperature:.2g} at temperature {self.temperature:g} ({self.logprobs_at})")
        return "; ".join(parts)

    def warnings(self) -> list[str]:
        """What the user should know of this service before training, one line each."""
        lines = []
        if self.served is not None and not same_model(self.served, self.model):
            lines.append(f"the service says that it trains {self.served}, and {self.model} was asked for")
        if self.seeds_clone:
            lines.append(
                "samples of one request with a seed are clones on this service: no seeds are sent, so that groups that "
                "have to be sampled again come out different; what is recorded is replayed as ever"
            )
        if self.stops == "left out":
            lines.append("completions that stop do not end with their stop token: the policy is not trained to stop")
        if self.stops == "none seen":
            lines.append("no completion stopped, though greedy decoding was to: stop tokens may be ignored here")
        if self.gap > NOISE:
            lines.append(
                f"sampled and trained log-probabilities of the same tokens differ by {self.gap:.2g} nats per token at "
                f"temperature 1 (numerical noise stays below {NOISE}): importance ratios are off by a factor of "
                f"{math.exp(self.gap):.2f} before anything is trained"
            )
        if self.logprobs_at is not None:  # at another temperature than 1 no importance ratio is quite right
            lines.append(f"temperature={self.temperature:g}: {_MEANING_OF_RATIO[self.logprobs_at]}")
        return lines

    def fault(self) -> str | None:
        """Why nothing can be trained on this service, whatever the settings; None if it can."""
        if self.gap <= GROSS:  # not if it is NaN
            return None
        return (
            f"sampled and trained log-probabilities of the same tokens differ by {self.gap:.2g} nats per token at "
            f"temperature 1 (numerical noise stays below {NOISE}; over {GROSS} it is another policy): ask the "
            "service's operator, or take another model_name"
        )

    def require_trainable(self) -> None:
        """Raises CoderlError, or ConfigError where another temperature helps, if training would use wrong ratios."""
        if (fault := self.fault()) is not None:
            raise CoderlError(f"the Tinker service at {self.service} is not trained on: {fault}")
        if self.logprobs_at == "neither":
            raise ConfigError(
                f"temperature={self.temperature:g}: the Tinker service's log-probabilities are neither those of the "
                f"scaled distribution nor those at temperature 1 ({self.gap_at_temperature:.2g} nats per token from "
                "the trained ones), so that importance ratios would be wrong: use temperature=1"
            )


_MEANING_OF_RATIO: dict[LogprobsOf, str] = {
    "scaled": "sampled log-probabilities are those of the scaled distribution, trained ones are at 1: the importance "
    "ratio is not 1 on policy, and corrects each token's own draw towards temperature 1",
    "unscaled": "sampled and trained log-probabilities are both at 1: the importance ratio is 1 on policy and does not "
    "correct for the temperature; the update takes what was sampled as if the policy at temperature 1 had drawn it",
    "neither": "sampled log-probabilities are neither those of the scaled distribution nor those at 1: importance "
    "ratios would be wrong",
    "unknown": "sampled log-probabilities are not those at 1, and the service gives no top-k log-probabilities to tell "
    "whether they are those of the scaled distribution: the importance ratio is not 1 on policy",
}


async def probe_service(
    sampler: tinker.SamplingClient,
    trainer: tinker.TrainingClient,
    renderer: Renderer,
    *,
    service: str,
    model: str,
    temperature: float,
    loss: PolicyLoss = IMPORTANCE_SAMPLING,
) -> Probe:
    """Finds out by a few requests how the service samples and scores; trains nothing. `sampler` and `trainer` must hold
    the same policy. Raises CoderlError if all samples of a request are the same with and without a seed, InfraError if
    none has log-probabilities or the service fails."""
    prompt = renderer.prompt_tokens([{"role": "user", "content": QUESTION}])
    stop, seed = renderer.stop_tokens, seed_for("probe")
    draw = partial(sample_group, sampler, prompt)
    # 1. Do the samples of one seeded request differ? A second request tells a service that clones by seed, which can be
    # trained on without seeds, from one that always clones.
    draw_at_one = partial(draw, num_samples=SAMPLES, max_tokens=TOKENS, temperature=1.0, stop=stop)
    seeded = await draw_at_one(seed=seed)
    seeds_clone = _are_clones(seeded)
    at_one = await draw_at_one(seed=None) if seeds_clone else seeded
    if seeds_clone and _are_clones(at_one):
        raise CoderlError(
            f"the Tinker service at {service} is not trained on: all {SAMPLES} samples of a request are the same, "
            "with a seed and without, so that no group would have a signal"
        )
    scaled: list[Completion] = []  # 2. Samples at the temperature of the run, unless it is 1.
    if temperature != 1.0:
        draw_scaled = partial(draw, num_samples=SAMPLES_AT_TEMPERATURE, max_tokens=TOKENS, temperature=temperature)
        scaled = await draw_scaled(seed=None if seeds_clone else seed, stop=stop)
    # 3. Is greedy decoding repeatable, and are stop tokens honoured? In so few tokens no completion may reach its own
    # stop token, so the second time a token in the middle of the first answer is one.
    draw_greedy = partial(draw, num_samples=1, max_tokens=GREEDY_TOKENS, temperature=0.0, seed=seed)
    (greedy,) = await draw_greedy(stop=stop)
    middle_token = greedy.tokens[len(greedy.tokens) // 2] if greedy.tokens else stop[0]
    (stopped,) = await draw_greedy(stop=[*stop, middle_token])
    # 4. How far are sampled log-probabilities from trained ones, at 1 and at the temperature of the run?
    usable, usable_scaled = ([each for each in drawn if each.logprobs is not None] for drawn in (at_one, scaled))
    if not usable or (scaled and not usable_scaled):
        raise InfraError(f"no sample of the Tinker service at {service} has log-probabilities: none can be trained on")
    trained = await _trained_logprobs(trainer, prompt, [*usable, *usable_scaled], loss)
    trained_scaled = trained[len(usable) :]
    gap = _mean_gap(usable, trained[: len(usable)])
    logprobs_of: LogprobsOf | None = None
    if usable_scaled:
        # Up to three times the noise at 1 counts as equal; below 1 scaling by 1 / T makes the noise larger.
        tolerance = max(LEAST_TOLERANCE, 3 * gap / min(1.0, temperature))
        logprobs_of = await _distribution_of(sampler, prompt, usable_scaled, trained_scaled, temperature, tolerance)
    # Each completion once, by identity: `at_one` is `seeded` unless seeds clone.
    sampled = {id(c): c for c in (*seeded, *at_one, *scaled, greedy, stopped)}.values()
    last_tokens = [each.tokens[-1:] for each in sampled if each.stop_reason == "stop"]
    stops: Stops = "none seen"
    if last_tokens:  # whether the completions that stopped end with one of the tokens they were to stop at
        stops = "returned" if all(last and last[0] in {*stop, middle_token} for last in last_tokens) else "left out"
    return Probe(
        service=service,
        model=model,
        temperature=temperature,
        served=trainer.get_info().model_data.model_name,
        seeds_clone=seeds_clone,
        greedy_repeats=stopped.tokens == greedy.tokens[: len(stopped.tokens)] and bool(stopped.tokens),  # a prefix
        stops=stops,
        gap=gap,
        gap_at_temperature=_mean_gap(usable_scaled, trained_scaled) if usable_scaled else None,
        logprobs_at=logprobs_of,
        duplicate_rate=excess_rate(_repeats(scaled or at_one)) or 0.0,  # beyond chance, at the temperature of the run
        tokens=sum(len(completion.tokens) for completion in sampled),
    )


def _are_clones(completions: Sequence[Completion]) -> bool:
    return bool(_repeats(completions)["clones"].any())


def _repeats(completions: Sequence[Completion]) -> pl.DataFrame:
    rows = [{"group_index": 0, "completion_tokens": c.tokens, "logprobs": c.logprobs} for c in completions]
    schema = {"group_index": pl.Int32(), "completion_tokens": pl.List(pl.Int32()), "logprobs": pl.List(pl.Float32())}
    return group_repeats(pl.DataFrame(rows, schema=schema))


async def _trained_logprobs(
    trainer: tinker.TrainingClient, prompt: list[int], completions: Sequence[Completion], loss: PolicyLoss
) -> list[np.ndarray]:
    """The training side's log-probabilities of each completion's tokens, at temperature 1."""
    datums = [
        array_datum(np.array([*prompt, *c.tokens]), c.logprobs or [], len(prompt), 0.0, loss.name) for c in completions
    ]
    # With the run's own loss: a service that lacks it refuses it here, and not when a step has been sampled.
    with_loss = "" if loss == IMPORTANCE_SAMPLING else f" with loss_fn={loss.name}"
    with tinker_errors(f"computing log-probabilities{with_loss}"):
        name = cast(Any, loss.name)  # the SDK's type lists today's losses
        output = await trainer.forward(datums, loss_fn=name, loss_fn_config=dict(loss.config) or None)
    answers = [answer.get("logprobs") for answer in output.loss_fn_outputs]
    scores = [
        answer.to_numpy().astype(np.float64).ravel()[len(prompt) - 1 :] for answer in answers if answer is not None
    ]
    if [len(score) for score in scores] != [len(c.tokens) for c in completions]:
        raise InfraError("Tinker, computing log-probabilities: there is not one for each token of each datum")
    return scores


def _mean_gap(completions: Sequence[Completion], trained: Sequence[np.ndarray]) -> float:
    sampled = np.concatenate([np.asarray(completion.logprobs, dtype=np.float64) for completion in completions])
    return float(np.abs(sampled - np.concatenate(trained)).mean())


async def _distribution_of(
    sampler: tinker.SamplingClient,
    prompt: list[int],
    completions: Sequence[Completion],
    trained: Sequence[np.ndarray],
    temperature: float,
    tolerance: float,
) -> LogprobsOf:
    """Returns which distribution the log-probabilities of `completions`, sampled at `temperature`, belong to; "unknown"
    if the service has no top-k log-probabilities to tell. `trained` are the trainer's at 1. A mean gap per token of up
    to `tolerance` is none."""
    unscaled_gap = _mean_gap(completions, trained)
    least_gaps, greatest_gaps = [], []  # per token, to the scaled distribution, which is known within bounds only
    for completion, trained_logprobs in zip(completions, trained, strict=True):
        top = await _top_k_logprobs(sampler, prompt, completion)
        if len(top) != len(completion.tokens):
            return "unscaled" if unscaled_gap <= tolerance else "unknown"
        low, high = scaled_bounds(trained_logprobs, top, temperature)
        sampled = np.asarray(completion.logprobs, dtype=np.float64)
        least_gaps.append(np.maximum(0.0, np.maximum(low - sampled, sampled - high)))
        greatest_gaps.append(np.maximum(np.abs(sampled - low), np.abs(sampled - high)))
    least_scaled_gap = float(np.concatenate(least_gaps).mean())
    greatest_scaled_gap = float(np.concatenate(greatest_gaps).mean())
    # The two distributions are nearly the same near 1, or if one token has nearly all probability. If both fit, only
    # one at 1 that fits better than the scaled one possibly could is "unscaled".
    if unscaled_gap <= tolerance and unscaled_gap <= greatest_scaled_gap:
        return "unscaled"
    return "scaled" if least_scaled_gap <= tolerance else "neither"


async def _top_k_logprobs(
    sampler: tinker.SamplingClient, prompt: list[int], completion: Completion
) -> list[list[tuple[int, float]]]:
    """For each token of `completion` the most probable tokens in its place, with their log-probabilities at 1; fewer
    rows if the service has none."""
    rows: Sequence[list[tuple[int, float]] | None] = ()
    # Only a service that does not offer them refuses this: sampling the same model has succeeded just before.
    with suppress(ConfigError), tinker_errors("asking for top-k log-probabilities"):
        response = await sampler.sample(
            prompt=tinker.ModelInput.from_ints([*prompt, *completion.tokens]),
            num_samples=1,
            sampling_params=tinker.SamplingParams(max_tokens=1, temperature=1.0),
            include_prompt_logprobs=True,
            topk_prompt_logprobs=TOP_K,
        )
        rows = response.topk_prompt_logprobs or ()
    return [row for row in rows[len(prompt) :] if row]


def scaled_bounds(
    logprobs: np.ndarray, top: Sequence[Sequence[tuple[int, float]]], temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest log-probability that each token can have in the distribution scaled by `temperature`.
    `logprobs` are the tokens' at temperature 1, `top` the most probable tokens there with theirs. The scaled one is
    logprob / T - log Z, Z being the sum of all p^(1/T), known of the top k. The mass that is left gives least and most,
    by convexity, if one token has all of it or all tokens share it equally."""
    power = 1.0 / temperature
    least, most = [], []
    for row in top:
        best = np.exp(np.asarray([logprob for _, logprob in row], dtype=np.float64))
        rest = max(0.0, 1.0 - float(best.sum()))
        ends = rest**power, rest**power * VOCABULARY ** (1.0 - power)
        known = float((best**power).sum())
        least.append(math.log(known + min(ends)))
        most.append(math.log(known + max(ends)))
    return logprobs * power - np.asarray(most), logprobs * power - np.asarray(least)
