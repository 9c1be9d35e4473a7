"""The run directory: the journal of a run, and everything people later look at.

    config.json  test_order.json  prompts.json  logs.log  metrics.jsonl  checkpoints.jsonl  run.lock
    steps/000000/{groups/NN.parquet while sampling, sampled.parquet, scored.parquet, commit.json}
    index/000063.parquet
    evals/<name>/{rollouts.parquet, summary.json}
    report.html

The next start opens the directory and continues at `next_step`. One process at a time: `create` and `resume` take a
lock that ends with the process. Reading needs none.
"""

import errno
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self

import polars as pl

from coderl_tasks.errors import ConfigError
from coderl_tasks.journal.atomic import DirectoryLock, make_folder, read_json, recover, remove_leftovers, write_json
from coderl_tasks.journal.checkpoints import read_checkpoints
from coderl_tasks.journal.metrics import MetricsLog
from coderl_tasks.journal.rollout_index import cut_index, index_step
from coderl_tasks.journal.run_config import (
    CONFIG_FILE,
    FINDINGS,
    FORMAT,
    ConfigChange,
    check_resume,
    config_changes,
    recorded_config,
)
from coderl_tasks.journal.steps import FINAL, Commit, EvalJournal, GroupFiles, StepJournal
from coderl_tasks.paths import PRIVATE

DEFAULT_ROOT = "~/code-rl-logs"
STOP: Literal["max_steps"] = "max_steps"  # the setting that an act changes which ends a run
_WRITTEN_EARLY = {
    "config.json",
    "test_order.json",
    "prompts.json",
    "logs.log",
    "metrics.jsonl",
    "checkpoints.jsonl",
    "run.lock",
}
_PAID_FOR = ("*.parquet*", "commit.json*", "summary.json*")
"""Files that hold samples or updates, damaged ones that were set aside included."""


class RunDirectory:
    """A run's directory, held by this process until `close` (or the end of a `with` block). `config` is what
    config.json says: the settings, and FINDINGS. `changes` are the settings that differ from the recorded ones;
    `resumed` says whether there were any; `finished` that nothing was left to do at the start."""

    def __init__(
        self, path: Path, config: dict[str, Any], lock: DirectoryLock, *, changes: list[ConfigChange], resumed: bool
    ):
        self.path = path
        self.config = config
        self.changes = changes
        self.resumed = resumed
        self.finished = False
        self.metrics = MetricsLog(path / "metrics.jsonl")
        self._lock = lock
        self._commits: list[Commit] = []

    @classmethod
    def open(
        cls,
        path: Path | str | None,
        config: Mapping[str, Any],
        *,
        is_finished: Callable[[Self], bool] = lambda run: False,
    ) -> Self:
        """Opens the run at `path` (None: a new default folder): creates it with `config`, or resumes it.

        Resuming repairs what a crash left (temporary files, torn last lines, missing metrics rows). It records the new
        configuration unless the run `is_finished`. Raises ConfigError if the directory is in use or holds other files,
        or if the run has sampled and a changed setting may not change on resume.
        """
        folder = new_run_path() if path is None else Path(path).expanduser().resolve()
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"log_path={folder} is a file")
        config_path = folder / CONFIG_FILE
        # Before taking the lock: it would leave its file in somebody else's folder.
        if folder.is_dir() and not config_path.exists() and any(map(_is_visible, folder.iterdir())):
            raise ConfigError(f"log_path={folder} holds other files and no run: choose an empty or a new directory")
        _make_run_folder(folder)
        lock = DirectoryLock(folder)
        try:
            resumed = config_path.exists()
            recorded = recorded_config(folder) or {}
            # Only under the lock: a file that another process is still writing looks like a leftover.
            remove_leftovers(folder)
            # Keep recorded findings: the new settings lack them, and finding them again costs a probe.
            findings = {key: recorded[key] for key in FINDINGS if key in recorded}
            changes = allowed_changes(folder, recorded, config) if resumed else []
            if changes and is_unstarted(folder):
                (folder / "test_order.json").unlink(missing_ok=True)  # it was learned from the old settings' pool
            for name in ("metrics.jsonl", "checkpoints.jsonl"):
                recover(folder / name)
            complete = {"format": FORMAT, **config, **findings}
            run = cls(folder, complete, lock, changes=changes, resumed=resumed)
            run.finished = resumed and is_finished(run)
            # After every check that may refuse this start: a refused start must not change the recorded settings.
            if not resumed or (changes and not run.finished):
                write_json(config_path, run.config)
            run._remove_recorded_groups()
            run.reconcile_metrics()
            cut_index(folder, run.next_step)
        except BaseException:
            lock.release()
            raise
        return run

    def step(self, step: int) -> StepJournal:
        """The journal of `step`, whether it has begun or not."""
        if step < 0:
            raise ValueError(f"steps count from 0, got {step}")
        return StepJournal(self.path, step)

    def evaluation(self, name: str) -> EvalJournal:
        """The record of evaluation `name` (baseline, step-000009, final, ...), whether it has begun or not."""
        return EvalJournal(self.path / "evals" / name)

    def record_finding(self, key: str, value: Any) -> None:
        """Record in config.json what this start found out, under one of FINDINGS; it outlives changed settings."""
        if key not in FINDINGS:
            raise ValueError(f"{key} is no finding: {', '.join(FINDINGS)}")
        self.config[key] = value
        write_json(self.path / CONFIG_FILE, self.config)

    def commits(self) -> list[Commit]:
        """The commits of steps 0, 1, ... up to the first step without one. Each is read once: it never changes."""
        while (commit := self.step(len(self._commits)).read_commit()) is not None:
            self._commits.append(commit)
        return list(self._commits)

    def reconcile_metrics(self) -> None:
        """Make the rows of metrics.jsonl those of the commits and of their evaluations."""
        self.metrics.reconcile(commit.metrics for commit in self.commits())

    @property
    def last_committed_step(self) -> int:
        """The last step of the unbroken line of commits, -1 if there is none."""
        return len(self.commits()) - 1

    @property
    def next_step(self) -> int:
        """The first step without a commit. Some of its phases may be done."""
        return self.last_committed_step + 1

    def index_rollouts(self, step: int, scored: pl.DataFrame) -> None:
        """Add to what queries read the rollouts of `step` (ROLLOUT_SCHEMA), once it is committed."""
        index_step(self.path, step, scored)

    def _remove_recorded_groups(self) -> None:
        """Finish deleting single groups where a crash came between recording all of them and that."""
        for kind, recorded in (("steps", "sampled.parquet"), ("evals", "summary.json")):
            for folder in self.path.glob(f"{kind}/*/groups"):
                if (folder.parent / recorded).is_file():
                    GroupFiles(folder).remove()

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def committed_steps(path: Path) -> int:
    """How many steps of the run at `path` have a commit, up to the first one without. No file is read."""
    return next(step for step in count() if not StepJournal(path, step).has("commit"))


