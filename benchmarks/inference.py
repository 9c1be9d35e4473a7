"""curate checkers=infer on planted problems whose right comparator is known.

    python benchmarks/inference.py [--each 6] [--seed 1] [--json]

A recipe makes `--each` problems of each kind: programs that compute something and print it in one way or another, and a
statement that allows the differences, forbids them or says nothing of them. The first program is the jury's: what it
prints is expected. Some problems have no right comparator (several answers, several cases, two freedoms), and in some
wrong references tempt to one. An inferred comparator is right if it is the planted one. Each problem also has programs,
right and wrong, that the inference does not see: they are graded by the old comparator and by the inferred one.

Exit code 1 if an inferred comparator is not the planted one, or passes a wrong program.
"""

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from coderl_tasks.curation.solutions import check_solutions
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.services import embedded_sandbox

NONE = "(none)"
TESTS = 7
READ = "a = list(map(int, input().split()))\n"
LINES, LINE = "for x in r:\n    print(x)\n", "print(*r)\n"
ORDERS = (
    "", "r = r[::-1]\n", "r.sort()\n", "r.sort(reverse=True)\n", "r.sort(key=lambda x: (x % 5, x))\n",
    "r.sort(key=lambda x: (x * 7919 % 101, x))\n", "r = r[1:] + r[:1]\n",
)  # fmt: skip
SPOILT = ("r = r[1:]\n", "r = [x + 1 for x in r]\n", "r = r + [99]\n", "r = r + [r[0]]\n")
SPELLINGS = (("YES", "NO"), ("Yes", "No"), ("yes", "no"), ("yEs", "nO"))
ANY_ORDER = (
    "Print them in any order.", "You may print the numbers in any order.", "The order of the output does not matter.",
    "They can be printed in an arbitrary order.", "Output them in any order you like.", "Any order is accepted.",
    "It does not matter in which order you print them.", "Print the numbers; their order is not important.",
)  # fmt: skip
UNUSUAL = ("Use whatever sequence suits you.", "Order is irrelevant.", "Sort them as you please.")
RETURNED = ("You may return the answer in any order.", "The order of the returned list does not matter.")
REPEATED = (
    "Print them in any order; duplicates are allowed.", "The output is compared as a set.",
    "A number may be printed more than once, and the order of the output does not matter.",
)  # fmt: skip
ERRORS = (
    "Your answer is accepted if its absolute or relative error is at most 10^-4.",
    "Answers with an absolute or relative error of less than 1e-4 are considered correct.",
    "The answer may differ from the right one by 0.0001.",
)  # fmt: skip
IN_ANY_CASE = (
    "You can print each letter in any case (upper or lower).", "The checker is case-insensitive.",
    "The answer may be printed in any case: YES, Yes or yes.", "Answers are compared case-insensitively.",
)  # fmt: skip


@dataclass(frozen=True)
class Planted:
    """A problem by its programs: the jury's, its references, and held-out ones that are right and wrong. `truth` is the
    right comparator, NONE if no single one is right."""

    truth: str
    statement: str
    inputs: Sequence[str]
    jury: str
    references: Sequence[str]
    right: Sequence[str] = ()
    wrong: Sequence[str] = ()
    entry_point: str = ""
    kind: str = ""


def numbers(draw: random.Random, low: int = 1, high: int = 60) -> list[str]:
    return [" ".join(str(draw.randint(low, high)) for _ in range(draw.randint(6, 12))) + "\n" for _ in range(TESTS)]


def indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.splitlines())


