"""environment=code: problems with tests, LiveCodeBench's prompt, a program that the sandbox runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from coderl_tasks.environments.environment import CodeReward, Environment
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.verdict import ScoredCompletion, score_group
from coderl_tasks.problems.loading import CODE_ROWS
from coderl_tasks.problems.problem import Problem
from coderl_tasks.prompts.problem_prompt import problem_prompt
from coderl_tasks.prompts.renderers import Renderer


class CodeEnvironment(Environment):
    """A completion is a program; its reward is the table in `grading.verdict`."""

    name = "code"
    rows = CODE_ROWS

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        # Nothing: what was recorded before there were others goes on.
        return {}

    def prompt(self, problem: Problem, renderer: Renderer) -> list[int]:
        return problem_prompt(problem, renderer)

    async def score(
        self, judge: Judge, problem: Problem, texts: Sequence[str], reward: CodeReward
    ) -> list[ScoredCompletion]:
        return await score_group(
            judge, problem, texts, reward.format_coef, priority=reward.priority, fraction=reward.fraction
        )


CODE = CodeEnvironment()
