"""The nano models' tokenizer: a small byte-level BPE with ChatML tokens, trained on what the model reads and writes.

1. Digits stand alone, words keep their leading space, runs of spaces and newlines are one piece.
2. The fixed sentences of the prompts are one token each: pieces of their own, found whole in the vocabulary. They are
   ordinary tokens, decoded to their text, and they halve the prompt.
3. Any text can be encoded: every byte is in the vocabulary.
"""

import re
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from coderl_tasks.environments import build_gsm8k_prompt
from coderl_tasks.prompts.renderers import LCB_SYSTEM_MESSAGE_GENERIC, question_text

VOCABULARY = 1024
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINK = ("<think>", "</think>")
WORDS = r" ?\d| ?[A-Za-z_]+| ?[^\sA-Za-z_\d]+|\n+ *|\s+"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def code_sentences() -> list[str]:
    """The parts of every prompt of environment=code that do not depend on the problem, longest first."""
    mark = "\x00"
    plain = question_text(mark).split(mark)
    with_starter = question_text(mark, mark).split(mark)
    return sorted({LCB_SYSTEM_MESSAGE_GENERIC, *plain, *with_starter}, key=len, reverse=True)


def gsm8k_sentences() -> list[str]:
    """The same of the prompts of environment=gsm8k. What stands between think tags, which are tokens, is one each."""
    mark = "\x00"
    fixed = {part for tagged in (True, False) for part in build_gsm8k_prompt(mark, tagged).split(mark)}
    pieces = {piece for part in fixed for piece in re.split("|".join(THINK), part)}
    return sorted((piece for piece in pieces if piece.strip()), key=len, reverse=True)


def train_tokenizer(texts: Iterable[str], sentences: list[str], context: int) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `VOCABULARY` entries, trained on `texts`, what the model reads and writes besides the
    fixed `sentences`."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS), "isolated"), byte_level])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(sentences) - len(SPECIAL) - len(THINK),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _with_sentences(tokenizer, sentences, context)


def _with_sentences(trained: Tokenizer, sentences: list[str], context: int) -> PreTrainedTokenizerFast:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary = trained.get_vocab()
    for sentence in sentences:
        ((spelled, _),) = byte_level.pre_tokenize_str(sentence)
        vocabulary.setdefault(spelled, len(vocabulary))
    merges = _merges(trained)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    pieces = "|".join(_quote(sentence) for sentence in sentences) + "|" + WORDS
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pieces), "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in THINK])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def _merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    import json

    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [tuple(merge) for merge in merges]


def _quote(text: str) -> str:
    """`text` as a literal in the regular expressions of `tokenizers` (Oniguruma)."""
    return "".join(c if c.isalnum() or c in " \n" else f"\\{c}" for c in text)
