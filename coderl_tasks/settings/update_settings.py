"""What the settings of an update say together: which losses there are, and what each of them can be told."""

from typing import Any, Literal

LossName = Literal["importance_sampling", "ppo", "cispo", "gspo", "dro"]
_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
LOSS_CONFIG: dict[LossName, dict[str, float]] = {
    "importance_sampling": {},
    "ppo": _CLIP,
    "cispo": _CLIP,
    "gspo": _CLIP,
    "dro": {"beta": 0.05},
}
"""What each loss can be told, and what it is told where nothing else is said. Thresholds are absolute ratios."""
LOSS_SETTINGS = {"clip_low": "clip_low_threshold", "clip_high": "clip_high_threshold", "beta": "beta"}
"""The members of the setting `loss`, and what the service calls them."""


def replayable_loss(value: Any) -> Any:
    """`value`; ValueError for the loss of the service that no crash may come between."""
    if value == "stable_reinforce":
        raise ValueError(
            "it reads records of the sampler that end with its session, so that a run could not go on after a crash: "
            "take ppo or cispo"
        )
    return value
