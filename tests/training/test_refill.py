"""Groups without a signal are replaced, or end with their first completions, on a real Tinker server."""

import asyncio
import random
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coderl_tasks.errors import BudgetReachedError, CoderlError, SandboxDownError
from coderl_tasks.grading import Judge
from coderl_tasks.grading.scoring import ScoredCompletion
from coderl_tasks.journal.steps import StepProblems
from coderl_tasks.policy.update import KL_SAMPLE
from coderl_tasks.problems.problem import Problem
from coderl_tasks.training.run import TrainingRun
from coderl_tasks.training.step import PhaseResult, SamplingAhead, sample, score, update
from tests.training.refilled_runs import DOWN, POOL, SIGNAL, ZERO, Refilled, Told, problems_of

WHOLE = ["signal b", "signal e", "signal f"]
"""Of the first step's problems those whose groups have a signal."""


async def sampled(refilled: Refilled, folder: Path, **settings: Any) -> pl.DataFrame:
    """What the first step samples where nothing goes wrong."""
    async with refilled.run(folder, Told(), **settings) as run:
        return (await sample.fn(run, 0)).rollouts


def heights(rollouts: pl.DataFrame) -> list[int]:
    """The completions of each group, which are numbered without a gap."""
    groups = rollouts.group_by("group_index", maintain_order=True).agg(pl.col("sample_index"))
    assert all(numbers == list(range(len(numbers))) for numbers in groups["sample_index"].to_list())
    return groups["sample_index"].list.len().to_list()


async def test_groups_without_a_signal_are_replaced_up_to_the_cap(refilled: Refilled, tmp_path: Path) -> None:
    told = Told()
    async with refilled.run(tmp_path, told) as run:
        rollouts = (await sample.fn(run, 0)).rollouts
        assert problems_of(rollouts) == list(POOL[:6]), "two are missing, then one: and 6 are twice 3"
        after = (await score.fn(run, 0, PhaseResult(rollouts))).rollouts
        assert sorted(told.graded) == sorted(POOL[:6]), "what was graded to decide is not graded again"
        metrics = (await update.fn(run, 0, PhaseResult(after), 0.0, {})).metrics
        assert (metrics["groups_total"], metrics["groups_skipped"], metrics["groups_refilled"]) == (6, 3, 3)
        tokens = {trained: rows["completion_tokens"].explode().len() for (trained,), rows in after.group_by("trained")}
        assert metrics["tokens_without_signal"] == tokens[False] / (tokens[False] + tokens[True])
        assert metrics["n_datums"] == 12, "as many groups as without replacing, had all had a signal"
        assert problems_of((await sample.fn(run, 1)).rollouts) == list(POOL[3:8])
    assert len(refilled.seeds) == len(set(refilled.seeds))


async def test_a_step_killed_while_a_round_is_graded_goes_on_with_it(refilled: Refilled, tmp_path: Path) -> None:
    quiet = await sampled(refilled, tmp_path / "quiet")
    async with refilled.run(tmp_path / "killed", Told(crashing="signal e"), sample_concurrency=1) as run:
        with pytest.raises(ValueError, match="a crash"):
            await sample.fn(run, 0)
        assert run.directory.step(0).read_problems() == StepProblems(list(POOL[:5]))
    asked = len(refilled.seeds)
    assert (await sampled(refilled, tmp_path / "killed")).equals(quiet)
    assert len(refilled.seeds) - asked == 1, "of six groups one had not been sampled"


async def test_which_groups_are_replaced_stays_decided_whatever_grading_says_later(
    refilled: Refilled, tmp_path: Path
) -> None:
    quiet = await sampled(refilled, tmp_path / "quiet")
    async with refilled.run(tmp_path / "killed", Told()) as run:  # before a group of the second round was there
        journal = run.directory.step(0)
        journal.write_problems(POOL[:6])
        for group in quiet.filter(pl.col("group_index") != 4).partition_by("group_index"):
            journal.groups.write(group["group_index"][0], group)
    asked = len(refilled.seeds)
    async with refilled.run(tmp_path / "killed", Told(zero=SIGNAL)) as run:
        assert (await sample.fn(run, 0)).rollouts.equals(quiet)
    assert len(refilled.seeds) - asked == 1


