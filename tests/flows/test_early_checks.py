"""What can be seen to be wrong is said in one line before a server is started, a token sampled or a file written."""

from pathlib import Path

import pytest

from coderl_tasks.arguments import parse_key_values
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.problems import Problem, Test, problems_frame
from coderl_tasks.settings import CurateSettings, EvaluateSettings, PipelineSettings, TrainSettings, parse_settings
from flows import planning
from flows.planning import plan

FLOWS = {
    "curate": (CurateSettings, ()),
    "train": (TrainSettings, ()),
    "evaluate": (EvaluateSettings, ("checkpoint=data/nano",)),
    "pipeline": (PipelineSettings, ()),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a pool, a file, and data sets with one side only."""
    (tmp_path / "file").touch()
    problem = Problem("p", "own", "s", "", "stdin", "", (Test("", "1"),), 1, 1, None, (), 0)
    problems_frame([problem]).write_parquet(tmp_path / "pool.parquet")
    for side in ("train", "test"):
        folder = tmp_path / f"only-{side}"
        folder.mkdir()
        (folder / f"{side}.jsonl").write_text('{"statement": "s", "tests": []}\n')
    return tmp_path


@pytest.mark.parametrize(
    ("flow", "words", "said"),
    [
        ("curate", ("name=PLACE/file/pool",), "name=.*/file/pool: .*/file is a file: choose another name"),
        ("train", ("log_path=PLACE/file", "pool=PLACE/pool.parquet"), "log_path=.*/file: .*/file is a file"),
        ("evaluate", ("log_path=PLACE/file/x",), "log_path=.*/file/x: .*/file is a file: choose another log_path"),
        ("evaluate", ("log_path=/proc/x/y",), r"/proc cannot be written to \(.*\): choose another log_path"),
        ("pipeline", ("train.log_path=/proc/x/y", "train.pool=PLACE/pool.parquet"), "/proc cannot be written to"),
        ("curate", ("dataset=PLACE/nothing.jsonl",), "nothing.jsonl: no such file or folder"),
        ("curate", ("dataset=PLACE/only-test",), "only-test has no train split"),
        ("curate", ("evaluation_dataset=PLACE/only-train",), "only-train has no test split"),
        ("curate", ("splits=taco,typo",), "has no split typo; there are: "),
        ("train", ("dataset=PLACE/only-train", "pool=PLACE/pool.parquet"), "only-train has no test split"),
        ("evaluate", ("dataset=PLACE/only-train",), "only-train has no test split"),
        ("evaluate", ("splits=typo", "dataset=data/mini"), "has no split typo; there are: "),
        ("pipeline", ("curate.dataset=PLACE/only-test",), "only-test has no train split"),
        (
            "evaluate",
            ("compare_to=PLACE/nothing",),
            "compare_to=.*/nothing: there is no such evaluation, folder or run",
        ),
        ("evaluate", ("compare_to=PLACE/only-test",), "there is no finished evaluation in .*/only-test"),
        ("pipeline", ("evaluate.compare_to=PLACE/nothing",), "there is no such evaluation, folder or run"),
    ],
)
async def test_what_is_missing_is_said_first(flow: str, words: tuple[str, ...], said: str, place: Path):
    settings, more = FLOWS[flow]
    given = [word.replace("PLACE", str(place)) for word in (*words, *more)]
    before = sorted(place.rglob("*"))
    with pytest.raises((ConfigError, DataError), match=said) as caught:
        await plan(parse_settings(settings, parse_key_values(given, settings)))
    assert "\n" not in str(caught.value)
    assert sorted(place.rglob("*")) == before


async def test_a_disk_without_room_is_said_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(planning, "LEAST_FREE", 2**60)
    with pytest.raises(ConfigError, match=r"MiB are free at .*: free some space, or choose another name"):
        await plan(CurateSettings(name=str(tmp_path / "pool")))
