"""The samples that a statement shows, as inputs with their answers. Patterns that leave no doubt, or nothing: a sample
that was read wrongly is worse than none.

1. Programs on standard input: blocks headed Input and Output, in turn, below a heading Example, or headed Sample Input
   and Sample Output. A block is one paragraph or a fenced one. A block with prose, or with several paragraphs, is left
   out with its partner; where no expected output of the tests has an empty line, prose may follow an output's.
2. Functions: a doctest (`>>> f(1)` and its value), `f(1) == 2`, `f(1) returns 2`, `f(1) => 2`, `assert f(1) == 2`.
   Arguments and value are literals, and nothing comes after the value that could go on with it.
"""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from coderl_tasks.problems.problem import Problem, Test

_NOT_LITERAL = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
_FRAME = r"^[\W_]*"
_BLOCK = re.compile(rf"{_FRAME}(?P<sample>(?:sample|example)\s+)?(?P<side>input|output)\s*#?\d*\s*:?[\W_]*$", re.I)
_EXAMPLES = re.compile(rf"{_FRAME}(?:samples?|examples?)(?: (?:tests?|cases?|test cases?))?\s*#?\d*\s*:?[\W_]*$", re.I)
_END = re.compile(rf"{_FRAME}(?:notes?|explanations?|hints?|constraints?|scoring|subtasks?|source)\b", re.I)
_WORD = re.compile(r"[A-Za-z]{2,}")
_PROSE_WORDS = 4
_SAYS = re.compile(
    r"`?\s*(?:=+>|==|->|→|➞|returns?\b|gives\b|(?:should|must|will) (?:return|give|be)\b|is\b(?=\s*`)|=(?!=))\s*`?"
)
_SCALAR = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|[Tt]rue\b|[Ff]alse\b|None\b")
_AFTER = re.compile(r"`|[.;,]?\s*$|\.\s+[A-Z`]|,\s+(?:[a-z]{2,}|`)|\s+#")
"""What may come after a value: "f(1) returns 2.", and not "f(1) returns 2 * n", nor "f(1) returns 1, 2"."""
_PART_OF_MORE = frozenset("+-*/%(,<>&|^~@[{.=!")
"""What stands before a call that is only part of what is compared."""
_LONGEST_CALL = 1000


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: `given` as values that are equal for equal inputs (tokens, or arguments as lists), and the `test`
    that it is. It can be run (`is_exact`) if a test holds the same values: JSON has no tuples."""

    given: list[Any]
    test: Test
    is_exact: bool = True


def samples(problem: Problem) -> list[Sample]:
    """The samples in the statement of a `stdin`, `call` or `assert` problem, in their order, each input once."""
    distinct: list[Sample] = []
    for sample in _stdin_samples(problem) if problem.kind == "stdin" else _call_samples(problem):
        if all(sample.given != other.given for other in distinct):
            distinct.append(sample)
    return distinct


def given_in_tests(problem: Problem) -> list[Any] | None:
    """The inputs of the tests as `Sample.given` has them; None if a test computes what it gives."""
    if problem.kind == "stdin":
        return [test.input.split() for test in problem.tests]
    if problem.kind == "call":
        return [json.loads(test.input) for test in problem.tests]
    found = []
    for test in problem.tests:
        try:
            calls = list(_calls_of(ast.parse(test.expected), {problem.entry_point, "candidate"}))
            found += [_plain(_arguments(call)) for call in calls]
        except _NOT_LITERAL:
            return None
    return found


def asserted(script: str, entry_point: str) -> tuple[list[Any], Any] | None:
    """The arguments and the value of a test that only says `assert f(1) == 2`, both without tuples; None for others."""
    try:
        (statement,) = ast.parse(script).body
        match statement:
            case ast.Assert(ast.Compare(ast.Call(func=ast.Name(id=name)) as call, [ast.Eq()], [value])):
                return (_plain(_arguments(call)), _plain(ast.literal_eval(value))) if name == entry_point else None
    except _NOT_LITERAL:  # more than one statement too
        pass
    return None


def _stdin_samples(problem: Problem) -> Iterator[Sample]:
    """Yields the samples of a program on standard input: the paragraph below a heading Input and the one below the next
    heading Output. Yields nothing if these do not alternate: then which belong together is a guess."""
    blocks: list[tuple[str, list[str]]] = []  # a heading's word, "input" or "output", and the lines below
    in_samples = is_open = False  # a heading of samples was above; the last block goes on
    for line in problem.statement.splitlines():
        heading = _BLOCK.match(line)
        if _EXAMPLES.match(line):
            in_samples, is_open = True, False
        elif heading is not None and (in_samples or heading["sample"]):
            in_samples = is_open = True
            blocks.append((heading["side"].lower(), []))
        elif _END.match(line):
            is_open = False
        elif is_open:
            blocks[-1][1].append(line)
    if [side for side, _ in blocks] != ["input", "output"] * (len(blocks) // 2):
        return
    # If outputs have no empty lines, a paragraph after the first is prose and no output.
    has_gaps = any("\n\n" in test.expected.strip() for test in problem.tests)
    for (_, shown_input), (_, shown_output) in zip(blocks[::2], blocks[1::2], strict=True):
        input_text, expected = _paragraph(shown_input), _paragraph(shown_output, prose_follows=not has_gaps)
        if input_text is not None and expected:
            # Its tokens identify a sample: two whose inputs differ only in white space are one.
            yield Sample(given=input_text.split(), test=Test(input_text, expected))


def _paragraph(block: Sequence[str], *, prose_follows: bool = False) -> str | None:
    """The text of a block, "" for an empty one; None if it is in doubt what belongs to it."""
    text = "\n".join(line.rstrip() for line in block).strip("\n")
    if text.startswith("```"):
        inner, fence, _ = text.partition("\n")[2].partition("\n```")
        return f"{inner}\n" if fence and inner.strip() else None
    first, _, rest = text.partition("\n\n")
    if rest.strip() and not (prose_follows and _is_prose(rest.strip().partition("\n")[0])):
        return None
    if "```" in text or any(map(_is_prose, first.splitlines())):
        return None
    return f"{first}\n" if first else ""


def _is_prose(line: str) -> bool:
    return len(_WORD.findall(line)) >= _PROSE_WORDS


def _call_samples(problem: Problem) -> Iterator[Sample]:
    """Yields the samples of a function: doctests (`>>> f(1)`, and the value in the lines below, up to an empty one or
    the next `>>>`), and calls with their value in the same line, as `f(1) == 2` or `f(1) returns 2`."""
    lines = problem.statement.splitlines()
    name = problem.entry_point.rpartition(".")[2]
    if not name:
        return
    for number, line in enumerate(lines):
        code = line.strip()
        if code.startswith(">>>"):
            call = code.removeprefix(">>>").strip()
            value = takewhile(lambda after: after and not after.startswith(">>>"), map(str.strip, lines[number + 1 :]))
            if call.startswith(f"{name}(") and _end_of_call(call, 0) == len(call):  # it says nothing more
                yield from _sample(call, "\n".join(value))
            continue
        for start in (found.start() for found in re.finditer(rf"(?<![\w.]){re.escape(name)}\(", line)):
            before = line[:start].rstrip()
            end = _end_of_call(line, start)
            says = _SAYS.match(line, end) if end is not None else None  # `==`, `returns` and so on
            # Not a call that is part of a larger expression (`1 + f(1) == 2`), or of one that is denied.
            if says and before[-1:] not in _PART_OF_MORE and not before.endswith((" not", " in")):
                yield from _sample(line[start:end], _value(line[says.end() :]))


def _end_of_call(line: str, start: int) -> int | None:
    """The index behind the call that begins at `start`; None if it does not end in this line."""
    for end in range(start + 1, min(len(line), start + _LONGEST_CALL)):
        if line[end] == ")":
            try:
                if isinstance(ast.parse(line[start : end + 1], mode="eval").body, ast.Call):
                    return end + 1
            except _NOT_LITERAL:
                continue
    return None


def _value(text: str) -> str:
    """The literal that `text` begins with, "" if there is none or it may go on."""
    ends = [found.end()] if (found := _SCALAR.match(text)) else []
    if text[:1] in tuple("[({'\""):
        ends = [place + 1 for place, letter in enumerate(text) if letter in "])}'\"" and place]
    for end in ends:
        try:
            _literal(text[:end])
        except _NOT_LITERAL:
            continue
        return text[:end] if _AFTER.match(text, end) else ""
    return ""


def _literal(text: str) -> Any:
    return ast.literal_eval(text.title() if text in ("true", "false") else text)


def _sample(call: str, value: str) -> Iterator[Sample]:
    """The sample of a call and its value, none if they are no literals or no JSON."""
    try:
        (node,) = _calls_of(ast.parse(call), {call.partition("(")[0]})
        arguments, expected = _arguments(node), _literal(value)
        test = Test(json.dumps(arguments), json.dumps(_plain(expected)))
    except _NOT_LITERAL:
        return
    yield Sample(_plain(arguments), test, is_exact=json.loads(test.input) == arguments)


def _calls_of(tree: ast.AST, names: set[str]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def _arguments(call: ast.Call) -> list[Any]:
    """The values of a call's arguments. Raises ValueError if one is no literal, or has a name."""
    if call.keywords:
        raise ValueError("an argument has a name")
    return [ast.literal_eval(argument) for argument in call.args]


def _plain(value: Any) -> Any:
    """`value` with lists in place of tuples."""
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return {key: _plain(part) for key, part in value.items()} if isinstance(value, dict) else value
