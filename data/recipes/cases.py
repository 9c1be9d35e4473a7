"""Tests for a composed problem: right by the reference implementation, and strict enough to fail each of its slips."""

import builtins
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from data.recipes.compose import Composed, draw_numbers
from data.recipes.layouts import render_stdin

CANDIDATES = 60


@dataclass(frozen=True, slots=True)
class Case:
    """One test: either `stdin` and the text expected on stdout, or the arguments `args` and the value expected."""

    stdin: str
    args: tuple[Any, ...]
    expected: Any


def run_trusted(program: str, problem: Composed, case: Case) -> Any:
    """What a generated program answers: stdout, or the value. Runs in this process: for our own programs only."""
    lines = iter(case.stdin.splitlines())
    printed: list[str] = []
    scope: dict[str, Any] = {
        "List": list,
        "input": lambda: next(lines),
        "print": lambda *values: printed.append(" ".join(map(str, values))),
        "__builtins__": builtins,
    }
    exec(_compiled(program), scope)
    if not problem.layout.functional:
        return "".join(line + "\n" for line in printed)
    function = getattr(scope["Solution"](), problem.name) if "Solution" in scope else scope[problem.name]
    return function(*(list(arg) if isinstance(arg, list) else arg for arg in case.args))


@lru_cache(maxsize=256)
def _compiled(program: str) -> CodeType:
    return compile(program, "<generated>", "exec")


def solves(program: str, problem: Composed, case: Case) -> bool:
    """Whether a generated program answers this case, an exception being a wrong answer."""
    try:
        return bool(run_trusted(program, problem, case) == case.expected)
    except Exception:  # any fault of the wrong program is the answer "no"
        return False


def draw_case(problem: Composed, rng: random.Random) -> Case | None:
    """A random case, or None where the statement rules the drawn numbers out."""
    numbers, k = draw_numbers(problem, rng)
    lists = [numbers]
    if problem.layout.name == "cases":
        lists += [draw_numbers(problem, rng)[0] for _ in range(rng.randint(0, 2))]
    answers = [problem.apply(list(each), k) for each in lists]
    if any(answer is None for answer in answers):
        return None
    if problem.layout.functional:
        return Case("", (numbers, k) if problem.layout.has_k else (numbers,), answers[0])
    lines = [" ".join(map(str, answer)) if isinstance(answer, list) else str(answer) for answer in answers]
    return Case(render_stdin(problem.layout, lists, k), (), "\n".join(lines) + "\n")


def draw_cases(problem: Composed, rng: random.Random, count: int) -> list[Case]:
    """At most `count` different cases, one of them failing each slip that any drawn candidate shows to be wrong."""
    candidates: list[Case] = []
    for _ in range(CANDIDATES * 4):
        case = draw_case(problem, rng)
        if case is not None and case not in candidates:
            candidates.append(case)
        if len(candidates) == CANDIDATES:
            break
    chosen: list[Case] = []
    for mutant in mutants(problem):
        if not any(not solves(mutant, problem, case) for case in chosen):
            chosen += [case for case in candidates if not solves(mutant, problem, case)][:1]
    spare = [case for case in candidates if case not in chosen]
    chosen += spare[: max(0, count - len(chosen))]
    rng.shuffle(chosen)
    return chosen


def mutants(problem: Composed) -> Sequence[str]:
    """The programs with exactly one slip, or, of a chain, without one of its steps."""
    slots = problem.slots()
    slipped = [problem.program({slot: slip.code}) for slot, (_, slips) in slots.items() for slip in slips]
    return slipped + [shorter.program() for shorter in problem.shortened() if problem.combination.earlier]
