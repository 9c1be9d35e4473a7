"""Inferred comparators, on the embedded sandbox: what is inferred, and what stays undecided."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from coderl_tasks.curation.solutions import check_solutions, inferred_comparators, split_by_solutions
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.problems import Problem, Test
from coderl_tasks.services import Services
from tests.conftest import Serve
from tests.faults.fault_proxy import FaultProxy

READ = "n = int(input())\nd = [k for k in range(1, n + 1) if n % k == 0]\n"
UP, DOWN, ODD = (
    f"{READ}{order}print(*d, sep='\\n')" for order in ("", "d.reverse()\n", "d.sort(key=lambda k: k % 3)\n")
)
LINE_UP, LINE_DOWN = (program.replace(", sep='\\n'", "") for program in (UP, DOWN))
TWICE = f"{READ}print(*d, *d[:2], sep='\\n')"
SKIPS = UP.replace("range(1", "range(2")
ASKED = "Print the divisors of n."
NUMBERS = (6, 12, 20, 30)


def divisors(name: str, *solutions: str, words: str = "", line: bool = False, **values: Any) -> Problem:
    """Divisors, expected in increasing order, one per line or on one `line`."""
    separator = " " if line else "\n"
    texts = [separator.join(str(k) for k in range(1, n + 1) if n % k == 0) for n in NUMBERS]
    tests = tuple(Test(f"{n}\n", f"{text}\n") for n, text in zip(NUMBERS, texts, strict=True))
    problem = Problem(
        name, "taco", f"{ASKED} {words}", "", "stdin", "", tests, len(tests), len(tests), None, solutions, 0
    )
    return replace(problem, **values)


def printing(name: str, words: str, tests: list[tuple[str, str]], *solutions: str) -> Problem:
    made = tuple(Test(given, expected) for given, expected in tests)
    return Problem(name, "taco", words, "", "stdin", "", made, len(made), len(made), None, solutions, 0)


def returning(name: str, words: str, tests: list[tuple[str, str]], *solutions: str) -> Problem:
    return replace(printing(name, words, tests, *solutions), kind="call", entry_point="f")


@pytest.fixture
async def judge(embedded: Services) -> AsyncIterator[Judge]:
    async with SandboxClient(embedded.sandbox_urls, max_concurrency=4) as client:
        yield Judge(client)


HALVES = [(f"{n}\n", f"{n / 3}\n") for n in (1, 2, 4, 5)]
WORDS = [(f"{n}\n", "YES\n" if n % 2 else "NO\n") for n in (1, 2, 3, 4)]
LISTS = [(json.dumps([n]), json.dumps(list(range(0, n, 2)))) for n in (4, 7, 9)]
SQUARES = {n: [[k * k for k in range(1, n) if k % 2 == p] for p in (1, 0)] for n in (6, 9, 13)}
GROUPS = [(f"{n}\n", "".join(" ".join(map(str, each)) + "\n" for each in groups)) for n, groups in SQUARES.items()]
TURNED = "n = int(input())\nfor p in (1, 0): print(*[k * k for k in range(1, n) if k % 2 == p][::-1])"
ROTATED = (
    "n = int(input())\nfor p in (1, 0):\n    a = [k * k for k in range(1, n) if k % 2 == p]\n    print(*a[1:], a[0])"
)
CARDS = [(f"{n}\n", " ".join(map(str, range(1, n + 1)))) for n in (4, 7)]
SHORT = [(given, f"{float(expected):.7f}\n") for given, expected in HALVES]
PRECISE = [(f"{n}\n", f"{n + 1}\n") for n in (10**16, 10**17)]
IN_ANY_ORDER = "Print them in any order."

INFERRED: list[tuple[str, Problem, str]] = [
    ("lines_any_order", divisors("said", UP, DOWN, words="You may print them in any order."), 'says "print them in'),
    ("lines_any_order", divisors("only said", UP, words=IN_ANY_ORDER), "0 of 1 references differ"),
    ("lines_any_order", divisors("three orders", DOWN, ODD), "2 of 2 references differ"),
    ("tokens_any_order", divisors("line", LINE_DOWN, words=IN_ANY_ORDER, line=True), "1 of 1"),
    ("set", divisors("repeats", TWICE, UP, words=f"{IN_ANY_ORDER} Duplicates are allowed."), "Duplicates are"),
    ("lines_any_order", divisors("wrong fails", DOWN, words=IN_ANY_ORDER, wrong_solutions=(SKIPS,)),
     "none of 1 known-wrong programs passes"),
    ("float:1e-4", printing("rounds", "Print n / 3. An absolute or relative error of 10^-4 in the answer is allowed.",
                            HALVES, "print(f'{int(input()) / 3:.4f}')"), 'says "float:1e-4"'),
    ("case_insensitive", printing("shouts", "Is n odd? You can print each letter in any case.", WORDS,
                                  "print('Yes' if int(input()) % 2 else 'nO')"), "in any case"),
    ("lines_any_order", returning("call", "Return the even numbers below n. You may return the answer in any order.",
                                  LISTS, "def f(n): return [k for k in range(n)[::-1] if k % 2 == 0]"), "any order"),
]  # fmt: skip
UNDECIDED: list[tuple[Problem, str]] = [
    (divisors("lone", UP, DOWN), "the statement does not allow it"),
    (divisors("asked for", DOWN, ODD, words="Print them in increasing order."), '"increasing"'),
    (divisors("cases", DOWN, words="There are t test cases. Print them in any order."), "t test cases"),
    (divisors("ties", DOWN, words="Print those with equal remainders in any order."), '"with equal"'),
    (divisors("any one", DOWN, words="If there are several lists, print any of them."), "print any of them"),
    (divisors("wrong passes", DOWN, words=IN_ANY_ORDER, wrong_solutions=(ODD,)), "known-wrong program 1 passes"),
    (printing("arrangement", "Place the numbers 1 to n.", CARDS, "n = int(input())\nprint(*range(n, 0, -1))",
              "n = int(input())\nprint(*range(2, n + 1), 1)"), "the order of given tokens is the answer"),
    (printing("groups", "Print squares below n, a line of odd and one of even, in any order.", GROUPS, TURNED,
              ROTATED),
     "a wrong mutant of a reference passes"),
]  # fmt: skip
UNTOUCHED = [
    divisors("plain", UP, UP.replace("print", " ; print")),
    divisors("own comparator", DOWN, comparator="lines_any_order"),
    divisors("given in any order", UP, words="The numbers are given in any order."),
    divisors("wrong", SKIPS, words=IN_ANY_ORDER),
    printing("tight", "Print n / 3. The answer may have an error of 10^-9.", SHORT, "print(int(input()) / 3)"),
    printing("precise", "Add 1.", PRECISE, "print(int(float(input()) + 1))", "print(int(1.0 + float(input())) + 2)"),
]  # fmt: skip


async def test_comparators_are_inferred_where_the_evidence_is_clear(judge: Judge) -> None:
    problems = [problem for _, problem, _ in INFERRED]
    checks = await check_solutions(problems, judge, inference_seed=1)
    for (name, problem, words), row in zip(INFERRED, checks.iter_rows(named=True), strict=True):
        assert row["inferred_comparator"] == name and words in row["comparator_from"], (problem.problem_id, row)
        assert row["status"] == "good" and not row["multi_answer_suspect"], row
    assert inferred_comparators(checks) == {problem.problem_id: name for name, problem, _ in INFERRED}
    # Without the setting the same problems fail, or are flagged.
    unasked = await check_solutions(problems, judge)
    assert unasked["inferred_comparator"].null_count() == unasked["comparator_from"].null_count() == len(problems)


async def test_what_may_be_wrong_stays_undecided_and_is_flagged(judge: Judge) -> None:
    problems = [problem for problem, _ in UNDECIDED]
    checks = await check_solutions(problems, judge, inference_seed=1)
    for (problem, words), row in zip(UNDECIDED, checks.iter_rows(named=True), strict=True):
        assert row["inferred_comparator"] is None and row["multi_answer_suspect"], (problem.problem_id, row)
        assert "undecided: " in row["suspicion"] and words in row["suspicion"], row
    kept, drops = split_by_solutions(problems, checks, drop_suspects=True)
    reasons = {drop.problem_id: drop.reason for drop in drops}
    assert not kept and reasons["lone"] == "several_answers" and reasons["any one"] == "own_solution_fails"


async def test_what_needs_no_other_comparator_keeps_its_own(judge: Judge) -> None:
    checks = await check_solutions(UNTOUCHED, judge, inference_seed=1)
    assert checks["inferred_comparator"].null_count() == len(UNTOUCHED)
    statuses = dict(checks.select("problem_id", "status").iter_rows())
    # The tests are less precise than the statement asks for: nothing suggests another answer.
    assert statuses["tight"] == "good" and not checks.filter(problem_id="tight")["multi_answer_suspect"].item()
    assert statuses["plain"] == statuses["own comparator"] == statuses["given in any order"] == "good"
    assert statuses["wrong"] == statuses["precise"] == "own_solution_fails"


async def test_faults_of_the_sandbox_change_no_decision(judge: Judge, embedded: Services, serve: Serve) -> None:
    problems = [INFERRED[0][1], INFERRED[3][1], UNDECIDED[0][0], UNDECIDED[-1][0]]
    proxy = FaultProxy(
        embedded.sandbox_urls[0], rates={"fail": 0.1, "cut": 0.1}, spares=lambda path: path == "/v1/ping"
    )
    async with SandboxClient([serve(proxy.app())], attempts=4, backoff_s=0.01) as client:
        assert (await check_solutions(problems, Judge(client), inference_seed=1)).equals(
            await check_solutions(problems, judge, inference_seed=1)
        )


async def test_outputs_are_what_a_program_answers_up_to_the_first_test_without_an_answer(judge: Judge) -> None:
    problem = divisors("p")
    assert await judge.outputs(problem, "print(input(), end='!')") == ["6!", "12!", "20!", "30!"]
    assert await judge.outputs(problem, "n = int(input())\nprint(n // (n != 20))") == ["6\n", "12\n"]
    assert await judge.outputs(problem, "import sys\nsys.stdout.buffer.write(b'\\xff')") == []
    assert await judge.outputs(problem, "def (") == []
    call = returning("c", "", [("[1]", "1"), ("[2]", "1"), ("[3]", "1")])
    assert await judge.outputs(call, "def f(x): return (x, 'é', 10**30)") == [
        f'[{x}, "\\u00e9", {10**30}]' for x in (1, 2, 3)
    ]
    assert await judge.outputs(call, "def f(x): return x if x < 3 else {1, 2}") == ["1", "2"]
