"""`coderl` commands that are killed: how they are started, and what is asked of their processes."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import IO, Protocol


class Process(Protocol):
    """The part of `subprocess.Popen` that is used."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


Launch = Callable[[dict[str, str], Sequence[str], IO[str]], Process]
"""Starts `coderl WORDS` in an environment and in a session of its own. Output and errors go to the file."""


def launch(environment: dict[str, str], words: Sequence[str], output: IO[str]) -> "subprocess.Popen[str]":
    """A `Launch` in a new interpreter."""
    command = [sys.executable, "-m", "coderl_tasks.cli", *words]
    return subprocess.Popen(
        command, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
