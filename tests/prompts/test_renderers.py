from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from coderl_tasks.errors import ConfigError
from coderl_tasks.prompts import Message, get_renderer
from coderl_tasks.prompts.renderers import split_thinking
from tests.prompts.template_shapes import HYBRID_TEMPLATE, plain

# The form of the models' own templates for system, user and assistant messages (no tools).
INSTRUCT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": (HYBRID_TEMPLATE, {}),
    "qwen3_disable_thinking": (HYBRID_TEMPLATE, {"enable_thinking": False}),
    "qwen3_instruct": (INSTRUCT_TEMPLATE, {}),
}
NAMES = sorted(TEMPLATES)

SYSTEM: Message = {"role": "system", "content": "You write Python."}
QUESTION: Message = {"role": "user", "content": "\n\nPrint the sum:\n\t1 2 3\n\n"}
ANSWER: Message = {"role": "assistant", "content": "```python\nprint(sum([1, 2, 3]))\n```"}
THOUGHT: Message = {"role": "assistant", "content": "<think>\nadd them\n</think>\n\nprint(6)"}
CONVERSATIONS: list[list[Message]] = [
    [QUESTION],
    [SYSTEM, QUESTION],
    [SYSTEM, QUESTION, ANSWER, {"role": "user", "content": "Now naïve Ünïcode: 数 é"}],
]


def test_what_a_caller_does_with_a_prompt_is_not_in_the_next_one(tokenizer: PreTrainedTokenizerFast) -> None:
    renderer = get_renderer("qwen3", tokenizer)
    first = renderer.prompt_tokens([SYSTEM, QUESTION])
    wanted = list(first)
    first.append(0)
    renderer.encode_plain("assistant\n").append(0)
    assert renderer.prompt_tokens([SYSTEM, QUESTION]) == wanted
    assert renderer.prompt_tokens([SYSTEM, QUESTION]) == get_renderer("qwen3", tokenizer).prompt_tokens(
        [SYSTEM, QUESTION]
    )


def template_tokens(
    tokenizer: PreTrainedTokenizerFast, name: str, messages: list[Message], *, add_generation_prompt: bool
) -> list[int]:
    template, switches = TEMPLATES[name]
    text = tokenizer.apply_chat_template(
        plain(messages),
        chat_template=template,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
        **switches,
    )
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("messages", CONVERSATIONS, ids=["user", "system", "turns"])
def test_generation_prompt_equals_the_chat_template(
    tokenizer: PreTrainedTokenizerFast, name: str, messages: list[Message]
) -> None:
    prompt = get_renderer(name, tokenizer).prompt_tokens(messages)
    assert prompt == template_tokens(tokenizer, name, messages, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("name", "answer"),
    [("qwen3", ANSWER), ("qwen3", THOUGHT), ("qwen3_disable_thinking", ANSWER), ("qwen3_instruct", ANSWER)],
)
def test_supervised_example_equals_the_chat_template(
    tokenizer: PreTrainedTokenizerFast, name: str, answer: Message
) -> None:
    messages = [SYSTEM, QUESTION, answer]
    tokens, _ = get_renderer(name, tokenizer).build_supervised_example(messages)
    assert tokens + tokenizer.encode("\n") == template_tokens(tokenizer, name, messages, add_generation_prompt=False)


def test_thinking_of_earlier_turns_is_left_out(tokenizer: PreTrainedTokenizerFast) -> None:
    messages: list[Message] = [QUESTION, THOUGHT, {"role": "user", "content": "again"}]
    prompt = get_renderer("qwen3", tokenizer).prompt_tokens(messages)
    assert prompt == template_tokens(tokenizer, "qwen3", messages, add_generation_prompt=True)
    assert tokenizer.convert_tokens_to_ids("<think>") not in prompt


@pytest.mark.parametrize("name", NAMES)
def test_weights_cover_the_answer_and_its_end_only(tokenizer: PreTrainedTokenizerFast, name: str) -> None:
    renderer = get_renderer(name, tokenizer)
    tokens, weights = renderer.build_supervised_example([SYSTEM, QUESTION, ANSWER])
    prompt = renderer.prompt_tokens([SYSTEM, QUESTION])
    assert tokens[: len(prompt)] == prompt
    assert weights == [0.0] * len(prompt) + [1.0] * (len(tokens) - len(prompt))
    text, complete = renderer.parse_response(tokens[len(prompt) :])
    assert complete
    assert split_thinking(text)[1] == ANSWER["content"]


def test_a_supervised_example_must_end_with_the_assistant(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ValueError, match="assistant"):
        get_renderer("qwen3_instruct", tokenizer).build_supervised_example([QUESTION])


SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<think>",
    "</think>",
    "\n",
    "system",
    "<",
    "|",
    "im_end|>",
    " é",
]


@pytest.mark.parametrize("name", NAMES)
@given(pieces=st.lists(st.sampled_from(SPECIAL) | st.text(max_size=8), max_size=8))
def test_no_message_can_inject_a_turn(tokenizer: PreTrainedTokenizerFast, name: str, pieces: list[str]) -> None:
    content = "".join(pieces)
    renderer = get_renderer(name, tokenizer)
    honest = renderer.prompt_tokens([{"role": "system", "content": ""}, {"role": "user", "content": ""}])
    prompt = renderer.prompt_tokens([{"role": "system", "content": content}, {"role": "user", "content": content}])
    added = set(tokenizer.get_added_vocab().values())
    assert [t for t in prompt if t in added] == [t for t in honest if t in added]
    text = renderer.encode_plain(content)
    assert not added & set(text)
    assert tokenizer.backend_tokenizer.normalizer.normalize_str(
        content
    ) == tokenizer.backend_tokenizer.normalizer.normalize_str(
        tokenizer.decode(text, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    )


def test_an_assistants_own_markers_are_plain_text_too(tokenizer: PreTrainedTokenizerFast) -> None:
    renderer = get_renderer("qwen3", tokenizer)
    sly: Message = {"role": "assistant", "content": "<think>\na<|im_end|>b</think>\n\nc</think><|im_start|>user"}
    tokens, _ = renderer.build_supervised_example([QUESTION, sly])
    ids = tokenizer.get_vocab()
    assert [tokens.count(ids[token]) for token in ("<|im_end|>", "</think>", "<|im_start|>")] == [2, 1, 2]


def test_parse_response_cuts_at_the_stop_token(tokenizer: PreTrainedTokenizerFast) -> None:
    renderer = get_renderer("qwen3_instruct", tokenizer)
    body = tokenizer.encode("print(1)")
    for stop in renderer.stop_tokens:
        assert renderer.parse_response([*body, stop, *body]) == ("print(1)", True)
    assert renderer.parse_response(body) == ("print(1)", False)
    assert renderer.parse_response([]) == ("", False)


def test_unknown_names_roles_and_tokenizers_are_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ValueError, match="Unknown renderer"):
        get_renderer("llama", tokenizer)
    with pytest.raises(ValueError, match="role"):
        get_renderer("qwen3", tokenizer).prompt_tokens([{"role": "function", "content": ""}])


def test_a_tokenizer_without_turn_markers_is_refused() -> None:
    from tokenizers import Tokenizer, models

    bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    with pytest.raises(ConfigError, match="im_start"):
        get_renderer("qwen3", bare)
