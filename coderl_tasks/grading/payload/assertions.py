"""Runs assertion tests in a process of the sandbox that no program shares; `payload/values.py` stands above this text.

All that the program defines is a stand-in here. What a test does with it is an operation, which the program's own
process does. The tests run with the answers known so far, and end where they need another one. Before that they run
once without answers. grading/judge_programs.py has the formats.
"""

# ruff: noqa: PTH123, SIM905

import functools
import io
import re
import resource
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # they stand above this text where it runs
    import builtins
    import itertools
    import json
    import math
    import operator
    import os
    import signal
    import sys
    from collections import deque
    from typing import Any

    from coderl_tasks.grading.payload.forked import in_forked_process
    from coderl_tasks.grading.payload.values import (
        BASES,
        FUNCTION,
        LIBRARY_ERRORS,
        MUTABLE_BASES,
        REFERENCE,
        UNTOUCHED,
        CannotCross,
        Decoding,
        Encoding,
        MalformedValue,
        Shared,
    )

SCRIPT = "<test>"
MODULE = "solution"
PASSED, FAILED, ERRED, NEEDS, FAULT = "passed", "failed", "error", "needs", "fault"
MOST_OPERATIONS = 5000  # of a rehearsal
MOST_PULLS = 12  # of an iterator
MOST_PARTS = 64  # of a result, that are looked at one by one
GIANT_RANGE = 10**7  # numbers in a range, of more than a test can go through in its time
COROUTINE = 0x80  # of the flags of code
IGNORED = "__ignored__"  # in a rehearsal, which exceptions a statement may raise
TESTING_NAMES = "assert_allclose assert_almost_equal assert_array_almost_equal assert_array_equal assert_equal".split()
COMPARES_LOOSELY = re.compile(rf"\b(?:approx|allclose|isclose|{'|'.join(TESTING_NAMES)})\b")
SHOWN_CHARS = 300
REHEARSAL_S, SAYING_S = 2.0, 2.0
BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift divmod".split()
COMPARED = "eq ne lt le gt ge".split()
UNARY = "neg pos abs invert".split()
CANNOT_BE_SEEN = re.compile(
    r"\b(?:redirect_std\w+|capsys|capfd|monkeypatch|mock|patch)\b|\bsys\.std(?:in|out|err)\b|\basyncio\.run\b"
    r"|\b(?:run_until_complete|IsolatedAsyncioTestCase|assert(?:Warns|Logs|NoLogs)\w*)\b|\bcatch_warnings\(record\b"
    r"|\bopen\([^)\n]*,\s*(?:mode\s*=\s*)?['\"][wax]|\bPath\([^)\n]*\)\.write_(?:text|bytes)\b"
    r"|\btempfile\.\w+\(|\bos\.(?:environ|putenv)\b"
    r"|\binspect\.\w+|\bfrom inspect import\b|\bpickle\.\w+|\bfrom pickle import\b"
    r"|\bdataclasses\.(?:asdict|astuple|fields|is_dataclass|replace)\b"
    r"|\bfrom dataclasses import\b[^\n]*\b(?:asdict|astuple|fields|is_dataclass|replace)\b"
)
"""Tests of what a program prints, reads, writes or warns of, that change what it calls, or look into its objects."""
ASKS_FOR_CLASS = re.compile(r"\btype\s*\(.*\)\s*is\s+(?:not\s+)?([A-Za-z_]\w*)|\b__(?:class|name)__\b")
USUAL_NAMES = {
    "np": "numpy", "Counter": "collections.Counter", "OrderedDict": "collections.OrderedDict",
    "defaultdict": "collections.defaultdict", "deque": "collections.deque", "Decimal": "decimal.Decimal",
    "Fraction": "fractions.Fraction",
}  # fmt: skip
"""What tests use of the library that only their program imports."""
IMPORT = re.compile(r"\bimport\b")
PLAIN_IMPORT = re.compile(r"(?m)^[ \t]*(?:from typing import [\w ,]+|import math)$")
CHANGES_SOMETHING = re.compile(
    r"\.\w+ *(?:[-+*/%&|^@]|//|\*\*|<<|>>)?=[^=]"
    r"|\b(?:builtins|class|decimal|delattr|getcontext|np|numpy|os|pytest|random|seed|setattr|sys|unittest)\b"
)
"""What could change later tests of its process: attributes that a test sets, modules that it names."""
SEQUENCE_TYPES = (list, tuple, range, deque)
"""What `pytest.approx` takes for each other, item by item."""
SAFE_FUNCTION_MODULES = ("builtins", "operator", "math", "_operator", "functools")


class Ended(BaseException):
    """The test cannot go on in this process; no `except Exception` of its own catches it."""


class OutOfTime(Ended):
    """It takes too long by itself."""


class Unsupported(Ended):
    """The test does what cannot be done here, whatever the program."""


