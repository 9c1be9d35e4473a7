"""Prompts and a reward of the user's own, through the command: curated, trained on, stopped for, mended, evaluated."""

import json
import re
from pathlib import Path

import polars as pl
import pytest

from coderl_tasks.journal.atomic import read_rows
from coderl_tasks.policy.rollout import VARYING_COLUMNS
from tests.flows.conftest import Coderl, Refused
from tests.flows.run_records import TINY, final_weights

REWARD = """
def compute_reward(completion, ground_truth):
    lines = completion.count("\\n")
    return 1.0 if lines <= int(ground_truth) else lines / 100
"""
BROKEN = REWARD.replace("int(ground_truth)", "int(ground_truth[99])")
CUSTOM = ("preset=nano", "environment=custom")


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a user's prompts and reward file."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "reward.py").write_text(REWARD)
    rows = [
        {"prompt": f"Read {n} integers, one per line. Write a short Python program that prints their sum times {n}.",
         "ground_truth": 3 + n % 3}
        for n in range(2, 14)
    ]  # fmt: skip
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def custom_pool(coderl: Coderl, mine: Path) -> Path:
    sizes = ("profile_samples=2", "band_low=0", "band_high=1", "test_share=0.2")
    data = (f"dataset={mine}/prompts.jsonl", f"reward_file={mine}/reward.py")
    done = coderl("curate", *CUSTOM, *data, *sizes, f"name={mine}/pool")
    assert done.returncode == 0, done.stderr
    assert re.search("to train on it: coderl train .*environment=custom .*reward_file=.* pool=", done.stdout)
    return mine / "pool"


def test_a_run_stops_for_a_broken_reward_and_goes_on_with_the_mended_one(
    coderl: Coderl, mine: Path, custom_pool: Path, tmp_path: Path
) -> None:
    manifest = json.loads((custom_pool / "manifest.json").read_text())
    assert manifest["settings"]["environment"] == "custom"
    assert manifest["kept"] == 12 - manifest["dropped"] and set(manifest["dropped_by_reason"]) == {"test_side/held_out"}
    reward = tmp_path / "reward.py"
    train = (
        "train",
        *CUSTOM,
        f"reward_file={reward}",
        f"pool={custom_pool}",
        "max_steps=1",
        *TINY[:-2],
        "eval_every=-1",
        "selection=cycle",
    )

    reward.write_text(REWARD)
    assert coderl(*train, f"log_path={tmp_path}/quiet").returncode == 0
    reward.write_text(BROKEN)
    stopped = coderl(*train, f"log_path={tmp_path}/run")
    assert stopped.returncode == 1
    for part in ("step 0: compute_reward failed on", "more than 5%", "line 4, in compute_reward", "IndexError"):
        assert part in stopped.stderr + stopped.stdout
    assert not (tmp_path / "run" / "steps" / "000000" / "scored.parquet").exists()

    reward.write_text(REWARD)
    mended = coderl("train", f"log_path={tmp_path}/run")
    assert mended.returncode == 0, mended.stderr
    assert "warning: changed on resume, from step 0 on: reward_sha256" in mended.stdout
    # It ends as the run that never stopped: what was sampled for the broken function is scored with the mended one.
    quiet, run = (
        pl.read_parquet(sorted((tmp_path / name).glob("steps/*/scored.parquet"))) for name in ("quiet", "run")
    )
    assert run.drop(VARYING_COLUMNS).equals(quiet.drop(VARYING_COLUMNS))
    assert final_weights(tmp_path / "run") == final_weights(tmp_path / "quiet")
    taken = run.unique(["step", "group_index"], maintain_order=True)["problem_id"]
    assert taken.to_list() == pl.read_parquet(custom_pool / "pool.parquet")["problem_id"].head(3).to_list()
    correct = run["reward"] >= 1
    assert run["verdict"].to_list() == ["passed" if is_correct else "wrong_answer" for is_correct in correct]
    assert run["reward_error"].null_count() == run.height and run["reward"].null_count() == 0
    assert [row["reward_errors"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [0]

    # An evaluation takes environment, reward file and held-out prompts from the run.
    done = coderl("evaluate", f"checkpoint={tmp_path}/run", "log_path=mine")
    assert done.returncode == 0, done.stderr
    evaluated = pl.read_parquet(tmp_path / "run" / "evals" / "mine" / "rollouts.parquet")
    mean_reward = json.loads((tmp_path / "run" / "evals" / "mine" / "summary.json").read_text())["mean_reward"]
    assert mean_reward == pytest.approx(evaluated["reward"].mean()) and f"mean reward  {mean_reward:.3f}" in done.stdout
    assert evaluated.height == manifest["dropped"] and set(evaluated["verdict"]) <= {"passed", "wrong_answer"}


def test_what_does_not_fit_is_refused_with_one_line(
    refused: Refused, mine: Path, custom_pool: Path, pool: Path, tmp_path: Path
) -> None:
    data, file = f"dataset={mine}/prompts.jsonl", f"reward_file={mine}/reward.py"
    assert "environment=custom needs reward_file=FILE.py" in refused("curate", *CUSTOM, data)
    assert "reward=fraction is a setting of environment=code" in refused("train", *CUSTOM, file, "reward=fraction")
    assert "add environment=custom, or leave it out" in refused("train", "preset=nano", file)
    assert "is of environment=custom, not environment=code" in refused("train", "preset=nano", f"pool={custom_pool}")
    assert "is of environment=code, not environment=custom" in refused("train", *CUSTOM, file, f"pool={pool}")
    (tmp_path / "slip.py").write_text("def compute_reward(completion, ground_truth)\n    return 1\n")
    said = refused("train", *CUSTOM, f"reward_file={tmp_path}/slip.py", f"pool={custom_pool}")
    assert said.endswith("slip.py, line 1: expected ':'\n")
