"""Writes data/mini: small composed problems in the raw columns and test shapes of DeepCoder's data set.

    python -m data.recipes.make_mini [folder]        (seeded: the same bytes each time; some seconds)

1. A problem composes 1 to 3 operations (aggregate, transform, filter). The combinations are split first: none is on
   both the train and the test side, whatever its constants, layout or wording.
2. Expected answers come from reference implementations that share no code with the solutions, and every solution is run
   against every test before it is written.
3. Tests are chosen so that each known slip of a problem fails at least one of them.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from data.recipes.cases import Case, draw_cases, solves
from data.recipes.compose import Combination, Composed, all_combinations, draw
from data.recipes.layouts import FUNCTION_LAYOUTS, STDIN_LAYOUTS, Layout
from data.recipes.statement import signature, statement, written_name

SEED = 20
FOLDER = Path(__file__).resolve().parents[1] / "mini"
TEST_SHARE = 0.35
TESTS = (6, 7, 8, 8, 9, 10, 10, 12, 12, 16, 20)
WITHOUT_STARTER_CODE = {"taco", "primeintellect"}
"""Their functional problems are plain functions that the statement names."""

Row = dict[str, Any]


def split_combinations() -> tuple[list[Combination], list[Combination]]:
    """(train side, test side) of all combinations; disjoint, fixed."""
    combinations = all_combinations()
    random.Random(SEED).shuffle(combinations)
    cut = round(len(combinations) * TEST_SHARE)
    return combinations[cut:], combinations[:cut]


def problems(
    side: list[Combination], rng: random.Random, layouts: Sequence[Layout], seen: set[Composed]
) -> Iterator[Composed]:
    """Different problems of one side, without end: a tenth of one operation, the others half of two, half of three."""
    by_operations = {n: [c for c in side if c.operations == n] for n in (1, 2, 3)}
    while True:
        operations = rng.choices((1, 2, 3), (1, 4.5, 4.5))[0]
        problem = draw(rng.choice(by_operations[operations]), rng, layouts)
        if problem is not None and problem not in seen:
            seen.add(problem)
            yield problem


def raw_row(split: str, problem: Composed, cases: list[Case], example: bool, style: int) -> Row:
    """The problem as a raw row of `split`; `style` (a number from 0) picks between the shapes that the split knows."""
    text = statement(problem, cases[0] if example else None)
    if problem.layout.functional and split in WITHOUT_STARTER_CODE:
        text += "\n\n" + written_name(problem)
    combination = {"combination": problem.combination.key, "layout": problem.layout.name}
    row: Row = {"problem": text, "tests": json.dumps(TEST_SHAPES[split](problem, cases, style))}
    if split == "lcbv5":
        function = problem.name if problem.layout.functional else None
        row["starter_code"] = signature(problem) if function else ""
        row["metadata"] = {"func_name": function, **combination}
    else:
        # some rows of primeintellect name the function here and not in the tests
        names = split == "primeintellect" and problem.layout.functional and style % 3 == 2
        row["metadata"] = json.dumps(combination | ({"func_name": problem.name} if names else {}))
    if split in WITHOUT_STARTER_CODE:
        row["solutions"] = [problem.program()]
    return row


def _taco(problem: Composed, cases: list[Case], style: int) -> Any:
    if problem.layout.functional:
        inputs: list[Any] = [list(case.args) for case in cases]
        outputs: list[Any] = [case.expected for case in cases]
        if style % 2:
            inputs, outputs = [json.dumps(i) for i in inputs], [json.dumps(o) for o in outputs]
        return {"inputs": inputs, "outputs": outputs, "fn_name": problem.name}
    inputs, outputs = [case.stdin for case in cases], [case.expected for case in cases]
    if style % 8 == 3 and all(output.count("\n") == 1 and " " not in output for output in outputs):
        outputs = [int(output) for output in outputs]
    if style % 8 == 5:
        inputs = [text.splitlines() for text in inputs]
    return {"inputs": inputs, "outputs": outputs}


def _primeintellect(problem: Composed, cases: list[Case], style: int) -> Any:
    if not problem.layout.functional:
        return [{"type": "stdin_stdout", "input": case.stdin, "output": case.expected} for case in cases]
    encode: Callable[[Any], Any] = json.dumps if style % 2 else lambda value: value
    name = {} if style % 3 == 2 else {"fn_name": problem.name}
    return [
        {"type": "function_call", **name, "input": encode(list(case.args)), "output": encode(case.expected)}
        for case in cases
    ]


def _lcbv5(problem: Composed, cases: list[Case], style: int) -> Any:
    if not problem.layout.functional:
        return [{"input": c.stdin, "output": c.expected, "testtype": "stdin"} for c in cases]
    return [
        {
            "input": "\n".join(json.dumps(arg) for arg in case.args),
            "output": json.dumps(case.expected),
            "testtype": "functional",
        }
        for case in cases
    ]


def _codeforces(problem: Composed, cases: list[Case], style: int) -> Any:
    return [{"input": case.stdin, "output": case.expected} for case in cases]


TEST_SHAPES: dict[str, Callable[[Composed, list[Case], int], Any]] = {
    "taco": _taco,
    "primeintellect": _primeintellect,
    "lcbv5": _lcbv5,
    "codeforces": _codeforces,
}

SIZES = (
    # file, config, side, problems, functional ones among them
    ("primeintellect-train", "primeintellect", "train", 300, 36),
    ("taco-train", "taco", "train", 200, 30),
    ("lcbv5-train", "lcbv5", "train", 140, 42),
    ("codeforces-test", "codeforces", "test", 240, 0),
    ("lcbv5-test", "lcbv5", "test", 180, 54),
)


def main(folder: Path = FOLDER) -> None:
    """Writes one JSON-lines file a config and split into `folder`."""
    train, test = split_combinations()
    seen: set[Composed] = set()
    folder.mkdir(parents=True, exist_ok=True)
    for file, split, side_name, size, functional in SIZES:
        rng = random.Random(f"{SEED} {file}")
        side = train if side_name == "train" else test
        functions = [each for each in FUNCTION_LAYOUTS if each.array == "a" or split == "lcbv5"]
        sources = {kind: problems(side, rng, functions if kind else STDIN_LAYOUTS, seen) for kind in (False, True)}
        kinds = [index < functional for index in range(size)]
        rng.shuffle(kinds)
        rows: list[Row] = []
        for index, kind in enumerate(kinds):
            problem, cases = next(_with_tests(sources[kind], rng))
            rows.append(raw_row(split, problem, cases, example=rng.random() < 0.4, style=index))
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{file}: {size} problems, {functional} functional", flush=True)


def _with_tests(source: Iterator[Composed], rng: random.Random) -> Iterator[tuple[Composed, list[Case]]]:
    """The problems with 5 to 20 tests that their solution passes."""
    for problem in source:
        cases = draw_cases(problem, rng, rng.choice(TESTS))
        if len(cases) < 5:
            continue
        require_solved(problem, cases)
        yield problem, cases


def require_solved(problem: Composed, cases: list[Case]) -> None:
    """Raises AssertionError if the problem's own solution fails a test."""
    wrong = [case for case in cases if not solves(problem.program(), problem, case)]
    if wrong:
        raise AssertionError(f"{problem.combination.key} fails {wrong[0]}:\n{problem.program()}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
