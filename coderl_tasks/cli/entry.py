"""The `coderl` command. Exit codes: 0 done, 1 failed, 2 bad arguments, configuration or data, 3 a cap on cost is
reached, 130 interrupted (Ctrl-C), 143 terminated (SIGTERM). Only a bug shows a traceback."""

import atexit
import contextlib
import errno
import io
import logging
import os
import resource
import select
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import version
from typing import NoReturn

from coderl_tasks.cli.options import SUBCOMMANDS, run_subcommand
from coderl_tasks.errors import CoderlError, ConfigError
from coderl_tasks.paths import shown
from coderl_tasks.runtime.lean_start import collect_less_often, leave_out_pytorch

FLOWS = {
    "curate": "profile the base model on problems and keep a mixed-difficulty pool",
    "train": "GRPO steps on a pool; log_path=RUN resumes one",
    "evaluate": "Pass@1 of a checkpoint on the test splits",
    "pipeline": "curate, train, evaluate in a row",
}
OPEN_FILES, FEWEST_OPEN_FILES = 4096, 512
"""Connections, pipes and shared libraries: a run on the embedded servers has some 150 open."""
INTERRUPTED = 130  # 128 + SIGINT, as shells count it
FREE_SPACE = "free some space and run the same command again: what is recorded stays"
NOT_ALLOWED = "name another place (log_path, CODERL_HOME, --out), or get the right to use this one"
OS_HINTS = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), FREE_SPACE)
OS_HINTS |= dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), NOT_ALLOWED)


def usage() -> str:
    flows = [f"  {name:<9} {summary}" for name, summary in FLOWS.items()]
    others = [f"  {name:<9} {subcommand.summary}" for name, subcommand in SUBCOMMANDS.items()]
    head = "usage: coderl COMMAND ...      (coderl COMMAND --help says more; coderl --version)"
    return "\n".join([head, "", *flows, "", *others])


def command(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs `main` as the whole process, then ends the process with `main`'s exit code, or 1 after a traceback.

    The exit handlers run, but the interpreter is not finalized. Before Python 3.14, finalization unwinds daemon threads
    in native code by pthread_exit, which may abort with exit code 134: the Tinker SDK always has such a thread. It also
    waits for Prefect's threads, which try for minutes to deliver logs to a server that is gone.
    """
    code = CoderlError.exit_code
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may hold bytes that are not text

    def leave() -> None:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the reader of a pipe has gone
                stream.flush()
        os._exit(code)

    atexit.register(leave)  # before a command imports libraries: exit handlers run in reverse order, so it runs last
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] != ["serve"]:  # servers hold few, large objects
        collect_less_often()
    if words and words[0] in FLOWS:
        leave_out_pytorch()
    try:
        code = main(words)
    except SystemExit as leaving:  # argparse's --help
        code = leaving.code if isinstance(leaving.code, int) else 0
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()  # ends with `leave`
    raise AssertionError("leave() does not return")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line `arguments` and returns the exit code. Expected errors are printed, not raised."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name, rest = (words[0], words[1:]) if words else ("", [])
    try:
        if name in ("", "-h", "--help", "help"):
            print(usage())
            return 0 if words else ConfigError.exit_code
        if words == ["--version"]:
            print(f"coderl {version('coderl')}")
            return 0
        for word in words:
            if shown(word) != word:
                raise ConfigError(f"{shown(word)} is not UTF-8, and such a name cannot be used: rename it")
        require_open_files()
        if name in FLOWS:
            return _flow(name, rest)
        if name in SUBCOMMANDS:
            return run_subcommand(name, rest)
        near = ["report RUN RUN"] if name == "compare" else get_close_matches(name, [*FLOWS, *SUBCOMMANDS], 2)
        question = f": did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(f"unknown command {name!r}{question} (coderl --help lists them)")
    except CoderlError as error:
        return _fail(name, error, error.exit_code)
    except BrokenPipeError as error:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if not any(event & select.POLLERR for _, event in poll.poll(0)):  # stdout has a reader: another pipe broke
            return _fail(name, _explain(error), CoderlError.exit_code)
        return CoderlError.exit_code  # `coderl ... | head` ended: no message
    except OSError as error:  # no space left, permission denied, ...
        return _fail(name, _explain(error), CoderlError.exit_code)
    except KeyboardInterrupt:
        return _fail(name, "interrupted", INTERRUPTED)


def require_open_files() -> None:
    """Raises the limit of open files to what a run may take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if allowed < FEWEST_OPEN_FILES:
        few = f"a process may have {allowed} files open here, and coderl needs {FEWEST_OPEN_FILES}"
        raise ConfigError(f"{few}: raise the limit (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _explain(error: OSError) -> str:
    what = " ".join((error.strerror or str(error)).split()) or type(error).__name__
    where = f": {error.filename}" if error.filename else ""
    hint = OS_HINTS.get(error.errno or 0)
    return f"{what}{where}{f': {hint}' if hint else ''}"


def _fail(command: str, why: object, code: int) -> int:
    from coderl_tasks.untrusted_text import printable_lines  # which imports polars; ids of data sets stand in errors

    print(f"coderl {command}: {printable_lines(str(why))}", file=sys.stderr)
    return code


def _flow(name: str, words: list[str]) -> int:
    from coderl_tasks.cli.arguments import FLOW_SETTINGS, parse_key_values, settings_help
    from coderl_tasks.settings import parse_settings

    model = FLOW_SETTINGS[name]
    if asked := next((place for place, word in enumerate(words, 1) if word in ("--help", "-h")), 0):
        print(settings_help(name, model, next((word for word in words[asked:] if "=" not in word), None)))
        return 0
    settings = parse_settings(model, parse_key_values(words, model))
    from coderl_tasks.services import check_environment

    check_environment()  # before seconds of imports
    from coderl_tasks.cli.launch import launch

    launch(name, settings)
    return 0
