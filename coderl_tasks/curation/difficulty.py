"""What a pass rate says of a problem: its difficulty label, and whether it lies in the band that can teach."""

from typing import Literal, NamedTuple, get_args

Difficulty = Literal["hard", "medium", "easy"]
DIFFICULTIES: tuple[Difficulty, ...] = get_args(Difficulty)

HARD_BELOW = 0.35
EASY_FROM = 0.65


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
