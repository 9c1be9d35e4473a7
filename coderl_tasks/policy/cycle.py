"""selection=cycle: the pool in its own order, again and again, as the recipe takes its subsets.

A step takes the next problems, and where the pool ends inside a step it begins anew: problem `i` of the stream is
`pool[i mod size]`. The seed decides nothing. Whoever orders a pool from easy to hard trains in that order;
neighbours in the pool stay neighbours in a step, which a shuffle would part.
"""

from collections.abc import Sequence

from coderl_tasks.policy.selection import places


def cycle(problem_ids: Sequence[str], *, seed: int, step: int, count: int) -> list[str]:
    """The `count` problems of `step` (from 0), in group order. Raises as `places` does."""
    return [problem_ids[place % len(problem_ids)] for place in places(problem_ids, step=step, count=count)]
