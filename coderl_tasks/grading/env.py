"""Grading as an environment of one step, and as one call: the two shapes that people of this field look for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.scoring import FORMAT_COEF, score_completion
from coderl_tasks.grading.verdict import ScoredCompletion, Verdict
from coderl_tasks.problems.problem import Problem
from coderl_tasks.problems.raw_row import problem_from_row
from coderl_tasks.prompts.renderers import Renderer, problem_prompt
from coderl_tasks.services import named_sandboxes


@dataclass(frozen=True, slots=True)
class StepResult:
    """The end of an episode: its reward, numbers to log, and everything that was decided."""

    reward: float
    metrics: dict[str, float]
    scored: ScoredCompletion
    episode_done: bool = True


class CodeEnv:
    """One problem as an environment with a single step. `priority` and `fraction` as in `score_group`."""

    def __init__(
        self,
        problem: Problem,
        renderer: Renderer,
        judge: Judge,
        format_coef: float = FORMAT_COEF,
        *,
        priority: Sequence[int] | None = None,
        fraction: bool = False,
    ) -> None:
        self._problem, self._renderer, self._judge = problem, renderer, judge
        self._format_coef, self._priority, self._fraction = format_coef, priority, fraction

    def initial_observation(self) -> tuple[list[int], list[int]]:
        """The prompt's tokens, and the token ids that end a completion."""
        return problem_prompt(self._problem, self._renderer), self._renderer.stop_tokens

    async def step(self, tokens: Sequence[int]) -> StepResult:
        """Score a completion (n completion tokens, without the prompt). Raises InfraError where it cannot be graded."""
        text, complete = self._renderer.parse_response(tokens)
        scored = await score_completion(
            self._judge, self._problem, text, self._format_coef, priority=self._priority, fraction=self._fraction
        )
        if scored.reward is None:
            raise InfraError(scored.grade.reason)
        metrics = {
            "format": float(scored.code is not None),
            "correct": float(scored.grade.passed),
            "complete": float(complete),
            "tests_passed": float(scored.grade.tests_passed),
            "tests_run": float(scored.grade.tests_run),
            "tests_total": float(scored.grade.tests_total),
            "run_seconds": scored.grade.run_seconds,
        }
        return StepResult(scored.reward, metrics, scored)


async def sandbox_check_correctness(
    tests: Sequence[Mapping[str, Any]] | Mapping[str, Any] | str,
    code: str,
    timeout: float = 6,
    *,
    client: SandboxClient | None = None,
) -> Verdict:
    """The verdict on a program over raw tests of any shape that `normalize_tests` knows; `timeout` is CPU seconds per
    test. Without a `client`, the servers in `SANDBOX_URL` are asked. Raises ConfigError where that is not set,
    RowDropped for tests of an unknown shape; an outage is the verdict `infra_error`."""
    problem = problem_from_row({"problem": "(given by its tests)", "tests": tests}, split="", source_row=0)
    if client is not None:
        return (await Judge(client, timeout).grade(problem, code)).verdict
    urls = named_sandboxes()
    if not urls:
        raise ConfigError("SANDBOX_URL is not set: `coderl serve sandbox` starts a sandbox and prints its address")
    async with SandboxClient(urls) as own_client:
        return (await Judge(own_client, timeout).grade(problem, code)).verdict
