"""Which problems a policy is evaluated on, and so must not be trained on: the evaluation side of the data.

| given                  | the evaluation side                                                            |
|------------------------|--------------------------------------------------------------------------------|
| `test_share=S`         | the share S of `dataset`'s train rows, by a hash of the problem's id           |
| `evaluation_dataset=D` | the test splits of D, or all of it where it is one file                        |
| neither                | the test splits of `dataset`; one file has none (`require_other_problems`)     |
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from coderl_tasks.errors import ConfigError
from coderl_tasks.problems.loading import CODE_ROWS, Dates, LoadResult, RowReader, load_problems
from coderl_tasks.problems.problem import Problem
from coderl_tasks.problems.sources import Role, find_source, is_file
from coderl_tasks.settings import FlowSettings

SIDES = ("dataset", "evaluation_dataset", "test_share")
"""The settings that say which data are trained on and which evaluated on."""
NO_EVALUATION = "none"


@dataclass(frozen=True, slots=True)
class EvaluationSide:
    """The problems evaluated on: the test splits of `source`, or with a `share` that share of its train rows."""

    source: str
    share: float | None = None

    @property
    def role(self) -> Role:
        return "test" if self.share is None else "train"

    def __str__(self) -> str:
        return self.source if self.share is None else f"{self.source}, of which test_share={self.share:g} is held out"

    def load(
        self,
        splits: list[str] | None = None,
        rows: RowReader = CODE_ROWS,
        dates: Dates | None = None,
        keep: Callable[[Problem], Problem] | None = None,
    ) -> LoadResult:
        """Load these problems; arguments and errors are those of `load_problems`. With a `share`, the result leaves out
        the train problems, and counts as dropped only rows that gave no problem."""
        share = self.share
        if share is None:
            return load_problems(self.source, splits, role="test", rows=rows, dates=dates, keep=keep)

        def keep_held_out(problem: Problem) -> Problem:
            # Train problems are left out below, so their tests are freed at once.
            if not is_held_out(problem.problem_id, share):
                return replace(problem, tests=(), solutions=())
            return problem if keep is None else keep(problem)

        loaded = load_problems(self.source, splits, role="train", rows=rows, dates=dates, keep=keep_held_out)
        problems = [problem for problem in loaded.problems if is_held_out(problem.problem_id, share)]
        # A row without a problem has no id to decide its side. It is counted, so that `unusable` reports it.
        dropped = loaded.dropped.filter(pl.col("problem_id").is_null())
        return LoadResult(problems, dropped, len(problems) + dropped.height)


def evaluation_side(settings: FlowSettings) -> EvaluationSide:
    """The evaluation side that `settings` ask for. Raises ConfigError where they name two."""
    if settings.test_share is not None and settings.evaluation_dataset is not None:
        raise ConfigError(
            f"evaluation_dataset={settings.evaluation_dataset} and test_share={settings.test_share:g} are two ways to "
            "say what is evaluated on: give one of them"
        )
    if settings.test_share is not None:
        return EvaluationSide(settings.dataset, settings.test_share)
    return EvaluationSide(settings.evaluation_dataset or settings.dataset)


def require_other_problems(settings: FlowSettings, trained_on: str | None, otherwise: str) -> None:
    """Raise ConfigError if the evaluation side is all of the file `trained_on`, and no setting asked for that.
    `otherwise` is what else can be done, in words."""
    side = evaluation_side(settings)
    asked_for = side.share is not None or settings.evaluation_dataset is not None
    if not asked_for and trained_on is not None and is_file(side.source) and same_source(side.source, trained_on):
        raise ConfigError(
            f"dataset={side.source} is one file, so its rows would be both trained and evaluated on: test_share=0.1, "
            "for curate and train, holds a tenth of them out; evaluation_dataset=DATASET evaluates on other ones (or "
            f"on these, if it names this file); {otherwise}"
        )


def same_source(one: str, other: str) -> bool:
    """Whether two names mean the same data set."""
    return one == other or (find_source(one) is not None and find_source(one) == find_source(other))


def same_side(one: EvaluationSide, other: EvaluationSide) -> bool:
    return same_source(one.source, other.source) and one.share == other.share


def is_held_out(problem_id: str, share: float) -> bool:
    """Whether a problem is in the evaluation side that `test_share=share` makes. A keyed hash of the id decides,
    whatever the seed: a pool and the runs on it agree, rows that are added move none, and what a smaller share holds
    out a larger one does too."""
    number = int.from_bytes(hashlib.sha256(f"test_share/{problem_id}".encode()).digest()[:8])
    return number < share * 2**64