def collection(draw: random.Random) -> tuple[str, str]:
    """What is asked of the integers `a`, and code that makes the list `r` of it; its elements differ."""
    d, k = draw.randint(2, 4), draw.randint(1, 5)
    each = "r = []\nfor x in a:\n    if {} and {} not in r:\n        r.append({})\n"
    return draw.choice((
        (f"the different numbers that are not divisible by {d + 3}", each.format(f"x % {d + 3} != 0", "x", "x")),
        (f"the different remainders of numbers modulo {17 + d}", each.format("True", *[f"x % {17 + d}"] * 2)),
        (f"the different squares of numbers above {k}", each.format(f"x > {k}", "x * x", "x * x")),
        (f"the different sums of two neighbours, plus {k}",
         f"r = list(dict.fromkeys(x + y + {k} for x, y in zip(a, a[1:])))\n"),
        ("the numbers from 1 to 30 that do not occur", "r = [x for x in range(1, 31) if x not in a]\n"),
        (f"the positions, from 0, of the numbers above {8 * d}, and -1",
         f"r = [i for i in range(len(a)) if a[i] > {8 * d}] + [-1]\n"),
    ))  # fmt: skip


def unordered(
    draw: random.Random, truth: str, layout: str, words: str, orders: Sequence[int], spoilt: Sequence[int] = ()
) -> Planted:
    """A collection. The references print it in those drawn orders, the jury in the first; some are `spoilt`."""
    what, code = collection(draw)
    drawn, head = draw.sample(ORDERS, len(ORDERS)), READ + code
    wrong = [head + spoil + drawn[5] + layout for spoil in SPOILT]
    references = [head + drawn[order] + layout for order in orders] + [wrong[each] for each in spoilt]
    right = [head + drawn[order] + layout for order in (5, 6)]
    where = "one per line" if LINES in layout else "on one line"
    statement = f"You are given integers on one line. Print {what}, {where}. {words}"
    if truth == "tokens":  # what is right in any order is wrong
        right, wrong = [], [*wrong, *right]
    return Planted(truth, statement, numbers(draw), head + drawn[0] + layout, references, right, wrong)


def called(draw: random.Random, words: str, orders: Sequence[int]) -> Planted:
    """A collection that a function returns."""
    what, code = collection(draw)
    head = f"def solve(a):\n{indented(code)}"
    programs = [f"{head}{indented(order)}    return r\n" for order in draw.sample(ORDERS, len(ORDERS))]
    wrong = [f"{head}    {spoil}    return r\n" for spoil in SPOILT]
    inputs = [json.dumps([list(map(int, text.split()))]) for text in numbers(draw)]
    statement = f"Given a list of integers, return {what}. {words}"
    references = [programs[each] for each in orders]
    return Planted("lines_any_order", statement, inputs, programs[0], references, programs[4:6], wrong, "solve")


def pairs(draw: random.Random, words: str, orders: Sequence[int]) -> Planted:
    """Pairs of positions, after their number."""
    rest = draw.randint(0, 2)
    code = READ + "r = [(i, j) for j in range(len(a)) for i in range(j) if (a[i] + a[j]) % 3 == {}]\n"
    tail = "print(len(r))\nfor x, y in r:\n    print(x, y)\n"
    sorts = ("", "r.reverse()\n", "r.sort()\n", "r.sort(key=lambda p: (p[0] - p[1], p))\n")
    programs = [code.format(rest) + order + tail for order in sorts]
    wrong = [code.format((rest + 1) % 3) + tail, programs[1].replace("print(x, y)", "print(y, x)")]
    statement = (
        f"Print how many pairs of positions i < j have a sum that leaves {rest} divided by 3, and each one as i j "
        f"on a line of its own. {words}"
    )
    references = [programs[each] for each in orders]
    return Planted("lines_any_order", statement, numbers(draw), programs[0], references, programs[2:], wrong)


def repeating(draw: random.Random, truth: str, words: str) -> Planted:
    """A collection whose elements references repeat."""
    what, code = collection(draw)
    forms = ("", "r = r + r[:2]\n", "r = r[::-1] + r\n", "r = sorted(r) + r[-1:]\n")
    programs = [READ + code + form + LINE for form in forms]
    wrong = [READ + code + spoil + LINE for spoil in SPOILT[:3]]
    right = programs[3:] if truth == "set" else []
    what = what if truth == "tokens" else what.replace("different ", "")
    statement = f"Given integers, print {what} on one line. {words}"
    return Planted(truth, statement, numbers(draw), programs[0], programs[1:3], right, wrong)


