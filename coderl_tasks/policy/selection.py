"""What is drawn, without state: seeds as hashes, and which problems a step trains on.

1. A seed depends on its parts alone: what has to be sampled again comes out the same, on any machine, in any order.
2. The problems are a stream of shuffled epochs over the pool, cut into steps. Nothing is remembered between steps: the
   seed and the step's number decide. Every problem comes up once per epoch; where an epoch ends inside a step the next
   one goes on, so a pool smaller than a step repeats problems within it.
"""

import hashlib
from collections.abc import Sequence

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


def epoch_order(problem_ids: Sequence[str], *, seed: int, epoch: int) -> list[str]:
    """The order of `epoch`, whatever order the pool came in: sorted by a keyed hash, which no library can change."""
    key = f"{seed}/{epoch}/".encode()
    return sorted(problem_ids, key=lambda problem_id: (hashlib.sha256(key + problem_id.encode()).digest(), problem_id))


def select_problems(problem_ids: Sequence[str], *, seed: int, step: int, count: int) -> list[str]:
    """The `count` problems of `step` (from 0), in group order.

    Raises ValueError for an empty pool, repeated ids, a negative step or a count below 1.
    """
    size = len(problem_ids)
    if size == 0:
        raise ValueError("the pool is empty")
    if len(set(problem_ids)) != size:
        raise ValueError("the pool names a problem twice")
    if step < 0 or count < 1:
        raise ValueError(f"step={step}, count={count}: a step is at least 0 and takes at least one problem")
    start, stop = step * count, (step + 1) * count
    epochs = range(start // size, (stop - 1) // size + 1)
    stream = [problem_id for epoch in epochs for problem_id in epoch_order(problem_ids, seed=seed, epoch=epoch)]
    offset = start - epochs.start * size
    return stream[offset : offset + count]