async def test_only_groups_whose_first_completions_differ_get_the_rest(refilled: Refilled, tmp_path: Path) -> None:
    told = Told()
    async with refilled.run(tmp_path, told, first_completions=2) as run:
        rollouts = (await sample.fn(run, 0)).rollouts
        assert problems_of(rollouts) == list(POOL[:6]) and heights(rollouts) == [2, 4, 2, 2, 4, 4]
        after = (await score.fn(run, 0, PhaseResult(rollouts))).rollouts
        assert sorted(told.graded) == sorted([*POOL[:6], *WHOLE]), "each completion is graded once"
        metrics = (await update.fn(run, 0, PhaseResult(after), 0.0, {})).metrics
        assert (metrics["groups_total"], metrics["groups_skipped"], metrics["groups_refilled"]) == (6, 3, 3)
        assert metrics["n_datums"] == 12 and set(after.filter("trained")["problem_id"]) == set(WHOLE)
    assert len(refilled.seeds) == len(set(refilled.seeds)) == 9


async def test_a_step_of_a_callers_own_problems_gets_no_further_ones(refilled: Refilled, tmp_path: Path) -> None:
    async with refilled.run(tmp_path, Told(), first_completions=2) as run:
        run.directory.step(0).write_problems(POOL[:3], [2, 2, 2])
    own = await sampled(refilled, tmp_path, first_completions=2)
    assert problems_of(own) == list(POOL[:3]) and heights(own) == [2, 4, 2]


async def test_first_completions_count_towards_the_cap(refilled: Refilled, tmp_path: Path) -> None:
    # No more than 12 completions: after a, b and c there are 8, and of d's group no other one would fit.
    assert heights(await sampled(refilled, tmp_path, first_completions=2, refill=1)) == [2, 4, 2, 2]


async def test_a_completion_that_could_not_be_graded_gets_its_group_the_rest(
    refilled: Refilled, tmp_path: Path
) -> None:
    pool = ["lost b", *POOL[:7]]  # the lost one may have been right
    rollouts = await sampled(refilled, tmp_path, pool=pool, first_completions=2, problems_per_step=8)
    assert heights(rollouts) == [4, 2, 4, 2, 2, 4, 4, 2]


async def test_first_completions_killed_while_a_round_is_graded(refilled: Refilled, tmp_path: Path) -> None:
    quiet = await sampled(refilled, tmp_path / "quiet", first_completions=2)
    async with refilled.run(tmp_path / "killed", Told(crashing="signal e"), first_completions=2) as run:
        with pytest.raises(ValueError, match="a crash"):
            await sample.fn(run, 0)
    assert (await sampled(refilled, tmp_path / "killed", first_completions=2)).equals(quiet)


async def test_which_groups_get_the_rest_stays_decided_whatever_grading_says_later(
    refilled: Refilled, tmp_path: Path
) -> None:
    quiet = await sampled(refilled, tmp_path / "quiet", first_completions=2)
    async with refilled.run(tmp_path / "killed", Told(), first_completions=2) as run:  # one group begun, one lost
        journal = run.directory.step(0)
        journal.write_problems(POOL[:6], [2, 4, 2, 2, 4, 2], decided=5)
        for group in quiet.filter(pl.col("group_index") != 4).partition_by("group_index"):
            journal.groups.write(group["group_index"][0], group.head(2) if group["group_index"][0] == 5 else group)
    async with refilled.run(tmp_path / "killed", Told(zero=SIGNAL), first_completions=2) as run:
        assert (await sample.fn(run, 0)).rollouts.equals(quiet)


async def test_a_pool_without_further_problems_ends_the_rounds(refilled: Refilled, tmp_path: Path) -> None:
    async with refilled.run(tmp_path, Told(), POOL[:4], refill=5) as run:
        assert problems_of((await sample.fn(run, 0)).rollouts) == list(POOL[:4])
    async with refilled.run(tmp_path / "off", told := Told(crashing="zero a"), refill=1) as run:
        assert problems_of((await sample.fn(run, 0)).rollouts) == list(POOL[:3]), "nothing waits for grades"
        assert run.directory.step(0).read_problems() is None and "zero d" not in told.graded


async def test_no_group_is_replaced_for_a_fault(refilled: Refilled, tmp_path: Path) -> None:
    pool = ["zero a", "lost b", "signal c", "signal d", "signal e", "signal f"]
    async with refilled.run(tmp_path / "one", Told(), pool) as run:
        rollouts = (await sample.fn(run, 0)).rollouts
        assert problems_of(rollouts) == pool[:4], "the lost completion may have been right"

    async with refilled.run(tmp_path / "all", down := Told(zero=DOWN, signal=DOWN), pool) as run:
        asked = len(refilled.seeds)
        with pytest.raises(SandboxDownError, match="step 0: 9 of 12 programs could not be graded"):
            await sample.fn(run, 0)
        assert len(refilled.seeds) - asked == 3 and run.directory.step(0).read_problems() is None
        down.grades |= {"zero": ZERO, "signal": SIGNAL}  # the sandbox is back
        assert (await sample.fn(run, 0)).rollouts.equals(rollouts)
        assert len(refilled.seeds) - asked == 4, "the recorded groups are graded anew, not sampled"

    async with refilled.run(tmp_path / "reward", Told(zero="EEEE"), pool) as run:
        with pytest.raises(CoderlError, match="compute_reward failed on 4 of 12"):
            await sample.fn(run, 0)
        assert run.directory.step(0).read_problems() is None, "a function is mended before more is sampled with it"


