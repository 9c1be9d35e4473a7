"""The phases of a step, and the record of an evaluation."""

from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from coderl_tasks.journal import steps
from coderl_tasks.journal.steps import Commit, EvalJournal, Phase, StepJournal


@pytest.fixture
def journal(tmp_path: Path) -> StepJournal:
    return StepJournal(tmp_path, 0)


def test_groups_are_recorded_until_the_step_is_sampled(journal: StepJournal, group: pl.DataFrame) -> None:
    assert journal.groups.read() == {}
    for index in (11, 3, 104):
        journal.groups.write(index, group)
    assert list(journal.groups.read()) == [3, 11, 104]
    assert (journal.folder / "groups" / "03.parquet").is_file()
    journal.write("sampled", group)
    assert journal.groups.read() == {}
    assert not (journal.folder / "groups").exists()
    sampled = journal.read("sampled")
    assert sampled is not None and sampled.equals(group)


def test_a_damaged_group_is_drawn_again(journal: StepJournal, group: pl.DataFrame) -> None:
    journal.groups.write(0, group)
    journal.groups.write(1, group)
    path = journal.folder / "groups" / "01.parquet"
    path.write_bytes(path.read_bytes()[:100])
    assert list(journal.groups.read()) == [0]
    assert (path.parent / "01.parquet.damaged-1").is_file()
    journal.groups.write(1, group)
    assert list(journal.groups.read()) == [0, 1]


def test_every_phase_reads_as_none_until_written(
    journal: StepJournal, group: pl.DataFrame, scored: pl.DataFrame
) -> None:
    assert (journal.read("sampled"), journal.read("scored"), journal.read_commit()) == (None, None, None)
    assert not any(journal.has(phase) for phase in ("sampled", "scored", "commit"))
    journal.write("sampled", group)
    journal.write("scored", scored)
    commit = Commit(0, {"step": 0, "loss": 0.5}, {"learning_rate": 1e-4}, "tinker://a/weights/b", None)
    journal.write_commit(commit)
    read = journal.read("scored")
    assert read is not None and read.equals(scored)
    assert journal.read_commit() == commit
    assert all(journal.has(phase) for phase in ("sampled", "scored", "commit"))


def test_a_step_of_many_tokens_is_in_row_groups_whatever_pieces_its_frame_is_in(
    journal: StepJournal, group: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "TOKENS_PER_ROW_GROUP", 8)  # four completions
    whole = pl.concat([group] * 4, rechunk=True)
    journal.write("sampled", whole)
    groups = pq.ParquetFile(journal.files["sampled"]).metadata
    assert [groups.row_group(number).num_rows for number in range(groups.num_row_groups)] == [4, 4, 4]
    sampled = journal.read("sampled")
    assert sampled is not None and sampled.equals(whole)
    written = journal.files["sampled"].read_bytes()
    for same in (sampled, pl.concat([whole[:1], whole[1:6], whole[6:]], rechunk=False)):
        journal.write("sampled", same)
        assert journal.files["sampled"].read_bytes() == written, "an interrupted step leaves what another one would"


@pytest.mark.parametrize("phase", ["sampled", "scored", "commit"])
def test_a_damaged_phase_is_set_aside(
    journal: StepJournal, group: pl.DataFrame, scored: pl.DataFrame, phase: Phase
) -> None:
    journal.write("sampled", group)
    journal.write("scored", scored)
    journal.write_commit(Commit(0, {"step": 0}))
    path = journal.files[phase]
    path.write_bytes(path.read_bytes()[:10])
    assert (journal.read_commit() if phase == "commit" else journal.read(phase)) is None
    assert path.with_name(f"{path.name}.damaged-1").is_file()
    assert not path.exists()


def test_a_column_newer_than_the_file_is_null_and_a_file_without_rewards_is_damaged(
    journal: StepJournal, group: pl.DataFrame, scored: pl.DataFrame
) -> None:
    journal.write("sampled", group)
    journal.write("scored", scored.drop("tests_total"))
    read = journal.read("scored")
    assert read is not None
    assert read.schema == scored.schema and read["tests_total"].null_count() == read.height
    assert read.drop("tests_total").equals(scored.drop("tests_total"))
    journal.write("scored", scored.drop("reward"))
    assert journal.read("scored") is None


def test_a_commit_belongs_to_its_step(journal: StepJournal, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        journal.write_commit(Commit(1, {}))
    other = StepJournal(tmp_path, 1)
    other.write_commit(Commit(1, {"step": 1}))
    journal.folder.mkdir()
    other.files["commit"].rename(journal.files["commit"])
    assert journal.read_commit() is None


def test_an_evaluation_is_done_once_its_summary_is_there(
    tmp_path: Path, group: pl.DataFrame, scored: pl.DataFrame
) -> None:
    evaluation = EvalJournal(tmp_path / "evals" / "baseline")
    assert evaluation.name == "baseline"
    assert evaluation.read_summary() is None
    evaluation.groups.write(0, group)
    assert list(evaluation.groups.read()) == [0]
    evaluation.write(scored, {"n": 3, "pass_at_1": 0.5})
    assert evaluation.read_summary() == {"n": 3, "pass_at_1": 0.5}
    rollouts = evaluation.read_rollouts()
    assert rollouts is not None and rollouts.equals(scored)
    assert sorted(path.name for path in evaluation.folder.iterdir()) == ["rollouts.parquet", "summary.json"]
    (evaluation.folder / "summary.json").write_text("{")
    assert evaluation.read_summary() is None
