"""The interface of an environment, rows -> prompt -> reward, and environment=code, which trains on programs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.scoring import FORMAT_COEF, score_group
from coderl_tasks.grading.verdict import ScoredCompletion
from coderl_tasks.problems.loading import CODE_ROWS, RowReader
from coderl_tasks.problems.problem import Problem
from coderl_tasks.prompts.renderers import Renderer, problem_prompt


class Environment(ABC):
    """One per value of the setting `environment`; without state, so that runs and evaluations share it."""

    name: ClassVar[str]
    rows: ClassVar[RowReader]

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """What, besides the problems, decides prompts and rewards: recorded beside what was sampled."""
        return {"environment": self.name}

    @abstractmethod
    def prompt(self, problem: Problem, renderer: Renderer) -> list[int]:
        """The prompt's tokens."""

    def stop(self, renderer: Renderer) -> Sequence[int] | Sequence[str]:
        """What ends a completion: token ids, or texts."""
        return renderer.stop_tokens

    def text(self, tokens: Sequence[int], renderer: Renderer) -> str:
        """The text of a completion that is rewarded and recorded."""
        return renderer.parse_response(tokens)[0]

    async def require_usable(self, judge: Judge) -> None:  # noqa: B027 - most need nothing
        """Raise ConfigError before anything is sampled where rewards could not be computed."""

    @abstractmethod
    async def score(self, judge: Judge, problem: Problem, texts: Sequence[str]) -> list[ScoredCompletion]:
        """The scores of one problem's completions, in order. Never raises for an outage: that is the verdict
        `infra_error`, without a reward."""


@dataclass(frozen=True, eq=False)
class CodeEnvironment(Environment):
    """A completion is a program; its reward is the table in `grading.scoring`, with `fraction` the share of the tests
    that it passes. `priorities` has, by problem id, the order in which tests are run, where it is not their own."""

    name = "code"
    rows = CODE_ROWS
    format_coef: float = FORMAT_COEF
    _: KW_ONLY
    fraction: bool = False
    priorities: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        return {}  # what was recorded before there were other environments goes on

    def prompt(self, problem: Problem, renderer: Renderer) -> list[int]:
        return problem_prompt(problem, renderer)

    async def score(self, judge: Judge, problem: Problem, texts: Sequence[str]) -> list[ScoredCompletion]:
        priority = self.priorities.get(problem.problem_id)
        return await score_group(judge, problem, texts, self.format_coef, priority=priority, fraction=self.fraction)


CODE = CodeEnvironment()
