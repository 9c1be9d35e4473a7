"""Groups without a signal are replaced, or end with their first completions, on a real Tinker server. The name of a
problem says how its completions are rewarded: `signal` (they differ), `zero` (they do not), `lost` (one of these cannot
be graded)."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coderl_tasks.environments.environment import CodeReward, Environment
from coderl_tasks.errors import BudgetReachedError, CoderlError, SandboxDownError
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.grading.verdict import Grade, ScoredCompletion, Verdict
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.paths import NANO_MODEL
from coderl_tasks.problems.answer_row import PROMPT_ROWS
from coderl_tasks.problems.problem import Problem
from coderl_tasks.prompts import get_renderer, load_tokenizer
from coderl_tasks.prompts.renderers import Renderer
from coderl_tasks.rollouts.session import Session
from coderl_tasks.services import Services
from coderl_tasks.settings import TrainSettings
from coderl_tasks.training.run import TrainingRun
from coderl_tasks.training.step import Phase, SamplingAhead, sample, score, update
from tests.conftest import Serve
from tests.faults.sampling_faults import SamplingFaults

POOL = ("zero a", "signal b", "zero c", "zero d", "signal e", "signal f", "zero g", "signal h", "signal i")
"""With selection=cycle the first step takes a, b, c, then d and e, and then f."""
SIGNAL, ZERO, LOST, DOWN = "PWPW", "WWWW", "WIWW", "IIII"


def scored(letter: str) -> ScoredCompletion:
    """P: 1, W: 0, I: not graded, E: compute_reward failed."""
    verdict = {"P": Verdict.PASSED, "W": Verdict.WRONG_ANSWER, "I": Verdict.INFRA_ERROR, "E": Verdict.REWARD_ERROR}
    reward = None if letter == "I" else float(letter == "P")
    grade = Grade(verdict[letter], 0, 1, 1, None, 0.0, error="a traceback")
    return ScoredCompletion(None, grade, None if reward is None else 0.0, reward, reward)


class Told(Environment):
    """Each group's grades by the first word of its problem's name. `crashing` is a problem at which the process dies;
    `graded` has those that were graded."""

    name = "told"
    rows = PROMPT_ROWS

    def __init__(self, crashing: str = "", **grades: str) -> None:
        self.grades = {"signal": SIGNAL, "zero": ZERO, "lost": LOST} | grades
        self.crashing = crashing
        self.graded: list[str] = []

    def prompt(self, problem: Problem, renderer: Renderer) -> list[int]:
        return renderer.prompt_tokens([{"role": "user", "content": problem.problem_id}])

    async def score(
        self, judge: Judge, problem: Problem, texts: Sequence[str], reward: CodeReward
    ) -> list[ScoredCompletion]:
        if problem.problem_id == self.crashing:
            raise ValueError("a crash")
        await asyncio.sleep(0.002 * (7 * len(self.graded) % 5))  # the groups of a round are graded in any order
        self.graded.append(problem.problem_id)
        grades = cycle(self.grades[problem.problem_id.split()[0]])
        return [scored(grade) for grade in islice(grades, len(texts))]


class Refilled:
    """Runs on one Tinker server, which notes the seeds that it is asked with."""

    def __init__(self, services: Services, gateway: SamplingFaults, client: SandboxClient) -> None:
        self._services = services
        self._client = client
        self.seeds = gateway.seeds

    @asynccontextmanager
    async def run(
        self, folder: Path, environment: Environment, pool: Sequence[str] = POOL, **settings: Any
    ) -> AsyncIterator[TrainingRun]:
        """The run in `folder`, as a process opens it; 3 problems per step, 4 completions each."""
        sizes = {"problems_per_step": 3, "completions_per_problem": 4, "max_tokens": 4, "selection": "cycle"}
        values = TrainSettings.model_validate({"model_name": NANO_MODEL, "refill": 2.0, **sizes, **settings})
        renderer = get_renderer("qwen3_instruct", load_tokenizer(NANO_MODEL))
        session = Session(self._services, Judge(self._client), renderer, 512, NANO_MODEL, environment)
        problems = {name: Problem(name, "own", name, "", "stdin", "", (), 0, 0, None, (), 0) for name in pool}
        with RunDirectory.open(folder, {}) as directory:
            run = TrainingRun(values, directory, session, problems, [], [], {})
            try:
                yield run
            finally:
                await run.graded_ahead.close()
                await session.close()


@pytest.fixture
async def refilled(embedded: Services, serve: Serve) -> AsyncIterator[Refilled]:
    gateway = SamplingFaults(str(embedded.tinker_url))
    services = replace(embedded, tinker_url=serve(gateway.app()))
    async with SandboxClient(embedded.sandbox_urls) as client:
        yield Refilled(services, gateway, client)


def problems_of(rollouts: pl.DataFrame) -> list[str]:
    """The problem of each group, in group order."""
    groups = rollouts.group_by("group_index", maintain_order=True).agg(pl.col("problem_id").unique())
    assert groups["group_index"].to_list() == list(range(groups.height))
    return [problem_id for (problem_id,) in groups["problem_id"]]


async def test_groups_are_replaced_in_rounds_up_to_the_cap_and_again_after_a_kill(
    refilled: Refilled, tmp_path: Path
) -> None:
    told = Told()
    async with refilled.run(tmp_path / "quiet", told) as run:
        rollouts = (await sample.fn(run, 0)).rollouts
        assert problems_of(rollouts) == list(POOL[:6]), "two are missing, then one: and 6 are twice 3"
        after = (await score.fn(run, 0, Phase(rollouts))).rollouts
        assert sorted(told.graded) == sorted(POOL[:6]), "what was graded to decide is not graded again"
        commit = await update.fn(run, 0, Phase(after), 0.0, {})
        metrics = commit.metrics
        assert (metrics["groups_total"], metrics["groups_skipped"], metrics["groups_refilled"]) == (6, 3, 3)
        tokens = {trained: rows["completion_tokens"].explode().len() for (trained,), rows in after.group_by("trained")}
        assert metrics["tokens_without_signal"] == tokens[False] / (tokens[False] + tokens[True])
        assert metrics["n_datums"] == 12, "as many groups as without replacing, had all had a signal"
        assert problems_of((await sample.fn(run, 1)).rollouts) == list(POOL[3:8])
    assert len(refilled.seeds) == len(set(refilled.seeds))

    # Killed while the second round is graded.
    async with refilled.run(tmp_path / "graded", Told(crashing="signal e"), sample_concurrency=1) as run:
        with pytest.raises(ValueError, match="a crash"):
            await sample.fn(run, 0)
        assert run.directory.step(0).read_problems() == list(POOL[:5])
    # Killed before a group of the second round is there. What was decided stays, whatever grading says now.
    async with refilled.run(tmp_path / "sampled", Told()) as run:
        journal = run.directory.step(0)
        journal.write_problems(POOL[:6])
        for group in rollouts.filter(pl.col("group_index") != 4).partition_by("group_index"):
            journal.groups.write(group["group_index"][0], group)
    for name, environment in {"graded": Told(), "sampled": Told(zero=SIGNAL)}.items():
        asked = len(refilled.seeds)
        async with refilled.run(tmp_path / name, environment) as run:
            assert (await sample.fn(run, 0)).rollouts.equals(rollouts)
        assert len(refilled.seeds) - asked == 1, "of six groups one had not been sampled"


async def test_only_groups_whose_first_completions_differ_get_the_rest(refilled: Refilled, tmp_path: Path) -> None:
    def heights(rollouts: pl.DataFrame) -> list[int]:
        groups = rollouts.group_by("group_index", maintain_order=True).agg(pl.col("sample_index"))
        assert all(numbers == list(range(len(numbers))) for numbers in groups["sample_index"].to_list())
        return groups["sample_index"].list.len().to_list()

    told = Told()
    async with refilled.run(tmp_path / "quiet", told, first_completions=2) as run:
        rollouts = (await sample.fn(run, 0)).rollouts
        assert problems_of(rollouts) == list(POOL[:6]) and heights(rollouts) == [2, 4, 2, 2, 4, 4]
        after = (await score.fn(run, 0, Phase(rollouts))).rollouts
        whole = ["signal b", "signal e", "signal f"]
        assert sorted(told.graded) == sorted([*POOL[:6], *whole]), "each completion is graded once"
        metrics = (await update.fn(run, 0, Phase(after), 0.0, {})).metrics
        assert (metrics["groups_total"], metrics["groups_skipped"], metrics["groups_refilled"]) == (6, 3, 3)
        assert metrics["n_datums"] == 12 and set(after.filter("trained")["problem_id"]) == set(whole)
    assert len(refilled.seeds) == len(set(refilled.seeds)) == 9

    # A caller's own step gets no further problems.
    async with refilled.run(tmp_path / "own", Told(), first_completions=2) as run:
        run.directory.step(0).write_problems(POOL[:3], [2, 2, 2])
        rollouts_of_own = (await sample.fn(run, 0)).rollouts
        assert problems_of(rollouts_of_own) == list(POOL[:3]) and heights(rollouts_of_own) == [2, 4, 2]
    # No more than 12 completions: after a, b and c there are 8, and of d's group no other one would fit.
    async with refilled.run(tmp_path / "bounded", Told(), first_completions=2, refill=1) as run:
        assert heights((await sample.fn(run, 0)).rollouts) == [2, 4, 2, 2]
    # A completion that could not be graded may have been right: its group gets the rest.
    settings: dict[str, Any] = {"first_completions": 2, "problems_per_step": 8}
    async with refilled.run(tmp_path / "fault", Told(), ["lost b", *POOL[:7]], **settings) as run:
        assert heights((await sample.fn(run, 0)).rollouts) == [4, 2, 4, 2, 2, 4, 4, 2]

    # Killed in the second round, and killed with one group begun, one lost, whatever grading says now.
    async with refilled.run(tmp_path / "graded", Told(crashing="signal e"), first_completions=2) as run:
        with pytest.raises(ValueError, match="a crash"):
            await sample.fn(run, 0)
    async with refilled.run(tmp_path / "sampled", Told(), first_completions=2) as run:
        journal = run.directory.step(0)
        journal.write_problems(POOL[:6], [2, 4, 2, 2, 4, 2], decided=5)
        for group in rollouts.filter(pl.col("group_index") != 4).partition_by("group_index"):
            journal.groups.write(group["group_index"][0], group.head(2) if group["group_index"][0] == 5 else group)
    for name in ("graded", "sampled"):
        environment = Told(zero=ZERO if name == "graded" else SIGNAL)
        async with refilled.run(tmp_path / name, environment, first_completions=2) as run:
            assert (await sample.fn(run, 0)).rollouts.equals(rollouts)


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
            scored = await score.fn(run, step, Phase(rollouts[-1]))
            await update.fn(run, step, scored, 0.0, {})
        rollouts += [(await ahead.sampled(step)).rollouts for step in range(2, lag + 2)]
    # Else advantages of equal completions cancel, and the update changes nothing.
    assert rollouts[0]["completion"].n_unique() > 12
    assert problems_of(rollouts[1])[:3] == list(POOL[3:6]) and len(problems_of(rollouts[1])) > 3
    assert [set(frame["sampler_step"]) for frame in rollouts] == [{-1}] * (lag + 1) + [{0}]
    for step in (lag, lag + 1):  # the last one of the first policy, and one of that after one update of two
        journal = run.directory.step(step)
        journal.path("sampled").unlink()
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
                    scored = await score.fn(run, step, Phase(sampled[-1]))
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
    least = costs[1].prompt + costs[1].completion + costs[1].training
    async with refilled.run(folder, Told(), prices=prices, max_usd=least + 1, refill=1) as run:
        assert run.session.budget.spent == costs[1]
        with pytest.raises(BudgetReachedError, match="max_usd"):
            await sample.fn(run, 1)
    assert not list(folder.glob("steps/000001/groups/*"))
