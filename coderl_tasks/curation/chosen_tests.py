"""Which of many candidate inputs become tests: those that fail the most programs that too few tests fail so far, and
those of kinds that no test has yet.

`quick_answers` runs a program on all inputs in one process of the sandbox, in a hundredth of the time of a process per
input. It only guides the choice, as a program may carry something over to the next input: the judge verifies
what is chosen.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

from coderl_tasks.curation.new_inputs import Record
from coderl_tasks.grading.judge import Judge
from coderl_tasks.problems.problem import Problem, Test

DEPTH = 3  # tests, given ones included, that a wrong program should fail: an unknown one like it then fails one of them
KIND, EDGE = 0.02, 0.5  # worth of a kind of input, and of one at an edge, beside 1 of a wrong program
_LONGEST = 4000  # characters of an answer that are compared as they are, of a longer one its beginning and hash
_OUT_OF_TIME = 2  # inputs, after which a program is not run on further ones
_INTEGER = re.compile(r"[-+]?\d+")
_DECIMAL = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?")
_IS_NEVER_EMPTY = re.compile(r"at least one \w+ (remain|is left)|\b(always|guaranteed)\b", re.IGNORECASE)
_NAMES_NONE = re.compile(r"\b(none|null|nothing|nil)\b", re.IGNORECASE)


class Answer(NamedTuple):
    """What a program printed or returned (`text`), or the error that ended it."""

    text: str
    error: str = ""


async def quick_answers(
    problem: Problem, code: str, inputs: Sequence[str], judge: Judge, limit_s: float, name: str = ""
) -> list[Answer | None]:
    """A program's answers to `inputs`; None where it took more than `limit_s` CPU seconds, or was not run. `name` is
    the function to call, with an input's arguments as JSON or as Python writes a tuple. Raises InfraError."""
    asked = {"code": code, "name": name, "inputs": list(inputs), "kind": problem.kind, "limit_s": limit_s}
    asked |= {"longest": _LONGEST, "out_of_time": _OUT_OF_TIME, "all_s": (all_s := max(2.0, 6 * limit_s))}
    whole = Test(json.dumps(asked), "")
    one = replace(problem, kind="stdin", tests=(whole,), tests_total=1, time_limit_s=all_s + 2 * limit_s)
    found: list[Answer | None] = []
    with suppress(ValueError, IndexError, TypeError):  # the program has ended the process, or written into its output
        answers = json.loads((await judge.outputs(one, _HARNESS))[0].rpartition("\n")[2])
        found = [None if each is None else Answer(*each) for each in answers]
    return [*found, *[None] * (len(inputs) - len(found))][: len(inputs)]


def kind_of_text(text: str) -> str:
    """What a program printed: integers, decimals or other text, or something empty, such as a line."""
    if any(not line.strip() for line in text.removesuffix("\n").split("\n")):
        return "empty"
    tokens = text.split()
    if all(map(_INTEGER.fullmatch, tokens)):
        return "integers"
    return "decimals" if all(map(_DECIMAL.fullmatch, tokens)) else "text"


def kind_of_value(value: Any) -> str:
    """What a function returned: its type, and whether it is empty."""
    name = type(value).__name__
    return f"empty {name}" if isinstance(value, str | list | tuple | dict | set) and not value else name


def is_meant(answer: Answer, kind: str, given: Set[str], statement: str) -> bool:
    """Whether an answer is of a kind that the answers to the given tests are of, or of one that the statement names.
    One that is not, as a fraction where all are integers, shows that the statement does not mean such an input."""
    if kind in given or (kind == "int" and "float" in given) or (kind == "integers" and "decimals" in given):
        return True
    if kind.startswith("empty"):
        return not _IS_NEVER_EMPTY.search(statement) and (kind == "empty" or kind.removeprefix("empty ") in given)
    if kind == "NoneType":
        return bool(_NAMES_NONE.search(statement))
    return answer.text.strip().strip("'\"").casefold() in statement.casefold()