async def test_a_round_whose_grading_was_cancelled_is_graded_by_the_retry(refilled: Refilled, tmp_path: Path) -> None:
    class Waiting(Told):
        """Once `waits` is set, grading begins and does not end."""

        waits, begun = False, asyncio.Event()

        async def score(self, judge: Judge, problem: Problem, texts: Sequence[str]) -> list[ScoredCompletion]:
            if self.waits:
                self.begun.set()
                await asyncio.Event().wait()
            return await super().score(judge, problem, texts)

    quiet = await sampled(refilled, tmp_path / "quiet")
    async with refilled.run(tmp_path / "cancelled", told := Waiting(zero=DOWN, signal=DOWN)) as run:
        with pytest.raises(SandboxDownError):  # the groups of the first round are recorded
            await sample.fn(run, 0)
        told.waits = True
        phase = asyncio.create_task(sample.fn(run, 0))
        await told.begun.wait()
        phase.cancel()
        with pytest.raises(asyncio.CancelledError):
            await phase
        told.waits, told.grades = False, Told().grades
        assert (await sample.fn(run, 0)).rollouts.equals(quiet)


@pytest.mark.parametrize("lag", [1, 3])
async def test_all_rounds_of_a_step_ahead_are_of_one_policy(refilled: Refilled, tmp_path: Path, lag: int) -> None:
    settings: dict[str, Any] = {"max_steps_off_policy": lag, "learning_rate": 0.1, "temperature": 3.0}
    async with (
        refilled.run(tmp_path, Told(), **settings) as run,
        SamplingAhead(partial(sample.fn, run), lambda step: step <= lag + 1, lag) as ahead,
    ):
        rollouts = []
        for step in range(2):
            rollouts.append((await ahead.sampled(step)).rollouts)
            scored = await score.fn(run, step, PhaseResult(rollouts[-1]))
            await update.fn(run, step, scored, 0.0, {})
        rollouts += [(await ahead.sampled(step)).rollouts for step in range(2, lag + 2)]
    # Else advantages of equal completions cancel, and the update changes nothing.
    assert rollouts[0]["completion"].n_unique() > 12
    assert problems_of(rollouts[1])[:3] == list(POOL[3:6]) and len(problems_of(rollouts[1])) > 3
    assert [set(frame["sampler_step"]) for frame in rollouts] == [{-1}] * (lag + 1) + [{0}]
    for step in (lag, lag + 1):  # the last one of the first policy, and one of that after one update of two
        journal = run.directory.step(step)
        journal.files["sampled"].unlink()
        (journal.folder / "problems.json").unlink()
        async with refilled.run(tmp_path, Told(), **settings) as again:
            # Sampled after the updates, by another process: from the policy before them all the same.
            assert (await sample.fn(again, step)).rollouts.equals(rollouts[step])


def tokens_in(folder: Path) -> int:
    """The tokens that the journal in `folder` has, each group's prompt once: read without what is under test."""
    total = 0
    for step in folder.glob("steps/*"):
        whole = step / "sampled.parquet"
        frames = [pl.read_parquet(file) for file in ([whole] if whole.is_file() else step.glob("groups/*.parquet"))]
        for group in (group for frame in frames for group in frame.partition_by("group_index")):
            total += len(group["prompt_tokens"][0]) + sum(map(len, group["completion_tokens"]))
    return total


