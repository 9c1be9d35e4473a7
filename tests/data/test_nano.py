"""data/nano and data/nano_words: small, load in float32, ChatML tokens, and prompts that leave room."""

import json
import re

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from coderl_tasks.environments import build_gsm8k_prompt
from coderl_tasks.paths import BUNDLED_MODELS, DATA, NANO_MODEL, NANO_WORDS_MODEL, PROJECT_ROOT, WORDS_DATASET
from coderl_tasks.problems.loading import QUESTION_ROWS, load_problems
from coderl_tasks.prompts import (
    Message,
    get_renderer,
    load_tokenizer,
    model_renderer,
    problem_prompt,
    recommended_renderer,
)
from data.recipes.word_teacher import WordTeacher
from tests.prompts.template_shapes import plain

each_model = pytest.mark.parametrize("model", BUNDLED_MODELS)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(NANO_MODEL)


@each_model
def test_it_is_small_enough_for_git(model: str) -> None:
    folder = PROJECT_ROOT / model
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 4 * 2**20
    assert {path.name for path in folder.iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "README.md",
    }


@each_model
def test_it_is_a_qwen3_with_room_and_loads_in_float32(model: str) -> None:
    config = AutoConfig.from_pretrained(PROJECT_ROOT / model)
    assert config.model_type == "qwen3"
    assert config.max_position_embeddings >= 8192
    assert config.vocab_size == len(load_tokenizer(model))
    weights = AutoModelForCausalLM.from_pretrained(PROJECT_ROOT / model).parameters()
    assert {str(weight.dtype) for weight in weights} == {"torch.float32"}


@each_model
def test_chat_tokens_are_single_and_any_text_survives(model: str) -> None:
    tokenizer = load_tokenizer(model)
    for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"):
        assert len(tokenizer.encode(token, add_special_tokens=False)) == 1
    text = "naïve ∑ 日本 \t\r\n\n  x  1234567890 \x00 <|im_x|>"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@each_model
def test_the_renderer_is_found_and_matches_the_chat_template(model: str) -> None:
    tokenizer = load_tokenizer(model)
    assert recommended_renderer(model) == "qwen3_instruct"
    renderer = get_renderer("qwen3_instruct", tokenizer)
    messages: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Add 1 and 2."}]
    template = tokenizer.apply_chat_template(plain(messages), tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(renderer.prompt_tokens(messages)) == template


def test_its_own_template_gives_the_same_prompts(tokenizer: PreTrainedTokenizerBase) -> None:
    qwen, own = (model_renderer(NANO_MODEL, name) for name in ("qwen3_instruct", "chat_template"))
    problems = [
        problem for role in ("train", "test") for problem in load_problems(str(DATA / "mini"), None, role=role).problems
    ]
    assert len(problems) > 900
    assert all(problem_prompt(problem, qwen) == problem_prompt(problem, own) for problem in problems)
    assert own.stop_tokens == [tokenizer.convert_tokens_to_ids("<|im_end|>")]


def test_prompts_of_the_bundled_problems_are_short(tokenizer: PreTrainedTokenizerBase) -> None:
    renderer = get_renderer("qwen3_instruct", tokenizer)
    problems = load_problems(str(DATA / "mini"), ("lcbv5",), role="train").problems
    lengths = [len(problem_prompt(problem, renderer)) for problem in problems]
    assert sum(lengths) / len(lengths) < 150
    assert max(lengths) < 300


def test_word_problems_and_their_answers_are_short() -> None:
    tokenizer = load_tokenizer(NANO_WORDS_MODEL)
    for role in ("train", "test"):
        for problem in load_problems(WORDS_DATASET, role=role, rows=QUESTION_ROWS).problems:
            # a fixed sentence of either prompt is one token, what stands between think tags one each
            for tagged, fixed in ((True, 7), (False, 2)):
                prompt = tokenizer.encode(build_gsm8k_prompt(problem.statement, tagged))
                assert len(prompt) == fixed + len(tokenizer.encode(problem.statement)) < 64
            # less the tags: preset nano has room for 128
            assert len(tokenizer.encode(problem.tests[0].expected)) < 64


def test_nothing_is_taught_of_a_test_problem_but_its_story() -> None:
    stories = ("boxes", "week", "bus", "orchard", "rolls", "ticket", "pages", "half")

    def told(question: str) -> tuple[list[str], list[str]]:
        return [word for word in stories if word in question], re.findall(r"\d+", question)

    problems = load_problems(WORDS_DATASET, role="test", rows=QUESTION_ROWS).problems
    test = [told(problem.statement) for problem in problems]
    assert all(len(story) == 1 for story, _ in test) and len(problems) == 120
    teacher = WordTeacher(5)
    taught = [told(question) for _ in range(4000) if (question := teacher.lesson().question)]
    assert {story for (story,), _ in taught} == set(stories)
    assert not [one for one in test if one in taught]


@each_model
def test_the_card_names_what_the_model_is(model: str) -> None:
    card = (PROJECT_ROOT / model / "README.md").read_text()
    assert "data.recipes.make_nano" in card
    assert json.loads((PROJECT_ROOT / model / "config.json").read_text())["dtype"] == "float32"
