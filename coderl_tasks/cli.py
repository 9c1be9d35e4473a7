"""The `coderl` command. Exit codes: 0 done, 1 failed, 2 bad arguments, configuration or data,
130 interrupted (Ctrl-C), 143 terminated (SIGTERM).

What a user or a machine can cause (our own errors, the system's, Ctrl-C) ends with one line on stderr; only a bug shows
a traceback.
"""

import argparse
import atexit
import contextlib
import errno
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from coderl_tasks.arguments import parse_key_values, settings_help
from coderl_tasks.errors import CoderlError, ConfigError
from coderl_tasks.paths import shown
from coderl_tasks.settings import (
    CurateSettings,
    EvaluateSettings,
    FlowSettings,
    PipelineSettings,
    TrainSettings,
    parse_settings,
)

FLOWS: dict[str, type[FlowSettings] | type[PipelineSettings]] = {
    "curate": CurateSettings,
    "train": TrainSettings,
    "evaluate": EvaluateSettings,
    "pipeline": PipelineSettings,
}
LAST_PORT = 65535
INTERRUPTED = 130  # 128 + SIGINT, as shells count it
RECORDS = "a run or a pool: its name (coderl runs, coderl pools), or its directory"
FREE_SPACE = "free some space and run the same command again: what is recorded stays"
NOT_ALLOWED = "name another place (log_path, CODERL_HOME, --out), or get the right to use this one"
OS_HINTS = {
    errno.ENOSPC: FREE_SPACE,
    errno.EDQUOT: FREE_SPACE,
    errno.EACCES: NOT_ALLOWED,
    errno.EPERM: NOT_ALLOWED,
    errno.EROFS: NOT_ALLOWED,
}
USAGE = """usage: coderl COMMAND ...      (coderl COMMAND --help says more; coderl --version)

  curate    profile the base model on problems and keep a mixed-difficulty pool
  train     GRPO steps on a pool; log_path=RUN resumes one
  evaluate  Pass@1 of a checkpoint on the test splits
  pipeline  curate, train, evaluate in a row

  up        Prefect server, deployments and a worker; prints the UI address
  doctor    check key, Tinker, sandbox, Prefect, disk and isolation
  validate  which rows of your problems curate would keep, and why not the others
  grade     grade a table of completions
  runs      the runs there are: state, steps, Pass@1, size
  pools     the pools there are
  clean     remove what nothing needs: attempts that never started, expired checkpoints
  query     DuckDB over a run directory
  report    a run or a curation as one HTML page
  serve     the embedded servers: coderl serve tinker | sandbox"""


class _WithoutPyTorch(PathFinder):
    """Finds modules as `PathFinder` does, but not PyTorch.

    The Tinker SDK and transformers import it wherever it is installed: a third of a flow's start and half of its
    memory. No flow computes with it; the embedded Tinker server, which does, is a process of its own.
    """

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname == "torch" else super().find_spec(fullname, path, target)


def command(arguments: Sequence[str] | None = None) -> NoReturn:
    """`main` as a process of its own: ends it with `main`'s exit code, 1 after a traceback.

    It leaves out the interpreter's finalization. A daemon thread that is in native code by then is unwound by
    pthread_exit (before Python 3.14), on which native code that does not expect it aborts: the exit code would be 134.
    The Tinker SDK has such a thread, which parses answers, whenever a command ends.
    """
    code = CoderlError.exit_code
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may be no text, and is shown all the same

    def leave() -> None:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
                stream.flush()
        os._exit(code)

    atexit.register(leave)  # before a command imports libraries, so that it runs after what they register
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in FLOWS:
        sys.meta_path = [_WithoutPyTorch if finder is PathFinder else finder for finder in sys.meta_path]
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # which it gives without PyTorch
    try:
        code = main(words)
    except SystemExit as leaving:  # of argparse's --help
        code = leaving.code if isinstance(leaving.code, int) else 0
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if words else ConfigError.exit_code
    if words == ["--version"]:
        print(f"coderl {version('coderl')}")
        return 0
    name, rest = words[0], words[1:]
    try:
        for word in words:
            if shown(word) != word:
                raise ConfigError(f"{shown(word)} is not UTF-8, and such a name cannot be used: rename it")
        if name in FLOWS:
            return _flow(name, rest)
        if name in COMMANDS:
            return COMMANDS[name](rest)
        raise ConfigError(f"unknown command {name!r}: coderl --help lists them")
    except CoderlError as error:
        return _fail(name, error, error.exit_code)
    except OSError as error:  # no space left, permission denied, ...
        return _fail(name, _explain(error), CoderlError.exit_code)
    except KeyboardInterrupt:
        return _fail(name, "interrupted", INTERRUPTED)


def _explain(error: OSError) -> str:
    """What the system refused, where, and what to do about it."""
    what = " ".join((error.strerror or str(error)).split()) or type(error).__name__
    where = f": {error.filename}" if error.filename else ""
    hint = OS_HINTS.get(error.errno or 0)
    return f"{what}{where}{f': {hint}' if hint else ''}"


