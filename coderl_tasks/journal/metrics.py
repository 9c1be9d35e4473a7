"""metrics.jsonl: one row per step, and one row per evaluation (which has `eval/` keys and no `mean_reward`).

The commits are the record and this file is drawn from them: a crash between a commit and its row costs nothing, because
`reconcile` puts the file in order on every start. A row is identified by step and kind, an evaluation's also by
`eval/name`.
"""

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from coderl_tasks.journal.atomic import DamagedFileError, Row, append_row, read_rows, repair, write_rows

EVAL_PREFIX = "eval/"
_LARGEST = 2**63  # what a number is below, either way: beyond it none fits into a column of integers


class MetricsLog:
    """The metrics file of a run, for the one process that holds the directory. It remembers which rows there are, so
    that appending does not read the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = {row_identity(row) for row in read_rows(path)}

    def has_eval(self, name: str, step: int) -> bool:
        """Whether there is a row of evaluation `name` after `step`."""
        return (step, True, name) in self._known

    def append(self, row: Row) -> None:
        """Add `row` durably, in its place. A row of the same step and kind is replaced. It needs `step` (an int)."""
        identity = row_identity(row)
        # The usual row is the last one and costs one append. A late or a repeated one costs rewriting the file, which
        # keeps its rows sorted.
        if all(known < identity for known in self._known):
            append_row(self.path, row)
            self._known.add(identity)
        else:
            others = [old for old in read_rows(self.path) if row_identity(old) != identity]
            self._replace(sorted([*others, row], key=row_identity))

    def reconcile(self, committed: Iterable[Row]) -> None:
        """Make the step rows exactly those of `committed`, in order, and keep the evaluations up to the last of them:
        later ones come back when their step is repeated."""
        repair(self.path)
        rows = read_rows(self.path)
        steps = sorted(committed, key=lambda row: int(row["step"]))
        last = int(steps[-1]["step"]) if steps else -1
        evals = {row_identity(row): row for row in rows if is_eval_row(row) and int(row["step"]) <= last}
        wanted = sorted([*steps, *evals.values()], key=row_identity)
        if wanted != rows:
            self._replace(wanted)

    def _replace(self, rows: list[Row]) -> None:
        write_rows(self.path, rows)
        self._known = {row_identity(row) for row in rows}

    def read(self) -> pl.DataFrame:
        """All rows as a frame, with the columns of all of them; empty if there are none."""
        return read_metrics(self.path)


def metrics_rows(path: Path) -> list[Row]:
    """The rows of a metrics file, none if it is missing. Raises DamagedFileError for a row that cannot be a run's: its
    step is no whole number, or a value is no number of at most 2**63, nor a text where a row may have one."""
    rows = read_rows(path)
    for number, row in enumerate(rows, 1):
        if type(row.get("step")) is not int:  # JSON's true is an int to isinstance
            raise DamagedFileError(path, f"row {number} has no step")
        is_eval = is_eval_row(row)
        for name, value in row.items():
            # NaN is not below anything.
            is_number = isinstance(value, int | float) and abs(value) < _LARGEST
            if not is_number and value is not None and not (isinstance(value, str) and (is_eval or name == "act")):
                raise DamagedFileError(path, f"row {number}: {name} is no number that a run writes")
    return rows


def read_metrics(path: Path) -> pl.DataFrame:
    """The rows of a metrics file as a frame, in file order; a column that a row lacks is null there."""
    rows = metrics_rows(path)
    return pl.DataFrame(rows, infer_schema_length=None) if rows else pl.DataFrame()


def is_eval_row(row: Row) -> bool:
    """Whether `row` is an evaluation's and not a step's."""
    return "mean_reward" not in row and any(key.startswith(EVAL_PREFIX) for key in row)


def row_identity(row: Row) -> tuple[int, bool, str]:
    """What tells a row from the others: step, whether it is an evaluation's, and which. Sorts in the file's order."""
    return int(row["step"]), is_eval_row(row), str(row.get("eval/name", ""))