class Test:
    """One test as it runs."""

    def __init__(self, request: Any) -> None:
        self.script = request["script"]
        self.operations = [json.dumps(operation) for operation in json.loads(request["operations"] or "[]")]
        self.answers = None if request["answers"] is None else request["answers"].split("\n")[:-1]
        self.is_rehearsal = self.answers is None
        self.shared = Shared()
        self.position = 0  # of the next operation
        self.needed: str | None = None  # the operation whose result is not known
        self.cannot: str | None = None  # what cannot be given to the program
        self.last: Any = None  # the last value that it returned
        self.compares_loosely = COMPARES_LOOSELY.search(self.script) is not None
        self.empty: list[Any] = []  # then: what it returned without elements, by itself or as a part of a result
        self.raised: dict[int, int | None] = {}  # its exceptions by their `id`, with the program's line
        self.kept: list[Any] = []  # those, so that no `id` is another's
        self.texts: dict[int, str] = {}  # what `str` says of them
        self.untouched: dict[int, tuple[int, int]] = {}  # iterators of which the test has taken nothing, by their `id`
        self.classes: dict[tuple[int, int], type] = {}  # its classes of exceptions
        self.handles: dict[tuple[int, int], Handle] = {}
        self.pulls = 0  # times that an iterator was asked for more
        self.is_over = False  # what is shown of it asks for nothing more

    def do(self, name: Any, *arguments: Any) -> Any:
        """The result of an operation (call, operator, ...) of the program, which another process has done: the next of
        the recorded answers, if it is of this operation. Otherwise raises Ended, which ends the test until the program
        has been asked. Raises what the program raised. A rehearsal, before any program, only records it."""
        if self.needed is not None or self.cannot is not None or self.is_over:
            raise Ended  # the test caught what ended it, and went on
        number = len(self.operations) if self.is_rehearsal else self.position
        encoding = Encoding(self.describe, self.shared, number, is_result=False)
        try:
            operation = json.dumps([name, encoding.message(arguments)])
        except CannotCross as error:
            self.cannot = str(error)
            raise Unsupported(self.cannot) from None
        if self.is_rehearsal:
            if len(self.operations) >= MOST_OPERATIONS:  # a loop that no result ends
                raise OutOfTime
            self.operations.append(operation)
            self.shared.forget(number)  # old objects, as the program does
            return Unknown(number)
        n_answered = min(len(self.answers or ()), len(self.operations))
        if self.answers is None or number >= n_answered or operation != self.operations[number]:
            self.needed = operation
            raise Ended
        self.position += 1
        answer = json.loads(self.answers[number])
        if "cannot" in answer:
            self.shared.forget(number)
            raise MalformedValue(answer["cannot"])
        value = Decoding(answer, self.resolve, self.shared, number, is_result=True).root
        self.shared.forget(number)
        if "raised" not in answer:
            self.last = value
            if self.compares_loosely:
                parts = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
                self.empty += [part for part in (value, *itertools.islice(parts, MOST_PARTS)) if is_empty(part)]
            return value
        if not isinstance(value, BaseException):
            raise MalformedValue("no exception was raised")
        if isinstance(value, StopIteration) and name not in ("next", "advance"):
            value = RuntimeError(f"StopIteration: {value}")  # which would end a loop of the test
        self.raised[id(value)] = answer["raised"]  # the program's line
        self.kept.append(value)  # so that no other object gets its id
        raise value

    def describe(self, encoding: Any, value: Any) -> Any:
        if isinstance(value, Handle):
            return [REFERENCE, *reference_of(value), None, "", ""]
        if isinstance(value, Unknown):
            return [REFERENCE, value._number, 0, None, "", ""]
        if isinstance(value, type) and value in self.classes.values():
            return [REFERENCE, *next(key for key, made in self.classes.items() if made is value), None, "", ""]
        owner = getattr(value, "__objclass__", None)  # of a method of a builtin type, such as str.upper
        module, name = getattr(owner or value, "__module__", None), getattr(value, "__qualname__", "")
        if module in SAFE_FUNCTION_MODULES and callable(value):
            found: Any = sys.modules[module]
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is value:
                return [FUNCTION, module, name]
        if id(value) in self.untouched:
            return [UNTOUCHED, *self.untouched[id(value)]]
        what = "a function" if isinstance(value, FunctionType) else f"an object of the class {type(value).__name__}"
        raise CannotCross(f"{what} of the test cannot be given to the program")

    def resolve(self, decoding: Any, node: Any) -> Any:
        """Makes what stands here for an object of the program of a special kind: a handle for an arbitrary object, a
        generator for an iterator, an exception or its class. `node` is as `Operations.describe` writes it, or forged.
        An object is named by operation and number, and made once; but the value of a handle may be a new one."""
        match node:
            case ["reference", operation, number, builtin_value, type_name, base]:
                key = (int(operation), int(number))
                value = decoding.value(builtin_value)
                if key in self.handles:
                    object.__setattr__(self.handles[key], "_coderl_now", value)
                else:
                    self.handles[key] = handle(self, key, value, str(type_name), str(base))
                return self.handles[key]
            case ["iterator", end, items, operation, number, is_generator]:
                key = (int(operation), int(number))
                end = end if isinstance(end, bool) else decoding.value(end)
                made: Any = self.items(decoding.values(items), end, handle(self, key, None, "iterator", ""))
                made = made if is_generator else PlainIterator(made)
                self.kept.append(made)
                self.untouched[id(made)] = key
                return made
            case ["library_error", module, name]:
                found = getattr(__import__(module, fromlist=["*"]), name, None) if module in LIBRARY_ERRORS else None
                return error_class(found, "an exception of no library")
            case ["error_class", operation, number, name, parent, others]:
                key = (int(operation), int(number))
                if key not in self.classes:
                    parent = error_class(decoding.value(parent), "an exception that extends none")
                    members = {"__module__": MODULE, "__str__": lambda error: TEST.texts.get(id(error), "")}
                    bases = [getattr(builtins, other) for other in others if other.endswith(("Error", "Exception"))]
                    try:
                        self.classes[key] = type(str(name), (parent, *bases), members)
                    except TypeError:  # they do not go together here
                        self.classes[key] = type(str(name), (parent,), members)
                return self.classes[key]
            case ["error", written_class, written, text]:
                made = error_class(decoding.value(written_class), "no exception")
                if issubclass(made, Ended):  # with these a test ends that needs an answer, say
                    raise MalformedValue("an exception of these tests")
                *arguments, attributes = decoding.values(written)
                error = made.__new__(made, *arguments)
                error.args = tuple(arguments)
                if isinstance(attributes, dict):
                    error.__dict__ = attributes
                self.kept.append(error)
                self.texts[id(error)] = str(text)
                return error
        raise MalformedValue(f"{node[0]} is no kind of value")

    def items(self, items: Any, end: Any, reference: Any) -> Any:
        """The items of an iterator of the program, and its end: True, an exception, or False if there are more."""
        self.untouched = {number: key for number, key in self.untouched.items() if key != reference_of(reference)}
        for item in items:
            try:
                sent = yield item
            except (Ended, GeneratorExit):
                raise
            except BaseException:
                raise Unsupported("the test throws an exception into a generator of the program") from None
            if sent is not None:
                raise Unsupported("the test sends a value to a generator of the program")
        if end is False:
            self.pulls += 1
            if self.pulls > MOST_PULLS:
                raise MalformedValue("an iterator that does not end")
            yield from self.do("next", reference)
        elif end is not True:
            self.raised[id(end)] = None
            self.kept.append(end)
            raise end


