"""The `coderl` command. Exit codes: 0 done, 1 failed, 2 bad arguments, configuration or data, 3 a cap on cost is
reached, 130 interrupted (Ctrl-C), 143 terminated (SIGTERM). Only a bug shows a traceback.

Light to import: `--help` and a wrong option are answered at once, and what a subcommand works with is imported once its
options are read. The options of the subcommands stand last here, their work in other modules.
"""

import argparse
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
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, NoReturn

from coderl_tasks.errors import CoderlError, ConfigError
from coderl_tasks.paths import shown
from coderl_tasks.runtime.lean_start import collect_less_often, leave_out_pytorch

FLOWS = {
    "curate": "measure the base model's pass rates and keep a mixed-difficulty pool",
    "train": "train on a pool with GRPO; log_path=RUN resumes a run",
    "evaluate": "measure Pass@1 of a checkpoint on the test splits",
    "pipeline": "curate, train and evaluate",
}
OPEN_FILES, FEWEST_OPEN_FILES = 4096, 512
"""Connections, pipes and shared libraries: a run on the embedded servers has some 150 open."""
INTERRUPTED = 130  # 128 + SIGINT, as shells count it
FREE_SPACE = "free some space and run the same command again: what is recorded stays"
NOT_ALLOWED = "name another place (log_path, CODERL_HOME, --out), or get the right to use this one"
OS_HINTS = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), FREE_SPACE)
OS_HINTS |= dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), NOT_ALLOWED)
LAST_PORT = 65535
RECORDS = "a run or a pool: its name (coderl runs, coderl pools), its directory, or latest (the newest run)"


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
    code = CoderlError.exit_code  # of a bug, which does not return from `main`
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
    if words[:1] != ["serve"]:  # a server's garbage is large: it is collected as usual
        collect_less_often()
    if words and words[0] in FLOWS:  # no flow computes with it, and its import takes seconds
        leave_out_pytorch()
    try:
        code = main(words)
    except SystemExit as leaving:  # argparse's --help
        code = leaving.code if isinstance(leaving.code, int) else 0
    except BaseException:  # a bug: `main` prints what is expected
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
            return 0 if words else ConfigError.exit_code  # without a command: a mistake
        if words == ["--version"]:
            print(f"coderl {version('coderl')}")
            return 0
        for word in words:
            if shown(word) != word:
                raise ConfigError(f"{shown(word)} is not UTF-8, and such a name cannot be used: rename it")
        require_open_files()
        if name in FLOWS:
            return _run_flow(name, rest)
        if name in SUBCOMMANDS:
            return run_subcommand(name, rest)
        # There is no command `compare`: a report of two runs compares them.
        near = ["report RUN RUN"] if name == "compare" else get_close_matches(name, [*FLOWS, *SUBCOMMANDS], 2)
        question = f": did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(f"unknown command {name!r}{question} (coderl --help lists them)")
    except CoderlError as error:
        return _print_failure(name, error, error.exit_code)
    except BrokenPipeError as error:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if not any(event & select.POLLERR for _, event in poll.poll(0)):  # stdout has a reader: another pipe broke
            return _print_failure(name, error, CoderlError.exit_code)
        return CoderlError.exit_code  # `coderl ... | head` ended: no message
    except OSError as error:
        return _print_failure(name, error, CoderlError.exit_code)
    except KeyboardInterrupt:
        return _print_failure(name, "interrupted", INTERRUPTED)


