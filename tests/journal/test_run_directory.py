"""The run directory: creating, resuming, refusing, and one owner at a time."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coderl_tasks.errors import BudgetReachedError, ConfigError, DataError
from coderl_tasks.journal.atomic import read_rows
from coderl_tasks.journal.checkpoints import REMOVED_FILE, read_checkpoints, record_checkpoint
from coderl_tasks.journal.directory_lock import DirectoryBusyError, DirectoryMovedError
from coderl_tasks.journal.ledger import (
    Budget,
    Tokens,
    add_lost,
    curation_budget,
    evaluation_budget,
    read_lost,
    run_budget,
    shard_budget,
)
from coderl_tasks.journal.recorded_json import FORMAT, check_resume, working_in
from coderl_tasks.journal.run_directory import RunDirectory, metrics_rows, new_run_path
from coderl_tasks.journal.steps import (
    INDEX_SCHEMA,
    STEPS_PER_FILE,
    Commit,
    GroupFiles,
    StepProblems,
    index_files,
    index_step,
)
from coderl_tasks.paths import is_open_to_others, private_folder
from coderl_tasks.policy.sampling import GroupRequest
from coderl_tasks.settings import CurateSettings, EvaluateSettings, TrainSettings

Config = dict[str, Any]


def commit(run: RunDirectory, step: int) -> None:
    run.step(step).write_commit(Commit(step, {"step": step, "mean_reward": step / 10}))


def test_a_new_run(tmp_path: Path, config: Config) -> None:
    with RunDirectory.open(tmp_path / "a" / "run", config) as run:
        assert not run.resumed
        assert (run.last_committed_step, run.next_step) == (-1, 0)
        assert json.loads((run.path / "config.json").read_text()) == {"format": 1, **config}
        assert run.step(12).folder == run.path / "steps" / "000012"
        with pytest.raises(ValueError):
            run.step(-1)


def test_resume_goes_on_at_the_first_step_without_commit(tmp_path: Path, config: Config, group: pl.DataFrame) -> None:
    with RunDirectory.open(tmp_path / "run", config) as run:
        commit(run, 0)
        commit(run, 1)
        run.step(2).groups.write(4, group)
    with RunDirectory.open(tmp_path / "run", config) as run:
        assert run.resumed and run.changes == []
        assert run.next_step == 2
        assert list(run.step(2).groups.read()) == [4]
        assert [row["step"] for row in metrics_rows(run.metrics.path)] == [0, 1]


def test_a_damaged_commit_breaks_the_line(tmp_path: Path, config: Config) -> None:
    with RunDirectory.open(tmp_path / "run", config) as run:
        for step in range(3):
            commit(run, step)
    run.step(1).files["commit"].write_text('{"step": 1,')
    with RunDirectory.open(tmp_path / "run", config) as run:
        assert run.next_step == 1
        assert [row["step"] for row in metrics_rows(run.metrics.path)] == [0]
        commit(run, 1)
        assert run.next_step == 3


def test_the_index_follows_the_commits_and_is_cut_where_they_end(
    tmp_path: Path, config: Config, scored: pl.DataFrame
) -> None:
    last, whole = STEPS_PER_FILE - 1, range(STEPS_PER_FILE)
    with RunDirectory.open(tmp_path / "run", config) as run:
        for step in whole:
            assert list(index_files(run.path).values()) == [range(n, n + 1) for n in whole if n < step and n != 5]
            rollouts = scored.with_columns(step=pl.lit(step, pl.Int32))
            run.step(step).write("scored", rollouts)
            commit(run, step)
            index_step(run.path, step, rollouts)
            own = run.path / "index" / f"step-{step:06d}.parquet"
            if step in (3, 4):  # what cannot be read is set aside, as everywhere, and stops nobody
                own.write_bytes(b"PAR1")
            if step in (3, 5):  # of one step nothing is left, of 4 and 5 the one or the other
                run.step(step).files["scored"].write_bytes(b"PAR1") if step == 3 else own.unlink()
        assert list(index_files(run.path).values()) == [whole]
        assert not list(run.path.glob("index/step-*.parquet"))
        rows = pl.read_parquet(next(iter(index_files(run.path))))
    assert rows.schema == pl.Schema(INDEX_SCHEMA)
    assert rows["step"].unique().sort().to_list() == [step for step in range(STEPS_PER_FILE) if step != 3]
    assert rows["n_prompt_tokens"].unique().to_list() == [3] and rows["n_completion_tokens"].unique().to_list() == [2]
    with RunDirectory.open(tmp_path / "run", config) as run:
        assert list(index_files(run.path).values()) == [whole]
    run.step(last).files["commit"].write_text("{")  # to be done again, perhaps otherwise
    own.write_bytes(next(iter(index_files(run.path))).read_bytes())  # a kill had left the step's own file
    with RunDirectory.open(tmp_path / "run", config) as run:
        assert not index_files(run.path)


def test_lines_that_are_damaged_are_set_aside_and_the_others_stay(tmp_path: Path, config: Config) -> None:
    with RunDirectory.open(tmp_path / "run", config) as run:
        for step in range(3):
            commit(run, step)
        run.reconcile_metrics()
    rows = (run.path / "metrics.jsonl").read_bytes()
    (run.path / "metrics.jsonl").write_bytes(rows.replace(b'{"step": 1', b'\xff"step": 1'))
    (run.path / "checkpoints.jsonl").write_text('{"name": "a", "step": 0}\nnonsense\n{"name": "b", "step": 1}\n')
    with RunDirectory.open(tmp_path / "run", config) as run:
        assert (run.path / "metrics.jsonl").read_bytes() == rows
        assert [row["name"] for row in read_checkpoints(run.path)] == ["a", "b"]
    assert sorted(path.name for path in run.path.glob("*.damaged-1")) == [
        "checkpoints.jsonl.damaged-1", "metrics.jsonl.damaged-1",
    ]  # fmt: skip


def test_checkpoints_of_removed_steps_do_not_count_for_those_trained_in_their_place(
    tmp_path: Path, config: Config
) -> None:
    def checkpoint(run: RunDirectory, step: int) -> None:
        record_checkpoint(run.path, f"step-{step:06d}", {"step": step}, {"state_path": f"tinker://x/{step}"})

    def checkpointed(run: RunDirectory) -> list[int]:
        return [row["step"] for row in read_checkpoints(run.path)]

    with RunDirectory.open(tmp_path / "run", config) as run:
        checkpoint(run, -1)
        for step in range(4):
            commit(run, step)
            checkpoint(run, step)
    run.step(3).files["commit"].write_text("{")
    for _ in range(2):  # the first start sets the commit aside
        with RunDirectory.open(tmp_path / "run", config) as run:
            assert (run.next_step, checkpointed(run)) == (3, [-1, 0, 1, 2, 3])
    for step in (2, 3):
        shutil.rmtree(run.step(step).folder)
    with RunDirectory.open(tmp_path / "run", config) as run:
        assert (run.next_step, checkpointed(run)) == (2, [-1, 0, 1])
        assert [row["step"] for row in read_rows(run.path / REMOVED_FILE)] == [2, 3], "their weights may be wanted yet"
        commit(run, 2)
        checkpoint(run, 2)
    with RunDirectory.open(tmp_path / "run", config) as run:
        assert checkpointed(run) == [-1, 0, 1, 2]


def test_resume_repairs_what_a_crash_left(tmp_path: Path, config: Config) -> None:
    with RunDirectory.open(tmp_path / "run", config) as run:
        commit(run, 0)
        run.metrics.append({"step": -1, "eval/mean_correct": 0.25})
    (tmp_path / "run" / "metrics.jsonl").open("a").write('{"step": 0, "mea')
    (tmp_path / "run" / "checkpoints.jsonl").write_text('{"name": "a", "step": 0}\n{"na')
    (tmp_path / "run" / "steps" / ".x.1-2.tmp").write_text("half")
    with RunDirectory.open(tmp_path / "run", config) as run:
        assert metrics_rows(run.metrics.path) == [
            {"step": -1, "eval/mean_correct": 0.25},
            {"step": 0, "mean_reward": 0.0},
        ]
        assert (run.path / "checkpoints.jsonl").read_text() == '{"name": "a", "step": 0}\n'
        assert not list((run.path / "steps").glob(".*"))


def test_some_settings_may_change(tmp_path: Path, config: Config) -> None:
    RunDirectory.open(tmp_path / "run", config).close()
    changed = config | {"learning_rate": 1e-5, "max_steps": 100, "eval": {"every": 5}}
    with RunDirectory.open(tmp_path / "run", changed) as run:
        assert [str(change) for change in run.changes] == [
            "eval.every: 10 -> 5",
            "learning_rate: 4e-05 -> 1e-05",
            "max_steps: -1 -> 100",
        ]
        assert json.loads((run.path / "config.json").read_text()) == {"format": 1, **changed}


def test_what_a_start_found_out_outlives_changed_settings(tmp_path: Path, config: Config) -> None:
    found = {"service": "http://x", "gap": 0.01, "served": None}
    with RunDirectory.open(tmp_path / "run", config) as run:
        run.record_finding("probe", found)
        with pytest.raises(ValueError, match="seed is no finding"):
            run.record_finding("seed", 1)
    for changed in (config, config | {"max_steps": 100}):
        with RunDirectory.open(tmp_path / "run", changed) as run:
            assert run.config == {"format": 1, **changed, "probe": found}
            assert [change.key for change in run.changes] == ["max_steps"] * (changed != config)
        assert json.loads((tmp_path / "run" / "config.json").read_text()) == run.config


def begin(path: Path, config: Config) -> None:
    """A run at `path` that has sampled something."""
    with RunDirectory.open(path, config) as run:
        (run.step(0).folder / "groups").mkdir(parents=True)
        (run.step(0).folder / "groups" / "00.parquet").touch()


def test_other_changes_are_refused_by_name(tmp_path: Path, config: Config) -> None:
    begin(tmp_path / "run", config)
    with pytest.raises(
        ConfigError, match=r"^the run was started with other settings \(.*seed: 0 -> 1.*use them again"
    ) as info:
        RunDirectory.open(tmp_path / "run", config | {"seed": 1, "learning_rate": 1.0})
    assert "learning_rate" not in str(info.value) and "\n" not in str(info.value)
    RunDirectory.open(tmp_path / "run", config).close()  # neither recorded nor locked


def test_before_anything_was_sampled_any_setting_may_change(tmp_path: Path, config: Config) -> None:
    with RunDirectory.open(tmp_path / "run", config) as run:
        (run.path / "test_order.json").write_text("{}")
        (run.path / "wandb").mkdir()  # where that tracker puts its files
    changed = config | {"seed": 1, "reward": "fraction"}
    with RunDirectory.open(tmp_path / "run", changed) as run:
        assert (run.config, run.resumed) == ({"format": 1, **changed}, True)
        assert not (run.path / "test_order.json").exists()  # its order was learned from what is no longer named
    (tmp_path / "run" / "test_order.json").write_text("{}")
    RunDirectory.open(tmp_path / "run", changed).close()
    assert (tmp_path / "run" / "test_order.json").exists()


def test_what_was_decided_before_anything_was_sampled_is_decided_anew_with_other_settings(
    tmp_path: Path, config: Config, group: pl.DataFrame
) -> None:
    initial = {"name": "initial", "step": -1, "state_path": "tinker://x"}
    problems, lost = StepProblems(["a"]), Tokens(3)

    def decided() -> tuple[list[Config], StepProblems | None]:
        return read_checkpoints(run.path), run.step(0).read_problems()

    with RunDirectory.open(tmp_path / "run", config) as run:
        record_checkpoint(run.path, "initial", {"step": -1}, {"state_path": "tinker://x"})
        run.step(0).write_problems(["a"])
        add_lost(run.step(0).folder, lost)
    with RunDirectory.open(tmp_path / "run", config) as run:
        assert decided() == ([initial], problems), "the same settings would decide the same"
    with RunDirectory.open(tmp_path / "run", config | {"seed": 1}) as run:
        assert decided() == ([], None)
        assert read_lost(run.step(0).folder) == lost, "these tokens are paid for"
        record_checkpoint(run.path, "initial", {"step": -1}, {"state_path": "tinker://x"})
        run.step(0).write_problems(["a"])
        run.step(0).groups.write(0, group)
    with RunDirectory.open(tmp_path / "run", config | {"seed": 1, "learning_rate": 1.0}) as run:
        assert decided() == ([initial], problems), "a group of that step is sampled"


def test_of_the_evaluations_in_a_run_those_that_training_makes_count_towards_its_cap(tmp_path: Path) -> None:
    own = ("baseline", "step-000009", "final", "final-step-000009-2", "final-before")
    for name in (*own, "final-x", "baseline2", "evaluate-2026_11_21-10_00_00"):
        add_lost(tmp_path / "evals" / name, Tokens(prompt=1))
    assert run_budget(TrainSettings(max_tokens_total=99), tmp_path, []).spent == Tokens(prompt=len(own))


CAPPED_CURATION = CurateSettings(preset="nano", max_tokens_total=28)
CAPPED_EVALUATION = EvaluateSettings(preset="nano", checkpoint="data/nano", max_tokens_total=28)


@pytest.mark.parametrize(
    ("budget_of", "place"),
    [
        (partial(curation_budget, CAPPED_CURATION), "shards/0000"),
        (partial(shard_budget, CAPPED_CURATION), ""),
        (partial(evaluation_budget, CAPPED_EVALUATION), ""),
    ],
    ids=["curate", "a shard", "evaluate"],
)
async def test_a_cap_counts_what_an_earlier_start_recorded(
    budget_of: Callable[[Path], Budget], place: str, tmp_path: Path, group: pl.DataFrame
) -> None:
    GroupFiles(tmp_path / place / "groups").write(0, group)
    add_lost(tmp_path / place, Tokens(prompt=2, cached=1, completion=4))
    budget = budget_of(tmp_path)
    # The group's prompt of 3 tokens, which its second and third completion read from the cache, and 2 for each of them.
    assert budget.spent == Tokens(prompt=3 + 2, cached=6 + 1, completion=6 + 4)
    next_group = GroupRequest(1, "p1", "taco", [1, 2, 3], num_samples=2, max_tokens=5, seed=0, temperature=1.0)
    async with budget.reserve(next_group):  # with it, 28 at most
        pass
    with pytest.raises(BudgetReachedError, match=r"max_tokens_total=28 is reached: 15 tokens are spent, .* take 14"):
        async with budget.reserve(replace(next_group, prompt_tokens=[1, 2, 3, 4])):
            pass


def test_a_run_of_a_newer_version_is_refused_in_words_and_left_as_it_is(tmp_path: Path, config: Config) -> None:
    begin(tmp_path / "run", config)
    file = tmp_path / "run" / "config.json"
    file.write_text(json.dumps(config | {"format": FORMAT + 1}))
    (tmp_path / "run" / ".metrics.jsonl.1-a.tmp").touch()
    files = (path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != "run.lock")
    before = {path: path.read_bytes() for path in files}
    with pytest.raises(DataError, match=rf"written by a newer coderl \(format {FORMAT + 1}, .*: update coderl$"):
        RunDirectory.open(tmp_path / "run", config)
    assert {path: path.read_bytes() for path in before} == before


def test_config_comparison() -> None:
    old = {"pool": {"hash": "a", "name": "x"}, "splits": ("a", "b"), "save_every": 1, "lora_rank": 32}
    assert check_resume(old, old | {"pool": {"name": "x", "hash": "a"}, "splits": ["a", "b"]}) == []
    with pytest.raises(ConfigError, match=r"pool\.hash: 'a' -> 'b'"):
        check_resume(old, old | {"pool": {"hash": "b", "name": "x"}})
    with pytest.raises(ConfigError, match="no_longer: 32 -> not set"):
        check_resume(old | {"no_longer": 32}, old)
    with pytest.raises(ConfigError, match="lora_rank: 32 -> 16"):
        check_resume(old, old | {"lora_rank": 16})
    for key in ("temperature", "max_tokens", "save_every"):
        assert [change.key for change in check_resume({}, {key: 2})] == [key]
    for family, member in (("eval", "limit"), ("trackers", "name"), ("rolling_save", "every"), ("schedule", "warmup")):
        before, after = {family: {member: 1}}, {family: {member: 2}}
        assert [str(change) for change in check_resume(before, after)] == [f"{family}.{member}: 1 -> 2"]
    with pytest.raises(ConfigError, match=r"adam\.beta1: 0.9 -> 0.8"):
        check_resume({"adam": {"beta1": 0.9}}, {"adam": {"beta1": 0.8}})
    for before in ({}, {"prices": {}}, {"prices": {"sample": 2.0, "train": 1.0}}):
        assert [change.key for change in check_resume(before, {"prices": {"sample": 1.0}})] == ["prices"]
    assert check_resume({}, {"prices": {}}) == []
    assert check_resume({"preset": None}, {"preset": "smoke"})[0].new == "smoke"
    with pytest.raises(ConfigError, match="preset: 'nano' -> 'smoke'"):
        check_resume({"preset": "nano"}, {"preset": "smoke"})
    assert check_resume({}, {"log_path": 1}) == []


def test_a_changed_limit_is_not_said_of_completions_that_are_sampled() -> None:
    old = {"max_tokens": 8, "learning_rate": 1.0}
    changes = check_resume(old, {"max_tokens": 9, "learning_rate": 2.0})
    assert [change.on_resume(3) for change in changes] == [
        "warning: changed on resume, from step 3 on: learning_rate: 1.0 -> 2.0",
        "warning: changed on resume, from step 3 on: max_tokens: 8 -> 9 (completions that are sampled already keep the "
        "old value)",
    ]


def test_a_run_had_the_default_of_a_setting_that_is_newer() -> None:
    settings = TrainSettings().model_dump()
    for lacking in settings:
        assert check_resume({key: value for key, value in settings.items() if key != lacking}, settings) == []
    older = settings | {"loss": {key: value for key, value in settings["loss"].items() if key != "beta"}}
    assert check_resume(older, settings) == []
    del older["holdback"]
    with pytest.raises(ConfigError, match=r"holdback: 0\.0 \(default\) -> 0\.1"):
        check_resume(older, settings | {"holdback": 0.1})


def test_a_directory_of_something_else_is_refused(tmp_path: Path, config: Config) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="no run"):
        RunDirectory.open(tmp_path, config)
    with pytest.raises(ConfigError, match="is a file"):
        RunDirectory.open(tmp_path / "thesis.tex", config)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_place_where_nothing_can_be_created_is_refused(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"/proc/nope cannot be created \(.*\): choose another log_path"):
        RunDirectory.open("/proc/nope", config)


def test_the_path_is_the_shortest(tmp_path: Path, config: Config) -> None:
    (tmp_path / "a").mkdir()
    with RunDirectory.open(tmp_path / "a" / ".." / "run", config) as run:
        assert run.path == tmp_path / "run"


def test_default_names_are_times_and_never_shared(tmp_path: Path) -> None:
    now = datetime(2026, 11, 21, 5, 6, 7)
    names = [new_run_path(tmp_path / "root", now).name for _ in range(3)]
    assert names == ["2026_11_21-05_06_07", "2026_11_21-05_06_07-2", "2026_11_21-05_06_07-3"]


def test_the_second_of_one_process_is_refused(tmp_path: Path, config: Config) -> None:
    with RunDirectory.open(tmp_path / "run", config):
        with pytest.raises(DirectoryBusyError, match="in use"):
            RunDirectory.open(tmp_path / "run", config)
        with pytest.raises(DirectoryBusyError, match="in use"):  # the failed attempt did not end the lock
            RunDirectory.open(tmp_path / "run", config)
        RunDirectory.open(tmp_path / "other", config).close()
    RunDirectory.open(tmp_path / "run", config).close()


HOLDER = """
import os, sys
from coderl_tasks.journal.run_directory import RunDirectory
run = RunDirectory.open(sys.argv[1], {})
if os.fork() == 0:            # a child that outlives the holder
    sys.stdin.read()
    os._exit(0)
