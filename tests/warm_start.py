"""Commands in processes of their own, forked from one that has imported the libraries: most of the CPU time that a
short command takes. tests/cli/test_entry.py starts commands without it."""

import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

from coderl_tasks.paths import PROJECT_ROOT

FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(["tests.warm_modules"])
TIMEOUT_S = 600.0


def coderl(arguments: list[str]) -> None:
    """`coderl ARGUMENTS`."""
    from coderl_tasks.cli import command

    command(arguments)


def prefect(arguments: list[str]) -> None:
    """`prefect ARGUMENTS`."""
    sys.argv = ["prefect", *arguments]
    from prefect.cli import app

    app()


def python(arguments: list[str]) -> None:
    """`python -c CODE`."""
    option, code = arguments
    assert option == "-c"
    exec(code, {"__name__": "__main__"})


class Command:
    """`main(ARGUMENTS)`, which is `coderl ARGUMENTS` unless given, under way in a session of its own, with the part of
    `subprocess.Popen` that tests use. Output goes to files, so that nobody has to read while it runs. `stderr` is
    apart, or with `subprocess.STDOUT` part of the output."""

    def __init__(
        self,
        environment: dict[str, str],
        *arguments: object,
        main: Callable[[list[str]], object] = coderl,
        stderr: int = subprocess.PIPE,
        folder: Path = PROJECT_ROOT,
        output: IO[str] | None = None,
    ) -> None:
        """`output` is the file or pipe that the output goes to, and that the caller reads; a file of its own unless
        given. `main` is a function of a module."""
        self.arguments = [str(word) for word in arguments]
        self._output = tempfile.TemporaryFile("a+") if output is None else None  # noqa: SIM115
        self._errors = None if stderr == subprocess.STDOUT else tempfile.TemporaryFile("a+")  # noqa: SIM115
        written = output or self._output
        assert written is not None
        descriptors = [DupFd(written.fileno()), DupFd((self._errors or written).fileno())]
        process = FORK_SERVER.Process(target=_run, args=(environment, main, self.arguments, descriptors, str(folder)))
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
        """Output and errors in files of its own, once it has ended."""
        self._process.join(timeout)
        if self.returncode is None:
            self.kill()
            raise TimeoutError(f"coderl {' '.join(self.arguments)} has not ended after {timeout:.0f} s")
        return _text_of(self._output), _text_of(self._errors)


def launch(environment: dict[str, str], words: Sequence[str], output: IO[str]) -> Command:
    """What `started_commands.launch` does, without starting an interpreter."""
    return Command(environment, *words, stderr=subprocess.STDOUT, output=output)


def _text_of(file: IO[str] | None) -> str:
    if file is None:
        return ""
    with file:
        file.seek(0)
        return file.read()


def run(environment: dict[str, str], *arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """A `Command`, run to its end."""
    command = Command(environment, *arguments, **options)
    output, errors = command.communicate()
    return subprocess.CompletedProcess(command.arguments, command.returncode or 0, output, errors)


def _run(
    environment: dict[str, str],
    main: Callable[[list[str]], object],
    arguments: list[str],
    descriptors: list[Any],
    folder: str,
) -> None:
    """In the forked process: become what a new interpreter starts as, and run `main`."""
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

    refresh_global_settings_context()
    main(arguments)