def error_class(value: Any, fault: str) -> Any:
    """`value`, if it is a class of exceptions; else raises MalformedValue."""
    if not (isinstance(value, type) and issubclass(value, BaseException)):
        raise MalformedValue(fault)
    return value


class PlainIterator:
    """An iterator of the program, which is no generator; a type of the library would tell tests of another one."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self._items)


class Unknown:
    """A result in a rehearsal: all goes well with it."""

    def __init__(self, number: Any) -> None:
        self._number = number

    def __iter__(self) -> Any:
        return iter(())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call(TEST, self, args, kwargs)

    def __getattr__(self, name: Any) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return TEST.do("getattr", self, name)

    def __enter__(self) -> Any:
        return TEST.do("enter", self)

    def __exit__(self, *error: Any) -> Any:
        TEST.do("exit", self, None, None, None)

    def __mro_entries__(self, bases: Any) -> Any:
        raise Unsupported("a class of the test that extends one of the program")


def call(test: Any, function: Any, args: Any, kwargs: Any) -> Any:
    return test.do("call_with_names", function, args, kwargs) if kwargs else test.do("call", function, *args)


def always(value: Any) -> Any:
    return lambda self, *others: value


for _name in (*BINARY, *UNARY, "getitem", "round"):
    setattr(Unknown, f"__{_name}__", lambda self, *others: self)
    setattr(Unknown, f"__r{_name}__", lambda self, *others: self)
for _value, _names in (
    (True, [*COMPARED, "bool", "contains", "instancecheck"]),
    (0, ["hash", "index", "int", "len"]),
    (0.0, ["float"]),
    ("", ["str", "repr"]),
):
    for _name in _names:
        setattr(Unknown, f"__{_name}__", always(_value))


def asking(operation: Any) -> Any:
    """A method that is an operation of the program."""
    return lambda self, *arguments: test_of(self).do(operation, self, *arguments)


class Handle:  # without a docstring: it would be that of every object
    __doc__ = property(lambda self: test_of(self).do("getattr", self, "__doc__"))
    __slots__ = ("_coderl_base", "_coderl_key", "_coderl_now", "_coderl_test", "_coderl_type_name")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call(test_of(self), self, args, kwargs)

    def __getattr__(self, name: Any) -> Any:
        if name.startswith("__array"):  # numpy would read memory there
            raise AttributeError(name)
        return test_of(self).do("getattr", self, name)

    def __getitem__(self, key: Any) -> Any:
        plain = own_value(self)
        if plain is not self and not (isinstance(plain, dict) and key not in plain):  # its class may have __missing__
            return plain[key]
        return test_of(self).do("getitem", self, key)

    def __iter__(self) -> Any:
        plain = own_value(self)
        return iter(test_of(self).do("iter", self) if plain is self else plain)

    __next__ = asking("advance")

    def __contains__(self, item: Any) -> Any:
        if isinstance(item, Handle):
            return test_of(self).do("contains", self, item)
        try:
            items = iter(self)
        except TypeError:  # only the program could say, and must not see the item
            raise Unsupported("membership in an object of the program that has no items") from None
        return any(one is item or one == item for one in items)

    def __str__(self) -> Any:
        return described(self) if test_of(self).is_over else test_of(self).do("str", self)

    def __repr__(self) -> Any:
        return described(self) if test_of(self).is_over else test_of(self).do("repr", self)

    def __hash__(self) -> Any:
        plain = plain_value(self)
        if plain is not self:
            return hash(plain)
        return hash(reference_of(self)) if test_of(self).is_over else test_of(self).do("hash", self)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        if error is None:
            return test_of(self).do("exit", self, None, None, None)
        # The program must not see the test's exceptions.
        if isinstance(error, (AssertionError, Ended)) or id(error) in test_of(self).raised:
            return False
        raise Unsupported("an exception of the test in a context of the program")

    __mro_entries__ = Unknown.__mro_entries__

    def __deepcopy__(self, memo: Any) -> Any:
        return test_of(self).do("deepcopy", self)

    def __instancecheck__(self, other: Any) -> Any:
        if isinstance(other, tuple) and hasattr(type(other), "_fields"):  # a named tuple of the program, made anew
            return bool(test_of(self).do("getattr", self, "__name__") == type(other).__name__)
        return isinstance(other, Handle) and test_of(self).do("isinstance", other, self)

    def __subclasscheck__(self, other: Any) -> Any:
        return isinstance(other, Handle) and test_of(self).do("issubclass", other, self)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The builtin type that the object's class extends."""
        return getattr(builtins, base_of(self)) if base_of(self) else Handle


def slot(name: Any) -> Any:
    """Reads a slot of an object, whatever its class here redefines."""
    return lambda self: object.__getattribute__(self, name)


test_of, reference_of, type_name_of, base_of, now_of = map(
    slot, ("_coderl_test", "_coderl_key", "_coderl_type_name", "_coderl_base", "_coderl_now")
)