def require_open_files() -> None:
    """Raises the limit of open files to what a run may take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if allowed < FEWEST_OPEN_FILES:
        few = f"a process may have {allowed} files open here, and coderl needs {FEWEST_OPEN_FILES}"
        raise ConfigError(f"{few}: raise the limit (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _print_failure(command: str, error: object, code: int) -> int:
    from coderl_tasks.untrusted_text import printable_lines  # which imports polars; ids of data sets stand in errors

    why = str(error)
    if isinstance(error, OSError):  # no space left, permission denied, ...
        what = " ".join((error.strerror or why).split()) or type(error).__name__
        hint = OS_HINTS.get(error.errno or 0)
        why = f"{what}{f': {error.filename}' if error.filename else ''}{f': {hint}' if hint else ''}"
    print(f"coderl {command}: {printable_lines(why)}", file=sys.stderr)
    return code


def _run_flow(name: str, words: list[str]) -> int:
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


class _Parser(argparse.ArgumentParser):
    """Reports bad arguments as the settings do: one line, by `main`."""

    add = argparse.ArgumentParser.add_argument

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see --help)")


AddOptions = Callable[[_Parser], None]


class Subcommand(NamedTuple):
    """`module` has a function with the subcommand's name, from options to exit code. `add_options` declares options,
    and its docstring begins the help."""

    module: str
    summary: str
    add_options: AddOptions


SUBCOMMANDS: dict[str, Subcommand] = {}
"""In the order of the usage."""


def parser_of(name: str) -> _Parser:
    add_options = SUBCOMMANDS[name].add_options
    parser = _Parser(prog=f"coderl {name}", description=add_options.__doc__)
    add_options(parser)
    return parser


def run_subcommand(name: str, words: Sequence[str]) -> int:
    parser = parser_of(name)
    if name == "estimate":  # the command's own settings may begin with dashes too
        own = [word for word in words if word in ("-h", "--help", "--probe", "--no-probe")]
        options = parser.parse_args([*own, "--", *(word for word in words if word not in own)])
        from coderl_tasks.services import load_environment

        load_environment()  # before Prefect is imported, which reads `.env` itself
    else:
        options = parser.parse_intermixed_args(words)  # coderl query RUN --format csv SQL: options between two words
    module = import_module(f"coderl_tasks.cli.{SUBCOMMANDS[name].module}")
    work: Callable[[argparse.Namespace], int] = getattr(module, name)
    return work(options)


def _subcommand(module: str, summary: str) -> Callable[[AddOptions], AddOptions]:
    """Registers `_NAME_options`, which adds the options, as the subcommand NAME."""

    def register(add_options: AddOptions) -> AddOptions:
        name = add_options.__name__.removeprefix("_").removesuffix("_options")
        SUBCOMMANDS[name] = Subcommand(module, summary, add_options)
        return add_options

    return register


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


def _add_format(parser: _Parser, what: str = "default: table") -> None:
    parser.add("--format", choices=("table", "csv", "json"), default="table", help=what)


def _add_external_access(parser: _Parser) -> None:
    allowed = "let SQL read and write files, load extensions and change settings (default: it only reads the views)"
    parser.add("--external-access", action="store_true", help=allowed)


@_subcommand("servers", "start a Prefect server, deployments, a worker and the viewer")
def _up_options(parser: _Parser) -> None:
    """Start a Prefect server (if none answers), the deployments, a worker and `coderl view`; Ctrl-C stops them."""
    what = "start a server on this port, even if another one answers (default: 4200 if it is free)"
    parser.add("--port", type=_number(1, LAST_PORT, "a port"), help=what)
    most = "most concurrent flow runs on this machine (default: one per core, at least two)"
    parser.add("--limit", type=_number(1, 1000, "a number of flow runs"), help=most)
    jobs = "only create the deployments, in a Kubernetes work pool with this base job template"
    parser.add("--jobs", type=Path, metavar="FILE", help=jobs)


@_subcommand("doctor", "check the key, Tinker, sandbox, Prefect, disk and isolation")
def _doctor_options(parser: _Parser) -> None:
    """Check what a run needs, one line each; exit 1 if something needed is missing."""
    model = "check for this model (default: the one a bare run takes)"
    parser.add("setting", nargs="?", metavar="model_name=NAME", help=model)
    parser.add("--model", default=None, help="the same")
    probe = "also sample a few hundred tokens to check seeds, log-probabilities and stop tokens"
    parser.add("--probe", action="store_true", help=probe)
    temperature = "also probe log-probabilities at this temperature (default: 0.7)"
    parser.add("--temperature", type=float, default=0.7, help=temperature)


@_subcommand("launch", "estimate the tokens, cost and time of a command: coderl estimate train ...")
def _estimate_options(parser: _Parser) -> None:
    """Estimate the tokens, cost and time of a command with these settings."""
    parser.add("flow", choices=tuple(FLOWS))
    parser.add("settings", nargs="*", metavar="key=value", help="as for the command itself, in any of its three forms")
    usual = "default: only on the embedded server, if no run of the model shows it"
    what = f"measure the speed by sampling a few hundred tokens; {usual}"
    parser.add("--probe", action=argparse.BooleanOptionalAction, help=what)


@_subcommand("record_commands", "show which rows of a data set curate would keep, and why it drops the others")
def _validate_options(parser: _Parser) -> None:
    """Show which rows of a data set curate would keep, and why it drops the others. Exit 1 if it drops any."""
    from coderl_tasks.settings import CurateSettings  # a quarter of a second, for a default that exists once
    from coderl_tasks.settings.setting import ENVIRONMENTS

    count = _number(1, None, "a number")
    parser.add("dataset", help="data file, data set folder or hub name, as for dataset=")
    others = "gsm8k (question and answer) or custom (prompt and ground_truth)"
    kinds = f"what the rows are: code or tool (problems with tests; the default: code), {others}"
    parser.add("--environment", choices=ENVIRONMENTS, default="code", help=kinds)
    fewest = f"code: different tests that a problem needs (default: {CurateSettings().min_tests}, as in curate)"
    parser.add("--min-tests", type=count, default=None, help=fewest)
    parser.add("--limit", type=count, default=-1, help="read this many rows only (default: all)")
    _add_format(parser, "default: table (of more than 200 rows, only the dropped ones); csv and json have all")


@_subcommand("record_commands", "grade a table of completions")
def _grade_options(parser: _Parser) -> None:
    """Grade a table of completions; programs run in the sandbox that SANDBOX_URL names."""
    files = {
        "problems": "a pool (its name, folder or file), or parquet or JSONL with rows as `coderl validate` takes them",
        "completions": "parquet or JSONL with problem_id (or source_row, the problem's row from 0) and completion "
        "(text) or code",
        "out": "file of verdicts (.parquet, .jsonl or .csv): one row per completion, in order",
    }
    for name, what in files.items():
        parser.add(f"--{name}", type=Path, required=True, help=what)
    limit = "CPU seconds per test (default: 6); a problem's own time limit replaces it"
    parser.add("--timeout", type=float, default=6.0, help=limit)


@_subcommand("record_commands", "find weak, contradictory and missing tests of a pool")
def _audit_options(parser: _Parser) -> None:
    """Audit the tests of problems with their reference solutions. Finds mutants of a solution
    that pass all tests, tests that contradict or repeat each other, samples of the statement that are not tests, and
    problems with several right answers. A stopped audit resumes."""
    count = _number(1, None, "a number")
    pool = "a pool (its name, folder or file), or a data file or folder as `coderl validate` takes them"
    parser.add("pool", help=pool)

    def number_of_mutants(word: str) -> int:  # "mutants=N", as the flows' settings are written, or N alone
        return count(word.removeprefix("mutants="))

    mutants = "mutants per problem (default: 24)"
    parser.add("mutants", nargs="?", metavar="mutants=N", type=number_of_mutants, default=24, help=mutants)
    parser.add("--limit", type=count, default=-1, help="read this many rows only (default: all)")
    parser.add("--seed", type=_number(0, None, "a number"), default=0, help="which mutants are drawn (default: 0)")
    usual = "the pool's folder; for other data audit-NAME here"
    parser.add("--out", type=Path, help=f"folder for audit.parquet and audit.html (default: {usual})")
    limit = "CPU seconds per test (default: 6); a problem's own time limit replaces it"
    parser.add("--timeout", type=float, default=6.0, help=limit)


@_subcommand("scorecard", "test a grader with attacks and honest programs")
def _scorecard_options(parser: _Parser) -> None:
    """Have a grader grade attacks and odd but honest programs. Count the attacks that get a reward
    and the honest programs that are misjudged. Exit 1 if there are any."""
    graders = "coderl (default), the http address of a sandbox for coderl's grader, or your own module:function"
    parser.add("target", nargs="?", default="coderl", help=f"{graders} (which runs attacks with your rights)")
    parser.add("--json", type=Path, metavar="FILE", help="write every case with its outcome")
    kinds = "only problems of this kind (may be repeated; default: all)"
    parser.add("--kind", action="append", choices=("stdin", "call", "assert"), help=kinds)
    parser.add("--only", default="", metavar="TEXT", help="only cases whose id contains this text (default: all)")
    parser.add("--list", action="store_true", help="list these cases and grade nothing")
    failing = "also grade right programs on sandboxes that fail (a function must use SANDBOX_URL)"
    parser.add("--outages", action="store_true", help=failing)


@_subcommand("record_commands", "list the runs: state, steps, Pass@1, size")
def _runs_options(parser: _Parser) -> None:
    """List the runs, newest first. Commands that take a run take these names."""
    parser.add("folder", type=Path, nargs="?", help="another folder of runs (default: ~/code-rl-logs)")
    _add_format(parser)


@_subcommand("record_commands", "list the pools")
def _pools_options(parser: _Parser) -> None:
    """List the pools, newest first. Commands that take a pool take these names."""
    parser.add("folder", type=Path, nargs="?", help="another folder of pools (default: data/pools)")
    _add_format(parser)


@_subcommand("clean", "remove runs without records and expired checkpoints")
def _clean_options(parser: _Parser) -> None:
    """List runs, curations and evaluations that recorded nothing, and expired checkpoints; ask, and remove them.
    Folders in use are skipped."""
    flags = {
        "yes": "do not ask",
        "dry-run": "only list what would be removed",
        "weights": "also checkpoints of the embedded Tinker server, over a day old, that no run names",
        "parts": "also intermediate records of finished pools",
        "models": "also model folders made from GGUF files, which are made again when used",
    }
    for name, what in flags.items():
        parser.add(f"--{name}", action="store_true", help=what)
    others = "with --weights: a further folder of runs that name checkpoints"
    parser.add("--runs", type=Path, action="append", default=[], help=others)


@_subcommand("record_commands", "show how many problems and samples it takes to see a difference")
def _power_options(parser: _Parser) -> None:
    """Show how many problems, with how many completions each, an evaluation needs to see a
    difference between two policies. A finished evaluation gives the noise."""
    parser.add("evaluation", help="a run (its final evaluation), or an evaluation's folder")
    parser.add("--points", type=float, default=5.0, help="the difference, in points of Pass@1 (default: 5)")
    parser.add("--power", type=float, default=0.8, help="the probability of seeing it (default: 0.8)")
    measured = "(default: as in the evaluation's own comparison, else as many as --points)"
    parser.add("--losses", type=float, help=f"problems of a hundred that the better policy truly loses {measured}")


@_subcommand("record_commands", "query a run or a pool with SQL (DuckDB)")
def _query_options(parser: _Parser) -> None:
    """Query a run, a folder of runs, or a curation with SQL (DuckDB)."""
    parser.add("run", nargs="?", help=f"{RECORDS}, or a folder of them")
    parser.add("sql", nargs="?", help="SQL over the views; without it, lists the views and their columns")
    parser.add("--name", help="a named query instead of SQL")
    parser.add("--list", action="store_true", help="list the named queries")
    harmless = "csv has all rows, with formulas and control characters made harmless"
    _add_format(parser, f"format of the answer (default: table; {harmless})")
    parser.add("--out", type=Path, help="write the whole answer to this file instead (.parquet, .csv or .json)")
    _add_external_access(parser)


@_subcommand("record_commands", "query a run with SQL, line by line")
def _shell_options(parser: _Parser) -> None:
    """Query the views of a run, a folder of runs or a curation, one SQL statement at a time. Each
    statement ends with a semicolon. The name of a named query is a statement too; an empty one lists the views. Ctrl-D
    ends."""
    parser.add("run", help=f"{RECORDS}, or a folder of them")
    _add_external_access(parser)


@_subcommand("record_commands", "follow a run in the terminal")
def _watch_options(parser: _Parser) -> None:
    """Show the state of a run every few seconds, until it ends. Ctrl-C ends only this display."""
    parser.add("run", nargs="?", default="latest", help="a run: its name, or its directory (default: latest)")
    parser.add("--every", type=float, default=2.0, help="seconds between updates (default: 2)")
    parser.add("--once", action="store_true", help="show it once (the default if the output is no terminal)")


@_subcommand("record_commands", "show a problem of a run: its pass rate, its completions and their failed tests")
def _show_options(parser: _Parser) -> None:
    """Show a problem of a run: its statement, its pass rate over the steps, and each completion
    of a step with its first failed test: input, expected output, actual output, and the difference."""
    place = parser.add_mutually_exclusive_group()
    parser.add("run", help="a run: its name (coderl runs), or its directory")
    without = "(without it: the problems that the run solves least)"
    parser.add("problem", nargs="?", help=f"its id, the beginning of one, or words of its statement {without}")
    last = "show completions of this step (default: the last step with the problem)"
    place.add_argument("--step", type=_number(0, None, "a step"), help=last)
    evaluation = "show completions of this evaluation of the run: baseline, final, ..."
    place.add_argument("--eval", metavar="NAME", help=evaluation)
    parser.add("--full", action="store_true", help="do not shorten texts")
    parser.add("--json", action="store_true", help="print JSON, with whole texts")


@_subcommand("servers", "show runs and pools in the browser, from a curve to a failing test")
def _view_options(parser: _Parser) -> None:
    """Show runs and pools in the browser, until Ctrl-C. Pages of a run in progress are live. The
    viewer only reads files. It listens on loopback and requires a key, which the printed address contains."""
    shown = f"{RECORDS}; several runs for a comparison; by default all runs and pools"
    parser.add("records", metavar="run", nargs="*", help=shown)
    usual = "port (default: 4287 if it is free); 0 takes a free one"
    parser.add("--port", type=_number(0, LAST_PORT, "a port"), help=usual)


@_subcommand("record_commands", "write a run or a curation, or two runs side by side, as one HTML page")
def _report_options(parser: _Parser) -> None:
    """Write a run (or a curation) as one self-contained HTML page. Two runs are shown side by
    side: settings, paired Pass@1, histories, answers, tokens and time."""
    parser.add("runs", metavar="run", nargs="+", help=f"{RECORDS}; or two runs")
    usual = "report.html in the run's directory; for two runs report-A-B.html here"
    parser.add("--out", type=Path, help=f"the file to write (default: {usual})")


@_subcommand("export", "export a run's policy for transformers, peft and vLLM, with a model card")
def _export_options(parser: _Parser) -> None:
    """Write a run's policy as a PEFT adapter, or merged into its base model, with a model card.
    The export fails if transformers computes other log-probabilities than the run recorded."""
    parser.add("run", help="a run: its name (coderl runs), or its directory")
    usual = "(default: best if the run has such evaluations, else last)"
    parser.add("--step", help=f"a step's number, last, or best: the best Pass@1 on the validation problems {usual}")
    parser.add("--out", type=Path, required=True, help="folder to create; must not exist")
    parser.add("--merge", action="store_true", help="write the whole model, with the adapter merged, and its tokenizer")
    unchecked = "do not compare transformers' log-probabilities with the sampled ones"
    parser.add("--no-check", action="store_true", help=unchecked)
    hub = "upload the folder to this repository on the Hugging Face hub; a new one is private"
    parser.add("--push", metavar="REPO", help=hub)
    parser.add("--public", action="store_true", help="with --push: make a new repository public")


@_subcommand("servers", "run an embedded server: coderl serve tinker | sandbox")
def _serve_options(parser: _Parser) -> None:
    """Run an embedded server until it is stopped."""
    parser.add("server", choices=("tinker", "sandbox"))
    parser.add("--host", default="127.0.0.1", help="address to listen on (default: loopback only; another needs --key)")
    parser.add("--port", type=_number(0, LAST_PORT, "a port"), default=0, help="port (default: 0, a free one)")
    parser.add("--model", action="append", help="tinker: local model folder to serve (may be repeated)")
    cpu = "cpu, on which the same request gets the same bits"
    where = f"tinker: where models run; auto: on a GPU if there is one (default: {cpu})"
    parser.add("--device", choices=("cpu", "cuda", "auto"), default="cpu", help=where)
    auto = "bfloat16 for a model of 200 MB and more on a processor with bfloat16 products, else float32"
    kind = f"tinker: type of the weights and their products; all else is float32 (default: auto: {auto})"
    parser.add("--dtype", choices=("float32", "bfloat16", "auto"), default="auto", help=kind)
    programs = "sandbox: programs that run at the same time (default: one more than the cores)"
    parser.add("--concurrency", type=_number(1, None, "a number"), help=programs)
    sent = "clients send it as TINKER_API_KEY, or in SANDBOX_URL=http://coderl:KEY@host:port"
    required = f"require the key in this file (created if missing; -: standard input); {sent}"
    parser.add("--key", metavar="FILE", help=required)
    unisolated = "sandbox: run without isolation (dangerous; needs --key)"
    parser.add("--allow-unisolated", action="store_true", help=unisolated)
