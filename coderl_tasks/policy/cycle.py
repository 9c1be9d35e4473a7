"""selection=cycle: the pool in its own order, again and again, as the recipe takes its subsets.

A step takes the next problems, and where the pool ends inside a step it begins anew: problem `i` of the stream is
`pool[i mod size]`. The seed decides nothing. Whoever orders a pool from easy to hard trains in that order;
neighbours in the pool stay neighbours in a step, which a shuffle would part. Further problems of a step are those that
follow in the pool: as hard as its own, and the next step takes them again.
"""

from collections.abc import Sequence

from coderl_tasks.policy.selection import others, places


def cycle(problem_ids: Sequence[str], *, seed: int, step: int, count: int, taken: Sequence[str] = ()) -> list[str]:
    """The `count` problems of `step` (from 0), or further ones beside those `taken`. Raises as `places` does."""
    stretch = places(problem_ids, step=step, count=count)
    if taken:
        following = problem_ids.index(taken[-1]) + 1
        return others([*problem_ids[following:], *problem_ids[:following]], taken, count)
    return [problem_ids[place % len(problem_ids)] for place in stretch]
