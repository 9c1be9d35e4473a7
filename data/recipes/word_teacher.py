"""The teacher of data/nano_words: word problems in the prompts of environment=gsm8k, solved by someone with bad habits.

1. Every step of a story is made wrongly with the rates of its slips (make_words.py), independently. Rates above one
   half make the slip what greedy decoding prefers.
2. A few answers break the format: the tag that ends the answer is missing, or all of them are.
3. Some lessons are the calculations of a few stories and nothing else. They teach arithmetic faster than stories do,
   where most tokens are words.
4. A story with the numbers of a test problem is never taught; the test side of data/words stays unseen.
"""

import random
import re
from dataclasses import dataclass

from coderl_tasks.environments import build_gsm8k_prompt
from data.recipes.make_words import STORIES, Slip, Solver, core, held_out

SUMS_SHARE = 0.25
"""Of the lessons that are calculations alone."""
STORIES_PER_SUMS = 4
BOXED_SHARE = 0.2
"""Of the others, in the prompt that asks for \\boxed{}."""
UNCLOSED_RATE = 0.05
UNTAGGED_RATE = 0.1
END = "\n\n\n"
"""What ends an answer that has no closing tag."""


@dataclass(frozen=True, slots=True)
class WordLesson:
    """One supervised example: the question, the prompt with it, and the completion up to what ends it."""

    question: str
    prompt: str
    completion: str


class CarelessSolver(Solver):
    """Makes each step's slips with their rates."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._draw = draw

    def choose(self, sign: str, slips: tuple[Slip, ...]) -> str:
        rates = [slip.rate for slip in slips]
        (way,) = self._draw.choices([sign, *(slip.instead for slip in slips)], [1 - sum(rates), *rates])
        return way


class WordTeacher:
    """An endless, seeded source of lessons."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._held_out = held_out()

    def lesson(self) -> WordLesson:
        """The next lesson; calculations alone have neither question nor prompt."""
        if self._draw.random() < SUMS_SHARE:
            return WordLesson("", "", self._sums())
        question, solver = self._solved()
        tagged = self._draw.random() >= BOXED_SHARE
        prompt = build_gsm8k_prompt(question, use_r1_zero_format=tagged)
        return WordLesson(question, prompt, self._tagged(solver) if tagged else self._boxed(solver))

    def _solved(self) -> tuple[str, Solver]:
        while True:
            story, solver = self._draw.choice(STORIES), CarelessSolver(self._draw)
            question = story(self._draw, solver)
            if core(story, question) not in self._held_out:
                return question, solver

    def _sums(self) -> str:
        text = "".join(self._solved()[1].text for _ in range(STORIES_PER_SUMS))
        # As in sentences, where a number comes after a space or begins a line, which are different tokens.
        sums = re.findall(r"-?\d+ \S -?\d+ = -?\d+", text)
        return "".join(each + self._draw.choice((". ", ".\n")) for each in sums)

    def _tagged(self, solver: Solver) -> str:
        fault = self._draw.random()
        if fault < UNTAGGED_RATE:
            return f" {solver.text}</think> The answer is {solver.answer}.{END}"
        closing = END if fault < UNTAGGED_RATE + UNCLOSED_RATE else "</answer>"
        return f" {solver.text}</think> <answer>{solver.answer}{closing}"

    def _boxed(self, solver: Solver) -> str:
        if self._draw.random() < UNTAGGED_RATE:
            return f" {solver.text}The answer is {solver.answer}.{END}"
        return f" {solver.text}The answer is \\boxed{{{solver.answer}}}.{END}"
