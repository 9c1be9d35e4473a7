"""data/nano: small, loads in float32, ChatML tokens, and prompts that leave room."""

import json

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from coderl_tasks.paths import DATA, NANO_MODEL
from coderl_tasks.problems.loading import load_problems
from coderl_tasks.prompts import (
    Message,
    get_renderer,
    load_tokenizer,
    model_renderer,
    problem_prompt,
    recommended_renderer,
)
from tests.prompts.template_shapes import plain

FOLDER = DATA / "nano"


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(NANO_MODEL)


def test_it_is_small_enough_for_git() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 8 * 2**20
    assert {path.name for path in FOLDER.iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "README.md",
    }


def test_it_is_a_qwen3_with_room_and_loads_in_float32(tokenizer: PreTrainedTokenizerBase) -> None:
    config = AutoConfig.from_pretrained(FOLDER)
    assert config.model_type == "qwen3"
    assert config.max_position_embeddings >= 8192
    assert config.vocab_size == len(tokenizer)
    model = AutoModelForCausalLM.from_pretrained(FOLDER)
    assert {str(weight.dtype) for weight in model.parameters()} == {"torch.float32"}


def test_chat_tokens_are_single_and_any_text_survives(tokenizer: PreTrainedTokenizerBase) -> None:
    for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"):
        assert len(tokenizer.encode(token, add_special_tokens=False)) == 1
    text = "naïve ∑ 日本 \t\r\n\n  x  1234567890 \x00 <|im_x|>"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_renderer_is_found_and_matches_the_chat_template(tokenizer: PreTrainedTokenizerBase) -> None:
    assert recommended_renderer(NANO_MODEL) == "qwen3_instruct"
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


def test_the_card_names_what_the_model_is() -> None:
    card = (FOLDER / "README.md").read_text()
    assert "data.recipes.make_nano" in card
    assert json.loads((FOLDER / "config.json").read_text())["dtype"] == "float32"
