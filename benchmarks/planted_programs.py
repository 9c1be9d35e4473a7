"""Programs made from a reference solution: wrong ones with other slips than `curation/mutants.py` makes, and right ones
that are written another way.

Strengthening searches with `mutants`, which makes comparisons strict or loose, adds or subtracts 1, exchanges + and -,
leaves out statements and calls. No slip here is among these: they point a comparison the other way, forget an operand
or a condition, take another variable, another function or the other end of a list, cut a loop short, and assume of the
input that it is sorted, distinct, positive or short. A quarter of the programs has two slips.

A rewrite keeps what a program computes for every input: loops become index loops, comprehensions become calls, sums
become recursions, names change, branches are exchanged. What the reference refuses, it may refuse otherwise.
"""

import ast
import random
from collections.abc import Callable, Iterator, Sequence

_REVERSED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.GtE, ast.NotEq: ast.Gt,
}  # fmt: skip
_OTHERS = {
    "max": ("min",), "min": ("max",), "sum": ("len", "max"), "len": ("sum", "max"), "any": ("all",), "all": ("any",),
    "upper": ("lower", "title", "swapcase"), "lower": ("upper",), "title": ("capitalize",), "capitalize": ("upper",),
    "strip": ("lstrip", "rstrip"), "startswith": ("endswith",), "endswith": ("startswith",), "isalpha": ("isalnum",),
    "isdigit": ("isalnum",), "isupper": ("istitle",), "islower": ("isalpha",), "keys": ("values",), "values": ("keys",),
    "count": ("find",), "find": ("rfind",), "index": ("count",), "append": ("remove",), "floor": ("ceil",),
    "ceil": ("floor",),
}  # fmt: skip
_OF_ITERABLES = frozenset({"sum", "max", "min", "len", "sorted", "set", "any", "all", "reversed", "enumerate"})
_CUTS = ("list({})[1:]", "list({})[:-1]", "list({})[:3]", "list({})[::2]")
_ASSUMPTIONS = (
    "sorted({})", "list(dict.fromkeys({}))", "abs({})", "max({}, 0)", "max({}, 1)", "min({}, 9)", "min({}, 100)",
    "{}[:3]", "({} or 1)", "{}.lower()", "{}.strip()", "[abs(each) for each in {}]", "[each for each in {} if each]",
)  # fmt: skip
"""What a careless program takes a variable for. One that the type does not allow is a runtime error."""


