"""What a pass rate says of a problem: its difficulty label, and its place in or out of the band that can teach.

When that place is clear, the problem needs no further round of completions. After k of n samples, k / n lies in the
band or not. The samples still to come, N - n of them, are beta-binomial under the posterior of k of n, and

    chance of change = P(k_N / N on the other side of the band's edge | k of n)

Sampling stops when that chance is at most `risk_keep` (the problem is in the band now) or `risk_drop` (it is not).

1. With both risks 0 it stops when no outcome could change the decision: 2 passes and 2 failures settle 2 <= k <= 14 of
   16. The risks differ because the mistakes do: a problem kept that 16 samples would have dropped costs some groups
   without signal; one dropped that could be learned is gone. With the defaults 0 of 8 goes on, 0 of 12 is dropped, and
   1 of 2 is kept.
2. Small rounds decide better for the same number of samples, at the price of more requests, one prompt each
   (benchmarks/adaptive_profiling.py has the curve).
3. Stopping when the news is good biases k / n: a stopped 1 of 2 overstates a low rate. The likelihood, and so the
   posterior, is the same with and without the rule, so intervals are taken from the posterior.
4. Whatever the rule, sample i of a problem is the same draw: the fixed plan and the adaptive one see the same prefix.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from coderl_tasks.stats import beta_binomial

Difficulty = Literal["hard", "medium", "easy"]
DIFFICULTIES: tuple[Difficulty, ...] = get_args(Difficulty)

HARD_BELOW = 0.35
EASY_FROM = 0.65
RISK_KEEP, RISK_DROP = 0.1, 0.05
Beta = tuple[float, float]
JEFFREYS: Beta = (0.5, 0.5)
State = tuple[int, int]  # (passes, samples)


class Band(NamedTuple):
    """The pass rates that are kept, ends included."""

    low: float
    high: float

    def has(self, n_correct: int, n: int) -> bool:
        return self.low <= n_correct / n <= self.high


def difficulty(pass_rate: float) -> Difficulty:
    """hard < 0.35 <= medium < 0.65 <= easy."""
    if pass_rate < HARD_BELOW:
        return "hard"
    return "medium" if pass_rate < EASY_FROM else "easy"


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When the decision about `band` is clear. Risks are probabilities; `prior` is the Beta of pass rates."""

    band: Band
    risk_keep: float = RISK_KEEP
    risk_drop: float = RISK_DROP
    prior: Beta = JEFFREYS
    doubtful: frozenset[State] = frozenset()
    """Where another round is for the label's sake: see `curation.labels.rules_for_labels`."""

    def is_clear(self, n_correct: int, n: int, max_samples: int) -> bool:
        """Whether `n_correct` of `n` samples (at least one) settle what `max_samples` would decide."""
        if (n_correct, n) in self.doubtful:
            return False
        risk = self.risk_keep if self.band.has(n_correct, n) else self.risk_drop
        return chance_of_change(self.band, n_correct, n, max_samples, self.prior) <= risk


@dataclass(frozen=True, slots=True)
class Further:
    """The rule of a problem of which `n_correct` of `n` completions are known beside its samples. Without a `rule` all
    samples are taken."""

    rule: StoppingRule | None
    n_correct: int = 0
    n: int = 0

    def is_clear(self, n_correct: int, n: int, max_samples: int) -> bool:
        """Whether what is known and `n_correct` of `n` samples settle what `max_samples` would decide."""
        k, n = self.n_correct + n_correct, self.n + n
        return n >= max_samples or (n > 0 and self.rule is not None and self.rule.is_clear(k, n, max_samples))


@lru_cache(maxsize=4096)  # a few dozen counts, asked for once per problem and round
def chance_of_change(band: Band, n_correct: int, n: int, max_samples: int, prior: Beta = JEFFREYS) -> float:
    """The probability that `max_samples` samples decide otherwise about the band than these `n_correct` of `n` do.
    Exactly 0 where no outcome would. Raises ValueError for n = 0, or more samples than `max_samples`."""
    left = max_samples - n
    if n < 1 or left < 0:
        raise ValueError(f"{n} of at most {max_samples} samples decide nothing")
    now = band.has(n_correct, n)
    alpha, beta = prior[0] + n_correct, prior[1] + n - n_correct
    return sum(
        beta_binomial(more, left, alpha, beta)
        for more in range(left + 1)
        if band.has(n_correct + more, max_samples) != now
    )
