"""A run that is told to stop: one line says why, one how to go on, and the record is whole."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from run_records import ENDS, TINY, final_weights, rollouts, start, step_rows, wait_for


@pytest.mark.parametrize(
    ("number", "code", "word", "moment"),
    [
        (signal.SIGINT, 130, "interrupted", "steps/000001/groups"),
        (signal.SIGTERM, 143, "terminated", "steps/000001/scored.parquet"),
    ],
)
def test_a_signal_ends_a_run_in_two_lines_and_costs_nothing(
    flow_environment: dict[str, str],
    coderl,
    run: Path,
    pool: Path,
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    word: str,
    moment: str,
):
    path = tmp_path / "run"
    words = ("train", "preset=nano", f"pool={pool}", f"log_path={path}", "max_steps=3", *TINY, ENDS)
    process = start(flow_environment, *words, stderr=subprocess.PIPE)
    wait_for(path / moment, process)
    os.kill(process.pid, number)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (code, f"coderl train: {word}\n")
    assert re.fullmatch(
        f"stopped before step [12]; coderl train log_path={path} resume=must goes on", output.splitlines()[-1]
    )
    assert not list(path.rglob("*.tmp"))
    done = coderl("train", f"log_path={path}")
    assert done.returncode == 0, done.stderr
    assert step_rows(path) == step_rows(run)
    assert rollouts(path).equals(rollouts(run))
    assert final_weights(path) == final_weights(run)
