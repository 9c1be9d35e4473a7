"""Problems chosen by what earlier steps have shown, on a real Tinker server: the same after kills at any point. The
environment, and what the problems' names say, are those of test_refill."""

from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coderl_tasks.journal.steps import Commit
from coderl_tasks.problems.problem import PROBLEM_SCHEMA, profiled_counts
from coderl_tasks.training.run import TrainingRun
from coderl_tasks.training.step import PhaseResult, SamplingAhead, sample, score, update
from tests.training.refilled_runs import SIGNAL, ZERO, Refilled, Told, problems_of

POOL = tuple(f"{word} {number}" for number in range(10) for word in ("signal", "zero"))
SELDOM = "PWWWWWWW"
GRADES = {"signal": SIGNAL, "zero": ZERO, "seldom": SELDOM}
THREE_KINDS = tuple(f"{word} {number}" for number in range(4) for word in GRADES)
SETTINGS: dict[str, Any] = {"selection": "adaptive", "refill": 2.0}
STEPS = 5


async def train_step(run: TrainingRun, step: int) -> Commit:
    rollouts = (await sample.fn(run, step)).rollouts
    recorded = run.directory.step(step).read_problems()
    assert recorded is not None and problems_of(rollouts) == recorded.ids
    return await update.fn(run, step, await score.fn(run, step, PhaseResult(rollouts)), 0.0, {})


def without_clocks(commit: Commit) -> dict[str, Any]:
    return {name: value for name, value in commit.metrics.items() if not name.startswith("time_")}


async def test_what_was_chosen_is_chosen_after_kills_between_steps_and_within_them(
    refilled: Refilled, tmp_path: Path
) -> None:
    settings = SETTINGS | {"completions_per_problem": 8}
    async with refilled.run(tmp_path / "quiet", Told(seldom=SELDOM), THREE_KINDS, **settings) as run:
        quiet = [await train_step(run, step) for step in range(STEPS)]
    for step, commit in enumerate(quiet):
        folder = tmp_path / "quiet" / "steps" / f"{step:06d}"
        scored = pl.read_parquet(folder / "scored.parquet")
        right = {kind: (2 * grades)[:8].count("P") for kind, grades in GRADES.items()}
        assert commit.outcomes == [(name, right[name.split()[0]], 8) for name in problems_of(scored)]
    known = [{name for commit in quiet[:step] for name, *_ in commit.outcomes} for step in range(STEPS)]
    assert [commit.metrics["problems_seen"] for commit in quiet] == [len(names) for names in known]
    assert all(0 < commit.metrics["signal_expected"] < 1 for commit in quiet)
    assert {commit.metrics["problems_solved"] for commit in quiet} == {0}
    again = [name for step in range(1, STEPS) for name, *_ in quiet[step].outcomes if name in known[step]]
    assert len(again) > 2 and sum(name.startswith("zero") for name in again) < len(again) / 3

    # Killed while each step is graded, and once it is recorded what it is sampled on, and after each commit.
    killed = tmp_path / "killed"
    for step, commit in enumerate(quiet):
        first, last = commit.outcomes[0][0], commit.outcomes[-1][0]
        for crashing in dict.fromkeys((first, last)):
            async with refilled.run(
                killed, Told(crashing, seldom=SELDOM), THREE_KINDS, sample_concurrency=1, **settings
            ) as run:
                with pytest.raises(ValueError, match="a crash"):
                    await train_step(run, step)
        async with refilled.run(killed, Told(seldom=SELDOM), THREE_KINDS, **settings) as run:
            redone = await train_step(run, step)
            assert redone.outcomes == commit.outcomes and without_clocks(redone) == without_clocks(commit)
            assert run.directory.commits()[step].outcomes == commit.outcomes, "as it is read"

    # What is recorded is not chosen again, and what is lost is chosen the same.
    async with refilled.run(killed, Told(seldom=SELDOM), THREE_KINDS, **settings) as run:
        later = run.select_problems(step=STEPS, count=3)
        assert run.select_problems(step=2, count=3) == [name for name, *_ in quiet[2].outcomes[:3]]
        run.directory.step(STEPS).write_problems(THREE_KINDS[:3])
        rollouts = (await sample.fn(run, STEPS)).rollouts
        assert problems_of(rollouts)[:3] == list(THREE_KINDS[:3]) != later
        assert (rollouts["group_index"] < 3).sum() == 24


async def test_a_step_ahead_is_chosen_by_what_its_policy_was_trained_on(refilled: Refilled, tmp_path: Path) -> None:
    settings = SETTINGS | {"max_steps_off_policy": 1}
    async with (
        refilled.run(tmp_path, Told(), POOL, **settings) as run,
        SamplingAhead(partial(sample.fn, run), lambda step: step <= 3) as ahead,
    ):
        for step in range(3):
            scored = await score.fn(run, step, await ahead.sampled(step))
            await update.fn(run, step, scored, 0.0, {})
        rollouts = (await ahead.sampled(3)).rollouts
    journal = run.directory.step(3)
    journal.files["sampled"].unlink()
    (journal.folder / "problems.json").unlink()
    async with refilled.run(tmp_path, Told(), POOL, **settings) as run:
        # By another process, after step 2 was committed: which it does not look at.
        assert (await sample.fn(run, 3)).rollouts.equals(rollouts)
        assert run.directory.commits()[2].outcomes


async def test_other_selections_record_nothing_of_it(refilled: Refilled, tmp_path: Path) -> None:
    async with refilled.run(tmp_path, Told(), POOL, refill=1.0) as run:
        rollouts = (await sample.fn(run, 0)).rollouts
        commit = await update.fn(run, 0, await score.fn(run, 0, PhaseResult(rollouts)), 0.0, {})
        assert run.adaptive is None and run.directory.step(0).read_problems() is None
        assert commit.metrics["signal_expected"] is None and commit.metrics["problems_seen"] is None
        assert "outcomes" not in run.directory.step(0).files["commit"].read_text()


def test_the_counts_of_a_profile(tmp_path: Path) -> None:
    pool = pl.DataFrame({"problem_id": ["a", "b", "c"], "n_correct": [1, None, 0], "n_samples": [2, None, 2]})
    pool.write_parquet(tmp_path / "profiled.parquet")
    assert profiled_counts(tmp_path / "profiled.parquet") == {"a": (1, 2), "c": (0, 2)}
    pl.DataFrame(schema=PROBLEM_SCHEMA).write_parquet(tmp_path / "bare.parquet")
    assert profiled_counts(tmp_path / "bare.parquet") == {}
