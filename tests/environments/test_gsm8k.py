"""The notebook's prompts, reward and group normalisation by hand; the bundled word problems; the preset's numbers."""

import json
import math
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from coderl_tasks.environments import (
    build_gsm8k_prompt,
    environment_of,
    gsm8k_reward_fn,
    renderer_of,
    run_compute_group_normalized_rewards,
)
from coderl_tasks.environments.gsm8k import Gsm8kEnvironment
from coderl_tasks.errors import ConfigError
from coderl_tasks.grading import Judge, SandboxClient, Verdict
from coderl_tasks.paths import NANO_MODEL, NANO_WORDS_MODEL, PROJECT_ROOT, WORDS_DATASET
from coderl_tasks.problems.loading import QUESTION_ROWS, load_problems
from coderl_tasks.problems.problem import RowDropped
from coderl_tasks.prompts import get_renderer, load_tokenizer
from coderl_tasks.settings import CurateSettings, EvaluateSettings, TrainSettings, parse_settings
from data.recipes.make_words import rows
from tests.prompts.template_shapes import bytes_tokenizer

TRUTH = "6 x 7 = 42\n#### 42"
RESPONSES = {
    "6 x 7</think> <answer>42</answer>": (1.0, 1.0),
    "<answer> 42.00001 </answer> and then 43": (1.0, 1.0),
    "<answer>41</answer> or \\boxed{42}": (1.0, 0.0),
    "<answer>forty-two</answer>": (1.0, 0.0),
    "so \\boxed{42}, not 7": (1.0, 1.0),
    "so \\boxed{}": (0.0, 0.0),
    "The answer is 42": (0.5, 1.0),
    "42 or 43": (0.5, 0.0),
    "I do not know": (0.0, 0.0),
}


@pytest.mark.parametrize(("response", "parts"), RESPONSES.items())
def test_the_reward_is_a_fifth_format_and_four_fifths_answer(response: str, parts: tuple[float, float]) -> None:
    reward = gsm8k_reward_fn(response, TRUTH)
    assert (reward["format_reward"], reward["answer_reward"]) == parts
    assert math.isclose(reward["reward"], 0.2 * parts[0] + 0.8 * parts[1])


@pytest.mark.parametrize("text", ["<answer>5" * 100_000, "\\boxed{" * 100_000])
def test_a_completion_that_repeats_a_beginning_is_judged_at_once(text: str) -> None:
    """A search for the end from each beginning takes hours here, and stalls the run; then pytest's time-out ends it."""
    assert gsm8k_reward_fn(text, "#### 7")["answer_reward"] == 0
    assert gsm8k_reward_fn(f"{text}}}</answer>", "#### 7")["format_reward"] == 1


def test_numbers_with_commas_texts_and_a_truth_without_a_mark() -> None:
    assert gsm8k_reward_fn("<answer>1,250</answer>", "#### 1250")["reward"] == 1.0
    assert gsm8k_reward_fn("<answer>1250</answer>", "#### 1,250")["reward"] == 1.0
    assert gsm8k_reward_fn("<answer>noon</answer>", "#### noon")["answer_reward"] == 1.0
    assert set(gsm8k_reward_fn("<answer>42</answer>", "42").values()) == {0.0}


def test_the_two_prompts() -> None:
    tagged, boxed = build_gsm8k_prompt("How many {x}?"), build_gsm8k_prompt("How many {x}?", False)
    assert tagged.startswith("A conversation between User and Assistant. The User asks a question, and the Assistant ")
    assert tagged.endswith(" tags, respectively.\n\nUser: How many {x}?\nAssistant: <think>")
    assert boxed == (
        "Solve the following math problem. Provide your final numerical answer inside \\boxed{}.\n\n"
        "Question: How many {x}?\n\nSolution:"
    )


