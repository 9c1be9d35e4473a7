"""The JSON files of a run, of an evaluation and of a pool: what they hold, and what they are read for.

    config.json      of a run: its settings, and what its starts found out
    settings.json    of work that is not a run (a curation, an evaluation): what decides the outcome, written first
    summary.json     of a finished evaluation
    manifest.json    of a finished pool

1. A run or a pool may come from others. What readers index and count without looking again is checked where it is read
   (`read_shaped`); other keys may hold anything. What is optional may be null.
2. A resume compares config.json with its own settings, and refuses those that may not change (`check_resume`).
3. The same command finds by settings.json what an earlier start of it left, and continues there (`find_unfinished`).
   Beside it lies work.lock, held by the one process that works in the folder.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.journal.atomic import DamagedFileError, make_folder, read_json, try_read_json, write_json
from coderl_tasks.journal.directory_lock import DirectoryLock, held_by
from coderl_tasks.settings import Setting, TrainSettings, about, all_settings
from coderl_tasks.settings.flow_settings import REWARD_HASH

CONFIG_FILE = "config.json"
SETTINGS_FILE = "settings.json"
LOCK_FILE = "work.lock"
FORMAT = 1  # version of the run directory's format, the one that the first release promises to read

# A mended reward function is what a run that stopped for it goes on with.
_SETTINGS = {key: about(field) for key, field in all_settings(TrainSettings)} | {
    REWARD_HASH: Setting(on_resume="warned")
}
_DEFAULTS = {
    key: field.get_default(call_default_factory=True, validated_data={}) for key, field in all_settings(TrainSettings)
}
FINDINGS = ("probe",)
"""Keys of config.json that are not settings: what one start found out, for later ones. A resume keeps them."""
NOT_COMPARED = (*FINDINGS, "format", *(key for key, setting in _SETTINGS.items() if setting.on_resume == "ignored"))
"""Keys that a resume does not compare: the format, say, or what the directory was called."""

_OF_COMPLETIONS = ("temperature", "max_tokens")
"""Settings that each completion is sampled with: in a step that was begun, some have the old value."""

_PLAIN = Setting()
_ABSENT = object()
DEEPEST = 50  # lists and objects in one another: ours have five, and readers recur
Number = Annotated[float, Field(gt=-(2**63), lt=2**63)]


class _Shape(BaseModel):
    """Only checked against, never filled: the defaults say that a key may be missing."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, protected_namespaces=())


class Score(_Shape):
    """What the best checkpoint is chosen by."""

    pass_at_1: Number


class Share(Score):
    """Pass@1 of an evaluation or a split of it."""

    n: Number
    ci_low: Number
    ci_high: Number


class Compared(_Shape):
    """What a summary says of the difference from an earlier evaluation."""

    to: str | None = None
    difference: Number | None = None
    ci_low: Number | None = None
    ci_high: Number | None = None
    n: PositiveInt = 1
    gained: Number = 0
    lost: Number = 0


class Summary(Share):
    """summary.json of an evaluation."""

    step: int | None = None
    by_split: dict[str, Share] = {}
    mean_reward: Number | None = None
    format_rate: Number | None = None
    truncated_rate: Number | None = None
    infra_errors: Number | None = None
    temperature: Number | None = None
    max_tokens: Number | None = None
    n_samples: Number | None = None
    top_p: Number | None = None
    max_turns: Number | None = None
    max_tool_calls: Number | None = None
    policy: str | None = None
    taken_from: str | None = None
    compare: Compared | None = None


class Config(_Shape):
    """config.json of a run."""

    model_name: str = ""
    environment: str = ""
    steer: str = ""
    pool: str | None = None
    batch_size: PositiveInt = 1
    group_size: PositiveInt = 1
    max_steps: Number = 0
    first_completions: Number | None = None
    refill: Number = 0
    learning_rate: Number = 0
    test_share: Number | None = None
    eval: dict[str, Any] = {}
    probe: dict[str, Any] | None = None


class Manifest(_Shape):
    """manifest.json of a pool."""

    model_name: str | None = None
    read: Number | None = None
    kept: Number | None = None
    dropped: Number | None = None
    band_low: Number | None = None
    band_high: Number | None = None
    infra_errors: Number | None = None
    by_difficulty: dict[str, Number] = {}
    by_split: dict[str, Number] = {}
    dropped_by_reason: dict[str, Number] = {}
    spent: dict[str, Number | None] = {}
    settings: dict[str, Any] | None = None
    policy: dict[str, Any] = {}
    mix: dict[str, Any] = {}
    labels: dict[str, Any] | None = None
    inputs: dict[str, Any] = {}


