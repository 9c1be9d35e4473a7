"""A reward of the user's own: their compute_reward, run in the sandbox on many completions per request.

What raises, takes too long, ends its process or returns no finite number is a reward error: 0.0, with the traceback.
What the sandbox could not do is an InfraError. Ground truths are the user's own and go into the sandbox with their
function, unlike the expected outputs of code (see `judge`).
"""

import ast
import hashlib
import json
import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.judge import driver_fault
from coderl_tasks.grading.server_link import RunRequest

_RUNNER = (Path(__file__).parent / "payload" / "reward_runner.py").read_text()
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


@dataclass(frozen=True)
class RewardFunction:
    """`source` of a Python file with `compute_reward(completion, ground_truth) -> float`; `file` is its name."""

    file: str
    source: str

    @classmethod
    def read(cls, file: str) -> "RewardFunction":
        """Read `file` and check, without running it, that it can define compute_reward. Raises ConfigError if not."""
        try:
            source = Path(file).read_text()
            tree = ast.parse(source)
        except OSError as error:
            raise ConfigError(f"reward_file={file} cannot be read: {error.strerror}") from error
        except SyntaxError as error:
            raise ConfigError(f"reward_file={file}, line {error.lineno}: {error.msg}") from error
        except ValueError as error:
            raise ConfigError(f"reward_file={file} is not Python in UTF-8: {error}") from error
        defined = [node for node in _of_the_module(tree) if getattr(node, "name", None) == FUNCTION]
        # An assignment or an import may define it too, which only running the file in the sandbox can show.
        if not defined and FUNCTION not in source and "import *" not in source:
            raise ConfigError(f"reward_file={file} defines no function {FUNCTION}({', '.join(ARGUMENTS)})")
        for function in defined:
            if isinstance(function, ast.AsyncFunctionDef):
                raise ConfigError(f"reward_file={file}, line {function.lineno}: {FUNCTION} must not be async")
            if isinstance(function, ast.FunctionDef) and not _takes_two(function.args):
                wanted = f"{FUNCTION} has to take two arguments, ({', '.join(ARGUMENTS)})"
                raise ConfigError(f"reward_file={file}, line {function.lineno}: {wanted}")
        return cls(file, source)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()

    async def require_usable(self, client: SandboxClient) -> None:
        """Load the file in the sandbox; ConfigError with its traceback if that fails, InfraError for an outage."""
        report = await self._run(client, "", (), 1.0)
        if "fault" in report or "results" not in report:
            why = report.get("fault") or f"nothing came back after {_STARTING_S:g} s"
            raise ConfigError(f"reward_file={self.file} cannot be used in the sandbox:\n{why}")

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
        report = await self._run(client, ground_truth, texts, timeout_s)
        if (rewards := _reported(report, len(texts))) is not None:
            return rewards
        if len(texts) > 1:  # one of them has taken the runner with it: alone, each answers for itself
            return [(await self._together(client, ground_truth, [text], timeout_s))[0] for text in texts]
        return [Reward(0.0, str(report.get("fault") or "compute_reward killed or muted the process that runs it"))]

    async def _run(
        self, client: SandboxClient, ground_truth: str, texts: Sequence[str], timeout_s: float
    ) -> dict[str, Any]:
        """Run the function on `texts` in one request. Returns the runner's report; empty if the function prevented one.
        A faulty server is quarantined and another one asked. Raises InfraError if there is no other one."""
        while True:
            request_id, wall_s = secrets.token_hex(8), _wall_s(timeout_s)
            texts_given = {"ground_truth": ground_truth, "completions": list(texts)}
            limits = {"cpu_limit_s": timeout_s, "wall_limit_s": wall_s}
            request = json.dumps({"id": request_id, **texts_given, **limits}).encode()
            files = {"reward.py": self.source.encode(), "request.json": request}
            takes_s = _STARTING_S + len(texts) * wall_s
            result = await client.run_code(RunRequest(_RUNNER, files, ("results.json",), takes_s, _MEMORY_MB))
            report = result.report()
            if report.get("id") == request_id:
                return report
            # A missing report is the function's fault only if a known program works on the same server.
            fault = await driver_fault(client, result.server)
            if fault is None and not report:
                return {}
            fault = fault or f"the sandbox at {result.server} answered with the result of another request"
            if not client.quarantine(result.server, fault):
                raise InfraError(fault)


def _wall_s(timeout_s: float) -> float:
    """Wall-clock seconds that a completion may take: more than its CPU time, since others share the machine."""
    return 2 * timeout_s + 5


def _of_the_module(node: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when the module is loaded, under `if` and `try` too; none inside functions or classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _of_the_module(child)


def _takes_two(arguments: ast.arguments) -> bool:
    positional = len(arguments.posonlyargs) + len(arguments.args)
    required = positional - len(arguments.defaults)
    keyword_only = sum(default is None for default in arguments.kw_defaults)
    return required <= 2 and (positional >= 2 or arguments.vararg is not None) and not keyword_only


def _reported(report: dict[str, Any], count: int) -> list[Reward] | None:
    """The rewards in a report; None for anything that is not what the runner writes."""
    results = report.get("results")
    if not isinstance(results, list) or len(results) != count:
        return None
    rewards = []
    for result in results:
        value, error = (result.get("reward"), result.get("error")) if isinstance(result, dict) else (None, None)
        if isinstance(error, str):
            rewards.append(Reward(0.0, error))
        elif isinstance(value, int | float) and abs(value) < math.inf:
            rewards.append(Reward(float(value)))
        else:
            return None
    return rewards
