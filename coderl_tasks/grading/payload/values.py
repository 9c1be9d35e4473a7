"""The values of assertion tests, as JSON: what a test gives to the program, and what the program gives back.

The tests run in one process of the sandbox and the program in another. This text is part of both: of
`payload/assertions.py`, which asks for operations, and of `payload/driver.py`, which does them (`Operations`). It
stands alone, in Python 3.10 or later. What it reads becomes objects of a few builtin types; it is no pickle.

A message is {"root": value, "nodes": [...]}; that of an operation's arguments has a list of values as its root. None,
bool, int, str and finite float stand for themselves; anything else is a key [operation, place], so that what is one
object stays one, cycles too. The places of what an operation is given are 0, 1, ...; those of what its result mentions
-1, -2, ...; a message has the nodes of those that it is the first to name. A node is [kind, ...]: see `node_of` and
`Decoding`. What no kind fits is a reference to an object in the program's process, [operation, number]: the object's
number among those that the result of that operation mentions, so that a program that runs again names it the same.

Containers are the same on both sides (`Shared`): a list that the program keeps is the list that the test gave it, or
got of it, as it would be in one process.
"""

import binascii
import builtins
import copy
import itertools
import json
import math
import operator
import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Json = Any
Message = dict[str, Any]
Node = list[Any]
Key = tuple[int, int]

# Of an iterator that the program returns, what is sent before the tests ask for more.
MOST_ITEMS_AHEAD, LONGEST_AHEAD_S = 1000, 0.05
MOST_OLD_OBJECTS, MOST_OLD_ITEMS = 200, 20_000
"""Of each side's objects so many are kept in step, with so many items in all, beside those of the last operation."""
LIBRARY_ERRORS = (
    "json.decoder", "statistics", "decimal", "zlib", "queue", "_queue", "struct", "re", "csv", "_csv", "configparser",
    "subprocess", "asyncio.exceptions", "dataclasses", "copy", "_pickle", "ipaddress", "zoneinfo",
)  # fmt: skip
"""Modules of the library whose exceptions are the same on both sides."""
INLINE_TYPES = (bool, int, str, type(None))
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
MAPPINGS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict, "defaultdict": defaultdict, "Counter": Counter}
KIND_OF_TYPE = {kind: name for name, kind in (*SEQUENCES.items(), *MAPPINGS.items())}
MUTABLE_TYPES: dict[str, Any] = {**MAPPINGS, "list": list, "set": set, "bytearray": bytearray, "deque": deque}
VIEWS = {type({}.keys()): "dict_keys", type({}.values()): "dict_values", type({}.items()): "dict_items"}
CONSTANTS = {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}
OF_VALUES: dict[str, Callable[..., Any]] = {
    "tuple": tuple, "frozenset": frozenset, "range": lambda values: range(*values),
    "slice": lambda values: slice(*values), "dict_keys": lambda values: dict.fromkeys(values).keys(),
    "dict_values": lambda values: dict(enumerate(values)).values(),
}  # fmt: skip
"""What makes an object of the values in its node."""
OF_TEXTS: dict[str, Callable[..., Any]] = {
    "float": float, "complex": complex, "bytes": binascii.a2b_base64, "constant": CONSTANTS.__getitem__,
    "timedelta": lambda *parts: __import__("datetime").timedelta(*parts),
    "Decimal": lambda text: __import__("decimal").Decimal(text),
    "Fraction": lambda *parts: __import__("fractions").Fraction(*map(int, parts)),
}  # fmt: skip
"""What makes an object of the texts and numbers in its node."""
NAMED_TUPLE_NAMES = {*vars(namedtuple("NamedTuple", "")), "__replace__", "__annotate__", "__annotate_func__"}
DATES = ("date", "datetime", "time")
ARRAY_KINDS = "biufcSUmM"  # of dtypes whose bytes are all that they hold
BASES = (bool, int, float, complex, str, bytes, tuple, frozenset, list, dict, set, bytearray)
"""A program's class that extends one of these has values that compare as the builtin's do."""
MUTABLE_BASES = (list, dict, set, bytearray)
ERROR, ITERATOR, REFERENCE, ERROR_CLASS, FUNCTION = "error", "iterator", "reference", "error_class", "function"
LIBRARY_ERROR, UNTOUCHED = "library_error", "untouched"
DESCRIBED_ANEW = (ERROR, ITERATOR, REFERENCE, UNTOUCHED, *VIEWS.values())
"""What has its node in each message that mentions it, as it is then."""


