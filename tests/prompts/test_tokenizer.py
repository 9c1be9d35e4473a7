import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from coderl_tasks.errors import ConfigError
from coderl_tasks.prompts import get_renderer, load_tokenizer, model_renderer, recommended_renderer
from coderl_tasks.prompts import tokenizer as prompts_tokenizer
from coderl_tasks.prompts.tokenizer import generation_end_tokens
from tests.prompts.template_shapes import HYBRID_TEMPLATE


@pytest.fixture
def folder(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    tokenizer.save_pretrained(tmp_path / "tiny")
    (tmp_path / "tiny" / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    return tmp_path / "tiny"


@pytest.mark.parametrize(
    ("model", "renderer"),
    [
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3_instruct"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3_instruct"),
        ("Qwen/Qwen3-8B", "qwen3"),
        ("Qwen/Qwen3-8B-Base", "chat_template"),
        ("Qwen/Qwen3.5-4B", "chat_template"),
        ("meta-llama/Llama-3.1-8B-Instruct", "chat_template"),
    ],
)
def test_recommended_renderer_by_name(model: str, renderer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts_tokenizer, "load_tokenizer", lambda name: pytest.fail(f"{name} was looked up"))
    assert recommended_renderer(model) == renderer


def test_recommended_renderer_of_a_local_folder(folder: Path) -> None:
    assert recommended_renderer(str(folder)) == "qwen3_instruct"


@pytest.mark.parametrize("model_type", ["qwen3_5", "llama"])
def test_folders_of_other_models_bring_their_own_format(folder: Path, model_type: str) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert recommended_renderer(str(folder)) == "chat_template"


@pytest.mark.parametrize(("eos", "tokens"), [(7, [7]), ([7, 8], [7, 8]), (None, [])])
def test_end_tokens_of_the_generation_configuration(
    folder: Path, eos: int | list[int] | None, tokens: list[int]
) -> None:
    assert generation_end_tokens(str(folder)) == []
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos, "temperature": 0.6}))
    assert generation_end_tokens(str(folder)) == tokens


@pytest.mark.parametrize("text", ["{", "[]", '{"eos_token_id": "</s>"}'])
def test_a_damaged_generation_configuration_is_named(folder: Path, text: str) -> None:
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        generation_end_tokens(str(folder))


def test_the_renderer_of_a_model(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    (folder / "chat_template.jinja").write_text(HYBRID_TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3]}))
    for renderer_name, thinking, label in [
        (None, None, "qwen3"),
        (None, True, "qwen3"),
        (None, False, "qwen3_disable_thinking"),
        ("qwen3_disable_thinking", False, "qwen3_disable_thinking"),
        ("qwen3_instruct", None, "qwen3_instruct"),
        ("chat_template", None, "chat_template"),
        ("chat_template", False, "chat_template thinking=off"),
    ]:
        assert model_renderer(str(folder), renderer_name, thinking).label == label
    ends = model_renderer(str(folder), "chat_template").stop_tokens
    assert ends == [tokenizer.convert_tokens_to_ids("<|im_end|>"), 3]


@pytest.mark.parametrize(
    ("renderer_name", "thinking"),
    [("qwen3", False), ("qwen3_disable_thinking", True), ("qwen3_instruct", True), ("qwen3_instruct", False)],
)
def test_thinking_that_contradicts_the_renderer_is_refused(
    tokenizer: PreTrainedTokenizerFast, renderer_name: str, thinking: bool
) -> None:
    with pytest.raises(ConfigError, match=f"thinking={'on' if thinking else 'off'} and the renderer {renderer_name} "):
        get_renderer(renderer_name, tokenizer, thinking=thinking)


def test_load_tokenizer_from_a_local_folder(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    text = "print the sum <|im_end|>"
    assert load_tokenizer(str(folder)).encode(text) == tokenizer.encode(text)


def test_a_missing_tokenizer_is_a_configuration_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="tokenizer"):
        load_tokenizer(str(tmp_path))
