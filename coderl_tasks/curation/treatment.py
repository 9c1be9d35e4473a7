"""What right programs do with their inputs, read from their syntax: how far new inputs may differ from the given ones.

Few given inputs show few kinds of values, and many statements name no bounds. The references decide then, by two rules:

1. *Named values.* A value that a reference compares its input with lies in the domain, and so do its neighbours: a
   program that tells 50 from 51 is asked for both. The same holds for characters, and for the kinds of characters that
   a reference asks for (`isdigit`).
2. *Plain operations.* If all that references do with numbers is to add, multiply, compare and move them, then 0 and
   numbers below it are as good as any other: whatever else is right for the numbers above does the same with them. So
   are empty lists for references that only go through them, and other characters for those that only move them. A
   division, a loop up to a number, its digits or an index are no plain operations: there, programs that agree on the
   usual numbers part at 0 or below.

An operation that is not known here is taken for one that forbids everything.
"""

import ast
import string
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

_PLAIN = frozenset(
    {"abs", "max", "min", "sum", "len", "sorted", "all", "any", "set", "list", "tuple", "bool", "enumerate", "zip",
     "reversed", "map", "filter", "print", "input", "range", "dict", "isinstance", "float"}
)  # fmt: skip
"""Functions that say nothing of their values, or the same of a number below zero as of one above."""
_PLAIN_METHODS = frozenset(
    {"append", "extend", "count", "index", "copy", "sort", "reverse", "add", "items", "keys", "values", "get", "join",
     "split", "readline", "read", "strip"}
)  # fmt: skip
_TEXT_METHODS = frozenset(
    {"upper", "lower", "title", "capitalize", "swapcase", "startswith", "endswith", "replace", "find", "splitlines",
     "isalpha", "isdigit", "isupper", "islower", "isspace", "isalnum", "lstrip", "rstrip"}
)  # fmt: skip
"""Methods of texts, which do the same with an empty text as with any other, and look at characters."""
_LOOKING = frozenset({"count", "find", "index", "replace", "startswith", "endswith", "split"})
_KINDS = {
    "isdigit": string.digits, "isdecimal": string.digits, "isnumeric": string.digits, "isspace": " ",
    "isalpha": string.ascii_letters, "isalnum": string.ascii_letters + string.digits,
    "isupper": string.ascii_uppercase, "islower": string.ascii_lowercase,
}  # fmt: skip
_MOST_CHARACTERS = 30  # of a text that characters are compared with: a longer one is a message


@dataclass(frozen=True, slots=True)
class Treatment:
    """How references treat their inputs. `constants` are the integers and strings that they name, `compared` those
    integers that they compare something with, and `characters` those that they ask for. `is_plain` says that numbers
    are only added, multiplied, compared and moved; `takes_zero` that no more than a division, a power or a remainder
    is done with them beside that; `takes_empty` that lists and texts are only gone through; `takes_any_text` that texts
    are only cut, joined and measured."""

    constants: tuple[int | str, ...] = ()
    compared: frozenset[int] = frozenset()
    characters: frozenset[str] = frozenset()
    is_plain: bool = False
    takes_zero: bool = False
    takes_empty: bool = False
    takes_any_text: bool = False


def treatment_of(programs: Sequence[str]) -> Treatment:
    """Reads from the syntax of right `programs` how far new inputs may differ from the given ones: into zero or below,
    to empty lists or to other characters, if the operations of all of them allow it; and which constants any of them
    names. A program that cannot be parsed, or no program, allows nothing."""
    trees = []
    for code in programs:
        with suppress(SyntaxError, ValueError, RecursionError):
            trees.append(_Plain().visit(ast.parse(code)))
    # Operations that may treat such values otherwise than the given ones.
    hazards = {hazard for tree in trees for hazard in _hazards(tree)}
    nodes = [node for tree in trees for node in ast.walk(tree)]
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    constants = [each for each in values if isinstance(each, int | str) and not isinstance(each, bool)]
    asked = [each for node in nodes for each in _compared(node)]
    texts = {each for each in asked if isinstance(each, str) and len(each) <= _MOST_CHARACTERS}
    kinds = {_KINDS.get(node.attr, "") for node in nodes if isinstance(node, ast.Attribute)}
    is_known = bool(trees) and len(trees) == len(programs)
    return Treatment(
        tuple(dict.fromkeys(constants)),
        frozenset(each for each in asked if isinstance(each, int)),
        frozenset("".join(texts | kinds)),
        is_plain=is_known and not hazards & {"call", "loop", "index", "bits", "remainder", "power", "division", "kept"},
        takes_zero=is_known and not hazards & {"call", "loop", "index", "bits"},
        takes_empty=is_known and not hazards & {"call", "loop", "index", "kept"},
        takes_any_text=is_known and not hazards & {"call", "loop", "characters"},
    )