class CannotCross(Exception):
    """A value that has no form in a message."""


class MalformedValue(Exception):
    """A message that this file does not write."""


class Shared:
    """The objects that both sides know, by their keys: the newest ones, and all of the last operation.

    Containers among them are kept in step: what one side has changed in them since the last message is part of its next
    one. Of an object that nothing but this table refers to nothing can have changed.
    """

    def __init__(self) -> None:
        self.objects: dict[Key, Any] = {}
        self.keys: dict[int, Key] = {}  # by the `id` of an object, which is held above
        self.contents: dict[Key, list[Any]] = {}  # of containers, when both sides last had the same

    def add(self, key: Key, value: Any) -> None:
        self.objects[key] = value
        self.keys[id(value)] = key

    def settle(self, key: Key, node: Node) -> None:
        """Note that both sides have what the object with this key holds now; `node` is what stands for it."""
        if node[0] in MUTABLE_TYPES or node[0] in ("ndarray", "objects"):
            self.contents[key] = contents_of(self.objects[key])

    def end_message(self, nodes: Iterable[tuple[Key, Node]]) -> None:
        """After a message with these new nodes: some objects are known by their keys in one message alone."""
        for key, node in nodes:
            if node[0] in DESCRIBED_ANEW:
                self.drop_key(key, self.objects[key])

    def drop_key(self, key: Key, value: Any) -> None:
        if self.keys.get(id(value)) == key:
            del self.keys[id(value)]

    def changed(self) -> list[Key]:
        """The containers that this side has changed since."""
        return [
            key
            for key, before in self.contents.items()
            if referrers(self.objects, key) > UNUSED and not is_same(contents_of(self.objects[key]), before)
        ]

    def forget(self, operation: int) -> None:
        """Forget what is old after this operation; both sides forget the same."""
        if len(self.objects) <= MOST_OLD_OBJECTS and sum(map(len, self.contents.values())) <= MOST_OLD_ITEMS:
            return
        for sign in (True, False):
            n_objects = n_items = 0
            for key in [key for key in reversed(self.objects) if (key[1] >= 0) == sign]:
                n_objects, n_items = n_objects + 1, n_items + len(self.contents.get(key, ()))
                if key[0] != operation and (n_objects > MOST_OLD_OBJECTS or n_items > MOST_OLD_ITEMS):
                    self.contents.pop(key, None)
                    self.drop_key(key, self.objects.pop(key))


def referrers(objects: dict[Any, Any], key: Any) -> int:
    return sys.getrefcount(objects[key])


UNUSED = referrers({0: []}, 0)
"""The count of a value to which nothing but a table refers."""


def contents_of(container: Any) -> list[Any]:
    """What a container holds, for `is_same`."""
    kind = type(container)
    if kind is bytearray:
        return [bytes(container)]
    if kind in MAPPINGS.values():  # an OrderedDict's own methods know its order
        return [*container.keys(), *container.values()]
    if kind is set:
        return sorted(container, key=id)
    if kind in MUTABLE_TYPES.values():
        return list(container)
    return container.ravel().tolist() if container.dtype.kind == "O" else [container.tobytes()]


def is_same(contents: list[Any], others: list[Any]) -> bool:
    """Whether two containers hold the same objects; no object is asked."""
    if len(contents) != len(others):
        return False
    return all(map(operator.is_, contents, others)) or (
        len(contents) == 1 and type(contents[0]) is type(others[0]) is bytes and contents == others
    )


