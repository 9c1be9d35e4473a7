"""A flow that is told to stop: one line says why, one how to go on, and the record is whole."""

import asyncio
import contextlib
import os
import re
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.exceptions import TerminationSignal

from coderl_tasks.cli.launch import ended_by_sigterm, was_terminated
from coderl_tasks.errors import TerminatedError
from coderl_tasks.journal.atomic import read_json
from tests import warm_start
from tests.flows.conftest import Coderl, Refused
from tests.flows.run_records import ENDS, TINY, final_weights, rollouts, step_rows, wait_for
from tests.warm_start import Command


@pytest.mark.parametrize(
    ("number", "code", "word", "moment"),
    [
        (signal.SIGINT, 130, "interrupted", "steps/000001/groups"),
        (signal.SIGTERM, 143, "terminated", "steps/000001/scored.parquet"),
    ],
)
def test_a_signal_ends_a_run_in_two_lines_and_costs_nothing(
    flow_environment: dict[str, str],
    coderl: Coderl,
    run: Path,
    pool: Path,
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    word: str,
    moment: str,
) -> None:
    path = tmp_path / "run"
    words = ("train", "preset=nano", f"pool={pool}", f"log_path={path}", "max_steps=3", *TINY, ENDS)
    process = Command(flow_environment, *words)
    wait_for(path / moment, process)
    os.kill(process.pid, number)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (code, f"coderl train: {word}\n")
    assert re.fullmatch(
        f"stopped before step [12]; to continue: coderl train log_path={path} resume=must", output.splitlines()[-1]
    )
    assert not list(path.rglob("*.tmp"))
    done = coderl("train", f"log_path={path}")
    assert done.returncode == 0, done.stderr
    assert step_rows(path) == step_rows(run)
    assert rollouts(path).equals(rollouts(run))
    assert final_weights(path) == final_weights(run)


