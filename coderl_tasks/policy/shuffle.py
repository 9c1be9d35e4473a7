"""selection=shuffle: a stream of shuffled epochs over the pool, cut into steps.

Every problem comes up once per epoch; where an epoch ends inside a step the next one goes on, so a pool smaller than a
step repeats problems within it. Further problems of a step are the first others of a shuffle of its own.
"""

import hashlib
from collections.abc import Sequence

from coderl_tasks.policy.selection import others, places, seed_for


def epoch_order(problem_ids: Sequence[str], *, seed: int, epoch: int) -> list[str]:
    """The order of `epoch`, whatever order the pool came in: sorted by a keyed hash, which no library can change."""
    key = f"{seed}/{epoch}/".encode()
    return sorted(problem_ids, key=lambda problem_id: (hashlib.sha256(key + problem_id.encode()).digest(), problem_id))


def shuffle(problem_ids: Sequence[str], *, seed: int, step: int, count: int, taken: Sequence[str] = ()) -> list[str]:
    """The `count` problems of `step` (from 0), or further ones beside those `taken`. Raises as `places` does."""
    stretch, size = places(problem_ids, step=step, count=count), len(problem_ids)
    if taken:
        # Not the stream's next ones: the step that follows takes those.
        return others(epoch_order(problem_ids, seed=seed_for(seed, "refill", step), epoch=0), taken, count)
    epochs = range(stretch.start // size, stretch[-1] // size + 1)
    stream = [problem_id for epoch in epochs for problem_id in epoch_order(problem_ids, seed=seed, epoch=epoch)]
    offset = stretch.start - epochs.start * size
    return stream[offset : offset + count]
