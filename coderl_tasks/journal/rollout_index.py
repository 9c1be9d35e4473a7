"""The index of a run's rollouts: what queries ask of them, without tokens and texts, in files of many steps each.

    index/000063.parquet        the rollouts of steps 0 to 63 (INDEX_SCHEMA)
    index/step-000064.parquet   those of step 64, until there is a file of its 64

A million rollouts are some thousand files of steps, and to open each takes longer than to read what a query asks of it;
of long completions to count the tokens takes as long as to read them all. A step adds its own rows, which it has in
memory. What is not in the index, of a step after whose commit a kill came, is read from the steps.
"""

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from coderl_tasks.journal.atomic import make_folder, write_parquet
from coderl_tasks.journal.steps import read_frame
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA

STEPS_PER_FILE = 64
STEP = "step-"  # what the name of a file of a single step begins with
LENGTHS = {"n_prompt_tokens": "prompt_tokens", "n_completion_tokens": "completion_tokens"}
"""Columns of the index that count another one's tokens."""
LEFT_OUT = (
    *LENGTHS.values(), "logprobs", "base_logprobs", "completion", "code", "reward_error", "failed_output", "reason",
)  # fmt: skip
INDEX_SCHEMA: dict[str, pl.DataType] = {
    **{name: dtype for name, dtype in ROLLOUT_SCHEMA.items() if name not in LEFT_OUT},
    **dict.fromkeys(LENGTHS, pl.Int64()),
}
_READ = {name: dtype for name, dtype in ROLLOUT_SCHEMA.items() if name in INDEX_SCHEMA or name in LENGTHS.values()}


def index_files(run: Path) -> dict[Path, range]:
    """The files of the index, in order, and the steps that each holds; no step is in two of them."""
    found = _all_files(run)
    many = {steps.stop for steps in found.values() if len(steps) > 1}
    # A kill may leave those of steps that are in a file of many by now.
    return {file: steps for file, steps in found.items() if len(steps) > 1 or _last(steps.start) + 1 not in many}


def _all_files(run: Path) -> dict[Path, range]:
    """Every file of the index, those of many steps first, and the steps that each holds."""
    found = {}
    for file in sorted((run / "index").glob("*.parquet")):
        number = file.stem.removeprefix(STEP)
        if number.isdecimal():
            n_steps = STEPS_PER_FILE if number == file.stem else 1
            found[file] = range(int(number) + 1 - n_steps, int(number) + 1)
    return found


def scored_files(run: Path, indexed: Iterable[range] = ()) -> list[Path]:
    """scored.parquet of each step that has one, in order, without the steps that are `indexed`."""
    covered = {step for steps in indexed for step in steps}
    steps = sorted(step for step in (run / "steps").glob("*") if step.name.isdecimal())
    files = (step / "scored.parquet" for step in steps if int(step.name) not in covered)
    return [file for file in files if file.is_file()]


def index_step(run: Path, step: int, scored: pl.DataFrame) -> None:
    """Add the rollouts of `step`, which is committed as all before it are. Once the steps of a file of many are
    complete, that is written in place of theirs."""
    folder = make_folder(run / "index")
    write_parquet(folder / f"{STEP}{step:06d}.parquet", scored.select(_columns()))
    last = (step + 1) // STEPS_PER_FILE * STEPS_PER_FILE - 1
    if last < 0 or _many(run, last).is_file():
        return
    steps = range(last + 1 - STEPS_PER_FILE, last + 1)
    frames = [frame for frame in (_read_step(run, one) for one in steps) if frame is not None]
    write_parquet(_many(run, last), pl.concat([pl.DataFrame(schema=INDEX_SCHEMA), *frames]))
    for one in steps:
        (folder / f"{STEP}{one:06d}.parquet").unlink(missing_ok=True)


def _read_step(run: Path, step: int) -> pl.DataFrame | None:
    """The rows of a step, from its own file of the index or else from its rollouts; a damaged file is set aside."""
    rows = read_frame(run / "index" / f"{STEP}{step:06d}.parquet", INDEX_SCHEMA)
    if rows is not None:
        return rows
    # Tokens for their number alone.
    scored = read_frame(run / "steps" / f"{step:06d}" / "scored.parquet", _READ, others=False)
    return None if scored is None else scored.select(_columns())


def _last(step: int) -> int:
    """The last step of the file of many that has `step`."""
    return step // STEPS_PER_FILE * STEPS_PER_FILE + STEPS_PER_FILE - 1


def _many(run: Path, last: int) -> Path:
    return run / "index" / f"{last:06d}.parquet"


def _columns() -> list[pl.Expr]:
    lengths = {name: pl.col(tokens).list.len() for name, tokens in LENGTHS.items()}
    return [lengths.get(name, pl.col(name)).cast(dtype).alias(name) for name, dtype in INDEX_SCHEMA.items()]


def cut_index(run: Path, committed: int) -> None:
    """Delete the files of the index that hold steps from `committed` on: these are done again, perhaps otherwise."""
    for file, steps in _all_files(run).items():  # also of a step that a file of many hides
        if steps.stop > committed:
            file.unlink()
