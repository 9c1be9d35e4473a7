import json
import os
from pathlib import Path
from typing import Any

import pytest

from coderl_tasks.errors import ConfigError
from coderl_tasks.evaluation.policy import find_policy
from coderl_tasks.journal.checkpoints import record_checkpoint


def make_run(folder: Path, steps: list[int], age: int = 0, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_name": "data/nano", **config}))
    for step in steps:
        paths = {"state_path": f"tinker://r/weights/{step}", "sampler_path": f"tinker://r/sampler_weights/{step}"}
        record_checkpoint(folder, f"step-{step:06d}", {"step": step, "dataset_offset": 0}, paths)
    if steps:
        os.utime(folder / "checkpoints.jsonl", ns=(age, age))
    return folder


def test_latest_is_the_newest_run_of_the_model_with_a_checkpoint(tmp_path: Path) -> None:
    make_run(tmp_path / "old", [1], age=1)
    newest = make_run(tmp_path / "new", [1, 3], age=2)
    make_run(tmp_path / "other", [5], age=3, model_name="other")
    make_run(tmp_path / "begun", [], age=4)
    found = find_policy("latest", "data/nano", root=tmp_path)
    assert (found.run, found.sampler_path, found.step) == (newest, "tinker://r/sampler_weights/3", 3)
    assert find_policy("latest", None, root=tmp_path).run == tmp_path / "other"


def test_a_validation_set_chooses_the_best_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [1, 3, 5], eval={"on": "validation"})
    for step, rate in ((1, 0.4), (3, 0.6), (5, 0.5)):
        folder = run / "evals" / f"step-{step:06d}"
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps({"pass_at_1": rate}))
    assert find_policy(str(run), None).step == 3


def test_paths_and_model_names() -> None:
    assert find_policy("tinker://r/sampler_weights/1", None).sampler_path == "tinker://r/sampler_weights/1"
    for name in ("data/nano", "Qwen/Qwen3-8B"):
        found = find_policy(name, None)
        assert (found.sampler_path, found.config) == (None, {"model_name": name})


@pytest.mark.parametrize("checkpoint", ["/nowhere", "latest"])
def test_what_is_not_there_is_a_configuration_error(checkpoint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="checkpoint="):
        find_policy(checkpoint, None, root=tmp_path)


def test_a_run_without_a_checkpoint_cannot_be_evaluated(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [])
    (run / "checkpoints.jsonl").write_text("")
    with pytest.raises(ConfigError, match="no checkpoint"):
        find_policy(str(run), None)
