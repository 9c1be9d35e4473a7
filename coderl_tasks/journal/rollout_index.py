"""The index of a run's rollouts: what queries ask of them, without tokens and texts, in files of many steps each.

    index/000063.parquet    the rollouts of steps 0 to 63 (INDEX_SCHEMA)

A million rollouts are some thousand files of steps, and to open each takes longer than to read what a query asks of it.
What is not in the index yet, the newest steps and all of a run that an earlier version ended, is read from the steps.
"""

from collections.abc import Collection
from pathlib import Path

import polars as pl

from coderl_tasks.journal.atomic import make_folder, write_parquet
from coderl_tasks.journal.steps import read_frame
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA

STEPS_PER_FILE = 64
LENGTHS = {"n_prompt_tokens": "prompt_tokens", "n_completion_tokens": "completion_tokens"}
"""Columns of the index that count another one's tokens."""
LEFT_OUT = (*LENGTHS.values(), "logprobs", "base_logprobs", "completion", "code", "reward_error")
INDEX_SCHEMA: dict[str, pl.DataType] = {
    **{name: dtype for name, dtype in ROLLOUT_SCHEMA.items() if name not in LEFT_OUT},
    **dict.fromkeys(LENGTHS, pl.Int64()),
}
_READ = {name: dtype for name, dtype in ROLLOUT_SCHEMA.items() if name in INDEX_SCHEMA or name in LENGTHS.values()}


def index_files(run: Path) -> dict[int, Path]:
    """The files of the index by the last step that each holds, in order."""
    return {int(file.stem): file for file in sorted((run / "index").glob("*.parquet")) if file.stem.isdecimal()}


def scored_files(run: Path, indexed: Collection[int] = ()) -> list[Path]:
    """scored.parquet of each step that has one, in order, without those in the files `indexed` of the index."""
    covered = {last // STEPS_PER_FILE for last in indexed}
    steps = sorted(step for step in (run / "steps").glob("*") if step.name.isdecimal())
    files = (step / "scored.parquet" for step in steps if int(step.name) // STEPS_PER_FILE not in covered)
    return [file for file in files if file.is_file()]


def extend_index(run: Path, committed: int) -> None:
    """Write the first file that the index of a run with `committed` steps, 0 to committed - 1, lacks, if it lacks one.

    One at a time: a long run of an earlier version that goes on is not held up for minutes.
    """
    there = index_files(run)
    lacking = (last for last in range(STEPS_PER_FILE - 1, committed, STEPS_PER_FILE) if last not in there)
    last = next(lacking, None)
    if last is None:
        return
    steps = range(last + 1 - STEPS_PER_FILE, last + 1)
    # Read as the journal reads them: a damaged file is set aside, and stops nobody. One after the other, and tokens for
    # their number alone: of 64 steps they can be many times what the run otherwise holds.
    files = (run / "steps" / f"{step:06d}" / "scored.parquet" for step in steps)
    read = (read_frame(file, _READ, others=False) for file in files)
    frames = [frame.select(_columns()) for frame in read if frame is not None]
    rows = pl.concat([pl.DataFrame(schema=INDEX_SCHEMA), *frames])
    write_parquet(make_folder(run / "index") / f"{last:06d}.parquet", rows)


def _columns() -> list[pl.Expr]:
    lengths = {name: pl.col(tokens).list.len() for name, tokens in LENGTHS.items()}
    return [lengths.get(name, pl.col(name)).cast(dtype).alias(name) for name, dtype in INDEX_SCHEMA.items()]


def cut_index(run: Path, committed: int) -> None:
    """Delete the files of the index that hold steps from `committed` on: these are done again, perhaps otherwise."""
    for last, file in index_files(run).items():
        if last >= committed:
            file.unlink()
