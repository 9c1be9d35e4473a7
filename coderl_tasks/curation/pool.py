"""The pool: the problems that can teach the base model something, with the record of all that were left out.

    data/pools/NAME/{pool,dropped,profile}.parquet, manifest.json

The manifest is written last and marks the pool as finished. It holds no time and no path of the machine, but the hashes
of the tables: the same problems, profile and settings give the same bytes.

A mix says how many problems the pool has, in which shares of difficulty and split:

1. Shares are weights; a name without a weight gets nothing. With both difficulty and split, the two are independent:
   each split has the same shares of difficulty. A cell is one combination.
2. With a size, every cell gets its part of it (largest remainders). A cell with fewer problems stays short: others do
   not fill in for it, and the missing problems are counted.
3. Without a size the pool is the largest that has exactly the shares asked for, so no cell is short.
4. Labels are uncertain: of the problems labelled medium some are hard. The shares are those of the expected
   difficulties, so that a pool that is half medium may take more than half of that label (`label_shares`).
5. A hash of seed and problem decides who is taken: other problems or cells do not change a problem's rank.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from itertools import chain, combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from coderl_tasks.curation.labels import Prior
from coderl_tasks.curation.screen import Screened, in_words
from coderl_tasks.curation.stopping_rule import DIFFICULTIES, EASY_FROM, HARD_BELOW
from coderl_tasks.errors import CoderlError
from coderl_tasks.filtering.parts import KeptProblems
from coderl_tasks.journal.atomic import make_folder, read_json, scan_parquet, write_json, write_parquet
from coderl_tasks.paths import MANIFEST_FILE, file_sha256
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.problems.loading import LoadResult
from coderl_tasks.problems.problem import (
    PROBLEM_SCHEMA,
    Drop,
    Problem,
    count_drops,
    dropped_frame,
    problems_frame,
    require_all_rows,
)
from coderl_tasks.problems.profile_columns import (
    ANSWER_COLUMNS,
    AUDIT_COLUMNS,
    N_FROM_RUN,
    PROFILE_COLUMNS,
    PROFILE_SCHEMA,
)

BAND_LOW, BAND_HIGH = 0.1, 0.9
TABLES = ("pool", "dropped", "profile")
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

    def shortfall(self, short: Mapping[str, int]) -> str:
        """One line on what there was too little of."""
        if short:
            return "short of " + ", ".join(f"{n} {cell or 'problems'}" for cell, n in sorted(short.items()))
        return "a cell that has a share has no problem in the band, so that no size has the shares asked for"


EVERYTHING = Mix()


class EmptyPoolError(CoderlError):
    """A curation ended well and kept nothing: there is nothing to train on."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool's tables: `pool` (PROBLEM_SCHEMA, PROFILE_COLUMNS, ANSWER_COLUMNS and, if audited, AUDIT_COLUMNS),
    `dropped` (DROPPED_SCHEMA), `profile` (PROFILE_SCHEMA, empty if there was none), and how many rows were read.

    `band` is the lowest and highest pass rate kept, and `prior` what the labels rest on, None without a profile; `mix`
    is what was asked for and `short` what was missing, by cell; `screened` what decided where pass rates did not.
    """

    pool: pl.DataFrame
    dropped: pl.DataFrame
    profile: pl.DataFrame
    read: int
    band: tuple[float, float] | None
    mix: Mix = EVERYTHING
    short: Mapping[str, int] = field(default_factory=dict)
    prior: Prior | None = None
    screened: Screened | None = None

    def __post_init__(self) -> None:
        require_all_rows(self.pool.height, self.dropped, self.read)

    def drops_in_words(self) -> str:
        """How many were dropped for which reason, the commonest first; empty if none was."""
        return ", ".join(f"{n} {reason.split('/')[-1]}" for reason, n in count_drops(self.dropped).items())


def build_pool(
    loaded: LoadResult,
    profile: pl.DataFrame | None,
    *,
    drops: Iterable[Drop] = (),
    checks: pl.DataFrame | None = None,
    audits: pl.DataFrame | None = None,
    band_low: float = BAND_LOW,
    band_high: float = BAND_HIGH,
    mix: Mix = EVERYTHING,
    prior: Prior | None = None,
    screened: Screened | None = None,
) -> Pool:
    """Keeps the loaded problems whose pass rate lies in the band (ends included) and that `mix` takes.

    drops       problems dropped between loading and profiling
    profile     PROFILE_SCHEMA, a row for each other problem of `loaded`, else ValueError; None: no band, no pass rates
    checks      SOLUTION_SCHEMA, what the problems' solutions showed
    audits      AUDIT_SCHEMA, what an audit found; AUDIT_COLUMNS are in the pool only if there was one
    mix         how many problems of which difficulty and split to take
    prior       the distribution of pass rates on which the profile's labels (difficulties) rest; only recorded
    screened    if given, the chance that a problem is learnable decides, not its pass rate
    """
    all_drops = list(drops)
    remaining = {problem.problem_id: problem for problem in loaded.problems}
    for early_drop in all_drops:
        remaining.pop(str(early_drop.problem_id))
    measured = {} if profile is None else {row["problem_id"]: row for row in profile.iter_rows(named=True)}
    if profile is not None and remaining.keys() != measured.keys():
        raise ValueError("the profile is not one of the problems loaded and not dropped since")
    for name, row in [(name, measured[name]) for name in remaining if measured]:  # without a profile there is no band
        if drop := band_drop(remaining[name], row, band_low, band_high, screened):
            all_drops.append(drop)
            del remaining[name]
    # A mix by difficulty needs the profile's labels; without a profile it can only be one by split or of a size.
    candidates = problems_frame(list(remaining.values())) if profile is None else profile
    selection = select(candidates.filter(pl.col("problem_id").is_in([*remaining])), mix)
    not_taken = [remaining.pop(name) for name in [*remaining] if name in selection.left_out]
    all_drops += [Drop.of(problem, "mix", *selection.left_out[problem.problem_id]) for problem in not_taken]
    chosen = list(remaining.values())
    # What the audit, the check of solutions and the profile say of each problem; of two that have a column the later.
    known: dict[str, dict[str, Any]] = {}
    tables = [frame.iter_rows(named=True) for frame in (audits, checks) if frame is not None]
    for row in chain(*tables, measured.values()):
        known.setdefault(row["problem_id"], {}).update(row)
    columns = PROFILE_COLUMNS | ANSWER_COLUMNS | ({} if audits is None else AUDIT_COLUMNS)
    further_columns = pl.DataFrame([known.get(problem.problem_id, {}) for problem in chosen], schema=columns)
    return Pool(
        pool=pl.concat([problems_frame(chosen), further_columns], how="horizontal"),
        dropped=pl.concat([loaded.dropped, dropped_frame(all_drops)]),
        profile=pl.DataFrame(schema=PROFILE_SCHEMA) if profile is None else profile,
        read=loaded.read,
        band=None if profile is None else (band_low, band_high),
        mix=mix,
        short=selection.short,
        prior=prior,
        screened=screened,
    )


def band_drop(
    problem: Problem, measured: Mapping[str, Any], low: float, high: float, screened: Screened | None
) -> Drop | None:
    """Why a problem with this row of the profile, `measured`, lies outside the band; None if it does not."""
    if measured["infra_errors"]:  # its sampling was not brought to an end, so the rest does not count
        detail = f"{measured['infra_errors']} completions could not be graded"
        return Drop.of(problem, "profile", "not_graded", detail)
    detail = f"{measured['n_correct']} of {measured['n_samples']} samples pass"
    if screened is not None:
        chance = screened.chances[problem.problem_id]
        if chance >= screened.drop_below:
            return None
        is_hard = measured["posterior_mean"] < (low + high) / 2
        detail += f", {in_words(chance)}"
    elif low <= measured["pass_rate"] <= high:
        return None
    else:
        is_hard = measured["pass_rate"] < low
    return Drop.of(problem, "band", "too_hard" if is_hard else "too_easy", detail)


def write_pool(
    folder: Path,
    pool: Pool,
    settings: Mapping[str, Any],
    *,
    policy: Mapping[str, str | int] | None = None,
    inputs: Mapping[str, Any] | None = None,
    whole: KeptProblems | None = None,
) -> dict[str, Any]:
    """Writes a finished pool to `folder` and returns its manifest, which records `settings` (with `model_name`),
    `policy` (whose pass rates these are) and `inputs` (what was read). If `pool` has only outlines of its problems,
    without tests, `whole` reads the complete problems from disk for pool.parquet."""
    make_folder(folder)
    # First: a crash in between must not leave it beside tables of which only some are replaced.
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    hashes = {}
    for name in TABLES:
        file = folder / f"{name}.parquet"
        if name == "pool" and whole is not None:  # `pool.pool` has no tests then, so only its other columns are used
            whole.only(pool.pool["problem_id"].to_list()).write(
                file, pool.pool.select(pl.exclude(PROBLEM_SCHEMA.keys()))
            )
        else:
            write_parquet(file, getattr(pool, name))
        hashes[file.name] = file_sha256(file)
    made_for = {} if policy is None else {"policy": dict(policy)}
    manifest = pool_manifest(pool, settings) | made_for | {"inputs": dict(inputs or {}), "sha256": hashes}
    # Last: with the manifest, the pool counts as finished.
    write_json(folder / "manifest.json", manifest)
    return manifest


def recorded_pool(folder: Path) -> Pool:
    """The finished pool in `folder`, as `write_pool` wrote it, but for its problems' tests, which can be large."""
    manifest = read_json(folder / MANIFEST_FILE)
    files = [folder / f"{name}.parquet" for name in TABLES]
    pool, dropped, profile = (scan_parquet(file).select(pl.exclude("tests")).collect() for file in files)
    band = None if manifest["band_low"] is None else (manifest["band_low"], manifest["band_high"])
    mix, short = Mix(**manifest["mix"]), manifest["short"]
    return Pool(pool, dropped, profile, read=manifest["read"], band=band, mix=mix, short=short)


