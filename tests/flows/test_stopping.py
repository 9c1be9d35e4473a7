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
from typing import NamedTuple

import polars as pl
import pytest
from prefect.exceptions import TerminationSignal
from sampling_gateway import Gateway

from coderl_tasks.cli.launch import ended_by_sigterm, was_terminated
from coderl_tasks.errors import TerminatedError
from coderl_tasks.insight.record import load_run
from coderl_tasks.journal.atomic import read_json
from coderl_tasks.policy.update import KL_SAMPLE, kl_to_base
from coderl_tasks.runtime.display import interruptible
from tests import warm_start
from tests.flows.conftest import Coderl, Refused
from tests.flows.run_records import (
    ENDS,
    OBSERVED,
    TINY,
    final_weights,
    rollouts,
    rows,
    step_rows,
    wait_for,
    without_observed,
)
from tests.warm_start import Command


class Ended(NamedTuple):
    """How a signal ended a run; `leftovers` are files that it was writing."""

    code: int | None
    output: str
    errors: str
    leftovers: list[Path]


class TwoRuns(NamedTuple):
    signalled: Path
    interrupted: Ended
    terminated: Ended
    killed: Path


@pytest.fixture(scope="module")
def two_runs(flow_environment: dict[str, str], pool: Path, tmp_path_factory: pytest.TempPathFactory) -> TwoRuns:
    """Two runs at once on one pool, which have gone on to their ends. Signals ended the first one twice; the second,
    which observes the KL to the base model, was killed."""
    folder = tmp_path_factory.mktemp("two-runs")
    signalled, killed = folder / "signalled", folder / "killed"
    words = ("train", "preset=nano", f"pool={pool}", "max_steps=3", *TINY, ENDS)

    def ended(process: Command, number: signal.Signals, moment: str) -> Ended:
        wait_for(signalled / moment, process)
        os.kill(process.pid, number)
        output, errors = process.communicate(timeout=60)
        return Ended(process.returncode, output, errors, list(signalled.rglob("*.tmp")))

    first = Command(flow_environment, *words, f"log_path={signalled}")
    second = Command(flow_environment, *words, f"log_path={killed}", "kl.base_every=2")
    interrupted = ended(first, signal.SIGINT, "steps/000000/groups")
    first = Command(flow_environment, "train", f"log_path={signalled}")
    wait_for(killed / "steps/000001/scored.parquet", second)
    second.kill()
    second.communicate()
    second = Command(flow_environment, "train", f"log_path={killed}")
    terminated = ended(first, signal.SIGTERM, "steps/000001/scored.parquet")
    first = Command(flow_environment, "train", f"log_path={signalled}")
    for process in (first, second):
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    return TwoRuns(signalled, interrupted, terminated, killed)


def test_a_signal_ends_a_run_in_two_lines_and_costs_neither_it_nor_the_run_beside_it_anything(
    two_runs: TwoRuns, run: Path
) -> None:
    path = two_runs.signalled
    for end, code, word, steps in (
        (two_runs.interrupted, 130, "interrupted", "[01]"),
        (two_runs.terminated, 143, "terminated", "[12]"),
    ):
        assert (end.code, end.errors) == (code, f"coderl train: {word}\n")
        assert re.fullmatch(
            f"stopped before step {steps}; to continue: coderl train log_path={path} resume=must",
            end.output.splitlines()[-1],
        )
        assert not end.leftovers
    assert step_rows(path) == step_rows(run)
    assert rollouts(path).equals(rollouts(run))
    assert final_weights(path) == final_weights(run)


def test_the_observed_kl_to_the_base_model_and_a_kill_change_nothing_else(two_runs: TwoRuns, run: Path) -> None:
    path = two_runs.killed
    found = step_rows(path)
    observed = [[row.pop(name) for name in OBSERVED] for row in found]
    assert found == [without_observed(row) for row in step_rows(run)]
    assert [row["time_base_s"] for row in rows(run / "metrics.jsonl") if "time_base_s" in row] == [None] * 3
    scored = pl.read_parquet(path / "steps/000001/scored.parquet")
    assert scored["base_logprobs"].null_count() == 24 - KL_SAMPLE
    measured = kl_to_base(scored)
    assert measured is not None
    read = scored.filter(pl.col("base_logprobs").is_not_null())
    tokens = sum(sum(map(len, read[name])) for name in ("prompt_tokens", "completion_tokens"))
    assert observed == [[None, None, 0], [*measured, tokens], [None, None, 0]]
    assert rollouts(path).drop("base_logprobs").equals(rollouts(run).drop("base_logprobs"))
    assert final_weights(path) == final_weights(run)