def real(draw: random.Random, truth: str, words: str, forms: Sequence[str], wrong: Sequence[str] = ()) -> Planted:
    """A number: the jury prints the first form, the first two are references, the third is held out."""
    value = draw.choice(("sum(a) / len(a)", "sum(a) ** 0.5", "sum(x * x for x in a) / (1 + a[0])", "a[0] / (a[1] + 7)"))
    programs = [f"{READ}v = {value}\nprint({form})\n" for form in forms]
    asked = f"the whole part of {value}" if "int(v)" in forms[0] else f"the value of {value}"
    spoilt = [f"{READ}v = {value}\nprint({form})\n" for form in wrong]
    return Planted(truth, f"Given integers a, print {asked}. {words}", numbers(draw), programs[0], programs[:2],
                   programs[2:], spoilt)  # fmt: skip


def yes_no(draw: random.Random, truth: str, words: str, given: Sequence[int]) -> Planted:
    """A decision, expected in the first spelling, and given in others."""
    test = draw.choice(("sum(a) % 2 == 0", "max(a) > 50", "len(set(a)) == len(a)", "a[0] < a[-1]"))
    programs = [f"{READ}print('{yes}' if {test} else '{no}')\n" for yes, no in SPELLINGS]
    wrong = [f"{READ}print('NO' if {test} else 'YES')\n", *(programs[1:] if truth == "tokens" else ())]
    statement = f"Given integers a, print YES if {test} (in the notation of Python), and NO otherwise. {words}"
    right = programs[3:] if truth != "tokens" else []
    return Planted(truth, statement, numbers(draw), programs[0], [programs[each] for each in given], right, wrong)


def one_answer(
    draw: random.Random, statement: str, programs: Sequence[str], given: Sequence[int], inputs: Sequence[str] = ()
) -> Planted:
    """A problem for the default: all programs but the first are wrong, those that are `given` as references too."""
    references = [programs[each] for each in given]
    return Planted("tokens", statement, inputs or numbers(draw), programs[0], references, [], programs[1:])


def sorted_ones(draw: random.Random) -> Planted:
    what, code = collection(draw)
    words = draw.choice(("in increasing order", "from the smallest", "sorted ascending", "in order of size"))
    programs = [READ + code + order + LINES for order in ("r.sort()\n", "r.sort(reverse=True)\n", "r = r[::-1]\n")]
    given = draw.choice(([0, 1], [1, 0], [0, 1, 2], [1, 2]))
    return one_answer(draw, f"Given integers, print {what}, {words}.", programs, given)


def tie_break(draw: random.Random) -> Planted:
    base = draw.randint(3, 5)
    keys = (f"(x % {base}, x)", f"x % {base}", f"(x % {base}, -x)")
    programs = [f"{READ}r = list(dict.fromkeys(a))\nr.sort(key=lambda x: {key})\n{LINES}" for key in keys]
    statement = (
        f"Print the different numbers of a list by their remainder modulo {base}, those with equal ones by size."
    )
    return one_answer(draw, statement, programs, draw.choice(([0, 1], [1, 0], [1, 0, 2], [1, 2])))


def turned(draw: random.Random) -> Planted:
    k = draw.randint(2, 4)
    forms = (f"a[{k}:] + a[:{k}]", f"a[-{k}:] + a[:-{k}]", f"a[{k - 1}:] + a[:{k - 1}]", "a")
    programs = [f"{READ}r = {form}\n{LINE}" for form in forms]
    given = draw.choice(([0, 1], [1, 2], [1, 0, 2]))
    return one_answer(draw, f"Turn the list {k} places to the left and print it.", programs, given)


def dealt(draw: random.Random) -> Planted:
    programs = [f"{READ}r = {form}\n{LINES}" for form in ("a[::2] + a[1::2]", "a[::-1]", "a[1::2] + a[::2]")]
    return one_answer(draw, "Two players get cards in turn; print both hands, one card per line.", programs, [1, 2])


