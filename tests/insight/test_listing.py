"""The runs and pools there are, as they are listed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coderl_tasks.cli import main
from coderl_tasks.insight.record import pools_table, run_state, runs_table
from coderl_tasks.journal.atomic import read_json, write_json
from coderl_tasks.journal.directory_lock import held_by
from coderl_tasks.journal.recorded_json import working_in
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.steps import Commit

CONFIG = {"model_name": "data/nano", "max_steps": 2, "eval": {"every": -1}}


def make_run(path: Path, steps: int, *, ends: bool = False) -> Path:
    """A run with so many committed steps; `ends` with its last checkpoint."""
    with RunDirectory.open(path, CONFIG) as run:
        for step in range(steps):
            run.step(step).write_commit(Commit(step, {"step": step, "mean_reward": 0.5}))
        if ends:
            (path / "checkpoints.jsonl").write_text(f'{{"name": "last", "step": {steps - 1}}}\n')
    return path


def test_a_run_whose_name_is_no_text_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"r\xfcn")
    make_run(tmp_path / name, 1)
    damaged = make_run(tmp_path / f"{name}-2", 1)
    (damaged / "config.json").write_text("{")
    for output in ("table", "csv", "json"):
        assert main(["runs", str(tmp_path), "--format", output]) == 0
    assert set(runs_table(tmp_path)["name"]) == {"r\\xfcn", "r\\xfcn-2"}
    assert "r\\xfcn" in capsys.readouterr().out


def test_each_run_has_its_state(tmp_path: Path) -> None:
    runs = {
        "stopped at step 1": make_run(tmp_path / "stopped", 1),
        "stopped at step 2": make_run(tmp_path / "not-saved", 2),
        "finished": make_run(tmp_path / "done", 2, ends=True),
        "never started": make_run(tmp_path / "begun", 0),
    }
    assert {run_state(path, CONFIG): path for path in runs.values()} == runs
    (tmp_path / "2026_11_21-10_00_00").mkdir()
    (tmp_path / "evals").mkdir()
    (tmp_path / "notes").mkdir()
    table = runs_table(tmp_path)
    states = dict(table.select("name", "state").iter_rows())
    assert states == {path.name: state for state, path in runs.items()} | {"2026_11_21-10_00_00": "never started"}
    assert dict(table.select("name", "steps").iter_rows())["not-saved"] == 2
    (tmp_path / "done" / "config.json").write_text("{")
    assert "damaged" in dict(runs_table(tmp_path).select("name", "state").iter_rows())["done"]


def test_a_run_shows_its_pass_at_1(run_dir: Path) -> None:
    row = runs_table(run_dir.parent).filter(name=run_dir.name).row(0, named=True)
    summaries = [read_json(run_dir / "evals" / name / "summary.json")["pass_at_1"] for name in ("baseline", "final")]
    assert [row["baseline_percent"], row["latest_percent"]] == [round(rate * 100, 1) for rate in summaries]
    assert row["megabytes"] > 0


def test_who_holds_a_run_is_seen_without_taking_the_lock(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", 1)
    assert held_by(path) is None
    with RunDirectory.open(path, CONFIG):
        assert held_by(path) == "this process"
        asked = "import sys; from pathlib import Path; from coderl_tasks.journal.directory_lock import held_by; "
        command = [sys.executable, "-c", asked + "print(held_by(Path(sys.argv[1])))", str(path)]
        for _ in range(2):  # asking leaves it as it is
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            assert said.startswith("process ")
        assert run_state(path, CONFIG) == "running"
    assert held_by(path) is None


def test_pools_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "done").mkdir()
    write_json(tmp_path / "done" / "manifest.json", {"model_name": "data/nano", "kept": 7})
    assert pools_table(tmp_path)["state"].to_list() == ["finished"]
    write_json(tmp_path / "done" / "manifest.json", {"model_name": "data/nano", "kept": 7, "settings": {"limit": 7}})
    for state, limit in (("finished", 7), ("finished, then restarted", 9)):
        with working_in(tmp_path / "done", {"limit": limit}, instead=""):
            assert pools_table(tmp_path)["state"].to_list() == ["running"]
        assert pools_table(tmp_path)["state"].to_list() == [state]
    write_json(tmp_path / "done" / "manifest.json", {"model_name": "data/nano", "kept": 0, "settings": {"limit": 9}})
    assert pools_table(tmp_path)["state"].to_list() == ["finished, empty"]
    write_json(tmp_path / "done" / "manifest.json", {"model_name": "data/nano", "kept": 7, "settings": {"limit": 9}})
    with working_in(tmp_path / "begun", {"model_name": "other"}, instead=""):
        pass
    rows = {row["name"]: row for row in pools_table(tmp_path).iter_rows(named=True)}
    assert rows["begun"]["state"] == "never started"
    (tmp_path / "begun" / "screening").mkdir()
    rows = {row["name"]: row for row in pools_table(tmp_path).iter_rows(named=True)}
    assert [rows["done"][key] for key in ("model", "problems")] == ["data/nano", 7]
    assert [rows["begun"][key] for key in ("state", "model", "problems")] == ["unfinished", "other", None]
    assert main(["pools", str(tmp_path), "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("name,state,model,problems,")
    assert main(["runs", str(tmp_path / "nothing")]) == 0
    assert capsys.readouterr().out == f"none in {tmp_path / 'nothing'}\n"
