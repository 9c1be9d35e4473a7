"""The run directory: the journal of a run, and everything people later look at.

    config.json  test_order.json  prompts.json  logs.log  metrics.jsonl  checkpoints.jsonl  run.lock
    steps/000000/{groups/NN.parquet while sampling, sampled.parquet, scored.parquet, commit.json}
    index/000063.parquet
    evals/<name>/{rollouts.parquet, summary.json}
    report.html

One process at a time may write: `RunDirectory.open` takes a lock that ends with the process. Reading needs none.

metrics.jsonl has one row per step, and one row per evaluation (which has `eval/` keys and no `mean_reward`). It is
drawn from the commits: `reconcile` puts it in order on every start.
"""

import errno
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self

from coderl_tasks.errors import ConfigError
from coderl_tasks.journal import atomic
from coderl_tasks.journal.checkpoints import CHECKPOINTS_FILE, read_checkpoints, set_aside_checkpoints
from coderl_tasks.journal.directory_lock import DirectoryLock
from coderl_tasks.journal.recorded_json import (
    CONFIG_FILE,
    FINDINGS,
    FORMAT,
    ConfigChange,
    check_resume,
    config_changes,
    recorded_config,
)
from coderl_tasks.journal.steps import FINAL, PROBLEMS_FILE, Commit, EvalJournal, GroupFiles, StepJournal, cut_index
from coderl_tasks.paths import PRIVATE
from coderl_tasks.settings.train_settings import MOST_STEPS_OFF_POLICY

DEFAULT_ROOT = "~/code-rl-logs"
STOP: Literal["max_steps"] = "max_steps"  # the setting that an act changes which ends a run
_EARLY = {CONFIG_FILE, "test_order.json", "prompts.json", "logs.log", "metrics.jsonl", "checkpoints.jsonl", "run.lock"}
"""Files that a start may write before anything is sampled."""
_PAID_FOR = ("*.parquet*", "commit.json*", "summary.json*")  # samples or updates, also damaged ones that were set aside
_LARGEST = 2**63  # what a number is below, either way: beyond it none fits into a column of integers


