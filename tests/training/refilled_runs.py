"""Runs on a real Tinker server whose groups are graded by their names: the first word of a problem's name says how its
completions are rewarded: `signal` (they differ), `zero` (they do not), `lost` (one of these cannot be graded)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.environments.environment import Environment
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.grading.scoring import Grade, ScoredCompletion, Verdict
from coderl_tasks.journal.ledger import run_budget
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.paths import NANO_MODEL
from coderl_tasks.problems.loading import PROMPT_ROWS
from coderl_tasks.problems.problem import Problem
from coderl_tasks.prompts import get_renderer, load_tokenizer
from coderl_tasks.prompts.renderers import Renderer
from coderl_tasks.rollouts.engine import Session
from coderl_tasks.services import Services
from coderl_tasks.settings import TrainSettings
from coderl_tasks.training.run import TrainingRun
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

    async def score(self, judge: Judge, problem: Problem, texts: Sequence[str]) -> list[ScoredCompletion]:
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
        problems = {name: Problem(name, "own", name, "", "stdin", "", (), 0, 0, None, (), 0) for name in pool}
        with RunDirectory.open(folder, {}) as directory:
            session = Session(
                *(self._services, Judge(self._client), renderer, 512, NANO_MODEL, environment),
                budget=run_budget(values, folder, directory.commits()),
            )
            run = TrainingRun(values, directory, session, problems, [], [], {})
            try:
                yield run
            finally:
                await run.graded_ahead.release()
                await session.close()


def problems_of(rollouts: pl.DataFrame) -> list[str]:
    """The problem of each group, in group order."""
    groups = rollouts.group_by("group_index", maintain_order=True).agg(pl.col("problem_id").unique())
    assert groups["group_index"].to_list() == list(range(groups.height))
    return [problem_id for (problem_id,) in groups["problem_id"]]
