"""`coderl ARGUMENTS` in a process of its own, forked from one that has imported the libraries: most of the CPU time
that a short command takes. tests/cli/test_entry.py starts commands without it."""

import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

from coderl_tasks.paths import PROJECT_ROOT

FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(["tests.warm_modules"])
TIMEOUT_S = 600.0


class Command:
    """`coderl ARGUMENTS` under way in a session of its own, with the part of `subprocess.Popen` that tests use. Output
    goes to files, so that nobody has to read while it runs. `stderr` is apart, or with `subprocess.STDOUT` part of the
    output."""

    def __init__(
        self,
        environment: dict[str, str],
        *arguments: object,
        stderr: int = subprocess.PIPE,
        folder: Path = PROJECT_ROOT,
        output: IO[str] | None = None,
    ) -> None:
        """`output` is the file that the output goes to, one of its own unless given."""
        self.arguments = [str(word) for word in arguments]
        own = (output is None) + (stderr != subprocess.STDOUT)
        self._files = [output] if output is not None else []
        self._files += [tempfile.TemporaryFile("a+") for _ in range(own)]  # noqa: SIM115
        descriptors = [DupFd(self._files[0].fileno()), DupFd(self._files[-1].fileno())]
        process = FORK_SERVER.Process(target=_run, args=(environment, self.arguments, descriptors, str(folder)))
        process.start()
        weakref.finalize(self, process.kill)  # one that a failed test left behind ends with this process
        self._process = process
        assert process.pid is not None
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended; `subprocess.TimeoutExpired` if it has not after `timeout` seconds."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.arguments, timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float = TIMEOUT_S) -> tuple[str, str]:
        """Output and errors, once it has ended."""
        self._process.join(timeout)
        if self.returncode is None:
            self.kill()
            raise TimeoutError(f"coderl {' '.join(self.arguments)} has not ended after {timeout:.0f} s")
        texts = []
        for file in self._files:
            with file:
                file.seek(0)
                texts.append(file.read())
        return texts[0], texts[1] if len(texts) > 1 else ""


def launch(environment: dict[str, str], words: Sequence[str], output: IO[str]) -> Command:
    """What `started_commands.launch` does, without starting an interpreter."""
    return Command(environment, *words, stderr=subprocess.STDOUT, output=output)


def run(environment: dict[str, str], *arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """`coderl ARGUMENTS`, run to its end."""
    command = Command(environment, *arguments, **options)
    output, errors = command.communicate()
    return subprocess.CompletedProcess(command.arguments, command.returncode or 0, output, errors)


def _run(environment: dict[str, str], arguments: list[str], descriptors: list[Any], folder: str) -> None:
    """In the forked process: become what `python -m coderl_tasks.cli` starts as, and run it."""
    for number, descriptor in enumerate(descriptors, start=1):
        copy = descriptor.detach()
        os.dup2(copy, number)
        os.close(copy)
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8")
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", write_through=True)
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment | {"PYTHONUNBUFFERED": "1"})
    from prefect.context import refresh_global_settings_context

    from coderl_tasks.cli import command

    refresh_global_settings_context()
    command(arguments)
