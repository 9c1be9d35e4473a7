"""The record of one evaluation: evals/NAME/{groups/ while sampling, rollouts.parquet, summary.json}."""

import logging
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.journal.atomic import (
    DamagedFileError,
    make_folder,
    read_json,
    set_aside,
    sync_folder,
    write_json,
    write_parquet,
)
from coderl_tasks.journal.steps import GroupFiles, read_frame
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA

BASELINE, FINAL = "baseline", "final"
logger = logging.getLogger(__name__)


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
        make_folder(self.folder)
        write_parquet(self.folder / "rollouts.parquet", rollouts)
        write_json(self.folder / "summary.json", summary)
        # Last: without a summary a restart goes on from the groups. What a crash leaves of them the next start deletes.
        self.groups.remove()

    def keep_as(self, name: str) -> None:
        """Give this finished evaluation another name, with -2, -3, ... if taken, so that one of another policy may be
        recorded in its place."""
        names = (name if number == 1 else f"{name}-{number}" for number in count(1))
        self.folder.rename(next(path for name in names if not (path := self.folder.with_name(name)).exists()))
        sync_folder(self.folder.parent)

    def read_summary(self) -> dict[str, Any] | None:
        """The summary, None if the evaluation has to be done (again)."""
        path = self.folder / "summary.json"
        if not path.is_file():
            return None
        try:
            return read_json(path)
        except DamagedFileError as error:
            logger.warning("%s; set aside as %s", error, set_aside(path).name)
            return None

    def read_rollouts(self) -> pl.DataFrame | None:
        """The graded rollouts, None if they are missing or damaged."""
        return read_frame(self.folder / "rollouts.parquet", ROLLOUT_SCHEMA)
