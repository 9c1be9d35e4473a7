"""The losses, and the families of settings that `coderl train` takes: each a mapping of those given together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from coderl_tasks.settings.flow_settings import Limit
from coderl_tasks.settings.setting import Family, about, refusing, setting

CLIP_RANGES = ("cliprange", "clip_range", "clip_ratio", "epsilon")


@dataclass(frozen=True, slots=True)
class LossKind:
    """`config` is what the service can be told about the loss, and is told where nothing else is said. A loss that
    `weighs_logprobs` multiplies each token by its log-probability, so that its size depends on the entropy."""

    meaning: str
    config: Mapping[str, float] = field(default_factory=dict)
    weighs_logprobs: bool = False


_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}  # absolute ratios
LOSSES = {
    "importance_sampling": LossKind("each token's importance ratio times the advantage"),
    "ppo": LossKind("the same, with a ratio clipped where the advantage would push it further", _CLIP),
    "cispo": LossKind("log-probabilities times advantage, weighed by clipped ratios", _CLIP, weighs_logprobs=True),
    "gspo": LossKind("as ppo, with one ratio per completion", _CLIP),
    "dro": LossKind("as cispo, with ratios that are penalised, not weights", {"beta": 0.05}, weighs_logprobs=True),
}
"""By the value of the setting `loss_fn`. Their values are computed in policy/grpo.py."""
LOSS_HELP = "Tinker's name of the loss; " + "; ".join(f"{name}: {loss.meaning}" for name, loss in LOSSES.items())
if TYPE_CHECKING:
    LossName = str  # a type checker knows no names of a table
else:
    LossName = Literal[tuple(LOSSES)]


def _loss_option(key: str, meaning: str, **arguments: Any) -> Any:
    """A member of `loss`, which the service calls `key`. Its help names the losses that have it, and its default."""
    defaults = {name: f"{loss.config[key]:g}" for name, loss in LOSSES.items() if key in loss.config}
    values = ", ".join(f"{default} ({name})" for name, default in defaults.items())
    if len(set(defaults.values())) == 1:
        values = min(defaults.values())
    return setting(None, description=f"{', '.join(defaults)}: {meaning}; by default {values}", **arguments)


class Schedule(Family):
    """How the learning rate rises and falls: `schedule=cosine:200,warmup:10`."""

    SHORT: ClassVar[tuple[str, str]] = ("kind", "total")

    kind: Literal["constant", "linear", "cosine"] = setting(
        "constant",
        on_resume="warned",
        elsewhere=("learning_rate_schedule", "lr_schedule", "lr_scheduler", "lr_scheduler_type", "scheduler"),
    )
    """how the learning rate falls to 0 at step `total`; constant: it does not fall"""
    total: int | None = setting(
        None, ge=1, on_resume="warned", recipe="scheduler_total_steps", elsewhere=("total_steps",)
    )
    """linear, cosine: the step at which the learning rate is 0, whatever max_steps is"""
    warmup: int = setting(0, ge=0, on_resume="warned", elsewhere=("warmup_steps", "lr_warmup_steps"))
    """first steps of the run, over which the learning rate rises from 0"""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.kind == "constant":
            if self.total is not None:
                raise ValueError(
                    f"schedule.total={self.total} needs schedule=linear or cosine: a constant learning rate has none, "
                    "leave it out"
                )
        elif self.total is None:
            raise ValueError(
                f"schedule={self.kind} needs the steps of the whole training: write schedule={self.kind}:STEPS "
                "(max_steps will not do: a run that continues in parts would decay to 0 in each)"
            )
        elif self.warmup >= self.total:
            raise ValueError(f"schedule.warmup={self.warmup} leaves nothing of schedule.total={self.total}")
        return self


class Adam(Family):
    """The optimizer, beside the learning rate: `adam=beta1:0.9,beta2:0.95,eps:1e-12`."""

    beta1: float = setting(0.9, ge=0, lt=1, elsewhere=("adam_beta1",))
    """decay of Adam's first moment"""
    beta2: float = setting(0.95, ge=0, lt=1, elsewhere=("adam_beta2",))
    """decay of Adam's second moment"""
    eps: float = setting(1e-12, gt=0, gsm8k=1e-8, elsewhere=("adam_eps",))
    """Adam's epsilon"""
    weight_decay: float = setting(0.0, ge=0, recipe="weight_decay")
    """Adam's decoupled weight decay"""
    grad_clip_norm: float = setting(0.0, ge=0, recipe="grad_clip_norm", elsewhere=("max_grad_norm", "grad_clip"))
    """norm that the gradient is clipped to (0: not clipped). The Tinker service reports the norm only if this is set,
    for example to 1e12"""


