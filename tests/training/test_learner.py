"""What a run keeps of its saved states, on a real Tinker server; what is left is enough to go on bit for bit."""

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from aiohttp import web

from coderl_tasks import disk
from coderl_tasks.errors import InfraError
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.journal import atomic
from coderl_tasks.journal.atomic import read_json
from coderl_tasks.journal.checkpoints import read_checkpoints
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.steps import Commit
from coderl_tasks.paths import NANO_MODEL
from coderl_tasks.policy.clients import rest_client, stored_checkpoints, training_run_of
from coderl_tasks.policy.rollout import GRADED_SCHEMA, ROLLOUT_SCHEMA, SAMPLED_SCHEMA
from coderl_tasks.prompts import get_renderer, load_tokenizer
from coderl_tasks.rollouts.engine import Session
from coderl_tasks.services import Services
from coderl_tasks.settings import TrainSettings
from coderl_tasks.training.learner import Learner
from coderl_tasks.training.run import TrainingRun
from coderl_tasks.training.step import PhaseResult, update
from flows.train import _step
from tests.conftest import Serve

SETTINGS = TrainSettings(model_name=NANO_MODEL, lora_rank=2, max_steps=12, save_every=0, learning_rate=1e-3)
STEPS = 6
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
async def session(embedded: Services) -> AsyncIterator[Session]:
    async with SandboxClient(embedded.sandbox_urls) as client:
        renderer = get_renderer("qwen3_instruct", load_tokenizer(NANO_MODEL))
        session = Session(embedded, Judge(client), renderer, 512)
        yield session
        await session.close()


def scored(step: int) -> pl.DataFrame:
    """A group of two completions, one right and one wrong, which are others in each step."""
    names = {"step": step, "attempt": 0, "problem_id": "p", "split": "taco", "group_index": 0, "sampler_step": step - 1}
    rows = [
        {
            **names,
            "sample_index": index,
            "prompt_tokens": [1, 2, 3],
            "completion_tokens": [4 + index, 5 + step],
            "logprobs": [-0.5, -0.5],
            "completion": "",
            "stop_reason": "stop",
        }
        for index in range(2)
    ]
    grades = {"reward": pl.Series([1.0, 0.0]), "advantage": pl.Series([0.5, -0.5]), "trained": pl.Series([True, True])}
    frame = pl.DataFrame(rows, schema=SAMPLED_SCHEMA)
    columns = [grades.get(name, pl.Series([None, None])).cast(kind).alias(name) for name, kind in GRADED_SCHEMA.items()]
    return frame.with_columns(columns).select(list(ROLLOUT_SCHEMA))


async def train(
    session: Session, directory: RunDirectory, steps: int, settings: TrainSettings = SETTINGS
) -> TrainingRun:
    """Steps `steps` of a run that begins where its directory ends."""
    run = TrainingRun(settings, directory, session, {}, [], [], {})
    while directory.next_step < steps:
        step = directory.next_step
        directory.step(step).write("scored", scored(step))
        await update.fn(run, step, PhaseResult(scored(step)), begun=0.0, seconds={})
    return run


async def stored(embedded: Services, commits: list[Commit]) -> set[str]:
    """Which of the paths that `commits` name the server still has."""
    rest = await rest_client(embedded.tinker_url, embedded.tinker_api_key)
    paths = {path for commit in commits for path in (commit.state_path, commit.sampler_path) if path}
    there = {path for run in {*map(training_run_of, paths)} for path in await stored_checkpoints(rest, run)}
    return paths & there


@pytest.mark.parametrize("lag", [0, 1, 3])
async def test_the_newest_states_stay(embedded: Services, session: Session, tmp_path: Path, lag: int) -> None:
    settings = SETTINGS.with_changes(rolling_save={"keep": 2}, max_steps_off_policy=lag)
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        await train(session, directory, STEPS, settings)
        kept = directory.commits()[-max(2, lag + 1) :]
        expected = {path for commit in kept for path in (commit.state_path, commit.sampler_path) if path}
        assert len(expected) == (2 * len(kept) if lag else 2)
        assert await stored(embedded, directory.commits()) == expected
        rest = await rest_client(embedded.tinker_url, embedded.tinker_api_key)
        (state,) = (
            item
            for item in (await rest.list_checkpoints(training_run_of(str(kept[-1].state_path)))).checkpoints
            if item.tinker_path == kept[-1].state_path
        )
    weights = disk.adapter_bytes(NANO_MODEL, SETTINGS.lora_rank)
    assert weights is not None and state.size_bytes == pytest.approx(3 * weights, rel=0.2)  # and heads of files


