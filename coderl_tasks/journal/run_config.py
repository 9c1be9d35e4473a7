"""What may change when a run goes on, and what may not."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from coderl_tasks.errors import ConfigError

MAY_CHANGE = (
    "learning_rate",
    "max_steps",
    "max_tokens",
    "temperature",
    "eval_every",
    "eval_limit",
    "eval_ends_limit",
    "save_*",
    "rolling_save_*",
    "log_*",
    "logging*",
    "wandb*",
    "pool",  # its content is what counts: pool_sha256
    "sample_concurrency",
    "suspend_hours",
    "smoke",
)
"""Keys (patterns) that may differ on resume: they do not make the finished steps another run's."""

CHANGE_THE_TRAINING = ("learning_rate", "max_tokens", "temperature")
"""Those of them that make the steps from here on other ones: what a resumed run changes of these is a warning."""

MADE_WITH: Mapping[str, Any] = {"thinking": None, "evaluation_dataset": None, "test_share": None}
"""What runs were made with that do not record a key, because they began before there was such a setting."""
FINDINGS = ("probe",)
"""Keys of config.json that are no settings: what a start found out, for those that follow. They stay as they are."""
NOT_COMPARED = (*FINDINGS, "log_path")
"""Nor does it matter whether the directory was named, or how."""

IN_OTHER_WORDS = {"group_size": "problems per step", "batch_size": "completions per step"}
"""What a key means whose name, the recipe's, says something else elsewhere."""

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One key that differs between the recorded run and this start. Prints as `key: old -> new`."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        meaning = f" {IN_OTHER_WORDS[self.key]}" if self.key in IN_OTHER_WORDS else ""
        return f"{self.key}: {_show(self.old)} -> {_show(self.new)}{meaning}"

    def on_resume(self, step: int) -> str:
        """What is said of it where a run goes on at `step`."""
        said = f"changed on resume, from step {step} on: {self}"
        return f"warning: {said}" if self.key in CHANGE_THE_TRAINING else said


def config_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[ConfigChange]:
    """Every setting that differs, nested ones as `a.b`, in the order of the keys."""
    before, after = ({**MADE_WITH, **_flatten(_settings(config))} for config in (old, new))
    keys = sorted(before.keys() | after.keys())
    values = ((key, before.get(key, _ABSENT), after.get(key, _ABSENT)) for key in keys)
    return [ConfigChange(*item) for item in values if item[1] != item[2]]


def check_resume(
    old: Mapping[str, Any], new: Mapping[str, Any], *, may_change: Iterable[str] = MAY_CHANGE
) -> list[ConfigChange]:
    """The allowed changes between a recorded configuration and a new one, to be logged.

    Raises ConfigError naming every change of a key that matches none of the patterns `may_change`.
    """
    patterns = tuple(may_change)
    changes = config_changes(old, new)
    refused = [change for change in changes if not any(fnmatchcase(change.key, pattern) for pattern in patterns)]
    if refused:
        raise ConfigError(
            f"the run was started with other settings ({'; '.join(map(str, refused))}): "
            "use them again, or start a new run with another log_path (init_from=<state_path> keeps the weights)"
        )
    return changes


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in NOT_COMPARED}


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def _show(value: Any) -> str:
    return "not set" if value is _ABSENT else repr(value)
