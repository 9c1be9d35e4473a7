"""Writes data/words: word problems of two or three steps in the columns of GSM8K, `question` and `answer`.

    python -m data.recipes.make_words [folder]        (seeded: the same bytes each time)

A problem is a story with numbers, names and things drawn for it. Its answer says each step in a sentence and ends with
`#### N`, a whole number from 1 on. Numbers are small, so that a model of a million parameters can learn to calculate
with them. No story comes twice with the same numbers, on either side.

Each step lists its slips too: how a careless solver makes it, and how often the teacher of data/nano_words does
(word_teacher.py). The data have none of them.
"""

import json
import operator
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SEED = 33
FOLDER = Path(__file__).resolve().parents[1] / "words"
SIZES = {"train": 480, "test": 120}
NAMES = ("Amal", "Bruno", "Chen", "Dora", "Emeka", "Freya", "Goran", "Hana", "Ines", "Jonas", "Kofi", "Lena", "Mira")
THINGS = ("apples", "buttons", "marbles", "pencils", "postcards", "seashells", "stamps", "stickers")


@dataclass(frozen=True, slots=True)
class Slip:
    """A careless way to make a step, and how often: `instead` is another sign, or, where the step is left out, which of
    its operands ("left" or "right") is taken for its result."""

    instead: str
    rate: float


SIGNS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "x": operator.mul,
    "/": operator.floordiv,
}


class Solver:
    """Solves a story step by step: `answer` is the last step's result, `text` the sentences that say them."""

    def __init__(self) -> None:
        self.text = ""
        self.answer = 0

    def step(self, sentence: str, left: int, sign: str, right: int, *slips: Slip, end: str = "\n") -> int:
        """The result of `left sign right`, which is written into `sentence` in place of {}."""
        way = self.choose(sign, slips)
        if way in SIGNS:
            self.answer = SIGNS[way](left, right)
            self.text += sentence.format(f"{left} {way} {right} = {self.answer}") + end
        else:
            self.answer = left if way == "left" else right
        return self.answer

    def choose(self, sign: str, slips: tuple[Slip, ...]) -> str:
        """How the step is made: this solver makes no slips."""
        return sign


Story = Callable[[random.Random, Solver], str]
"""Draws a story and has it solved; returns the question."""


def shared_boxes(draw: random.Random, solver: Solver) -> str:
    boxes, each, given = draw.randint(3, 6), draw.randint(3, 6), draw.randint(2, 8)
    name, things = draw.choice(NAMES), draw.choice(THINGS)
    total = solver.step(f"The boxes hold {{}} {things}.", boxes, "x", each, Slip("+", 0.1))
    solver.step("{} are left.", total, "-", given, Slip("left", 0.3), Slip("+", 0.1))
    return (
        f"{name} fills {boxes} boxes with {each} {things} each and gives {given} of the {things} to a neighbour. How "
        f"many {things} does {name} have left?"
    )


def two_savers(draw: random.Random, solver: Solver) -> str:
    one, other = draw.sample(NAMES, 2)
    weeks, first, more = draw.randint(2, 6), draw.randint(2, 9), draw.randint(1, 6)
    second = solver.step(f"{other} saves {{}} coins per week.", first, "+", more, Slip("right", 0.55))
    both = solver.step("Together they save {} coins per week.", first, "+", second)
    solver.step(f"In {weeks} weeks that is {{}} coins.", weeks, "x", both, Slip("right", 0.15))
    return (
        f"Every week {one} saves {first} coins, and {other} saves {more} coins more than {one}. How many coins do the "
        f"two have together after {weeks} weeks?"
    )


def bus_stops(draw: random.Random, solver: Solver) -> str:
    seats, off, on = draw.randint(12, 30), draw.randint(2, 9), draw.randint(2, 9)
    left = solver.step("After the mill there are {}.", seats, "-", off, Slip("+", 0.1))
    solver.step("After the school there are {}.", left, "+", on, Slip("-", 0.55))
    return (
        f"A bus leaves the harbour with {seats} passengers. At the mill {off} get off, and at the school {on} get on. "
        "How many passengers reach the last stop?"
    )


