"""Saved states that are gone when a run goes on, and sampling one step ahead: the run ends the same."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import polars as pl
import pytest

from coderl_tasks.insight.record import load_run, run_state
from coderl_tasks.insight.warning_signs import hints
from coderl_tasks.training.run import Act
from tests.flows.conftest import Coderl, Refused
from tests.flows.run_records import ENDS, TINY, final_weights, rollouts, rows, step_rows

AHEAD = "max_steps_off_policy=1"


@pytest.fixture(scope="module")
def ahead(coderl: Coderl, pool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, each sampled while the one before was trained."""
    path = tmp_path_factory.mktemp("runs") / "ahead"
    done = coderl("train", "preset=nano", f"pool={pool}", f"log_path={path}", "max_steps=3", *TINY, ENDS, AHEAD)
    assert done.returncode == 0, done.stderr
    return path


def forget(path: Path, *, state: bool = False, sampler: bool = False) -> None:
    """Make the paths in a step's commit lead nowhere, as those do whose time is over."""
    commit = json.loads((path / "commit.json").read_text())
    for key, wanted in (("state_path", state), ("sampler_path", sampler)):
        if wanted:
            assert commit[key]
            commit[key] += "-gone"
    (path / "commit.json").write_text(json.dumps(commit))


def test_an_older_state_and_a_longer_replay_serve_where_newer_ones_are_gone(
    coderl: Coderl, run: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    shutil.copytree(run, path)
    (path / "steps/000002/commit.json").unlink()
    (path / "steps/000002/sampled.parquet").write_bytes(b"PAR1")  # its scores hold the samples too
    forget(path / "steps/000000", state=True)
    initial, kept, *_ = rows(path / "checkpoints.jsonl")
    assert (initial["name"], kept["name"]) == ("initial", "step-000001")
    kept["state_path"] += "-gone"
    (path / "checkpoints.jsonl").write_text(f"{json.dumps(initial)}\n{json.dumps(kept)}\n")
    done = coderl("train", f"log_path={path}")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("an older state is restored, and the recorded updates since are replayed") == 2
    assert step_rows(path) == step_rows(run)
    assert rollouts(path).equals(rollouts(run))
    assert final_weights(path) == final_weights(run)
    sampled = "steps/000002/sampled.parquet"
    assert pl.read_parquet(path / sampled).equals(pl.read_parquet(run / sampled))


def test_a_step_ahead_is_sampled_from_the_policy_before_the_last(ahead: Path, run: Path) -> None:
    frame = rollouts(ahead)
    assert dict(frame.select("step", "sampler_step").unique().sort("step").iter_rows()) == {0: -1, 1: -1, 2: 0}
    first = pl.col("step") == 0
    assert frame.filter(first).equals(rollouts(run).filter(first))
    gaps = [abs(row["kl_sample_train"]) for row in step_rows(ahead)]
    assert gaps[0] < 1e-6 < min(gaps[1:]), "the first step is on policy, the others are one update behind"


def test_a_step_ahead_whose_sampler_weights_are_gone_is_sampled_from_the_restored_policy(
    coderl: Coderl, ahead: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    shutil.copytree(ahead, path)
    shutil.rmtree(path / "steps/000002")
    forget(path / "steps/000000", state=True, sampler=True)
    (path / "steps/000000/scored.parquet").write_bytes(b"PAR1")  # needed to restore the policy after it
    lines = (path / "checkpoints.jsonl").read_text().splitlines()
    (path / "checkpoints.jsonl").write_text("\n".join(lines[:-1]).replace("/initial", "/gone") + "\n")
    done = coderl("train", f"log_path={path}")
    assert done.returncode == 0, done.stderr
    assert "step 0: its scored rollouts are missing or damaged: its samples are scored again" in done.stdout
    assert "the policy after 1 updates is restored to sample from it" in done.stderr
    assert "the policy comes from the base model, and the recorded updates since are replayed" in done.stderr
    assert step_rows(path) == step_rows(ahead)
    assert rollouts(path).equals(rollouts(ahead))
    assert final_weights(path) == final_weights(ahead)


def test_what_steer_act_decided_is_in_force_and_ends_the_run(coderl: Coderl, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(run, path, ignore=shutil.ignore_patterns("000002", "final"))
    (path / "checkpoints.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows(path / "checkpoints.jsonl")[:2])
    )
    acts = [Act("learning_rate", 0.5, 2, "a"), Act("temperature", 0.3, 2, "b"), Act("max_steps", 0.0, 3, "c")]
    commit = json.loads((path / "steps/000001/commit.json").read_text())
    commit["metrics"]["act"] = "made up"
    (path / "steps/000001/commit.json").write_text(json.dumps(commit | {"acts": [asdict(act) for act in acts]}))

    done = coderl("train", f"log_path={path}", "steer=act", "max_steps=9")

    assert done.returncode == 0, done.stderr
    assert "steer: 'advise' -> 'act'" in done.stdout
    assert "act of step 1: made up" in done.stdout
    assert f"to evaluate it: coderl evaluate checkpoint={path}\n" in done.stdout
    last = json.loads((path / "steps/000002/commit.json").read_text())
    assert (last["adam"]["learning_rate"], last["metrics"]["lr"], "acts" in last) == (5e-4, 5e-4, False)
    assert abs(last["metrics"]["kl_sample_train"]) > 1e-3, "sampled at another temperature than it is trained at"
    assert not (path / "steps/000003").exists() and rows(path / "checkpoints.jsonl")[-1]["step"] == 2
    assert json.loads((path / "evals/final/summary.json").read_text())["step"] == 2
    config = json.loads((path / "config.json").read_text())
    assert run_state(path, config) == "finished"
    assert run_state(path, config | {"steer": "advise"}) == "stopped at step 3"
    assert "step 1: act: made up" in hints(load_run(path))


def test_running_ahead_cannot_be_changed_on_the_way(refused: Refused, run: Path) -> None:
    assert "max_steps_off_policy: 0 -> 1" in refused("train", f"log_path={run}", "max_steps=4", AHEAD)
