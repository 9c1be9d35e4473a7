"""A tiny run: its settings, and what is compared between runs."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.journal.checkpoints import get_last_checkpoint
from coderl_tasks.paths import coderl_home
from coderl_tasks.policy.rollout import VARYING_COLUMNS
from local_servers.tinker.checkpoint_store import CheckpointStore
from tests.warm_start import Command

TINY = ("batch_size=24", "group_size=3", "max_tokens=64", "save_every=2", "eval_every=2", "eval.limit=2")
ENDS = "eval.ends_limit=4"
OBSERVED = ("kl_base", "kl_base_k3", "tokens_base")
"""What only a run that observes the KL to the base model has in its training rows."""


def wait_for(file: Path, process: "Command | subprocess.Popen[str]") -> None:
    """Return as soon as `file` is there, which `process` makes."""
    deadline = time.monotonic() + 200
    while not file.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def step_rows(path: Path) -> list[dict[str, Any]]:
    """The training rows of a run's metrics without clocks."""
    metrics = [row for row in rows(path / "metrics.jsonl") if "mean_reward" in row]
    return [
        {key: value for key, value in row.items() if not key.startswith(("time_", "sandbox_faults"))} for row in metrics
    ]


def without_observed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in OBSERVED}


def rollouts(path: Path) -> pl.DataFrame:
    """A run's scored rollouts without clocks and addresses, and without what programs said, which may hold some."""
    return pl.read_parquet(sorted(path.glob("steps/*/scored.parquet"))).drop(
        *VARYING_COLUMNS, "failed_output", "reason"
    )


def final_weights(path: Path) -> dict[str, str]:
    """The SHA-256 of each file of a run's last checkpoint, on this session's Tinker server."""
    row = get_last_checkpoint(path)
    assert row is not None
    return checkpoint_weights(row["state_path"], coderl_home())


def checkpoint_weights(state_path: str, home: Path) -> dict[str, str]:
    """The SHA-256 of each file of a checkpoint, on the Tinker server with that CODERL_HOME."""
    record = CheckpointStore(home / "tinker").find(state_path)
    return {name: file.sha256 for name, file in record.files.items()}
