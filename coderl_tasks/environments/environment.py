"""The interface of an environment, rows -> prompt -> reward; environment=code and =tool, which train on programs; and
environment=custom, the user's prompts and their compute_reward in the sandbox."""

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar

from coderl_tasks.environments.feedback import Reply, code_replies, tool_replies
from coderl_tasks.errors import InfraError
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.reward_function import ReplyError, Reward, RewardFunction
from coderl_tasks.grading.scoring import FORMAT_COEF, Grade, ScoredCompletion, Verdict, extract_code, score_group
from coderl_tasks.grading.suspicion import suspicion
from coderl_tasks.problems.loading import CODE_ROWS, PROMPT_ROWS, RowReader
from coderl_tasks.problems.problem import Problem
from coderl_tasks.prompts.renderers import Message, Renderer, problem_messages
from coderl_tasks.prompts.tool_calls import CALL_CLOSE, Tools, run_python
from coderl_tasks.settings import TrainSettings
from coderl_tasks.settings.flow_settings import Feedback

logger = logging.getLogger(__name__)
CORRECT_FROM = 1.0
CODE_END = "\n```\n"
"""The fence that closes a code block. The token that completes it may have more line ends, which are kept."""


@dataclass(frozen=True, slots=True)
class Turns:
    """How many answers a completion may have, and how it goes on: by the result of a tool call, or by feedback."""

    most: int = 1
    feedback: Feedback = "samples"
    tokens: int | None = None  # of a completion after its first prompt, replies included; None: no limit of its own
    tool_calls: int = 0  # so many at most; 0: it goes on by feedback

    @property
    def tools(self) -> Tools:
        """What prompts describe."""
        return [run_python(self.tool_calls)] if self.tool_calls else []

    @property
    def role(self) -> str:
        """Whose words a reply is, in the chat format."""
        return "tool" if self.tool_calls else "user"

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        if self.most == 1:
            return {}
        if self.tool_calls:
            return {"max_tool_calls": self.tool_calls, "max_trajectory_tokens": self.tokens}
        return {"max_turns": self.most, "feedback": self.feedback, "max_trajectory_tokens": self.tokens}


ONE_TURN = Turns()


class Environment(ABC):
    """One per value of the setting `environment`; without state, so that runs and evaluations share it."""

    name: ClassVar[str]
    rows: ClassVar[RowReader]
    turns: Turns = ONE_TURN
    is_chat: ClassVar[bool] = True
    """Whether prompts are in the model's chat format, which a base model may lack."""

    def of_run(self, settings: TrainSettings, priorities: Mapping[str, Sequence[int]]) -> "Environment":
        """This environment as a run trains in it, with settings and an order of tests that evaluations do not have."""
        return self

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """What, besides the problems, decides prompts and rewards: recorded beside what was sampled."""
        return {"environment": self.name, **self.turns.fingerprint}

    def messages(self, problem: Problem) -> list[Message]:
        """The conversation that the prompt is made of."""
        raise NotImplementedError(f"environment={self.name} has no conversation")

    def prompt(self, problem: Problem, renderer: Renderer) -> list[int]:
        """The prompt's tokens."""
        return renderer.prompt_tokens(self.messages(problem), self.turns.tools)

    async def replies(self, judge: Judge, problem: Problem, texts: Sequence[str], turn: int) -> list[Reply]:
        """What the environment says to these answers of turn number `turn` (from 0). Nothing of it depends on a test
        that the problem's statement does not show."""
        raise NotImplementedError(f"environment={self.name} has no replies")

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
        """The scores of one problem's completions, in order. In an outage: verdict `infra_error`, no reward."""


def stop_texts(renderer: Renderer, *ends: str) -> list[str]:
    """What ends a completion where `ends` do, besides the model's own end: a request has either tokens or texts."""
    return [*(str(renderer.tokenizer.decode([token])) for token in renderer.stop_tokens), *ends]


