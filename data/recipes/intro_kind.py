"""A kind of first program: its variants, wordings, solution, inputs and common slips, and how one problem is drawn.

A kind is written by hand in templates. `$a`, `$b`, `$c`, `$d` are the arguments' names, `$f` is the function's, and any
other `$name` is a slot of the variant. What a list holds in a variant is a constant: one of its elements is drawn.
The expected values come from `fn` or `truth`, which share no code with the solution that a reader sees.
"""

import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import Template
from textwrap import dedent, indent
from types import SimpleNamespace
from typing import Any

Args = tuple[Any, ...]
Variant = dict[str, Any]
"""The slots of a variant. It may have its own `code`, `args`, `names` and `draw` in place of the kind's, `fn` (the
expected value of the arguments), and `edges` and `slips` besides the kind's."""

WORDS = (
    "apple", "river", "stone", "cloud", "table", "green", "music", "paper", "ocean", "tiger",
    "lemon", "chair", "winter", "garden", "planet", "silver", "button", "candle", "forest", "island",
    "kitten", "marble", "needle", "orange", "pencil", "rabbit", "saddle", "tunnel", "velvet", "wagon",
    "sun", "cat", "map", "ice", "oak", "fox", "key", "bread", "plum", "drum",
    "bell", "leaf", "coin", "boat", "hill", "moon", "noon", "level", "radar", "sheep",
    "eagle", "banana", "coffee", "pepper", "summer", "letter", "hello", "python", "school", "window",
    "basket",
)  # fmt: skip
NAMES = ("Ada", "Ben", "Chloe", "Dan", "Eva", "Finn", "Gita", "Hugo", "Ida", "Jon", "Kim", "Leo", "Mia", "Nils", "Ola")
SHARE_WITH_TYPES, SHARE_WITH_EXAMPLE = 0.55, 0.35
EXAMPLES = (
    "For example, `{call}` returns `{value}`.",
    "So `{call}` should give `{value}`.",
    "Example: `{call}` is `{value}`.",
    "Calling `{call}` must return `{value}`.",
)
LONGEST_EXAMPLE = 60
QUESTION = re.compile(
    r"\b([Ff]ind|[Ff]inds|[Cc]ompute|[Ww]ork out|[Pp]roduce|makes|get|[Ww]hat is) True if (.+?),? (?:and|else) False"
    r"(?: if it is not| if not| if it is odd| otherwise)?(?=[ ,.;:?(])"
)
ASKED = {
    "find": "find out whether", "finds": "finds out whether", "work out": "work out whether", "get": "decide whether",
    "compute": "determine whether", "produce": "decide whether", "makes": "decides whether",
    "what is": "is it true that",
}  # fmt: skip
"""What is returned is True or False, which is no thing to find: then a question is asked instead."""
DRAWN_CASES = 80
TESTS = (6, 7, 8, 8, 9, 10)
MOST_TESTS = 12
COMMONEST_SHARE = 0.75
"""The most common answer is that of at most this share of the tests."""
PLAIN = (int, str, bool, float, type(None))
"""Types of values that no function changes, and that JSON gives back as they are."""


class Unusable(ValueError):
    """A variant whose tests cannot tell its solution from a slip, or whose solution is wrong."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`args` is "name|name: type, ... -> type" and `names` "name|name"; `say` has one wording per paragraph, which may
    begin with the arguments' names in brackets; `code` and `slips` are bodies of the function."""

    name: str
    args: str
    names: str
    say: str
    variants: tuple[Variant, ...]
    draw: Callable[[random.Random, Any], Args]
    code: str = "return $ex"
    truth: Callable[..., Any] | None = None
    edges: tuple[Args, ...] = ()
    slips: tuple[str, ...] = ()

    @property
    def wordings(self) -> list[str]:
        return [" ".join(paragraph.split()) for paragraph in dedent(self.say).strip().split("\n\n")]


