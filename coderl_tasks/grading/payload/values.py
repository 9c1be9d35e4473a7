"""The values of assertion tests, as JSON: what a test gives to the program, and what the program gives back.

This text is part of `payload/assertions.py`, where the tests run, and of `payload/driver.py`, where the program runs.
What it reads becomes objects of a few builtin types; it is no pickle.

A message is {"root": value, "nodes": [...]}; that of an operation's arguments has a list of values as its root. None,
bool, int, str and finite float stand for themselves; any other object has a key, [operation, number]: 0, 1, ... in
arguments, -1, -2, ... in results. A message has the nodes, [kind, ...], of those that it is the first to name. What has
no kind is a reference, by its number among the objects that the result of that operation mentions, the same when the
program runs again. Containers are the same on both sides (`Shared`), as in one process.
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
from functools import lru_cache
from typing import Any

Message = dict[str, Any]
Node = list[Any]
Key = tuple[int, int]

# Of an iterator that the program returns, what is sent before the tests ask for more.
MOST_ITEMS_AHEAD, LONGEST_AHEAD_S = 1000, 0.05
MOST_OLD_OBJECTS, MOST_OLD_ITEMS = 200, 20_000
"""Of each side's old objects so many are kept in step, with so many items in all."""
LIBRARY_ERRORS = (
    "json.decoder", "statistics", "decimal", "zlib", "queue", "_queue", "struct", "re", "csv", "_csv", "configparser",
    "subprocess", "asyncio.exceptions", "dataclasses", "copy", "_pickle", "ipaddress", "zoneinfo",
)  # fmt: skip
"""Their exceptions are the same on both sides."""
INLINE_TYPES = (bool, int, str, type(None))
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
MAPPINGS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict, "defaultdict": defaultdict, "Counter": Counter}
KIND_OF_TYPE = {kind: name for name, kind in (*SEQUENCES.items(), *MAPPINGS.items())}
MUTABLE_TYPES: dict[str, Any] = {**MAPPINGS, "list": list, "set": set, "bytearray": bytearray, "deque": deque}
VIEWS = {type({}.keys()): "dict_keys", type({}.values()): "dict_values", type({}.items()): "dict_items"}
CONSTANTS = {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}
FROM_VALUES: dict[str, Callable[..., Any]] = {
    "tuple": tuple, "frozenset": frozenset, "range": lambda values: range(*values),
    "slice": lambda values: slice(*values), "dict_keys": lambda values: dict.fromkeys(values).keys(),
    "dict_values": lambda values: dict(enumerate(values)).values(),
}  # fmt: skip
"""What makes an object of the values in its node."""
FROM_TEXTS: dict[str, Callable[..., Any]] = {
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
"""Values of a program's class that extends one of these compare as the builtin's do."""
MUTABLE_BASES = (list, dict, set, bytearray)
ERROR, ITERATOR, REFERENCE, ERROR_CLASS, FUNCTION = "error", "iterator", "reference", "error_class", "function"
LIBRARY_ERROR, UNTOUCHED = "library_error", "untouched"
DESCRIBED_ANEW = (ERROR, ITERATOR, REFERENCE, UNTOUCHED, *VIEWS.values())
"""What gets its node anew in each message."""


class CannotCross(Exception):
    """A value that has no form in a message."""


class MalformedValue(Exception):
    """A message that this file does not write."""


class Shared:
    """The objects that both sides know, by their keys: the newest ones, and all of the last operation. What a side has
    changed in them is part of its next message; where nothing else refers to one, nothing has."""

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
        """After a message with these new nodes: some objects have their keys in one message alone."""
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
"""The count of a value in a table alone."""


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
    """A message of an `operation`. `describe` gives the node of an object without a kind, or raises CannotCross."""

    def __init__(
        self, describe: Callable[["Encoding", Any], Node], shared: Shared, operation: int, *, is_result: bool
    ) -> None:
        self.describe, self.shared, self.operation, self.is_result = describe, shared, operation, is_result
        self.new: list[Any] = []

    def key(self, number: int) -> Key:
        return (self.operation, -1 - number if self.is_result else number)

    def add(self, value: Any) -> Any:
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

    def add_all(self, values: Iterable[Any]) -> list[Any]:
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
    those that can be rebuilt there; None for any other. [7, x] becomes ["list", [7, [3, 1]]]: `encoding` adds the
    object x to the message under the key [3, 1], and 7 needs none. A float's repr is exact."""
    add_all, kind = encoding.add_all, type(value)
    name = KIND_OF_TYPE.get(kind, "")
    if name in SEQUENCES:
        items = list(value)
        if name in ("set", "frozenset"):
            items.sort(key=repr)  # the order of a set is another one in each process
        return [name, add_all(items)]
    if name in MAPPINGS:
        pairs = [add_all(pair) for pair in value.items()]
        factory = getattr(value, "default_factory", None)  # any other than a type is left out: == ignores it
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
    if kind.__bases__ == (tuple,) and isinstance(getattr(kind, "_fields", None), tuple):
        methods = {member for member in vars(kind) if callable(vars(kind)[member])}
        if methods <= NAMED_TUPLE_NAMES:  # it defines none of its own
            return ["namedtuple", name, list(kind._fields), add_all(value)]
    return None


def library_node(value: Any, module: str, name: str, encoding: Encoding) -> Node | None:
    """`node_of` for a value of the class `name` of datetime, decimal, fractions or numpy."""
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
    numpy = sys.modules["numpy"]  # loaded, as the value is of its class
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
    """The objects of a message, `root` its own."""

    def __init__(
        self,
        message: Message,
        resolve: Callable[["Decoding", Node], Any],
        shared: Shared,
        operation: int,
        *,
        is_result: bool,
    ) -> None:
        """Makes the objects of a message of `operation` (its result if `is_result`, numbered -1, -2, ..., else its
        arguments, 0, 1, ...) and changes earlier ones that the other side has changed; then notes in `shared` what both
        have now. `resolve` makes an object of a node of another kind. Raises MalformedValue for another message."""
        self.resolve, self.shared = resolve, shared
        self.nodes: dict[Key, Node] = {}
        self.made: dict[Key, Any] = {}
        try:
            for number, node in enumerate(message["nodes"]):
                self.nodes[operation, -1 - number if is_result else number] = node
            # Containers may hold each other: they are made empty, and filled when all other objects are made.
            containers = {key: node for key, node in self.nodes.items() if node[0] in MUTABLE_TYPES}
            for key, (kind, *fields) in containers.items():
                self.made[key] = deque(maxlen=fields[1]) if kind == "deque" else MUTABLE_TYPES[kind]()
            for key in self.nodes:
                self.make(key)
            self.root = self.value(message["root"]) if is_result else self.values(message["root"])
            for key, node in containers.items():
                self.fill(self.made[key], node)
            for (old_operation, number), node in message.get("changed", ()):
                key = (old_operation, number)
                self.fill(shared.objects[key], node)
                shared.settle(key, node)  # before the next one's values run an operation
        except (CannotCross, MalformedValue, MemoryError):
            raise
        except Exception as error:
            raise MalformedValue(f"{type(error).__name__}: {error}"[:200]) from None
        for key in self.nodes:
            shared.add(key, self.made[key])
        for key, node in self.nodes.items():
            shared.settle(key, node)
        shared.end_message(self.nodes.items())

    def value(self, written: Any) -> Any:
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

    def values(self, written: list[Any]) -> list[Any]:
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
        """Makes the object of a node, unless it is one of MUTABLE_TYPES."""
        match node:
            case [kind, values] if kind in FROM_VALUES:
                return FROM_VALUES[kind](self.values(values))
            case [kind, *texts] if kind in FROM_TEXTS:
                return FROM_TEXTS[kind](*texts)
            case ["dict_items", pairs]:
                return dict(map(self.values, pairs)).items()
            case ["type", name] if isinstance(getattr(builtins, name), type):
                return getattr(builtins, name)
            case ["namedtuple", name, fields, values]:
                return named_tuple_class(name, tuple(fields))(*self.values(values))
            case ["timezone", offset, name]:
                return __import__("datetime").timezone(self.value(offset), name)
            case [kind, text, zone, fold] if kind in DATES:
                date = getattr(__import__("datetime"), kind).fromisoformat(text)
                return date if kind == "date" else date.replace(tzinfo=self.value(zone), fold=fold)
            case ["ndarray" | "scalar" | "objects", *_]:
                return self.array(node)
        return self.resolve(self, node)  # what stands for a reference, say, on this side

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
        """Replace the content of a mutable object by what its new node holds: [kind, items, ...]. The items of a
        mapping are pairs; a defaultdict has its factory behind them."""
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
        written = node[1]
        # The container is cleared after this: to hash an object of the program is an operation, and may raise.
        if kind in MAPPINGS:
            items = dict(map(self.values, written))
            if len(node) > 2 and kind == "defaultdict":
                container.default_factory = self.value(node[2])
        elif kind == "bytearray":
            items = binascii.a2b_base64(written)
        else:
            items = set(self.values(written)) if kind == "set" else self.values(written)
        container.clear()
        if kind in MAPPINGS and kind != "OrderedDict":
            dict.update(container, items)  # what these add to a dict is not needed; an OrderedDict's order is
        elif kind in ("OrderedDict", "set"):
            container.update(items)  # an OrderedDict's own, which knows its order
        else:
            container.extend(items)


@lru_cache(maxsize=256)
def named_tuple_class(name: str, fields: tuple[str, ...]) -> type:
    """The class of named tuples: to make one takes as long as to make a thousand of its objects."""
    return namedtuple(name, fields, rename=True)


def parts_of(node: Node) -> list[Any]:
    """The values in a node of an immutable object, or their keys: they are made first, as it cannot be filled later."""
    match node:
        case [kind, values] if kind in FROM_VALUES:
            return list(values)
        case ["namedtuple", _, _, values] | ["objects", _, values]:
            return list(values)
        case ["dict_items", pairs]:
            return [value for pair in pairs for value in pair]
        case ["timezone", offset, _]:
            return [offset]
        case [kind, _, zone, _] if kind in DATES:
            return [zone]
        case ["error", error_class, arguments, _]:
            return [error_class, *arguments]
        case ["iterator", end, items, *_]:
            return [end, *items]
        case ["reference", _, _, builtin_value, _, _]:
            return [builtin_value]
        case ["error_class", _, _, _, parent, _]:
            return [parent]
    return []


# ------------------------------------------------------------------------------------ in the program's process


class Operations:
    """Does what the tests ask of a program, whose names `find` looks up."""

    def __init__(self, find: Callable[[str], Any], line_of: Callable[[BaseException], int | None]) -> None:
        self.find, self.line_of = find, line_of
        self.shared = Shared()
        self.mentioned: list[list[Any]] = []  # by operation, the objects that its result is the first to mention
        self.references: dict[int, tuple[int, int]] = {}  # by `id`, an object's operation and number there
        self.ahead: dict[tuple[int, int], list[Any]] = {}  # what was taken of iterators
        self.factors: dict[tuple[int, int], float] = {}  # how much to take of them

    def answers(self, written: str) -> Iterator[bytes]:
        """Does the operations in a JSON list of [name, message of the arguments] with the program, and yields each
        answer (a result or an exception) as a line of JSON. The list is of an earlier run of the program. This run may
        differ: at the first operation whose arguments do not exist in it, the answers end."""
        for number, (name, message) in enumerate(json.loads(written)):
            try:
                decoding = Decoding(message, self.resolve, self.shared, number, is_result=False)
            except (MalformedValue, CannotCross):
                return
            self.mentioned.append([])  # the objects of the program that this answer mentions: `describe` adds them
            # "find" looks up a name of the program.
            function = self.find if name == "find" else FUNCTIONS.get(name) or getattr(operator, name)
            answer: Message
            has_raised, line = False, None
            try:
                value = function(*decoding.root)
            except MemoryError:  # ends the process, which says so
                raise
            except BaseException as error:
                value, has_raised, line = error, True, self.line_of(error)
            encoding = Encoding(self.describe, self.shared, number, is_result=True)
            try:
                answer = encoding.message(value)
                if has_raised:
                    answer["raised"] = line  # the key says that it raised; the line is None outside the program
            except MemoryError:
                raise
            except BaseException as error:
                answer = {"cannot": f"{type(error).__name__}: {error}"[:200]}
            del decoding, value  # so that what the program has let go is known to be unused
            self.shared.forget(number)  # old objects; the other side forgets the same ones
            yield json.dumps(answer).encode() + b"\n"

    def resolve(self, decoding: Decoding, node: Node) -> Any:
        if node[0] == FUNCTION:
            return operator.attrgetter(node[2])(sys.modules[node[1]])
        if node[0] == UNTOUCHED:  # what was taken of the iterator ahead comes first
            return itertools.chain(self.ahead.pop((node[1], node[2]), ()), self.mentioned[node[1]][node[2]])
        if node[0] != REFERENCE:
            raise MalformedValue(f"{node[0]} is no kind of value")
        return self.mentioned[node[1]][node[2]]

    def describe(self, encoding: Encoding, value: Any) -> Node:
        """The node of an object of the program that cannot be sent as a value: an exception, its class, an iterator, or
        a reference, [operation, number], by which later operations name it."""
        if isinstance(value, BaseException):
            attributes = encoding.add(vars(value)) if vars(value) else None
            return [ERROR, encoding.add(type(value)), [*encoding.add_all(value.args), attributes], str(value)[:1000]]
        reference = self.references.get(id(value))
        if reference is None:
            operation = len(self.mentioned) - 1  # the present one
            reference = self.references[id(value)] = operation, len(self.mentioned[operation])
            self.mentioned[operation].append(value)
        kind = type(value)
        if isinstance(value, type) and issubclass(value, BaseException):
            module, name, parent = value.__module__, value.__name__, value.__base__
            if module in LIBRARY_ERRORS and id(vars(sys.modules[module]).get(name)) == id(value):
                return [LIBRARY_ERROR, module, name]
            others = []
            for base in value.__mro__:
                if id(vars(builtins).get(base.__name__)) == id(base) and not issubclass(parent, base):
                    others.append(base.__name__)
            return [ERROR_CLASS, *reference, name, encoding.add(parent), others]
        # The module first: `hasattr` of a class of the program would run its metaclass.
        if kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__") and iter(value) is value:
            return self.iterator_node(encoding, value, *reference)
        base: Any = next((base for base in BASES if isinstance(value, base)), None)  # a builtin type that it extends
        if base is None:
            return [REFERENCE, *reference, None, kind.__name__, ""]
        # A value that may still change is not sent along: the tests ask for it when they compare.
        builtin_value = None if base in MUTABLE_BASES else encoding.add(base_value(value))
        return [REFERENCE, *reference, builtin_value, kind.__name__, base.__name__]

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


def base_value(value: Any) -> Any:
    """A value of a program's class as the builtin type that it extends has it, whatever the class redefines."""
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
"""What operations do; the others are of the module `operator`."""
