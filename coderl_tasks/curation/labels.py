"""What the profile says of each problem's pass rate and difficulty, under a prior learned from the whole profile.

One pass of two says little: if most problems are never or always solved, a pass rate of 0.5 is the least likely. So
the set's distribution of pass rates is learned first, and updated by a problem's own samples (empirical Bayes).

1. A distribution of pass rates is a mixture: never (rate 0), always (rate 1), and Beta(i + 1, DEGREE - i + 1) for i
   from 0 to DEGREE. These are Bernstein's polynomials, which follow any smooth shape, a U as well; with equal weights
   they are the uniform distribution. All of it is on a grid of CELLS cells and the two ends: posteriors are exact sums.
2. The weights are learned by EM from how many problems had k of n passes: of all problems, of each split, and of each
   split's thirds by the prompt's length. A group is drawn towards the one that holds it, as if STRENGTH more problems
   had been seen that look like that one (a Dirichlet prior; the weights are the posterior's mode). So a split of ten
   problems has nearly the weights of all, and one of a thousand its own.
3. A stopping rule decides the number of samples from these samples. That biases k / n, but not the posterior: the
   probability of a sequence of outcomes is p^k (1 - p)^(n - k) times a factor of the rule, which is free of p.
4. The result depends only on the profile, in any order of its problems, so a curation that was killed ends with the
   same labels. The weights are rounded before they are used, and the manifest has them.

Limits: two samples per problem determine two numbers of the distribution, the Dirichlet prior the rest. The features
are the split and the prompt's length; profile_mode=screen adds outcomes of similar statements (`curation.screen`).

Sources: Efron 2016, "Empirical Bayes deconvolution estimates"; Dempster, Laird and Rubin 1977 (EM).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import comb
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from coderl_tasks.curation.stopping_rule import DIFFICULTIES, EASY_FROM, HARD_BELOW, Difficulty, State, StoppingRule
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.problems.profile_columns import LABEL_COLUMNS, POSTERIOR_BINS
from coderl_tasks.rollouts.rounds import SamplingPlan
from coderl_tasks.stats import CONFIDENCE

VERSION = 1  # of the method: the same profile gives the same labels as long as this is the same
DEGREE = 12
CELLS = 200
STRENGTH = 20
EM_STEPS = 500
PRICE_STEPS = 30
DIGITS = 6
THIRDS = ("short", "middle", "long")
ALL = "all"
Array = np.ndarray[Any, np.dtype[np.float64]]

# The rates of the grid (J,): never, the middles of the cells, always.
RATES: Array = np.concatenate([[0.0], (np.arange(CELLS) + 0.5) / CELLS, [1.0]])


class Posterior(NamedTuple):
    """A pass rate's mean and 95% interval, the most probable difficulty, and the probability of each (hard, medium,
    easy) and of each of POSTERIOR_BINS equal parts of 0 to 1."""

    mean: float
    low: float
    high: float
    difficulty: Difficulty
    by_difficulty: tuple[float, ...]
    by_bin: tuple[float, ...]

    @property
    def probability(self) -> float:
        return max(self.by_difficulty)


@dataclass(frozen=True)
class Prior:
    """Distributions of pass rates: the components' weights (C,) by group ("all", a split, or split/third), and where a
    split's second and third third begin, in prompt tokens."""

    weights: Mapping[str, tuple[float, ...]]
    edges: Mapping[str, tuple[int, int]]

    def group(self, split: str, prompt_tokens: int) -> str:
        """The smallest group that a problem belongs to."""
        if split not in self.edges:
            return ALL
        return f"{split}/{THIRDS[sum(prompt_tokens >= edge for edge in self.edges[split])]}"

    def distribution(self, group: str = ALL) -> Array:
        """The probability (J,) of each of RATES in a group."""
        return np.asarray(self.weights[group]) @ components()

    def as_dict(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "prior": f"never, always, Beta(i+1, {DEGREE}-i+1) for i=0..{DEGREE}; groups shrunk by {STRENGTH} problems",
            "weights": {group: list(weights) for group, weights in self.weights.items()},
            "prompt_tokens": {split: list(edges) for split, edges in self.edges.items()},
        }


def fully_graded(profile: pl.DataFrame) -> pl.DataFrame:
    """The problems of `profile` that have a graded sample, and whose sampling was brought to an end."""
    return profile.filter(pl.col("n_samples") > 0, pl.col("infra_errors") == 0)


