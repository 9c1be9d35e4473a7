"""What `coderl clean` removes, and what it must not."""

import io
import time
from pathlib import Path

import polars as pl
import pytest

from coderl_tasks.cli import main
from coderl_tasks.cli.clean import expired_checkpoints, never_started, pool_parts, unnamed_checkpoints
from coderl_tasks.journal.atomic import write_json
from coderl_tasks.journal.checkpoints import record_checkpoint
from coderl_tasks.journal.directory_lock import DirectoryLock
from coderl_tasks.journal.recorded_json import working_in
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.steps import Commit
from local_servers.tinker.checkpoint_store import CheckpointStore
from local_servers.tinker.records import CheckpointKind, LoraSettings, RunRecord

CONFIG = {"model_name": "data/nano", "max_steps": 1, "eval": {"every": -1}}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default root, in a home of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CODERL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("coderl_tasks.cli.clean.POOLS", tmp_path / "pools")
    (tmp_path / "code-rl-logs").mkdir()
    return tmp_path / "code-rl-logs"


@pytest.fixture
def store(root: Path, tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "home" / "tinker")


def save(store: CheckpointStore, name: str, kind: CheckpointKind = "weights", *, age_s: float = 1e6) -> str:
    """A checkpoint of 100 bytes, `age_s` old; its tinker:// path."""
    run = RunRecord(
        run_id="abc:train:0",
        session_id="abc",
        base_model="data/nano",
        lora=LoraSettings(rank=1, seed=0),
        created_at=0.0,
        last_request_at=0.0,
    )
    store.save_run(run)

    def fill(folder: Path) -> None:
        (folder / "x").write_bytes(b"x" * 100)

    record = store.write(run, kind, name, fill)
    store._write_record(record.model_copy(update={"created_at": time.time() - age_s}))
    return record.path


def test_an_attempt_that_never_started_goes_and_what_holds_anything_stays(root: Path, tmp_path: Path) -> None:
    for name in ("begun", "sampled", "baseline", "committed", "held", "foreign"):
        RunDirectory.open(root / name, CONFIG).close()
    (root / "sampled/steps/000000/groups").mkdir(parents=True)
    (root / "begun/steps/000000/groups").mkdir(parents=True)
    pl.DataFrame({"a": [1]}).write_parquet(root / "sampled/steps/000000/groups/00.parquet")
    (root / "baseline/evals/baseline/groups").mkdir(parents=True)
    pl.DataFrame({"a": [1]}).write_parquet(root / "baseline/evals/baseline/groups/00.parquet")
    (root / "committed/steps/000000").mkdir(parents=True)
    write_json(root / "committed/steps/000000/commit.json", {"step": 0})
    (root / "foreign/thesis.tex").write_text("mine")
    RunDirectory.open(root / "linked", CONFIG).close()
    (tmp_path / "disk").mkdir()
    (root / "linked/steps").symlink_to(tmp_path / "disk")
    (root / "notes").mkdir()
    (root / "2026_11_21-10_00_00").mkdir()
    lock = DirectoryLock(root / "held")
    before = {path.name for path in root.iterdir()}
    assert main(["clean", "--dry-run"]) == 0
    assert {path.name for path in root.iterdir()} == before
    found = never_started(root, root / "pools")
    assert main(["clean", "--yes"]) == 0
    assert before - {path.name for path in root.iterdir()} == {"begun", "2026_11_21-10_00_00"}
    assert len(found) == 2
    lock.release()
    (held,) = never_started(root, root / "pools")
    lock = DirectoryLock(root / "held")
    assert not held.remove(), "it came into use after it was found"
    lock.release()
    assert held.remove() and not (root / "held").exists()