def pool_manifest(pool: Pool, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest, without the hashes of files. Without a profile, band and difficulties are left empty."""
    low, high = pool.band or (None, None)
    # The expected number of problems of each difficulty: the sum of their labels' probabilities.
    expected = {name: round(math.fsum(pool.pool[f"{name}_probability"].drop_nulls()), 2) for name in DIFFICULTIES}
    return {
        "model_name": settings["model_name"],
        "read": pool.read,
        "kept": pool.pool.height,
        "dropped": pool.dropped.height,
        "band_low": low,
        "band_high": high,
        "hard_below": HARD_BELOW,
        "easy_from": EASY_FROM,
        "by_difficulty": {name: pool.pool.filter(difficulty=name).height for name in DIFFICULTIES if pool.band},
        # The prior on which difficulty labels rest; and if a chance of being learnable decided, what it promises.
        **({} if pool.prior is None else {"labels": pool.prior.as_dict() | {"expected": expected}}),
        **({} if pool.screened is None else {"learnable": _expected_learnable(pool, pool.screened)}),
        "by_split": dict(pool.pool.group_by("split").len().sort("split").iter_rows()),
        "mix": asdict(pool.mix),
        "short": dict(pool.short),  # by cell (difficulty and split) how many problems the mix lacked
        "dropped_by_reason": count_drops(pool.dropped),
        "infra_errors": int(pool.profile["infra_errors"].sum()),
        "spent": _spent(pool.profile),
        # Sorted: the same settings give the same bytes in any order.
        "settings": {name: settings[name] for name in sorted(settings)},
    }


def _spent(profile: pl.DataFrame) -> dict[str, Any]:
    """The samples (graded or not) and tokens that the profile took, and their cost, None without prices. What a
    curation with from_run counts from the run's own completions ("told") is none of them."""
    told = {"told": sum(profile[N_FROM_RUN])} if N_FROM_RUN in profile.columns else {}
    return {
        "samples": sum(profile["n_samples"]) + sum(profile["infra_errors"]) - told.get("told", 0),
        "prompt_tokens": sum(profile["prompt_tokens_spent"]),
        "completion_tokens": sum(profile["completion_tokens_spent"]),
        **told,
        "cost": None if profile["cost"].null_count() else math.fsum(profile["cost"]),
    }


def _expected_learnable(pool: Pool, screened: Screened) -> dict[str, float]:
    """How many learnable problems are expected to be kept, dropped after a sample, and not sampled at all."""
    band, unsampled = (pool.dropped.filter(stage=stage) for stage in ("band", "screen"))
    parts = {"kept": pool.pool, "dropped": band, "unsampled": unsampled}
    chances = {name: [screened.chances[each] for each in part["problem_id"]] for name, part in parts.items()}
    return {name: round(math.fsum(of_part), 2) for name, of_part in chances.items()}


def require_problems(pool: Pool, folder: Path, if_too_hard: str = "") -> None:
    """Raises EmptyPoolError, with reasons and advice, if the pool is empty. `if_too_hard` is added to the advice if as
    many problems are too hard as too easy, or more."""
    if pool.pool.height:
        return
    reasons = pool.drops_in_words() or "nothing was read"
    if pool.dropped.filter(stage="mix").height:  # problems lay in the band, and the mix took none of them
        lack = pool.mix.shortfall(pool.short)
        raise EmptyPoolError(f"The mix leaves nothing: {lack}. Profile and report are in {folder}.")
    if pool.band is None:  # without a profile
        raise EmptyPoolError(f"No row of {pool.read} is left ({reasons}). The report in {folder} says why.")
    low, high = pool.band
    hard, easy = (pool.dropped.filter(stage="band", reason=reason).height for reason in ("too_hard", "too_easy"))
    advice = ": take harder problems" if easy > hard else ""
    if hard >= max(easy, 1):
        advice = f": take easier problems, or a model that solves some of them{if_too_hard}"
    raise EmptyPoolError(
        f"Nothing lies in the band: of {pool.read} rows none has a pass rate from {low:g} to {high:g} "
        f"({reasons}){advice}. Profile and report are in {folder}."
    )


class Selection(NamedTuple):
    """What a mix does not take: (reason, detail) by problem id, where the reason is not_in_mix (its cell has no share)
    or over_share (its cell is full); and `short`, by cell ("hard", "hard/taco", "") how many problems it lacks."""

    left_out: dict[str, tuple[str, str]]
    short: dict[str, int]


def select(candidates: pl.DataFrame, mix: Mix) -> Selection:
    """Decides which `candidates` (with problem_id, split and, for `label_shares`, difficulty and perhaps each
    difficulty's probability) a mix leaves out."""
    keys = [name for name, weights in (("difficulty", mix.difficulty), ("split", mix.split)) if weights]
    if not keys and mix.size is None:  # nothing is asked for: all stay
        return Selection({}, {})
    shares = label_shares(candidates, mix)
    members: dict[Cell, list[str]] = {cell: [] for cell in shares}
    left_out: dict[str, tuple[str, str]] = {}
    for row in candidates.iter_rows(named=True):
        cell = tuple(row[key] for key in keys)
        if cell in members:
            members[cell].append(row["problem_id"])
        else:
            left_out[row["problem_id"]] = ("not_in_mix", f"{'/'.join(cell)} has no share")
    available = {cell: len(ids) for cell, ids in members.items()}
    # Without a size: the most problems with which no cell falls short of its share.
    parts = apportion(shares, largest_size(shares, available) if mix.size is None else mix.size)
    for cell, ids in members.items():
        # By a hash of the id: other problems do not change who is taken.
        ranked = sorted(ids, key=lambda name: (seed_for(mix.seed, "mix", name), name))
        detail = f"{parts[cell]} of {len(ids)} {'/'.join(cell)}".rstrip() + " taken"
        left_out |= dict.fromkeys(ranked[parts[cell] :], ("over_share", detail))
    short = {"/".join(cell): parts[cell] - n for cell, n in available.items() if n < parts[cell]}
    return Selection(left_out, short)


def label_shares(candidates: pl.DataFrame, mix: Mix) -> dict[Cell, Fraction]:
    """The share of each cell to take by label, such that the expected true difficulties come closest to the shares that
    `mix` asks for."""
    by_difficulty = mix.shares()
    names = [f"{name}_probability" for name in DIFFICULTIES]
    # By split alone labels do not matter, and without their probabilities they count as certain.
    if not mix.difficulty or not set(names) <= set(candidates.columns) or candidates[names[0]].null_count():
        return by_difficulty
    labels = list(dict.fromkeys(cell[0] for cell in by_difficulty))
    by_label: dict[Cell, Fraction] = {}
    for rest in dict.fromkeys(cell[1:] for cell in by_difficulty):  # each split, or ()
        part = candidates.filter(split=rest[0]) if rest else candidates
        # L labels, D true difficulties: which share of the problems with a label is expected to be of each difficulty.
        expected_L_D = np.eye(len(DIFFICULTIES))[[DIFFICULTIES.index(label) for label in labels]]
        for place, label in enumerate(labels):
            labelled = part.filter(difficulty=label)
            if len(labelled):  # otherwise the label counts as certain
                expected_L_D[place] = [float(np.mean(labelled[name].to_numpy())) for name in names]
        total = sum((by_difficulty[(label, *rest)] for label in labels), Fraction())
        wanted_D = np.zeros(len(DIFFICULTIES))
        for label in labels:
            wanted_D[DIFFICULTIES.index(label)] = by_difficulty[(label, *rest)] / total
        # The shares of labels with which weights_L @ expected_L_D, the expected difficulties, is closest to wanted_D.
        weights_L = closest_weights(expected_L_D, wanted_D)
        # Exact from here on: rounding first gives the same shares on machines whose last bits differ.
        weights = [Fraction(str(round(float(weight), 4))) for weight in weights_L]
        for label, weight in zip(labels, weights, strict=True):
            by_label[(label, *rest)] = total * weight / sum(weights, Fraction())
    return {cell: by_label[cell] for cell in by_difficulty}


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
    parts = {cell: math.floor(share * size) for cell, share in shares.items()}
    by_remainder = sorted(shares, key=lambda cell: (parts[cell] - shares[cell] * size, cell))
    for cell in by_remainder[: size - sum(parts.values())]:
        parts[cell] += 1
    return parts


def largest_size(shares: Mapping[Cell, Fraction], available: Mapping[Cell, int]) -> int:
    """The largest size of which every cell has its part."""
    # A part is less than one above share * size.
    bounds = [math.floor((available[cell] + 1) / share) for cell, share in shares.items() if share]
    size = min([sum(available.values()), *bounds])
    # One by one, not by bisection: with largest remainders a cell's part may shrink as the size grows.
    while any(part > available[cell] for cell, part in apportion(shares, size).items()):
        size -= 1
    return size
