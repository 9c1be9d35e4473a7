"""What earlier versions began, and a SIGKILL ended, goes on with this one: runs in their second step, a curation in its
second shard.

`recorded_runs/` has them as they were recorded, without what names a machine, the pool that the runs were trained on,
and the one that the curation's own version made.
"""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from coderl_tasks.insight.query import connect
from coderl_tasks.insight.record import load_run
from coderl_tasks.journal.atomic import read_rows
from coderl_tasks.journal.run_config import FORMAT
from coderl_tasks.journal.steps import StepJournal
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA, SAMPLED_SCHEMA
from coderl_tasks.problems import LABEL_COLUMNS

RECORDED = Path(__file__).with_name("recorded_runs")
DRAWN = ["problem_id", "attempt", "sample_index", "completion_tokens", "logprobs"]
RUNS = sorted(file.parent for file in RECORDED.glob("*/config.json"))


@pytest.mark.parametrize("recorded", RUNS, ids=lambda run: run.name)
def test_a_run_of_an_earlier_version_goes_on(
    recorded: Path, coderl: Callable[..., "subprocess.CompletedProcess[str]"], run: Path, tmp_path: Path
) -> None:
    """Its states are gone: it gets those of `run` to begin with, and replays what it recorded."""
    initial = read_rows(run / "checkpoints.jsonl")[0]
    run = shutil.copytree(recorded, tmp_path / "run")
    (run / "checkpoints.jsonl").write_text(json.dumps(initial) + "\n")
    first, group = run / "steps" / "000000", pl.read_parquet(run / "steps/000001/groups/00.parquet")
    before = {path: path.read_bytes() for path in first.iterdir()}
    asked_for = json.loads((run / "config.json").read_text())

    done = coderl("train", f"log_path={run}", "resume=must", f"pool={RECORDED / 'pool.parquet'}")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming at step 1" in done.stdout
    assert {path: path.read_bytes() for path in before} == before
    sampled = pl.read_parquet(run / "steps/000001/sampled.parquet")
    assert sampled.filter(group_index=0).select(group.columns).equals(group)
    assert load_run(run).metrics["step"].to_list() == [0, 1]
    config = json.loads((run / "config.json").read_text())
    assert config["format"] == FORMAT
    assert {key: value for key, value in asked_for.items() if config[key] != value}.keys() <= {"pool", "log_path"}
    added = config.keys() - asked_for.keys() - {"format", "probe"}
    said = next((line for line in done.stdout.splitlines() if line.startswith("settings that were not there")), "")
    assert all(f"{key}=" in said for key in added)
    assert bool(said) == bool(added)


def test_a_curation_of_an_earlier_version_goes_on(
    coderl: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    """In its second shard a round of one problem is graded, that of another only sampled."""
    pool = shutil.copytree(RECORDED / "curation", tmp_path / "pool")
    shard = pool / "shards" / "0001"
    recorded = pl.concat(
        pl.read_parquet(shard / "groups" / f"{place}.parquet", columns=DRAWN) for place in ("00", "1000")
    )
    first = (pool / "shards" / "0000" / "rollouts.parquet").read_bytes()
    sizes = ("limit=12", "shard_size=6", "max_tests=3", "band_low=0", "band_high=1")
    sampling = ("profile_mode=fixed", "profile_samples=4", "profile_round=2")

    done = coderl("curate", "preset=nano", *sizes, *sampling, f"name={pool}")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "going on where an earlier start with these settings stopped" in done.stdout
    ended, before = pl.read_parquet(pool / "pool.parquet"), pl.read_parquet(RECORDED / "curation-ends-as.parquet")
    assert ended.drop(*LABEL_COLUMNS, "difficulty").equals(before.drop("difficulty"))
    assert not ended.select(*LABEL_COLUMNS, "difficulty").null_count().sum_horizontal().item()
    assert (pool / "shards" / "0000" / "rollouts.parquet").read_bytes() == first
    kept = pl.read_parquet(shard / "rollouts.parquet", columns=DRAWN).join(recorded, on=DRAWN[:3], how="semi")
    assert recorded.height == 4 and kept.sort(DRAWN[:3]).equals(recorded.sort(DRAWN[:3]))


def test_a_column_that_came_later_is_null_in_earlier_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = shutil.copytree(RUNS[0], tmp_path / "run")
    monkeypatch.setitem(ROLLOUT_SCHEMA, "later", pl.Int32())
    monkeypatch.setitem(SAMPLED_SCHEMA, "later", pl.Int32())
    step = StepJournal(run / "steps" / "000000", 0)
    for frame in (step.read_sampled(), step.read_scored(), load_run(run).rollouts(["later"]).collect()):
        assert frame is not None
        assert frame["later"].dtype == pl.Int32 and frame["later"].to_list() == [None] * 8
    assert StepJournal(run / "steps" / "000001", 1).groups.read()[0]["later"].null_count() == 4
    with connect(run) as connection:
        found = connection.execute("SELECT count(*), count(later), max(later) + 1 FROM rollouts").fetchone()
    assert found == (8, 0, None)