def test_advantages_within_groups() -> None:
    responses = ["<answer>42</answer>", "The answer is 42", "42 or 43", "I do not know", *["<answer>42</answer>"] * 4]
    rewards = [1.0, 0.9, 0.1, 0.0]
    mean = sum(rewards) / 4
    std = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / 3)
    by_std, raw, said = run_compute_group_normalized_rewards(gsm8k_reward_fn, responses, [TRUTH] * 8, 4, 1e-6, True)
    plain, _, _ = run_compute_group_normalized_rewards(gsm8k_reward_fn, responses, [TRUTH] * 8, 4, 1e-6, False)
    assert raw.tolist() == pytest.approx([*rewards, 1, 1, 1, 1])
    assert plain.tolist() == pytest.approx([*(reward - mean for reward in rewards), 0, 0, 0, 0], abs=1e-6)
    assert by_std.tolist() == pytest.approx([*((r - mean) / (std + 1e-6) for r in rewards), 0, 0, 0, 0], abs=1e-5)
    assert (said["min_reward"], said["max_reward"]) == (0.0, 1.0)
    assert said["mean_reward"] == pytest.approx(0.75)
    with pytest.raises(ValueError, match="7 responses are no groups of 4"):
        run_compute_group_normalized_rewards(gsm8k_reward_fn, responses[:7], [TRUTH] * 7, 4, 1e-6, True)


@pytest.mark.parametrize("use_r1_zero_format", [True, False])
async def test_an_environment_without_a_sandbox(closed: str, use_r1_zero_format: bool) -> None:
    environment = Gsm8kEnvironment(use_r1_zero_format)
    renderer = get_renderer("qwen3_instruct", load_tokenizer(NANO_MODEL))
    problem = QUESTION_ROWS.read({"question": "What is 6 x 7?", "answer": TRUTH}, split="main", source_row=0)
    prompt = environment.prompt(problem, renderer)
    assert environment.text(prompt, renderer) == build_gsm8k_prompt(problem.statement, use_r1_zero_format)
    assert environment.stop(renderer) == [
        *("<|im_end|>", "<|endoftext|>"), *(["</answer>"] if use_r1_zero_format else []), "\n\n\n",
    ]  # fmt: skip
    # The end token is no part of the text, nor is what a service sends behind it.
    for answer, behind in (("so 42", "<|im_end|>"), ("<answer>42</answer>", ""), ("42", "<|im_end|>\nUser: 7")):
        tokens = renderer.tokenizer.encode(answer + behind, add_special_tokens=False)
        assert environment.text(tokens, renderer) == answer
    async with SandboxClient([closed]) as client:
        scored = await environment.score(Judge(client), problem, list(RESPONSES))
    parts = [(one.format_score, one.correctness, one.reward) for one in scored]
    expected = [(form - 1, answer, 0.2 * form + 0.8 * answer) for form, answer in RESPONSES.values()]
    assert parts == [pytest.approx(one) for one in expected]
    verdicts = {one.grade.verdict for one in scored if one.code is not None}
    assert verdicts == {Verdict.PASSED, Verdict.WRONG_ANSWER}
    assert [one.grade.verdict for one in scored if one.code is None] == [Verdict.FORMAT_ERROR] * 2


def test_the_bundled_problems_are_those_of_the_recipe() -> None:
    made = rows()
    for side, found in made.items():
        text = (PROJECT_ROOT / WORDS_DATASET / f"{side}.jsonl").read_text()
        assert [json.loads(line) for line in text.splitlines()] == found
    sides = [load_problems(WORDS_DATASET, role=role, rows=QUESTION_ROWS) for role in ("train", "test")]
    assert [(len(side.problems), side.dropped.height) for side in sides] == [(480, 0), (120, 0)]
    train, test = ({problem.statement for problem in side.problems} for side in sides)
    assert not train & test
    for problem in sides[0].problems:
        truth = problem.tests[0].expected
        assert gsm8k_reward_fn(f"<answer>{truth.rpartition('#### ')[2]}</answer>", truth)["reward"] == 1.0


