import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.planning.flow_plans import evaluation_problems
from coderl_tasks.problems.loading import evaluation_side, is_held_out, require_other_problems
from coderl_tasks.problems.problem import SpilledTests, StoredTests, Test
from coderl_tasks.settings import EvaluateSettings, TrainSettings
from coderl_tasks.training.run import read_evaluation_side

DATED = {"date": "2024-08-01"}


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


def test_the_evaluation_side_is_the_share_the_other_data_set_or_the_test_splits(own: str, tmp_path: Path) -> None:
    share = evaluation_side(TrainSettings(dataset=own, test_share=0.2))
    loaded = share.load()
    assert 20 < len(loaded.problems) < 60
    assert all(len(problem.tests) == 5 for problem in loaded.problems)
    spilled = share.load(transform=SpilledTests(tmp_path).keep).problems
    assert all(isinstance(problem.tests, StoredTests) for problem in spilled)
    assert [problem.whole() for problem in spilled] == loaded.problems
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


def test_test_rows_that_give_no_problem_are_warned_of(
    own: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(evaluation_problems(EvaluateSettings(dataset="x/y", evaluation_dataset=own), tmp_path)) == 200
    assert len(read_evaluation_side(TrainSettings(dataset="x/y", evaluation_dataset=own), [], tmp_path)) == 200
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and all(own in line and "1 of 201 rows give no problem (" in line for line in said)


def test_one_file_is_trained_and_evaluated_on_only_if_that_is_asked_for(own: str) -> None:
    with pytest.raises(ConfigError, match=r"mine.jsonl is one file, .*test_share=0.1, .*evaluation_dataset=.*; or not"):
        require_other_problems(TrainSettings(dataset=own), own, "or not")
    for asked_for in ({"test_share": 0.1}, {"evaluation_dataset": own}):
        require_other_problems(TrainSettings.model_validate({"dataset": own, **asked_for}), own, "")
    require_other_problems(TrainSettings(preset="nano"), "data/mini", "")
    require_other_problems(EvaluateSettings(dataset=own), "data/mini", "")


def test_days_are_taken_from_rows_or_their_metadata_and_both_ends_are_in(tmp_path: Path) -> None:
    tests = [{"input": "1\n", "output": "1\n"}]
    days: list[dict[str, object]] = [
        {"date": "2024-08-01"},
        {"contest_date": "2024-08-02T00:00:00"},
        {"metadata": json.dumps({"contest_date": "2024-08-03"})},
        {"extra_info": {"date": "2024-08-04T12:30:00Z"}},
    ]
    file = tmp_path / "dated.jsonl"
    rows = [{"statement": f"Echo {number}.", "tests": tests, **day} for number, day in enumerate(days)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def found(since: str | None, until: str | None, **more: str) -> list[str]:
        asked = EvaluateSettings.model_validate(
            {"dataset": str(file), "evaluation_dataset": str(file), "since": since, "until": until, **more}
        )
        problems = evaluation_problems(asked, tmp_path)
        assert all(isinstance(problem.tests, StoredTests) for problem in problems), "tests are gigabytes"
        assert [problem.whole().tests for problem in problems] == [(Test("1\n", "1\n"),)] * len(problems)
        return [problem.statement for problem in problems]

    assert found("2024-08-02", "2024-08-03") == ["Echo 1.", "Echo 2."]
    assert found("2024-08-03", None) == ["Echo 2.", "Echo 3."]
    assert found(None, "2024-08-01") == ["Echo 0."]
    assert len(found(None, None)) == 4
    with pytest.raises(ConfigError, match=r"no row is of since=2025-01-01$"):
        found("2025-01-01", None)
    with pytest.raises(ValidationError, match="since=2024-09-01 is after until=2024-08-01"):
        found("2024-09-01", "2024-08-01")
    with pytest.raises(ValidationError, match="August is not a date: give YYYY-MM-DD"):
        found("August", None)


@pytest.mark.parametrize("day", [{}, {"date": "soon"}, {"date": 20240801}])
def test_a_row_without_a_day_is_named(tmp_path: Path, day: dict[str, object]) -> None:
    file = tmp_path / "dated.jsonl"
    rows = [{"statement": "Echo.", "tests": [{"input": "1\n", "output": "1\n"}], **each} for each in (DATED, day)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    asked = EvaluateSettings(dataset=str(file), evaluation_dataset=str(file), since="2024-01-01")
    with pytest.raises(DataError, match=r"since=2024-01-01: row 1 of \S+ has no date: rows need a column date or"):
        evaluation_problems(asked, tmp_path)
