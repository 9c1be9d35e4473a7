"""Writes data/words: word problems of two or three steps in the columns of GSM8K, `question` and `answer`.

    python -m data.recipes.make_words [folder]        (seeded: the same bytes each time)

A problem is a story with numbers, names and things drawn for it. Its answer says each step in a sentence and ends with
`#### N`, a whole number from 1 on. No question comes twice, on either side.
"""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

SEED = 33
FOLDER = Path(__file__).resolve().parents[1] / "words"
SIZES = {"train": 480, "test": 120}
NAMES = ("Amal", "Bruno", "Chen", "Dora", "Emeka", "Freya", "Goran", "Hana", "Ines", "Jonas", "Kofi", "Lena", "Mira")
THINGS = ("apples", "buttons", "marbles", "pencils", "postcards", "seashells", "stamps", "stickers")

Story = tuple[str, list[str], int]
"""The question, the steps of its answer, and the number."""


def shared_boxes(draw: random.Random) -> Story:
    boxes, each, given = draw.randint(3, 12), draw.randint(4, 15), draw.randint(2, 11)
    name, things = draw.choice(NAMES), draw.choice(THINGS)
    total = boxes * each
    return (
        f"{name} fills {boxes} boxes with {each} {things} each and gives {given} of the {things} to a neighbour. How "
        f"many {things} does {name} have left?",
        [f"The boxes hold {boxes} x {each} = {total} {things}.", f"{total} - {given} = {total - given} are left."],
        total - given,
    )


def two_savers(draw: random.Random) -> Story:
    one, other = draw.sample(NAMES, 2)
    weeks, first, more = draw.randint(3, 10), draw.randint(4, 15), draw.randint(1, 6)
    second = first + more
    return (
        f"Every week {one} saves {first} coins, and {other} saves {more} coins more than {one}. How many coins do the "
        f"two have together after {weeks} weeks?",
        [
            f"{other} saves {first} + {more} = {second} coins per week.",
            f"Together they save {first} + {second} = {first + second} coins per week.",
            f"In {weeks} weeks that is {weeks} x {first + second} = {weeks * (first + second)} coins.",
        ],
        weeks * (first + second),
    )


def bus_stops(draw: random.Random) -> Story:
    seats, off, on = draw.randint(18, 45), draw.randint(3, 12), draw.randint(2, 14)
    left = seats - off
    return (
        f"A bus leaves the harbour with {seats} passengers. At the mill {off} get off, and at the school {on} get on. "
        "How many passengers reach the last stop?",
        [
            f"After the mill there are {seats} - {off} = {left}.",
            f"After the school there are {left} + {on} = {left + on}.",
        ],
        left + on,
    )


def rows_of_trees(draw: random.Random) -> Story:
    rows, trees, fruit = draw.randint(3, 9), draw.randint(3, 9), draw.randint(5, 12)
    count = rows * trees
    return (
        f"In an orchard stand {rows} rows of {trees} trees, and each tree bears {fruit} pears. How many pears are "
        "there in the orchard?",
        [f"There are {rows} x {trees} = {count} trees.", f"They bear {count} x {fruit} = {count * fruit} pears."],
        count * fruit,
    )


def equal_shares(draw: random.Random) -> Story:
    friends, share, eaten = draw.randint(3, 9), draw.randint(2, 9), draw.randint(2, 10)
    name, left = draw.choice(NAMES), friends * share
    return (
        f"{name} bakes {left + eaten} rolls. The family eats {eaten} of them, and {friends} friends share the others "
        "equally. How many rolls does each friend get?",
        [f"{left + eaten} - {eaten} = {left} rolls are shared.", f"Each gets {left} / {friends} = {share} rolls."],
        share,
    )


def tickets(draw: random.Random) -> Story:
    adults, children, price = draw.randint(2, 6), draw.randint(2, 8), draw.randint(3, 9)
    double = 2 * price
    return (
        f"A ferry ticket costs {price} coins for a child and twice as much for an adult. What do {adults} adults and "
        f"{children} children pay together, in coins?",
        [
            f"An adult pays 2 x {price} = {double} coins.",
            f"The adults pay {adults} x {double} = {adults * double}, the children {children} x {price} = "
            f"{children * price}.",
            f"Together that is {adults * double} + {children * price} = {adults * double + children * price} coins.",
        ],
        adults * double + children * price,
    )


def pages_left(draw: random.Random) -> Story:
    days, pages, rest = draw.randint(3, 9), draw.randint(8, 25), draw.randint(5, 40)
    name, read = draw.choice(NAMES), days * pages
    return (
        f"{name} reads {pages} pages of a book each day for {days} days. The book has {read + rest} pages. How many "
        "pages are still unread?",
        [f"{days} x {pages} = {read} pages are read.", f"{read + rest} - {read} = {rest} pages are unread."],
        rest,
    )


def half_as_many(draw: random.Random) -> Story:
    half, more = draw.randint(4, 30), draw.randint(3, 15)
    (one, other, third), things = draw.sample(NAMES, 3), draw.choice(THINGS)
    return (
        f"{one} owns {2 * half} {things}. {other} owns half as many as {one}, and {third} owns {more} more than "
        f"{other}. How many {things} does {third} own?",
        [f"{other} owns {2 * half} / 2 = {half}.", f"{third} owns {half} + {more} = {half + more}."],
        half + more,
    )


STORIES: tuple[Callable[[random.Random], Story], ...] = (
    shared_boxes,
    two_savers,
    bus_stops,
    rows_of_trees,
    equal_shares,
    tickets,
    pages_left,
    half_as_many,
)


def rows() -> dict[str, list[dict[str, str]]]:
    """The rows of each side; both have the same stories, with other numbers."""
    draw, seen = random.Random(SEED), set[str]()
    made: dict[str, list[dict[str, str]]] = {side: [] for side in SIZES}
    for side, size in SIZES.items():
        while len(made[side]) < size:
            question, steps, number = STORIES[len(made[side]) % len(STORIES)](draw)
            if number > 0 and question not in seen:
                seen.add(question)
                made[side].append({"question": question, "answer": "\n".join([*steps, f"#### {number}"])})
    return made


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for side, found in rows().items():
        (folder / f"{side}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))


if __name__ == "__main__":
    main()
