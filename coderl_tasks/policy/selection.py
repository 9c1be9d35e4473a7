"""What is drawn, without state: seeds as hashes, and what a selection of a step's problems is.

1. A seed depends on its parts alone: what has to be sampled again comes out the same, on any machine, in any order.
2. The problems are a stream, cut into steps. Nothing is remembered between steps: the seed and the step decide.
3. Further problems of a step (`refill`) are beside that stream, which they do not move: a pass still takes each problem
   once as a step's own, and some are sampled once more, as a further one of another step.
"""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

SEED_BITS = 31


def seed_for(*parts: int | str) -> int:
    """A seed of 31 bits from `parts`, as in seed_for(run_seed, "sample", step, problem_id).

    Stable across processes and versions. An int and a string of the same digits differ, and so do
    ("ab", "c") and ("a", "bc"). Raises TypeError for anything but int and str (a float's text is not stable).
    """
    if not parts:
        raise TypeError("seed_for needs at least one part")
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | str):
            raise TypeError(f"a seed is made of int and str, not {type(part).__name__}: {part!r}")
        data = str(part).encode()
        digest.update(f"{'i' if isinstance(part, int) else 's'}{len(data)}:".encode() + data)
    return int.from_bytes(digest.digest()[:4], "big") >> (32 - SEED_BITS)


class Selection(Protocol):
    """How a step's problems are chosen, one per file; `SELECTIONS` in training/run.py names them.

    The call alone decides, or what the selection was made with: one that adapts is made with the run's journal, and has
    to answer the same of a step whenever it is asked, since a killed run asks again.
    """

    def __call__(
        self, problem_ids: Sequence[str], *, seed: int, step: int, count: int, taken: Sequence[str] = ()
    ) -> list[str]:
        """The `count` problems of `step` (from 0), in group order, of the pool's `problem_ids`, in its order.

        With the problems that the step has `taken` so far, in group order: `count` further ones, all different and none
        of them taken; fewer where the pool has no more.
        """
        ...


def others(ordered: Iterable[str], taken: Sequence[str], count: int) -> list[str]:
    """The first `count` of `ordered` that are not `taken`, fewer where there are no more."""
    known = set(taken)
    return list(islice((problem_id for problem_id in ordered if problem_id not in known), count))


def places(problem_ids: Sequence[str], *, step: int, count: int) -> range:
    """The places in an endless stream of problems that `step` takes.

    Raises ValueError for an empty pool, repeated ids, a negative step or a count below 1.
    """
    if not problem_ids:
        raise ValueError("the pool is empty")
    if len(set(problem_ids)) != len(problem_ids):
        raise ValueError("the pool names a problem twice")
    if step < 0 or count < 1:
        raise ValueError(f"step={step}, count={count}: a step is at least 0 and takes at least one problem")
    return range(step * count, (step + 1) * count)