@dataclass(slots=True)
class Goal:
    """Something that tests should do: fail a wrong program, or have an input of some kind. `tests` are the numbers of
    those that do, `times` says how many of the tests chosen so far do, given ones included."""

    tests: set[int]
    times: int
    worth: float = 1.0


def choose(goals: Sequence[Goal], most: int) -> list[int]:
    """At most `most` tests by number, the best first. A test adds the worth of a goal that none meets yet, a quarter of
    it where one does, and so on until DEPTH."""
    chosen: list[int] = []
    while len(chosen) < most:
        worth: dict[int, float] = {}
        for goal in goals:
            if goal.times < DEPTH:
                for number in goal.tests:
                    worth[number] = worth.get(number, 0) + goal.worth * 0.25**goal.times
        left = [number for number in worth if number not in chosen]
        if not left:
            break
        best = max(left, key=lambda number: (worth[number], -number))
        chosen.append(best)
        for goal in goals:
            goal.times += best in goal.tests
    return chosen


def kinds_of_inputs(given: Sequence[set[str]], new: Sequence[set[str]]) -> list[Goal]:
    """The goal of each kind that some new input has. `given` and `new` are the `features` of each input."""
    had = Counter(kind for kinds in given for kind in kinds)
    goals: dict[str, Goal] = {}
    for number, kinds in enumerate(new):
        for kind in sorted(kinds):
            worth = EDGE if kind.startswith("edge") else KIND
            goals.setdefault(kind, Goal(set(), had[kind], worth)).tests.add(number)
    return list(goals.values())


def features(records: Sequence[Record], answer: str) -> set[str]:
    """What kind of input some records are: per field, and for each two fields, in words; and what the answer is."""
    found = {f"answer {answer}" if len(answer) < 3 else f"answer of {min(len(answer), 9)}", f"cases {len(records)}"}
    for record in records:
        fields = [_value_features(value) for value in record]
        # Few programs that are wrong for an empty value, or for 0, are wrong for any other.
        edges = [number for number, value in enumerate(record) if not value and not isinstance(value, bool)]
        found.update(f"edge {number}" for number in edges)
        if len(edges) == len(record):
            found.add("edge of all")
        for number, kinds in enumerate(fields):
            found |= {f"{number} {kind}" for kind in kinds}
            found |= {f"{number} {one} {other}" for one, other in combinations(sorted(kinds), 2)}
        for (one, kinds), (other, others) in combinations(enumerate(fields), 2):
            found |= {f"{one} {first} {other} {second}" for first in kinds for second in others}
            found.add(f"{one} {other} {_order(record[one], record[other])}")
    return found


def _order(one: Any, other: Any) -> str:
    if isinstance(other, list | tuple | str | dict) and not isinstance(one, list | dict):
        return f"inside {str(one) in other if isinstance(other, str) else one in other}"
    with suppress(TypeError):
        return "equal" if one == other else "less" if one < other else "greater"
    return "unlike"


