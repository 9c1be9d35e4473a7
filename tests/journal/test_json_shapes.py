"""JSON of runs and pools of others: what readers count on is checked, and the first fault named."""

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from coderl_tasks.cli import main
from coderl_tasks.journal.atomic import DamagedFileError
from coderl_tasks.journal.recorded_json import DEEPEST, Config, Manifest, Summary, read_shaped

SHARE = '"n": 2, "pass_at_1": 0.5, "ci_low": 0.1, "ci_high": 0.9'


@pytest.mark.parametrize(
    ("shape", "text", "fault"),
    [
        (Config, '{"group_size": [1, [2]]}', "group_size: "),
        (Config, '{"group_size": 0}', "group_size: "),
        (Config, '{"learning_rate": NaN}', "learning_rate: "),
        (Config, '{"max_steps": true}', "max_steps: "),
        (Config, '{"eval": 3}', "eval: "),
        (Config, '{"note": "\\ud800"}', "cannot be written again"),
        (Config, f'{{"note": {"[" * 200}{"]" * 200}}}', f"nested more than {DEEPEST} deep"),
        (Config, f'{{"note": {"[" * 100_000}{"]" * 100_000}}}', "not JSON"),
        (Manifest, f'{{"kept": 1{"0" * 400}}}', "kept: "),
        (Manifest, '{"by_split": {"taco": {}}}', "by_split.taco: "),
        (Manifest, '{"spent": []}', "spent: "),
        (Summary, '{"n": 2}', "pass_at_1: field required"),
        (Summary, f'{{{SHARE}, "by_split": {{"taco": {{"n": "x"}}}}}}', "by_split.taco.pass_at_1: "),
        (Summary, f'{{{SHARE}, "compare": [1]}}', "compare: "),
    ],
)
def test_the_first_fault_is_named(tmp_path: Path, shape: type[BaseModel], text: str, fault: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DamagedFileError, match="is damaged") as caught:
        read_shaped(path, shape)
    assert fault in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_right_comes_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {"n": 2, "pass_at_1": 1, "ci_low": 0.5, "ci_high": 1.0, "by_split": {}, "other": [None, {"a": 2**70}]}
    path.write_text(json.dumps(value))
    assert read_shaped(path, Summary) == value


def test_commands_name_the_damaged_file_of_a_run_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 0, "mean_reward": 0.5}\n')
    (run / "config.json").write_text('{"batch_size": 16, "group_size": [4], "max_steps": {}}')
    for command in ("report", "watch", "show", "power"):
        assert main([command, str(run)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"coderl {command}: {run / 'config.json'} is damaged: ") or command == "power"
        assert said.count("\n") == 1