def has_ended(path: Path, last: int, *, max_steps: int, eval_every: int, steer: str) -> bool:
    """Whether the run at `path`, whose last committed step is `last`, has all that these settings ask for."""
    if (max_steps == -1 or last < max_steps - 1) and not (steer == "act" and was_stopped(path, last)):
        return False
    # The last checkpoint is saved after the last commit: a crash between the two leaves something to do.
    if not any(row["step"] == last for row in read_checkpoints(path)):
        return False
    if eval_every == -1:
        return True
    # Its row of metrics.jsonl comes after its summary, and may be what is missing.
    summary = EvalJournal(path / "evals" / FINAL).read_summary()
    return (
        summary is not None and summary.get("step") == last and MetricsLog(path / "metrics.jsonl").has_eval(FINAL, last)
    )


def was_stopped(path: Path, last: int) -> bool:
    """Whether an act ended the run at `path` with its last committed step. DataError for a damaged commit."""
    # It takes effect after the step that it was decided with, or one later where that one may have been begun.
    commits = (StepJournal(path, step).path("commit") for step in (last, last - 1) if step >= 0)
    acts = (act for file in commits for act in read_json(file).get("acts", ()))
    return any(act["setting"] == STOP and act["from_step"] == last + 1 for act in acts)


def allowed_changes(path: Path, recorded: Mapping[str, Any], config: Mapping[str, Any]) -> list[ConfigChange]:
    """As `check_resume` for the run at `path`; where nothing was sampled yet, anything may change."""
    return config_changes(recorded, config) if is_unstarted(path) else check_resume(recorded, config)


def is_unstarted(path: Path) -> bool:
    """Whether the folder `path` holds an attempt at a run that recorded no group, step or evaluation, and nothing that
    a run does not write. An empty folder is one if runs are named so."""
    children = list(path.iterdir())
    names = {child.name for child in children}
    if any(child.is_symlink() for child in (path, *children)):  # what lies behind it is somebody's arrangement
        return False
    if not names <= {*_WRITTEN_EARLY, "report.html", "steps", "evals"} or not (names or is_given_name(path.name)):
        return False
    # Without one of its own marks a folder with such names in it may be anybody's.
    if names and not names & {"run.lock", "config.json"}:
        return False
    metrics = path / "metrics.jsonl"
    # Damaged ones too: people may yet get out of them what was paid for.
    paid_for = (file for pattern in _PAID_FOR for file in path.rglob(pattern))
    return next(paid_for, None) is None and not (metrics.is_file() and metrics.stat().st_size)


def is_given_name(name: str) -> bool:
    """Whether `name` has the form of those that runs get by themselves: of the time, or of the flow run's id."""
    return re.fullmatch(r"\d{4}_\d\d_\d\d-\d\d_\d\d_\d\d(-\d+)?|run-[0-9a-f]{8}", name) is not None


def new_run_path(root: Path | str = DEFAULT_ROOT, now: datetime | None = None) -> Path:
    """A new directory under `root`, named by the time (YYYY_MM_DD-HH_MM_SS, with -2, -3, ... if taken) and created."""
    folder = Path(root).expanduser().resolve()
    _make_run_folder(folder)
    name = f"{now or datetime.now():%Y_%m_%d-%H_%M_%S}"
    number = 1
    while True:
        path = folder / (name if number == 1 else f"{name}-{number}")
        try:
            # Of two starts in one second, creating it decides which has the name.
            path.mkdir(mode=PRIVATE)
        except FileExistsError:
            number += 1
        else:
            return path


def _make_run_folder(folder: Path) -> None:
    """Create `folder`; ConfigError if this is no place for one. A full disk stays an OSError: freeing space helps."""
    try:
        make_folder(folder, private=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ConfigError(f"{folder} cannot be created ({error.strerror}): choose another log_path") from error


def _is_visible(path: Path) -> bool:
    """Whether `path` is more than what an interrupted start or an early log leaves."""
    return not path.name.startswith(".") and path.name not in ("run.lock", "logs.log")