def precise(draw: random.Random) -> Planted:
    power = draw.randint(11, 13)
    total = f"sum(x ** {power} for x in a)"
    forms = (total, f"int(sum(float(x) ** {power} for x in a))", f"int(float({total}) * (1 + 1e-12))")
    programs = [f"{READ}print({form})\n" for form in forms]
    statement = f"Print the sum of the numbers, each to the power {power}."
    return one_answer(draw, statement, programs, draw.choice(([1, 2], [0, 1])), numbers(draw, 31, 99))


def spelled(draw: random.Random) -> Planted:
    inputs = [" ".join(draw.choice("abAB") + draw.choice("abAB") for _ in range(8)) + "\n" for _ in range(TESTS)]
    code = "r = []\nfor x in input().split():\n    if all(x.lower() != y.lower() for y in r):\n        r.append(x)\n"
    programs = [f"{code}for x in r:\n    print({form})\n" for form in ("x", "x.lower()", "x.upper()")]
    statement = (
        "Print the words that are new, one per line. Words are compared case-insensitively and printed as they are."
    )
    return one_answer(draw, statement, programs, draw.choice(([0, 1], [1, 0, 2])), inputs)


def several(
    draw: random.Random, statement: str, programs: Sequence[str], wrong: Sequence[str] = (), inputs: Sequence[str] = ()
) -> Planted:
    """A problem that no comparator is right for: all programs are right, and two are the references."""
    return Planted(NONE, statement, inputs or numbers(draw), programs[0], draw.sample(programs, 2), programs, wrong)


def any_pair(draw: random.Random) -> Planted:
    words = draw.choice(
        ("If there are several, print any of them.", "Any valid pair is accepted.", "Output any such pair.")
    )
    code = READ + "a += [1, 2, 3]\nr = [(i, j) for j in range(len(a)) for i in range(j) if (a[i] + a[j]) % 3 == 0]\n"
    programs = [code + f"print(*r[{place}])\n" for place in ("0", "-1", "len(r) // 2][::-1")]
    statement = f"Append 1, 2 and 3 to the list and print two positions of numbers whose sum is divisible by 3. {words}"
    return several(draw, statement, programs, [READ + "print(0, 0)\n"])


def placed(draw: random.Random) -> Planted:
    odd, even = "list(range(1, n + 1, 2))", "list(range(2, n + 1, 2))"
    forms = (f"{even} + {odd}", f"{odd}[::-1] + {even}[::-1]", f"{odd} + {even}", f"{even}[::-1] + {odd}")
    programs = [f"n = int(input())\nr = {form}\n{LINE}" for form in forms]
    inputs = [f"{n}\n" for n in draw.sample(range(5, 40), TESTS)]
    wrong = [f"n = int(input())\nr = range(1, n + 1)\n{LINE}"]
    return several(
        draw, "Place the numbers 1 to n so that those of one parity are neighbours.", programs, wrong, inputs
    )


def grouped(draw: random.Random) -> Planted:
    k = draw.randint(3, 4)
    groups = f"{READ}a = list(dict.fromkeys(a))\ng = [[x for x in a if x % {k} == i] for i in range({k})]\n"
    programs = [f"{groups}for x in g:\n    print(*{form})\n" for form in ("x", "x[::-1]", "sorted(x)")]
    words = draw.choice(("Within a line, print them in any order.", "The numbers may be printed in any order.", ""))
    statement = f"Print the numbers, each once, in {k} lines: line i has those with remainder i modulo {k}. {words}"
    return several(draw, statement, programs, [programs[0].replace(f"x % {k}", f"x // 2 % {k}")])


def cases(draw: random.Random) -> Planted:
    what, code = collection(draw)
    orders = draw.sample(ORDERS, 3)
    programs = [f"for _ in range(int(input())):\n{indented(READ + code + order + LINES)}" for order in orders]
    inputs = ["3\n" + "".join(numbers(draw)[:3]) for _ in range(TESTS)]
    words = draw.choice(("For each test case, print {}, in any order.", "Of each one print {}. Any order is accepted."))
    return several(draw, f"The first line has the number of test cases. {words.format(what)}", programs, (), inputs)


