"""A reward of the user's own: their compute_reward, run in the sandbox on many completions per request.

What raises, takes too long, ends its process or returns no finite number is a reward error: 0.0, with the traceback.
What the sandbox could not do is an InfraError. Ground truths are the user's own and go into the sandbox with their
function, unlike the expected outputs of code (see `judge`).

A function that was passed from Python is sent as the source of one file (`file_of`). What it uses of installed packages
is imported there. Its constants, and functions and classes of the user's own, go into the file. Everything else is
refused: the reward would be another one there, or an error.
"""

import ast
import builtins
import hashlib
import importlib.util
import inspect
import math
import re
import symtable
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from coderl_tasks.errors import ConfigError
from coderl_tasks.grading.client import RunRequest, SandboxClient
from coderl_tasks.grading.judge import driver_fault
from coderl_tasks.grading.judge_programs import own_report
from coderl_tasks.sandbox_programs import REWARD_RUNNER

FUNCTION = "compute_reward"
ARGUMENTS = ("completion", "ground_truth")
_LONGEST_REQUEST_S = 600.0
_STARTING_S = 30.0  # to import what the function needs
_MEMORY_MB = 4096  # address space: numpy and torch map much that they do not use


@dataclass(frozen=True, slots=True)
class Reward:
    """What compute_reward said of one completion: `value`, or 0.0 and the `error`, a traceback or a line."""

    value: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class ReplyError:
    """What respond did wrong: a traceback or a line."""

    text: str


ReplyOrError = str | ReplyError | None


