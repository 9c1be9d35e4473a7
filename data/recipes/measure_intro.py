"""Chooses the rows of data/intro by the base model's measured passes.

    python -m data.recipes.measure_intro PASSES [--train 620] [--test 240]

PASSES is a JSON-lines file, {"id", "passes", "samples"} of each candidate that was measured (make_intro.py writes the
candidates). Rows are of the kinds that have the most solved candidates on both sides. Of each side a quarter is never
solved, a quarter nearly always or as many as there are, and the others sometimes. The kinds are taken as evenly as the
classes allow. The same passes give the same bytes.
"""

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from data.recipes.make_intro import CHOICE_FILE, FOLDER, SEED, SIDES, Candidate, candidates, write_rows

SIZES = {"train": 620, "test": 240}
MOST_KINDS = 45
"""Kinds that rows are of. What a policy learns of one variant helps it with others of its kind, of which an hour's
training has to see several."""
NEVER = NEARLY_ALWAYS = 0.25
"""Of the rows, of the latter at most. Where the others, sometimes solved, are too few, more are never solved."""
NUMBERS = re.compile(r"\d+")
LEAST_ALWAYS = 0.85
"""The share of its samples from which a candidate is nearly always solved: 7 of 8."""


class UnusablePasses(ValueError):
    """Passes that no choice can be made by; the message says what to measure."""


def read_passes(lines: Iterable[str]) -> dict[str, tuple[int, int]]:
    """(passes, samples) by candidate. Raises UnusablePasses for an id that comes twice."""
    found: dict[str, tuple[int, int]] = {}
    for line in lines:
        record = json.loads(line)
        if record["id"] in found:
            raise UnusablePasses(f"{record['id']} comes twice: give each candidate one line")
        found[record["id"]] = record["passes"], record["samples"]
    return found


def solved(passes: int, samples: int) -> str:
    """How often: never, sometimes or nearly always."""
    if not passes:
        return "never"
    return "nearly always" if passes >= LEAST_ALWAYS * samples else "sometimes"


def chosen(side: Sequence[Candidate], passes: Mapping[str, tuple[int, int]], size: int) -> list[str]:
    """The ids of `size` candidates of one side, mixed. Raises UnusablePasses where a class has too few."""
    name = side[0].side
    rng = random.Random(f"{SEED} {name}-choice")
    left: dict[str, list[Candidate]] = {of: [] for of in ("never", "sometimes", "nearly always")}
    mixed = rng.sample(side, len(side))
    for candidate in differing([each for each in mixed if each.name in passes]):
        left[solved(*passes[candidate.name])].append(candidate)
    always = min(len(left["nearly always"]), round(NEARLY_ALWAYS * size))
    sometimes = min(len(left["sometimes"]), size - round(NEVER * size) - always)
    wanted = {"never": size - always - sometimes, "sometimes": sometimes, "nearly always": always}
    for of, count in wanted.items():
        if len(left[of]) < count:
            raise UnusablePasses(
                f"{name}: {len(left[of])} of the measured candidates are {of} solved, {count} are wanted: measure more "
                f"candidates, or choose fewer rows (--{name})"
            )
    taken: list[str] = []
    of_kind: Counter[str] = Counter()
    # The class with the least choice takes first: the others can still make up for the kinds that it lacks.
    for of in sorted(wanted, key=lambda of: len(left[of]) / max(1, wanted[of])):
        for _ in range(wanted[of]):
            fewest = min(left[of], key=lambda candidate: of_kind[candidate.kind.name])
            left[of].remove(fewest)
            of_kind[fewest.kind.name] += 1
            taken.append(fewest.name)
    rng.shuffle(taken)
    return taken


def differing(some: Iterable[Candidate]) -> list[Candidate]:
    """Those whose statements differ in words: of several that differ in numbers alone the first."""
    first: dict[str, Candidate] = {}
    for each in some:
        first.setdefault(NUMBERS.sub("0", each.drawn.said), each)
    return list(first.values())


def best_kinds(
    all_of_them: Sequence[Candidate], passes: Mapping[str, tuple[int, int]], sizes: Mapping[str, int], count: int
) -> set[str]:
    """The names of the kinds with the most solved candidates on the side where they have fewer, as a share of its
    size."""
    counts = {each.kind.name: dict.fromkeys(SIDES, 0) for each in all_of_them}
    for each in all_of_them:
        counts[each.kind.name][each.side] += passes.get(each.name, (0, 0))[0] > 0
    ranked = sorted(counts, key=lambda kind: (min(counts[kind][side] / sizes[side] for side in SIDES), kind))
    return set(ranked[-count:])


def choice(
    all_of_them: Sequence[Candidate], passes: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """For each side the passes and samples of its rows by id, in the order of the rows. Raises UnusablePasses, also
    for passes of candidates that there are not."""
    known = {each.name for each in all_of_them}
    if unknown := sorted(passes.keys() - known):
        raise UnusablePasses(f"{unknown[0]} is no candidate: measure what make_intro.py --candidates writes now")
    kinds = best_kinds(all_of_them, passes, sizes, MOST_KINDS)
    found = {}
    for side, size in sizes.items():
        of_side = [each for each in all_of_them if each.side == side and each.kind.name in kinds]
        found[side] = {name: passes[name] for name in chosen(of_side, passes, size)}
    return found


def histogram(passes: Iterable[tuple[int, int]]) -> str:
    """A table for the card: how many problems have how many samples right."""
    counts = Counter(passes)
    total = sum(counts.values())
    lines = [f"| {right} of {of} | {count} | {count / total:.1%} |" for (right, of), count in sorted(counts.items())]
    return "\n".join(["| samples right | problems | share |", "|---|---|---|", *lines])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("passes", type=Path)
    for side in SIDES:
        parser.add_argument(f"--{side}", type=int, default=SIZES[side], metavar="ROWS")
    arguments = parser.parse_args()
    with arguments.passes.open() as lines:
        passes = read_passes(lines)
    sizes = {side: getattr(arguments, side) for side in SIDES}
    found = choice(candidates(), passes, sizes)
    write_choice(FOLDER / CHOICE_FILE, found)
    write_rows(FOLDER, found)
    for side in SIDES:
        print(f"\n{side}\n\n{histogram(found[side].values())}")


def write_choice(file: Path, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes a choice, one row per line."""
    sides = [
        f'"{side}": {{\n' + ",\n".join(f"{json.dumps(name)}: {json.dumps(counts)}" for name, counts in rows.items())
        for side, rows in found.items()
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{\n" + "\n},\n".join(sides) + "\n}\n}\n")


if __name__ == "__main__":
    main()
