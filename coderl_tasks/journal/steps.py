"""The journal of a step, and of an evaluation: what is recorded is done, and is never done again.

    steps/NNNNNN/
    problems.json       which problems, with first_completions how many completions of each, and of how many groups
                        these are final; where it is missing the settings decide
    groups/NN.parquet   one group, or its first completions, as it arrived; gone once the step is sampled
    sampled.parquet     all groups (SAMPLED_SCHEMA)
    lost.json           tokens of groups that came without log-probabilities, and were sampled again; seldom there
    scored.parquet      with verdicts, rewards and advantages (ROLLOUT_SCHEMA)
    trainer_logprobs.parquet  the trainer's log-probabilities of the tokens that the update was made on (TRAINER_SCHEMA)
    commit.json         the update was applied: metrics, the optimizer's settings, where the new weights are

    evals/NAME/
    groups/NN.parquet   as of a step
    rollouts.parquet    graded (ROLLOUT_SCHEMA)
    summary.json        the evaluation is done

    index/
    000063.parquet      the rollouts of steps 0 to 63 (INDEX_SCHEMA)
    step-000064.parquet those of step 64, until there is a file of its 64

Reading a phase is the way to ask whether it is done: None means do it. A damaged file is set aside and reads as None.

The index has what queries ask of rollouts, without tokens and texts, in files of many steps each: opening thousands of
files takes longer than reading what a query asks. A step that it lacks, after a kill, is read from the step.
"""

import logging
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

import polars as pl

from coderl_tasks.journal import atomic
from coderl_tasks.policy.rollout import REQUIRED_COLUMNS, ROLLOUT_SCHEMA, SAMPLED_SCHEMA, TRAINER_SCHEMA

logger = logging.getLogger(__name__)

Phase = Literal["sampled", "scored", "commit"]
RolloutPhase = Literal["sampled", "scored"]
Content = TypeVar("Content")
TOKENS_PER_ROW_GROUP = 2**21  # of completions, encoded at a time: some 25 MB with texts and log-probabilities

PHASE_FILES: dict[Phase, str] = {"sampled": "sampled.parquet", "scored": "scored.parquet", "commit": "commit.json"}
PROBLEMS_FILE, TRAINER_FILE = "problems.json", "trainer_logprobs.parquet"
_SCHEMAS: dict[RolloutPhase, Mapping[str, pl.DataType]] = {"sampled": SAMPLED_SCHEMA, "scored": ROLLOUT_SCHEMA}
TIME_LIMIT_KEY = "timeout_s"  # of a fingerprint
FINGERPRINT_FILE = "request.json"  # says what the sampled groups, or the rollouts, in its folder are of
BASELINE, FINAL = "baseline", "final"  # the evaluations before training and at its end, by name
STEPS_PER_FILE = 64
LENGTHS = {"n_prompt_tokens": "prompt_tokens", "n_completion_tokens": "completion_tokens", "n_turns": "turns"}
"""Columns of the index that count another one's tokens or turns."""
LEFT_OUT = (
    *LENGTHS.values(), "logprobs", "base_logprobs", "completion", "code", "reward_error", "failed_output", "reason",
    "test_seconds",
)  # fmt: skip
INDEX_SCHEMA: dict[str, pl.DataType] = {
    **{name: dtype for name, dtype in ROLLOUT_SCHEMA.items() if name not in LEFT_OUT},
    **dict.fromkeys(LENGTHS, pl.Int64()),
}
_LENGTHS = {name: pl.col(tokens).list.len() for name, tokens in LENGTHS.items()}
_COLUMNS = [_LENGTHS.get(name, pl.col(name)).cast(dtype).alias(name) for name, dtype in INDEX_SCHEMA.items()]
"""The columns of the index, from scored rollouts."""
_READ = {name: dtype for name, dtype in ROLLOUT_SCHEMA.items() if name in INDEX_SCHEMA or name in LENGTHS.values()}


