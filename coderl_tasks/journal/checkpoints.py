"""checkpoints.jsonl, with the keys of the Tinker cookbook's file: name, step, dataset_offset, state_path, sampler_path.

`state_path` holds weights and optimizer moments, to go on training from; `sampler_path` holds weights to sample from. A
row is written once the service has said that the weights are saved.
"""

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coderl_tasks.errors import ConfigError
from coderl_tasks.journal.atomic import DamagedFileError, append_row, read_json, read_rows, write_rows
from coderl_tasks.settings import TrainSettings

if TYPE_CHECKING:  # the SDK takes seconds to import, and who only reads a run does not need it
    import tinker

    from coderl_tasks.policy.clients import Kind

logger = logging.getLogger(__name__)
CHECKPOINTS_FILE = "checkpoints.jsonl"
REMOVED_FILE = "checkpoints.removed.jsonl"
"""Checkpoints of steps that were removed; their weights may still be on the service."""


async def save_checkpoint_async(
    training_client: "tinker.TrainingClient",
    name: str,
    log_path: Path | str,
    loop_state: Mapping[str, Any],
    kind: "Kind" = "both",
    ttl_seconds: int | None = None,
) -> dict[str, Any]:
    """Save the current weights and record them in `log_path`; the row. `loop_state` has `step` and `dataset_offset`."""
    from coderl_tasks.policy.clients import save_weights

    paths = await save_weights(training_client, name, kind=kind, ttl_seconds=ttl_seconds)
    return record_checkpoint(log_path, name, loop_state, paths)


def save_checkpoint(
    training_client: "tinker.TrainingClient",
    name: str,
    log_path: Path | str,
    loop_state: Mapping[str, Any],
    kind: "Kind" = "both",
    ttl_seconds: int | None = None,
) -> dict[str, Any]:
    """`save_checkpoint_async` for code that is not async."""
    from coderl_tasks.policy.clients import submit_weights, tinker_errors

    with tinker_errors(f"saving checkpoint {name}"):
        pending = submit_weights(training_client, name, kind, ttl_seconds)
        paths = {key: future.result().path for key, future in pending.items()}
    return record_checkpoint(log_path, name, loop_state, paths)


def record_checkpoint(
    log_path: Path | str, name: str, loop_state: Mapping[str, Any], paths: Mapping[str, str]
) -> dict[str, Any]:
    """Append the row of a checkpoint whose weights are saved at `paths`, durably, and return it."""
    # After the save. A crash in between leaves weights that no row names; the other order would leave a row without
    # weights, from which a run could not be restored.
    row = {"name": name, **loop_state, **paths}
    append_row(Path(log_path) / CHECKPOINTS_FILE, row)
    return row


def read_checkpoints(log_path: Path | str) -> list[dict[str, Any]]:
    """All recorded checkpoints of a run, oldest first."""
    return read_rows(Path(log_path) / CHECKPOINTS_FILE)


def set_aside_checkpoints(log_path: Path, first: int) -> None:
    """Move the rows of step `first`, and of later ones, to REMOVED_FILE: these steps are trained again."""
    file, aside, rows = log_path / CHECKPOINTS_FILE, log_path / REMOVED_FILE, read_checkpoints(log_path)
    kept = [row for row in rows if row.get("step", -1) < first]
    if kept != rows:
        # In this order: after a crash in between they are in both files, and the next start moves them again.
        write_rows(aside, [*read_rows(aside), *(row for row in rows if row.get("step", -1) >= first)])
        write_rows(file, kept)
        logger.warning("%s: the checkpoints from step %d on are of removed steps: see %s", file, first, aside.name)


def get_last_checkpoint(log_path: Path | str, required_key: str = "state_path") -> dict[str, Any] | None:
    """The newest checkpoint with `required_key` (state_path to train, sampler_path to sample), None if none has."""
    rows = [row for row in read_checkpoints(log_path) if row.get(required_key)]
    return rows[-1] if rows else None


@dataclass(frozen=True, slots=True)
class ExpiringState:
    """The training state after `step`, at `path`, which the service removes at `expires`."""

    step: int
    path: str
    expires: datetime


def expiring_states(run: Path, config: Mapping[str, Any]) -> list[ExpiringState]:
    """Returns the training states of `run` that the service deletes after a time, newest first, as far as a resume can
    start from them. `config` is the run's. A step with a checkpoint is omitted: its state stays. `expires` is an
    estimate: the commit's time plus the lifetime that the service was asked for."""
    recorded = {key: config[key] for key in ("rolling_save", "max_steps_off_policy") if config.get(key) is not None}
    settings = TrainSettings().filled_from(recorded)  # an older run lacks some: the defaults
    hours, keep = settings.rolling_save.hours, settings.rolling_states
    checkpointed = {row["step"] for row in read_checkpoints(run) if row.get("state_path")}
    states: list[ExpiringState] = []
    states_seen = 0
    # Stop after the states that a run keeps: a long run has thousands of commits.
    files = (file for file in run.glob("steps/*/commit.json") if file.parent.name.isdecimal())
    for file in sorted(files, reverse=True):
        try:
            path = read_json(file).get("state_path")
        except DamagedFileError:
            continue  # the next start sets the file aside and repeats the update
        if path is not None:  # not every step saves its state
            states_seen += 1
            step, saved = int(file.parent.name), datetime.fromtimestamp(file.stat().st_mtime, UTC)
            if step not in checkpointed:
                states.append(ExpiringState(step, str(path), saved + timedelta(hours=hours)))
        if states_seen == keep:
            break
    return states


def check_log_dir(log_path: Path | str, behavior_if_exists: Literal["resume", "raise", "delete"] = "resume") -> bool:
    """Whether `log_path` holds a run to go on with. One that is there is left (`resume`), refused with a ConfigError
    (`raise`) or deleted (`delete`); a directory that is not a run's is never deleted (ConfigError)."""
    folder = Path(log_path).expanduser()
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    is_run = (folder / "config.json").is_file()
    if behavior_if_exists == "resume":
        return is_run
    if behavior_if_exists == "raise":
        raise ConfigError(f"{folder} exists: choose another log_path, or resume it")
    if behavior_if_exists != "delete":
        raise ConfigError(f"behavior_if_exists={behavior_if_exists!r}: use resume, raise or delete")
    if not is_run:
        raise ConfigError(f"{folder} is not a run directory (it has no config.json) and is not deleted")
    shutil.rmtree(folder)
    return False
