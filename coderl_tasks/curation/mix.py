"""The pool's make-up: how many problems, in which shares of difficulty and split.

1. Shares are weights; a name without a weight gets nothing. With both difficulty and split, the two are independent:
   each split has the same shares of difficulty. A cell is one combination.
2. With a size, every cell gets its part of it (largest remainders). A cell with fewer problems stays short: others do
   not fill in for it, and the missing problems are counted.
3. Without a size the pool is the largest that has exactly the shares asked for, so no cell is short.
4. Labels are uncertain: of the problems labelled medium some are hard. The shares are those of the expected
   difficulties, and the shares by label are chosen so that the problems' probabilities add up closest to them. They
   differ if labels are uncertain: a pool that is half medium may take more than half of that label.
5. A hash of seed and problem decides who is taken: other problems or cells do not change a problem's rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import floor
from typing import Any

import numpy as np
import polars as pl

from coderl_tasks.curation.difficulty import DIFFICULTIES
from coderl_tasks.policy.selection import seed_for

Cell = tuple[str, ...]  # a difficulty, a split, or both, in this order; () where neither is asked for


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
        cells: dict[Cell, Fraction] = {(): Fraction(1)}
        for weights in (self.difficulty, self.split):
            # Exact: as floats 0.1 + 0.2 is not 0.3, and rounding would decide which cell gets a problem.
            exact = {name: Fraction(str(weight)) for name, weight in weights.items() if weight > 0}
            total = sum(exact.values())
            if weights:
                cells = {(*cell, name): cells[cell] * exact[name] / total for cell in cells for name in exact}
        return cells

    def as_dict(self) -> dict[str, Any]:
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
    """Which `candidates` the mix leaves out: not_in_mix (their cell has no share) or over_share (their cell is full);
    and how many problems each cell lacks. `candidates` has problem_id, split, difficulty, and, if labels are uncertain,
    the probability of each difficulty."""
    if not mix.keys and mix.size is None:
        return Selection({}, {})
    shares = label_shares(candidates, mix)
    members: dict[Cell, list[str]] = {cell: [] for cell in shares}
    left_out: dict[str, tuple[str, str]] = {}
    for row in candidates.iter_rows(named=True):
        cell = tuple(row[key] for key in mix.keys)
        if cell in members:
            members[cell].append(row["problem_id"])
        else:
            left_out[row["problem_id"]] = ("not_in_mix", f"{'/'.join(cell)} has no share")
    available = {cell: len(ids) for cell, ids in members.items()}
    parts = apportion(shares, largest_size(shares, available) if mix.size is None else mix.size)
    for cell, ids in members.items():
        ranked = sorted(ids, key=lambda name: (seed_for(mix.seed, "mix", name), name))
        detail = f"{parts[cell]} of {len(ids)} {'/'.join(cell)}".rstrip() + " taken"
        left_out |= dict.fromkeys(ranked[parts[cell] :], ("over_share", detail))
    short = {"/".join(cell): parts[cell] - n for cell, n in available.items() if n < parts[cell]}
    return Selection(left_out, short)


def label_shares(candidates: pl.DataFrame, mix: Mix) -> dict[Cell, Fraction]:
    """The share of each cell to take by label, such that the expected true difficulties have the shares asked for."""
    asked = mix.shares()
    names = [f"{name}_probability" for name in DIFFICULTIES]
    if not mix.difficulty or not set(names) <= set(candidates.columns) or candidates[names[0]].null_count():
        return asked
    labels = list(dict.fromkeys(cell[0] for cell in asked))
    found = {}
    for rest in dict.fromkeys(cell[1:] for cell in asked):  # each split, or ()
        part = candidates.filter(split=rest[0]) if rest else candidates
        expected = np.eye(len(DIFFICULTIES))[[DIFFICULTIES.index(label) for label in labels]]
        for place, label in enumerate(labels):
            labelled = part.filter(difficulty=label)
            if len(labelled):  # otherwise the label counts as certain
                expected[place] = [float(np.mean(labelled[name].to_numpy())) for name in names]
        asked_shares = [asked[label, *rest] for label in labels]
        total = sum(asked_shares, Fraction())
        wanted = np.zeros(len(DIFFICULTIES))
        for label, share in zip(labels, asked_shares, strict=True):
            wanted[DIFFICULTIES.index(label)] = share / total
        # Exact from here on: rounding first gives the same shares on machines whose last bits differ.
        parts = [Fraction(str(round(float(part), 4))) for part in closest_weights(expected, wanted)]
        for label, share in zip(labels, parts, strict=True):
            found[(label, *rest)] = total * share / sum(parts, Fraction())
    return {cell: found[cell] for cell in asked}


def closest_weights(rows_L_D: np.ndarray, target_D: np.ndarray) -> np.ndarray:
    """The weights (L,), at least 0 and together 1, with which the sum of the rows comes closest to the target: the best
    of all choices of rows with a weight above 0, of which there are few."""
    best, least = np.full(len(rows_L_D), 1 / len(rows_L_D)), np.inf
    for size in range(1, len(rows_L_D) + 1):
        for chosen in combinations(range(len(rows_L_D)), size):
            part = rows_L_D[list(chosen)]
            # Least squares with the weights adding up to 1: the last row is what the others leave.
            weights = np.linalg.lstsq((part[:-1] - part[-1]).T, target_D - part[-1], rcond=None)[0]
            weights = np.append(weights, 1 - weights.sum())
            distance = float(np.square(weights @ part - target_D).sum())
            if weights.min() >= -1e-9 and distance < least - 1e-12:
                best, least = np.zeros(len(rows_L_D)), distance
                best[list(chosen)] = np.maximum(weights, 0.0)
    return best


def apportion(shares: Mapping[Cell, Fraction], size: int) -> dict[Cell, int]:
    """`size` divided by `shares` (which add up to 1) in whole numbers, largest remainders first, then by name."""
    parts = {cell: floor(share * size) for cell, share in shares.items()}
    by_remainder = sorted(shares, key=lambda cell: (parts[cell] - shares[cell] * size, cell))
    for cell in by_remainder[: size - sum(parts.values())]:
        parts[cell] += 1
    return parts


def largest_size(shares: Mapping[Cell, Fraction], available: Mapping[Cell, int]) -> int:
    """The largest size of which every cell has its part."""
    # A part is less than one above share * size.
    bounds = [floor((available[cell] + 1) / share) for cell, share in shares.items() if share]
    size = min([sum(available.values()), *bounds])
    # One by one, not by bisection: with largest remainders a cell's part may shrink as the size grows.
    while any(part > available[cell] for cell, part in apportion(shares, size).items()):
        size -= 1
    return size