@dataclass(frozen=True, slots=True)
class Drawn:
    """One problem; `said` is its statement without an example, `cases` are its tests, the arguments and the expected
    value of each. `failed` counts the slips, all of which fail a test."""

    statement: str
    said: str
    wording: str
    function: str
    starter_code: str
    solution: str
    cases: tuple[tuple[Args, Any], ...]
    failed: int


def variant(**slots: Any) -> Variant:
    return slots


def ints(rng: random.Random, low: int = -20, high: int = 20, least: int = 1, most: int = 7) -> list[int]:
    return [rng.randint(low, high) for _ in range(rng.randint(least, most))]


def words(rng: random.Random, least: int = 1, most: int = 5) -> list[str]:
    return [rng.choice(WORDS) for _ in range(rng.randint(least, most))]


def sentence(rng: random.Random, least: int = 1, most: int = 5) -> str:
    return " ".join(words(rng, least, most))


def scores(rng: random.Random, least: int = 1, most: int = 5, low: int = 0, high: int = 20) -> dict[str, int]:
    return {name: rng.randint(low, high) for name in rng.sample(NAMES, rng.randint(least, most))}


def function_of(program: str, name: str) -> Callable[..., Any]:
    """The function `name` of one of our own programs, which runs in this process."""
    scope: dict[str, Any] = {}
    exec(compile(program, "<generated>", "exec"), scope)
    found = scope[name]
    assert callable(found)
    return found


def answer(function: Callable[..., Any], args: Args) -> Any:
    """What the function returns for a copy of the arguments, as JSON has it; the exception's name if it raises one."""
    try:
        found = function(*map(copied, args))
        return found if type(found) in PLAIN else json.loads(json.dumps(found))
    except Exception as error:  # a slip may raise whatever it likes, which is a wrong answer
        return {"raised": type(error).__name__}


def copied(value: Any) -> Any:
    """A copy of an argument, faster than `deepcopy` makes it of a list."""
    if type(value) is list:
        return [copied(each) for each in value]
    return value if type(value) in PLAIN else copy.deepcopy(value)


