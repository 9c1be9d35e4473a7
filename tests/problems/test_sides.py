import json
from pathlib import Path

import pytest

from coderl_tasks.errors import ConfigError
from coderl_tasks.problems.sides import evaluation_side, is_held_out, require_other_problems
from coderl_tasks.settings import EvaluateSettings, TrainSettings


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A file of problems, and a row that is none."""
    tests = [{"input": f"{number}\n", "output": f"{number}\n"} for number in range(5)]
    rows = [{"statement": f"Echo {number}.", "tests": tests} for number in range(200)]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, {"no": "problem"}]))
    return str(file)


def test_a_share_is_held_out_by_the_ids_alone_and_grows_with_the_share() -> None:
    ids = [f"{number}" for number in range(2000)]
    tenth = {problem_id for problem_id in ids if is_held_out(problem_id, 0.1)}
    assert 150 < len(tenth) < 250
    assert tenth < {problem_id for problem_id in ids if is_held_out(problem_id, 0.2)}
    assert all(is_held_out(problem_id, 1 - 1e-12) for problem_id in ids)


def test_the_evaluation_side_is_the_share_the_other_data_set_or_the_test_splits(own: str) -> None:
    share = evaluation_side(TrainSettings(dataset=own, test_share=0.2))
    loaded = share.load()
    assert 20 < len(loaded.problems) < 60
    assert all(is_held_out(problem.problem_id, 0.2) for problem in loaded.problems)
    assert loaded.dropped.height == 1
    assert str(share) == f"{own}, of which test_share=0.2 is held out"
    assert len(evaluation_side(TrainSettings(dataset="x/y", evaluation_dataset=own)).load().problems) == 200
    assert {p.split for p in evaluation_side(EvaluateSettings(preset="nano")).load().problems} == {
        "codeforces",
        "lcbv5",
    }
    with pytest.raises(ConfigError, match="two ways to say what is evaluated on: give one of them"):
        evaluation_side(TrainSettings(evaluation_dataset=own, test_share=0.2))


def test_one_file_is_trained_and_evaluated_on_only_if_that_is_asked_for(own: str) -> None:
    with pytest.raises(ConfigError, match=r"mine.jsonl is one file, .*test_share=0.1, .*evaluation_dataset=.*; or not"):
        require_other_problems(TrainSettings(dataset=own), own, "or not")
    for asked_for in ({"test_share": 0.1}, {"evaluation_dataset": own}):
        require_other_problems(TrainSettings(dataset=own, **asked_for), own, "")
    require_other_problems(TrainSettings(preset="nano"), "data/mini", "")
    require_other_problems(EvaluateSettings(dataset=own), "data/mini", "")