@dataclass(frozen=True, eq=False)
class CodeEnvironment(Environment):
    """environment=code and, with tool calls in `turns`, environment=tool. A completion is a program; its reward is the
    table in `grading.scoring`, with `fraction` the share of the tests that it passes. `priorities` has, by problem id,
    the order in which tests are run, where it is not their own. With `stop_after_code` a completion ends with its first
    code block or call, and with `quarantine` a suspicious program has no reward. `holdback` is the share of each
    problem's tests, drawn by `seed`, that gives no reward: only programs that pass the others are run on them."""

    name = "code"
    rows = CODE_ROWS
    format_coef: float = FORMAT_COEF
    _: KW_ONLY
    turns: Turns = ONE_TURN  # pyrefly: ignore[bad-override]
    fraction: bool = False
    priorities: Mapping[str, Sequence[int]] = field(default_factory=dict)
    stop_after_code: bool = False
    quarantine: bool = False
    holdback: float = 0.0
    seed: int = 0

    def messages(self, problem: Problem) -> list[Message]:
        return problem_messages(problem)

    def of_run(self, settings: TrainSettings, priorities: Mapping[str, Sequence[int]]) -> "CodeEnvironment":
        return replace(
            self,
            format_coef=settings.format_coef,
            fraction=settings.reward == "fraction",
            priorities=priorities,
            quarantine=settings.on_hack == "quarantine",
            holdback=settings.holdback,
            seed=settings.seed,
        )

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        # By default nothing: what was recorded before there were other environments goes on.
        return ({"stop_after_code": True} if self.stop_after_code else {}) | dict(self.turns.fingerprint)

    def stop(self, renderer: Renderer) -> Sequence[int] | Sequence[str]:
        if not self.stop_after_code:
            return renderer.stop_tokens
        # The fence that opens a block names its language, or begins the answer.
        return stop_texts(renderer, *([CODE_END, CALL_CLOSE] if self.turns.tool_calls else [CODE_END]))

    async def replies(self, judge: Judge, problem: Problem, texts: Sequence[str], turn: int) -> list[Reply]:
        if self.turns.tool_calls:
            return await tool_replies(judge, texts, is_last=turn + 1 == self.turns.tool_calls)
        codes = [extract_code(text) for text in texts]
        return await code_replies(judge, problem, codes, self.turns.feedback)

    async def score(self, judge: Judge, problem: Problem, texts: Sequence[str]) -> list[ScoredCompletion]:
        """Scores the completions `texts` of one problem, in order, in three steps: the program of each is run on the
        tests that give reward; programs that earned reward are searched for signs of cheating, which with `quarantine`
        cost the reward; programs that passed are also run on the tests held back, which only measures whether they
        pass those too. In an outage a completion has verdict `infra_error` and no reward."""
        held_back = self.held_back(problem)  # indices of tests, as in the next two
        rewarded: list[int] | None = None  # all tests
        priority = self.priorities.get(problem.problem_id)  # the order in which to run tests; None: their own
        if held_back:
            left_out = set(held_back)
            rewarded = [index for index in range(len(problem.tests)) if index not in left_out]
            priority = priority and [index for index in priority if index not in left_out]
        scored = await score_group(
            judge, problem, texts, self.format_coef, priority=priority, fraction=self.fraction, only=rewarded
        )
        # Each distinct program once: completions of one problem often have the same.
        earned = {each.code for each in scored if each.code is not None and each.correctness}
        signs: dict[str | None, str] = {code: suspicion(code, problem) for code in earned}  # empty: no sign
        passed: list[str] = []
        if held_back:
            passed = sorted({each.code for each in scored if each.code is not None and each.grade.passed})
        grades = await asyncio.gather(*(judge.grade(problem, code, only=held_back) for code in passed))
        # Whether each passes the tests held back. A program that met an outage is left out: that is not known.
        outcomes: dict[str | None, bool] = {
            code: grade.passed for code, grade in zip(passed, grades, strict=True) if grade.gradable
        }
        return [
            replace(
                each,
                suspicion=signs.get(each.code, ""),
                reward=None if self.quarantine and signs.get(each.code) else each.reward,
                passes_held_back=outcomes.get(each.code),
            )
            for each in scored
        ]

    def held_back(self, problem: Problem) -> list[int]:
        """The indices of the tests that give no reward, ascending; at least one test does."""
        n_tests = len(problem.tests)
        count = min(round(self.holdback * n_tests), n_tests - 1)
        if count < 1:
            return []
        return sorted(random.Random(f"{self.seed} holdback {problem.problem_id}").sample(range(n_tests), count))


CODE = CodeEnvironment()


class CustomEnvironment(Environment):
    """The prompt is the only message of a chat, the user's. A reward of 1 or more counts as correct (in pass rates,
    Pass@1 and mean_correct); there is no format rule, so every completion's format_score is 0."""

    name = "custom"
    rows = PROMPT_ROWS

    def __init__(self, function: RewardFunction, turns: Turns = ONE_TURN) -> None:
        self.function, self.turns = function, turns

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        return {**super().fingerprint, "reward_sha256": self.function.sha256}

    def messages(self, problem: Problem) -> list[Message]:
        return [{"role": "user", "content": problem.statement}]

    async def require_usable(self, judge: Judge) -> None:
        await self.function.require_usable(judge.client)
        if self.turns.most > 1:
            await self.function.require_usable(judge.client, replies=True)

    async def replies(self, judge: Judge, problem: Problem, texts: Sequence[str], turn: int) -> list[Reply]:
        truth = problem.tests[0].expected
        try:
            found = await self.function.replies(judge.client, truth, texts, turn, judge.timeout_s)
        except InfraError:
            return [Reply(Verdict.INFRA_ERROR, None)] * len(texts)
        replies = []
        for reply in found:
            if isinstance(reply, ReplyError):
                logger.warning("problem %s, turn %d: respond failed: %s", problem.problem_id, turn, reply.text)
                replies.append(Reply(Verdict.CHECKER_ERROR, None))
            else:
                replies.append(Reply(Verdict.PASSED if reply is None else Verdict.WRONG_ANSWER, reply))
        return replies

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
