"""environment=custom: the user's prompts, and their compute_reward in the sandbox.

The prompt is the only message of a chat, the user's. A reward of 1 or more counts as correct (in pass rates, Pass@1 and
mean_correct); there is no format rule, so every completion's format_score is 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from coderl_tasks.environments.environment import Environment
from coderl_tasks.errors import InfraError
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.reward_function import Reward, RewardFunction
from coderl_tasks.grading.verdict import Grade, ScoredCompletion, Verdict
from coderl_tasks.problems.loading import PROMPT_ROWS
from coderl_tasks.problems.problem import Problem
from coderl_tasks.prompts.renderers import Renderer

CORRECT_FROM = 1.0


class CustomEnvironment(Environment):
    name = "custom"
    rows = PROMPT_ROWS

    def __init__(self, function: RewardFunction) -> None:
        self.function = function

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        return {"environment": self.name, "reward_sha256": self.function.sha256}

    def prompt(self, problem: Problem, renderer: Renderer) -> list[int]:
        return renderer.prompt_tokens([{"role": "user", "content": problem.statement}])

    async def require_usable(self, judge: Judge) -> None:
        await self.function.require_usable(judge.client)

    async def score(self, judge: Judge, problem: Problem, texts: Sequence[str]) -> list[ScoredCompletion]:
        try:
            rewards = await self.function.rewards(judge.client, problem.tests[0].expected, texts, judge.timeout_s)
        except InfraError as error:
            grade = Grade(Verdict.INFRA_ERROR, 0, 0, 1, None, 0.0, str(error))
            return [ScoredCompletion(None, grade, None, None, None)] * len(texts)
        return list(map(_scored, rewards))


def _scored(reward: Reward) -> ScoredCompletion:
    if reward.error:
        last_line = reward.error.rpartition("\n")[2]
        grade = Grade(Verdict.REWARD_ERROR, 0, 1, 1, 0, 0.0, last_line, error=reward.error)
        return ScoredCompletion(None, grade, 0.0, 0.0, 0.0)
    if reward.value >= CORRECT_FROM:
        return ScoredCompletion(None, Grade(Verdict.PASSED, 1, 1, 1, None, 0.0), 0.0, 1.0, reward.value)
    grade = Grade(Verdict.WRONG_ANSWER, 0, 1, 1, 0, 0.0, f"a reward of {reward.value:g}, less than {CORRECT_FROM:g}")
    return ScoredCompletion(None, grade, 0.0, max(0.0, reward.value), reward.value)
