"""Experiment trackers that a run's rows go to beside metrics.jsonl: Weights & Biases and trackio.

What a kill left unsent the next start sends from the file, where the tracker can say what it has. A local trackio can;
of W&B and of a trackio server nobody asks, and there what a kill caught on the way stays missing.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from coderl_tasks.errors import ConfigError
from coderl_tasks.journal.atomic import Row
from coderl_tasks.journal.run_directory import row_identity

Identity = tuple[int, bool, str]


class Tracker(ABC):
    """Takes the rows of one run, each once: a row is known by its step, its kind, and an evaluation's name."""

    def __init__(self) -> None:
        self._sent: set[Identity] = set()

    def resume(self, rows: Sequence[Row]) -> None:
        """Send what the tracker lacks of `rows`, those of metrics.jsonl at the start."""
        self._sent = self._sent_before(rows)
        for row in rows:
            self.log(row)

    def log(self, row: Row) -> None:
        """Send `row` unless it was sent. (An evaluation that is due where a run goes on is logged again.)"""
        identity = row_identity(row)
        if identity not in self._sent:
            self._send(row)
            self._sent.add(identity)

    def _sent_before(self, rows: Sequence[Row]) -> set[Identity]:
        """Which of `rows` earlier starts have sent: all, where the tracker cannot be asked."""
        return set(map(row_identity, rows))

    @abstractmethod
    def _send(self, row: Row) -> None: ...

    @abstractmethod
    def finish(self, failed: bool) -> None: ...


class WandbTracker(Tracker):
    """A Weights & Biases run."""

    def __init__(self, project: str, name: str | None, config: Mapping[str, Any], folder: Path) -> None:
        super().__init__()
        wandb = import_tracker("wandb")
        # One id per directory, so that a resumed run continues its own history and no other takes it.
        place = {"project": project, "name": name or folder.name, "dir": str(folder), "id": directory_id(folder)}
        self._run = wandb.init(**place, config=dict(config), resume="allow")
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def _send(self, row: Row) -> None:
        self._run.log(row)

    def finish(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class TrackioTracker(Tracker):
    """A trackio run: in TRACKIO_DIR, or where TRACKIO_SPACE_ID or TRACKIO_SERVER_URL say."""

    def __init__(self, project: str, name: str | None, config: Mapping[str, Any], folder: Path) -> None:
        super().__init__()
        self._trackio = import_tracker("trackio")
        # trackio resumes by name alone: two runs of one name would be written into each other.
        own = f"{name or folder.name}-{directory_id(folder)[:6]}"
        try:
            self._run = self._trackio.init(project=project, name=own, config=dict(config), resume="allow", embed=False)
        except ValueError as error:
            raise ConfigError(f"trackers.trackio={project}: {error}") from error

    def _sent_before(self, rows: Sequence[Row]) -> set[Identity]:
        from trackio.sqlite_storage import SQLiteStorage
        from trackio.utils import get_storage_mode

        if self._run.url is not None or get_storage_mode() != "sqlite":
            return super()._sent_before(rows)
        place = {"project": self._run.project, "run": self._run.name, "run_id": self._run.id}
        there = set(map(row_identity, SQLiteStorage.get_logs(**place)))
        if there <= set(map(row_identity, rows)):
            return there
        # Steps that were removed from the run directory, to be trained anew. trackio replaces no row.
        SQLiteStorage.delete_run(**place)
        return set()

    def _send(self, row: Row) -> None:
        # The step is trackio's own column, and a null would be a point of a plot.
        values = {key: value for key, value in row.items() if key != "step" and value is not None}
        self._run.log(values, step=row["step"])

    def finish(self, failed: bool) -> None:
        self._trackio.finish()  # it has no state for a run that failed


def directory_id(folder: Path) -> str:
    """16 hexadecimal digits that stand for a run directory, by its path."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]


def import_tracker(name: str) -> ModuleType:
    """The package `name` of a tracker, wandb or trackio; ConfigError with the way to install it if it is missing."""
    try:
        return __import__(name)
    except ImportError as error:
        raise ConfigError(f"{name}_project is set but {name} is not installed: pip install 'coderl[{name}]'") from error
