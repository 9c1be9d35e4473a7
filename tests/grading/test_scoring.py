"""From completions to rewards: the score table, groups, the environment of one step."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from coderl_tasks.errors import InfraError
from coderl_tasks.grading import (
    CodeEnv,
    Grade,
    Judge,
    SandboxClient,
    ScoredCompletion,
    Verdict,
    score,
    score_completion,
    score_group,
)
from coderl_tasks.prompts import get_renderer
from tests.grading.programs import ADD, SUM

RIGHT = f"So:\n```python\n{SUM}print(a + b)\n```"
WRONG = f"```python\n{SUM}print(a - b)\n```"
NO_CODE = "I would add them."


def grade(verdict: Verdict, passed: int = 0) -> Grade:
    return Grade(verdict, passed, 4, 4, None, 0.0)


WRONG_FORMAT = grade(Verdict.FORMAT_ERROR)


@pytest.mark.parametrize(
    ("code", "graded", "scores"),
    [
        (None, WRONG_FORMAT, (-1.0, 0.0, -0.1)),
        ("x", grade(Verdict.WRONG_ANSWER, 2), (0.0, 0.0, 0.0)),
        ("x", grade(Verdict.PASSED, 4), (0.0, 1.0, 1.0)),
        ("x", grade(Verdict.INFRA_ERROR, 2), (None, None, None)),
    ],
)
def test_the_score_table(code: str | None, graded: Grade, scores: tuple[float | None, ...]) -> None:
    assert score(code, graded) == ScoredCompletion(code, graded, *scores)


def test_the_score_by_other_settings() -> None:
    assert score(None, WRONG_FORMAT, format_coef=0.5).reward == -0.5
    assert score("x", grade(Verdict.WRONG_ANSWER, 2), fraction=True).reward == 0.5


def test_only_a_completion_without_code_has_a_format_error() -> None:
    for code, graded in (("x", WRONG_FORMAT), (None, grade(Verdict.PASSED, 4)), (None, grade(Verdict.INFRA_ERROR))):
        with pytest.raises(ValueError, match=graded.verdict):
            score(code, graded)


class CountingJudge(Judge):
    graded = 0

    async def grade(self, *args: Any, **kwargs: Any) -> Grade:
        self.graded += 1
        return await super().grade(*args, **kwargs)


async def test_a_group_is_scored_in_order_and_identical_code_once(embedded_url: str) -> None:
    async with SandboxClient([embedded_url]) as client:
        judge = CountingJudge(client)
        scored = await score_group(judge, ADD, [RIGHT, NO_CODE, WRONG, RIGHT + "\nDone.", NO_CODE])
    assert [one.reward for one in scored] == [1.0, -0.1, 0.0, 1.0, -0.1]
    assert [one.grade.verdict.value for one in scored] == [
        "passed", "format_error", "wrong_answer", "passed", "format_error",
    ]  # fmt: skip
    assert (judge.graded, scored[1].code, scored[1].grade.tests_run) == (2, None, 0)


async def test_partial_credit(embedded_judge: Judge) -> None:
    half = f"```python\n{SUM}print(5 if a == 2 else 0)\n```"
    scored = await score_completion(embedded_judge, ADD, half, fraction=True)
    assert scored.reward == pytest.approx(2 / 3)


async def test_partial_credit_of_a_group(embedded_judge: Judge) -> None:
    killer = "```python\nimport os\na, b = map(int, input().split())\nprint(a + b) if a == 2 else os.kill(0, 9)\n```"
    scored = await score_group(embedded_judge, ADD, [RIGHT, WRONG, killer, NO_CODE], fraction=True)
    assert [one.correctness for one in scored] == [1.0, 0.0, pytest.approx(1 / 3), 0.0]
    assert [one.reward for one in scored] == [1.0, 0.0, pytest.approx(1 / 3), -0.1]
    assert [one.grade.tests_run for one in scored] == [3, 3, 3, 0]


async def test_an_outage_has_no_partial_credit() -> None:
    async with SandboxClient(["http://127.0.0.1:1"], attempts=1) as client:
        scored = await score_group(Judge(client), ADD, [RIGHT, NO_CODE], fraction=True)
    assert [one.reward for one in scored] == [None, -0.1]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    core.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in ("<think>", "</think>")])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")


async def test_the_environment_of_one_step(embedded_judge: Judge, tokenizer: PreTrainedTokenizerFast) -> None:
    renderer = get_renderer("qwen3_instruct", tokenizer)
    env = CodeEnv(ADD, renderer, embedded_judge)
    prompt, stops = env.initial_observation()
    end = tokenizer.get_vocab()["<|im_end|>"]
    assert prompt and end in stops
    tokens = tokenizer.encode(RIGHT, add_special_tokens=False)
    done = await env.step([*tokens, end])
    assert (done.reward, done.episode_done, done.metrics["correct"], done.metrics["complete"]) == (1.0, True, 1.0, 1.0)
    truncated = await env.step(tokens[:20])
    assert (truncated.reward, truncated.metrics["format"], truncated.metrics["complete"]) == (-0.1, 0.0, 0.0)


async def test_an_outage_is_no_reward(tokenizer: PreTrainedTokenizerFast) -> None:
    async with SandboxClient(["http://127.0.0.1:1"], attempts=1) as client:
        env = CodeEnv(ADD, get_renderer("qwen3_instruct", tokenizer), Judge(client))
        with pytest.raises(InfraError):
            await env.step(tokenizer.encode(RIGHT, add_special_tokens=False))
