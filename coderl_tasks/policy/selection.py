"""What is drawn, without state: seeds as hashes, and the problems of a step.

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
    """A seed of 31 bits from `parts`, as in seed_for(run_seed, "sample", step, problem_id), stable across processes and
    versions. An int and a string of the same digits differ, and so do ("ab", "c") and ("a", "bc"). Raises TypeError for
    anything but int and str (a float's text is not stable)."""
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
    """How a step's problems are chosen. One that is made with the run's journal has to answer the same of a step
    whenever it is asked, since a killed run asks again."""

    def __call__(
        self, problem_ids: Sequence[str], *, seed: int, step: int, count: int, taken: Sequence[str] = ()
    ) -> list[str]:
        """The `count` problems of `step` (from 0), in group order, of the pool's `problem_ids`, in its order; where the
        step has `taken` some, `count` further ones, all different, fewer where the pool has no more."""


def others(ordered: Iterable[str], taken: Sequence[str], count: int) -> list[str]:
    """The first `count` of `ordered` that are not `taken`, fewer where there are no more."""
    known = set(taken)
    return list(islice((problem_id for problem_id in ordered if problem_id not in known), count))


def places(problem_ids: Sequence[str], *, step: int, count: int) -> range:
    """The places in an endless stream of problems that `step` takes. Raises ValueError for an empty pool, repeated ids,
    a negative step or a count below 1."""
    if not problem_ids:
        raise ValueError("the pool is empty")
    if len(set(problem_ids)) != len(problem_ids):
        raise ValueError("the pool names a problem twice")
    if step < 0 or count < 1:
        raise ValueError(f"step={step}, count={count}: a step is at least 0 and takes at least one problem")
    return range(step * count, (step + 1) * count)


def epoch_order(problem_ids: Sequence[str], *, seed: int, epoch: int) -> list[str]:
    """The order of `epoch`, whatever order the pool came in: sorted by a keyed hash, which no library can change."""
    key = f"{seed}/{epoch}/".encode()
    return sorted(problem_ids, key=lambda problem_id: (hashlib.sha256(key + problem_id.encode()).digest(), problem_id))


def shuffle(problem_ids: Sequence[str], *, seed: int, step: int, count: int, taken: Sequence[str] = ()) -> list[str]:
    """selection=shuffle: a stream of shuffled epochs over the pool, cut into steps. Raises as `places` does.

    Every problem comes up once per epoch; where an epoch ends inside a step the next one goes on, so a pool smaller
    than a step repeats problems within it. Further problems are the first others of a shuffle of the step's own.
    """
    stretch, size = places(problem_ids, step=step, count=count), len(problem_ids)
    if taken:
        # Not the stream's next ones: the step that follows takes those.
        return others(epoch_order(problem_ids, seed=seed_for(seed, "refill", step), epoch=0), taken, count)
    epochs = range(stretch.start // size, stretch[-1] // size + 1)
    stream = [problem_id for epoch in epochs for problem_id in epoch_order(problem_ids, seed=seed, epoch=epoch)]
    offset = stretch.start - epochs.start * size
    return stream[offset : offset + count]


def cycle(problem_ids: Sequence[str], *, seed: int, step: int, count: int, taken: Sequence[str] = ()) -> list[str]:
    """selection=cycle: the pool in its own order, again and again, as the recipe takes its subsets: whoever orders a
    pool from easy to hard trains in that order. Raises as `places` does.

    Further problems are those that follow in the pool: as hard as the step's own, and the next step takes them again.
    """
    stretch = places(problem_ids, step=step, count=count)
    if taken:
        following = problem_ids.index(taken[-1]) + 1
        return others([*problem_ids[following:], *problem_ids[:following]], taken, count)
    return [problem_ids[place % len(problem_ids)] for place in stretch]


SELECTIONS: dict[str, Selection] = {"shuffle": shuffle, "cycle": cycle}
"""By the value of the setting `selection`, those that the call alone decides; `Adaptive` is made with the run."""