def _value_features(value: Any) -> set[str]:
    """Coarse features of one value of an input, as short texts that are only compared. Counts are capped, so that there
    are few features."""
    if isinstance(value, bool) or value is None:
        return {str(value)}
    if isinstance(value, int | float):
        sign = (value > 0) - (value < 0)
        return {f"{sign} of {min(len(str(abs(value))), 4)}", f"rest {value % 2}"}
    if not isinstance(value, list | tuple | str | dict):
        return {type(value).__name__}
    items = list(value)  # of a dict its keys
    found = {f"size {min(len(items), 5)}", f"even {len(items) % 2}"}
    if items and isinstance(value, str):
        classes = list(map(_character_class, items))
        found |= {f"first {classes[0]}", f"last {classes[-1]}", *classes, f"words {min(len(value.split()), 5)}"}
    with suppress(TypeError):  # elements without an order, or unhashable: what was found until then stays
        ordered = sorted(items)
        found.add("falling" if items == ordered[::-1] else "rising" if items == ordered else "unordered")
        if len(items) > 1:
            for name, item in (("most", ordered[-1]), ("least", ordered[0])):
                end = "the start" if item == items[0] else "the end" if item == items[-1] else "neither end"
                found.add(f"{name} at {end}")
            is_least_repeated, is_most_repeated = ordered[0] == ordered[1], ordered[-1] == ordered[-2]
            found.add(f"repeated {is_least_repeated} {is_most_repeated} {len(set(items)) < len(items)}")
    if isinstance(value, dict):
        return found | {f"value {kind}" for each in value.values() for kind in _value_features(each)}
    inner = [each for each in items if not isinstance(each, str) or len(each) > 1]  # not the characters of a text
    return found | {f"has {kind}" for each in inner for kind in _value_features(each)}


def _character_class(text: str) -> str:
    if text.isalpha():
        return "upper" if text.isupper() else "lower"
    return "digit" if text.isdigit() else "space" if text.isspace() else "sign"


# The judge's driver (grading/payload) can run several tests in one process too, but ends at the first that has no
# answer. Wrong programs have none to many inputs, and the later ones are wanted all the same.
_HARNESS = """
import hashlib as _hashlib, io as _io, json as _json, os as _os, signal as _signal, sys as _sys, tempfile as _tempfile
import ast as _ast, time as _time

class _Expired(BaseException):
    pass

def _expire(*_):
    raise _Expired

def _run(asked):
    stdout, space, answers, expired = _os.dup(1), dict(globals()), [], 0
    file = _tempfile.TemporaryFile(buffering=0)
    code = compile(asked["code"], "solution.py", "exec", dont_inherit=True)
    function = None
    if asked["name"]:
        space["__name__"] = "solution"
        exec(code, space)
        solution = space.get("Solution")
        function = getattr(solution(), asked["name"]) if hasattr(solution, asked["name"]) else space[asked["name"]]
    _signal.signal(_signal.SIGVTALRM, _expire)
    for text in asked["inputs"]:
        if expired >= asked["out_of_time"] or _time.process_time() > asked["all_s"]:
            break
        printed = _sys.stdout = _io.TextIOWrapper(_io.BytesIO(), encoding="utf-8", newline="\\n")
        try:
            if function is not None:
                arguments = _json.loads(text) if asked["kind"] == "call" else _ast.literal_eval(text)
            else:
                file.seek(0)
                file.truncate()
                file.write(text.encode())
                file.seek(0)
                _os.dup2(file.fileno(), 0)
                _sys.stdin = open(0, closefd=False)
            _signal.setitimer(_signal.ITIMER_VIRTUAL, asked["limit_s"], 0.05)
            try:
                if function is None:
                    exec(code, dict(space, __name__="__main__"))
                else:
                    value = function(*arguments)
            finally:
                _signal.setitimer(_signal.ITIMER_VIRTUAL, 0)
            if function is None:
                printed.flush()
                answer = printed.buffer.getvalue().decode()
            else:
                answer = _json.dumps(value) if asked["kind"] == "call" else repr(value)
        except _Expired:
            expired += 1
            answers.append(None)
            continue
        except SystemExit as error:
            printed.flush()
            answer = printed.buffer.getvalue().decode()
            if error.code not in (None, 0) or function is not None:
                answers.append(["", "SystemExit"])
                continue
        except BaseException as error:
            answers.append(["", type(error).__name__])
            continue
        if len(answer) > asked["longest"]:
            answer = answer[: asked["longest"]] + _hashlib.sha256(answer.encode()).hexdigest()
        answers.append([answer])
    _os.write(stdout, ("\\n" + _json.dumps(answers)).encode())
    _os._exit(0)

_run(_json.loads(_sys.stdin.read()))
"""