async def test_what_an_earlier_start_left_is_deleted_and_another_journals_states_are_not(
    embedded: Services, session: Session, tmp_path: Path
) -> None:
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        await train(session, directory, STEPS, SETTINGS.with_changes(rolling_save={"keep": 100}))
        assert len(await stored(embedded, directory.commits())) == STEPS
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        await train(session, directory, STEPS + 2, SETTINGS.with_changes(rolling_save={"keep": 100}))
        later = {str(commit.state_path) for commit in directory.commits()[STEPS:]}
    with RunDirectory.open(tmp_path / "copy", {}) as directory:
        learner = Learner(session, directory, SETTINGS)
        assert len(learner.outdated()) == STEPS - SETTINGS.rolling_save.keep
        await learner.delete_outdated()
        assert learner.outdated() == []
        kept = {str(commit.state_path) for commit in directory.commits()[-SETTINGS.rolling_save.keep :]}
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        assert await stored(embedded, directory.commits()) == kept | later


@pytest.mark.parametrize("has_initial", [True, False], ids=["initial is left", "none is left"])
async def test_a_run_goes_on_bit_for_bit_where_none_of_the_newest_states_is_left(
    embedded: Services, session: Session, tmp_path: Path, has_initial: bool
) -> None:
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        await train(session, directory, STEPS + 1)
        whole = directory.commits()
        rest = await rest_client(embedded.tinker_url, embedded.tinker_api_key)
        left = await stored(embedded, whole)
        assert len(left) == SETTINGS.rolling_save.keep
        (initial,) = read_checkpoints(directory.path)
        for path in left if has_initial else {*left, initial["state_path"]}:
            await rest.delete_checkpoint_from_tinker_path(path)
    (tmp_path / "run" / "steps" / f"{STEPS:06d}" / "commit.json").unlink()
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        await train(session, directory, STEPS + 1)
        again = directory.commits()[STEPS].metrics
        assert len(read_checkpoints(directory.path)) == (1 if has_initial else 2), "the start is saved anew"
    same = ("loss", "kl_sample_train", "n_tokens")
    assert [again[name] for name in same] == [whole[STEPS].metrics[name] for name in same]
    assert again["loss"] is not None


async def test_several_optimizer_steps_per_step_are_replayed_as_they_were_made(
    session: Session, tmp_path: Path
) -> None:
    settings = SETTINGS.with_changes(
        rolling_save={"every": 0}, loss_fn="ppo", loss="clip_high:1.5", epochs_per_rollout_batch=3, train_batch_size=1
    )
    settings = settings.with_changes(schedule="warmup:2")
    slower = settings.with_changes(learning_rate=2e-4)
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        run = await train(session, directory, 3, settings)
        shutil.copytree(tmp_path / "run", tmp_path / "copy", ignore=shutil.ignore_patterns("run.lock"))
        run.learner._settings = run.settings = slower
        while directory.next_step < 4:
            directory.step(3).write("scored", scored(3))
            await update.fn(run, 3, PhaseResult(scored(3)), begun=0.0, seconds={})
        whole = directory.commits()
    with RunDirectory.open(tmp_path / "copy", {}) as directory:
        await train(session, directory, 4, slower)  # from the state before any step: three updates are replayed
        again = directory.commits()
    assert [commit.updates for commit in again] == [commit.updates for commit in whole]
    last = again[3]
    rates = [5e-4, 1e-3, 1e-3, 2e-4]  # warmed up once, not by the run that goes on
    assert [commit.adam["learning_rate"] for commit in again] == rates == [commit.metrics["lr"] for commit in again]
    assert last.method == {
        "loss_fn": "ppo",
        "loss_fn_config": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.5},
        "epochs": 3,
        "batch_size": 1,
        "kl_penalty_coef": 0.0,
    }
    assert [(row["epoch"], row["n_datums"]) for row in last.updates] == [(epoch, 1) for epoch in (0, 0, 1, 1, 2, 2)]
    assert (last.metrics["n_updates"], last.metrics["n_datums"], last.metrics["n_tokens"]) == (6, 2, 4)
    norms = [row["grad_norm"] for row in last.updates]
    assert last.metrics["grad_norm"] == max(norms) > 0
    assert last.metrics["ratio_max"] == max(row["ratio_max"] for row in last.updates)


