"""Reading run and curation directories."""

import json
import os
import shutil
from pathlib import Path

import polars as pl
import pytest

from coderl_tasks.cli import main
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.insight.record import groups_in, joined_groups, load_curation, load_run, training_metrics
from coderl_tasks.journal.atomic import DamagedFileError
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.steps import INDEX_SCHEMA


def test_run_is_read_with_evaluations_in_order(run_dir: Path) -> None:
    run = load_run(run_dir)
    assert run.metrics["step"].to_list() == list(range(30))
    assert list(run.evals) == ["baseline", "step-000009", "step-000019", "final"]
    assert run.baseline is not None and run.baseline.step == -1
    assert run.latest is run.final and run.final is not None and run.final.step == 29
    assert run.rollouts(["step", "verdict"]).collect().height == 30 * 8 * 16


def test_a_group_says_why_the_update_skipped_it(tmp_path: Path) -> None:
    kinds: dict[str | None, list[tuple[str, float | None]]] = {
        "fewer than two graded": [("infra_error", None), ("passed", 1.0)],
        "all passed": [("passed", 1.0), ("passed", 1.0), ("infra_error", None), ("passed", None)],
        "none in format": [("format_error", -0.1), ("format_error", -0.1)],
        "none passed": [("wrong_answer", 0.0), ("time_limit", 0.0), ("passed", None)],
        "equal rewards": [("passed", 0.5), ("wrong_answer", 0.5)],
        None: [("passed", 1.0), ("wrong_answer", 0.0)],
    }
    rows = [
        {"step": 0, "group_index": index, "verdict": verdict, "reward": reward, "trained": why is None}
        for index, (why, completions) in enumerate(kinds.items())
        for verdict, reward in completions
    ]
    pl.DataFrame(rows, schema_overrides=INDEX_SCHEMA).write_parquet(tmp_path / "000063.parquet")
    groups = joined_groups([groups_in(tmp_path / "000063.parquet")])
    assert groups["why_skipped"].to_list() == list(kinds)
    assert groups["passed"].to_list() == [1, 2, 0, 0, 1, 1], "on_hack=quarantine took the reward of a pass without one"


def test_a_run_that_has_only_begun_is_empty(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path / "new", {"seed": 0}).close()
    run = load_run(tmp_path / "new")
    assert run.metrics.is_empty() and run.latest is None
    assert run.rollouts(["reward"]).collect().height == 0


def test_torn_last_line_of_metrics_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "mean_reward": 0.5}\n{"step": 1, "mean_re')
    assert load_run(tmp_path).metrics["step"].to_list() == [0]


def test_damaged_metrics_are_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('not json\n{"step": 1, "mean_reward": 0.5}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    "value", ["NaN", "-Infinity", "1" + "0" * 400, "1e30", '"0.5"', "[1]", "{}"], ids=lambda value: value[:9]
)
@pytest.mark.parametrize("name", ["mean_reward", "step"])
def test_metrics_that_no_run_writes_are_named(tmp_path: Path, name: str, value: str) -> None:
    other = '"step": 1, ' if name != "step" else '"mean_reward": 0.5, '
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 0, "mean_reward": 0.5}}\n{{{other}"{name}": {value}}}\n')
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl is damaged: row 2"):
        load_run(tmp_path)


def test_a_step_done_again_counts_once() -> None:
    rows = [{"step": 0, "mean_reward": 0.1}, {"step": 1, "mean_reward": 0.2}, {"step": 0, "mean_reward": 0.3}]
    assert training_metrics(rows).rows() == [(0, 0.3), (1, 0.2)]


def test_other_directories_are_refused(tmp_path: Path) -> None:
    for load in (load_run, load_curation):
        with pytest.raises(ConfigError, match="is not a"):
            load(tmp_path / "missing")


def test_curation_is_read_without_its_tests(pool_dir: Path) -> None:
    curation = load_curation(pool_dir)
    assert len(curation.pool) + len(curation.dropped) == 240
    assert "tests" not in curation.pool.columns


@pytest.mark.parametrize("name", ["pool.parquet", "dropped.parquet"])
@pytest.mark.parametrize("kind", ["text", "pipe", "folder"])
def test_a_damaged_table_of_a_pool_is_named(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind == "text":
        path.write_text("root:x:0:0")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    (tmp_path / "manifest.json").write_text("{}")
    curation = load_curation(tmp_path)
    with pytest.raises(DamagedFileError, match=name):
        _ = curation.pool, curation.dropped


@pytest.mark.parametrize("name", ["steps/000001/scored.parquet", "evals/final/rollouts.parquet"])
@pytest.mark.parametrize("kind", ["bytes", "columns"])
def test_a_damaged_table_of_a_run_is_named(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs_dir / "run-0", run)
    if kind == "bytes":
        (run / name).write_bytes(b"PAR1" + bytes(99))
    else:
        pl.DataFrame({"problem_id": [1], "step": ["x"]}).write_parquet(run / name)
    for command in ("report", "show"):
        assert main([command, str(run)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"coderl {command}: {run / name} is damaged: ") and said.count("\n") == 1


def test_a_model_of_others_shows_no_prompts(runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, model = tmp_path / "run", tmp_path / "model"
    shutil.copytree(runs_dir / "run-0", run)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"model_name": "/elsewhere", "environment": "x"}))
    assert main(["show", str(run)]) == 0
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "tokenizer.json").write_text("[" * 100_000)
    (run / "config.json").write_text(json.dumps(config | {"model_name": str(model)}))
    assert main(["show", str(run)]) == 2
    assert f"{model / 'tokenizer.json'} is damaged: no tokenizer" in capsys.readouterr().err


def test_a_pool_without_its_table_has_a_report(pool_dir: Path, tmp_path: Path) -> None:
    shutil.copy(pool_dir / "manifest.json", tmp_path)
    assert main(["report", str(tmp_path)]) == 0
