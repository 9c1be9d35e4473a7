"""Mutants of a program: copies with one small mistake each, most of them wrong; and what of it can be wrong at all."""

import ast
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from operator import setitem

from coderl_tasks.problems.assertion_tests import NOT_PYTHON

_Change = Callable[[], None]
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.FloorDiv, ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip

_FORGETTABLE = frozenset({"sorted", "abs", "set", "reversed", "round", "list", "int"})
"""Functions of one value that wrong programs forget to call."""
_UNORDERED_ARGUMENTS = frozenset({"max", "min", "gcd", "lcm", "isclose"})


def mutants(code: str, seed: int, most: int) -> list[str]:
    """At most `most` different mutants of `code`, copies with one small mistake, drawn by `seed`; none of a program
    that does not compile."""
    try:
        tree = ast.parse(code)
    except NOT_PYTHON:
        return []
    n_changes = sum(1 for _ in _changes(tree))
    found: dict[str, None] = {}
    for number in random.Random(seed).sample(range(n_changes), n_changes):
        if len(found) == most:
            break
        copy = ast.parse(code)  # a change alters the tree that it belongs to, so each mutant needs its own
        next(islice(_changes(copy), number, None))()  # makes the change
        try:
            text = ast.unparse(ast.fix_missing_locations(copy))
            compile(text, "mutant", "exec")
        except NOT_PYTHON:
            continue
        if text != ast.unparse(tree):
            found.setdefault(text)
    return list(found)


def live_code(code: str, entry_point: str = "") -> str:
    """`code` without comments, docstrings and functions that nothing names, where a mistake changes no test's result.
    With an `entry_point`, which tests call and which stays, also without the part under `if __name__ == "__main__"`.
    `code` as it is if it does not compile."""
    try:
        tree = ast.parse(code)
    except NOT_PYTHON:
        return code
    if entry_point:  # without `if __name__ == "__main__":`
        scripts = [node for node in tree.body if isinstance(node, ast.If) and "__name__" in _names(node.test)]
        tree.body = [node for node in tree.body if node not in scripts]
    while True:  # again, as a function that went may have been the only one to name another
        named = _names(tree) | {entry_point}
        live = [node for node in tree.body if not isinstance(node, ast.FunctionDef) or node.name in named]
        if len(live) == len(tree.body):
            break
        tree.body = live
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [
                part for part in body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]
            if not body and not isinstance(node, ast.Module):  # only a docstring: a body needs a statement
                body.append(ast.Pass())
    return ast.unparse(ast.fix_missing_locations(tree))


def is_same_program(one: str, other: str) -> bool:
    """Whether two programs obviously do the same: they differ in the order of arguments that have none (max(a, b))."""

    def normal(code: str) -> str:
        tree = ast.parse(code)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and not node.keywords:
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in _UNORDERED_ARGUMENTS:
                    node.args.sort(key=ast.dump)
        return ast.dump(tree)

    return normal(one) == normal(other)


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _changes(tree: ast.AST) -> Iterator[_Change]:
    """Yields for every small mistake that can be made in `tree` a function that makes it there. It changes `tree`: for
    another mistake the program is parsed again, and has them in the same order."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for place, operator in enumerate(node.ops):
                yield partial(setitem, node.ops, place, _COMPARISONS[type(operator)]())
        elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OPERATORS:
            yield partial(setattr, node, "op", _OPERATORS[type(node.op)]())
        elif isinstance(node, ast.BoolOp):
            yield partial(setattr, node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, bool):
                yield partial(setattr, node, "value", not node.value)
            elif isinstance(node.value, int | float):
                yield partial(setattr, node, "value", node.value + 1)
                yield partial(setattr, node, "value", node.value - 1)
            elif isinstance(node.value, str) and node.value:
                yield partial(setattr, node, "value", node.value[1:])
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            yield partial(setattr, node, "test", ast.UnaryOp(ast.Not(), node.test))
        elif isinstance(node, ast.Return) and node.value is not None:
            yield partial(setattr, node, "value", ast.Constant(None))
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            yield partial(setattr, node, "args", [*node.args[1:], node.args[0]])
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in _FORGETTABLE and len(node.args) == 1:
            yield partial(setattr, node, "func", ast.parse("lambda value: value", mode="eval").body)
        body = getattr(node, "body", None)
        if isinstance(body, list) and not isinstance(node, ast.Module):
            for place, statement in enumerate(body):
                if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr | ast.If | ast.For | ast.Break):
                    yield partial(setitem, body, place, ast.Pass())
