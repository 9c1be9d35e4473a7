"""Completions in several turns: the sequences that their turns make, and the tokens these cost.

A turn's prompt is the first `kept` tokens of what came before it (prompt and answers), then `environment_tokens`. Where
`kept` is all of it, as most chat formats have it, a completion stays one sequence, in which the environment's tokens
have no advantage and no loss. Where the format does not go on from what was sampled (`is_split`: it drops the thinking
of past turns, say), the turn begins a sequence of its own. So no token is trained on that was not sampled behind just
those tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

ENVIRONMENT, KEPT, REPEATED = "environment", "kept", "repeated"


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """A sequence that is trained on. Its first `prompt` tokens are a prompt; `sampled` (one per token after it) marks
    those that the policy sampled, None for all. They are `first` to `last` of the completion's tokens."""

    prompt: int
    sampled: np.ndarray | None
    first: int
    last: int

    def spread(self, values: np.ndarray) -> np.ndarray:
        """`values` of the completion's tokens as values of this sequence's after its prompt, 0 where not sampled."""
        own = values[self.first : self.last]
        if self.sampled is None:
            return own
        spread = np.zeros(len(self.sampled), dtype=values.dtype)
        spread[self.sampled] = own
        return spread

    def gathered(self, values: np.ndarray) -> np.ndarray:
        """`values` of the tokens after the prompt, of those alone that were sampled."""
        return values if self.sampled is None else values[self.sampled]


def sequences(rows: pl.DataFrame, row: int) -> Iterator[tuple[np.ndarray, Sequence]]:
    """The sequences of the completion in a row of `rows`, each with all its tokens, in order: one, unless a turn is
    split off."""
    prompt, completion = rows["prompt_tokens"][row].to_numpy(), rows["completion_tokens"][row].to_numpy()
    turns = rows["turns"][row]
    if turns is None:
        yield np.concatenate([prompt, completion]), Sequence(len(prompt), None, 0, len(completion))
        return
    tokens, length, first, place = prompt, len(prompt), 0, 0
    marks = [np.zeros(0, dtype=bool)]
    for turn in turns.to_list():
        between = np.asarray(turn["environment_tokens"], dtype=prompt.dtype)
        if turn["is_split"]:
            yield tokens, Sequence(length, np.concatenate(marks), first, place)
            tokens = np.concatenate([tokens[: turn["kept"]], between])
            length, first, marks = len(tokens), place, [np.zeros(0, dtype=bool)]
        else:
            tokens = np.concatenate([tokens, between])
            marks.append(np.zeros(len(between), dtype=bool))
        answer = completion[place : place + turn["n_tokens"]]
        tokens, place = np.concatenate([tokens, answer]), place + len(answer)
        marks.append(np.ones(len(answer), dtype=bool))
    yield tokens, Sequence(length, np.concatenate(marks), first, place)


def turn_tokens(column: pl.Expr) -> dict[str, pl.Expr]:
    """Sums over the turns after the first of the column `turns`, 0 without turns: the environment's tokens; those that
    a turn's prompt repeats (KEPT); and those of them that are trained on once more, where a turn is split off."""
    later = column.list.eval(pl.element().filter(pl.element().struct.field("stop_reason").is_not_null())).list.slice(1)
    kept, is_split = pl.element().struct.field("kept"), pl.element().struct.field("is_split")
    sums = {
        ENVIRONMENT: pl.element().struct.field("environment_tokens").list.len().cast(pl.Int64),
        KEPT: kept.cast(pl.Int64),
        REPEATED: pl.when(is_split).then(kept).otherwise(0).cast(pl.Int64),
    }
    return {name: later.list.eval(value).list.sum().fill_null(0).cast(pl.Int64) for name, value in sums.items()}
