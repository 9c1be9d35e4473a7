"""checkpoints.jsonl and check_log_dir; saving itself is tested with the policy's update."""

import shutil
from pathlib import Path

import pytest

from coderl_tasks.errors import ConfigError
from coderl_tasks.journal.checkpoints import (
    check_log_dir,
    expiring_states,
    get_last_checkpoint,
    read_checkpoints,
    record_checkpoint,
)
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.steps import Commit


def test_the_last_checkpoint_with_a_key(tmp_path: Path) -> None:
    assert get_last_checkpoint(tmp_path) is None
    first = record_checkpoint(tmp_path, "a", {"step": 9, "dataset_offset": 80}, {"state_path": "tinker://r/weights/a"})
    second = record_checkpoint(
        tmp_path, "b", {"step": 19, "dataset_offset": 160}, {"sampler_path": "tinker://r/sampler_weights/b"}
    )
    assert read_checkpoints(tmp_path) == [first, second]
    assert get_last_checkpoint(tmp_path) == first
    assert get_last_checkpoint(tmp_path, required_key="sampler_path") == second
    with (tmp_path / "checkpoints.jsonl").open("a") as file:
        file.write('{"name": "torn')
    assert get_last_checkpoint(tmp_path, required_key="sampler_path") == second


def test_a_users_copy_of_a_step_has_no_state_to_resume_from(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, {}) as run:
        for step in (0, 1):
            run.step(step).write_commit(Commit(step, {"step": step}, state_path=f"tinker://x/{step}"))
        shutil.copytree(run.step(1).folder, tmp_path / "steps" / "000001.bak")
        assert [state.step for state in expiring_states(tmp_path, {})] == [1, 0]


def test_check_log_dir(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert not check_log_dir(run, "raise")
    RunDirectory.open(run, {}).close()
    assert check_log_dir(run)
    with pytest.raises(ConfigError, match="exists"):
        check_log_dir(run, "raise")
    with pytest.raises(ConfigError, match="behavior_if_exists"):
        check_log_dir(run, "ask")  # type: ignore[arg-type]
    assert not check_log_dir(run, "delete")
    assert not run.exists()


def test_only_runs_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="not a run directory"):
        check_log_dir(tmp_path, "delete")
    assert not check_log_dir(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
