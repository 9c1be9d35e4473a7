"""config.json: its format, and which settings may change on resume."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.journal.json_shapes import Config, read_shaped
from coderl_tasks.settings import Setting, TrainSettings, about, all_settings
from coderl_tasks.settings.flow_settings import REWARD_HASH

CONFIG_FILE = "config.json"
FORMAT = 1  # version of the run directory's format, the one that the first release promises to read

# A mended reward function is what a run that stopped for it goes on with.
_SETTINGS = {key: about(field) for key, field in all_settings(TrainSettings)} | {
    REWARD_HASH: Setting(on_resume="warned")
}
MAY_CHANGE = tuple(key for key, setting in _SETTINGS.items() if setting.on_resume != "refused")
"""Settings that may differ on resume, as each says of itself."""

FINDINGS = ("probe",)
"""Keys of config.json that are not settings: what one start found out, for later ones. A resume keeps them."""
NOT_COMPARED = (*FINDINGS, "format", *(key for key, setting in _SETTINGS.items() if setting.on_resume == "ignored"))
"""Keys that a resume does not compare: the format, say, or what the directory was called."""

_PLAIN = Setting()
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One key that differs between the recorded run and this start. Prints as `key: old -> new`."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        change = f"{self.key}: {shown_setting(self.old)} -> {shown_setting(self.new)}"
        return f"{change} {_SETTINGS.get(self.key, _PLAIN).meaning}".rstrip()

    @property
    def is_free(self) -> bool:
        """Whether it is between values that may take each other's place."""
        values = _SETTINGS.get(self.key, _PLAIN).interchangeable
        return self.old in values and self.new in values

    def on_resume(self, step: int) -> str:
        """The line to show when a run resumes at `step`."""
        said = f"changed on resume, from step {step} on: {self}"
        return f"warning: {said}" if _SETTINGS.get(self.key, _PLAIN).on_resume == "warned" else said


def recorded_config(run: Path | None) -> dict[str, Any] | None:
    """What config.json says of the run in the folder `run`; None if there is none (yet). Raises DataError if it is
    damaged or was written by a newer version than this one."""
    file = run.expanduser() / CONFIG_FILE if run is not None else None
    if file is None or not file.is_file():
        return None
    config = read_shaped(file, Config)
    # Asked before anything else is read: what a newer version means by a key is not for this one to guess.
    written = config.get("format", FORMAT)
    if not isinstance(written, int) or written > FORMAT:
        raise DataError(
            f"{run} was written by a newer coderl (format {written}, and this one reads up to {FORMAT}): update coderl"
        )
    return config


def config_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[ConfigChange]:
    """Every setting that differs, nested ones as `a.b`, in the order of the keys."""
    before, after = (
        _flatten({key: value for key, value in config.items() if key not in NOT_COMPARED}) for config in (old, new)
    )
    keys = sorted(before.keys() | after.keys())
    changes = [ConfigChange(key, before.get(key, _ABSENT), after.get(key, _ABSENT)) for key in keys]
    return [change for change in changes if change.old != change.new]


def check_resume(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[ConfigChange]:
    """The changes between a recorded configuration and a new one, to be logged. Raises ConfigError naming every change
    of a setting that may not change on resume."""
    changes = config_changes(old, new)
    refused = [change for change in changes if not (change.is_free or change.key in MAY_CHANGE)]
    if refused:
        raise ConfigError(
            f"the run was started with other settings ({'; '.join(map(str, refused))}): "
            "use them again, or start a new run with another log_path (init_from=<state_path> keeps the weights)"
        )
    return changes


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            # JSON has no tuples: what was recorded comes back as a list.
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def shown_setting(value: Any) -> str:
    return "not set" if value is _ABSENT else repr(value)