def _fail(command: str, why: object, code: int) -> int:
    print(f"coderl {command}: {why}", file=sys.stderr)
    return code


def _flow(name: str, arguments: list[str]) -> int:
    model = FLOWS[name]
    if "--help" in arguments or "-h" in arguments:
        print(settings_help(name, model))
        return 0
    settings = parse_settings(model, parse_key_values(arguments, model))
    from coderl_tasks.services import check_environment

    check_environment()  # before seconds of imports
    from flows.launch import launch

    launch(name, settings)
    return 0


class _Parser(argparse.ArgumentParser):
    """Reports bad arguments as the settings do: one line, by `main`."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see --help)")


def _number(low: int, high: int | None, what: str) -> Callable[[str], int]:
    """An argparse type: a whole number from `low` to `high` (None: without limit); `what` names it in the message."""
    limits = f"from {low} to {high}" if high is not None else f"of at least {low}"

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low or (high is not None and number > high):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} {limits}")
        return number

    return parse


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    return _Parser(prog=f"coderl {command}", description=description)


def _serve(arguments: list[str]) -> int:
    parser = _parser("serve", "Run an embedded server until it is stopped.")
    parser.add_argument("server", choices=("tinker", "sandbox"))
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: loopback only; another needs --key)"
    )
    parser.add_argument(
        "--port", type=_number(0, LAST_PORT, "a port"), default=0, help="port; 0 takes a free one (default)"
    )
    parser.add_argument("--model", action="append", help="tinker: local model folder to serve (may be repeated)")
    parser.add_argument(
        "--concurrency",
        type=_number(1, None, "a number"),
        help="sandbox: programs run at once (default: one per core)",
    )
    parser.add_argument(
        "--key",
        metavar="FILE",
        help="answer only those who have the key in this file (made if it is not there; -: standard input); clients "
        "send it as TINKER_API_KEY, or in SANDBOX_URL=http://coderl:KEY@host:port",
    )
    parser.add_argument(
        "--allow-unisolated", action="store_true", help="sandbox: run without isolation (dangerous; needs --key)"
    )
    options = parser.parse_args(arguments)
    from coderl_tasks.local.admission import read_key

    key = None if options.key is None else read_key(options.key)
    if options.server == "tinker":
        from coderl_tasks.local.tinker.server import serve as serve_tinker
        from coderl_tasks.paths import NANO_MODEL

        serve_tinker(options.port, options.host, options.model or [NANO_MODEL], key=key)
    else:
        from coderl_tasks.local.sandbox.server import serve as serve_sandbox

        serve_sandbox(options.port, options.host, options.concurrency, options.allow_unisolated, key=key)
    return 0


def _up(arguments: list[str]) -> int:
    parser = _parser("up", "Start a Prefect server (if none answers), the deployments and a worker; Ctrl-C ends.")
    parser.add_argument(
        "--port",
        type=_number(1, LAST_PORT, "a port"),
        help="an embedded server on this port, even if another answers (default: 4200 if it is free)",
    )
    options = parser.parse_args(arguments)
    from flows.launch import up

    return up(options.port)


def _doctor(arguments: list[str]) -> int:
    parser = _parser("doctor", "Check what a run needs, one line each; exit 1 if something needed is missing.")
    parser.add_argument("--model", default=None, help="check for this model (default: the one a bare run takes)")
    parser.add_argument(
        "--probe", action="store_true", help="sample a few hundred tokens too: seeds, log-probabilities, stop tokens"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.7, help="probe log-probabilities at this temperature too (default: 0.7)"
    )
    options = parser.parse_args(arguments)
    if not options.temperature > 0:
        raise ConfigError(f"--temperature {options.temperature:g} must be more than 0")
    from coderl_tasks.doctor import report

    return report(options.model, probe_at=options.temperature if options.probe else None)


def _grade(arguments: list[str]) -> int:
    parser = _parser("grade", "Grade a table of completions; programs run in the sandbox that SANDBOX_URL names.")
    parser.add_argument(
        "--problems",
        type=Path,
        required=True,
        help="a pool (its name, folder or file), or parquet or JSONL with rows as `coderl validate` takes them",
    )
    parser.add_argument(
        "--completions",
        type=Path,
        required=True,
        help="parquet or JSONL with problem_id (or source_row, the problem's row from 0) and completion (text) or code",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="file of verdicts (.parquet, .jsonl or .csv): a row per completion, in order",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=6.0,
        help="CPU seconds per test (default: 6); a problem's own time limit replaces it",
    )
    options = parser.parse_args(arguments)
    from coderl_tasks.grading.table import grade_files
    from coderl_tasks.services import services

    with services(None) as used:
        print("\n".join(used.lines), file=sys.stderr)
        grades = grade_files(
            options.problems,
            options.completions,
            options.out,
            used.sandbox_urls,
            options.timeout,
            max_concurrency=used.sandbox_concurrency,
        )
    counts = grades["verdict"].value_counts(sort=True).iter_rows()
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts) or "none"
    print(f"{grades.height} completions graded ({said}): {options.out}")
    return 0


def _validate(arguments: list[str]) -> int:
    parser = _parser("validate", "What curate would make of each row of a data set; exit 1 if it would drop any.")
    parser.add_argument("dataset", help="parquet or JSONL file, data set folder or hub name, as for dataset=")
    parser.add_argument(
        "--min-tests",
        type=_number(1, None, "a number"),
        default=CurateSettings().min_tests,
        help="different tests that a problem needs, as curate's min_tests (default: %(default)s)",
    )
    parser.add_argument(
        "--limit", type=_number(1, None, "a number"), default=-1, help="read this many rows only (default: all)"
    )
    parser.add_argument(
        "--format",
        choices=("table", "csv", "json"),
        default="table",
        help="default: table (of more than 200 rows only those dropped); csv and json have all",
    )
    options = parser.parse_args(arguments)
    from rich.console import Console

    from coderl_tasks.insight.row_report import print_row_report, row_report

    rows = row_report(options.dataset, options.min_tests, options.limit)
    print_row_report(rows, Console(), options.format)
    return 0 if rows["kept"].all() else 1


def _query(arguments: list[str]) -> int:
    parser = _parser("query", "DuckDB over a run directory, a folder of runs, or a curation.")
    parser.add_argument("run", nargs="?", help=f"{RECORDS}, or a folder of them")
    parser.add_argument("sql", nargs="?", help="SQL over the views; without it, the views and their columns")
    parser.add_argument("--name", help="a named query instead of SQL")
    parser.add_argument("--list", action="store_true", help="list the named queries")
    parser.add_argument(
        "--format",
        choices=("table", "csv", "json"),
        default="table",
        help="of an answer (default: table; csv is whole)",
    )
    options = parser.parse_intermixed_args(arguments)
    from coderl_tasks.insight.named_queries import CURATION, NAMED_QUERIES
    from coderl_tasks.journal.run_names import record_path

    # A pool and a run of one name, as a pipeline makes them: the query says which is meant.
    query = NAMED_QUERIES.get(options.name)
    pools_first = query is not None and query.over == CURATION
    run = record_path(options.run, pools_first=pools_first) if options.run is not None else None
    from coderl_tasks.insight.query import print_query  # which takes seconds to import

    print_query(run, options.sql, options.name, list_names=options.list, output=options.format)
    return 0


def _report(arguments: list[str]) -> int:
    parser = _parser("report", "Write a run (or a curation) as one self-contained HTML page.")
    parser.add_argument("run", help=RECORDS)
    options = parser.parse_args(arguments)
    from coderl_tasks.journal.run_names import record_path

    record = record_path(options.run)
    from coderl_tasks.insight.report import write_report  # which takes seconds to import

    print(write_report(record))
    return 0


def _runs(arguments: list[str]) -> int:
    parser = _parser("runs", "The runs there are, newest first. Their names are taken wherever a run is asked for.")
    parser.add_argument("folder", type=Path, nargs="?", help="another folder of runs (default: ~/code-rl-logs)")
    return _list(parser, arguments, pools=False)


def _pools(arguments: list[str]) -> int:
    parser = _parser("pools", "The pools there are, newest first. Their names are taken wherever a pool is asked for.")
    parser.add_argument("folder", type=Path, nargs="?", help="another folder of pools (default: data/pools)")
    return _list(parser, arguments, pools=True)


def _list(parser: argparse.ArgumentParser, arguments: list[str], *, pools: bool) -> int:
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table", help="default: table")
    options = parser.parse_args(arguments)
    from rich.console import Console

    from coderl_tasks.insight.console import render_frame, write_frame
    from coderl_tasks.insight.listing import pools_table, runs_table
    from coderl_tasks.journal.run_names import runs_root
    from coderl_tasks.paths import POOLS

    folder = options.folder or (POOLS if pools else runs_root())
    frame = pools_table(folder) if pools else runs_table(folder)
    if options.format != "table":
        write_frame(frame, Console(), options.format)
    elif frame.is_empty():
        print(f"none in {folder}")
    else:
        render_frame(frame, Console(), f"in {folder}")
    return 0


def _clean(arguments: list[str]) -> int:
    parser = _parser("clean", "Remove what nothing needs, after saying what and asking. What is in use stays.")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument(
        "--weights", action="store_true", help="also the embedded Tinker server's checkpoints that no run names"
    )
    parser.add_argument("--parts", action="store_true", help="also what finished pools recorded on the way")
    parser.add_argument(
        "--runs", type=Path, action="append", default=[], help="with --weights: another folder of runs, which count too"
    )
    options = parser.parse_args(arguments)
    from coderl_tasks.cleaning import clean
    from coderl_tasks.services import load_environment

    load_environment()  # which may set CODERL_HOME
    clean(options.runs, weights=options.weights, parts=options.parts, ask=not options.yes, dry_run=options.dry_run)
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "serve": _serve,
    "up": _up,
    "doctor": _doctor,
    "validate": _validate,
    "grade": _grade,
    "runs": _runs,
    "pools": _pools,
    "clean": _clean,
    "query": _query,
    "report": _report,
}

if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    command()