class _Plain(ast.NodeTransformer):
    """Leaves out what a program says of types, whose brackets are no positions."""

    def visit_arguments(self, node: ast.arguments) -> ast.arguments:
        for each in ast.walk(node):
            if isinstance(each, ast.arg):
                each.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.returns = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        return ast.Assign([node.target], node.value, lineno=node.lineno) if node.value else ast.Pass()


def _compared(node: ast.AST) -> Iterator[int | str]:
    """The integers, characters and sets of characters that something is compared with, or that are looked for."""
    sides: list[ast.expr] = []
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOOKING:
        sides = node.args[:1]
    is_container = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn)
    for side in sides:
        is_negative = isinstance(side, ast.UnaryOp) and isinstance(side.op, ast.USub)
        constant = side.operand if isinstance(side, ast.UnaryOp) else side
        value = constant.value if isinstance(constant, ast.Constant) else None
        if type(value) is int:
            yield -value if is_negative else value
        elif isinstance(value, str) and (is_container or len(value) == 1):
            yield value


def _hazards(tree: ast.AST) -> Iterator[str]:
    """Yields the operations of a program that may do something else with unusual inputs (zero, negative numbers, empty
    lists, other characters): "loop" (as often as a number says), "call" (of an unknown function), "index" (a number as
    a position), "bits", "division", "remainder", "power", "kept" (assigns in a loop: the largest so far, say, whose
    first value may be wrong for an empty list or for numbers below 0) and "characters" (looks at them)."""
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    positions = _positions(tree)  # names that loops give to valid positions: these may be an index
    tested = {id(node.left) for node in ast.walk(tree) if isinstance(node, ast.Compare) and _asks_divisibility(node)}
    for node in ast.walk(tree):
        match node:
            case ast.While():
                yield "loop"
            case ast.FunctionDef(name=name):  # a recursion
                yield from ("loop" for each in ast.walk(node) if isinstance(each, ast.Name) and each.id == name)
            case ast.For():
                yield from ("kept" for each in ast.walk(node) if isinstance(each, ast.Assign))
            case ast.BinOp(op=ast.Mod(), right=ast.Constant(value=int())) if id(node) in tested:
                pass  # whether a number can be divided has the same answer below zero as above
            case ast.BinOp(op=operator, right=right) | ast.AugAssign(op=operator, value=right):
                yield from _of_operator(operator, right)
            case ast.Subscript(slice=index):
                yield from ["index"] if _names(index) - positions - {"len"} else []
            case ast.Call(func=ast.Name(id=name), args=arguments):
                if name == "range":
                    yield from [] if all(map(_is_size, arguments)) else ["loop"]
                elif name == "int":  # of what was read, or of a truth value
                    is_read = arguments and isinstance(arguments[0], ast.Call | ast.Compare)
                    yield from [] if is_read else ["call"]
                elif name not in _PLAIN | functions:
                    yield "call"
            case ast.Call(func=ast.Attribute(attr=name)):
                yield from ["characters"] if name in _TEXT_METHODS | _LOOKING else []
                yield from ["call"] if name not in _TEXT_METHODS | _PLAIN_METHODS else []
            case ast.Compare():
                yield from ("characters" for each in _compared(node) if isinstance(each, str))
            case ast.Call() | ast.Import() | ast.ImportFrom() | ast.Try() | ast.With():
                yield "call"


def _asks_divisibility(node: ast.Compare) -> bool:
    """Whether a comparison asks if a number can be divided, or is odd. Of numbers below 0, other remainders than 0 are
    what the language makes them: a program that looks at the last digit has another one."""
    is_zero = all(isinstance(each, ast.Constant) and each.value == 0 for each in node.comparators)
    is_half = (
        isinstance(node.left, ast.BinOp) and isinstance(node.left.right, ast.Constant) and node.left.right.value == 2
    )
    return is_zero or is_half


def _of_operator(operator: ast.operator, right: ast.expr) -> Iterator[str]:
    is_constant = isinstance(right, ast.Constant)
    if isinstance(operator, ast.LShift | ast.RShift | ast.BitAnd | ast.BitOr | ast.BitXor):
        yield "bits"
    elif isinstance(operator, ast.Div):
        yield from [] if is_constant else ["division"]
    elif isinstance(operator, ast.FloorDiv | ast.Mod):
        yield "remainder"
    elif isinstance(operator, ast.Pow):
        yield from [] if is_constant else ["power"]


def _positions(tree: ast.AST) -> set[str]:
    """The names that loops give to positions: those over `range` and the first ones of `enumerate`."""
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.comprehension)]
    found = set()
    for loop in loops:
        source, target = loop.iter, loop.target
        if isinstance(source, ast.Call) and isinstance(source.func, ast.Name):
            if source.func.id == "enumerate" and isinstance(target, ast.Tuple):
                target = target.elts[0]
            if source.func.id in ("range", "enumerate") and isinstance(target, ast.Name):
                found.add(target.id)
    return found


def _is_size(node: ast.expr) -> bool:
    """Whether an expression is made of lengths and constants, so that no number of the input says how often to loop."""
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)]
    return _names(node) <= {name for call in calls if "len" in _names(call.func) for name in _names(call)}


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