def ties(draw: random.Random) -> Planted:
    base = draw.randint(3, 5)
    forms = (f"x % {base}", f"(x % {base}, x)", f"(x % {base}, -x)")
    programs = [f"{READ}r = list(dict.fromkeys(a))\nr.sort(key=lambda x: {form})\n{LINES}" for form in forms]
    words = draw.choice(("Numbers with equal remainders may be printed in any order.", "Print ties in any order.",
                         "Those of the same remainder can be printed in any order."))  # fmt: skip
    wrong = [f"{READ}r = list(dict.fromkeys(a))\n{LINES}"]
    return several(draw, f"Print the different numbers by their remainder modulo {base}. {words}", programs, wrong)


def words_in_any_case(draw: random.Random) -> Planted:
    letters = "bcdfgaeiou"
    inputs = [" ".join(draw.choice(letters) + draw.choice(letters) for _ in range(8)) + "\n" for _ in range(TESTS)]
    forms = ("r", "r[::-1]", "[x.upper() for x in r]")
    programs = [f"r = sorted(set(input().split()))\nr = {form}\n{LINES}" for form in forms]
    statement = "Print the different words, one per line, in any order. You may print letters in any case."
    return several(draw, statement, programs, (), inputs)


def rows(draw: random.Random) -> Planted:
    rest = draw.randint(0, 2)
    code = f"r = [[x, y] for x in set(a) for y in set(a) if x < y and (x + y) % 3 == {rest}]\n"
    forms = ("r", "r[::-1]", "[p[::-1] for p in r]")
    programs = [f"def solve(a):\n    {code}    return {form}\n" for form in forms]
    inputs = [json.dumps([list(map(int, text.split()))]) for text in numbers(draw)]
    words = "The order of the output and the order of each pair do not matter."
    statement = f"Return the pairs of different numbers whose sum leaves {rest} divided by 3. {words}"
    return replace(several(draw, statement, programs, (), inputs), entry_point="solve")


def contradicted(draw: random.Random) -> Planted:
    return unordered(draw, NONE, LINES, draw.choice(("", ANY_ORDER[0])), [], [0, 1])