class Encoding:
    """A message of an `operation`: of what it is given, or of its result. `describe` gives the node of an object that
    has no kind of its own, or raises CannotCross."""

    def __init__(
        self, describe: Callable[["Encoding", Any], Node], shared: Shared, operation: int, *, is_result: bool
    ) -> None:
        self.describe, self.shared, self.operation, self.is_result = describe, shared, operation, is_result
        self.new: list[Any] = []

    def key(self, number: int) -> Key:
        return (self.operation, -1 - number if self.is_result else number)

    def add(self, value: Any) -> Json:
        """What stands for `value` in the message."""
        kind = type(value)
        if kind in INLINE_TYPES or (kind is float and math.isfinite(value)):
            return value
        key = self.shared.keys.get(id(value))
        if key is None:
            key = self.key(len(self.new))
            self.shared.add(key, value)
            self.new.append(value)
        return list(key)

    def add_all(self, values: Iterable[Any]) -> list[Json]:
        return [self.add(value) for value in values]

    def message(self, root: Any) -> Message:
        """The message, with what this side has changed since the last one; of an operation's arguments, or a result."""
        try:
            message: Message = {"root": self.add(root) if self.is_result else self.add_all(root)}
            changed = [[list(key), self.node(key)] for key in self.shared.changed()]
            if changed:
                message["changed"] = changed
            nodes: list[Node] = []
            while len(nodes) < len(self.new):  # which grows meanwhile
                nodes.append(self.node(self.key(len(nodes))))
            message["nodes"] = nodes
        except BaseException:  # the other side knows none of this
            for number, value in enumerate(self.new):
                self.shared.contents.pop(self.key(number), None)
                self.shared.drop_key(self.key(number), self.shared.objects.pop(self.key(number), value))
            raise
        self.shared.end_message((self.key(number), node) for number, node in enumerate(nodes))
        return message

    def node(self, key: Key) -> Node:
        value = self.shared.objects[key]
        node = node_of(value, self) or self.describe(self, value)
        self.shared.settle(key, node)  # at once: an iterator that is described later may run code that changes it
        return node


def node_of(value: Any, encoding: Encoding) -> Node | None:
    """The node, [kind, ...] as JSON, that stands for a value in a message to the other process, if its type is one of
    those that can be rebuilt there; None for any other. The values in it are added to the message (`encoding`)."""
    add_all, kind = encoding.add_all, type(value)
    name = KIND_OF_TYPE.get(kind, "")
    if name in SEQUENCES:
        items = list(value)
        if name in ("set", "frozenset"):
            items.sort(key=repr)  # the order of a set is another one in each process
        return [name, add_all(items)]
    if name in MAPPINGS:
        pairs = [add_all(pair) for pair in value.items()]
        factory = getattr(value, "default_factory", None)
        return [name, pairs, encoding.add(factory)] if isinstance(factory, type) else [name, pairs]
    if kind is float or kind is complex:
        return [kind.__name__, repr(value)]
    if kind is bytes or kind is bytearray:
        return [kind.__name__, base64_of(value)]
    if kind is deque:
        return ["deque", add_all(value), value.maxlen]
    if kind is range or kind is slice:
        return [kind.__name__, add_all((value.start, value.stop, value.step))]
    if kind in VIEWS:
        return [VIEWS[kind], [add_all(pair) for pair in value] if VIEWS[kind] == "dict_items" else add_all(value)]
    if isinstance(value, type):
        name = value.__name__
        return ["type", name] if vars(builtins).get(name) is value else None
    for constant in CONSTANTS:
        if value is CONSTANTS[constant]:
            return ["constant", constant]
    module, name = kind.__module__, kind.__name__
    if module in ("datetime", "decimal", "fractions", "numpy") and kind is getattr(sys.modules.get(module), name, None):
        return library_node(value, module, name, encoding)
    if kind.__bases__ == (tuple,) and isinstance(getattr(kind, "_fields", None), tuple) and is_bare(kind):
        return ["namedtuple", name, list(kind._fields), add_all(value)]
    return None


def is_bare(kind: type) -> bool:
    """Whether a class of named tuples defines nothing of its own."""
    return not {name for name, value in vars(kind).items() if callable(value) and name not in NAMED_TUPLE_NAMES}


def library_node(value: Any, module: str, name: str, encoding: Encoding) -> Node | None:
    """`node_of` for values of classes of datetime, decimal, fractions and numpy, by module and class name."""
    if name == "timedelta":
        return ["timedelta", value.days, value.seconds, value.microseconds]
    if name == "timezone":
        return ["timezone", encoding.add(value.utcoffset(None)), value.tzname(None)]
    if name in DATES:
        return [name, value.replace(tzinfo=None).isoformat() if name != "date" else value.isoformat(),
                encoding.add(getattr(value, "tzinfo", None)), getattr(value, "fold", 0)]  # fmt: skip
    if name == "Decimal":
        return ["Decimal", str(value)]
    if name == "Fraction":
        return ["Fraction", value.numerator, value.denominator]
    numpy = sys.modules["numpy"]
    if module != "numpy" or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return None
    if value.dtype.kind == "O" and isinstance(value, numpy.ndarray):
        return ["objects", list(value.shape), encoding.add_all(value.ravel().tolist())]
    if value.dtype.kind not in ARRAY_KINDS:
        return None
    data = base64_of(numpy.ascontiguousarray(value).tobytes())
    return ["ndarray" if isinstance(value, numpy.ndarray) else "scalar", value.dtype.str, list(value.shape), data]