@dataclass(frozen=True)
class RewardFunction:
    """`source` of a Python file with `compute_reward(completion, ground_truth) -> float`; `file` is its name. With
    several turns it also defines `respond(completion, ground_truth, turn) -> str | None`."""

    file: str
    source: str

    @classmethod
    def read(cls, file: str) -> "RewardFunction":
        """Read `file` and check, without running it, that it can define compute_reward. Raises ConfigError if not."""
        try:
            source = Path(file).read_text("utf-8-sig")  # some editors begin a file with a mark
            tree = ast.parse(source)
        except OSError as error:
            raise ConfigError(f"reward_file={file} cannot be read: {error.strerror}") from error
        except SyntaxError as error:
            raise ConfigError(f"reward_file={file}, line {error.lineno}: {error.msg}") from error
        except ValueError as error:  # other bytes than UTF-8, or a null byte
            raise ConfigError(f"reward_file={file} is not Python in UTF-8: {error}") from error
        shown = f"({', '.join(ARGUMENTS)})"
        definitions = [node for node in _module_statements(tree) if getattr(node, "name", None) == FUNCTION]
        # An assignment or an import may define it too, which only running the file in the sandbox can show.
        if not definitions and FUNCTION not in source and "import *" not in source:
            raise ConfigError(f"reward_file={file} defines no function {FUNCTION}{shown}")
        for function in definitions:
            if isinstance(function, ast.AsyncFunctionDef):
                raise ConfigError(f"reward_file={file}, line {function.lineno}: {FUNCTION} must not be async")
            # A class of this name passes: only calling it shows what it takes.
            if isinstance(function, ast.FunctionDef):
                taken = function.args
                n_positional = len(taken.posonlyargs) + len(taken.args)
                n_required = n_positional - len(taken.defaults)
                may_get_two = n_required <= 2 and (n_positional >= 2 or taken.vararg is not None)
                if not may_get_two or None in taken.kw_defaults:  # None: a keyword argument without a default
                    wanted = f"{FUNCTION} has to take two arguments, {shown}"
                    raise ConfigError(f"reward_file={file}, line {function.lineno}: {wanted}")
        return cls(file, source)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()

    async def require_usable(self, client: SandboxClient, *, replies: bool = False) -> None:
        """Load the file in the sandbox, with `replies` for its function respond. Raises ConfigError with its traceback
        if that fails, InfraError for an outage."""
        report = await self._run(client, "", (), 1.0, turn=0 if replies else None)
        if "fault" in report or "results" not in report:
            why = report.get("fault") or f"nothing came back after {_STARTING_S:g} s"
            if replies:
                raise ConfigError(f"max_turns: reward_file={self.file} says nothing between turns:\n{why}")
            raise ConfigError(f"reward_file={self.file} cannot be used in the sandbox:\n{why}")

    async def replies(
        self, client: SandboxClient, ground_truth: str, completions: Sequence[str], turn: int, timeout_s: float
    ) -> list[ReplyOrError]:
        """What the function respond(completion, ground_truth, turn) says to each completion: a text, None where it has
        no reply, or its error. Otherwise as `rewards`."""
        found: dict[str, ReplyOrError] = {}
        # One by one: a few are asked for at a time, and one that kills the runner is alone.
        for text in dict.fromkeys(completions):
            report = await self._run(client, ground_truth, [text], timeout_s, turn)
            match report.get("results"):
                case [{"reply": str() | None as reply}]:
                    found[text] = reply
                case [{"error": str() as error}]:
                    found[text] = ReplyError(error)
                case _:
                    why = report.get("fault") or "respond killed or muted the process that runs it"
                    found[text] = ReplyError(str(why))
        return [found[text] for text in completions]

    async def rewards(
        self, client: SandboxClient, ground_truth: str, completions: Sequence[str], timeout_s: float
    ) -> list[Reward]:
        """The rewards of completions that share a ground truth, in order; `timeout_s` is CPU seconds per completion.
        Raises InfraError where the sandbox failed."""
        # The same text is worth the same, and short answers come many times in a group.
        distinct = list(dict.fromkeys(completions))
        size = max(1, int(_LONGEST_REQUEST_S / _wall_s(timeout_s)))
        found: dict[str, Reward] = {}
        for first in range(0, len(distinct), size):
            texts = distinct[first : first + size]
            found |= zip(texts, await self._together(client, ground_truth, texts, timeout_s), strict=True)
        return [found[text] for text in completions]

    async def _together(
        self, client: SandboxClient, ground_truth: str, texts: Sequence[str], timeout_s: float
    ) -> list[Reward]:
        report = await self._run(client, ground_truth, texts, timeout_s, None)
        results, rewards = report.get("results"), []
        if not isinstance(results, list) or len(results) != len(texts):
            results = []  # nothing that the runner writes
        for result in results:
            match result:
                case {"error": str() as error}:
                    rewards.append(Reward(0.0, error))
                case {"reward": int() | float() as value} if abs(value) < math.inf:
                    rewards.append(Reward(float(value)))
        if len(rewards) == len(texts):  # all entries are what the runner writes
            return rewards
        if len(texts) > 1:  # one of them has taken the runner with it: alone, each answers for itself
            return [(await self._together(client, ground_truth, [text], timeout_s))[0] for text in texts]
        return [Reward(0.0, str(report.get("fault") or "compute_reward killed or muted the process that runs it"))]

    async def _run(
        self, client: SandboxClient, ground_truth: str, texts: Sequence[str], timeout_s: float, turn: int | None
    ) -> dict[str, Any]:
        """Run the function on `texts` in one request, or with `turn` the function respond. Returns the runner's report;
        empty if the function prevented one. Raises InfraError as `own_report`."""
        wall_s = _wall_s(timeout_s)
        arguments = {"ground_truth": ground_truth, "completions": list(texts), "turn": turn}
        request = {**arguments, "cpu_limit_s": timeout_s, "wall_limit_s": wall_s}
        run_timeout_s = _STARTING_S + len(texts) * wall_s  # the runner takes one text after the other
        job = RunRequest(REWARD_RUNNER, {"reward.py": self.source.encode()}, (), run_timeout_s, _MEMORY_MB)
        return await own_report(client, driver_fault, job, request)


def _wall_s(timeout_s: float) -> float:
    """Wall-clock seconds that a completion may take: more than its CPU time, since others share the machine."""
    return 2 * timeout_s + 5


def _module_statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when the module is loaded, under `if` and `try` too; none inside functions or classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _module_statements(child)


def file_of(function: Callable[..., Any]) -> str:
    """The source of a file that defines `function` as compute_reward. Raises ConfigError, one line, for a function that
    cannot be sent, or that does not take ARGUMENTS."""
    _require_def_without_closure(function)
    shown = f"{FUNCTION}({', '.join(ARGUMENTS)})"
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(f"{_label(function)} must be a plain function, neither async nor a generator: {shown}")
    try:
        inspect.signature(function).bind(*ARGUMENTS)
    except TypeError as error:
        raise ConfigError(f"{_label(function)} has to take the arguments of {shown}: {error}") from None
    parts: dict[str, tuple[Any, str]] = {}
    _add_part(function.__name__, function, function, parts)
    texts = [text for _, text in parts.values()]
    if function.__name__ != FUNCTION:
        texts.append(f"{FUNCTION} = {function.__name__}\n")
    # Annotations are not evaluated: what they name need not be there.
    return "\n".join(["from __future__ import annotations\n", *texts])


