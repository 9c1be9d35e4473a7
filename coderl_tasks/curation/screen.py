"""profile_mode=screen: at most one round of samples per problem; a posterior decides what is kept.

Of a problem that is never solved, the statement and two samples tell nearly as much as sixteen samples. So a problem
has at most one round (profile_round), and the other problems supply the rest:

1. The prior of `curation.labels` (a mixture of never, always and beta distributions, by split and prompt length) gets
   one more level: a problem's weights are drawn to those of the NEIGHBOURS with the most similar statements, as their
   own samples give them. A neighbour counts by its squared similarity, the group's weights as GROUP_WORTH problems.
2. A problem is learnable if all of profile_samples samples would put its pass rate in the band, as profile_mode=fixed
   decides. The posterior gives the probability of that after any number of samples, none included.
3. Problems come in PARTS parts, in hash order. The first part is sampled whole. Of each later part, problems are
   skipped if the parts before put their chance below `skip_below`. At the end, those below `drop_below` are dropped.

Two samples hardly tell never solved from seldom solved, so low probabilities are too high: at the default limits far
less is lost than they say (benchmarks/curation.md). Skipped problems tell nothing of others, which raises the
probabilities a little more: hence two limits.

The result depends only on the problems and the recorded samples, so a curation that was killed or is repeated decides
the same. Similarities are of whole numbers, equal on every machine; weights are rounded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import comb
from zlib import crc32

import numpy as np
import numpy.typing as npt
import polars as pl

from coderl_tasks.curation.labels import DIGITS, RATES, Array, Prior, components, fully_graded, learn_prior, likelihood
from coderl_tasks.curation.stopping_rule import Band
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.problems.problem import Drop, Problem

SKIP_BELOW, DROP_BELOW = 0.15, 0.1
PARTS = 4
NEIGHBOURS = 20
GROUP_WORTH = 1.0
EM_STEPS = 20
"""Two failures of one problem hardly tell never from seldom; those of many like it do, a little more with each step."""
BUCKETS = 2048  # words and pairs of words are counted by a hash of so many values
BLOCK = 512
_TOKEN = re.compile(r"[^\W\d]+|\d+")
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Beliefs:
    """What is known of the problems of a `Screen`: the `prior`, and by problem_id the distribution (J,) of pass rates
    before a problem's own samples, and the probability that it is learnable, its own samples included."""

    prior: Prior
    distributions: Mapping[str, Array]
    chances: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Screened:
    """By problem_id the probability that a problem is learnable, and the least with which it is kept."""

    chances: Mapping[str, float]
    drop_below: float


def in_words(chance: float) -> str:
    """What is said of a problem that is left out."""
    return f"learnable with a probability of {chance:.3f}"