def base64_of(data: bytes | bytearray) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


class Decoding:
    """The objects of a message of an `operation`, `root` its own, which are then known to this side. `resolve` makes an
    object of a node that has no kind of its own. Raises MalformedValue for what `Encoding` does not write."""

    def __init__(
        self,
        message: Message,
        resolve: Callable[["Decoding", Node], Any],
        shared: Shared,
        operation: int,
        *,
        is_result: bool,
    ) -> None:
        """Makes the objects of a message of `operation` (its result if `is_result`, else its arguments) and changes
        those of earlier messages that the other side has changed; then notes in `shared` what both sides have now."""
        self.resolve, self.shared = resolve, shared
        try:
            self.nodes: dict[Key, Node] = {
                (operation, -1 - number if is_result else number): node for number, node in enumerate(message["nodes"])
            }
            self.made: dict[Key, Any] = {}
            # Those that can be changed are made empty, and filled when all others are made.
            for key, node in self.nodes.items():
                if node[0] in MUTABLE_TYPES:
                    maxlen = {"maxlen": node[2]} if node[0] == "deque" else {}
                    self.made[key] = MUTABLE_TYPES[node[0]](**maxlen)
            for key in self.nodes:
                self.make(key)
            self.root = self.value(message["root"]) if is_result else self.values(message["root"])
            for key, node in self.nodes.items():
                if node[0] in MUTABLE_TYPES:
                    self.fill(self.made[key], node)
            changed = [((written[0], written[1]), node) for written, node in message.get("changed", ())]
            for key, node in changed:
                self.fill(shared.objects[key], node)
                shared.settle(key, node)  # at once: to fill the next one may take an operation
        except (CannotCross, MalformedValue, MemoryError):
            raise
        except Exception as error:
            raise MalformedValue(f"{type(error).__name__}: {error}"[:200]) from None
        for key in self.nodes:
            shared.add(key, self.made[key])
        for key, node in self.nodes.items():
            shared.settle(key, node)
        shared.end_message(self.nodes.items())

    def value(self, written: Json) -> Any:
        if type(written) is not list:
            if type(written) is dict:
                raise MalformedValue("an object in the place of a value")
            return written
        operation, place = written
        if (operation, place) in self.made:
            return self.made[operation, place]
        if (operation, place) in self.nodes:
            raise MalformedValue("a value that is part of itself")
        return self.shared.objects[operation, place]

    def values(self, written: list[Json]) -> list[Any]:
        return [self.value(one) for one in written]

    def make(self, key: Key) -> None:
        """Make the object with this key, and before it those that it is made of."""
        waiting, is_waiting = [key], {key}
        while waiting:
            node = self.nodes[waiting[-1]]
            if waiting[-1] not in self.made:
                parts = [(part[0], part[1]) for part in parts_of(node) if type(part) is list]
                missing = next((part for part in parts if part in self.nodes and part not in self.made), None)
                if missing is not None:
                    if missing in is_waiting:
                        raise MalformedValue("a value that is part of itself")
                    waiting.append(missing)
                    is_waiting.add(missing)
                    continue
                self.made[waiting[-1]] = self.object(node)
            is_waiting.discard(waiting.pop())

    def object(self, node: Node) -> Any:
        """Makes the object of a node of any kind that is not one of MUTABLE_TYPES."""
        kind, first, *rest = node
        if kind in OF_VALUES:
            return OF_VALUES[kind](self.values(first))
        if kind in OF_TEXTS:
            return OF_TEXTS[kind](first, *rest)
        if kind == "dict_items":
            return dict(map(self.values, first)).items()
        if kind == "type":
            found = getattr(builtins, first)
            return found if isinstance(found, type) else self.resolve(self, node)
        if kind == "namedtuple":
            return namedtuple(first, rest[0], rename=True)(*self.values(rest[1]))
        if kind in ("timezone", *DATES):
            datetime: Any = __import__("datetime")
            if kind == "timezone":
                return datetime.timezone(self.value(first), rest[0])
            date = getattr(datetime, kind).fromisoformat(first)
            return date if kind == "date" else date.replace(tzinfo=self.value(rest[0]), fold=rest[1])
        if kind in ("ndarray", "scalar", "objects"):
            return self.array(node)
        return self.resolve(self, node)

    def array(self, node: Node) -> Any:
        try:
            numpy: Any = __import__("numpy")
        except ImportError:
            raise CannotCross("an array, where numpy is not installed") from None
        kind, first, second, *rest = node
        if kind == "objects":
            array = numpy.empty(len(second), dtype=object)
            array[:] = self.values(second)
            return array.reshape(first)
        dtype = numpy.dtype(first)
        if dtype.kind not in ARRAY_KINDS:
            raise MalformedValue(f"an array of {dtype}")
        array = numpy.frombuffer(binascii.a2b_base64(rest[0]), dtype=dtype).reshape(second).copy()
        return array if kind == "ndarray" else array[()]

    def fill(self, container: Any, node: Node) -> None:
        """Replace the content of a mutable object, which others may refer to, by what a node holds."""
        kind = node[0]
        if kind in ("ndarray", "objects"):
            array = self.array(node)
            if (type(array), array.shape, array.dtype) != (type(container), container.shape, container.dtype):
                raise MalformedValue("another array")
            container[...] = array
            return
        if type(container) is not MUTABLE_TYPES[kind]:
            raise MalformedValue(f"a {kind} in the place of a {type(container).__name__}")
        items: Any
        if kind == "bytearray":
            items = binascii.a2b_base64(node[1])
        elif kind in MAPPINGS:
            items = dict(map(self.values, node[1]))
            if len(node) > 2 and kind == "defaultdict":
                container.default_factory = self.value(node[2])
        else:
            items = self.values(node[1])
        if kind == "set":
            items = set(items)  # before the other one is empty: to hash an object of the program is an operation
        container.clear()
        if kind == "OrderedDict":
            container.update(items)  # which `dict.update` would do past its order
        elif kind in MAPPINGS:
            dict.update(container, items)
        elif kind == "set":
            container.update(items)
        else:
            container.extend(items)