def same(one: Any, other: Any) -> bool:
    """Whether two answers are equal and of one type: True is not 1 here."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-9 * max(1.0, abs(other))
    return type(one) is type(other) and bool(one == other)


def draw_problem(kind: Kind, variant: Variant, wording: str, rng: random.Random) -> Drawn:
    """The problem of one variant in one wording. Raises Unusable."""
    v = SimpleNamespace(
        **{name: rng.choice(slot) if isinstance(slot, list) else slot for name, slot in variant.items()}
    )
    own = vars(v)
    text, given = wording, re.match(r"\[([\w, ]+)\] ", wording)
    parameters, _, returned = own.get("args", kind.args).partition(" -> ")
    pairs = [each.split(": ") for each in re.split(r", (?![^\[]*\])", parameters)]
    place = rng.randrange(12)  # names that belong together, x and y, are at the same place
    arguments = [named[place % len(named)] for named in (choices.split("|") for choices, _ in pairs)]
    if given:
        text, arguments = wording[given.end() :], given[1].split(", ")
    if len(arguments) != len(pairs):
        raise Unusable(f"{kind.name}: {given and given[1]} for {parameters}")
    slots = own | dict(zip("abcd", arguments, strict=False))
    function = fill(rng.choice(own.get("names", kind.names).split("|")), slots)
    slots["f"] = function
    typed = rng.random() < SHARE_WITH_TYPES
    shown = [f"{name}: {kind_of}" if typed else name for name, (_, kind_of) in zip(arguments, pairs, strict=True)]
    head = f"def {function}({', '.join(shown)}){f' -> {returned}' if typed else ''}:\n"

    def program(body: str) -> str:
        return head + indent(fill(dedent(body).strip("\n"), slots), "    ") + "\n"

    solution = program(own.get("code", kind.code))
    slips = [program(body) for body in (*kind.slips, *own.get("slips", ()))]
    cases, failed = _cases(kind, v, solution, slips, function, rng)
    ticked = slots | {name: f"`{slots[name]}`" for name in "abcdf" if name in slots}
    said = QUESTION.sub(_asked, fill(text, ticked))
    said = said[0].upper() + said[1:]
    example = _example(function, cases, rng) if rng.random() < SHARE_WITH_EXAMPLE else ""
    return Drawn(said + example, said, wording, function, head + "    ", solution, tuple(cases), failed)


def _asked(match: re.Match[str]) -> str:
    verb = ASKED[match[1].lower()]
    follows = match.string[match.end() :]
    said_so = verb == ASKED["what is"] or match[2].endswith(")") or follows.startswith(" (")
    answer_in = "" if said_so else " (True or False)"
    return f"{verb.capitalize() if match[1][0].isupper() else verb} {match[2]}{answer_in}"


def fill(text: str, slots: dict[str, Any]) -> str:
    """`text` with its slots filled, and those in what they hold."""
    for _ in range(3):
        if "$" not in text:
            return text
        text = Template(text).substitute(slots)
    return text


def _cases(
    kind: Kind, v: SimpleNamespace, solution: str, slips: Sequence[str], function: str, rng: random.Random
) -> tuple[list[tuple[Args, Any]], int]:
    """The tests: all edges, for each slip one that it fails, then drawn ones. Raises Unusable."""
    truth = getattr(v, "fn", None) or (lambda *args: kind.truth(v, *args) if kind.truth else None)
    draw = getattr(v, "draw", kind.draw)
    solve, wrong = function_of(solution, function), [function_of(slip, function) for slip in slips]

    def case(args: Args) -> tuple[Args, Any]:
        wanted, found = answer(truth, args), answer(solve, args)
        if wanted is None or not same(found, wanted) or (isinstance(wanted, dict) and "raised" in wanted):
            raise Unusable(f"{kind.name}: {args} should give {wanted!r} and gives {found!r}\n{solution}")
        return args, wanted

    def fails(slip: Callable[..., Any], one: tuple[Args, Any]) -> bool:
        return not same(answer(slip, one[0]), one[1])

    chosen: list[tuple[Args, Any]] = []
    for args in (*(() if "own" in vars(v) else kind.edges), *getattr(v, "edges", ())):
        if all(repr(args) != repr(known) for known, _ in chosen):  # [0] and [False] are equal, and not the same test
            chosen.append(case(args))
    drawn: list[tuple[Args, Any]] = []
    for _ in range(DRAWN_CASES):
        one = case(draw(rng, v))
        if one not in chosen and one not in drawn:
            drawn.append(one)
    for slip, text in zip(wrong, slips, strict=True):
        if not any(fails(slip, one) for one in chosen):
            told = [one for one in drawn if fails(slip, one)]
            if not told:
                raise Unusable(f"{kind.name}: no test fails this slip of\n{solution}\n{text}")
            chosen.append(told[0])
    count = max(rng.choice(TESTS), len(chosen))
    for one in drawn:
        if len(chosen) == count:
            break
        answers = [json.dumps(expected) for _, expected in (*chosen, one)]
        if one not in chosen and answers.count(answers[-1]) <= max(2, (len(answers) + 1) // 2):
            chosen.append(one)
    answers = [json.dumps(expected) for _, expected in chosen]
    commonest = max(map(answers.count, answers))
    if not 6 <= len(chosen) <= MOST_TESTS or commonest > COMMONEST_SHARE * len(chosen):
        raise Unusable(f"{kind.name}: {len(chosen)} tests, {commonest} with the same answer\n{solution}")
    rng.shuffle(chosen)
    return chosen, len(slips)


def _example(function: str, cases: Sequence[tuple[Args, Any]], rng: random.Random) -> str:
    """A sentence that shows one test, or nothing where all are too long."""
    calls = [(f"{function}({', '.join(map(repr, args))})", expected) for args, expected in cases if all(args)]
    short = [(call, expected) for call, expected in calls if len(f"{call}{expected!r}") <= LONGEST_EXAMPLE]
    if not short:
        return ""
    call, expected = rng.choice(short)
    return " " + rng.choice(EXAMPLES).format(call=call, value=repr(expected))