def test_rows_need_a_question_and_a_marked_answer(tmp_path: Path) -> None:
    for row, reason in (
        ({"question": "How many?", "answer": "42"}, "no_ground_truth"),
        ({"answer": TRUTH}, "no_prompt"),
    ):
        with pytest.raises(RowDropped) as drop:
            QUESTION_ROWS.read(row, split="main", source_row=0)
        assert drop.value.reason == reason


def test_the_preset_has_the_notebooks_numbers() -> None:
    train = parse_settings(TrainSettings, {"preset": "gsm8k"})
    assert (train.model_name, train.dataset, train.lora_rank) == ("Qwen/Qwen3-8B", "openai/gsm8k", 32)
    assert (train.max_steps, train.learning_rate) == (60, 1e-5)
    assert (train.adam.beta1, train.adam.beta2, train.adam.eps) == (0.9, 0.95, 1e-8)
    # Its group_size, 8, is completions per problem here, and ours its questions per step.
    assert (train.completions_per_problem, train.group_size, train.batch_size) == (8, 32, 256)
    assert (train.advantage, train.advantage_eps, train.loss_fn) == ("std_normalised", 1e-6, "ppo")
    assert (train.epochs_per_rollout_batch, train.train_batch_size) == (1, 64)
    assert (train.temperature, train.max_tokens) == (1.0, 2048)
    assert (train.save_every, train.eval.every, train.eval.limit, train.eval.ends_limit) == (6, 6, 40, 40)
    evaluation = parse_settings(EvaluateSettings, {"preset": "gsm8k"})
    assert (evaluation.temperature, evaluation.eval_limit) == (0.0, 40)
    curation = parse_settings(CurateSettings, {"preset": "gsm8k"})
    assert (curation.profile_mode, curation.is_profiled, curation.min_tests) == ("none", False, 1)
    environment = environment_of(train)
    assert isinstance(environment, Gsm8kEnvironment) and environment.use_r1_zero_format
    for flow in (CurateSettings, TrainSettings, EvaluateSettings):
        nano = parse_settings(flow, {"preset": "nano", "environment": "gsm8k"})
        assert (nano.model_name, nano.dataset, nano.max_tokens) == (NANO_WORDS_MODEL, WORDS_DATASET, 128)
        assert parse_settings(flow, {"preset": "nano"}).model_name == NANO_MODEL


@pytest.fixture
def base_model(tmp_path: Path) -> Path:
    """The folder of a model without a chat format, as base models are."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_tokenizer(), eos_token="the")
    tokenizer.save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path / "base"


def test_a_base_model_needs_no_chat_format(base_model: Path) -> None:
    environment = Gsm8kEnvironment()
    (problem,) = load_problems(WORDS_DATASET, rows=QUESTION_ROWS, role="train", limit=1).problems
    renderer = renderer_of(parse_settings(TrainSettings, {"environment": "gsm8k", "model_name": str(base_model)}))
    assert renderer.label == "plain_text"
    assert renderer.decoded(environment.prompt(problem, renderer)) == build_gsm8k_prompt(problem.statement)
    for others in ({"environment": "code"}, {"renderer_name": "chat_template"}, {"thinking": "on"}):
        given = {"environment": "gsm8k", "model_name": str(base_model)} | others
        with pytest.raises(ConfigError, match="no chat template"):
            renderer_of(parse_settings(TrainSettings, given))
    with_chat = {"environment": "gsm8k", "model_name": NANO_MODEL}
    assert renderer_of(parse_settings(TrainSettings, with_chat)).label == "qwen3_instruct"


@pytest.mark.parametrize("given", [{"reward": "fraction"}, {"format_coef": "0.3"}, {"reward_timeout": "3"}])
def test_settings_of_code_are_refused_by_name(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(given)) + ".* is a setting of environment=code"):
        parse_settings(TrainSettings, {"environment": "gsm8k"} | given)
    with pytest.raises(ConfigError, match="use_r1_zero_format=False is a setting of environment=gsm8k"):
        parse_settings(TrainSettings, {"use_r1_zero_format": "false"})