def learn_prior(profile: pl.DataFrame) -> Prior:
    """The prior that `profile` (SHARD_SCHEMA) shows."""
    seen = fully_graded(profile)
    flat = np.full(DEGREE + 3, 1 / (DEGREE + 3))
    whole = _fit(seen, flat)
    weights, edges = {ALL: tuple(whole.tolist())}, {}
    for split in sorted(seen["split"].unique()):
        part = seen.filter(split=split)
        lengths = part["prompt_tokens"].sort().to_list()
        edges[split] = (lengths[len(lengths) // 3], lengths[2 * len(lengths) // 3])
        of_split = _fit(part, whole)
        weights[split] = tuple(of_split.tolist())
        third = pl.sum_horizontal((pl.col("prompt_tokens") >= edge).cast(pl.Int32) for edge in edges[split])
        for number, name in enumerate(THIRDS):
            weights[f"{split}/{name}"] = tuple(_fit(part.filter(third == number), of_split).tolist())
    return Prior(weights, edges)


def _fit(problems: pl.DataFrame, expected: Array) -> Array:
    """The weights (C,), rounded, that the problems' passes and samples show, drawn towards those `expected`."""
    states = problems.group_by("n_correct", "n_samples").len().sort("n_samples", "n_correct")
    weights = expected.copy()
    if len(states):
        likelihood_SC = np.stack([likelihood(k, n) @ components().T for k, n, _ in states.iter_rows()])
        # Scaled by state, which changes nothing: of 16 samples it is small.
        likelihood_SC /= likelihood_SC.max(axis=1, keepdims=True)
        counts_S = states["len"].to_numpy().astype(np.float64)
        total = counts_S.sum() + STRENGTH
        for _ in range(EM_STEPS):
            share_SC = likelihood_SC * weights
            share_SC /= share_SC.sum(axis=1, keepdims=True)
            weights = (counts_S @ share_SC + STRENGTH * expected) / total
    rounded = weights.round(DIGITS)
    rounded[rounded.argmax()] += 1 - rounded.sum()
    return rounded.round(DIGITS)


@cache
def components() -> Array:
    """The components on the grid (C, J), each adding up to 1."""
    inner = [RATES**i * (1 - RATES) ** (DEGREE - i) for i in range(DEGREE + 1)]
    for component in inner:
        component[[0, -1]] = 0.0
    return np.stack([(RATES == 0.0) * 1.0, *(component / component.sum() for component in inner), (RATES == 1.0) * 1.0])


def likelihood(n_correct: int, n: int) -> Array:
    """The probability (J,) of one sequence with `n_correct` of `n` passes at each of RATES. Which sequences a stopping
    rule lets happen is a factor that is the same at each, and cancels out."""
    return RATES**n_correct * (1 - RATES) ** (n - n_correct)


def posterior(distribution: Array, n_correct: int, n: int) -> Posterior:
    """What `n_correct` of `n` samples say of a problem of a set whose pass rates have this `distribution` (J,)."""
    by_rate = distribution * likelihood(n_correct, n)
    by_rate /= by_rate.sum()
    below = by_rate.cumsum()
    tail = (1 - CONFIDENCE) / 2
    # Rounded, labels by what is rounded: the last bits of a sum are not the same on every machine.
    by_difficulty = tuple(float(by_rate[part].sum().round(DIGITS)) for part in _PARTS)
    return Posterior(
        float((by_rate @ RATES).round(DIGITS)),
        float(RATES[np.searchsorted(below, tail)]),
        float(RATES[min(int(np.searchsorted(below, 1 - tail)), len(RATES) - 1)]),
        DIFFICULTIES[by_difficulty.index(max(by_difficulty))],
        by_difficulty,
        tuple(np.bincount(_BINS, by_rate, POSTERIOR_BINS).round(DIGITS).tolist()),
    )


_PARTS = (RATES < HARD_BELOW, (RATES >= HARD_BELOW) & (RATES < EASY_FROM), RATES >= EASY_FROM)
_BINS = np.minimum((RATES * POSTERIOR_BINS).astype(int), POSTERIOR_BINS - 1)


def with_labels(profile: pl.DataFrame, prior: Prior, own: Mapping[str, Array] | None = None) -> pl.DataFrame:
    """`profile` with each problem's most probable `difficulty` and LABEL_COLUMNS, null where nothing was graded. The
    prior is that of the problem's group, but for problems in `own`: by problem_id, the probabilities (J,) of RATES."""
    distributions = {group: prior.distribution(group) for group in prior.weights}
    own = own or {}
    group_posterior = cache(lambda group, k, n: posterior(distributions[group], k, n))  # few differ
    rows: list[list[Any]] = []
    columns = ["problem_id", "split", "prompt_tokens", "n_samples", "n_correct"]
    for name, split, tokens, n, k in profile.select(columns).iter_rows():
        if n:
            result = posterior(own[name], k, n) if name in own else group_posterior(prior.group(split, tokens), k, n)
            probabilities = [result.probability, *result.by_difficulty]
            rate = (result.mean, result.low, result.high, list(result.by_bin))
            rows.append([result.difficulty, *probabilities, *rate])  # in the order of LABEL_COLUMNS
        else:  # nothing was graded
            rows.append([None] * (1 + len(LABEL_COLUMNS)))
    labels = pl.DataFrame(rows, schema={"difficulty": pl.String(), **LABEL_COLUMNS}, orient="row")
    columns = [*profile.columns]
    if "posterior" not in columns:  # a profile without labels: they follow `test_catches`, as in PROFILE_SCHEMA
        after_catches = columns.index("test_catches") + 1
        columns[after_catches:after_catches] = [*LABEL_COLUMNS]
    return profile.drop("difficulty", *LABEL_COLUMNS, strict=False).hstack(labels).select(columns)


def rules_for_labels(
    profile: pl.DataFrame, prior: Prior, plan: SamplingPlan, rule: StoppingRule, budget: float
) -> tuple[dict[str, StoppingRule], float]:
    """Plans `budget` further samples where they make labels (difficulties) surest. Returns the stopping rules of the
    problems to sample further, by problem_id, and how many samples they are expected to take. Problems outside the
    band get none. A rule's `doubtful` lists the states in which a problem takes another round of samples.

    `profile` is the result of sampling by `plan` and `rule`. For a price per sample, backward induction over rounds
    decides in each state: continue if the label's probability is expected to grow by more than the round costs. The
    price is the lowest at which the samples expected under `prior` fit the budget.
    """
    columns = fully_graded(profile).select("problem_id", "n_correct", "n_samples")
    in_band = {name: (k, n) for name, k, n in columns.iter_rows() if rule.band.has(k, n)}
    counts = Counter(in_band.values())
    further = _FurtherRounds(prior.distribution(), plan, rule)

    def expected(samples: Mapping[State, float]) -> float:
        return sum(count * samples[state] for state, count in counts.items())

    # Bisect to the highest price at which the samples exceed the budget, and the lowest at which they do not.
    too_low, affordable = 0.0, 1.0  # at 1 no round is worth its price: probabilities are at most 1
    for _ in range(PRICE_STEPS):
        price = (too_low + affordable) / 2
        if expected(further.at_price(price)[1]) <= budget:
            affordable = price
        else:
            too_low = price
    (doubtful, samples), (doubtful_beyond, samples_beyond) = map(further.at_price, (affordable, too_low))
    total = expected(samples)
    rules = {}
    # A price decides alike for all problems in one state. What is left of the budget goes to single problems, in the
    # order of a hash: each that it suffices for is sampled as at the price just below, at which all would exceed it.
    for name in sorted(in_band, key=lambda name: (seed_for("labels", name), name)):
        state = in_band[name]
        extra = samples_beyond[state] - samples[state]
        if total + extra <= budget:
            total += extra
            if samples_beyond[state]:  # else its sampling has ended
                rules[name] = replace(rule, doubtful=doubtful_beyond)
        elif samples[state]:
            rules[name] = replace(rule, doubtful=doubtful)
    return rules, total


class _FurtherRounds:
    """What further rounds are worth to labels, by (passes, samples), where pass rates have a `distribution` (J,)."""

    def __init__(self, distribution: Array, plan: SamplingPlan, rule: StoppingRule) -> None:
        sizes = plan.round_sizes
        ends = np.cumsum(sizes).tolist()
        self.next_round = dict(zip(ends, [*sizes[1:], 0], strict=True))
        self.states = [(k, n) for n in ends for k in range(n + 1)]
        self.now = {state: posterior(distribution, *state).probability for state in self.states}
        # Where the rule itself wants another round: a problem that was kept may come there again.
        self.unclear = {(k, n) for k, n in self.states if n < ends[-1] and not rule.is_clear(k, n, ends[-1])}
        self.kept = {state for state in self.states if rule.band.has(*state)}
        self.ahead: dict[State, list[tuple[float, State]]] = {}
        for k, n in self.states:
            by_rate = distribution * likelihood(k, n)
            by_rate /= by_rate.sum()
            more = self.next_round[n]
            chances = [comb(more, m) * float(by_rate @ likelihood(m, more)) for m in range(more + 1)]
            self.ahead[k, n] = [(chance, (k + m, n + more)) for m, chance in enumerate(chances)]

    def at_price(self, price: float) -> tuple[frozenset[State], dict[State, float]]:
        """The states in which another round is worth its price, and the samples expected from each state on."""
        value: dict[State, float] = {}
        spent: dict[State, float] = {}
        chosen = set()
        for state in reversed(self.states):
            value[state], spent[state] = self.now[state], 0.0
            more = self.next_round[state[1]]
            if not more or state not in self.unclear | self.kept:
                continue
            then = sum(chance * value[later] for chance, later in self.ahead[state]) - price * more
            if state in self.unclear or then > value[state] + 1e-9:
                value[state] = then
                spent[state] = more + sum(chance * spent[later] for chance, later in self.ahead[state])
                if state not in self.unclear:
                    chosen.add(state)
        return frozenset(chosen), spent
