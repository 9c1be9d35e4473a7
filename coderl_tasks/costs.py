"""What tokens cost: the kinds of tokens that a service bills, and what it asks for a million of each.

    prompt       prefill: the prompt of each group once
    cached       prefill that is cached: the same prompt for the group's other completions
    completion   sampled
    training     forward and backward: prompt and completion of what is trained on, once per epoch

Not covered: storage of checkpoints, requests that failed and were sent again, and updates that are replayed after a
crash. That a service bills prompts of a group and sequences that are trained on in this way is how its clients count
(the length of each datum's input); no bill was compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Tokens:
    """Numbers of tokens by kind."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    training: int = 0

    def __add__(self, other: Self) -> "Tokens":
        return Tokens(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
            self.training + other.training,
        )

    def __sub__(self, other: Self) -> "Tokens":
        return Tokens(
            self.prompt - other.prompt,
            self.cached - other.cached,
            self.completion - other.completion,
            self.training - other.training,
        )

    @property
    def counted(self) -> int:
        """What max_tokens_total counts: each group's prompt once, and the completions."""
        return self.prompt + self.completion

    def in_words(self) -> str:
        """All kinds that there are any of."""
        kinds = {"prompt": self.prompt, "cached prompt": self.cached, "completion": self.completion}
        kinds["training"] = self.training
        return ", ".join(f"{number:,} {kind}" for kind, number in kinds.items() if number) + " tokens"


def group_tokens(prompt: int, completions: int, completion_tokens: int, epochs: int = 0) -> Tokens:
    """Those of a group: a prompt of so many tokens, sampled so many times, to so many completion tokens in all, which
    are trained on `epochs` times."""
    training = epochs * (completions * prompt + completion_tokens)
    return Tokens(prompt, prompt * max(0, completions - 1), completion_tokens, training)


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens of each kind; `train` None is not known. `known` says since when, or from where."""

    prefill: float
    cached: float
    sample: float
    train: float | None
    known: str

    def usd(self, tokens: Tokens) -> float | None:
        """What so many tokens cost; None if a price that is needed is not known."""
        if tokens.training and self.train is None:
            return None
        sampled = tokens.prompt * self.prefill + tokens.cached * self.cached + tokens.completion * self.sample
        return (sampled + tokens.training * (self.train or 0.0)) / MILLION


PRICES = {
    "Qwen/Qwen3.5-4B": Price(0.33, 0.066, 1.005, 0.737, "2026-10-04"),
    "Qwen/Qwen3.5-9B": Price(0.66, 0.132, 1.995, 1.463, "2026-10-04"),
    "Qwen/Qwen3-8B": Price(0.195, 0.039, 0.60, 0.44, "2026-10-07"),
    "Qwen/Qwen3.6-35B-A3B": Price(0.54, 0.108, 1.335, 1.177, "2026-07-22"),
    "Qwen/Qwen3.6-27B": Price(1.86, 0.372, 5.595, None, "2026-10-07"),
    "Qwen/Qwen3.8-27B": Price(1.86, 0.372, 5.595, None, "2026-10-07"),
    "Qwen/Qwen3.5-397B-A17B": Price(3.0, 0.6, 7.5, None, "2026-10-07"),
}
"""By the model's name on the Tinker service, as on these days others quoted its page of prices
(https://tinker-docs.thinkingmachines.ai/tinker/models/models_and_pricing/) for the shorter context; prices change.
The cached price of Qwen3-8B is from the page's "80% discount on cached prefill tokens"."""


def price_of(model_name: str, prices: Mapping[str, float]) -> Price | None:
    """The price of `model_name`: the setting `prices` where it says any, else the table's; None if it is not known."""
    if prices:
        prefill = prices["prefill"]
        return Price(prefill, prices.get("cached", prefill), prices["sample"], prices.get("train"), "prices=")
    return PRICES.get(model_name)