def test_a_run_that_ended_at_its_cap_on_tokens_or_its_last_step_goes_on_with_a_higher_one(
    coderl: Coderl, refused: Refused, run: Path, pool: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    words = ("train", "preset=nano", f"pool={pool}", f"log_path={path}", "max_steps=1", *TINY, ENDS)
    capped = coderl(*words, "max_tokens_total=1500")
    assert capped.returncode == 3, capped.stderr
    assert f"run directory: {path} (new run)" in capped.stdout
    assert "steps: 1\n" in capped.stdout and "(preset nano)" in capped.stdout
    said = re.fullmatch(
        r"coderl train: max_tokens_total=1500 is reached: ([\d,]+) tokens are spent, "
        r"and the next group may take (\d+); what is recorded stays\n",
        capped.stderr,
    )
    assert said
    spent, more = int(said[1].replace(",", "")), int(said[2])
    assert 0 < spent <= 1500 < spent + more
    assert capped.stdout.splitlines()[-1] == (
        "stopped before step 0; to continue, raise max_tokens_total, for example: "
        f"coderl train log_path={path} resume=must max_tokens_total=3000"
    )
    first = coderl("train", f"log_path={path}", "max_tokens_total=none")
    assert first.returncode == 0, first.stderr
    final = (path / "evals/final/rollouts.parquet").read_bytes()
    second = coderl("train", f"log_path={path}", "max_steps=3", "resume=must")
    assert second.returncode == 0, second.stderr
    assert f"run directory: {path} (resuming at step 1)" in second.stdout
    assert "changed on resume: resume" not in second.stdout
    assert "max_steps: 1 -> 3" in second.stdout
    assert (path / "evals/final-step-000000/rollouts.parquet").read_bytes() == final
    assert list(load_run(path).evals) == ["baseline", "final-step-000000", "step-000001", "final"]
    assert step_rows(path) == step_rows(run)
    assert rollouts(path).equals(rollouts(run))
    for flow in (("train", f"pool={pool}"), ("evaluate", "checkpoint=data/nano"), ("curate",)):
        refusal = refused(*flow, "preset=nano", "max_usd=1")
        assert refusal.startswith(f"coderl {flow[0]}: max_usd=1: what ") and "prices=prefill:" in refusal


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
    words = ("curate", "preset=nano", "limit=16", "profile_samples=2", "mix=hard:0.5,easy:0.5", "band_low=0.05")
    process = Command(flow_environment, *words, f"name={folder}")
    wait_for(folder / "shards/0000/groups", process)
    said = re.fullmatch("stopped; to continue: coderl (curate .*)", interrupted(process)[-1])
    assert said
    command = shlex.split(said[1])
    assert set(command) == {*words, f"name={folder}"}
    done = coderl(*command)
    assert "continuing where an earlier start with these settings stopped" in done.stdout, done.stderr
    assert (folder / "manifest.json").is_file()


def test_the_same_command_goes_on_with_the_evaluation_that_was_interrupted_and_samples_nothing_twice(
    flow_environment: dict[str, str], tmp_path: Path
) -> None:
    words = ("evaluate", "preset=nano", "checkpoint=data/nano", "eval_limit=24", "max_tokens=64")
    evals = tmp_path / "code-rl-logs/evals"
    gateway = Gateway(flow_environment["TINKER_BASE_URL"])
    gateway.most = 8  # so that it is not done before the signal comes
    with gateway.serving():
        home = flow_environment | {"HOME": str(tmp_path), "TINKER_BASE_URL": gateway.url}
        process = Command(home, *words)
        while process.poll() is None and not list(evals.glob("*/groups/*.parquet")):
            time.sleep(0.01)
        lines = interrupted(process)
        (folder,) = evals.iterdir()
        recorded = len(list(folder.glob("groups/*.parquet")))
        assert f"evaluation directory: {folder}" in lines
        assert lines[-1].startswith(
            "stopped; to continue: coderl evaluate preset=nano model_name=data/nano max_tokens=64 checkpoint=data/nano "
        )
        assert lines[-1].endswith(f" eval_limit=24 log_path={folder}")
        gateway.seeds, gateway.most = [], None
        again = warm_start.run(home, *process.arguments)
    assert again.returncode == 0, again.stderr
    assert "continuing where an earlier start with these settings stopped" in again.stdout
    assert 0 < recorded == 24 - len(gateway.seeds)
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


def test_ctrl_c_cancels_a_flow_at_once_where_it_awaits_nothing() -> None:
    steps: list[str] = []

    async def reading() -> None:
        try:
            async with interruptible():
                signal.raise_signal(signal.SIGINT)
                steps.append("read on")
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # cleaning up is not interrupted
            steps.append("cancelled")
            raise

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else asyncio sets no handler of its own
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(ended_by_sigterm(reading()))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert steps == ["cancelled"]


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