def handle(test: Any, key: Any, now: Any, type_name: Any, base: Any) -> Any:
    if base and base not in {kind.__name__ for kind in BASES}:
        raise MalformedValue(f"{base} is no type that a class can extend")
    made = object.__new__(Handle)
    for name, value in {"test": test, "key": key, "now": now, "type_name": type_name, "base": base}.items():
        object.__setattr__(made, f"_coderl_{name}", value)
    return made


def described(self: Any) -> Any:
    return f"<an object of the class {type_name_of(self)}>"


def plain_value(value: Any) -> Any:
    """What an object compares as: the value of the builtin type that its class extends, else itself."""
    base = base_of(value) if type(value) is Handle else ""
    if not base:
        return value
    now = test_of(value).do("value", value) if getattr(builtins, base) in MUTABLE_BASES else now_of(value)
    if type(now) is Handle:  # else it would be asked for its value, and so on
        raise MalformedValue(f"a {base} that is none")
    return now


def own_value(value: Any) -> Any:
    """As `plain_value`, but of a class that the test names the object itself: what such a class redefines is tested.
    Of others it could say something else each time."""
    # The base is looked at first: most objects have none.
    return plain_value(value) if base_of(value) and not is_of_named_class(value) else value


def is_of_named_class(value: Any) -> Any:
    """Whether the test names the class of the program's object."""
    return re.search(rf"\b{re.escape(type_name_of(value))}\b", test_of(value).script) is not None


def reader(name: Any, function: Any) -> Any:
    """A method that reads an object: the `function` of its own value, or what the program says."""

    def method(self: Any, *others: Any) -> Any:
        plain = own_value(self)
        return test_of(self).do(name, self, *others) if plain is self else function(plain, *others)

    return method


def two_sided(name: str, reflected: bool) -> Any:
    """The method of a `Handle` for the operator `name` of the module `operator`, `reflected` as in __radd__. Between
    two objects the program decides; with a value of the test, the value of the builtin type that the class extends."""

    def method(self: Any, other: Any) -> Any:
        if type(other) is Handle:
            pair = (other, self) if reflected else (self, other)
            return test_of(self).do(name, *pair)
        if other is Handle:  # C == type(x): all its objects have this type here
            raise Unsupported("the type of an object of the program: use isinstance")
        plain = plain_value(self)
        if plain is self:  # its class extends no builtin type
            # Only the program knows how its class computes with 3, and must not see it: it may be what is expected.
            if name not in COMPARED and is_of_named_class(self):
                raise Unsupported("an operator between an object of the program and a plain value")
            return {"eq": False, "ne": True}.get(name, NotImplemented)
        function = divmod if name == "divmod" else getattr(operator, name)
        return function(other, plain) if reflected else function(plain, other)

    return method


NAMES = {"and": "and_", "or": "or_"}
for _name in (*BINARY, *COMPARED):
    setattr(Handle, f"__{_name}__", two_sided(NAMES.get(_name, _name), False))
for _name in BINARY:
    setattr(Handle, f"__r{_name}__", two_sided(NAMES.get(_name, _name), True))
for _name in BINARY[:-1]:  # there is no idivmod
    setattr(Handle, f"__i{_name}__", two_sided("i" + NAMES.get(_name, _name).rstrip("_"), False))
for _function in (len, bool, int, float, complex, operator.index, round):
    setattr(Handle, f"__{_function.__name__}__", reader(_function.__name__, _function))
for _name in ("setattr", "delattr", "setitem", "delitem", "format", "enter", "copy", *UNARY):
    setattr(Handle, f"__{_name}__", asking(_name))


class Names(dict):
    """The global names of a test; the others are the program's. `made` are fixtures that all its functions share, and
    `generators` those that end after them."""

    def __init__(self, names: Any) -> None:
        super().__init__(names)
        self.made: dict[str, Any] = {}
        self.generators: list[Any] = []

    def __missing__(self, name: Any) -> Any:
        if name in USUAL_NAMES:  # not the program's, which could put anything in their place
            module, _, member = USUAL_NAMES[name].partition(".")
            found = getattr(__import__(module), member) if member else __import__(module)
        elif name in sys.stdlib_module_names and is_used_as_module(TEST.script, name):
            found = __import__(name)
        else:
            found = TEST.do("find", name)
        self[name] = found
        return found


class SolutionModule(ModuleType):
    """The program, for tests."""

    def __getattr__(self, name: Any) -> Any:
        if name == "__all__":  # of `import *`: every other name is looked up when it is used
            return []
        if name.startswith("__"):
            raise AttributeError(name)
        return TEST.do("find", name)

    def __setattr__(self, name: Any, value: Any) -> None:
        if not name.startswith("__"):
            raise Unsupported(f"the test changes {name} of the program's module")
        super().__setattr__(name, value)


TEST: Any = None


def main() -> Any:
    """Writes the results of each program's tests to results.json, or None if its process ended without them."""
    with open("request.json", "rb") as file:
        request = json.load(file)
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)  # for long answers
    sys.setrecursionlimit(20_000)
    signal.signal(signal.SIGPROF, out_of_time)
    seconds, tests_by_program = request["seconds"], request["tests"]
    # A fork costs more than most tests: programs whose tests leave their process as it was share one. The others get
    # one each, and so do those with a fault or without memory, as another's test may be to blame.
    sharing = [number for number, tests in enumerate(tests_by_program) if all(map(changes_nothing, tests))]
    results: list[Any] = [None] * len(tests_by_program)
    if len(sharing) > 1:
        shared = results_of_programs([tests_by_program[number] for number in sharing], seconds) or ()
        for number, found in zip(sharing, shared, strict=False):
            results[number] = found
    for number, tests in enumerate(tests_by_program):
        found = results[number]
        if found is None or any(one["end"] == FAULT or "is_exhausted" in one for one in found):
            alone = results_of_programs([tests], seconds)
            results[number] = alone[0] if alone else None
    with open("results.json", "w") as file:
        json.dump({"id": request["id"], "results": results}, file)


