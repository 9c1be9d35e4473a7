"""Problems and raw rows to filter."""

import json
import random
from typing import Any

from coderl_tasks.filtering.overlap import Entry
from coderl_tasks.filtering.signature import signature_of
from coderl_tasks.problems import Problem, Test

WORDS = [a + b + c for a in "bdfgklmnprst" for b in ("a", "ei", "o", "u") for c in ("n", "r", "st", "")]


def make_text(seed: Any, words: int = 120) -> str:
    """A statement of made-up words, the same for the same seed."""
    rng = random.Random(str(seed))
    return " ".join(rng.choice(WORDS) for _ in range(words))


def make_problem(statement: str, cases: dict[str, str], **changes: Any) -> Problem:
    values: dict[str, Any] = {
        "problem_id": f"{hash((statement, *cases.items())):x}",
        "split": "taco",
        "statement": statement,
        "starter_code": "",
        "kind": "stdin",
        "entry_point": "",
        "tests": tuple(Test(given, wanted) for given, wanted in cases.items()),
        "tests_total": len(cases),
        "tests_original": len(cases),
        "time_limit_s": None,
        "solutions": (),
        "source_row": 0,
    }
    return Problem(**(values | changes))


def make_entry(place: str, statement: str, tests: dict[str, str], **changes: Any) -> Entry:
    problem = make_problem(statement, tests, **changes)
    return Entry(problem.problem_id, place, signature_of(problem))


def make_row(statement: str, key: str = "", count: int = 6) -> dict[str, Any]:
    """A raw row with so many tests, which depend on `key`."""
    tests = [{"input": f"{key} {number}\n", "output": f"{number}\n"} for number in range(count)]
    return {"problem": statement, "tests": json.dumps(tests)}


def with_changed_words(text: str, count: int) -> str:
    """`text` with so many words replaced, spread over it."""
    words = text.split()
    for number in range(count):
        words[number * len(words) // count + 1] = f"changed{number}"
    return " ".join(words)
