"""The pool's make-up: how many problems, in which shares of difficulty and split.

1. Shares are weights; a name without a weight gets nothing. With both difficulty and split, the two are independent:
   each split has the same shares of difficulty. A cell is one combination.
2. With a size, every cell gets its part of it (largest remainders). A cell that has fewer problems stays short: the
   others do not fill in for it, and what is missing is counted.
3. Without a size the pool is the largest that has the shares asked for, to the problem; so nothing is short.
4. Who is taken is decided by a hash of seed and problem, not by order: more problems or another cell change nothing
   about the ranks of the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import floor
from typing import Any

import polars as pl

from coderl_tasks.curation.difficulty import DIFFICULTIES
from coderl_tasks.policy.selection import seed_for

Cell = tuple[str, ...]
"""A difficulty, a split, or both, in this order; () where neither is asked for."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Weights by difficulty and by split (empty: as it comes), and the number of problems (None: as many as fit)."""

    difficulty: Mapping[str, float] = field(default_factory=dict)
    split: Mapping[str, float] = field(default_factory=dict)
    size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = set(self.difficulty) - set(DIFFICULTIES)
        if unknown:
            raise ValueError(f"no difficulty is called {', '.join(sorted(unknown))}: {', '.join(DIFFICULTIES)}")
        for name, weights in (("difficulty", self.difficulty), ("split", self.split)):
            if weights and (min(weights.values()) < 0 or not sum(weights.values()) > 0):
                raise ValueError(f"shares by {name} are at least 0 and not all 0, not {dict(weights)}")

    @property
    def keys(self) -> list[str]:
        """The columns that make a cell."""
        return [name for name, weights in (("difficulty", self.difficulty), ("split", self.split)) if weights]

    def shares(self) -> dict[Cell, Fraction]:
        """The share of each cell that has one; they add up to 1."""
        axes = [_shares(weights) for weights in (self.difficulty, self.split) if weights]
        cells = {}
        for parts in product(*(axis.items() for axis in axes)):
            share = Fraction(1)
            for _, part in parts:
                share *= part
            cells[tuple(name for name, _ in parts)] = share
        return cells

    def as_dict(self) -> dict[str, Any]:
        """What was asked for, for a manifest."""
        return {"difficulty": dict(self.difficulty), "split": dict(self.split), "size": self.size, "seed": self.seed}

    def shortfall(self, short: Mapping[str, int]) -> str:
        """One line on what there was too little of."""
        if short:
            return "short of " + ", ".join(f"{n} {cell or 'problems'}" for cell, n in sorted(short.items()))
        return "a cell that has a share has no problem in the band, so that no size has the shares asked for"


EVERYTHING = Mix()


@dataclass(frozen=True, slots=True)
class Selection:
    """`left_out`: by problem id (reason, detail). `short`: by cell ("hard", "hard/taco", ""), how many were missing."""

    left_out: dict[str, tuple[str, str]]
    short: dict[str, int]


def select(candidates: pl.DataFrame, mix: Mix) -> Selection:
    """Which of `candidates` (problem_id, split, difficulty) the mix leaves out, and what it was short of.

    Reasons: not_in_mix (the cell has no share) and over_share (the cell has its part).
    """
    if not mix.keys and mix.size is None:
        return Selection({}, {})
    members: dict[Cell, list[str]] = {cell: [] for cell in mix.shares()}
    left_out: dict[str, tuple[str, str]] = {}
    for row in candidates.iter_rows(named=True):
        cell = tuple(row[key] for key in mix.keys)
        if cell in members:
            members[cell].append(row["problem_id"])
        else:
            left_out[row["problem_id"]] = ("not_in_mix", f"{'/'.join(cell)} has no share")
    available = {cell: len(ids) for cell, ids in members.items()}
    parts = apportion(mix.shares(), largest_size(mix.shares(), available) if mix.size is None else mix.size)
    for cell, ids in members.items():
        ranked = sorted(ids, key=lambda name: (seed_for(mix.seed, "mix", name), name))
        detail = f"{parts[cell]} of {len(ids)} {'/'.join(cell)}".rstrip() + " taken"
        left_out |= dict.fromkeys(ranked[parts[cell] :], ("over_share", detail))
    short = {"/".join(cell): parts[cell] - n for cell, n in available.items() if n < parts[cell]}
    return Selection(left_out, short)


def apportion(shares: Mapping[Cell, Fraction], size: int) -> dict[Cell, int]:
    """`size` divided by `shares` (which add up to 1) in whole numbers, largest remainders first, then by name."""
    parts = {cell: floor(share * size) for cell, share in shares.items()}
    by_remainder = sorted(shares, key=lambda cell: (parts[cell] - shares[cell] * size, cell))
    for cell in by_remainder[: size - sum(parts.values())]:
        parts[cell] += 1
    return parts


def largest_size(shares: Mapping[Cell, Fraction], available: Mapping[Cell, int]) -> int:
    """The largest size of which every cell has its part."""
    size = sum(available.values())
    for cell, share in shares.items():
        size = min(size, floor((available[cell] + 1) / share))  # a part is less than one above share * size
    # Down from a bound, one by one: with largest remainders a cell's part may shrink as the size grows, so bisection
    # could miss the largest size that fits.
    while any(part > available[cell] for cell, part in apportion(shares, size).items()):
        size -= 1
    return size


def _shares(weights: Mapping[str, float]) -> dict[str, Fraction]:
    # Exact, and by what was written: as floats 0.1 + 0.2 is not 0.3, and rounding would decide which cell gets a
    # problem.
    total = sum(Fraction(str(weight)) for weight in weights.values())
    return {name: Fraction(str(weight)) / total for name, weight in weights.items() if weight > 0}
