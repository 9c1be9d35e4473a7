"""The sizes of a training step, under the recipe's names and under the field's.

    problems_per_step           group_size in the recipe
    completions_per_problem     batch_size / group_size
    completions per step        batch_size in the recipe

Two of them that are not two names for one decide all four keys. config.json records the recipe's pair.
"""

from collections.abc import Mapping
from typing import Any

BATCH_SIZE, GROUP_SIZE = "batch_size", "group_size"
PROBLEMS, COMPLETIONS = "problems_per_step", "completions_per_problem"
SIZE_KEYS = (BATCH_SIZE, GROUP_SIZE, PROBLEMS, COMPLETIONS)
PARTNER = {BATCH_SIZE: GROUP_SIZE, GROUP_SIZE: BATCH_SIZE, PROBLEMS: COMPLETIONS, COMPLETIONS: PROBLEMS}
"""What stays as it is where one size alone is given: the other one of its pair."""


def with_other_size(given: Mapping[str, Any], batch_size: int, group_size: int) -> dict[str, Any]:
    """The sizes of `given`, which need not be numbers yet, with what of the sizes so far completes them.

    None counts as not given: the UI's form sends it for a field left empty.
    """
    so_far = {
        BATCH_SIZE: batch_size,
        GROUP_SIZE: group_size,
        PROBLEMS: group_size,
        COMPLETIONS: batch_size // group_size,
    }
    named = {key: given[key] for key in SIZE_KEYS if given.get(key) is not None}
    if not named:
        return {key: so_far[key] for key in (BATCH_SIZE, GROUP_SIZE)}
    if len(named) == 1:
        partner = PARTNER[next(iter(named))]
        return named | {partner: so_far[partner]}
    if named.keys() == {GROUP_SIZE, PROBLEMS}:  # two names for one size
        return named | {COMPLETIONS: so_far[COMPLETIONS]}
    return named


def all_sizes(named: Mapping[str, int]) -> dict[str, int]:
    """All four sizes, from some of them that decide the others. ValueError, one line, if they contradict each other."""
    problems, completions = named.get(PROBLEMS, named.get(GROUP_SIZE)), named.get(COMPLETIONS)
    batch = named.get(BATCH_SIZE)
    if named.get(GROUP_SIZE, problems) != problems:
        raise ValueError(
            f"problems_per_step={problems} and group_size={named[GROUP_SIZE]} are two names of one size: give one"
        )
    if problems is None:
        assert batch is not None and completions is not None
        problems = _divided(batch, completions, "completions per problem (completions_per_problem)")
    elif completions is None:
        assert batch is not None
        completions = _divided(batch, problems, "problems per step (problems_per_step, the recipe's group_size)")
    if batch is not None and batch != problems * completions:
        raise ValueError(
            f"batch_size={batch} (completions per step) is not {problems} problems per step x {completions} "
            "completions per problem: leave one of the three out"
        )
    if completions < 2:
        raise ValueError(
            f"{problems} problems per step need at least 2 completions each, to be compared with one another: raise "
            f"batch_size={batch}, or lower group_size (problems_per_step)"
        )
    return {
        BATCH_SIZE: problems * completions,
        GROUP_SIZE: problems,
        PROBLEMS: problems,
        COMPLETIONS: completions,
    }


def _divided(batch: int, size: int, what: str) -> int:
    if batch % size:
        raise ValueError(f"batch_size={batch} completions per step do not divide by {size} {what}")
    return batch // size