def _label(function: Callable[..., Any]) -> str:
    return f"the function {getattr(function, '__qualname__', repr(function))}"


def _refused(what: str, why: str) -> ConfigError:
    return ConfigError(f"{what} cannot be sent to the sandbox: {why}; or write it into a file: reward_file=FILE.py")


def _require_def_without_closure(function: Any) -> None:
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


def _add_part(name: str, value: Any, user: Any, parts: dict[str, tuple[Any, str]]) -> None:
    """Add the text that defines `name` as `value`, used by `user`, to `parts`, after what it needs itself."""
    if name in parts:
        if parts[name][0] is not value:
            raise _refused(_label(user), f"{name} means two things in what it uses: rename one")
        return
    parts[name] = (value, "")  # a function may use itself
    text = _binding_source(name, value, user, parts)
    del parts[name]
    parts[name] = (value, text)


def _binding_source(name: str, value: Any, user: Any, parts: dict[str, tuple[Any, str]]) -> str:
    """Source that binds the global `name` to `value` in the sandbox: an import, a literal or a definition. The sandbox
    has installed packages, and nothing of the user's own modules: what these define is sent as its own source, and the
    globals that it uses in turn are added to `parts` (by name, the value and its source). Raises ConfigError, about
    `user`, the function that uses it, if no source can be made."""
    if isinstance(value, ModuleType):
        if not _is_installed(value.__name__):
            why = f"its module {value.__name__} is not an installed package: import the functions that it uses by name"
            raise _refused(_label(user), why)
        return f"import {value.__name__} as {name}\n"
    if isinstance(value, re.Pattern):  # the one value that is no literal and yet often a global
        return f"import re\n{name} = re.compile({value.pattern!r}, {value.flags})\n"
    module, own_name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    is_importable = isinstance(own_name, str) and getattr(sys.modules.get(str(module)), own_name, None) is value
    if is_importable and _is_installed(str(module)):
        return f"from {module} import {own_name} as {name}\n"
    if inspect.isclass(value) or callable(value):
        if not inspect.isclass(value):
            _require_def_without_closure(value)
        if value.__name__ != name:  # imported or assigned under another name than its definition has
            _add_part(value.__name__, value, user, parts)
            return f"{name} = {value.__name__}\n"
        return _definition_source(value, parts)
    try:
        is_literal = bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, RecursionError):
        is_literal = False
    if not is_literal:
        raise _refused(_label(user), f"its global {name} is a {type(value).__name__}: make it inside the function")
    return f"{name} = {value!r}\n"


def _definition_source(value: Any, parts: dict[str, tuple[Any, str]]) -> str:
    """The source of a function or class. Adds the globals that it uses to `parts`. Raises ConfigError for source that
    cannot be read, and for a global that is undefined or cannot be sent."""
    try:
        source = textwrap.dedent(inspect.getsource(value))
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError):
        raise _refused(_label(value), "its source cannot be read, as of what was made at a prompt or by exec") from None
    dotted_names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    module_globals = value.__globals__ if inspect.isfunction(value) else vars(sys.modules[value.__module__])
    for name in sorted(set(_global_names(tree)) - {value.__name__}):  # it may use itself
        if name in module_globals:
            _add_part(name, module_globals[name], value, parts)
        elif not hasattr(builtins, name):
            raise _refused(_label(value), f"it uses {name}, which is not defined: define it, or import it, first")
        # `import xml.etree.ElementTree` makes a global of xml alone: add the modules below it that the source names.
        if isinstance(module_globals.get(name), ModuleType) and module_globals[name].__name__ == name:
            for module in sorted(dotted_names & sys.modules.keys()):
                if module.startswith(f"{name}."):
                    parts[module] = (sys.modules[module], f"import {module}\n")
    return source


def _global_names(tree: ast.Module) -> Iterator[str]:
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