def parts_of(node: Node) -> list[Json]:
    """The values in a node of an immutable object. They have to be made before it, as it cannot be filled later."""
    kind, first, *rest = node
    if kind in OF_VALUES:
        return list(first)
    if kind == "dict_items":
        return [value for pair in first for value in pair]
    if kind == "namedtuple":
        return list(rest[1])
    if kind == "timezone":
        return [first]
    if kind in DATES or kind == "objects":
        return list(rest[0]) if kind == "objects" else [rest[0]]
    if kind in (ERROR, ITERATOR):
        return [first, *rest[0]]
    if kind == REFERENCE:
        return [rest[1]]
    if kind == ERROR_CLASS:
        return [rest[2]]
    return []


# ------------------------------------------------------------------------------------ in the program's process


class Operations:
    """Does what the tests ask of a program, whose names `find` looks up: an operation by its name, with arguments."""

    def __init__(self, find: Callable[[str], Any], line_of: Callable[[BaseException], int | None]) -> None:
        self.find, self.line_of = find, line_of
        self.shared = Shared()
        self.objects: list[list[Any]] = []  # those that each operation's result mentions
        self.references: dict[int, tuple[int, int]] = {}
        self.ahead: dict[tuple[int, int], list[Any]] = {}  # what was taken of iterators
        self.factors: dict[tuple[int, int], float] = {}  # how much to take of them

    def answers(self, written: str) -> Iterator[bytes]:
        """Does the operations in a JSON list of [name, message of the arguments] with the program, and yields each
        answer (a result or an exception) as a line of JSON. Ends at one that cannot be done, as its arguments are not
        there: it was asked for ahead, in the expectation of other results."""
        for number, (name, message) in enumerate(json.loads(written)):
            try:
                decoding = Decoding(message, self.resolve, self.shared, number, is_result=False)
            except (MalformedValue, CannotCross):
                return
            self.objects.append([])
            function = self.find if name == "find" else FUNCTIONS.get(name) or getattr(operator, name)
            answer: Message
            raised: list[int | None] = []
            try:
                value = function(*decoding.root)
            except MemoryError:  # ends the process, which says so
                raise
            except BaseException as error:
                value, raised = error, [self.line_of(error)]
            encoding = Encoding(self.describe, self.shared, number, is_result=True)
            try:
                answer = encoding.message(value)
                if raised:
                    answer["raised"] = raised[0]
            except MemoryError:
                raise
            except BaseException as error:
                answer = {"cannot": f"{type(error).__name__}: {error}"[:200]}
            del decoding, value, raised  # so that what the program has let go is known to be unused
            self.shared.forget(number)
            yield json.dumps(answer).encode() + b"\n"

    def resolve(self, decoding: Decoding, node: Node) -> Any:
        if node[0] == FUNCTION:
            return operator.attrgetter(node[2])(sys.modules[node[1]])
        if node[0] == UNTOUCHED:  # what was taken of the iterator ahead comes first
            return itertools.chain(self.ahead.pop((node[1], node[2]), ()), self.objects[node[1]][node[2]])
        if node[0] != REFERENCE:
            raise MalformedValue(f"{node[0]} is no kind of value")
        return self.objects[node[1]][node[2]]

    def describe(self, encoding: Encoding, value: Any) -> Node:
        """The node of an object of the program that cannot be sent as a value: an exception, its class, an iterator, or
        a reference, [operation, number], by which later operations name it."""
        if isinstance(value, BaseException):
            attributes = encoding.add(vars(value)) if vars(value) else None
            return [ERROR, encoding.add(type(value)), [*encoding.add_all(value.args), attributes], str(value)[:1000]]
        number, place = self.references.get(id(value), (len(self.objects) - 1, -1))
        if place < 0:
            place = len(self.objects[number])
            self.objects[number].append(value)
            self.references[id(value)] = number, place
        name = type(value).__name__
        if isinstance(value, type) and issubclass(value, BaseException):
            return error_class_node(encoding, value, number, place)
        if type(value).__module__ in ("builtins", "itertools") and iter_is_itself(value):
            return self.iterator_node(encoding, value, number, place)
        base: Any = next((base for base in BASES if isinstance(value, base)), None)
        if base is None:
            return [REFERENCE, number, place, None, name, ""]
        # Of a value that may still change only the type is sent: the tests ask for it when they compare.
        now = None if base in MUTABLE_BASES else encoding.add(base_value(value))
        return [REFERENCE, number, place, now, name, base.__name__]

    def iterator_node(self, encoding: Encoding, iterator: Any, number: int, place: int) -> Node:
        items: list[Any] = []
        end: Any = False
        # Twice as much each time: whoever asks again wants many.
        factor = self.factors[number, place] = 2 * self.factors.get((number, place), 0.5)
        begun_s = time.process_time()
        try:
            for item in iterator:
                items.append(item)
                if len(items) == MOST_ITEMS_AHEAD * factor or time.process_time() - begun_s > LONGEST_AHEAD_S * factor:
                    break
            else:
                end = True
        except MemoryError:
            raise
        except BaseException as error:
            end = encoding.add(error)
        self.ahead[number, place] = items
        return [ITERATOR, end, encoding.add_all(items), number, place, type(iterator).__name__ == "generator"]