class MetricsLog:
    """The metrics file of a run, for the one process that holds the directory. Appending does not read the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = {row_identity(row) for row in atomic.read_rows(path)}

    def append(self, row: atomic.Row) -> None:
        """Add `row` durably, in its place. A row of the same step and kind is replaced. It needs `step` (an int)."""
        identity = row_identity(row)
        # The usual row is the last one and costs one append. A late or a repeated one costs rewriting the sorted file.
        if all(known < identity for known in self._known):
            atomic.append_row(self.path, row)
            self._known.add(identity)
        else:
            others = [old for old in atomic.read_rows(self.path) if row_identity(old) != identity]
            self._replace(sorted([*others, row], key=row_identity))

    def reconcile(self, committed: Iterable[atomic.Row]) -> None:
        """Make the step rows exactly those of `committed`, in order, and keep the evaluations up to the last of them:
        later ones come back when their step is repeated."""
        atomic.repair(self.path)
        rows = atomic.read_rows(self.path)
        steps = sorted(committed, key=lambda row: int(row["step"]))
        last = int(steps[-1]["step"]) if steps else -1
        evals = {row_identity(row): row for row in rows if is_eval_row(row) and int(row["step"]) <= last}
        wanted = sorted([*steps, *evals.values()], key=row_identity)
        if wanted != rows:
            self._replace(wanted)

    def _replace(self, rows: list[atomic.Row]) -> None:
        atomic.write_rows(self.path, rows)
        self._known = {row_identity(row) for row in rows}


def metrics_rows(path: Path) -> list[atomic.Row]:
    """The rows of a metrics file, none if it is missing. Raises DamagedFileError for a row whose step is no whole
    number, or with a value that is no number of at most 2**63, nor a text where a row may have one."""
    rows = atomic.read_rows(path)
    for number, row in enumerate(rows, 1):
        if type(row.get("step")) is not int:  # JSON's true is an int to isinstance
            raise atomic.DamagedFileError(path, f"row {number} has no step")
        is_eval = is_eval_row(row)
        for name, value in row.items():
            # NaN is not below anything.
            is_number = isinstance(value, int | float) and abs(value) < _LARGEST
            if not is_number and value is not None and not (isinstance(value, str) and (is_eval or name == "act")):
                raise atomic.DamagedFileError(path, f"row {number}: {name} is no number that a run writes")
    return rows


def is_eval_row(row: atomic.Row) -> bool:
    """Whether `row` is an evaluation's and not a step's."""
    return "mean_reward" not in row and any(key.startswith("eval/") for key in row)


def row_identity(row: atomic.Row) -> tuple[int, bool, str]:
    """What tells a row from the others: step, whether it is an evaluation's, and which. Sorts in the file's order."""
    return int(row["step"]), is_eval_row(row), str(row.get("eval/name", ""))


class RunDirectory(AbstractContextManager["RunDirectory"]):
    """A run's directory, held by this process until `close` (or the end of a `with` block). `config` is what
    config.json says: the settings, and FINDINGS. `changes` are the settings that differ from the recorded ones;
    `resumed` says whether there were any; `finished` that nothing was left to do at the start."""

    def __init__(
        self, path: Path, config: dict[str, Any], lock: DirectoryLock, changes: list[ConfigChange], resumed: bool
    ):
        self.path, self.config, self.changes = path, config, changes
        self.resumed, self.finished = resumed, False
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
        """Opens the run at `path` (None: a new default folder) and locks it: creates it with `config`, or resumes it.

        Resuming repairs what a crash left. It records `config` if settings were changed, unless the run `is_finished`.
        Raises ConfigError if the directory is in use or holds other files, or if the run has sampled and a changed
        setting may not change on resume."""
        folder = new_run_path() if path is None else Path(path).expanduser().resolve()
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"log_path={folder} is a file")
        config_path = folder / CONFIG_FILE
        # Before taking the lock, which would leave its file in somebody else's folder. An interrupted start may have
        # left a lock file and a log without a config.json.
        names = [child.name for child in folder.iterdir()] if folder.is_dir() else []
        others = [name for name in names if not name.startswith(".") and name not in ("run.lock", "logs.log")]
        if others and not config_path.exists():
            raise ConfigError(f"log_path={folder} holds other files and no run: choose an empty or a new directory")
        _make_run_folder(folder)
        lock = DirectoryLock(folder)
        try:
            resumed = config_path.exists()
            recorded = recorded_config(folder) or {}
            # Only under the lock: a file that another process is still writing looks like a leftover.
            atomic.remove_leftovers(folder)
            # Keep what earlier starts found out by probing the services: `config` lacks it, and a probe costs.
            findings = {key: recorded[key] for key in FINDINGS if key in recorded}
            changes = allowed_changes(folder, recorded, config) if resumed else []
            decides_anew = bool(changes) and is_unstarted(folder)
            for name in ("metrics.jsonl", CHECKPOINTS_FILE):
                atomic.recover(folder / name)  # before `cls`, which reads the rows
            committed = committed_steps(folder)
            last = max((int(step.name) for step in folder.glob("steps/*") if step.name.isdecimal()), default=-1)
            # Users remove the folders of the last steps to train these again: their checkpoints must not count. A step
            # that is there without its commit is no such case: its update is repeated as it was.
            if last < committed:
                set_aside_checkpoints(folder, committed)
            if decides_anew:
                _discard_decisions(folder)
            complete = {"format": FORMAT, **config, **findings}
            run = cls(folder, complete, lock, changes, resumed)
            run.finished = resumed and is_finished(run)
            # After every check that may refuse this start: a refused start must not change the recorded settings.
            if not resumed or (changes and not run.finished):
                atomic.write_json(config_path, run.config)
            # A crash between recording all groups in one file and deleting the file of each leaves both.
            for kind, recorded_as in (("steps", "sampled.parquet"), ("evals", "summary.json")):
                for groups in folder.glob(f"{kind}/*/groups"):
                    if (groups.parent / recorded_as).is_file():
                        GroupFiles(groups).remove()
            run.reconcile_metrics()
            cut_index(folder, run.next_step)  # steps without a commit are done again, so their rollouts may change
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
        atomic.write_json(self.path / CONFIG_FILE, self.config)

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

    def close(self) -> None:
        self._lock.release()

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
    if summary is None or summary.get("step") != last:
        return False
    return any(row_identity(row) == (last, True, FINAL) for row in atomic.read_rows(path / "metrics.jsonl"))


def was_stopped(path: Path, last: int) -> bool:
    """Whether an act ended the run at `path` with its last committed step. DataError for a damaged commit."""
    # It takes effect after the step that it was decided with, or later by the steps that may have been sampled ahead.
    commits = (
        StepJournal(path, step).files["commit"] for step in range(max(0, last - MOST_STEPS_OFF_POLICY), last + 1)
    )
    acts = (act for file in commits for act in atomic.read_json(file).get("acts", ()))
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
    if not names <= {*_EARLY, "report.html", "steps", "evals", "wandb"} or not (names or is_given_name(path.name)):
        return False
    # Without one of its own marks a folder with such names in it may be anybody's.
    if names and not names & {"run.lock", "config.json"}:
        return False
    metrics = path / "metrics.jsonl"
    # Damaged ones too: people may yet get out of them what was paid for.
    paid_for = (file for pattern in _PAID_FOR for file in path.rglob(pattern))
    return next(paid_for, None) is None and not (metrics.is_file() and metrics.stat().st_size)


def _discard_decisions(path: Path) -> None:
    """Delete what a start that sampled nothing has decided by its settings: a start with others decides it anew."""
    # The order of tests, as learned from its pool; the state before any step, of its model, rank and seed; and the
    # problems of the first step. Other files of that step stay: lost.json counts tokens that were paid for.
    names = ("test_order.json", CHECKPOINTS_FILE, f"steps/*/{PROBLEMS_FILE}")
    for file in [file for name in names for file in path.glob(name)]:
        file.unlink()


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
        number += 1
        with suppress(FileExistsError):
            # Of two starts in one second, creating it decides which has the name.
            path.mkdir(mode=PRIVATE)
            return path


def _make_run_folder(folder: Path) -> None:
    """Create `folder`; ConfigError if this is no place for one. A full disk stays an OSError: freeing space helps."""
    try:
        atomic.make_folder(folder, private=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ConfigError(f"{folder} cannot be created ({error.strerror}): choose another log_path") from error