def slips(code: str, seed: int, most: int) -> list[str]:
    """At most `most` different programs with one or two slips, drawn by `seed`; by chance some are right."""
    rng, found, original = random.Random(seed), dict[str, None](), ast.unparse(ast.parse(code))
    singles = sum(1 for _ in _edits(ast.parse(code)))
    numbers = rng.sample(range(singles), min(singles, most - most // 4))
    pairs = [rng.sample(range(singles), 2) for _ in range(most // 4)] if singles > 1 else []
    for chosen in [*([number] for number in numbers), *pairs]:
        tree = ast.parse(code)
        for number in chosen:
            for edit in [edit for place, edit in enumerate(_edits(tree)) if place == number]:
                edit()
        if (text := _compiled(tree)) is not None and text != original:
            found.setdefault(text)
    return list(found)


def _compiled(tree: ast.AST) -> str | None:
    try:
        text = ast.unparse(ast.fix_missing_locations(tree))
        compile(text, "program", "exec")
    except (SyntaxError, ValueError, RecursionError, AttributeError):
        return None
    return text


def _edits(tree: ast.Module) -> Iterator[Callable[[], None]]:
    """Every slip that can be made in `tree`, as functions that make it there."""
    names = _variables(tree)
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr) and not isinstance(node, ast.Attribute | ast.AnnAssign | ast.arg):
                for other in _instead(value, names):
                    yield lambda node=node, name=name, other=other: setattr(node, name, other)  # type: ignore[misc]
            elif isinstance(value, list):
                for place, item in enumerate(value):
                    changed: Iterator[ast.AST] = iter(())
                    if name != "decorator_list":
                        changed = _instead(item, names) if isinstance(item, ast.expr) else _statements_instead(item)
                    for each in changed:
                        yield lambda value=value, place=place, each=each: value.__setitem__(place, each)  # type: ignore[misc]
        if isinstance(node, ast.comprehension) and node.ifs:
            yield lambda node=node: node.ifs.pop()  # type: ignore[misc]
        if isinstance(node, ast.For | ast.While):
            for last in (ast.Break(), ast.Return(ast.Name(names[-1]))) if names else ():
                yield lambda node=node, last=last: node.body.append(last)  # type: ignore[misc]


def _variables(tree: ast.AST) -> list[str]:
    """The parameters and the names that are assigned to."""
    names = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    stored = (
        node
        for node in ast.walk(tree)
        if isinstance(getattr(node, "ctx", None), ast.Store) and isinstance(node, ast.Name)
    )
    return sorted((names | {node.id for node in stored}) - {"self"})


def _instead(node: ast.expr, names: Sequence[str]) -> Iterator[ast.expr]:
    """The wrong expressions that may stand where `node` does."""
    text = ast.unparse(node)
    texts: list[str] = []
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _REVERSED:
            yield ast.Compare(node.left, [_REVERSED[type(operator)]()], node.comparators)
        case ast.BoolOp(values=values):
            yield from values
        case ast.BinOp(left=left, op=operator, right=right):
            yield from (left, right)
            if isinstance(operator, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow):
                yield ast.BinOp(right, operator, left)
            one, other = ast.unparse(left), ast.unparse(right)
            texts += [f"int(({one}) / ({other}))"] * isinstance(operator, ast.FloorDiv)
            texts += [f"round(({one}) / ({other}))"] * isinstance(operator, ast.FloorDiv | ast.Div)
            texts += [f"abs({one}) % ({other})"] * isinstance(operator, ast.Mod)
            texts += [f"({one}) * ({other})"] * isinstance(operator, ast.Add)
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() as value):
            texts += [repr(other) for other in (0, -value, 10 * value, value // 2) if other != value]
        case ast.Constant(value=str() as value) if value:
            texts += [repr(other) for other in (value[:-1], value.swapcase(), value[::-1]) if other != value]
        case ast.Subscript(value=value, slice=ast.Slice(lower=lower, upper=upper, step=step)):
            yield from ([value] if step is not None else []) + [ast.Subscript(value, ast.Slice(lower, upper))]
            yield from (ast.Subscript(value, ast.Slice(None, upper, step)), ast.Subscript(value, ast.Slice(lower)))
        case ast.Subscript(value=value, slice=index):
            texts += [f"{ast.unparse(value)}[-({ast.unparse(index)}) - 1]"]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=arguments):
            texts += _calls_instead(node, name, arguments)
        case ast.ListComp() | ast.GeneratorExp():
            texts += [f"sorted(set({text}))", f"list({text})[:-1]"]
        case ast.Name(id=name, ctx=ast.Load()) if name in names:
            yield from (ast.Name(other) for other in names if other != name)
            texts += [each.format(name) for each in _ASSUMPTIONS]
    for each in texts:
        yield ast.parse(each, mode="eval").body


def _calls_instead(node: ast.Call, name: str, arguments: Sequence[ast.expr]) -> Iterator[str]:
    for other in _OTHERS.get(name, ()):
        function = other
        if isinstance(node.func, ast.Attribute):
            function = f"{ast.unparse(node.func.value)}.{other}"
        yield f"{function}({', '.join(map(ast.unparse, [*arguments, *node.keywords]))})"
    if name == "range":
        first = ast.unparse(arguments[-1] if len(arguments) < 3 else arguments[1])
        yield from (f"range(1, {first})", f"range({first}, 0, -1)", f"range(0, {first}, 2)")
    if name in _OF_ITERABLES and arguments:
        rest = "".join(f", {ast.unparse(each)}" for each in [*arguments[1:], *node.keywords])
        yield from (f"{name}({cut.format(ast.unparse(arguments[0]))}{rest})" for cut in _CUTS)
    if node.keywords:
        yield f"{ast.unparse(node.func)}({', '.join(map(ast.unparse, arguments))})"


def _statements_instead(node: object) -> Iterator[ast.AST]:
    match node:
        case ast.If(test=test, body=body, orelse=orelse):
            yield ast.If(ast.Constant(True), body, [])  # the condition is forgotten
            if orelse:
                yield ast.If(test, body, [])
        case ast.For(target=target, body=body, orelse=orelse, iter=source):
            for cut in _CUTS:
                yield ast.For(target, ast.parse(cut.format(ast.unparse(source)), mode="eval").body, body, orelse)
        case ast.AugAssign(target=target, value=value):
            yield ast.Assign([ast.parse(ast.unparse(target), mode="exec").body[0].value], value)  # type: ignore[attr-defined]


# Right programs

_HELPERS = {
    "sum": (
        "_total",
        "def _total(values, start=0):\n    values = list(values)\n    if len(values) < 2:\n"
        "        return start + values[0] if values else start\n    middle = len(values) // 2\n"
        "    return _total(values[middle:], _total(values[:middle], start))\n",
    ),
    "len": ("_size", "def _size(values):\n    count = 0\n    for _ in values:\n        count += 1\n    return count\n"),
    "sorted": (
        "_ordered",
        "def _ordered(values, key=None, reverse=False):\n    values = list(values)\n"
        "    values.sort(key=key, reverse=reverse)\n    return values\n",
    ),
    "abs": ("_distance", "def _distance(value):\n    if value < 0:\n        return -value\n    return +value\n"),
    "any": ("_one_of", "def _one_of(values):\n    return bool([1 for value in values if value])\n"),
    "all": ("_each_of", "def _each_of(values):\n    return not [1 for value in values if not value]\n"),
    "max": (
        "_largest",
        "def _largest(*values, **options):\n    if options:\n        return max(*values, **options)\n"
        "    values = list(values[0]) if len(values) == 1 else list(values)\n    best = values[0]\n"
        "    for value in values[1:]:\n        best = value if value > best else best\n    return best\n",
    ),
    "min": (
        "_least",
        "def _least(*values, **options):\n    if options:\n        return min(*values, **options)\n"
        "    values = list(values[0]) if len(values) == 1 else list(values)\n    return sorted(values)[0]\n",
    ),
}
"""Functions that a rewrite defines itself: by recursion, by a loop, by sorting."""
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq,
}  # fmt: skip


def rewrites(code: str, seed: int, most: int) -> list[str]:
    """At most `most` programs that compute the same as `code` and whose syntax differs from it and from each other."""
    rng, found, original = random.Random(seed), dict[str, None](), ast.unparse(ast.parse(code))
    for _ in range(4 * most):
        writer = _Rewriter(rng)
        tree = writer.visit(ast.parse(code))
        tree.body[:0] = [part for name in sorted(writer.helpers) for part in ast.parse(_HELPERS[name][1]).body]
        tree = ast.parse(ast.unparse(ast.fix_missing_locations(tree)))
        if rng.random() < 0.7:
            _rename(tree, rng.choice(("_", "2", "_value")))
        if (text := _compiled(tree)) is not None and text != original and len(found) < most:
            found.setdefault(text)
    return list(found)


def _rename(tree: ast.Module, suffix: str) -> None:
    """Local variables get other names. Names that a nested scope or a keyword may mean are left alone."""
    keywords = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword | ast.arg)}
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names = set(_variables(tree)) - keywords - defined
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names and not node.id.startswith("_"):
            node.id += suffix


