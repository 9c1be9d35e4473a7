"""What is drawn: seeds as hashes, and the problems of a step.

1. A seed depends on its parts alone: what has to be sampled again comes out the same, on any machine, in any order.
2. With selection=shuffle and cycle the problems are a stream, cut into steps: the seed and the step decide.
3. Further problems of a step (`refill`) are beside that stream, which they do not move.

selection=adaptive: problems whose groups are likely to have a signal, by what is known of each at that step.

A group teaches nothing if all of its completions are right, or none is. With a pass rate p that is so of a group of G
with the probability p^G + (1-p)^G. What is known of a problem's p is a beta distribution, of three parts:

1. Its own evidence: right and graded completions of the pool's profile, if there is one, and of each step that sampled
   it. The policy moves, so what is `age` steps old counts as 1 / (1 + age / half age) of it, the weight of an
   observation of something that walks at random. With gamma^age a problem never solved would end as a blank again. The
   half age is the longest of HALF_AGES under which the outcomes of the last JUDGED steps were about as likely as under
   the best.
2. The mean of problems like it: a ridge regression of the pass rates seen so far on split, kind and length of the
   statement. A sum of these, not a mean per combination: each of 24 cells would need problems of its own.
3. How much that mean is worth, in completions: little where problems are mostly always or never solved.

A step draws without replacement, each problem with the weight E[1 - p^G - (1-p)^G]^SHARPNESS (Efraimidis and Spirakis,
"Weighted random sampling with a reservoir"), and one in EXPLORED from those of the least evidence. What the last RESTS
steps sampled rests: the first problems found to have a signal would otherwise be most of every later step.

All of it is a function of the pool and of the committed outcomes up to the last step trained into the policy that
samples. These are committed whenever a step is begun, ahead of its turn or not.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

from coderl_tasks.problems.problem import Problem
from coderl_tasks.stats import log_beta

HALF_AGE = 50
"""Steps after which evidence counts half where no outcomes tell: a group of 16 outweighs the prior for as long as a
short run lasts, and a problem that was solved or hopeless is in doubt again, and looked at, before a long one ends."""
HALF_AGES: tuple[int, ...] = (HALF_AGE, 16, 8, 4, 2, 1)
"""Those that are tried. While SmolLM2-135M learned, 50 was too long: a problem that it had just solved eight times of
eight still counted as one that it solves now and then, and half of the groups of a step had no signal."""
JUDGED, SLACK, LEAST_SLACK = 20, 0.1, 1.6
"""The last steps whose outcomes choose the half age, and the nats by which it may be less likely than the best: per
group, and at least in all. Outcomes favour a short one even where 50 is right: the problems that are sampled are those
that seemed to have a signal, and some seemed so by chance (0.06 nats per group in the simulation of
benchmarks/adaptive_selection.py; SmolLM2-135M's outcomes favoured a short one by 0.5)."""
SHARPNESS: float = 6
"""Power of the expected share of groups with a signal. With 1, the many that are probably solved or hopeless take half
of a step from the few that are probably neither: where 30% of 400 simulated problems were between, 47% of the groups
had a signal after a profile of two completions; with 6, 80% (benchmarks/adaptive_selection.py)."""
EXPLORED = 16
"""One problem in so many is drawn from those that least is known of."""
RESTS, RESTING = 4, 1e-3
"""Steps for which a problem that was sampled rests, and the factor of its weight meanwhile: small against an unseen
one's, and large against that of a hopeless one, for a pool that has no others."""
LIKE_WORTH, POOL_WORTH, SPREAD_WORTH = 8.0, 2.0, 8.0
"""Problems, well known ones, that it takes to outweigh the pool's mean in that of a split or a kind; the mean 1/2 in
the pool's; and a prior worth of one completion in the measured one."""
LEAST_MEAN = 0.02
"""Of problems alike, and as far below 1: a regression is a straight line, which may lead beyond 0 and 1."""
KNOWN = 4.0
"""Completions that make a problem count half of a well known one for the means."""
LEAST_SPREAD, MOST_SPREAD = 0.1, 0.8
"""Bounds of the prior's spread, p(1-p) over that of its mean: 0.1 to 4 completions' worth."""
SOLVED, HOPELESS = 0.95, 0.05
"""Expected pass rates from which, and up to which, a problem that has evidence is called so."""

_log_beta = np.vectorize(log_beta, otypes=[np.float64])
Outcome = tuple[str, float, int]
"""Of a group: its problem, the completions that were right, and those that counted."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
    return int.from_bytes(digest.digest()[:4], "big") >> 1


class Selection(Protocol):
    """How a step's problems are chosen: the same whenever it is asked of a step, since a killed run asks again."""

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
    """selection=shuffle: a stream of shuffled epochs over the pool, cut into steps. Raises as `places` does. A pool
    smaller than a step repeats problems within it. Further problems are the first others of the step's own shuffle."""
    stretch, size = places(problem_ids, step=step, count=count), len(problem_ids)
    if taken:
        # Not the stream's next ones: the step that follows takes those.
        return others(epoch_order(problem_ids, seed=seed_for(seed, "refill", step), epoch=0), taken, count)
    epochs = range(stretch.start // size, stretch[-1] // size + 1)
    stream = [problem_id for epoch in epochs for problem_id in epoch_order(problem_ids, seed=seed, epoch=epoch)]
    offset = stretch.start - epochs.start * size
    return stream[offset : offset + count]


def cycle(problem_ids: Sequence[str], *, seed: int, step: int, count: int, taken: Sequence[str] = ()) -> list[str]:
    """selection=cycle: the pool in its own order, again and again, as the recipe takes its subsets. Raises as `places`
    does. Further problems are those that follow in the pool: as hard, and the next step takes them again."""
    stretch = places(problem_ids, step=step, count=count)
    if taken:
        following = problem_ids.index(taken[-1]) + 1
        return others([*problem_ids[following:], *problem_ids[:following]], taken, count)
    return [problem_ids[place % len(problem_ids)] for place in stretch]


SELECTIONS: dict[str, Selection] = {"shuffle": shuffle, "cycle": cycle}
"""By the value of the setting `selection`, those that the call alone decides; `Adaptive` is made with the run."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What was known when a step's problems were chosen."""

    signal: float  # share of its groups that were expected to have a signal
    seen: int  # problems that earlier steps had sampled
    solved: int  # problems that looked solved
    hopeless: int
    half_age: int  # steps after which results counted half


@dataclass(frozen=True, slots=True)
class Beliefs:
    """Of each problem of the pool: its beta distribution, and the evidence in it, in completions of today."""

    right: Floats
    wrong: Floats
    evidence: Floats
    half_age: int  # steps after which evidence counts half
    seen: int  # how many of the problems a step has sampled
    just_sampled: Ints  # the places of those that one of the last RESTS steps sampled


def outcome(rewards: Sequence[float | None]) -> tuple[float, int]:
    """The right completions of a group with these rewards, and how many counted (not None). A reward between 0 and 1 is
    that much of a right one, but rewards that are all equal are all right or all wrong: the group has no signal."""
    counted = [reward for reward in rewards if reward is not None]
    if not counted:
        return 0.0, 0
    if min(counted) == max(counted):
        return float(len(counted) if counted[0] >= 0.5 else 0), len(counted)
    return math.fsum(min(1.0, max(0.0, reward)) for reward in counted), len(counted)


def expected_signal(right: Floats, wrong: Floats, completions: int | Sequence[int]) -> Floats:
    """The expected share of groups of so many completions (of all, or of each) that are neither all right nor all
    wrong, where the pass rate has the distribution Beta(right, wrong)."""
    sizes = np.asarray(completions)
    all_right, all_wrong, total = np.ones_like(right), np.ones_like(right), right + wrong
    for drawn in range(int(sizes.max())):  # E[p^G] is the product of (right + k) / (right + wrong + k), for k below G
        all_right *= np.where(drawn < sizes, (right + drawn) / (total + drawn), 1.0)
        all_wrong *= np.where(drawn < sizes, (wrong + drawn) / (total + drawn), 1.0)
    return np.maximum(0.0, 1 - all_right - all_wrong)


class Adaptive:
    """Selects problems of a pool by their expected signal."""

    def __init__(
        self,
        problems: Sequence[Problem],
        profiled: Mapping[str, tuple[int, int]],
        outcomes: Callable[[], Sequence[Sequence[Outcome]]],
        *,
        completions: int,
        lag: int,
    ) -> None:
        """`profiled` has, by problem id, how many completions of the pool's profile were right and how many were
        graded. `outcomes()` returns those of each committed step, in order. `completions` is the size of a group. When
        a step is sampled, up to `lag` steps before it may not be committed yet (max_steps_off_policy)."""
        self._ids = [problem.problem_id for problem in problems]
        self._place = {problem_id: place for place, problem_id in enumerate(self._ids)}
        self._features = _features(problems)
        self._outcomes = outcomes
        self._completions = completions
        self._lag = lag
        self._evidence = np.empty((0, 4))  # rows are (step, place, right, graded); those of the profile have step -1
        self._add_evidence([(-1, name, *counts) for name, counts in profiled.items() if name in self._place])
        self._steps_read = 0  # committed steps whose outcomes are in `_evidence`
        self._judged: dict[int, Floats] = {}  # `_likelihoods` by step
        self._cached: tuple[int, Beliefs] | None = None  # of the last step asked for

    def __call__(
        self, problem_ids: Sequence[str], *, seed: int, step: int, count: int, taken: Sequence[str] = ()
    ) -> list[str]:
        """As `Selection`, by `seed`, `step` and committed outcomes only. Raises as `places` does, and ValueError if the
        ids are not the pool's or a step whose outcomes are needed is not committed yet."""
        places(problem_ids, step=step, count=count)  # raises for impossible arguments; its result is not used
        if list(problem_ids) != self._ids:
            raise ValueError("adaptive chooses from the pool that it was made with")
        beliefs = self.beliefs(step)
        # Prefer groups with mixed rewards. What was just sampled is a last resort for some steps.
        weights = expected_signal(beliefs.right, beliefs.wrong, self._completions) ** SHARPNESS
        weights[beliefs.just_sampled] *= RESTING
        # Two uniform numbers in (0, 1) per problem, of 53 bits each. From raw bits: numpy keeps their stream in all
        # versions, but may change that of Generator's methods.
        bits = np.random.PCG64(seed_for(seed, "adaptive", step)).random_raw(2 * len(weights)).reshape(2, -1)
        uniform, lots = ((bits >> np.uint64(11)) + np.float64(0.5)) * 2.0**-53
        # Weighted draws without replacement: -log(u) / weight is an exponential variable, and the smallest ones win.
        drawn = self._smallest(-np.log(uniform) / np.maximum(weights, 1e-9), count + len(taken))
        if taken:  # the step has its explored problems
            return others(drawn, taken, count)
        # Over all steps one in EXPLORED problems is chosen for having the least evidence. This step's number of them:
        explored = (step + 1) * count // EXPLORED - step * count // EXPLORED
        if explored:
            last = min(explored, len(weights)) - 1
            limit = np.partition(beliefs.evidence, last)[last]
            # Key 0, below the limit: always chosen; a random key, at the limit: by lot; key 1, above it: never.
            keys = np.where(beliefs.evidence < limit, 0.0, np.where(beliefs.evidence == limit, lots, 1.0))
            least_known = self._smallest(keys, explored)
            drawn = [*others(drawn, least_known, count - explored), *least_known]
        return [drawn[place % len(drawn)] for place in range(count)]  # a pool smaller than the step repeats

    def beliefs(self, step: int) -> Beliefs:
        """Returns what is known of each problem's pass rate when `step` is sampled."""
        if self._cached is None or self._cached[0] != step:  # `forecast` asks again
            groups = self._counted_outcomes(step)
            counted = max(0, step - self._lag)
            judged = [self._likelihoods(earlier) for earlier in range(max(0, counted - JUDGED), counted)]
            total = sum((each.sum(axis=0) for each in judged), np.zeros(len(HALF_AGES)))
            slack = max(LEAST_SLACK, SLACK * sum(map(len, judged)))
            longest = int(np.argmax(total >= total.max() - slack))  # the first, as they descend
            self._cached = step, self._beliefs(step, HALF_AGES[longest], groups)
        return self._cached[1]

    def _likelihoods(self, step: int) -> Floats:
        """The log-likelihood (up to a constant, see `log_beta`) of each outcome of a committed step, under what was
        known when it was sampled, with each of HALF_AGES: (groups, half ages)."""
        if step not in self._judged:
            groups = self._counted_outcomes(step)
            _, where, right, graded = self._counted_outcomes(step + self._lag + 1, first=step)
            found = []
            for half_age in HALF_AGES:
                known = self._beliefs(step, half_age, groups)
                a, b = known.right[where], known.wrong[where]
                found.append(_log_beta(a + right, b + graded - right) - _log_beta(a, b))
            self._judged[step] = np.stack(found, axis=1)
            self._judged.pop(step - 2 * JUDGED, None)  # not asked for again
        return self._judged[step]

    def _beliefs(self, step: int, half_age: int, groups: tuple[Ints, Ints, Floats, Floats]) -> Beliefs:
        """What is known of each problem's pass rate when `step` is sampled, as Beta(right, wrong): a prior from similar
        problems and its own outcomes, which count less the older they are. `groups` are those whose outcomes count."""
        when, where, right, graded = groups
        fade = 1 / (1 + (step - when) / half_age)
        # By problem: right and graded completions, faded; the pass rate; and how much it is to count, from 0 to 1.
        n_right, n_graded = (_sums(where, fade * counts, len(self._ids)) for counts in (right, graded))
        rate = n_right / np.maximum(n_graded, 1e-12)  # 0 without evidence
        known = n_graded / (n_graded + KNOWN)
        # The mean rate of the pool, as if POOL_WORTH further problems had a rate of 1/2; then that of similar problems.
        pool_mean = float((POOL_WORTH / 2 + (known * rate).sum()) / (POOL_WORTH + known.sum()))
        similar_mean = pool_mean + self._deviation_of_similar(known, rate - pool_mean)
        mean = np.clip(similar_mean, LEAST_MEAN, 1 - LEAST_MEAN)
        # The prior counts as so many completions with that mean, to which the problem's own are added.
        spread = self._spread(where, fade, right, graded, known, pool_mean, mean)
        worth = spread / (1 - spread)
        beta_right, beta_wrong = worth * mean + n_right, worth * (1 - mean) + n_graded - n_right
        seen = len(np.unique(where[when >= 0]))
        # Only of steps that count: when sampling ahead, what the previous step sampled may not be known.
        just_sampled = np.unique(where[(when >= 0) & (when >= step - self._lag - RESTS)])
        return Beliefs(beta_right, beta_wrong, n_graded, half_age, seen, just_sampled)

    def _spread(
        self, where: Ints, fade: Floats, right: Floats, graded: Floats, known: Floats, pool_mean: float, mean: Floats
    ) -> float:
        """Returns how far pass rates are spread about `mean`: p(1-p) over that of the mean, averaged over problems,
        near 0 if these are always or never solved. Two completions of a group estimate p(1-p). Under a Beta prior with
        mean m, worth w completions, its expectation is m(1-m) w / (w + 1): so the spread is w / (w + 1)."""
        has_pairs = graded >= 2
        pair_variance = np.where(has_pairs, right * (graded - right) / np.maximum(graded * (graded - 1), 1), 0.0)
        paired = _sums(where, fade * has_pairs, len(mean))  # by problem, as what follows
        variance = _sums(where, fade * pair_variance, len(mean)) / np.maximum(paired, 1e-12)
        weight = np.where(paired > 0, known, 0.0)
        pseudo_evidence = SPREAD_WORTH * pool_mean * (1 - pool_mean)  # for a spread of 1/2
        observed = pseudo_evidence / 2 + (weight * variance).sum()
        spread = observed / (pseudo_evidence + (weight * mean * (1 - mean)).sum())
        return min(MOST_SPREAD, max(LEAST_SPREAD, float(spread)))

    def _deviation_of_similar(self, known: Floats, above: Floats) -> Floats:
        """How far above the pool's mean problems like each (N,) are solved, where those `known` (N,) are `above` it."""
        seen = np.flatnonzero(known)
        features = self._features[seen]
        weighted = features * known[seen, None]
        # By einsum, which adds up in one order whatever number of threads there are.
        precision = np.einsum("nf,ng->fg", features, weighted) + np.eye(features.shape[1])
        slopes = np.linalg.solve(precision, np.einsum("nf,n->f", weighted, above[seen]))
        return np.einsum("nf,f->n", self._features, slopes)

    def forecast(self, step: int, problem_ids: Sequence[str], sizes: Sequence[int]) -> Forecast:
        """What was known when `problem_ids`, one per group of so many completions, were chosen for `step`."""
        beliefs, chosen = self.beliefs(step), np.array([self._place[problem_id] for problem_id in problem_ids])
        expected = expected_signal(beliefs.right[chosen], beliefs.wrong[chosen], sizes)
        mean, has_evidence = beliefs.right / (beliefs.right + beliefs.wrong), beliefs.evidence > 0
        return Forecast(
            signal=math.fsum(expected) / len(problem_ids),
            seen=beliefs.seen,
            solved=int((has_evidence & (mean > SOLVED)).sum()),
            hopeless=int((has_evidence & (mean < HOPELESS)).sum()),
            half_age=beliefs.half_age,
        )

    def _smallest(self, keys: Floats, count: int) -> list[str]:
        """The problems of the smallest keys, in their order: `count` of them, or all."""
        found = np.argpartition(keys, count)[:count] if count < len(keys) else np.arange(len(keys))
        return [self._ids[place] for place in found[np.argsort(keys[found], kind="stable")].tolist()]

    def _counted_outcomes(self, step: int, first: int = -1) -> tuple[Ints, Ints, Floats, Floats]:
        """By group of the steps from `first` whose outcome counts for `step`: its step (-1 for the profile), its
        problem's place, the right completions and the graded ones."""
        committed, counted = self._outcomes(), max(0, step - self._lag)
        if len(committed) < counted:
            raise ValueError(f"step {step} is chosen by the first {counted} steps, of which {len(committed)} are done")
        new = range(self._steps_read, len(committed))
        self._add_evidence([(number, *row) for number in new for row in committed[number]])
        self._steps_read = len(committed)
        table = self._evidence[(first <= self._evidence[:, 0]) & (self._evidence[:, 0] < counted)]
        return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2], table[:, 3]

    def _add_evidence(self, rows: Sequence[tuple[int, str, float, int]]) -> None:
        """Add evidence: the step, the problem, the right completions and the graded ones."""
        found = [(step, self._place[name], right, graded) for step, name, right, graded in rows if graded]
        self._evidence = np.concatenate([self._evidence, np.array(found, dtype=np.float64).reshape(-1, 4)])


def _features(problems: Sequence[Problem]) -> Floats:
    """What problems are compared by (N, F): the rank of their length, -1 to 1, its square, their split and their kind.
    Each is as large as the pass rate may change with it, by one standard deviation."""
    lengths = np.array([len(problem.statement) for problem in problems])
    ordered = np.sort(lengths)
    shorter, not_longer = (np.searchsorted(ordered, lengths, side) for side in ("left", "right"))
    length = (shorter + not_longer) / len(problems) - 1  # equal lengths have one rank
    columns = [length, length**2 - 1 / 3]
    for values in ([problem.split for problem in problems], [problem.kind for problem in problems]):
        columns += [np.array([value == one for value in values]) / math.sqrt(LIKE_WORTH) for one in sorted(set(values))]
    return np.stack(columns, axis=1).astype(np.float64)


def _sums(places: Ints, values: Floats, size: int) -> Floats:
    """The sum of the values at each place, added in their order: that of the journal, the same in every process."""
    return np.bincount(places, values, size).astype(np.float64)
