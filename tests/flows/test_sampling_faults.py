"""Runs on Tinker services that clone, shift or lose what they sample, or retire the model: each is named, and nothing
wrong is trained on."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from coderl_tasks.services import Services
from tests import warm_start
from tests.conftest import Serve
from tests.faults.sampling_faults import SamplingFaults
from tests.flows.run_records import rollouts, step_rows

SMALL = ("batch_size=24", "group_size=3", "max_tokens=64", "eval_every=-1")
Train = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def train(flow_environment: dict[str, str], serve: Serve, pool: Path) -> Train:
    """Runs `coderl train` behind a gateway, without evaluations."""

    def run(gateway: SamplingFaults, path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
        words = ("train", "preset=nano", f"pool={pool}", f"log_path={path}", *SMALL, *arguments)
        return warm_start.run({**flow_environment, "TINKER_BASE_URL": serve(gateway.app())}, *words)

    return run


def test_samples_without_log_probabilities_are_left_out(train: Train, embedded: Services, tmp_path: Path) -> None:
    gateway = SamplingFaults(str(embedded.tinker_url), lossy=0.06)
    done = train(gateway, tmp_path / "run", "max_steps=2")
    assert done.returncode == 0, done.stderr
    scored = rollouts(tmp_path / "run")
    lost = scored.filter(pl.col("logprobs").is_null())
    assert 0 < lost.height <= 4
    assert lost["verdict"].null_count() == lost.height and not lost["trained"].any()
    means = scored.group_by("step", "group_index").agg(pl.col("advantage").mean())
    assert max(means["advantage"].drop_nulls().abs().to_list()) < 1e-12
    rows = step_rows(tmp_path / "run")
    assert sum(row["samples_skipped"] for row in rows) == lost.height
    assert sum(row["infra_errors"] for row in rows) == 0
    assert "samples skipped 1" in done.stdout
    assert done.stdout.count("samples skipped: ") == 1, "said once, not after each step"
    assert "samples left out, no usable log-probabilities" in (tmp_path / "run/logs.log").read_text()
    silent = train(gateway, tmp_path / "run", "max_steps=3", "steer=off")
    assert silent.returncode == 0 and "resuming at step 2" in silent.stdout, silent.stderr
    assert "samples skipped: " not in silent.stdout, "a run that goes on says what is still so, but for steer=off"


def test_seeds_that_clone_are_not_sent_and_a_retired_model_ends_the_run(
    train: Train, embedded: Services, tmp_path: Path
) -> None:
    gateway = SamplingFaults(str(embedded.tinker_url), clones=True, retired_after=1)
    done = train(gateway, tmp_path / "run", "max_steps=3")
    assert done.returncode == 2
    assert "data/nano was retired while the run was at work: " in done.stderr and "data/newer" in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("coderl train: ")
    assert done.stdout.count("no seeds are sent") == 1
    assert json.loads((tmp_path / "run/config.json").read_text())["probe"]["seeds_clone"]
    (row,) = step_rows(tmp_path / "run")
    assert row["clone_groups"] == 0 and gateway.updates == 1
    assert gateway.seeds.count(None) == 1 + 3, "the probe's second try, and the step's three groups"


def test_clones_in_mid_run_are_named_and_not_trained_on(train: Train, embedded: Services, tmp_path: Path) -> None:
    gateway = SamplingFaults(str(embedded.tinker_url), clones=True, unseeded_too=True, spared=3)
    done = train(gateway, tmp_path / "run", "max_steps=1")
    assert done.returncode == 0, done.stderr
    (row,) = step_rows(tmp_path / "run")
    assert row["n_datums"] == 0 and row["clone_groups"] > 0 and row["duplicate_rate"] > 0.2
    assert "warning: step 0: clones: " in done.stdout and "clones have no signal" in done.stdout
    assert "step 0: clones: " in (tmp_path / "run/logs.log").read_text()
    assert "all 8 completions are the same, token for token: clones" in (tmp_path / "run/logs.log").read_text()


def test_log_probabilities_of_no_temperature_are_refused_before_a_step(
    train: Train, embedded: Services, tmp_path: Path
) -> None:
    gateway = SamplingFaults(
        str(embedded.tinker_url), shift=lambda logprobs, t: (logprobs / (t or 1)).astype(np.float32)
    )
    done = train(gateway, tmp_path / "run", "max_steps=1", "temperature=0.7")
    assert done.returncode == 2
    assert "so that importance ratios would be wrong: use temperature=1" in done.stderr
    assert not list((tmp_path / "run").glob("steps/*")) and gateway.updates == 0