class Screen:
    """The `problems` of a curation, whose prompts have so many tokens, and what samples of some say of all. `band` and
    `max_samples` say what is learnable."""

    def __init__(
        self, problems: Sequence[Problem], prompt_tokens: Sequence[int], band: Band, max_samples: int, seed: int
    ) -> None:
        self.problems, self._prompt_tokens = problems, prompt_tokens
        self._band, self._max_samples, self._seed = band, max_samples, seed
        self._place = {problem.problem_id: place for place, problem in enumerate(problems)}
        self._vectors = _Vectors([f"{problem.statement}\n{problem.starter_code}" for problem in problems])

    def parts(self) -> list[list[Problem]]:
        """The problems in PARTS parts, of a size, by the order of a hash."""
        names = sorted(self._place, key=lambda name: (seed_for(self._seed, "screen", name), name))
        ranked = [self.problems[self._place[name]] for name in names]
        edges = [len(ranked) * part // PARTS for part in range(PARTS + 1)]
        return [ranked[edges[part] : edges[part + 1]] for part in range(PARTS)]

    def split(self, part: Sequence[Problem], profile: pl.DataFrame, least: float) -> tuple[list[Problem], list[Drop]]:
        """Those of `part` that are worth samples, by the `profile` (SHARD_SCHEMA) of others: their chance is at least
        `least`; and the drops of the rest. All of them are worth it while nothing is profiled."""
        if not len(profile):
            return list(part), []
        chances = self.beliefs(profile).chances
        worth, drops = [], []
        for problem in part:
            chance = chances[problem.problem_id]
            if chance >= least:
                worth.append(problem)
            else:
                drops.append(Drop.of(problem, "screen", "hardly_learnable", f"unsampled, {in_words(chance)}"))
        return worth, drops

    def beliefs(self, profile: pl.DataFrame) -> Beliefs:
        """What the `profile` (SHARD_SCHEMA) of the problems sampled so far says of all problems (P), by J pass rates
        (RATES) and C components of a prior."""
        group_prior = learn_prior(profile)
        columns = fully_graded(profile).select("problem_id", "n_correct", "n_samples").iter_rows()
        sampled = sorted((self._place[name], k, n) for name, k, n in columns)  # the profile's order must not matter
        places = np.array([place for place, _, _ in sampled], dtype=np.int64)
        states = [(k, n) for _, k, n in sampled]  # (passes, samples)
        group_weights = [
            group_prior.weights[group_prior.group(problem.split, tokens)]
            for problem, tokens in zip(self.problems, self._prompt_tokens, strict=True)
        ]
        base_PC = np.array(group_weights).reshape(len(self.problems), -1)
        priors_PJ = self._weights_by_neighbours(base_PC, places, states) @ components()  # (P, C) @ (C, J)
        # Unsampled problems keep the chance of their prior. For the others: posteriors, per state for all its problems.
        chances = priors_PJ @ _learnable_chance(self._band, n_correct=0, n=0, max_samples=self._max_samples)
        for state in sorted(set(states)):
            of_state = places[[other == state for other in states]]
            posterior_SJ = priors_PJ[of_state] * likelihood(*state)
            posterior_SJ /= posterior_SJ.sum(axis=1, keepdims=True)
            chances[of_state] = posterior_SJ @ _learnable_chance(self._band, *state, self._max_samples)
        distributions = dict(zip(self._place, priors_PJ, strict=True))
        return Beliefs(group_prior, distributions, dict(zip(self._place, chances.round(DIGITS).tolist(), strict=True)))

    def _weights_by_neighbours(self, base_PC: Array, seen: Ints, states: Sequence[tuple[int, int]]) -> Array:
        """The weights (P, C) of each problem's components: its group's, drawn to what its neighbours' samples say."""
        if not len(seen):
            return base_PC
        near_PK, similarity_PK = self._nearest(seen)
        worth_PK = similarity_PK.astype(np.float64) ** 2
        likelihood_SC = np.stack([likelihood(k, n) @ components().T for k, n in states])
        weights_PC = base_PC
        for _ in range(EM_STEPS):
            share_SC = likelihood_SC * weights_PC[seen]
            share_SC /= share_SC.sum(axis=1, keepdims=True)
            told_PC = np.einsum("pk,pkc->pc", worth_PK, share_SC[near_PK])
            weights_PC = (GROUP_WORTH * base_PC + told_PC) / (GROUP_WORTH + worth_PK.sum(axis=1, keepdims=True))
            weights_PC = weights_PC.round(DIGITS)
        return weights_PC

    def _nearest(self, seen: Ints) -> tuple[Ints, npt.NDArray[np.float32]]:
        """Of each problem (P, K) the likest of those `seen`, as places in it, and how like they are, from 0 to 1. A
        problem is none of its own; of equally like ones the first in order are taken."""
        found, how_like = [], []
        others = self._vectors.has[seen] * self._vectors.worth
        count = min(NEIGHBOURS, len(seen))
        for start in range(0, len(self.problems), BLOCK):
            block = np.arange(start, min(start + BLOCK, len(self.problems)))
            like = self._vectors.similarity(block, seen, others)
            like[block[:, None] == seen[None, :]] = 0.0
            # A partition alone would leave ties to chance: one problem more or less, and another neighbour is taken.
            least = np.partition(like, -count, axis=1)[:, -count]
            for row, limit in zip(like, least, strict=True):
                places = np.flatnonzero(row >= limit)
                places = places[np.argsort(-row[places], kind="stable")[:count]]
                found.append(places)
                how_like.append(row[places])
        return np.stack(found), np.stack(how_like)


class _Vectors:
    """Texts as sets of hashed words and pairs of words: `has` (P, BUCKETS) is 1 where a text has it, `worth` (BUCKETS,)
    a whole number that grows the fewer texts have it, and `length` (P,) the sum of what a text has. Sums are of whole
    numbers below 2^24, which float32 holds exactly, in whatever order they are added."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.has = np.zeros((len(texts), BUCKETS), dtype=np.float32)
        for row, text in zip(self.has, texts, strict=True):
            # Numbers are one word: which ones an example has says nothing of the kind of problem.
            words = ["0" if word[0].isdigit() else word for word in _TOKEN.findall(text.lower())]
            pairs = {f"{one} {other}" for one, other in pairwise(words)}
            row[[crc32(term.encode()) % BUCKETS for term in {*words, *pairs}]] = 1.0
        self.worth = np.round(4 * np.log2((1 + len(texts)) / (1 + self.has.sum(axis=0)))).astype(np.float32)
        self.length = (self.has @ self.worth).astype(np.float32)

    def similarity(self, of: Ints, among: Ints, weighted: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """How like the texts `of` (P) and `among` (S) are (P, S), from 0 to 1: what both have, over the geometric mean
        of what each has (cosine). `weighted` (S, BUCKETS) is what those `among` have, by its worth."""
        common = self.has[of] @ weighted.T
        size = np.sqrt(self.length[of])[:, None] * np.sqrt(self.length[among])[None, :]
        return np.divide(common, size, out=np.zeros_like(common), where=size > 0)


@lru_cache(maxsize=1024)
def _learnable_chance(band: Band, n_correct: int, n: int, max_samples: int) -> Array:
    """The probability (J,), at each of RATES, that `max_samples` samples lie in the band, of which `n` are known."""
    left = max_samples - n
    chances = np.zeros_like(RATES)
    for more in range(left + 1):
        if band.has(n_correct + more, max_samples):
            chances += comb(left, more) * likelihood(more, left)
    return chances
