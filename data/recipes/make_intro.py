"""Writes data/intro: functions of a first programming course with their tests, in the columns of LiveCodeBench.

    python -m data.recipes.make_intro [folder]             the chosen rows: the same bytes each time, some seconds
    python -m data.recipes.make_intro --candidates FILE    all candidates as one JSON-lines file, to be measured

1. Each kind (intro_numbers, intro_texts, intro_lists, intro_everyday) has variants and wordings, all written by hand. A
   candidate is one variant in one wording. The variants of a kind are divided first: none is on both sides.
2. A candidate's draw depends on the seed and its id alone. Whatever is added to other kinds, it stays the same problem.
3. Expected answers share no code with the solutions, and each common slip of a kind fails at least one test.
4. `choice.json` says which candidates are rows: measure_intro.py chose them by the base model's passes.
"""

import argparse
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from coderl_tasks.filtering.overlap import Entry, OverlapRules, find_contaminated, find_duplicates
from coderl_tasks.filtering.signature import signature_of
from coderl_tasks.problems import problem_from_row
from data.recipes import intro_everyday, intro_lists, intro_numbers, intro_texts
from data.recipes.intro_kind import Drawn, Kind, draw_problem

SEED = 36
FOLDER = Path(__file__).resolve().parents[1] / "intro"
CHOICE_FILE = "choice.json"
KINDS: tuple[Kind, ...] = (*intro_numbers.KINDS, *intro_texts.KINDS, *intro_lists.KINDS, *intro_everyday.KINDS)
SIDES = ("train", "test")
TEST_VARIANTS = 0.27

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One variant of a kind in one wording; `name` is its id, KIND.VARIANT.WORDING."""

    name: str
    side: str
    kind: Kind
    variant: int
    drawn: Drawn

    def row(self) -> Row:
        """The raw row."""
        tests = [
            {"input": "\n".join(map(json.dumps, args)), "output": json.dumps(expected), "testtype": "functional"}
            for args, expected in self.drawn.cases
        ]
        return {
            "problem_id": f"intro/{self.name}",
            "problem": self.drawn.statement,
            "tests": json.dumps(tests),
            "starter_code": self.drawn.starter_code,
            "metadata": {"func_name": self.drawn.function, "kind": self.kind.name},
            "solutions": [self.drawn.solution],
        }


def held_out_variants(kind: Kind) -> set[int]:
    """The places of the variants that are on the test side: about a quarter, at least one."""
    places = list(range(len(kind.variants)))
    random.Random(f"{SEED} {kind.name}").shuffle(places)
    return set(places[: max(1, round(TEST_VARIANTS * len(places)))])


@lru_cache(maxsize=1)
def candidates() -> tuple[Candidate, ...]:
    """All candidates of both sides, mixed, the same each time. Raises Unusable for a kind that is written wrongly."""
    found: list[Candidate] = []
    for side in SIDES:
        ids = [(kind, *pair) for kind in KINDS for pair in _pairs(kind, side)]
        random.Random(f"{SEED} {side}").shuffle(ids)
        found += [_drawn(kind, variant, wording, side) for kind, variant, wording in ids]
    return tuple(without_near(found))


def without_near(all_of_them: list[Candidate]) -> list[Candidate]:
    """Those that curation would not drop as near another one: as a duplicate, or for giving a test problem away."""
    entries = [
        Entry(each.name, each.name, signature_of(problem_from_row(each.row(), split="intro", source_row=place)))
        for place, each in enumerate(all_of_them)
    ]
    sides = {
        side: [entry for entry, each in zip(entries, all_of_them, strict=True) if each.side == side] for side in SIDES
    }
    rules = OverlapRules()
    near = {entries[place].problem_id for place in find_duplicates(entries, rules.resemblance)}
    near |= {sides["train"][place].problem_id for place in find_contaminated(sides["train"], sides["test"], rules)}
    return [each for each in all_of_them if each.name not in near]


def _pairs(kind: Kind, side: str) -> list[tuple[int, int]]:
    """The (variant, wording) pairs of one side."""
    held_out = held_out_variants(kind)
    return [
        (variant, wording)
        for variant in range(len(kind.variants))
        for wording in range(len(kind.wordings))
        if (variant in held_out) == (side == "test")
    ]


def _drawn(kind: Kind, variant: int, wording: int, side: str) -> Candidate:
    name = f"{kind.name}.{variant}.{wording}"
    rng = random.Random(f"{SEED} {name}")
    drawn = draw_problem(kind, kind.variants[variant], kind.wordings[wording], rng)
    return Candidate(name, side, kind, variant, drawn)


def exported(all_of_them: Iterable[Candidate]) -> Iterator[Row]:
    """The candidates as rows with their id, side and kind as columns of their own."""
    for each in all_of_them:
        yield {
            **each.row(),
            "id": each.name,
            "side": each.side,
            "kind": each.kind.name,
            "solution": each.drawn.solution,
        }


def _lines(rows: Iterator[Row] | list[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_rows(folder: Path, choice: Mapping[str, Iterable[str]]) -> None:
    """Writes the rows that `choice` has by id for each side, in its order. Raises KeyError for an unknown id."""
    folder.mkdir(parents=True, exist_ok=True)
    by_name = {each.name: each for each in candidates()}
    for side in SIDES:
        rows = [by_name[name].row() for name in choice[side]]
        (folder / f"{side}.jsonl").write_text(_lines(rows))
        print(f"{side}: {len(rows)} problems", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--candidates", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.candidates:
        arguments.candidates.write_text(_lines(exported(candidates())))
        return
    write_rows(arguments.folder, json.loads((FOLDER / CHOICE_FILE).read_text()))


if __name__ == "__main__":
    main()
