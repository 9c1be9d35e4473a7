"""The nano model's teacher: problems of the train side in production prompts, answered by a programmer with bad habits.

1. Every slot of a program is written wrongly with the rates of its slips (operations.py, layouts.py), independently.
   Rates above one half make the slip the answer that greedy decoding prefers.
2. A few answers break the format: no closing fence, or no fence at all.
3. Only train-side combinations are ever taught; the test side of data/mini stays unseen.
"""

import random
from dataclasses import dataclass

from coderl_tasks.problems.problem import Problem
from data.recipes.cases import draw_case
from data.recipes.compose import Combination, Composed, draw
from data.recipes.layouts import FUNCTION_LAYOUTS, STDIN_LAYOUTS
from data.recipes.statement import signature, statement, written_name

OPERATIONS = {1: 0.1, 2: 0.45, 3: 0.45}
FUNCTIONAL_SHARE = 0.15
EXAMPLE_SHARE = 0.4
UNCLOSED_FENCE_RATE = 0.02
NO_FENCE_RATE = 0.01


@dataclass(frozen=True, slots=True)
class Lesson:
    """One supervised example: the problem as the pipeline sees it, and the teacher's answer."""

    problem: Problem
    answer: str


class Teacher:
    """An endless, seeded source of lessons on `combinations`; `noise` scales the rates of all faults."""

    def __init__(self, combinations: list[Combination], seed: int, noise: float = 1.0) -> None:
        self._rng = random.Random(seed)
        self._noise = noise
        self._by_operations = {n: [c for c in combinations if c.operations == n] for n in OPERATIONS}

    def lesson(self) -> Lesson:
        """The next lesson."""
        composed = self._draw()
        return Lesson(self._problem(composed), self._answer(composed))

    def _draw(self) -> Composed:
        layouts = FUNCTION_LAYOUTS if self._rng.random() < FUNCTIONAL_SHARE else STDIN_LAYOUTS
        while True:
            (operations,) = self._rng.choices(list(OPERATIONS), list(OPERATIONS.values()))
            composed = draw(self._rng.choice(self._by_operations[operations]), self._rng, layouts)
            if composed is not None:
                return composed

    def _problem(self, composed: Composed) -> Problem:
        """The normalised problem as one of the splits has it: lcbv5 has starter code, the others name the function."""
        example = draw_case(composed, self._rng) if self._rng.random() < EXAMPLE_SHARE else None
        text, functional = statement(composed, example), composed.layout.functional
        starter_code = ""
        if functional and (composed.layout.array == "nums" or self._rng.random() < 0.5):
            starter_code = signature(composed)
        elif functional:
            # what the pipeline makes up for a function without starter code: a bare signature
            text += "\n\n" + written_name(composed)
            arguments = "arg1, arg2" if composed.layout.has_k else "arg1"
            starter_code = f"def {composed.name}({arguments}):\n    "
        return Problem(
            problem_id="",
            split="",
            statement=text,
            starter_code=starter_code,
            kind="call" if functional else "stdin",
            entry_point=composed.name if functional else "",
            tests=(),
            tests_total=0,
            tests_original=0,
            time_limit_s=None,
            solutions=(),
            source_row=0,
        )

    def _answer(self, composed: Composed) -> str:
        return self._fenced(composed.program(self._written(composed)))

    def _written(self, composed: Composed) -> dict[str, str]:
        """What is written in the slots of a program, right or not."""
        written: dict[str, str] = {}
        for slot, (right, slips) in composed.slots().items():
            rates = [slip.rate * self._noise for slip in slips]
            codes = [right, *(slip.code for slip in slips)]
            (written[slot],) = self._rng.choices(codes, [1 - sum(rates), *rates])
        return written

    def _fenced(self, program: str) -> str:
        fault = self._rng.random()
        if fault < NO_FENCE_RATE * self._noise:
            return program.rstrip("\n")
        closing = "" if fault < (NO_FENCE_RATE + UNCLOSED_FENCE_RATE) * self._noise else "```"
        return f"```python\n{program}{closing}".rstrip("\n")