print("held", flush=True)
os.kill(os.getpid(), 19)      # stay until killed
"""


def test_the_lock_dies_with_its_process_even_if_a_forked_child_lives(tmp_path: Path) -> None:
    path = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DirectoryBusyError, match=f"process {holder.pid} on ") as info:
            RunDirectory.open(path, {})
        assert "\n" not in str(info.value)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    RunDirectory.open(path, {}).close()
    holder.stdin.close()  # the forked child ends here
    holder.stdout.read()


def test_a_directory_that_is_moved_removed_or_replaced_takes_no_more(
    tmp_path: Path, config: Config, group: pl.DataFrame
) -> None:
    path, aside = tmp_path / "run", tmp_path / "aside"

    def refused(run: RunDirectory, says: str) -> None:
        with pytest.raises(DirectoryMovedError, match=says):
            commit(run, 1)
        for write in (
            lambda: run.step(1).groups.write(0, group),
            lambda: run.evaluation("final").write(group, {}),
            lambda: run.metrics.append({"step": 1}),
            lambda: record_checkpoint(run.path, "x", {"step": 1}, {}),
            lambda: run.record_finding("probe", {}),
        ):
            with pytest.raises(DirectoryMovedError):
                write()

    with RunDirectory.open(path, config) as run:
        commit(run, 0)
        path.rename(aside)
        refused(run, f"{path} was moved to {aside} while this process worked there: .*move it back")
        assert not path.exists()
        path.mkdir()  # by somebody else
        refused(run, f"moved to {aside}")
        assert list(path.iterdir()) == []
        path.rmdir()
        aside.rename(path)
        commit(run, 1)
        shutil.rmtree(path)
        refused(run, f"{path} was removed while this process worked there")
        assert not path.exists()
    RunDirectory.open(path, config).close()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_run_and_a_pool_are_their_users_alone(tmp_path: Path, config: Config, umask: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    before = os.umask(umask)
    try:
        RunDirectory.open(tmp_path / "new" / "run", config).close()
        RunDirectory.open(shared, config).close()
        with working_in(tmp_path / "pools" / "pool", {}, instead=""):
            pass
        named = new_run_path(tmp_path / "root")
        private_folder(tmp_path / "home" / "logs")
    finally:
        os.umask(before)
    created: list[str | Path] = ["new", "new/run", "pools", "pools/pool", "root", named, "home", "home/logs"]
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in created] == ["0o700"] * len(created)
    assert oct(shared.stat().st_mode & 0o777) == "0o755"
    assert is_open_to_others(shared) and not is_open_to_others(tmp_path / "home")