KINDS: dict[str, Callable[[random.Random], Planted]] = {
    "lines: said, one reference differs":
        lambda draw: unordered(draw, "lines_any_order", LINES, draw.choice(ANY_ORDER), draw.sample([0, 1], 2)),
    "lines: said, no reference differs":
        lambda draw: unordered(draw, "lines_any_order", LINES, draw.choice(ANY_ORDER), [0]),
    "lines: said, a reference is wrong":
        lambda draw: unordered(draw, "lines_any_order", LINES, draw.choice(ANY_ORDER), [1], [0]),
    "lines: said unusually, one differs":
        lambda draw: unordered(draw, "lines_any_order", LINES, draw.choice(UNUSUAL), [1, 0]),
    "lines: not said, all differ": lambda draw: unordered(draw, "lines_any_order", LINES, "", [1, 2, 3]),
    "lines: not said, one differs": lambda draw: unordered(draw, "lines_any_order", LINES, "", [1, 0]),
    "lines: pairs, said, one differs": lambda draw: pairs(draw, "Print the pairs in any order.", [0, 1]),
    "lines: pairs, said, none differs": lambda draw: pairs(draw, "Print the pairs in any order.", [0]),
    "lines: a list, said, one differs": lambda draw: called(draw, draw.choice(RETURNED), [1, 0]),
    "lines: a list, said, none differs": lambda draw: called(draw, draw.choice(RETURNED), [0]),
    "lines: a list, not said, all differ": lambda draw: called(draw, "", [1, 2]),
    "tokens: said, one reference differs":
        lambda draw: unordered(draw, "tokens_any_order", LINE, draw.choice(ANY_ORDER), draw.sample([0, 1], 2)),
    "tokens: said, no reference differs":
        lambda draw: unordered(draw, "tokens_any_order", LINE, draw.choice(ANY_ORDER), [0]),
    "tokens: said, after their number, one differs":
        lambda draw: unordered(draw, "tokens_any_order", "print(len(r))\n" + LINE, draw.choice(ANY_ORDER), [1, 0]),
    "tokens: not said, all differ": lambda draw: unordered(draw, "tokens_any_order", LINE, "", [1, 2]),
    "set: said": lambda draw: repeating(draw, "set", draw.choice(REPEATED)),
    "set: not said, all differ": lambda draw: repeating(draw, "set", ""),
    "float: 1e-4 said, one rounds":
        lambda draw: real(draw, "float:1e-4", draw.choice(ERRORS),
                          ["v", "f'{v:.4f}'", "round(v, 5)"], ["v * 1.001 + 1"]),
    "float: absolute 1e-3 said":
        lambda draw: real(draw, "float:1e-3,0", "An absolute error of the answer up to 10^{-3} is allowed.",
                          ["v", "f'{v:.3f}'", "round(v, 4)"], ["v * 1.01 + 1"]),
    "float: integers, 1e-6 said":
        lambda draw: real(draw, "float:1e-6", "The relative or absolute error of your answer should be below 1e-6.",
                          ["int(v)", "int(v) + 1e-8", "f'{int(v) + 2e-8:.9f}'"], ["int(v) + 1"]),
    "float: integers, not said, all differ":
        lambda draw: replace(
            plant := real(draw, "float:1e-6", "",
                          ["int(v)", "int(v) + 1e-8", "f'{int(v) + 1e-7:.9f}'"], ["int(v) + 1"]),
            references=[plant.references[1], plant.right[0]]),
    "float: 3 decimals expected, not said":
        lambda draw: real(draw, "float:1e-3", "", ["f'{v:.3f}'", "v", "round(v, 5)"]),
    "case: said, one differs": lambda draw: yes_no(draw, "case_insensitive", draw.choice(IN_ANY_CASE), [0, 1]),
    "case: said, none differs": lambda draw: yes_no(draw, "case_insensitive", draw.choice(IN_ANY_CASE), [0]),
    "case: not said, all differ": lambda draw: yes_no(draw, "case_insensitive", "", [1, 2]),
    "one answer": lambda draw: unordered(draw, "tokens", LINES, "The integers are given in any order.", [0]),
    "one answer: a reference is wrong": lambda draw: unordered(draw, "tokens", LINES, "", [0], [draw.randrange(2)]),
    "one answer: a reference has another order": lambda draw: unordered(draw, "tokens", LINES, "", [0, 1]),
    "one answer: sorted, references forget it": sorted_ones,
    "one answer: references forget a tie-break": tie_break,
    "one answer: a turned list, wrong references": turned,
    "one answer: the input in another order": dealt,
    "one answer: references repeat what is distinct": lambda draw: repeating(draw, "tokens", ""),
    "one answer: references lose precision": precise,
    "one answer: words in the case of the input": spelled,
    "one answer: exact words, a reference shouts": lambda draw: yes_no(draw, "tokens", "", draw.sample([0, 1], 2)),
    "several: print any of them": any_pair,
    "several: any arrangement, not said": placed,
    "several: the members of groups in any order": grouped,
    "several: cases, each in any order": cases,
    "several: ties in any order": ties,
    "several: any order and any case": words_in_any_case,
    "several: order of rows and within rows": rows,
    "several: references contradict the tests": contradicted,
}  # fmt: skip


def planted(each: int, seed: int) -> list[Planted]:
    return [
        replace(make(random.Random(f"{seed} {name} {number}")), kind=name)
        for name, make in KINDS.items()
        for number in range(each)
    ]