@dataclass(frozen=True, slots=True)
class Commit:
    """The record of an applied update. With it, and the scored rollouts, the update can be replayed bit for bit.

    `metrics` is the step's row of metrics.jsonl; `adam` the parameters of the optimizer step; `state_path` and
    `sampler_path` what was saved after it, None if nothing was; `method` is `UpdateMethod.record`; `updates` has a row
    per optimizer step where there were several; `acts` are those of steer=act (`training.run.Act`); `outcomes` are per
    group, for selection=adaptive (`policy.selection.Outcome`)."""

    step: int
    metrics: dict[str, Any]
    adam: dict[str, float] = field(default_factory=dict)
    state_path: str | None = None
    sampler_path: str | None = None
    method: dict[str, Any] = field(default_factory=dict)
    updates: list[dict[str, Any]] = field(default_factory=list)
    acts: list[dict[str, Any]] = field(default_factory=list)
    outcomes: list[tuple[str, float, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepProblems:
    """What a step is sampled on, in group order: problems, the completions of each (None: as the settings say), and how
    many groups, the first ones, have their final number (None: a caller chose the problems)."""

    ids: list[str]
    sizes: list[int] | None = None
    decided: int | None = None


def step_name(step: int) -> str:
    """Name of the checkpoint and of the evaluation after `step`."""
    return f"step-{step:06d}"


def same_samples(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two fingerprints are of the same samples. Another time limit of the judge only decides grades; in several
    turns it decides replies too."""
    if not one.keys().isdisjoint(("max_turns", "max_tool_calls")):
        return one == other
    return {**one, TIME_LIMIT_KEY: None} == {**other, TIME_LIMIT_KEY: None}


@dataclass(frozen=True, slots=True)
class GroupFiles:
    """A folder of groups, one file per group, named by its index: those of a step, an evaluation or a shard."""

    folder: Path

    def write(self, index: int, frame: pl.DataFrame) -> None:
        """Record group `index`."""
        atomic.make_folder(self.folder)
        atomic.write_parquet(self.folder / f"{index:02d}.parquet", frame)

    def read(self) -> dict[int, pl.DataFrame]:
        """The recorded groups by index, in order. Damaged ones are set aside and missing here."""
        paths = {index: self.folder / f"{index:02d}.parquet" for index in sorted(self.indices())}
        frames = ((index, read_frame(path, SAMPLED_SCHEMA)) for index, path in paths.items())
        return {index: frame for index, frame in frames if frame is not None}

    def indices(self) -> set[int]:
        """Which groups are recorded, damaged or not."""
        return {int(path.stem) for path in self.folder.glob("*.parquet") if re.fullmatch(r"\d+", path.stem)}

    def discard(self, index: int) -> None:
        """Delete group `index`, which is to be sampled again. No error if it is not there."""
        # Not synced: a group that a power cut brings back is looked at again, and discarded again.
        (self.folder / f"{index:02d}.parquet").unlink(missing_ok=True)

    def begin(self, request: Mapping[str, Any]) -> None:
        """Empty the folder, for groups of the fingerprint `request`."""
        # In this order: a crash in between must not leave a fingerprint beside groups that are not its own.
        self.remove()
        atomic.write_json(atomic.make_folder(self.folder) / FINGERPRINT_FILE, dict(request))

    def remove(self) -> None:
        """Delete the folder: what it held is recorded elsewhere."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
            atomic.sync_folder(self.folder.parent)


class StepJournal:
    """The phases of one step of the run in the folder `run`."""

    def __init__(self, run: Path, step: int) -> None:
        self.folder = run / "steps" / f"{step:06d}"
        self.step = step
        self.groups = GroupFiles(self.folder / "groups")
        self.files: dict[Phase, Path] = {phase: self.folder / name for phase, name in PHASE_FILES.items()}
        self.trainer_logprobs = self.folder / TRAINER_FILE
        """Read by nothing that trains: for whoever looks at the update."""

    def has(self, phase: Phase) -> bool:
        """Whether the file of `phase` exists; reading it tells whether it is good."""
        return self.files[phase].is_file()

    def write_problems(
        self, problem_ids: Sequence[str], sizes: Sequence[int] | None = None, decided: int | None = None
    ) -> StepProblems:
        """Record, and return, what the step is sampled on, before what the settings do not decide is sampled."""
        problems = StepProblems(list(problem_ids), None if sizes is None else list(sizes), decided)
        values: dict[str, Any] = {"problem_ids": problems.ids, "completions": problems.sizes, "decided": decided}
        known = {key: value for key, value in values.items() if value is not None}
        atomic.write_json(atomic.make_folder(self.folder) / PROBLEMS_FILE, known)
        return problems

    def read_problems(self) -> StepProblems | None:
        """What is recorded that the step is sampled on, None where nothing is. DamagedFileError: what was sampled of
        the step then belongs to nothing."""
        path = self.folder / PROBLEMS_FILE
        if not path.is_file():
            return None
        values = atomic.read_json(path)
        return StepProblems(values["problem_ids"], values.get("completions"), values.get("decided"))

    def write(self, phase: RolloutPhase, frame: pl.DataFrame) -> None:
        """End `phase` with its rollouts (SAMPLED_SCHEMA or ROLLOUT_SCHEMA)."""
        atomic.make_folder(self.folder)
        write_rollouts(self.files[phase], frame)
        if phase == "sampled":
            # In this order: a crash in between leaves both, and the next start deletes the groups.
            self.groups.remove()

    def read(self, phase: RolloutPhase) -> pl.DataFrame | None:
        """The rollouts that `phase` ended with, None if it has to be done (again)."""
        return read_frame(self.files[phase], _SCHEMAS[phase])

    def write_commit(self, commit: Commit, trainer_logprobs: pl.DataFrame | None = None) -> None:
        """Say that the step's update is applied, and durable as far as `commit.state_path` says. `trainer_logprobs`
        (TRAINER_SCHEMA without `step`) is what it was made on."""
        if commit.step != self.step:
            raise ValueError(f"commit of step {commit.step} in the journal of step {self.step}")
        values = asdict(commit)
        # Left out where there is nothing to say, as of a plain update.
        plain = [name for name in ("method", "updates", "acts", "outcomes") if not values[name]]
        atomic.make_folder(self.folder)
        if trainer_logprobs is not None:  # before the commit: after it nothing of the step is done again
            rows = trainer_logprobs.with_columns(step=pl.lit(self.step, dtype=TRAINER_SCHEMA["step"]))
            atomic.write_parquet(self.trainer_logprobs, rows.select(*TRAINER_SCHEMA))
        atomic.write_json(self.files["commit"], {key: value for key, value in values.items() if key not in plain})

    def read_commit(self) -> Commit | None:
        """The commit of the step, None if its update has to be done (again)."""

        def read(path: Path) -> Commit:
            values = atomic.read_json(path)
            if values.get("step") != self.step or not isinstance(values.get("metrics"), dict):
                raise atomic.DamagedFileError(path, f"it does not commit step {self.step}")
            values["outcomes"] = [tuple(row) for row in values.get("outcomes", ())]
            return Commit(**values)

        return _read_good(self.files["commit"], read)


def _read_good(path: Path, read: Callable[[Path], Content]) -> Content | None:
    """What `read` makes of the file at `path`; None if it is missing, or was damaged and is now set aside."""
    if not path.is_file():
        return None
    try:
        return read(path)
    except atomic.DamagedFileError as error:
        logger.warning("%s; set aside as %s", error, atomic.set_aside(path).name)
    return None


def write_rollouts(path: Path, rollouts: pl.DataFrame) -> None:
    """Put sampled or scored `rollouts` at `path`, those of many tokens in row groups."""
    # By their tokens alone: what else tells a frame's size depends on how it came to be.
    tokens = int(rollouts["completion_tokens"].list.len().sum())
    rows = max(1, TOKENS_PER_ROW_GROUP * rollouts.height // tokens) if tokens > TOKENS_PER_ROW_GROUP else None
    atomic.write_parquet(path, rollouts, rows)


def read_frame(path: Path, schema: Mapping[str, pl.DataType], *, others: bool = True) -> pl.DataFrame | None:
    """The rollouts at `path`, None if they are missing or were damaged and are now set aside. Columns that are newer
    than the file are null. Without `others` only the columns of `schema` are read."""
    return _read_good(path, partial(atomic.read_parquet, schema=schema, others=others, required=REQUIRED_COLUMNS))


class EvalJournal:
    """One evaluation, in `folder`. It is done once its summary is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.groups = GroupFiles(folder / "groups")

    @property
    def name(self) -> str:
        return self.folder.name

    def write(self, rollouts: pl.DataFrame, summary: dict[str, Any]) -> None:
        """Record the finished evaluation: `rollouts` (ROLLOUT_SCHEMA), then `summary`, which marks it as done."""
        atomic.make_folder(self.folder)
        write_rollouts(self.folder / "rollouts.parquet", rollouts)
        atomic.write_json(self.folder / "summary.json", summary)
        # Last: without a summary a restart goes on from the groups. What a crash leaves of them the next start deletes.
        self.groups.remove()

    def keep_as(self, name: str) -> None:
        """Give this finished evaluation another name, with -2, -3, ... if taken, so that one of another policy may be
        recorded in its place."""
        # Never over another one: each was sampled and graded, and a summary may name it as what it is compared with.
        names = (name if number == 1 else f"{name}-{number}" for number in count(1))
        self.folder.rename(next(path for name in names if not (path := self.folder.with_name(name)).exists()))
        atomic.sync_folder(self.folder.parent)

    def read_summary(self) -> dict[str, Any] | None:
        """The summary, None if the evaluation has to be done (again)."""
        return _read_good(self.folder / "summary.json", atomic.read_json)

    def read_rollouts(self) -> pl.DataFrame | None:
        """The graded rollouts, None if they are missing or damaged."""
        return read_frame(self.folder / "rollouts.parquet", ROLLOUT_SCHEMA)


def index_files(run: Path) -> dict[Path, range]:
    """The files of the index, in order, and the steps that each holds; no step is in two of them."""
    files = _all_files(run)
    in_many = {step for steps in files.values() if len(steps) > 1 for step in steps}
    # A kill may leave files of single steps that are in a file of many by now.
    return {file: steps for file, steps in files.items() if len(steps) > 1 or steps.start not in in_many}


def _all_files(run: Path) -> dict[Path, range]:
    """Every file of the index, those of many steps first, and the steps that each holds."""
    files = {}
    for file in sorted((run / "index").glob("*.parquet")):
        number = file.stem.removeprefix("step-")
        if number.isdecimal():
            n_steps = STEPS_PER_FILE if number == file.stem else 1
            files[file] = range(int(number) + 1 - n_steps, int(number) + 1)
    return files


def scored_files(run: Path, indexed: Iterable[range] = ()) -> list[Path]:
    """scored.parquet of each step that has one, in order, without the steps that are `indexed`."""
    covered = {step for steps in indexed for step in steps}
    steps = sorted(step for step in (run / "steps").glob("*") if step.name.isdecimal())
    files = (step / "scored.parquet" for step in steps if int(step.name) not in covered)
    return [file for file in files if file.is_file()]


def rollout_files(run: Path) -> list[Path]:
    """The files with all scored rollouts of a run: those of its index, then those of the steps that it lacks."""
    indexed = index_files(run)
    return [*indexed, *scored_files(run, indexed.values())]


def index_step(run: Path, step: int, scored: pl.DataFrame) -> None:
    """Adds the rollouts `scored` (ROLLOUT_SCHEMA) of the committed `step` to the run's index: first as a file of its
    own; once STEPS_PER_FILE steps in a row are committed, one shared file replaces theirs."""
    folder = atomic.make_folder(run / "index")
    atomic.write_parquet(folder / f"{step_name(step)}.parquet", scored.select(_COLUMNS))
    # The last step of the newest full block of STEPS_PER_FILE steps, which names its file; -1 before there is one.
    last = (step + 1) // STEPS_PER_FILE * STEPS_PER_FILE - 1
    shared_file = folder / f"{last:06d}.parquet"
    if last < 0 or shared_file.is_file():
        return
    single_files = {
        number: folder / f"{step_name(number)}.parquet" for number in range(last + 1 - STEPS_PER_FILE, last + 1)
    }
    frames = [pl.DataFrame(schema=INDEX_SCHEMA)]
    for number, file in single_files.items():
        # A file that is missing, or damaged and now set aside, is made again from the step's rollouts.
        rows = read_frame(file, INDEX_SCHEMA)
        if rows is not None:
            frames.append(rows)
        # `_READ`: the columns of the index, and the token lists, which are counted.
        elif (rollouts := read_frame(StepJournal(run, number).files["scored"], _READ, others=False)) is not None:
            frames.append(rollouts.select(_COLUMNS))
    atomic.write_parquet(shared_file, pl.concat(frames))
    for file in single_files.values():
        file.unlink(missing_ok=True)


def cut_index(run: Path, committed: int) -> None:
    """Delete the files of the index that hold steps from `committed` on: these are done again, perhaps otherwise."""
    for file, steps in _all_files(run).items():  # also of a step that a file of many hides
        if steps.stop > committed:
            file.unlink()
