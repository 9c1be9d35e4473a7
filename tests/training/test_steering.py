"""What steer=act does, and that a run which is killed after any step does the same; without a server."""

import json
import shutil
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coderl_tasks.journal.checkpoints import read_checkpoints
from coderl_tasks.journal.run_directory import RunDirectory, has_ended, was_stopped
from coderl_tasks.journal.steps import Commit
from coderl_tasks.settings import TrainSettings
from coderl_tasks.training.run import Act, Steering, adam_params_at, stopped_before, temperature_at

ACT = TrainSettings.model_validate({"steer": "act", "eval_every": 5})
HEALTHY = sorted((Path(__file__).parents[1] / "insight" / "healthy_runs").glob("*.jsonl"))
GOOD = {"groups_total": 8, "groups_skipped": 2, "mean_reward": 0.5, "mean_correct": 0.5, "n_tokens": 100, "loss": 1.0}
EXPLODING = GOOD | {"loss": 400.0}
ALL_ZERO = GOOD | {"groups_skipped": 8, "groups_all_zero": 1.0, "groups_all_one": 0.0, "mean_correct": 0.0}
ALL_ONE = GOOD | {"groups_skipped": 8, "groups_all_zero": 0.0, "groups_all_one": 1.0, "mean_correct": 1.0}
Row = dict[str, Any]


def steered(
    folder: Path, rows: list[Row], settings: TrainSettings = ACT, *, killed: bool = False, hotter: bool = True
) -> list[Act]:
    """The acts of a run with these metrics, up to its end. Killed: a new process commits each of its steps."""
    evals = {row["step"]: row for row in rows if "eval/n" in row}
    with ExitStack() as process:
        directory = process.enter_context(RunDirectory.open(folder, {}))
        steering = Steering(settings, directory)
        for step, row in enumerate(row for row in rows if "eval/n" not in row):
            if stopped_before(settings, directory.commits()) == step:
                break
            metrics = row | {"step": step}
            decided = steering.decide(step, metrics, may_raise_temperature=hotter)
            assert steering.decide(step, metrics, may_raise_temperature=hotter) == decided, (
                "an update that is tried again decides the same"
            )
            directory.step(step).write_commit(
                Commit(step, metrics, acts=[] if decided is None else [asdict(decided[0])])
            )
            directory.metrics.append(metrics)
            if step in evals:
                directory.metrics.append(evals[step])
            if killed:
                process.close()
                directory = process.enter_context(RunDirectory.open(folder, {}))
                steering = Steering(settings, directory)
    with RunDirectory.open(folder, {}) as directory:
        return [Act(**row) for commit in directory.commits() for row in commit.acts]


def evaluated(step: int, rate: float) -> Row:
    return {"step": step, "eval/name": f"step-{step}", "eval/mean_correct": rate, "eval/n": 100}


def test_the_learning_rate_is_halved_three_times_at_most_and_not_for_one_bad_step(tmp_path: Path) -> None:
    spike = [*[GOOD] * 20, EXPLODING, GOOD, GOOD, EXPLODING, *[GOOD] * 20]
    assert steered(tmp_path / "spike", spike) == []
    acts = steered(tmp_path / "run", [*[GOOD] * 10, *[EXPLODING] * 110])
    # Two steps make the sign, six let it stand; then what the act made is judged, for 20 steps.
    assert [act.from_step for act in acts] == [17, 38, 59]
    assert {(act.setting, act.by, act.why) for act in acts} == {("learning_rate", 0.5, "loss_explodes")}
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        rates = [adam_params_at(ACT, directory.commits(), step).learning_rate for step in (16, 17, 59)]
        assert rates == [4e-5, 2e-5, 5e-6]
        advised = ACT.with_changes(steer="advise")
        assert adam_params_at(advised, directory.commits(), 59).learning_rate == 4e-5


def test_a_killed_run_acts_as_it_would_have(tmp_path: Path) -> None:
    rows = [*[GOOD] * 10, *[EXPLODING] * 15, *[GOOD] * 10, *[ALL_ZERO] * 30]
    ahead = ACT.with_changes(max_steps_off_policy=1)
    whole = steered(tmp_path / "whole", rows, ahead)
    assert [act.setting for act in whole] == ["learning_rate", "temperature"]
    assert whole[0].from_step == 18, "the step after is sampled by then"
    assert steered(tmp_path / "killed", rows, ahead, killed=True) == whole


def test_the_temperature_is_raised_to_its_bound_and_not_where_nobody_knows_what_that_does(tmp_path: Path) -> None:
    assert len(steered(tmp_path / "run", [ALL_ZERO] * 120)) == 3
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        commits = directory.commits()
    assert [temperature_at(ACT, commits, step) for step in (0, 119)] == [1.0, 1.3]
    assert temperature_at(ACT.with_changes(steer="advise"), commits, 119) == 1.0
    assert steered(tmp_path / "not", [ALL_ZERO] * 30, hotter=False) == []


@pytest.mark.parametrize("lag", [0, 1, 8])
def test_a_run_ends_where_it_has_converged_and_pass_at_1_is_at_its_height(tmp_path: Path, lag: int) -> None:
    settings = ACT.with_changes(max_steps_off_policy=lag)
    rows = [*[GOOD] * 10, *[ALL_ONE] * 30, evaluated(19, 0.80), evaluated(24, 0.82)]
    (act,) = steered(tmp_path / "run", rows, settings)
    last = 25 + lag
    assert (act.setting, act.from_step) == ("max_steps", last + 1)
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        assert directory.last_committed_step == last and was_stopped(directory.path, last)
        ended = partial(has_ended, directory.path, last, max_steps=-1, eval_every=-1)
        assert not ended(steer="act"), "its checkpoint is missing"
        line = json.dumps({"name": "final", "step": last, "state_path": "tinker://x"})
        (directory.path / "checkpoints.jsonl").write_text(line + "\n")
        assert read_checkpoints(directory.path) and ended(steer="act")
        assert not ended(steer="advise")
        # It went on with steer=advise: the end is void, and steer=act does not end it again at once.
        directory.step(last + 1).write_commit(Commit(last + 1, GOOD | {"step": last + 1}))
        assert stopped_before(settings, directory.commits()) is None


def test_a_run_does_not_end_where_pass_at_1_fell_or_is_not_known(tmp_path: Path) -> None:
    rows = [*[GOOD] * 10, *[ALL_ONE] * 30]
    assert steered(tmp_path / "unknown", rows) == []
    fell = [evaluated(4, 0.95), evaluated(19, 0.80), evaluated(24, 0.82)]
    assert steered(tmp_path / "fell", [*rows, *fell]) == []


def test_healthy_runs_are_left_alone(tmp_path: Path) -> None:
    for path in HEALTHY[:3]:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert steered(tmp_path / path.stem, rows) == []
        shutil.rmtree(tmp_path / path.stem)