def changes_nothing(test: Any) -> Any:
    """Whether a test leaves its process as it was, as far as its text tells; not known of a rehearsal."""
    script = test["script"]
    has_plain_imports = len(IMPORT.findall(script)) == len(PLAIN_IMPORT.findall(script))
    return test["answers"] is not None and has_plain_imports and CHANGES_SOMETHING.search(script) is None


def results_of_programs(tests_by_program: list[list[dict[str, Any]]], seconds: float) -> Any:
    """The results of some programs' tests, a list for each, run in one forked process; None if that dies before it has
    written them. `seconds` are CPU seconds per test."""
    # Several programs share a process only once their answers are there: tests then mostly take no time.
    n_tests = len(tests_by_program[0]) if len(tests_by_program) == 1 else 2

    def work(writing: Any) -> Any:
        whole_s = int(seconds * n_tests) + 2  # beside the timer of each test, which cannot interrupt C code
        most_s = resource.getrlimit(resource.RLIMIT_CPU)[1]
        if most_s == resource.RLIM_INFINITY or whole_s < most_s:  # else the sandbox's limit is lower
            resource.setrlimit(resource.RLIMIT_CPU, (whole_s, whole_s + 1))
        rehearsal_s = min(REHEARSAL_S, seconds)
        results = [
            [result_of(Test(test), rehearsal_s if test["answers"] is None else seconds) for test in tests]
            for tests in tests_by_program
        ]
        with os.fdopen(writing, "w") as file:
            json.dump(results, file)

    # Wall time, four times as much: a busy machine gives a process a part of a core.
    data, *_ = in_forked_process(work, 4 * seconds * n_tests + 5)
    try:
        return json.loads(data)
    except ValueError:
        return None


def out_of_time(*_: Any) -> Any:
    # Again: the test may have caught the last one.
    signal.setitimer(signal.ITIMER_PROF, 0.05)
    raise OutOfTime


def result_of(test: Test, seconds: float) -> Any:
    """Runs a test, and returns how it ended: {"end", "reason"}. The test has the program's answers to its first
    operations (calls and the like). If it needs one more, its end is NEEDS, and the result has the operations that the
    program has to do next. A rehearsal has no answers: it goes on with a stand-in in place of each."""
    global TEST  # for objects without a reference to their test
    TEST = test
    error = None
    output, sys.stdout = sys.stdout, io.StringIO()
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        run(test)
    except BaseException as caught:
        error = caught
    finally:
        stop_timer()
        sys.stdout = output
    test.is_over = True
    try:
        signal.setitimer(signal.ITIMER_PROF, SAYING_S)
        result = judged(test, error)
    except BaseException as caught:
        result = {"end": FAULT, "reason": f"what became of the test cannot be said: {type(caught).__name__}"}
    finally:
        stop_timer()
    has_functions = re.search(r"^\s*(?:def|class)\b", test.script, re.MULTILINE) is not None
    # Tests that are functions and that nothing runs; plain asserts may only read names of the program.
    calls_nothing = not any(operation.startswith('["call"') for operation in test.operations)
    if test.is_rehearsal and result["end"] == PASSED and has_functions and calls_nothing:
        result = {"end": FAULT, "reason": "the test calls nothing of the program", "is_certain": True}
    to_ask: list[Any] = test.operations  # the first `test.position` of them have answers
    if result["end"] == NEEDS:
        to_ask = [*to_ask[: test.position], test.needed]  # those with an answer, and the next
        # The program was asked for exactly this already: it ended before it, or cannot do it again.
        result["again"] = test.operations[: len(to_ask)] == to_ask
    if result["end"] == NEEDS or test.is_rehearsal:
        result["operations"] = f"[{', '.join(to_ask)}]"
    return result


def stop_timer() -> None:
    for _ in range(3):  # it may fire until it is off
        try:
            signal.setitimer(signal.ITIMER_PROF, 0)
            return
        except OutOfTime:
            continue


def judged(test: Test, error: BaseException | None) -> Any:
    """How a test ended, by the exception `error` of its script. The program failed only if the script had used it
    before; else the test is at fault, for certain (`is_certain`) if every program would fail it."""
    if test.cannot is not None or isinstance(error, Unsupported):  # it gives the program a value that no test can send
        return {"end": FAULT, "reason": test.cannot or str(error), "is_certain": True}
    if test.needed is not None:  # the script ended at an operation that no answer is there for
        return {"end": NEEDS, "reason": ""}
    if error is None:
        return {"end": PASSED, "reason": ""}
    try:
        said = "".join(f"{type(error).__name__}: {error}".splitlines()[:1])[:SHOWN_CHARS]
    except BaseException:  # of its own __str__
        said = type(error).__name__
    has_used_program = test.position > 0  # the number of its operations so far
    # A range may hold more than the test can take, and costs the program nothing, however long it is.
    is_giant = type(test.last) is range and (test.last.stop - test.last.start) // test.last.step > GIANT_RANGE
    if has_used_program and is_giant and isinstance(error, (MemoryError, OutOfTime)):
        return {"end": ERRED, "reason": "a value that is too large for the test", "is_exhausted": True}
    if isinstance(error, OutOfTime):  # the program has a clock of its own
        return {"end": FAULT, "reason": "the test itself takes too long"}
    if isinstance(error, MalformedValue):
        return {"end": ERRED, "reason": f"no value that a test can use: {said}"}
    if id(error) in test.raised:  # the program raised it
        line = test.raised[id(error)]
        return {"end": ERRED, "reason": said + (f" (line {line})" if line else "")}
    is_certain = isinstance(error, (ImportError, SyntaxError)) or type(error).__name__ in ("SkipTest", "Skipped")
    faults = (CannotCross, MemoryError, SystemExit)
    if is_certain or isinstance(error, faults) or not (has_used_program and isinstance(error, Exception)):
        return {"end": FAULT, "reason": f"the test fails by itself: {said}", "is_certain": is_certain}
    where = failing_line(test, error)
    # A class of the program that extends str, say, is no str here. An operator takes its value, and fails for others.
    is_of_type = type(error) is TypeError and "Handle" in said and "supported" not in said
    if is_of_type and any(map(base_of, test.handles.values())):
        return {"end": FAULT, "reason": f"an object of the program extends a builtin type, but is none here: {where}"}
    # The program's objects are `Handle`s here: `type(x) is C` always fails.
    asked = ASKS_FOR_CLASS.search(where)
    if asked is not None and asked[1] not in vars(builtins) and type(test.last) is Handle:
        return {"end": FAULT, "reason": f"the class of an object of the program is another one here: {where}"}
    if type(error) is AssertionError and not error.args:  # a bare assert says nothing itself
        said = where
    elif where:
        said = f"{said} at: {where}"
    return {"end": FAILED, "reason": said[:SHOWN_CHARS], "shown": shown(test.last)}


