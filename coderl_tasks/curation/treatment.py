"""What right programs do with their inputs, read from their syntax: how far new inputs may differ from the given ones.

1. *Named values.* A value that a reference compares its input with lies in the domain, and so do its neighbours: a
   program that tells 50 from 51 is asked for both. The same holds for characters, and for the kinds of characters that
   a reference asks for (`isdigit`).
2. *Plain operations.* If all that references do with numbers is to add, multiply, compare and move them, then 0 and
   numbers below it are as good as any other. So are empty lists for references that only go through them, and other
   characters for those that only move them. With a division, a loop up to a number, its digits or an index, programs
   that agree on the usual numbers part at 0 or below.

An operation that is not known here is taken for one that forbids everything.
"""

import ast
import string
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

_PLAIN_FUNCTIONS = frozenset(
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
_SEARCHING_METHODS = frozenset({"count", "find", "index", "replace", "startswith", "endswith", "split"})
_CHARACTERS_OF_TEST = {
    "isdigit": string.digits, "isdecimal": string.digits, "isnumeric": string.digits, "isspace": " ",
    "isalpha": string.ascii_letters, "isalnum": string.ascii_letters + string.digits,
    "isupper": string.ascii_uppercase, "islower": string.ascii_lowercase,
}  # fmt: skip
_MOST_CHARACTERS = 30  # of a text that characters are compared with: a longer one is a message


@dataclass(frozen=True, slots=True)
class Treatment:
    """How references treat their inputs. `constants` are the integers and strings that they name, `compared` those
    integers that they compare something with, and `characters` those that they ask for. The others say what new values
    they do the same with: any numbers, 0, empty lists and texts, texts of other characters."""

    constants: tuple[int | str, ...] = ()
    compared: frozenset[int] = frozenset()
    characters: frozenset[str] = frozenset()
    is_plain: bool = False
    takes_zero: bool = False
    takes_empty: bool = False
    takes_any_text: bool = False


class Hazard(StrEnum):
    """An operation that may do something else with unusual inputs: zero, negative numbers, empty lists, other texts."""

    CALL = "call"  # of a function that is not known here
    LOOP = "loop"  # as often as a number says
    INDEX = "index"  # a number as a position
    BITS = "bits"
    DIVISION = "division"
    REMAINDER = "remainder"
    POWER = "power"
    RUNNING_VALUE = "running value"  # the largest so far, say: it may begin with 0, or fail for an empty list
    CHARACTERS = "characters"  # tells characters apart


_OF_OPERATORS: dict[type[ast.operator], Hazard] = {
    **dict.fromkeys((ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr, ast.BitXor), Hazard.BITS),
    **dict.fromkeys((ast.FloorDiv, ast.Mod), Hazard.REMAINDER), ast.Div: Hazard.DIVISION, ast.Pow: Hazard.POWER,
}  # fmt: skip


def treatment_of(programs: Sequence[str]) -> Treatment:
    """How right `programs` treat their inputs, by their syntax: what all of them allow, and the constants that any of
    them names. No program, or one that cannot be parsed, allows nothing."""
    trees = []
    for code in programs:
        with suppress(SyntaxError, ValueError, RecursionError):
            trees.append(_WithoutAnnotations().visit(ast.parse(code)))
    hazards = {hazard for tree in trees for hazard in _hazards(tree)}
    nodes = [node for tree in trees for node in ast.walk(tree)]
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    constants = [each for each in values if isinstance(each, int | str) and not isinstance(each, bool)]
    asked = [each for node in nodes for each in _constants_compared(node)]
    texts = {each for each in asked if isinstance(each, str) and len(each) <= _MOST_CHARACTERS}
    kinds = {_CHARACTERS_OF_TEST.get(node.attr, "") for node in nodes if isinstance(node, ast.Attribute)}
    is_known = bool(trees) and len(trees) == len(programs)
    on_numbers = {Hazard.CALL, Hazard.LOOP, Hazard.INDEX, Hazard.BITS}
    # Below 0 these do something else. At 0 at most an input is lost: a reference that divides by it does not answer.
    arithmetic = {Hazard.REMAINDER, Hazard.POWER, Hazard.DIVISION}
    return Treatment(
        tuple(dict.fromkeys(constants)),
        frozenset(each for each in asked if isinstance(each, int)),
        frozenset("".join(texts | kinds)),
        is_plain=is_known and not hazards & (on_numbers | arithmetic | {Hazard.RUNNING_VALUE}),
        takes_zero=is_known and not hazards & on_numbers,
        takes_empty=is_known and not hazards & {Hazard.CALL, Hazard.LOOP, Hazard.INDEX, Hazard.RUNNING_VALUE},
        takes_any_text=is_known and not hazards & {Hazard.CALL, Hazard.LOOP, Hazard.CHARACTERS},
    )


class _WithoutAnnotations(ast.NodeTransformer):
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


def _constants_compared(node: ast.AST) -> Iterator[int | str]:
    """The integers, characters and sets of characters that something is compared with, or that are looked for."""
    sides: list[ast.expr] = []
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SEARCHING_METHODS:
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


def _hazards(tree: ast.AST) -> Iterator[Hazard]:
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    valid_positions = _positions(tree)  # names that loops give to positions within a list
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    divisibility = {id(node.left) for node in compared if _asks_divisibility(node)}
    for node in ast.walk(tree):
        match node:
            case ast.While():
                yield Hazard.LOOP
            case ast.FunctionDef(name=name):
                if name in _names(node):  # a recursion
                    yield Hazard.LOOP
            case ast.For():
                if any(isinstance(each, ast.Assign) for each in ast.walk(node)):
                    yield Hazard.RUNNING_VALUE  # perhaps: not every assignment is read in the next pass
            case ast.BinOp(op=ast.Mod(), right=ast.Constant(value=int())) if id(node) in divisibility:
                pass  # `n % k == 0` is right for negative numbers too
            case ast.BinOp(op=operator, right=right) | ast.AugAssign(op=operator, value=right):
                hazard = _OF_OPERATORS.get(type(operator))
                is_constant = isinstance(right, ast.Constant)
                if hazard and not (is_constant and hazard in (Hazard.DIVISION, Hazard.POWER)):
                    yield hazard
            case ast.Subscript(slice=index):
                if _names(index) - valid_positions - {"len"}:  # another name may be no position in the list
                    yield Hazard.INDEX
            case ast.Call(func=ast.Name(id="range"), args=arguments):
                if not all(map(_is_size, arguments)):
                    yield Hazard.LOOP
            case ast.Call(func=ast.Name(id="int"), args=[ast.Call() | ast.Compare(), *_]):
                pass  # it only converts what was read (`int(input())`) or a truth value; of a number it cuts decimals
            case ast.Call(func=ast.Name(id=name)):
                if name not in _PLAIN_FUNCTIONS | functions or name == "int":
                    yield Hazard.CALL
            case ast.Call(func=ast.Attribute(attr=name)):
                if name in _TEXT_METHODS | _SEARCHING_METHODS:
                    yield Hazard.CHARACTERS
                if name not in _TEXT_METHODS | _PLAIN_METHODS:
                    yield Hazard.CALL
            case ast.Compare():
                if any(isinstance(each, str) for each in _constants_compared(node)):
                    yield Hazard.CHARACTERS
            case ast.Call() | ast.Import() | ast.ImportFrom() | ast.Try() | ast.With():  # not looked into
                yield Hazard.CALL


def _asks_divisibility(node: ast.Compare) -> bool:
    """Whether a comparison asks if a number can be divided, or is odd. Of numbers below 0, other remainders than 0 are
    what the language makes them: a program that looks at the last digit has another one."""
    match node.left:
        case ast.BinOp(right=ast.Constant(value=2)):
            return True
    return all(isinstance(each, ast.Constant) and each.value == 0 for each in node.comparators)


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