def rows_of_trees(draw: random.Random, solver: Solver) -> str:
    rows, trees, fruit = draw.randint(2, 7), draw.randint(2, 7), draw.randint(2, 9)
    count = solver.step("There are {} trees.", rows, "x", trees, Slip("+", 0.3))
    solver.step("They bear {} pears.", count, "x", fruit, Slip("+", 0.2))
    return (
        f"In an orchard stand {rows} rows of {trees} trees, and each tree bears {fruit} pears. How many pears are "
        "there in the orchard?"
    )


def equal_shares(draw: random.Random, solver: Solver) -> str:
    friends, share, eaten = draw.randint(2, 6), draw.randint(2, 6), draw.randint(2, 9)
    name, baked = draw.choice(NAMES), friends * share + eaten
    left = solver.step("{} rolls are shared.", baked, "-", eaten)
    solver.step("Each gets {} rolls.", left, "/", friends, Slip("left", 0.35), Slip("-", 0.15))
    return (
        f"{name} bakes {baked} rolls. The family eats {eaten} of them, and {friends} friends share the others "
        "equally. How many rolls does each friend get?"
    )


def tickets(draw: random.Random, solver: Solver) -> str:
    adults, children, price = draw.randint(2, 5), draw.randint(2, 8), draw.randint(2, 5)
    double = solver.step("An adult pays {} coins.", 2, "x", price, Slip("right", 0.55))
    for_adults = solver.step("The adults pay {},", adults, "x", double, end=" ")
    for_children = solver.step("the children {}.", children, "x", price)
    solver.step("Together that is {} coins.", for_adults, "+", for_children, Slip("left", 0.15))
    return (
        f"A ferry ticket costs {price} coins for a child and twice as much for an adult. What do {adults} adults and "
        f"{children} children pay together, in coins?"
    )


def pages_left(draw: random.Random, solver: Solver) -> str:
    days, pages, rest = draw.randint(2, 6), draw.randint(3, 9), draw.randint(2, 9)
    name, book = draw.choice(NAMES), days * pages + rest
    read = solver.step("{} pages are read.", days, "x", pages)
    solver.step("{} pages are unread.", book, "-", read, Slip("right", 0.55))
    return (
        f"{name} reads {pages} pages of a book each day for {days} days. The book has {book} pages. How many "
        "pages are still unread?"
    )


def half_as_many(draw: random.Random, solver: Solver) -> str:
    half, more = draw.randint(2, 15), draw.randint(2, 9)
    (one, other, third), things = draw.sample(NAMES, 3), draw.choice(THINGS)
    owned = solver.step(f"{other} owns {{}}.", 2 * half, "/", 2, Slip("x", 0.3))
    solver.step(f"{third} owns {{}}.", owned, "+", more, Slip("-", 0.2))
    return (
        f"{one} owns {2 * half} {things}. {other} owns half as many as {one}, and {third} owns {more} more than "
        f"{other}. How many {things} does {third} own?"
    )


STORIES: tuple[Story, ...] = (
    shared_boxes,
    two_savers,
    bus_stops,
    rows_of_trees,
    equal_shares,
    tickets,
    pages_left,
    half_as_many,
)


def core(story: Story, question: str) -> tuple[Story, tuple[str, ...]]:
    """What decides a question's answer: its story and the numbers in it, whatever the names and things."""
    return story, tuple(re.findall(r"\d+", question))


def rows() -> dict[str, list[dict[str, str]]]:
    """The rows of each side; both have the same stories, with other numbers."""
    draw, seen = random.Random(SEED), set[tuple[Story, tuple[str, ...]]]()
    made: dict[str, list[dict[str, str]]] = {side: [] for side in SIZES}
    for side, size in SIZES.items():
        while len(made[side]) < size:
            story, solver = STORIES[len(made[side]) % len(STORIES)], Solver()
            question = story(draw, solver)
            if solver.answer > 0 and core(story, question) not in seen:
                seen.add(core(story, question))
                made[side].append({"question": question, "answer": f"{solver.text}#### {solver.answer}"})
    return made


def held_out() -> set[tuple[Story, tuple[str, ...]]]:
    """The cores of the test side: what nothing is taught of."""
    return {core(STORIES[place % len(STORIES)], row["question"]) for place, row in enumerate(rows()["test"])}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for side, found in rows().items():
        (folder / f"{side}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))


if __name__ == "__main__":
    main()
