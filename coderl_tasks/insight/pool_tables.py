"""The tables of a curation's report: what the pool is made of, what sampling cost, what references showed."""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from coderl_tasks.insight.record import DIFFICULTIES

FIXED_SAMPLES = 16
FEW_SAMPLES = 2
"""Up to so many samples tell that a problem can teach (one passes, one fails), and hardly its pass rate."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class MakeUp:
    """Problems of a split, or of all, in the pool: `counts` by difficulty, in the order of DIFFICULTIES.

    `few` of each have FEW_SAMPLES or fewer.
    """

    split: str
    counts: tuple[int, ...]
    few: tuple[int, ...]
    problems: int
    pass_rate: float | None

    @property
    def labels(self) -> Iterator[tuple[int, int]]:
        """(problems, those of few samples) by difficulty."""
        return zip(self.counts, self.few, strict=True)


@dataclass(frozen=True, slots=True)
class Spending:
    """What profiling a split, or all, took: graded completions, against a fixed number a problem, and tokens sampled.

    `cost` is in the currency of the prices given, None where none was.
    """

    split: str
    problems: int
    samples: int
    tokens: int
    cost: float | None

    @property
    def fixed(self) -> int:
        """Completions at FIXED_SAMPLES a problem."""
        return FIXED_SAMPLES * self.problems

    @property
    def share(self) -> float:
        """Samples as a share of those."""
        return self.samples / self.fixed


def make_up(pool: pl.DataFrame) -> list[MakeUp]:
    """The pool by split, with a last row for all; empty for an empty pool."""
    return [
        MakeUp(
            split,
            tuple(part.filter(difficulty=name).height for name in DIFFICULTIES),
            tuple(few_samples(part).filter(difficulty=name).height for name in DIFFICULTIES),
            len(part),
            part["pass_rate"].mean(),  # type: ignore[arg-type]  # polars: any scalar
        )
        for split, part in _by_split(pool)
    ]


def few_samples(problems: pl.DataFrame) -> pl.DataFrame:
    """Those of `problems` (of a pool or profile) with FEW_SAMPLES or fewer."""
    return problems.filter(pl.col("n_samples") <= FEW_SAMPLES)


def few_at_half(profile: pl.DataFrame) -> str | None:
    """Why so many problems stand at a pass rate of 0.5, in two sentences; None if none of few samples does."""
    if not len(profile):
        return None
    at_half = profile.filter(pl.col("pass_rate") == 0.5)
    few = few_samples(at_half)
    if not len(few):
        return None
    low, high = few["ci_low"][0], few["ci_high"][0]
    return (
        f"{len(few)} of the {len(at_half)} problems at exactly 0.5 had {FEW_SAMPLES} samples, of which one passed: "
        f"enough to keep a problem, too few to know its pass rate (95% interval {low:.2f} to {high:.2f}). "
        "Their label, medium, is as uncertain."
    )


def spending(profile: pl.DataFrame) -> list[Spending]:
    """What the profile took by split, with a last row for all; empty without a profile."""
    return [
        Spending(
            split,
            len(part),
            int(part["n_samples"].sum()),
            _tokens(part),
            float(part["cost"].sum()) if "cost" in part.columns and part["cost"].count() else None,
        )
        for split, part in _by_split(profile)
    ]


def reference_counts(solutions: pl.DataFrame) -> list[tuple[str, int]]:
    """Problems by what their own solutions showed, most first; empty where the check was left out."""
    if not len(solutions):
        return []
    return list(solutions.group_by("status").len().sort(["len", "status"], descending=[True, False]).iter_rows())


def _tokens(profile: pl.DataFrame) -> int:
    if "completion_tokens_spent" in profile.columns:
        return int(profile["completion_tokens_spent"].sum())
    return int((profile["n_samples"] * profile["mean_completion_tokens"]).sum())


def _by_split(frame: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    if not len(frame):
        return []
    return [*((split, frame.filter(split=split)) for split in sorted(frame["split"].unique())), (ALL, frame)]