async def problem_of(plant: Planted, name: str, judge: Judge) -> Problem:
    """The problem, with the jury's outputs as the expected ones."""
    tests = tuple(Test(given, "") for given in plant.inputs)
    asked = (name, "planted", plant.statement, "", "call" if plant.entry_point else "stdin", plant.entry_point)
    row = dict(zip(("problem_id", "split", "statement", "starter_code", "kind", "entry_point"), asked, strict=True))
    problem = Problem.from_row({
        **row, "tests": [], "tests_total": TESTS, "tests_original": TESTS, "time_limit_s": None,
        "solutions": list(dict.fromkeys(plant.references)), "source_row": 0,
    })  # fmt: skip
    outputs = await judge.outputs(replace(problem, tests=tests), plant.jury)
    return replace(problem, tests=tuple(Test(given, out) for given, out in zip(plant.inputs, outputs, strict=True)))


async def passing(problem: Problem, programs: Sequence[str], judge: Judge) -> int:
    grades = await asyncio.gather(*(judge.grade(problem, code) for code in programs))
    return sum(grade.passed for grade in grades)


async def measured(plants: Sequence[Planted], seed: int, address: str) -> list[dict[str, Any]]:
    """What was inferred of each problem, and how its held-out programs fare if something was."""
    async with SandboxClient([address]) as client:
        judge = Judge(client)
        named = [(plant, f"{number:03d}") for number, plant in enumerate(plants)]
        problems = [await problem_of(plant, name, judge) for plant, name in named]
        checks = await check_solutions(problems, judge, inference_seed=seed)
        found = []
        for plant, problem, check in zip(plants, problems, checks.iter_rows(named=True), strict=True):
            inferred = check["inferred_comparator"]
            row = {"kind": plant.kind, "truth": plant.truth, "statement": plant.statement, "inferred": inferred,
                   "why": check["comparator_from"] or check["suspicion"] or check["detail"],
                   "flagged": check["multi_answer_suspect"]}  # fmt: skip
            if inferred:
                after = replace(problem, comparator=inferred)
                for name, programs in (("right", plant.right), ("wrong", plant.wrong)):
                    row[name] = [len(programs), *[await passing(each, programs, judge) for each in (problem, after)]]
            found.append(row)
    return found


def show(rows: Sequence[dict[str, Any]], console: Console) -> int:
    """Print the tables; returns how many inferences are wrong."""
    inferred = [row for row in rows if row["inferred"]]
    wrong = [row for row in inferred if row["inferred"] != row["truth"] or row["wrong"][2]]
    table = Table("kind", "right comparator", "problems", "inferred", "of them wrong", "undecided, flagged")
    for name in KINDS:
        part = [row for row in rows if row["kind"] == name]
        counts = (len(part), sum(row in inferred for row in part), sum(row in wrong for row in part))
        table.add_row(name, part[0]["truth"], *map(str, counts), str(sum(row["flagged"] for row in part)))
    console.print(table)
    truths = Counter(row["truth"].partition(":")[0] for row in rows)
    right = Counter(row["truth"].partition(":")[0] for row in inferred if row not in wrong)
    table = Table("right comparator", "problems", "inferred", "recall")
    for truth, count in truths.items():
        recall = "" if truth in ("tokens", NONE) else f"{right[truth] / count:.0%}"
        table.add_row(truth, str(count), str(right[truth]), recall)
    console.print(table)
    for row in wrong:
        console.print(f"WRONG: {row}", markup=False)
    wanted = sum(count for truth, count in truths.items() if truth not in ("tokens", NONE))
    console.print(
        f"{len(rows)} problems. Precision: {len(inferred) - len(wrong)} of {len(inferred)} inferred comparators are "
        f"right. Recall: {len(inferred) - len(wrong)} of {wanted}."
    )
    for name in ("right", "wrong"):
        total, before, after = (sum(row[name][place] for row in inferred) for place in range(3))
        console.print(f"Of these problems' {total} held-out {name} programs pass: {before} before, {after} after.")
    return len(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=6, help="problems of each kind (default: 6)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print each problem's row as JSON too")
    options = parser.parse_args()
    with embedded_sandbox() as server:
        rows = asyncio.run(measured(planted(options.each, options.seed), options.seed, server.address))
    if options.json:
        print("\n".join(map(json.dumps, rows)))
    return 1 if show(rows, Console(width=140)) else 0


if __name__ == "__main__":
    sys.exit(main())
