"""Which of many candidate inputs become tests: those that fail the most programs that too few tests fail so far, and
those of kinds that no test has yet.

`quick_answers` runs one program on all inputs in one process of the sandbox, which takes a hundredth of the time that a
process per input takes. What it finds only guides the choice: a program may carry something over from one input to the
next. The judge verifies what is chosen.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any, NamedTuple

from coderl_tasks.curation.new_inputs import Record
from coderl_tasks.grading.judge import Judge
from coderl_tasks.problems.problem import Problem, Test

DEPTH = 3  # tests, given ones included, that a wrong program should fail: an unknown one like it then fails one of them
_FEATURE = 0.02  # a wrong program is worth 50 features
_LONGEST = 4000  # characters of an answer that are compared as they are, of a longer one its beginning and hash
_OUT_OF_TIME = 2  # inputs, after which a program is not run on further ones


class Answer(NamedTuple):
    """What a program printed or returned (`text`), or the error that ended it."""

    text: str
    error: str = ""


async def quick_answers(
    problem: Problem, code: str, inputs: Sequence[str], judge: Judge, limit_s: float, name: str = ""
) -> list[Answer | None]:
    """A program's answers to `inputs`; None where it took more than `limit_s` CPU seconds, or was not run. `name` is the
    function that is called, with the arguments that an input holds, as JSON or as Python writes a tuple. Raises
    InfraError."""
    asked = {"code": code, "name": name, "inputs": list(inputs), "kind": problem.kind, "limit_s": limit_s}
    asked |= {"longest": _LONGEST, "out_of_time": _OUT_OF_TIME, "all_s": (all_s := max(2.0, 6 * limit_s))}
    whole = Test(json.dumps(asked), "")
    one = replace(problem, kind="stdin", tests=(whole,), tests_total=1, time_limit_s=all_s + 2 * limit_s)
    found: list[Answer | None] = []
    with suppress(ValueError, IndexError, TypeError):  # the program has ended the process, or written into its output
        answers = json.loads((await judge.outputs(one, _HARNESS))[0].rpartition("\n")[2])
        found = [None if each is None else Answer(*each) for each in answers]
    return [*found, *[None] * (len(inputs) - len(found))][: len(inputs)]


def choose(
    fails: Mapping[str, set[int]],
    failed_before: Mapping[str, int],
    features: Sequence[set[str]],
    features_before: set[str],
    most: int,
) -> list[int]:
    """At most `most` tests by number, the best first. `fails` has the tests that each wrong program fails,
    `failed_before` how many of the given tests it fails. A test is worth 1 for a program that none fails yet, a half for
    one that one test fails, and so on until DEPTH. Each of a test's `features` that no test has yet adds _FEATURE: wrong
    programs that nobody has thought of fail on inputs of a new kind."""
    times = {program: failed_before.get(program, 0) for program in fails}
    seen = set(features_before)
    chosen: list[int] = []
    while len(chosen) < most:
        worth = [_FEATURE * len(own - seen) for own in features]
        for program, numbers in fails.items():
            if times[program] < DEPTH:
                for number in numbers:
                    worth[number] += 0.5 ** times[program]
        left = [number for number in range(len(worth)) if number not in chosen and worth[number] > 0]
        if not left:
            break
        best = max(left, key=lambda number: (worth[number], -number))
        chosen.append(best)
        seen |= features[best]
        for program, numbers in fails.items():
            times[program] += best in numbers
    return chosen


def features(records: Sequence[Record], answer: str) -> set[str]:
    """What kind of input some records are: per field, and for each two fields, in words; and what the answer is."""
    found = {
        f"answer {answer[:20]}" if len(answer) < 3 else f"answer of {min(len(answer), 9)}",
        f"cases {len(records)}",
    }
    for record in records:
        fields = [_kinds(value) for value in record]
        for number, kinds in enumerate(fields):
            found |= {f"{number} {kind}" for kind in kinds}
            found |= {f"{number} {one} {other}" for one, other in combinations(sorted(kinds), 2)}
        for (one, kinds), (other, others) in combinations(enumerate(fields), 2):
            found |= {f"{one} {first} {other} {second}" for first in kinds for second in others}
            found.add(f"{one} {other} {_order(record[one], record[other])}")
    return found


def careless(record: Record) -> Iterator[tuple[str, Record]]:
    """What a careless program takes a record for, by the name of what it assumes: that a list is sorted, say. Where the
    right answers to both differ, a test of the record fails it."""
    for field, value in enumerate(record):
        for name, other in _taken_for(value):
            if repr(other) != repr(value):
                yield f"{field} {name}", _with_lengths(record, field, other)
    for one, other in permutations(range(len(record)), 2):
        if type(record[one]) is type(record[other]) and record[one] != record[other]:
            yield f"{one} is {other}", _with_lengths(record, one, record[other])


def _with_lengths(record: Record, field: int, value: Any) -> Record:
    """`record` with another value, and with the numbers that said how long the former one is."""
    changed, old = [*record[:field], value, *record[field + 1 :]], record[field]
    if isinstance(value, list | str) and isinstance(old, list | str):
        changed = [len(value) if type(each) is int and each == len(old) else each for each in changed]
    return changed


def _taken_for(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, bool):
        yield "not", not value
    elif isinstance(value, int | float):
        yield from (("abs", abs(value)), ("0", type(value)(0)), ("1", type(value)(1)), ("-", -value))
        yield from (("positive", max(value, 1)), ("no negative", max(value, 0)), ("small", min(value, 10)), ("+ 1", value + 1))
        yield from (("whole", float(int(value))),) if isinstance(value, float) else ()
    elif isinstance(value, str):
        yield from (("lower", value.lower()), ("upper", value.upper()), ("strip", value.strip()))
        yield from ((name, "".join(other)) for name, other in _of_sequence(list(value)))
        yield from ((f"words {name}", " ".join(other)) for name, other in _of_sequence(value.split(" ")) if " " in value)
    elif isinstance(value, list):
        yield from _of_sequence(value)
        if value and all(type(each) is int for each in value):
            yield from (("abs", [abs(each) for each in value]), ("no negative", [max(each, 0) for each in value]))
            yield from (("no zeros", [each for each in value if each]), ("small", [min(each, 10) for each in value]))
        if value and all(isinstance(each, list) for each in value):
            for name in dict(_of_sequence(value[0])):
                yield f"each {name}", [dict(_of_sequence(each))[name] for each in value]


def _of_sequence(value: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    yield from (("no first", value[1:]), ("no last", value[:-1]), ("half", value[: (len(value) + 1) // 2]))
    yield from (("reversed", value[::-1]), ("one", value[:1]), ("every second", value[::2]))
    yield "distinct", list({repr(each): each for each in value}.values())
    ordered = value
    with suppress(TypeError):
        ordered = sorted(value)
    yield from (("sorted", ordered), ("no least", ordered[1:]), ("no greatest", ordered[:-1]))


def _order(one: Any, other: Any) -> str:
    if isinstance(other, list | tuple | str | dict) and not isinstance(one, list | dict):
        return f"inside {str(one) in other if isinstance(other, str) else one in other}"
    with suppress(TypeError):
        return "equal" if one == other else "less" if one < other else "greater"
    return "unlike"


def _kinds(value: Any) -> set[str]:
    """What kind of value a value is."""
    if isinstance(value, bool) or value is None:
        return {str(value)}
    if isinstance(value, int | float):
        return {f"{(value > 0) - (value < 0)} of {min(len(str(abs(value))), 4)}", f"rest {value % 2}"}
    if not isinstance(value, list | tuple | str | dict):
        return {type(value).__name__}
    items = list(value)
    found = {f"size {min(len(items), 5)}", f"even {len(items) % 2}"}
    if items and isinstance(value, str):
        found |= {f"first {_character(items[0])}", f"last {_character(items[-1])}", *map(_character, items)}
    with suppress(TypeError):  # elements that have no order
        ordered = sorted(items)
        found.add("falling" if items == ordered[::-1] else "rising" if items == ordered else "unordered")
        if len(items) > 1:
            found |= {f"most at {_end(items, ordered[-1])}", f"least at {_end(items, ordered[0])}"}
            found.add(
                f"repeated {ordered[0] == ordered[1]} {ordered[-1] == ordered[-2]} {len(set(items)) < len(items)}"
            )
    if isinstance(value, dict):
        return found | {f"value {kind}" for each in value.values() for kind in _kinds(each)}
    return found | {
        f"has {kind}" for each in items if not isinstance(each, str) or len(each) > 1 for kind in _kinds(each)
    }


def _end(items: Sequence[Any], item: Any) -> str:
    return "the start" if item == items[0] else "the end" if item == items[-1] else "neither end"


def _character(text: str) -> str:
    if text.isalpha():
        return "upper" if text.isupper() else "lower"
    return "digit" if text.isdigit() else "space" if text.isspace() else "sign"


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
