"""Training on a data set itself: `train` makes a pool of all its problems, from which nothing is sampled."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coderl_tasks.curation.find_pool import FoundPool, wanted_pool
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.planning import flow_plans
from coderl_tasks.planning.estimates import estimates
from coderl_tasks.problems.problem import PROBLEM_SCHEMA
from coderl_tasks.problems.profile_columns import ANSWER_COLUMNS, PROFILE_COLUMNS
from coderl_tasks.services import Services
from coderl_tasks.settings import CurateSettings, TrainSettings
from tests import warm_start
from tests.flows.run_records import TINY, rollouts, step_rows, wait_for

ROWS = [json.loads(line) for line in (PROJECT_ROOT / "data/mini/taco-train.jsonl").open()][:40]


def with_pools(arguments: list[str]) -> None:
    """`coderl` with another place for the pools that `train` makes: those of a checkout lie in it."""
    pools, *words = arguments
    pytest.MonkeyPatch().setattr(flow_plans, "wanted_pool", partial(wanted_pool, pools=Path(pools)))
    warm_start.coderl(words)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    return file


def test_train_makes_the_pool_of_its_data_set_also_after_a_kill(
    flow_environment: dict[str, str], dataset: Path, tmp_path: Path
) -> None:
    pools = tmp_path / "pools"
    words = ("preset=nano", f"dataset={dataset}", "test_share=0.2", "selection=adaptive", "first_completions=3")
    command = (pools, "train", *words, *TINY, "eval.ends_limit=2", "max_steps=1")

    def trained(name: str) -> str:
        done = warm_start.run(flow_environment, *command, f"log_path={tmp_path / name}", main=with_pools)
        assert done.returncode == 0, done.stderr
        return done.stdout

    killed = warm_start.Command(flow_environment, *command, f"log_path={tmp_path / 'run'}", main=with_pools)
    folder = Path(str(planned(dataset, pools).name))
    wait_for(folder / "screening" / "request.json", killed)
    killed.kill()
    killed.wait()
    assert not (folder / "manifest.json").exists() and not (tmp_path / "run" / "config.json").exists()

    said = trained("run")
    assert f"no pool of {dataset} yet: making one of all its problems, without a profile: {folder}" in said
    assert "continuing where an earlier start" in said
    pool, manifest = pl.read_parquet(folder / "pool.parquet"), json.loads((folder / "manifest.json").read_text())
    assert (
        pool.schema == pl.Schema(PROBLEM_SCHEMA | PROFILE_COLUMNS | ANSWER_COLUMNS)
        and pool["pass_rate"].null_count() == pool.height > 20
    )
    assert pool.height + manifest["dropped"] == len(ROWS) and manifest["spent"]["samples"] == 0
    assert "policy" not in manifest and manifest["band_low"] is None
    first = rollouts(tmp_path / "run")
    assert set(first["problem_id"]) <= set(pool["problem_id"])
    # Another run on the same data finds it, and trains as the first one did.
    assert "no pool of" not in trained("again") and list(pools.iterdir()) == [folder]
    assert step_rows(tmp_path / "again") == step_rows(tmp_path / "run")


def planned(dataset: Path, pools: Path, **values: Any) -> CurateSettings:
    settings = TrainSettings.model_validate({"preset": "nano", "dataset": str(dataset), "test_share": 0.2, **values})
    pool = wanted_pool(settings, 3, pools)
    assert isinstance(pool, CurateSettings)
    return pool


def test_the_pool_is_named_by_what_decides_its_content(dataset: Path, tmp_path: Path) -> None:
    made = planned(dataset, tmp_path)
    assert (made.profile_mode, made.check_solutions, made.dataset) == ("none", False, str(dataset))
    assert made.name == planned(dataset, tmp_path, max_tokens=9, seed=3, lora_rank=2, eval={"limit": 5}).name
    assert made.name != planned(dataset, tmp_path, test_share=0.3).name
    dataset.write_text("\n".join(map(json.dumps, ROWS[1:])))
    assert made.name != planned(dataset, tmp_path).name, "other rows are another pool"


def test_a_pool_of_that_data_set_comes_before_one_that_is_made(dataset: Path, tmp_path: Path) -> None:
    def pool(name: str, settings: CurateSettings, **manifest: Any) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "pool.parquet").touch()
        values = {"model_name": "data/nano", "kept": 30, "settings": settings.content(), **manifest}
        (tmp_path / name / "manifest.json").write_text(json.dumps(values))

    def found(**values: Any) -> str | None:
        pool = wanted_pool(TrainSettings.model_validate({"preset": "nano", **values}), 3, tmp_path)
        return pool.name if isinstance(pool, FoundPool) else None

    mine = {"dataset": str(dataset), "test_share": 0.2}
    assert found() is None and found(**mine) is None
    pool("dataset-other-1", CurateSettings.model_validate({"preset": "nano", "profile_mode": "none"}), band_low=None)
    assert found() is None, "what a run made for its data is not what others mean"
    pool("curated", CurateSettings.model_validate({"preset": "nano"}), band_low=0.1)
    assert found() == found(dataset="data/mini") == found(pool="latest", **mine) == "curated"
    assert found(**mine) is None
    pool("of-mine", CurateSettings.model_validate({"preset": "nano", **mine}), kept=2)
    assert found(**mine) is None, "too small for a step"
    pool("larger", CurateSettings.model_validate({"preset": "nano", **mine}))
    assert found(**mine) == "larger" and found(**mine | {"test_share": 0.3}) is None


async def test_an_estimate_needs_no_pool(embedded: Services, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", str(embedded.tinker_url))
    monkeypatch.setenv("TINKER_API_KEY", str(embedded.tinker_api_key))
    given = {"preset": "nano", "dataset": str(dataset), "test_share": 0.2, "max_steps": 3}
    (train, evaluate), _ = await estimates(TrainSettings.model_validate(given))
    assert train.expected.prompt > 0 and train.high.completion == 3 * 8 * 16 * 128
    assert "at most" in train.by and evaluate.expected.prompt > 0
    (profile,), _ = await estimates(CurateSettings(preset="nano", profile_mode="none"))
    assert profile.high.counted == 0
