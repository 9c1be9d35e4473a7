"""Chat templates of the shapes that models come with, written for the tests, and tokenizers that have their tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from coderl_tasks.prompts import Message

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TRAINING_TEXT = ["system user assistant\n\nprint the sum of all numbers think im_start im_end endoftext"] * 4


def plain(messages: Iterable[Message]) -> list[dict[str, str]]:
    """The messages as a tokenizer's own template takes them."""
    return [{"role": message["role"], "content": message["content"]} for message in messages]


@dataclass(frozen=True)
class Shape:
    """A template, its tokenizer's special and other added tokens, and what ends the assistant's turn."""

    template: str
    special: tuple[str, ...]
    turn_end: str
    added: tuple[str, ...] = ()
    words: bool = False  # pieces of words after "▁" with a prefix space, instead of bytes
    takes_system: bool = True

    def tokenizer(self) -> PreTrainedTokenizerFast:
        core = words_tokenizer() if self.words else bytes_tokenizer()
        core.add_special_tokens(list(self.special))
        core.add_tokens([AddedToken(token, special=False, normalized=False) for token in self.added])
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=self.special[0], eos_token=self.turn_end)
        tokenizer.chat_template = self.template
        return tokenizer


def bytes_tokenizer() -> Tokenizer:
    """Byte-level BPE with Qwen's pre-tokenizer and normalizer, and merges of its own."""
    core = Tokenizer(models.BPE())
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        TRAINING_TEXT, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    return core


def words_tokenizer() -> Tokenizer:
    """BPE in SentencePiece's manner: "▁" for a space, and one before the text. Knows printable ASCII and line ends."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    core.decoder = decoders.Metaspace(prepend_scheme="first")
    alphabet: Sequence[str] = ["▁", "\n", "\t", *map(chr, range(33, 127))]
    core.train_from_iterator(
        TRAINING_TEXT, trainers.BpeTrainer(vocab_size=200, initial_alphabet=list(alphabet), show_progress=False)
    )
    return core


CHATML = Shape(
    """\
{%- for message in messages %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "<|im_end|>",
)

# A thinking switch; the prompt opens the block; texts are trimmed; a user message that looks like a tool's answer is
# none to answer; reasoning of earlier turns is left out.
OPENED = Shape(
    """\
{%- if not messages %}{{ raise_exception('there are no messages') }}{% endif %}
{%- set ns = namespace(asked=-1) %}
{%- for message in messages %}
{%- set text = message.content | trim %}
{%- if message.role == 'user' and not (text.startswith('<tool_response>') and text.endswith('</tool_response>')) %}
{%- set ns.asked = loop.index0 %}
{%- endif %}
{%- endfor %}
{%- if ns.asked < 0 %}{{ raise_exception('nobody asks anything') }}{% endif %}
{%- for message in messages %}
{%- set text = message.content | trim %}
{%- if message.role == 'system' and not loop.first %}{{ raise_exception('the system speaks first') }}{% endif %}
{%- if message.role == 'assistant' %}
{%- set reasoning = '' %}
{%- if '</think>' in text %}
{%- set reasoning = text.split('</think>')[0].split('<think>')[-1] | trim %}
{%- set text = text.split('</think>')[-1] | trim %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.asked %}{{ '<think>\\n' ~ reasoning ~ '\\n</think>\\n\\n' }}{% endif %}
{{- text ~ '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ text ~ '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n<think>\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '\\n</think>\\n\\n' }}{% endif %}
{%- endif %}""",
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "<|im_end|>",
    added=("<think>", "</think>", "<tool_response>", "</tool_response>"),
)

HEADERS = Shape(
    """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}""",
    ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "<|eot_id|>",
)

# Roles have to alternate, the system's text goes to the last question, and there is thinking in square brackets.
INSTRUCTIONS = Shape(
    """\
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set turns = messages[1:] %}
{%- else %}{% set system = '' %}{% set turns = messages %}{% endif %}
{{- bos_token }}
{%- for message in turns %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles have to alternate') }}{% endif %}
{%- if message.role == 'user' %}
{{- '[INST] ' }}{% if system and loop.last %}{{ system ~ '\\n\\n' }}{% endif %}{{ message.content ~ '[/INST]' }}
{%- else %}
{{- ' ' ~ message.content.replace('[THINK]', '[THINK]').split('[/THINK]')[-1] | trim ~ eos_token }}
{%- endif %}
{%- endfor %}""",
    ("<s>", "</s>", "[INST]", "[/INST]", "[THINK]", "[/THINK]"),
    "</s>",
    words=True,
)

# No place for a system message; the assistant is called model.
NO_SYSTEM = Shape(
    """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ raise_exception('there is no system role') }}{% endif %}
{{- '<start_of_turn>' ~ ('model' if message.role == 'assistant' else message.role) ~ '\\n' }}
{{- message.content | trim ~ '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    ("<bos>", "<start_of_turn>", "<end_of_turn>"),
    "<end_of_turn>",
    takes_system=False,
)

# Nothing ends a turn but the next one's role; a switch of another name; thinking is closed in the prompt if off.
ROLES_ONLY = Shape(
    """\
{{- '[gMASK]' }}
{%- for message in messages %}
{{- '<|' ~ message.role ~ '|>' ~ message.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}
{%- if thinking is defined and not thinking %}{{ '</think>' }}{% else %}{{ '<think>' }}{% endif %}{% endif %}""",
    ("[gMASK]", "<|system|>", "<|user|>", "<|assistant|>"),
    "<|user|>",
    added=("<think>", "</think>"),
)

# Thinking and answer are messages to two channels.
CHANNELS = Shape(
    """\
{%- for message in messages %}
{{- '<|start|>' ~ message.role }}
{%- if message.role == 'assistant' %}{{ '<|channel|>final' }}{% endif %}{{ '<|message|>' ~ message.content }}
{{- '<|return|>' if loop.last and message.role == 'assistant' else '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}
{#- thinking goes to <|channel|>analysis<|message|>, the answer to <|channel|>final<|message|> #}""",
    ("<|endoftext|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"),
    "<|return|>",
)

# Qwen3's hybrid models: nothing is opened, and an empty block stands in the prompt where thinking is off.
HYBRID_TEMPLATE = (
    "{% set ns = namespace(last_query=-1) %}"
    "{% for message in messages %}{% if message.role == 'user' %}"
    "{% set ns.last_query = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}"
    "{% set content = message.content %}{% set reasoning = '' %}"
    "{% if '</think>' in content %}"
    "{% set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}"
    "{% endif %}"
    "{% if loop.index0 > ns.last_query and (loop.last or reasoning) %}"
    "{{ '<|im_start|>assistant\n<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}"
    "{% else %}{{ '<|im_start|>assistant\n' + content }}{% endif %}"
    "{{ '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}"
    "{% endif %}{% endif %}"
)

SHAPES = {
    "chatml": CHATML,
    "opened": OPENED,
    "headers": HEADERS,
    "instructions": INSTRUCTIONS,
    "no system": NO_SYSTEM,
    "roles only": ROLES_ONLY,
    "channels": CHANNELS,
}