def error_class_node(encoding: Encoding, kind: Any, number: int, place: int) -> Node:
    module, name, parent = kind.__module__, kind.__name__, kind.__base__
    if module in LIBRARY_ERRORS and id(vars(sys.modules[module]).get(name)) == id(kind):
        return [LIBRARY_ERROR, module, name]
    others = []
    for base in kind.__mro__:
        if id(vars(builtins).get(base.__name__)) == id(base) and not issubclass(parent, base):
            others.append(base.__name__)
    return [ERROR_CLASS, number, place, name, encoding.add(parent), others]


def iter_is_itself(value: Any) -> bool:
    return hasattr(type(value), "__next__") and iter(value) is value


def base_value(value: Any) -> Any:
    """A value of a program's class that extends a builtin type, as that type has it, whatever the class redefines."""
    base: Any
    for base in BASES:
        if isinstance(value, base):
            if base is dict:
                return dict(dict.items(value))
            if base in (list, tuple, set, frozenset):
                return base(base.__iter__(value))
            if base in (bytes, bytearray, str):
                return base.__getitem__(value, slice(None)) if base is not bytearray else bytearray(value)
            return base.__pos__(value)
    return value


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "getattr": getattr, "setattr": setattr, "delattr": delattr, "len": len,
    "bool": bool, "str": str, "repr": repr, "format": format, "advance": next, "hash": hash,
    "iter": lambda items: (item for item in items), "next": lambda items: items,
    "int": int, "float": float, "complex": complex, "round": round, "isinstance": isinstance,
    "issubclass": issubclass, "copy": copy.copy, "deepcopy": copy.deepcopy, "value": base_value,
    "call": lambda function, *args: function(*args),
    "call_with_names": lambda function, args, kwargs: function(*args, **kwargs),
    "enter": lambda manager: type(manager).__enter__(manager),
    "exit": lambda manager, *error: type(manager).__exit__(manager, *error),
}  # fmt: skip
"""What operations do; those that are not here are of the module `operator`."""