async def test_an_act_is_in_force_from_the_next_step_on_after_a_kill_too_and_undone_by_another_setting(
    session: Session, tmp_path: Path
) -> None:
    """The samples' log-probabilities are made up: sampler and trainer disagree from the first step on."""
    settings = SETTINGS.with_changes(steer="act", rolling_save={"every": 0})
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        await train(session, directory, 8, settings)
        whole = directory.commits()
    assert [[(act["setting"], act["by"], act["from_step"]) for act in commit.acts] for commit in whole] == [
        *[[]] * 5, [("learning_rate", 0.5, 6)], [], [],
    ]  # fmt: skip
    assert whole[5].metrics["act"].startswith("from step 6 on the learning rate is 0.5 of what the settings say")
    assert [commit.adam["learning_rate"] for commit in whole] == [1e-3] * 6 + [5e-4] * 2

    shutil.copytree(tmp_path / "run", tmp_path / "killed", ignore=shutil.ignore_patterns("run.lock"))
    for step in range(5, 8):
        (tmp_path / "killed" / "steps" / f"{step:06d}" / "commit.json").unlink()
    with RunDirectory.open(tmp_path / "killed", {}) as directory:
        await train(session, directory, 8, settings)
        again = directory.commits()
    same = ("loss", "kl_sample_train", "lr")
    assert [commit.acts for commit in again] == [commit.acts for commit in whole]
    assert [[commit.metrics[name] for name in same] for commit in again] == [
        [commit.metrics[name] for name in same] for commit in whole
    ]
    with RunDirectory.open(tmp_path / "killed", {}) as directory:  # replays steps 6 and 7 as they were made
        await train(session, directory, 10, settings.with_changes(steer="advise"))
        undone = directory.commits()[8:]
    assert [commit.adam["learning_rate"] for commit in undone] == [1e-3] * 2


async def test_the_commit_of_a_plain_update_names_no_method(session: Session, tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        await train(session, directory, 1)
        commit = read_json(directory.step(0).files["commit"])
    assert list(commit) == ["step", "metrics", "adam", "state_path", "sampler_path"]
    assert (commit["adam"]["weight_decay"], commit["adam"]["grad_clip_norm"]) == (0, 0)
    assert commit["metrics"]["n_updates"] == 1 and commit["metrics"]["clipped_share"] is None


async def test_a_service_that_refuses_is_asked_once_and_holds_up_nothing(
    embedded: Services, serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"detail": "not yours"}, status=403)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    session = Session(replace(embedded, tinker_url=serve(app)), Judge(SandboxClient([NOWHERE])), None, 512)  # type: ignore[arg-type]
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        for step in range(STEPS):
            path = f"tinker://somebody:train:0/weights/{step}"
            directory.step(step).write_commit(Commit(step=step, metrics={}, state_path=path))
        learner = Learner(session, directory, SETTINGS)
        for _ in range(2):
            await learner.delete_outdated()
    (said,) = [record.getMessage() for record in caplog.records if "old states" in record.getMessage()]
    assert said.startswith("old states are not deleted, and stay until they expire (168 hours): Tinker, asking what ")
    assert len(asked) == 1


def test_what_states_need_is_known_from_the_rank() -> None:
    settings = TrainSettings(preset="nano", max_steps=2000, lora_rank=32)
    state = 3 * (disk.adapter_bytes(NANO_MODEL, 32) or 0)
    needed = disk.needed_by_states(settings)
    assert needed is not None and needed[0] == 3 * state + (2000 // 100 + 1) * state * 4 // 3
    assert needed[1] == (
        "up to 173 MB in 2,000 steps (3 states of 5.6 MB, rolling_save.keep; 21 checkpoints of 7.5 MB, save_every=100)"
    )
    assert disk.needed_by_states(TrainSettings(model_name="Qwen/Qwen3-8B")) is None
    few, many = disk.states_line(settings), disk.states_line(settings.with_changes(max_steps=20_000))
    assert few is not None and many is not None and "lower lora_rank" not in few
    assert many.endswith(
        "; less with save_every=0 (one checkpoint, at the end), rolling_save.keep=2, or a lower lora_rank"
    )


@pytest.mark.parametrize("is_embedded", [True, False])
async def test_a_step_is_not_begun_without_room(
    embedded: Services, is_embedded: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    used = embedded if is_embedded else replace(embedded, embedded=())
    session = Session(used, Judge(SandboxClient([NOWHERE])), None, 512)  # type: ignore[arg-type]
    # Where the server is coderl's own, a state and its sampler weights: the weights, Adam's moments, the weights again.
    state = 4 * (disk.adapter_bytes(NANO_MODEL, SETTINGS.lora_rank) or 0) if is_embedded else 0
    assert bool(state) == is_embedded
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        run = TrainingRun(SETTINGS, directory, session, {}, [], [], {})
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=256 * 2**20 + state))
        atomic.require_room(run.folders, run.state_bytes)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=256 * 2**20 + state - 1))
        with pytest.raises(InfraError, match=r"256 MiB are free at .*, and nothing is begun with less than .*clean"):
            await _step(run, 0, None, None, None)  # type: ignore[arg-type]
        assert not (tmp_path / "run" / "steps").exists()