class Loss(Family):
    """Options of the loss: `loss=clip_low:0.8,clip_high:1.28`."""

    INSTEAD: ClassVar[str] = "; loss_fn names the loss itself"

    # Other tools name the distance from 1.
    clip_low: float | None = _loss_option(
        "clip_low_threshold",
        "smallest importance ratio (the ratio, not a distance from 1)",
        ge=0,
        le=1,
        recipe="clip_low_threshold",
        elsewhere=tuple(f"{name} (1 - {name})" for name in (*CLIP_RANGES, "clip_ratio_low", "epsilon_low")),
    )
    clip_high: float | None = _loss_option(
        "clip_high_threshold",
        "largest importance ratio",
        ge=1,
        recipe="clip_high_threshold",
        elsewhere=tuple(f"{name} (1 + {name})" for name in (*CLIP_RANGES, "clip_ratio_high", "epsilon_high")),
    )
    beta: float | None = _loss_option(
        "beta", "weight of the squared log-probability gap", ge=0, elsewhere=("dro_beta",)
    )


LOSS_SETTINGS = {member: about(field).recipe or member for member, field in Loss.model_fields.items()}
"""The members of the setting `loss`, and what the service calls them."""


class Kl(Family):
    """The distance to the base model: `kl=penalty_coef:0.05`, or `kl=base_every:10` to measure it alone."""

    penalty_coef: float = setting(
        0.0,
        ge=0,
        elsewhere=(
            *("kl_penalty_coef", "kl_coef", "kl_coeff", "kl_loss_coef"),
            *(f"{name} (a weight, 0: none)" for name in ("use_kl_loss", "use_kl_in_reward")),
            "beta (the weight of the KL to the base model)",
        ),
    )
    """weight of the KL penalty to the base model, subtracted from each token's advantage (0: none)"""
    base_every: int | None = setting(
        None, ge=0, decides_content=False, on_resume="allowed", elsewhere=("kl_base_every",)
    )
    """steps between measurements of the KL to the base model, on 16 completions, which do not affect training (0:
    none; penalty_coef measures it in each step). By default 1 on the embedded server without prices, else 0"""


class Truncation(Family):
    """Completions that run into max_tokens: `truncation=masked`, `truncation=penalised:2048`."""

    SHORT: ClassVar[tuple[str, str]] = ("kind", "overlong_tokens")

    kind: Literal["graded", "masked", "penalised"] = setting(
        "graded", elsewhere=("mask_truncated_completions", "overlong_filtering")
    )
    """completions that reach max_tokens: graded, scored as usual; masked, left out of their group; penalised, given a
    penalty that grows from 0 to 1 over the last overlong_tokens before the limit"""
    overlong_tokens: int | None = setting(None, ge=1, elsewhere=("overlong_buffer", "soft_overlong_tokens"))
    """penalised: last tokens before the limit that are penalised; by default a fifth of it"""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.kind != "penalised" and self.overlong_tokens is not None:
            raise ValueError(
                f"truncation.overlong_tokens={self.overlong_tokens} needs truncation=penalised: leave it out"
            )
        return self


class RollingSave(Family):
    """States to resume from, which expire: `rolling_save=every:5,hours:24,keep:3`."""

    every: int = setting(1, ge=0, on_resume="allowed", elsewhere=("rolling_save_every",))
    """steps between saved states to resume from (0: only checkpoints)"""
    # A Tinker service takes no time to live below an hour.
    hours: float = setting(168, ge=1, on_resume="allowed", elsewhere=("rolling_save_hours",))
    """hours for which these states are kept"""
    keep: int = setting(3, ge=2, on_resume="allowed", elsewhere=("rolling_save_keep",))
    """number of newest states that are kept (at least one more than max_steps_off_policy); older ones are deleted"""


class Evaluations(Family):
    """Evaluations while training: `eval=every:10,limit:200`; `eval=every:-1` for none."""

    every: Annotated[int, refusing(lambda every: every == 0, "makes no sense: use -1 for no evaluations")] = setting(
        10,
        ge=-1,
        on_resume="allowed",
        smollm2=16,
        gsm8k=6,
        recipe="eval_every",
        elsewhere=("eval_steps", "eval_interval", "test_freq"),
    )
    """steps between evaluations (-1: none at all, nor baseline and final)"""
    limit: Limit = setting(
        200, on_resume="allowed", nano=100, smollm2=64, gsm8k=40, elsewhere=("eval_limit", "n_samples")
    )
    """problems in a periodic evaluation, a seeded subset (-1: all)"""
    ends_limit: Limit = setting(-1, on_resume="allowed", gsm8k=40, elsewhere=("eval_ends_limit",))
    """problems in the baseline and the final evaluation; by default as limit, if that is given"""
    on: Literal["test", "validation"] = setting("test", elsewhere=("eval_on",))
    """where periodic evaluations take problems: test, the test splits; validation, problems held out of the pool"""
    validation_size: int = Field(64, ge=1)
    """with on:validation, problems held out of the pool"""


class Trackers(Family):
    """Where metrics are logged too: `trackers=wandb:PROJECT,name:RUN`, and trackio:PROJECT."""

    INSTEAD: ClassVar[str] = "; trackers.wandb=none and trackers.trackio=none end them"
    wandb: str | None = setting(None, on_resume="allowed", elsewhere=("wandb_project",))
    """log to this Weights & Biases project too"""
    trackio: str | None = setting(None, on_resume="allowed", elsewhere=("trackio_project",))
    """log to this trackio project too"""
    name: str | None = setting(None, on_resume="allowed", elsewhere=("wandb_name", "trackio_name"))
    """name of the run in the tracker (trackio adds six digits of a hash of the directory)"""