def test_a_cap_on_tokens_ends_a_run_in_two_lines_and_a_higher_one_goes_on(
    coderl: Coderl, refused: Refused, run: Path, pool: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    words = ("train", "preset=nano", f"pool={pool}", f"log_path={path}", "max_steps=3", *TINY, ENDS)
    ended = coderl(*words, "max_tokens_total=3000")
    assert ended.returncode == 3, ended.stderr
    assert re.fullmatch(
        r"coderl train: max_tokens_total=3000 is reached: 2,?\d+ tokens are spent, and the next group may take \d+; "
        "what is recorded stays\n",
        ended.stderr,
    )
    assert re.fullmatch(
        "stopped before step [01]; to continue, raise max_tokens_total, for example: "
        f"coderl train log_path={path} resume=must max_tokens_total=6000",
        ended.stdout.splitlines()[-1],
    )
    done = coderl("train", f"log_path={path}", "max_tokens_total=none")
    assert done.returncode == 0, done.stderr
    assert step_rows(path) == step_rows(run)
    assert rollouts(path).equals(rollouts(run))
    for flow in (("train", f"pool={pool}"), ("evaluate", "checkpoint=data/nano"), ("curate",)):
        said = refused(*flow, "preset=nano", "max_usd=1")
        assert said.startswith(f"coderl {flow[0]}: max_usd=1: what ") and "prices=prefill:" in said


def interrupted(process: Command) -> list[str]:
    """The lines that a command printed which Ctrl-C ends now."""
    os.kill(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.fullmatch(r"coderl \w+: interrupted\n", errors)
    return output.splitlines()


def test_an_interrupted_curation_says_which_command_goes_on_and_that_does(
    flow_environment: dict[str, str], coderl: Coderl, tmp_path: Path
) -> None:
    folder = tmp_path / "a pool"
    words = ("curate", "preset=nano", "limit=40", "profile_samples=2", "mix=hard:0.5,easy:0.5", "band_low=0.05")
    process = Command(flow_environment, *words, f"name={folder}")
    wait_for(folder / "shards/0000/groups", process)
    said = re.fullmatch("stopped; to continue: coderl (curate .*)", interrupted(process)[-1])
    assert said
    command = shlex.split(said[1])
    assert set(command) == {*words, f"name={folder}"}
    done = coderl(*command)
    assert "continuing where an earlier start with these settings stopped" in done.stdout, done.stderr
    assert (folder / "manifest.json").is_file()


def test_the_same_command_goes_on_with_the_evaluation_that_was_interrupted(
    flow_environment: dict[str, str], coderl: Coderl, tmp_path: Path
) -> None:
    home = flow_environment | {"HOME": str(tmp_path)}
    words = ("evaluate", "preset=nano", "checkpoint=data/nano", "eval_limit=24", "max_tokens=64")
    process = Command(home, *words)
    evals = tmp_path / "code-rl-logs/evals"
    while process.poll() is None and not list(evals.glob("*/groups/request.json")):
        time.sleep(0.01)
    lines = interrupted(process)
    (folder,) = evals.iterdir()
    assert f"evaluation directory: {folder}" in lines
    assert lines[-1].startswith("stopped; to continue: coderl evaluate preset=nano max_tokens=64 checkpoint=data/nano ")
    assert lines[-1].endswith(f" eval_limit=24 log_path={folder}")
    again = warm_start.run(home, *process.arguments)
    assert again.returncode == 0, again.stderr
    assert "continuing where an earlier start with these settings stopped" in again.stdout
    assert [path.name for path in evals.iterdir()] == [folder.name]
    assert (folder / "summary.json").is_file()


def test_the_same_command_goes_on_with_the_pipeline_that_was_interrupted_and_pays_for_nothing_twice(
    flow_environment: dict[str, str], tmp_path: Path
) -> None:
    home = flow_environment | {"HOME": str(tmp_path)}
    root, pool = tmp_path / "code-rl-logs", tmp_path / "pool"
    sizes = ("limit=6", "profile_samples=2", "max_tests=3", "band_low=0.0", "band_high=1.0", f"name={pool}")
    words = ("preset=nano", *(f"curate.{word}" for word in sizes), *(f"train.{word}" for word in (*TINY, ENDS)))
    words = (*words, "train.max_steps=1", "evaluate.eval_limit=2", "evaluate.max_tokens=64")
    process = Command(home, "pipeline", *words)
    while process.poll() is None and not list(root.glob("*/steps/000000/sampled.parquet")):
        time.sleep(0.01)
    (said,) = [line for line in interrupted(process) if line.startswith("stopped")]
    assert (command := re.fullmatch("stopped; to continue: coderl (pipeline .*)", said))
    assert set(shlex.split(command[1])) == {"pipeline", *(word.replace("eval_every", "eval.every") for word in words)}
    paid_for = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*ampled.parquet")}
    again = warm_start.run(home, *process.arguments)
    assert again.returncode == 0, again.stderr
    (record,) = (root / "pipelines").iterdir()
    run = root / record.name
    assert f"continuing the pipeline {record.name}, which an earlier start" in again.stdout
    assert f"the pool {pool} is finished\n" in again.stdout
    assert f"run directory: {run} (resuming at step 0)" in again.stdout
    assert paid_for == {path: path.stat().st_mtime_ns for path in paid_for}
    assert [folder.name for folder in run.glob("evals/evaluate-*")] == [f"evaluate-{record.name}"]
    assert read_json(record / "summary.json") == {"pool": str(pool), "run": str(run)}


async def test_sigterm_ends_what_did_not_notice_it() -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def deaf() -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)  # as where asyncio keeps what Prefect's handler raises
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(3):  # as Prefect reports to a server that is gone, when it is cancelled
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(600)

    try:
        with pytest.raises(TerminatedError):
            await ended_by_sigterm(deaf(), grace_s=0.1)
        assert await ended_by_sigterm(asyncio.sleep(0, "done")) == "done"
    finally:
        signal.signal(signal.SIGTERM, before)


class Dying:
    def __del__(self) -> None:
        end()


def end() -> None:
    raise TerminationSignal(signal.SIGTERM)


@pytest.mark.parametrize("somewhere", [Dying, lambda: asyncio.get_running_loop().call_soon(end)])
async def test_sigterm_ends_a_run_at_once_where_python_or_asyncio_ignored_the_exception(
    somewhere: Callable[[], object], capfd: pytest.CaptureFixture[str]
) -> None:
    async def deaf() -> None:
        somewhere()
        await asyncio.sleep(600)

    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(TerminatedError):
            await asyncio.wait_for(ended_by_sigterm(deaf(), grace_s=500), timeout=60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capfd.readouterr().err == ""


def test_sigterm_is_told_from_what_prefect_makes_of_it() -> None:
    def fails() -> None:
        try:
            end()
        except TerminationSignal:
            raise ValueError("Task run is not set")  # noqa: B904 - as Prefect does while it creates a task run

    with pytest.raises(ValueError) as stumbled:
        fails()
    assert was_terminated(stumbled.value)
    assert not was_terminated(ValueError("Task run is not set"))
