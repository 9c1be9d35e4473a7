"""A Python function as the source of one file, with what it uses: so it is sent to the sandbox.

What it uses of installed packages is imported there. Its constants, and functions and classes of the user's own, go
into the file. Everything else is refused: the reward would be another one there, or an error.
"""

import ast
import builtins
import importlib.util
import inspect
import re
import symtable
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from coderl_tasks.errors import ConfigError


def file_of(function: Callable[..., Any], *, name: str, arguments: tuple[str, ...]) -> str:
    """The source of a file that defines `function` under `name`. Raises ConfigError, one line, for one that cannot be
    sent, or that does not take `arguments`."""
    _require_plain(function)
    shown = f"{name}({', '.join(arguments)})"
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(f"{_label(function)} must be a plain function, neither async nor a generator: {shown}")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ConfigError(f"{_label(function)} has to take the arguments of {shown}: {error}") from None
    parts: dict[str, tuple[Any, str]] = {}
    _add(function.__name__, function, function, parts)
    texts = [text for _, text in parts.values()]
    if function.__name__ != name:
        texts.append(f"{name} = {function.__name__}\n")
    # Annotations are not evaluated: what they name need not be there.
    return "\n".join(["from __future__ import annotations\n", *texts])


def _label(function: Callable[..., Any]) -> str:
    return f"the function {getattr(function, '__qualname__', repr(function))}"


def _refused(what: str, why: str) -> ConfigError:
    return ConfigError(f"{what} cannot be sent to the sandbox: {why}; or write it into a file: reward_file=FILE.py")


def _require_plain(function: Any) -> None:
    label = _label(function)
    if inspect.ismethod(function):
        raise _refused(label, f"it is a method of a {type(function.__self__).__name__}: define a function")
    if not inspect.isfunction(function):
        raise _refused(label, f"it is a {type(function).__name__}, without source: define a function with def")
    if function.__name__ == "<lambda>":
        raise _refused(label, "it is a lambda: define it with def")
    if function.__closure__:
        names = ", ".join(function.__code__.co_freevars)
        raise _refused(label, f"it uses {names} of the function around it: pass no closure, or make these globals")


def _add(name: str, value: Any, user: Any, parts: dict[str, tuple[Any, str]]) -> None:
    """Add the text that defines `name` as `value`, used by `user`, to `parts`, after what it needs itself."""
    if name in parts:
        if parts[name][0] is not value:
            raise _refused(_label(user), f"{name} means two things in what it uses: rename one")
        return
    parts[name] = (value, "")  # a function may use itself
    text = _text(name, value, user, parts)
    del parts[name]
    parts[name] = (value, text)


def _text(name: str, value: Any, user: Any, parts: dict[str, tuple[Any, str]]) -> str:
    """Source that binds `name` to `value`: an import, a literal or a definition, whose own needs go to `parts`. Raises
    ConfigError, about `user`, the function that uses it, if there is none."""
    if isinstance(value, ModuleType):
        if not _is_installed(value.__name__):
            why = f"its module {value.__name__} is not an installed package: import the functions that it uses by name"
            raise _refused(_label(user), why)
        return f"import {value.__name__} as {name}\n"
    if isinstance(value, re.Pattern):
        return f"import re\n{name} = re.compile({value.pattern!r}, {value.flags})\n"
    module, own_name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    is_found = isinstance(own_name, str) and getattr(sys.modules.get(str(module)), own_name, None) is value
    if is_found and _is_installed(str(module)):
        return f"from {module} import {own_name} as {name}\n"
    if inspect.isclass(value) or callable(value):
        if not inspect.isclass(value):
            _require_plain(value)
        if value.__name__ != name:
            _add(value.__name__, value, user, parts)
            return f"{name} = {value.__name__}\n"
        return _definition(value, parts)
    if not _is_literal(value):
        raise _refused(_label(user), f"its global {name} is a {type(value).__name__}: make it inside the function")
    return f"{name} = {value!r}\n"


def _is_literal(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, RecursionError):
        return False


def _definition(value: Any, parts: dict[str, tuple[Any, str]]) -> str:
    """The source of a function or class. Adds the globals that it uses to `parts`. Raises ConfigError for source that
    cannot be read, and for a global that is undefined or cannot be sent."""
    try:
        source = textwrap.dedent(inspect.getsource(value))
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError):
        raise _refused(_label(value), "its source cannot be read, as of what was made at a prompt or by exec") from None
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    known = value.__globals__ if inspect.isfunction(value) else vars(sys.modules[value.__module__])
    for name in sorted(set(_globals(tree)) - {value.__name__}):
        if name in known:
            _add(name, known[name], value, parts)
        elif not hasattr(builtins, name):
            raise _refused(_label(value), f"it uses {name}, which is not defined: define it, or import it, first")
        # `import xml.etree.ElementTree` makes a global of xml alone.
        if isinstance(known.get(name), ModuleType) and known[name].__name__ == name:
            for module in sorted(used & sys.modules.keys()):
                if module.startswith(f"{name}."):
                    parts[module] = (sys.modules[module], f"import {module}\n")
    return source


def _globals(tree: ast.Module) -> Iterator[str]:
    """The names that a definition reads of its module, but for those in annotations of functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    tables = [symtable.symtable(ast.unparse(tree), "<reward>", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            is_free = symbol.is_global() if table.get_type() != "module" else not symbol.is_assigned()
            if is_free and symbol.is_referenced() and not symbol.get_name().startswith("__"):
                yield symbol.get_name()


def _is_installed(module: str) -> bool:
    """Whether a module is Python's own or of an installed package, and not the user's own file."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # __main__ has none
        return False
    places = [*(spec.submodule_search_locations or ()), spec.origin] if spec is not None else []
    folders = [Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")]
    return any(place and Path(place).resolve().is_relative_to(folder) for place in places for folder in folders)
