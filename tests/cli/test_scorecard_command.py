"""`coderl scorecard` prints its counts, writes every case, and ends with 1 if anything is wrong."""

import json
from pathlib import Path

import pytest

from coderl_tasks.cli.entry import main
from coderl_tasks.scorecard.corpus import corpus

GRADERS = """
def none(problem, completion): return None
def all_of_them(problem, completion): return True
"""


@pytest.fixture(autouse=True)
def graders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "graders.py").write_text(GRADERS)
    monkeypatch.chdir(tmp_path)


def test_a_grader_that_sells_is_told_and_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scorecard", "graders:all_of_them", "--only", "completion/", "--json", "card.json"]) == 1
    said = capsys.readouterr().out
    attacks = [case for case in corpus() if case.group == "completion"]
    assert f"bought rewards: {len(attacks)} of {len(attacks)} attacks" in said
    assert "misjudged honest programs: 0 of 0" in said and "outages scored as 0: not tried" in said
    card = json.loads(Path("card.json").read_text())
    assert [(row["id"], row["outcome"]) for row in card["cases"]] == [(case.id, "bought") for case in attacks]


def test_a_grader_without_mistakes_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scorecard", "graders:none", "--only", "completion/", "--kind", "assert"]) == 0
    assert "bought rewards: 0 of 2 attacks" in capsys.readouterr().out


def test_cases_are_listed_without_a_grader(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scorecard", "no-grader", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [case.id for case in corpus()]
    for case, line in zip(corpus(), lines, strict=True):
        reward = "deserves its reward" if case.deserves_reward else "deserves no reward"
        assert case.about in line and line.endswith(f"({case.category}; {reward})")
    assert main(["scorecard", "--list", "--kind", "call", "--only", "call-attack/"]) == 0
    chosen = [case for case in corpus() if case.kind == "call" and case.group == "call-attack"]
    assert len(capsys.readouterr().out.splitlines()) == len(chosen) > 10


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no-grader"], "'no-grader' is no grader: give coderl, the http address of a sandbox, or module:function"),
        (["graders:other"], "cannot import graders:other: AttributeError"),
        (["--only", "no/such"], "no stdin or call or assert case has 'no/such' in its id"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scorecard", *words]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"coderl scorecard: {says}")