async def test_a_cap_ends_a_run_before_a_group_and_a_higher_one_goes_on(refilled: Refilled, tmp_path: Path) -> None:
    """Also with kills in between, with a step sampled ahead, and in groups of two parts."""
    settings: dict[str, Any] = {"max_steps_off_policy": 1, "first_completions": 2}

    async def steps(run: TrainingRun) -> pl.DataFrame:
        async with SamplingAhead(partial(sample.fn, run), lambda step: step < 3) as ahead:
            sampled = []
            for step in range(3):
                sampled.append((await ahead.sampled(step)).rollouts)
                if not run.directory.step(step).has("commit"):
                    scored = await score.fn(run, step, PhaseResult(sampled[-1]))
                    await update.fn(run, step, scored, 0.0, {})
            return pl.concat(sampled)

    async with refilled.run(tmp_path / "free", Told(), **settings) as run:
        rollouts = await steps(run)
        free = tokens_in(tmp_path / "free")
        assert run.session.budget.spent.counted == free, "without a cap it counts, too"
        prompt = max(map(len, rollouts["prompt_tokens"]))
    draw, folder, cap, ends = random.Random(3), tmp_path / "capped", 150, []
    for _ in range(60):
        async with refilled.run(folder, Told(), max_tokens_total=cap, **settings) as run:
            assert run.session.budget.spent.counted == tokens_in(folder), "what the journal has"
            work = asyncio.ensure_future(steps(run))
            killed = draw.random() < 0.5 and not (await asyncio.wait([work], timeout=draw.uniform(0.01, 0.3)))[0]
            if killed:
                work.cancel()
                await asyncio.wait([work])
            elif (error := (await asyncio.wait([work]))[0].pop().exception()) is None:
                break
            else:
                assert isinstance(error, BudgetReachedError) and "max_tokens_total" in str(error)
                assert cap - (prompt + 4 * 4) < tokens_in(folder) <= cap
                ends.append(cap)
                cap += draw.randint(1, 150)
            assert tokens_in(folder) <= cap
    assert work.result().equals(rollouts) and tokens_in(folder) == free and len(ends) > 3


async def test_a_cap_on_cost_counts_training_which_a_commit_puts_right(refilled: Refilled, tmp_path: Path) -> None:
    prices = {"prefill": 1e6, "cached": 0.0, "sample": 1e6, "train": 1e6}
    folder, costs = tmp_path / "run", []
    async with refilled.run(folder, Told(), prices=prices, max_usd=1e9, refill=1) as run:
        scored = await score.fn(run, 0, await sample.fn(run, 0))
        costs.append(run.session.budget.spent)
        metrics = (await update.fn(run, 0, scored, 0.0, {})).metrics
        costs.append(run.session.budget.spent)
    trained = scored.rollouts.filter("trained")
    lengths = [
        sum(map(len, frame[name]))
        for frame in (scored.rollouts, trained)
        for name in ("prompt_tokens", "completion_tokens")
    ]
    assert costs[0].training == lengths[0] + lengths[1] and costs[1].training == lengths[2] + lengths[3] > 0
    assert metrics["cost_usd"] == costs[1].prompt + costs[1].completion + costs[1].training
    assert metrics["tokens_training"] == costs[1].training and metrics["tokens_completion"] == lengths[1]
    assert metrics["tokens_prompt"] + metrics["tokens_prompt_cached"] == lengths[0]
    shutil.copytree(folder / "steps" / "000000", folder / "steps" / "000000.bak")  # by somebody, and spent on by nobody
    least = costs[1].prompt + costs[1].completion + costs[1].training
    async with refilled.run(folder, Told(), prices=prices, max_usd=least + 1, refill=1) as run:
        assert run.session.budget.spent == costs[1]
        with pytest.raises(BudgetReachedError, match="max_usd"):
            await sample.fn(run, 1)
    assert not list(folder.glob("steps/000001/groups/*"))


async def test_what_the_base_model_reads_to_measure_the_kl_is_billed(refilled: Refilled, tmp_path: Path) -> None:
    prices, folder = {"prefill": 1e6, "cached": 0.0, "sample": 1e6, "train": 1e6}, tmp_path / "run"
    settings: dict[str, Any] = {"prices": prices, "max_usd": 1e9, "refill": 1}
    async with refilled.run(folder, Told(), kl="base_every:1", **settings) as run:
        scored = await score.fn(run, 0, await sample.fn(run, 0))
        metrics = (await update.fn(run, 0, scored, 0.0, {})).metrics
        spent = run.session.budget.spent
    read = scored.rollouts.filter(pl.col("base_logprobs").is_not_null())
    assert read.height == min(KL_SAMPLE, scored.rollouts.height) and scored.base_seconds is not None
    lengths = [sum(map(len, read[name])) for name in ("prompt_tokens", "completion_tokens")]
    assert metrics["tokens_base"] == spent.base == sum(lengths) > 0
    assert metrics["cost_usd"] == spent.prompt + spent.completion + spent.training + spent.base
    async with refilled.run(folder, Told(), kl="base_every:1", **settings) as run:
        assert run.session.budget.spent == spent
    async with refilled.run(tmp_path / "default", Told(), **settings) as run:
        unasked = await score.fn(run, 0, await sample.fn(run, 0))
        metrics = (await update.fn(run, 0, unasked, 0.0, {})).metrics
    assert metrics["tokens_base"] == 0
    assert unasked.base_seconds is None and unasked.rollouts["base_logprobs"].is_null().all()
