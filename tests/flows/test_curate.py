import json
from pathlib import Path

import polars as pl

from coderl_tasks.problems.problem import PROBLEM_SCHEMA
from coderl_tasks.problems.profile_columns import PROFILE_COLUMNS, PROFILE_SCHEMA, SOLUTION_SCHEMA
from tests.flows.conftest import Coderl, Refused


def test_a_pool_has_its_files_and_loses_nothing(pool: Path) -> None:
    manifest = json.loads((pool / "manifest.json").read_text())
    kept, dropped = pl.read_parquet(pool / "pool.parquet"), pl.read_parquet(pool / "dropped.parquet")
    assert manifest["model_name"] == "data/nano"
    assert manifest["read"] == 12 == kept.height + dropped.height
    assert kept.schema == pl.Schema(PROBLEM_SCHEMA | PROFILE_COLUMNS)
    assert max(kept["tests_total"].to_list()) <= 3
    checks = pl.read_parquet(pool / "solutions.parquet")
    assert checks.schema == pl.Schema(SOLUTION_SCHEMA)
    assert checks.height == 12 and set(checks["status"]) == {"good", "no_solution"}
    assert pl.read_parquet(pool / "profile.parquet").schema == pl.Schema(PROFILE_SCHEMA)
    assert (pool / "report.html").read_text().startswith("<!doctype html>")


def test_nothing_in_the_band_is_one_line_and_exit_1(coderl: Coderl, tmp_path: Path) -> None:
    sizes = ("limit=2", "profile_samples=2", "max_tests=1", "max_tokens=1")
    done = coderl("curate", "preset=nano", *sizes, f"name={tmp_path / 'empty'}")
    assert done.returncode == 1
    assert done.stderr.startswith("coderl curate: Nothing lies in the band: of 2 rows none has")
    assert "(2 too_hard): take easier problems, or a model that solves some of them." in done.stderr
    assert done.stderr.count("\n") == 1
    assert pl.read_parquet(tmp_path / "empty" / "profile.parquet").height == 2
    assert (tmp_path / "empty" / "report.html").is_file()


def test_a_data_set_that_is_not_there_is_one_line_and_exit_2(refused: Refused, tmp_path: Path) -> None:
    assert "nothing.parquet" in refused("curate", "preset=nano", f"dataset={tmp_path / 'nothing.parquet'}")


def test_a_screened_pool_has_one_round_of_each_problem_at_most(coderl: Coderl, tmp_path: Path) -> None:
    folder = tmp_path / "screened"
    sizes = ("dataset=data/skewed", "limit=24", "shard_size=10", "max_tests=2", "check_solutions=false")
    limits = ("profile_mode=screen", "screen_skip=0.58", "screen_drop=0.32")
    done = coderl("curate", "preset=nano", *sizes, *limits, f"name={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    kept, dropped, profile = (pl.read_parquet(folder / f"{name}.parquet") for name in ("pool", "dropped", "profile"))
    unsampled = dropped.filter(stage="screen")
    assert kept.height + dropped.height == 24
    assert profile.height + unsampled.height == 24 - dropped.filter(~pl.col("stage").is_in(["screen", "band"])).height
    assert set(profile["n_samples"]) == {2} and set(profile["rounds"]) == {1}
    assert 0 < unsampled.height < 18, "the first quarter is sampled, whatever it is"
    assert unsampled["detail"].str.extract(r"probability of (0\.\d+)$").cast(pl.Float64).is_between(0, 0.58).all()
    samples = pl.read_parquet(sorted(folder.glob("shards/*/rollouts.parquet")))
    assert samples.height == 2 * profile.height and set(samples["problem_id"]) == set(profile["problem_id"])
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["spent"]["samples"] == samples.height
    assert set(manifest["learnable"]) == {"kept", "dropped", "unsampled"}
    assert f"{unsampled.height} of 24 problems are hardly learnable" in done.stdout