def read_shaped(path: Path, shape: type[BaseModel]) -> dict[str, Any]:
    """The JSON object at `path`, as it is. Raises FileNotFoundError, or DamagedFileError, with the first fault, if it
    is none or not of `shape`."""
    value = read_json(path)
    try:
        json.dumps(value, ensure_ascii=False).encode()  # as it was written
    except (UnicodeEncodeError, RecursionError) as error:
        raise DamagedFileError(path, f"it cannot be written again ({error})") from error
    if _depth(value) > DEEPEST:
        raise DamagedFileError(path, f"it is nested more than {DEEPEST} deep")
    try:
        shape.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise DamagedFileError(path, f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from error
    return value


def _depth(value: Any) -> int:
    """How deep lists and objects lie in one another; no further than DEEPEST is looked."""
    level, depth = [value], 0
    while depth <= DEEPEST:
        level = [list(each.values()) if isinstance(each, dict) else each for each in level]
        level = [inner for each in level if isinstance(each, list) for inner in each]
        if not level:
            break
        depth += 1
    return depth


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One key that differs between the recorded run and this start, with the default of a setting that one lacks."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        change = f"{self.key}: {self._shown(self.old)} -> {self._shown(self.new)}"
        return f"{change} {_SETTINGS.get(self.key, _PLAIN).meaning}".rstrip()

    def _shown(self, value: Any) -> str:
        applied = _as_by_default(value, self)
        is_default = value is _ABSENT and applied is not _ABSENT
        return shown_setting(applied) + (" (default)" if is_default else "")

    def on_resume(self, step: int) -> str:
        """The line to show when a run resumes at `step`."""
        line = f"changed on resume, from step {step} on: {self}"
        if self.key in _OF_COMPLETIONS:
            line += " (completions that are sampled already keep the old value)"
        return f"warning: {line}" if _SETTINGS.get(self.key, _PLAIN).on_resume == "warned" else line


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
    """Every setting that differs, nested ones as `a.b`, in the order of the keys. One that a side lacks is there as by
    default."""
    before, after = (
        _flatten({key: value for key, value in config.items() if key not in NOT_COMPARED}) for config in (old, new)
    )
    keys = sorted(before.keys() | after.keys())
    changes = [ConfigChange(key, before.get(key, _ABSENT), after.get(key, _ABSENT)) for key in keys]
    return [change for change in changes if _as_by_default(change.old, change) != _as_by_default(change.new, change)]


def _as_by_default(value: Any, change: ConfigChange) -> Any:
    if value is not _ABSENT:
        return value
    default = _DEFAULTS.get(change.key, _ABSENT)
    return list(default) if isinstance(default, tuple) else default  # as `_flatten` has it


def check_resume(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[ConfigChange]:
    """The changes between a recorded configuration and a new one. Raises ConfigError naming every change of a setting
    that may not change on resume."""
    changes = config_changes(old, new)
    refused = []
    for change in changes:
        setting = _SETTINGS.get(change.key, _PLAIN)
        is_free = change.old in setting.interchangeable and change.new in setting.interchangeable
        if setting.on_resume == "refused" and not is_free:
            refused.append(change)
    if refused:
        raise ConfigError(
            f"the run was started with other settings ({'; '.join(map(str, refused))}): "
            "use them again, or start a new run with another log_path (init_from=<state_path> keeps the weights)"
        )
    return changes


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        # Each member of a family is a setting. `prices` is one setting, whose value is a mapping.
        if isinstance(value, Mapping) and not isinstance(_DEFAULTS.get(f"{prefix}{key}"), Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            # JSON has no tuples: what was recorded comes back as a list.
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def shown_setting(value: Any) -> str:
    return "not set" if value is _ABSENT else repr(value)


@contextmanager
def working_in(folder: Path, settings: Mapping[str, Any], *, instead: str) -> Iterator[None]:
    """Hold `folder`, which is created if it is missing, with `settings` recorded in it. Raises DirectoryBusyError if
    another process works there; `instead` says what to do then, besides waiting."""
    with DirectoryLock(make_folder(folder, private=True), LOCK_FILE, instead):
        # Only once the folder is held: who is refused must not put its settings into another's work.
        if recorded_settings(folder) != settings:
            write_json(folder / SETTINGS_FILE, dict(settings))
        yield


def recorded_settings(folder: Path) -> dict[str, Any] | None:
    """The settings that the work in `folder` was last started with; None if none are recorded."""
    return try_read_json(folder / SETTINGS_FILE)


def is_untouched(folder: Path) -> bool:
    """Whether the work in `folder` was begun and recorded nothing: a service was missing, say."""
    names = {child.name for child in folder.iterdir()}
    return SETTINGS_FILE in names and names <= {SETTINGS_FILE, LOCK_FILE}


def find_unfinished(
    folders: Iterable[Path], settings: Mapping[str, Any], is_finished: Callable[[Path], bool]
) -> Path | None:
    """The folder of the newest work that was started with `settings`, is not finished, and not under way now."""
    started = [(file.stat().st_mtime_ns, folder) for folder in folders if (file := folder / SETTINGS_FILE).is_file()]
    for _, folder in sorted(started, reverse=True):
        is_same = recorded_settings(folder) == settings
        # Asked last, and without taking the lock: the process that works there must not find it taken.
        if is_same and not is_finished(folder) and held_by(folder, LOCK_FILE) is None:
            return folder
    return None