def failing_line(test: Any, error: Any) -> Any:
    """The line of the test that raised an error."""
    line, step = 0, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == SCRIPT:
            line = step.tb_lineno
        step = step.tb_next
    lines = test.script.splitlines()
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def shown(value: Any) -> Any:
    try:
        import reprlib  # a whole repr may take for ever: a value may hold another one many times

        short = reprlib.Repr()
        short.maxlevel, short.maxstring, short.maxother, short.maxlong = 6, 1000, 1000, 1000
        short.maxlist = short.maxtuple = short.maxdict = short.maxset = short.maxfrozenset = short.maxdeque = 50
        return short.repr(value)[:1000]
    except BaseException as error:
        return f"({type(error).__name__} in repr)"


def run(test: Test) -> None:
    """Executes a test's script, then the functions and classes of tests that it defines. `solution`, from which it
    imports the program, is a stand-in. Raises what the test raises, and Unsupported for what cannot be tested here."""
    if (not_seen := what_cannot_be_seen(test.script)) is not None:  # output, say: the program runs elsewhere
        raise Unsupported(f"{not_seen}: a test of anything but what calls return")
    # A rehearsal, without results, is to find all calls: a statement that fails must not end it.
    code = compiled_test(ignoring_failures(test.script) if test.is_rehearsal else test.script)
    sys.modules[MODULE] = SolutionModule(MODULE)
    pytest = sys.modules["pytest"] = PytestModule("pytest")
    vars(pytest).update(raises=raises, approx=Approx, fail=fail, fixture=fixture, mark=Marks())
    vars(pytest).update(param=lambda *values, **_: Parameters(values))
    if test.compares_loosely and re.search(r"\b(?:np|numpy)\b", test.script):
        guard_array_comparisons()
    if "random" in test.script:  # a test that draws its arguments draws the same ones in each round
        __import__("random").seed(0)
        if "numpy" in test.script:
            __import__("numpy").random.seed(0)
    # `Names` looks up what is missing in the program: with the builtins in it, these come first.
    names = Names({**vars(builtins), "__name__": "tests", "__builtins__": builtins})
    if test.is_rehearsal:
        names[IGNORED] = lambda: Exception if test.operations else ()
    exec(code, names)
    for hook in "setup_module setup_function teardown_module teardown_function setUpModule tearDownModule".split():
        if hook in names:
            raise Unsupported(f"{hook} is not supported")
    for name, value in [item for item in names.items() if item[0] not in vars(builtins)]:
        if name.startswith("test") and isinstance(value, FunctionType):
            for case in cases_of(value):
                run_function(value, case, names)
        elif isinstance(value, type) and value.__module__ == "tests":
            run_class(name, value, names)
    end_fixtures(names.generators)


def is_empty(value: Any) -> Any:
    """Whether an array, or a sequence as one, has no elements."""
    if type(value).__module__ == "numpy":
        return getattr(value, "size", None) == 0
    return type(value) in SEQUENCE_TYPES and all(type(item) in SEQUENCE_TYPES and not item for item in value)


def is_programs(empty: Any) -> Any:
    """Whether what has no elements is the program's, or was made of its result without elements: what a test takes of
    a result with some, as the elements off a diagonal, may rightly be empty."""
    return is_empty(TEST.last) or any(empty is part for part in TEST.empty)


def guard_array_comparisons() -> None:
    """Lets numpy's comparisons fail where one side has elements, and the other is the program's and has none. numpy
    stretches the first to no elements, of which all are equal: a program that always returns [] would pass."""
    try:  # by name: a text with its import statement gets a process that takes longer to start
        numpy = __import__("numpy")
    except ImportError:  # as the test itself will find
        return

    def guarded(compare: Any, is_assertion: Any) -> Any:
        @functools.wraps(compare)
        def compared(*args: Any, **kwargs: Any) -> Any:
            result = compare(*args, **kwargs)  # first: what numpy refuses stays refused
            sides = [*args[:2], *(kwargs[name] for name in ("a", "b", "x", "y", "actual", "desired") if name in kwargs)]
            empty = [side for side in sides if is_empty(side)]
            if TEST.is_rehearsal or len(empty) != 1 or not is_programs(empty[0]):
                return result
            if is_assertion:
                raise AssertionError("the result has no elements")
            return numpy.False_

        compared.is_guarded = True  # type: ignore[attr-defined]
        return compared

    guards = [(numpy, "allclose"), (numpy, "isclose")]
    if "assert_" in TEST.script:
        __import__("numpy.testing")
        guards += [(numpy.testing, name) for name in TESTING_NAMES]
    for module, name in guards:
        compare = getattr(module, name)
        if not hasattr(compare, "is_guarded"):
            setattr(module, name, guarded(compare, module is not numpy))