class _Rewriter(ast.NodeTransformer):
    """Each kind of rewriting is on or off for a whole program, by `rng`; `helpers` are the functions it needs."""

    def __init__(self, rng: random.Random) -> None:
        self.helpers: set[str] = set()
        kinds = ("helpers", "index", "map", "mirror", "arithmetic", "branches", "ternary", "concatenation", "add")
        self.on = {kind for kind in kinds if rng.random() < 0.5}
        self.names = 0

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if "helpers" in self.on and isinstance(node.func, ast.Name) and node.func.id in _HELPERS:
            self.helpers.add(node.func.id)
            node.func = ast.Name(_HELPERS[node.func.id][0])
        return node

    def visit_For(self, node: ast.For) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        if "index" not in self.on or node.orelse:
            return node
        self.names += 1
        values, index = f"_values{self.names}", f"_index{self.names}"
        before = ast.parse(f"{values} = list({ast.unparse(node.iter)})\n{index} = 0").body
        loop = ast.parse(f"while {index} < len({values}):\n    x = {values}[{index}]\n    {index} += 1").body[0]
        assert isinstance(loop, ast.While) and isinstance(loop.body[0], ast.Assign)
        loop.body[0].targets = [node.target]
        loop.body += node.body
        return [*before, loop]

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        self.generic_visit(node)
        part = node.generators[0]
        if "map" not in self.on or len(node.generators) > 1 or not isinstance(part.target, ast.Name):
            return node
        name, source = part.target.id, ast.unparse(part.iter)
        for condition in part.ifs:
            source = f"filter(lambda {name}: {ast.unparse(condition)}, {source})"
        return ast.parse(f"list(map(lambda {name}: {ast.unparse(node.elt)}, {source}))", mode="eval").body

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if "mirror" in self.on and len(node.ops) == 1 and type(node.ops[0]) in _MIRRORED:
            return ast.Compare(node.comparators[0], [_MIRRORED[type(node.ops[0])]()], [node.left])
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        is_repeated = isinstance(node.op, ast.Mult) and ast.dump(node.left) == ast.dump(node.right)
        if "arithmetic" in self.on and is_repeated and isinstance(node.left, ast.Name):
            return ast.BinOp(node.left, ast.Pow(), ast.Constant(2))
        if "arithmetic" in self.on and isinstance(node.op, ast.Sub):
            return ast.BinOp(ast.UnaryOp(ast.USub(), node.right), ast.Add(), node.left) if _is_integer(node) else node
        if "arithmetic" in self.on and isinstance(node.op, ast.FloorDiv) and isinstance(node.right, ast.Constant):
            return ast.parse(f"divmod({ast.unparse(node.left)}, {ast.unparse(node.right)})[0]", mode="eval").body
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        self.generic_visit(node)
        if "add" not in self.on or not isinstance(node.target, ast.Name):
            return node
        return ast.Assign([node.target], ast.BinOp(ast.Name(node.target.id), node.op, node.value))

    def visit_If(self, node: ast.If) -> ast.stmt:
        self.generic_visit(node)
        if "branches" in self.on and node.orelse:
            return ast.If(ast.UnaryOp(ast.Not(), node.test), node.orelse, node.body)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        return ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.orelse, node.body) if "branches" in self.on else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        self.generic_visit(node)
        if "ternary" in self.on and len(node.body) > 1:
            guard, last = node.body[-2:]  # an early return and the other one become one expression
            if (
                isinstance(guard, ast.If) and isinstance(last, ast.Return) and last.value and not guard.orelse
                and isinstance(guard.body[0], ast.Return) and guard.body[0].value
            ):  # fmt: skip
                node.body[-2:] = [ast.Return(ast.IfExp(guard.test, guard.body[0].value, last.value))]
        elif "ternary" not in self.on and node.body and isinstance(node.body[-1], ast.Return):
            last = node.body[-1]
            if isinstance(value := last.value, ast.IfExp):  # and the other way round
                node.body[-1:] = [ast.If(value.test, [ast.Return(value.body)], []), ast.Return(value.orelse)]
            elif isinstance(value, ast.Compare | ast.BoolOp | ast.BinOp | ast.Call):
                node.body[-1:] = [ast.Assign([ast.Name("_found")], value), ast.Return(ast.Name("_found"))]
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        parts = [_part(value) for value in node.values]
        if "concatenation" not in self.on or None in parts or not parts:
            return node
        return ast.parse(" + ".join(map(str, parts)), mode="eval").body


def _is_integer(node: ast.BinOp) -> bool:
    """Whether a difference is obviously one of integers, not of sets."""
    return any(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in (node.left, node.right))


def _part(value: ast.expr) -> str | None:
    """A part of an f-string as an expression of a string; None where it has a format."""
    if isinstance(value, ast.FormattedValue):
        return f"str({ast.unparse(value.value)})" if value.format_spec is None and value.conversion == -1 else None
    return ast.unparse(value)