def test_checkpoints_that_no_run_needs_go_when_asked_for(root: Path, tmp_path: Path, store: CheckpointStore) -> None:
    paths = {name: save(store, name) for name in ("kept", "rolling", "other", "nobody")}
    paths["young"] = save(store, "young", age_s=60)
    store._write_record(store.find(save(store, "over")).model_copy(update={"expires_at": 1.0}))
    elsewhere = tmp_path / "elsewhere"
    record = {"step": 0, "dataset_offset": 0}
    with RunDirectory.open(root / "run", CONFIG) as run:
        run.step(0).write_commit(Commit(0, {"step": 0}, state_path=paths["rolling"]))
        record_checkpoint(run.path, "initial", record | {"step": -1}, {"state_path": paths["kept"]})
    with RunDirectory.open(elsewhere / "run", CONFIG) as run:
        record_checkpoint(run.path, "step-000000", record, {"state_path": paths["other"]})

    def unneeded(*roots: Path) -> set[str]:
        return {removal.what.rpartition("/")[2] for removal in unnamed_checkpoints(store.root, roots)}

    assert unneeded(root) == {"nobody", "other"}
    assert unneeded(root, elsewhere) == {"nobody"}
    assert unneeded(root, elsewhere / "run") == {"nobody"}, "a run, and no folder of runs"
    record_checkpoint(root / "run", "step-000000", record, {"state_path": paths["kept"]})  # now it is finished
    assert unneeded(root, elsewhere) == {"nobody", "rolling"}
    assert [removal.what.rpartition("/")[2] for removal in expired_checkpoints(store.root)] == ["over"]

    assert main(["clean", "--yes"]) == 0
    left = {record.name for record in store.all_checkpoints()}
    assert left == {"kept", "rolling", "other", "nobody", "young"}
    assert main(["clean", "--yes", "--weights", "--runs", str(elsewhere)]) == 0
    assert {record.name for record in store.all_checkpoints()} == {"kept", "other", "young"}
    assert len(list((store.root / "abc:train:0" / "data").iterdir())) == 3


def test_work_that_recorded_nothing_goes(root: Path, tmp_path: Path) -> None:
    pools = tmp_path / "pools"
    gone = [pools / "dead", root / "evals" / "dead", root / "run" / "evals" / "dead"]
    kept = [pools / "begun", pools / "busy", root / "run" / "evals" / "begun"]
    for folder in (*gone, *kept):
        with working_in(folder, {"limit": 1}, instead=""):
            if folder.name == "begun":
                write_json(folder / "request.json", {})
    with working_in(pools / "busy", {"limit": 1}, instead=""):
        assert main(["clean", "--yes"]) == 0
    assert [folder.exists() for folder in (*gone, *kept)] == [False] * 3 + [True] * 3


def test_the_parts_of_a_finished_pool_go_when_asked_for(root: Path, tmp_path: Path) -> None:
    pools = tmp_path / "pools"
    for name in ("done", "begun", "busy"):
        (pools / name / "shards" / "0000").mkdir(parents=True)
        (pools / name / "shards" / "0000" / "profile.parquet").write_bytes(b"x" * 10)
        (pools / name / "profile.parquet").write_bytes(b"x")
    for name in ("done", "busy"):
        (pools / name / "manifest.json").write_text("{}")
    lock = DirectoryLock(pools / "busy" / "shards" / "0000")  # as a shard's run on another machine holds it
    assert main(["clean", "--yes"]) == 0
    assert [removal.size for removal in pool_parts(pools)] == [10]
    assert main(["clean", "--yes", "--parts"]) == 0
    assert not (pools / "done" / "shards").exists()
    assert (pools / "done" / "profile.parquet").is_file()
    assert all((pools / name / "shards" / "0000" / "profile.parquet").is_file() for name in ("begun", "busy"))
    lock.release()


@pytest.mark.parametrize(("answer", "goes", "code"), [("y\n", True, 0), ("\n", False, 0), ("", False, 2)])
def test_it_asks_first(
    root: Path,
    answer: str,
    goes: bool,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    RunDirectory.open(root / "begun", CONFIG).close()
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert main(["clean"]) == code
    assert (root / "begun").exists() != goes
    said = capsys.readouterr()
    assert f"run that never started: {root / 'begun'}" in said.out
    assert "--yes removes it" in said.err if code else "removed" in said.out