@functools.lru_cache(maxsize=64)
def what_cannot_be_seen(script: str) -> str | None:
    """What a test uses of CANNOT_BE_SEEN; None for nothing. Its comments and strings do not count."""
    if CANNOT_BE_SEEN.search(script) is None:
        return None
    import ast

    tree = ast.parse(script, SCRIPT)
    for node in ast.walk(tree):
        # A string as short as a file's mode is left: it may be the one of `open`.
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > len("w+b"):
            node.value = "..."
    found = CANNOT_BE_SEEN.search(ast.unparse(tree))
    return None if found is None else found[0]


@functools.lru_cache(maxsize=64)  # most programs are those of a few problems
def compiled_test(script: Any) -> Any:
    return compile(script, SCRIPT, "exec", dont_inherit=True)


def ignoring_failures(script: Any) -> Any:
    """The test for a rehearsal, in which a statement that fails ends nothing: a missing result may be to blame, but not
    before the first operation."""
    import ast

    class GoesOn(ast.NodeTransformer):
        def generic_visit(self, node: Any) -> Any:
            super().generic_visit(node)
            simple = (ast.Assert, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)
            if not isinstance(node, simple) or isinstance(getattr(node, "value", None), (ast.Yield, ast.YieldFrom)):
                return node
            ignored = ast.Call(ast.Name(IGNORED, ast.Load()), [], [])
            handler = ast.ExceptHandler(type=ignored, name=None, body=[ast.Pass()])
            return ast.copy_location(ast.Try(body=[node], handlers=[handler], orelse=[], finalbody=[]), node)

    return ast.fix_missing_locations(GoesOn().visit(ast.parse(script, SCRIPT)))


def is_used_as_module(script: Any, name: Any) -> Any:
    """Whether a test uses `name` as the library's module: it takes a member of it, and never calls it."""
    import ast

    uses = set()
    for node in ast.walk(ast.parse(script)):
        match node:
            case ast.Attribute(value=ast.Name(id=owner)) | ast.Call(func=ast.Name(id=owner)) if owner == name:
                uses.add(type(node))
    return uses == {ast.Attribute}


def run_class(name: Any, value: Any, names: Any) -> Any:
    unittest = sys.modules.get("unittest")
    if unittest is not None and issubclass(value, unittest.TestCase):
        value.setUpClass()
        for method in unittest.TestLoader().getTestCaseNames(value):
            value(method).debug()
        value.tearDownClass()
    elif name.startswith("Test"):
        call_hook(value, "setup_class", value)
        methods: list[str] = []  # in the order of their definitions, those of base classes first
        for kind in value.__mro__:
            methods[:0] = [name for name in vars(kind) if name.startswith("test") and name not in methods]
        for method in methods:
            if isinstance(getattr(value, method), (FunctionType, MethodType)):
                for case in cases_of(getattr(value, method)):
                    instance = value()
                    bound = getattr(instance, method)
                    call_hook(instance, "setup_method", bound)
                    run_function(bound, case, names)
                    call_hook(instance, "teardown_method", bound)
        call_hook(value, "teardown_class", value)


def call_hook(owner: Any, name: Any, argument: Any) -> None:
    """Calls a method of a test class if there is one, with the argument if it takes one."""
    hook = getattr(owner, name, None)
    if hook is not None:
        takes_argument = hook.__code__.co_argcount > isinstance(hook, MethodType)
        hook(*[argument] * takes_argument)


def cases_of(function: Any) -> Any:
    """The values of a test function's parameters, by name, for each time that it runs."""
    cases: list[dict[str, Any]] = [{}]
    for argnames, values in getattr(function, "_parameters", []):
        cases = [{**case, **dict(zip(argnames, value, strict=True))} for value in values for case in cases]
    return cases


def fixtures_of(function: Any) -> Any:
    """The parameters without defaults, but for that of a method's object."""
    code, defaults = function.__code__, function.__kwdefaults__ or {}
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    required = code.co_varnames[: code.co_argcount - len(function.__defaults__ or ())]
    return [*required[isinstance(function, MethodType) :], *(name for name in keywords if name not in defaults)]


def run_function(function: Any, case: Any, names: Any) -> Any:
    """Runs a test function with the values `case` of some parameters; the others are fixtures."""
    if function.__code__.co_flags & COROUTINE:
        raise Unsupported("a test that is a coroutine")
    generators: list[Any] = []
    made = dict(case)
    fixtures = {name: fixture_value(name, names, made, generators) for name in fixtures_of(function)}
    function(**{**case, **fixtures})
    end_fixtures(generators)


def end_fixtures(generators: Any) -> None:
    for generator in reversed(generators):
        next(generator, None)


def fixture_value(name: Any, names: Any, made: Any, generators: Any) -> Any:
    """The value of a fixture: of those `made` for this test, unless its scope is a wider one."""
    if name in made:
        return made[name]
    fixture = names.get(name)
    if not getattr(fixture, "_is_fixture", False):
        raise Unsupported(f"no fixture {name} of the test's own")
    if fixture._scope != "function":  # one for all tests
        made, generators = names.made, names.generators
    if name not in made:
        arguments = {other: fixture_value(other, names, made, generators) for other in fixtures_of(fixture)}
        value = fixture(**arguments)
        if isinstance(value, GeneratorType):
            generators.append(value)
            value = next(value)
        made[name] = value
    return made[name]


