"""environment=gsm8k: word problems whose answer is a number, with the prompts and the reward of the GRPO notebook.

    | found in the completion                    | format_reward |
    |--------------------------------------------|---------------|
    | <answer>...</answer>                       |      1        |
    | else \\boxed{...}                           |      1        |
    | else a number: the last one                |      0.5      |
    | nothing                                    |      0        |

    reward = 0.2 * format_reward + 0.8 * answer_reward

The answer counts as right within 1e-4 of the number behind #### in the ground truth, or as the same text. In rollouts
`format_score` is format_reward - 1: 0 is as it was asked for.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coderl_tasks.environments.environment import Environment, stop_texts
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.scoring import Grade, ScoredCompletion, Verdict
from coderl_tasks.problems.loading import FINAL_ANSWER, QUESTION_ROWS
from coderl_tasks.problems.problem import Problem
from coderl_tasks.prompts.renderers import Renderer

if TYPE_CHECKING:
    import torch

FORMAT_WEIGHT, ANSWER_WEIGHT = 0.2, 0.8
BARE_NUMBER = 0.5
TOLERANCE = 1e-4
_BOXED = re.compile(r"\\boxed\{([^}]+)\}")
_NUMBER = re.compile(r"-?\d+\.?\d*")

R1_ZERO_PROMPT = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The Assistant "
    "first thinks about the reasoning process in the mind and then provides the User with the answer. The reasoning "
    "process is enclosed within <think> </think> and answer is enclosed within <answer> </answer> tags, respectively."
    "\n\nUser: {question}\nAssistant: <think>"
)
BOXED_PROMPT = (
    "Solve the following math problem. Provide your final numerical answer inside \\boxed{{}}.\n\n"
    "Question: {question}\n\nSolution:"
)


def build_gsm8k_prompt(question: str, use_r1_zero_format: bool = True) -> str:
    """The prompt of a question: the one with <think> and <answer>, or the one with \\boxed{}. No chat format."""
    return (R1_ZERO_PROMPT if use_r1_zero_format else BOXED_PROMPT).format(question=question)


def gsm8k_reward_fn(response: str, ground_truth: str) -> dict[str, float]:
    """`reward`, `format_reward` and `answer_reward` of a response, by the table above; 0 without #### in the truth."""
    wanted = _wanted(ground_truth)
    if wanted is None:
        return {"reward": 0.0, "format_reward": 0.0, "answer_reward": 0.0}
    answer, format_reward = _answer(response)
    try:
        is_right = abs(float(answer.replace(",", "")) - float(wanted.replace(",", ""))) < TOLERANCE
    except ValueError:
        is_right = answer == wanted
    reward = format_reward * FORMAT_WEIGHT + is_right * ANSWER_WEIGHT
    return {"reward": reward, "format_reward": format_reward, "answer_reward": float(is_right)}


def run_compute_group_normalized_rewards(
    reward_fn: Callable[[str, str], Mapping[str, float]],
    rollout_responses: Sequence[str],
    repeated_ground_truths: Sequence[str],
    group_size: int,
    advantage_eps: float,
    normalize_by_std: bool,
) -> "tuple[torch.Tensor, torch.Tensor, dict[str, float]]":
    """Returns advantages and raw rewards (float32, one per response, in order), and the rewards' mean, std, min, max.
    A question has `group_size` consecutive responses. An advantage is reward - group mean; `normalize_by_std` divides
    it by the group's std (ddof 1) + `advantage_eps`. Raises ValueError if the responses do not fill whole groups."""
    import torch  # seconds to import, which the reward alone does not need

    pairs = zip(rollout_responses, repeated_ground_truths, strict=True)
    raw = torch.tensor([reward_fn(response, truth)["reward"] for response, truth in pairs], dtype=torch.float32)
    if not len(raw) or len(raw) % group_size:
        raise ValueError(f"{len(raw)} responses are no groups of {group_size}")
    grouped = raw.view(-1, group_size)
    advantages = grouped - grouped.mean(dim=1, keepdim=True)
    if normalize_by_std:
        advantages = advantages / (grouped.std(dim=1, keepdim=True) + advantage_eps)
    metadata = {f"{name}_reward": getattr(raw, name)().item() for name in ("mean", "std", "min", "max")}
    return advantages.view(-1), raw, metadata


class Gsm8kEnvironment(Environment):
    """The prompt is plain text, not a chat. A completion ends with its answer's tag, blank lines or the model's own end
    token, which is no part of its text."""

    name = "gsm8k"
    rows = QUESTION_ROWS
    is_chat = False

    def __init__(self, use_r1_zero_format: bool = True) -> None:
        self.use_r1_zero_format = use_r1_zero_format

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        return {"environment": self.name, "use_r1_zero_format": self.use_r1_zero_format}

    def prompt(self, problem: Problem, renderer: Renderer) -> list[int]:
        text = build_gsm8k_prompt(problem.statement, self.use_r1_zero_format)
        return list(renderer.tokenizer.encode(text, add_special_tokens=True))

    def stop(self, renderer: Renderer) -> Sequence[str]:
        tags = ["</answer>"] if self.use_r1_zero_format else []
        return stop_texts(renderer, *tags, "\n\n\n")

    def text(self, tokens: Sequence[int], renderer: Renderer) -> str:
        return Renderer.parse_response(renderer, tokens)[0]  # as sampled: a chat format's thinking is none here

    async def score(self, judge: Judge, problem: Problem, texts: Sequence[str]) -> list[ScoredCompletion]:
        return [_scored(text, problem.tests[0].expected) for text in texts]


def _scored(text: str, ground_truth: str) -> ScoredCompletion:
    rewards = gsm8k_reward_fn(text, ground_truth)
    answer, _ = _answer(text)
    scores = (rewards["format_reward"] - 1.0, rewards["answer_reward"], rewards["reward"])
    if rewards["answer_reward"]:
        return ScoredCompletion(answer, Grade(Verdict.PASSED, 1, 1, 1, None, 0.0), *scores)
    if not rewards["format_reward"]:
        grade = Grade(Verdict.FORMAT_ERROR, 0, 0, 1, None, 0.0, "no number in the answer")
        return ScoredCompletion(None, grade, *scores)
    reason = f"the answer is {_wanted(ground_truth)}"
    return ScoredCompletion(answer, Grade(Verdict.WRONG_ANSWER, 0, 1, 1, 0, 0.0, reason, answer), *scores)


def _wanted(ground_truth: str) -> str | None:
    """The answer behind ####, None where there is none."""
    found = FINAL_ANSWER.search(ground_truth.strip())
    return found[1].strip() if found else None


def _answer(response: str) -> tuple[str, float]:
    """What a response gives as its answer, "" where nothing, and the format_reward for how."""
    # No pattern that looks for the end from each beginning: a completion that repeats one would take minutes.
    tagged, closed, _ = response.partition("<answer>")[2].partition("</answer>")
    if closed:
        return tagged.strip(), 1.0
    if "\\boxed{" in response:
        boxed = _BOXED.search(response, 0, response.rfind("}") + 1)
        return (boxed[1].strip(), 1.0) if boxed else ("", 0.0)
    numbers = _NUMBER.findall(response)
    return (numbers[-1], BARE_NUMBER) if numbers else ("", 0.0)
