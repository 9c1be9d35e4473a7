"""Which problems a step trains on: a stream of shuffled epochs over the pool, cut into steps.

Nothing is remembered between steps: the seed and the step's number decide. Every problem comes up once per epoch; where
an epoch ends inside a step the next one goes on, so a pool smaller than a step repeats problems within it.
"""

import hashlib
from collections.abc import Sequence


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