# ------------------------------------------------------------------------------------- what tests use of pytest


class PytestModule(ModuleType):
    """The part of pytest that tests need."""

    def __getattr__(self, name: Any) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(f"pytest.{name} is not supported")


class Parameters(tuple):
    """The values of `pytest.param`."""


def fail(reason: Any = "", *_: Any, **__: Any) -> Any:
    raise AssertionError(reason)


def fixture(function: Any = None, autouse: Any = False, scope: Any = "function", **_: Any) -> Any:
    if autouse:
        raise Unsupported("pytest.fixture(autouse=True) is not supported")
    if scope not in ("function", "module", "package", "session"):
        raise Unsupported(f"pytest.fixture(scope={scope!r}) is not supported")

    def marked(function: Any) -> Any:
        function._is_fixture, function._scope = True, scope
        return function

    return marked if function is None else marked(function)


class Marks:
    def parametrize(self, argnames: Any, argvalues: Any, **_: Any) -> Any:
        several = not isinstance(argnames, str) or "," in argnames
        names = [name.strip() for name in argnames.split(",")] if isinstance(argnames, str) else list(argnames)
        names = [name for name in names if name]
        rows = [tuple(value) if several or type(value) is Parameters else (value,) for value in argvalues]

        def marked(function: Any) -> Any:
            function._parameters = [*getattr(function, "_parameters", []), (names, rows)]
            return function

        return marked

    def __getattr__(self, name: Any) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("skip", "skipif", "xfail", "usefixtures"):
            raise Unsupported(f"pytest.mark.{name} is not supported")

        def mark(*args: Any, **kwargs: Any) -> Any:
            return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else lambda function: function

        return mark


class raises:
    def __init__(self, expected_exception: Any, *call: Any, match: Any = None, **kwargs: Any) -> None:
        self.expected, self.pattern = expected_exception, match
        self.value: Any = None
        if call:
            with self:
                call[0](*call[1:], **kwargs)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        if isinstance(error, (Ended, MalformedValue, CannotCross)):
            return False
        if error is None:
            if TEST.is_rehearsal:
                return True
            raise AssertionError(f"did not raise {self.expected}")
        if not isinstance(error, self.expected):
            return False
        self.value, self.type, self.typename = error, type(error), type(error).__name__
        return self.pattern is None or self.match(self.pattern)

    def match(self, pattern: Any) -> Any:
        if not re.search(pattern, str(self.value)) and not TEST.is_rehearsal:
            raise AssertionError(f"{pattern!r} is not in {str(self.value)!r}")
        return True

    def __getattr__(self, name: Any) -> Any:
        if name in ("type", "typename") or name.startswith("__"):  # before anything is raised
            raise AttributeError(name)
        raise Unsupported(f"{name} of what pytest.raises returns is not supported")


class Approx:
    """A value that equals others within a tolerance: 1e-6 of it, and 1e-12."""

    __array_ufunc__ = None  # an array on the left leaves the comparison to this class
    __array_priority__ = 100

    def __init__(self, expected: Any, rel: Any = None, abs: Any = None, nan_ok: bool = False) -> None:
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok

    def __eq__(self, actual: Any) -> Any:
        return self.close(self.expected, plain_value(actual))

    def __ne__(self, actual: Any) -> Any:
        return not self == actual

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> Any:
        return f"approx({self.expected!r})"

    def close(self, expected: Any, actual: Any) -> Any:
        """Whether numbers, and items of dicts, sequences and arrays, are equal within the tolerances; all else is ==.
        As in pytest, a number is compared with each item of an array, and only a bool equals an expected bool."""
        if type(expected).__module__ == "numpy" or type(actual).__module__ == "numpy":
            given = (expected, actual)
            expected, actual = (value.tolist() if type(value).__module__ == "numpy" else value for value in given)
            is_array = [
                value is not own and isinstance(own, list) for value, own in zip(given, (expected, actual), strict=True)
            ]
            if is_array == [False, True] and not isinstance(expected, (dict, *SEQUENCE_TYPES)):
                # Unlike pytest, for which an array without items equals each number: a program's own is wrong.
                if is_empty(given[1]) and is_programs(given[1]):
                    return False
                return all(self.close(expected, item) for item in given[1].ravel().tolist())
            is_number = isinstance(actual, complex) or hasattr(type(actual), "as_integer_ratio")
            if is_array == [True, False] and is_number:
                return all(self.close(item, actual) for item in given[0].ravel().tolist())
        if isinstance(expected, dict):
            has_keys = isinstance(actual, dict) and expected.keys() == actual.keys()
            return has_keys and all(self.close(expected[key], actual[key]) for key in expected)
        if isinstance(expected, SEQUENCE_TYPES):
            has_length = isinstance(actual, SEQUENCE_TYPES) and len(expected) == len(actual)
            return has_length and all(map(self.close, expected, actual))
        if isinstance(expected, bool) and not isinstance(actual, bool):
            return False
        numbers = (int, float, complex)
        if not isinstance(expected, numbers) or not isinstance(actual, numbers):
            if hasattr(expected, "as_integer_ratio") and hasattr(actual, "as_integer_ratio"):
                expected, actual = float(expected), float(actual)
            else:
                return expected == actual
        if expected == actual:
            return True
        if expected != expected or actual != actual:
            return self.nan_ok and expected != expected and actual != actual
        if abs(expected) == math.inf or abs(actual) == math.inf:
            return False
        # As in pytest: an `abs` alone leaves no relative tolerance.
        absolute, relative = (1e-12, 1e-6) if self.abs is None else (self.abs, 0.0)
        relative = relative if self.rel is None else self.rel
        return abs(expected - actual) <= max(absolute, relative * abs(expected))


if __name__ == "__main__":
    main()
