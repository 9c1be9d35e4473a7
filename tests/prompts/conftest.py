"""A small byte-level BPE tokenizer in Qwen's form: same pre-tokenizer, same kinds of added tokens, own merges."""

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from tests.prompts.template_shapes import bytes_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    core = bytes_tokenizer()
    core.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    core.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in ("<think>", "</think>")])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
