import os
import subprocess
import sys
from argparse import Namespace
from importlib import import_module
from importlib.metadata import version

import pytest

from coderl_tasks.cli import main, record_commands
from coderl_tasks.cli.arguments import parse_key_values
from coderl_tasks.cli.entry import FLOWS, FREE_SPACE, NOT_ALLOWED, SUBCOMMANDS, usage
from coderl_tasks.errors import ConfigError
from coderl_tasks.settings import CurateSettings, TrainSettings


def test_no_command_and_help_print_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.count(usage()) == 2


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"coderl {version('coderl')}\n"


@pytest.mark.parametrize("words", ["--help", "train --help", "query --help", "pools"])
def test_a_reader_that_has_gone_is_told_nothing(words: str) -> None:
    """As in `coderl train --help | head -1`, with a pipe that nobody reads from the beginning."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "coderl_tasks.cli", *words.split()]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""


def test_too_few_open_files_are_named_and_more_are_taken() -> None:
    command = ["sh", "-c", f"ulimit -n 64; exec {sys.executable} -m coderl_tasks.cli pools"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("coderl pools: a process may have 64 files open here, and coderl needs 512")
    taken = "import resource; from coderl_tasks.cli.entry import require_open_files; require_open_files(); "
    taken += "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 512)"
    command = ["sh", "-c", f'ulimit -Sn 64; exec {sys.executable} -c "{taken}"']
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"


@pytest.mark.parametrize("name", FLOWS)
def test_flow_help_needs_no_server(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"usage: coderl {name} [key=value" in capsys.readouterr().out


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_a_subcommand_has_help_and_does_something(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([name, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: coderl {name} ")
    assert callable(getattr(import_module(f"coderl_tasks.cli.{SUBCOMMANDS[name].module}"), name))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian"], "unknown command 'trian': did you mean train? (coderl --help lists them)"),
        (["compare"], "did you mean report RUN RUN?"),
        (["train", "batch_size=12"], "do not divide"),
        (["report", "a", "b", "c"], "takes one or two runs, not 3"),
        (["report", "/tmp/r\udcfcn"], "/tmp/r\\xfcn is not UTF-8"),
        (["train", "log_path=/tmp/r\udcfcn"], "log_path=/tmp/r\\xfcn is not UTF-8"),
        (["pipeline", "train.batch_size=12"], "do not divide"),
    ],
)
def test_bad_arguments_end_with_one_line_and_exit_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.count("\n") == 1


def test_the_installed_command_and_the_flow_files_are_the_same_door() -> None:
    for command in (["-m", "coderl_tasks.cli", "train"], ["flows/train.py"]):
        done = subprocess.run([sys.executable, *command, "batch_size=12"], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("coderl train: batch_size=12 completions per step do not divide by 8 ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["grade"], "the following arguments are required: --problems"),
        (["serve", "x"], "invalid choice: 'x'"),
        (["up", "--port", "x"], "argument --port: 'x' is not a port from 1 to 65535"),
        (["up", "--port", "99999"], "argument --port: '99999' is not a port from 1 to 65535"),
        (["up", "--port", "-1"], "argument --port: '-1' is not a port from 1 to 65535"),
        (["serve", "tinker", "--port", "65536"], "'65536' is not a port from 0 to 65535"),
        (["serve", "sandbox", "--concurrency", "0"], "'0' is not a number of at least 1"),
        (["serve", "sandbox", "--concurrency", "-1"], "'-1' is not a number of at least 1"),
        (["doctor", "x"], "x: doctor takes model_name=NAME alone"),
    ],
)
def test_bad_options_end_with_one_line_and_exit_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"coderl {words[0]}: ")
    assert says in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            OSError(28, "No space left on device", "pool.parquet"),
            1,
            f"No space left on device: pool.parquet: {FREE_SPACE}",
        ),
        (
            PermissionError(13, "Permission denied", "/root/x"),
            1,
            f"Permission denied: /root/x: {NOT_ALLOWED}",
        ),
        (ConnectionResetError(104, "Connection reset by peer"), 1, "Connection reset by peer"),
        (TimeoutError(), 1, "TimeoutError"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_the_machine_or_the_user_causes_is_one_line(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Namespace) -> int:
        raise error

    monkeypatch.setattr(record_commands, "report", fail)
    assert main(["report", "run"]) == code
    assert capsys.readouterr().err == f"coderl report: {line}\n"


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["--log_path", "runs/a=b", "--seed=2"], {"log_path": "runs/a=b", "seed": "2"}),
        (["--log-path", "max=3"], {"log_path": "max=3"}),
        (["--replace", "seed=2"], {"replace": True, "seed": "2"}),
        (["--replace", "false"], {"replace": "false"}),
        (["--max_steps", "-1"], {"max_steps": "-1"}),
        (["log_path=a=b"], {"log_path": "a=b"}),
        (["--log_path=lr=3"], {"log_path": "lr=3"}),
        (["--adam", "beta1:0.9", "--eval.limit", "5"], {"adam": "beta1:0.9", "eval": {"limit": "5"}}),
        (["--log_path", "weight_decay:0.1"], {"log_path": "weight_decay:0.1"}),
    ],
)
def test_the_three_forms_of_a_setting(words: list[str], values: dict[str, bool | str] | dict[str, str]) -> None:
    assert parse_key_values(words, CurateSettings if "--replace" in words else TrainSettings) == values


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--log_path", "max_steps=3"], "--log_path needs a value"),
        (["--log_path", "lr=3"], "--log_path needs a value"),  # which learning_rate was meant by
        (["--log_path", "--seed=2"], "--log_path needs a value"),
        (["--log_path"], "--log_path needs a value"),
        (["log_path"], "'log_path' is not a setting"),
        (["seed=1", "--seed", "2"], "seed is given twice"),
    ],
)
def test_words_that_are_no_setting_are_refused(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_key_values(words, TrainSettings)


BUSY_IN_NATIVE_CODE = """
import sys, threading
from pydantic import BaseModel, field_validator
from coderl_tasks.cli import command

class Answer(BaseModel):
    tokens: list[int]

    @field_validator("tokens", mode="wrap")
    @classmethod
    def through_python(cls, value, handler):
        return handler(value)

def parse():
    while True:
        Answer.model_validate({"tokens": list(range(200))})

for _ in range(4):
    threading.Thread(target=parse, daemon=True).start()
command(sys.argv[1:])
"""


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["train", "--help"], 0), (["trian"], 2)])
def test_a_thread_in_native_code_does_not_change_the_exit_code(words: list[str], code: int) -> None:
    ended = subprocess.run([sys.executable, "-c", BUSY_IN_NATIVE_CODE, *words], capture_output=True, text=True)
    assert (ended.returncode, bool(ended.stdout)) == (code, code == 0), ended.stderr
