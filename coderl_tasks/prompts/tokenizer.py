"""A model's tokenizer, the renderer that fits it, and `chat_template`: the renderer for any model's own chat template.

1. What has to be known of a template is learned by rendering it on probes: whether it takes a system message, which
   variable switches thinking, whether its prompt opens a block of thinking, what ends the assistant's turn. So a
   template that nobody has seen yet is used as it is; no list of models is kept.
2. Only the spellings of thinking markers have to be known (`PAIRED_MARKER`, `OTHER_MARKERS`). Whatever they are, a
   completion's text is handed on with `<think>` and `</think>`, which is what `grading.scoring` goes by.
3. A template that writes today's date gets `PROMPT_DATE`: a run that goes on tomorrow has to build the same prompts.
4. Whether a template describes tools and writes calls in the form that `tool_calls` reads is learned by a probe too. To
   any other one tools are described in the system message.
5. Not covered: images, and templates that take a message's text only as a list of parts.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coderl_tasks.errors import ConfigError
from coderl_tasks.paths import local_model_folder
from coderl_tasks.prompts.renderers import (
    NO_END_TOKEN,
    QWEN3_RENDERERS,
    THINK_CLOSE,
    THINK_OPEN,
    Message,
    PlainTextRenderer,
    Renderer,
    spelled_out,
)
from coderl_tasks.prompts.tool_calls import NAME, Call, Tools, call_in, run_python

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

SWITCHES = ("enable_thinking", "thinking")  # variables by which templates let their caller turn thinking on and off
PAIRED_MARKER = re.compile(
    r"(?P<left>[<\[◁]\|?)/(?P<name>[\w:]*(?:think|thought|reasoning)[\w:]*)(?P<right>\|?[>\]▷])", re.IGNORECASE
)
"""The closing one of a pair such as `<think>` and `</think>`, or `[THINK]` and `[/THINK]`."""
OTHER_MARKERS = (
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("<|channel>thought", "<channel|>"),
)
"""Pairs that differ in more than a slash: what opens thinking, and what stands between it and the answer."""

QWEN3_TYPES = ("qwen3", "qwen3_moe")
"""`model_type` of the models that the Qwen3 renderers are for; later ones (qwen3_5) have other formats."""
PROMPT_DATE = date(2026, 1, 1)
DATE_CALL = re.compile(r"""strftime_now\(\s*(?P<quote>["'])(?P<format>.*?)(?P=quote)\s*\)""")

# Texts of probes: private-use characters, which no template writes itself, trims or has a rule for.
SYSTEM_PROBE, USER_PROBE, ANSWER_PROBE = "\U000ff001", "\U000ff002", "\U000ff003"
SYSTEM: Message = {"role": "system", "content": SYSTEM_PROBE}
USER: Message = {"role": "user", "content": USER_PROBE}
ANSWER: Message = {"role": "assistant", "content": ANSWER_PROBE}


class Markers(NamedTuple):
    """How a template spells the two ends of a block of thinking."""

    open: str
    close: str


class ChatTemplate:
    """The chat template of `tokenizer`, with thinking on, off or (None) as the template has it. `markers` are the
    thinking markers in the template's source. `opens_thinking`: its prompts end inside a block of thinking. `turn_end`
    is the text in which to find the token that ends an assistant's turn. Raises ConfigError if there is no template, no
    way to render a plain conversation, or no switch for `thinking`."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", thinking: bool | None = None) -> None:
        self._tokenizer = tokenizer
        # `render` uses both. The first probes are rendered without, and show whether this template needs them.
        self._folds_system = False  # the system's text goes into the first user message
        self._switches: dict[str, Any] = {}  # the template's variable for thinking, and its value
        try:
            source = str(tokenizer.get_chat_template())
        except ValueError:
            raise ConfigError(
                "the model's tokenizer has no chat template: take an instruction-tuned model, put a "
                "chat_template.jinja into the model's folder, or set renderer_name=qwen3_instruct if it is a base "
                "model with ChatML's tokens"
            ) from None
        # A fixed date in place of today's, so that a resumed run builds the same prompts.
        self.source = DATE_CALL.sub(
            lambda call: f"{call['quote']}{PROMPT_DATE.strftime(call['format'])}{call['quote']}", source
        )
        try:
            self._folds_system = SYSTEM_PROBE not in self.render([SYSTEM, USER])
        except ConfigError:  # some templates refuse a system message, others leave it out
            self._folds_system = True
        if thinking is not None:
            self._switches = {self._thinking_switch(thinking): thinking}
        self.markers = find_markers(self.source)
        opening = self._text_after(USER_PROBE, [SYSTEM, USER], is_prompt=True)
        # The last marker decides: with thinking off, some templates open a block and close it at once.
        self.opens_thinking = any(opening.rfind(pair.open) > opening.rfind(pair.close) for pair in self.markers)
        # The ending token is searched for at the end of a conversation, then (some templates write nothing there)
        # between an assistant's message and the next user message.
        between_turns = self._text_after(ANSWER_PROBE, [USER, ANSWER, USER]).partition(USER_PROBE)[0]
        self.turn_end = f"{self._text_after(ANSWER_PROBE, [USER, ANSWER])}\n{between_turns}"

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Tools = (), *, is_prompt: bool = True) -> str:
        """The conversation as text; the system's text goes at the head of the first user message if the template has no
        place for it. Raises ConfigError, with the template's own words, if the template refuses the conversation."""
        plain = [dict(message) for message in messages]
        if self._folds_system and len(plain) > 1 and plain[0]["role"] == "system":
            system, first = plain[:2]
            plain[:2] = [{**first, "content": f"{system['content']}\n\n{first['content']}"}]
        try:
            values = self._switches | {"add_generation_prompt": is_prompt, "tools": list(tools) or None}
            text = self._tokenizer.apply_chat_template(plain, chat_template=self.source, tokenize=False, **values)
        except Exception as error:  # a template is a program of others: what it raises has no common base
            roles = ", ".join(message["role"] for message in messages)
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(f"the model's chat template does not render messages of {roles}: {reason}") from error
        assert isinstance(text, str)
        return text

    @cached_property
    def has_tools(self) -> bool:
        """Whether the template describes tools, writes calls in the form that `call_in` reads, and takes results."""
        called = {"name": NAME, "arguments": {"code": ANSWER_PROBE, "stdin": ""}}
        calls = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": called}]}
        messages = [SYSTEM, USER, calls, {"role": "tool", "content": SYSTEM_PROBE}]
        try:
            text = self.render(messages, [run_python(1)])
        except ConfigError:
            return False
        described, _, rest = text.partition(USER_PROBE)
        return NAME in described and call_in(rest) == Call(ANSWER_PROBE) and SYSTEM_PROBE in rest

    def split_thinking(self, content: str) -> tuple[str | None, str]:
        """(reasoning, answer) of an assistant's message, as they are written; reasoning is None unless it opens with
        a closed block of thinking, in this template's markers or in `<think>` and `</think>`."""
        opened = content.lstrip()
        for pair in (*self.markers, Markers(THINK_OPEN, THINK_CLOSE)) if self.markers else ():
            if opened.startswith(pair.open) and pair.close in opened:
                reasoning, _, answer = opened.removeprefix(pair.open).partition(pair.close)
                return reasoning, answer
        return None, content

    def _thinking_switch(self, thinking: bool) -> str:
        """The variable that makes a difference to the prompts which are built here."""
        # Tried, not looked for in the source: what counts is that these prompts come out different.
        for name in SWITCHES:
            prompts = set()
            for value in (True, False):
                self._switches = {name: value}
                prompts.add(self.render([SYSTEM, USER]))
            if len(prompts) == 2:
                return name
        asked = f"thinking={'on' if thinking else 'off'}"
        raise ConfigError(f"{asked}: the model's chat template has no switch for thinking; leave the setting out")

    def _text_after(self, probe: str, messages: Sequence[Message], *, is_prompt: bool = False) -> str:
        """What the template writes after the first `probe`, the text of one of the `messages`."""
        text = self.render(messages, is_prompt=is_prompt)
        if probe not in text:
            raise ConfigError(
                "the model's chat template leaves out the text of plain messages: take another model "
                "(renderer_name=qwen3_instruct serves those that were made for ChatML)"
            )
        return text.partition(probe)[2]


class ChatTemplateRenderer(Renderer):
    """`chat_template`: the model's own template. `thinking` is on, off, or (None) as the template has it. `stop_tokens`
    are what ends the assistant's turn in the template, the `end_tokens` (the generation configuration's) and the
    tokenizer's end token. Raises ConfigError where there is none of them, or as `ChatTemplate` says. Where a message
    spells an added token, a mark is put behind that token's first character before the template sees the message, and
    the text is encoded in pieces between the marks. So the template does not take it for one of its own markers either,
    and it trims as ever: a mark never stands at the end of a message."""

    name = "chat_template"

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", *, thinking: bool | None = None, end_tokens: Sequence[int] = ()
    ) -> None:
        super().__init__(tokenizer)
        self._thinking = thinking
        self._template = ChatTemplate(tokenizer, thinking)
        end = self._spelled_token.search(self._template.turn_end)
        self._turn_end = end[0] if end else ""
        # The turn's end comes first, since a supervised example ends with the first of them.
        ends = [self._added_tokens[self._turn_end]] if end else []
        ends += [*end_tokens, *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])]
        self.stop_tokens = list(dict.fromkeys(ends))
        if not ends:
            raise ConfigError(NO_END_TOKEN)

    @property
    def label(self) -> str:
        return self.name if self._thinking is None else f"{self.name} thinking={'on' if self._thinking else 'off'}"

    def prompt_tokens(self, messages: Sequence[Message], tools: Tools = ()) -> list[int]:
        if tools and not self._template.has_tools:
            messages, tools = spelled_out(messages, tools), ()
        mark = self._unused_character(messages)
        return self._encode_pieces(self._template.render(self._marked(messages, mark), tools).split(mark))

    def answer_tokens(self, content: str) -> list[int]:
        last: list[Message] = [{"role": "assistant", "content": content}]
        mark = self._unused_character(last)
        return self._encode_pieces(self._target(self._marked(last, mark)[0]).split(mark), continued=True)

    def parse_response(self, tokens: Sequence[int]) -> tuple[str, bool]:
        """As for any renderer; thinking is marked by `<think>` and `</think>` whatever the template's markers are."""
        text, complete = super().parse_response(tokens)
        for pair in self._template.markers:
            text = text.replace(pair.open, THINK_OPEN).replace(pair.close, THINK_CLOSE)
        # Where the prompt opened a block of thinking, what the policy wrote first is the rest of that block.
        return f"{THINK_OPEN}\n{text}" if self._template.opens_thinking else text, complete

    def _target(self, last: Message) -> str:
        """The (marked) text of the last message as it follows on a prompt, without its end of turn. That is what the
        template writes behind its prompt for a question; without the reasoning, if only then the two fit (thinking is
        off). Some templates write past turns otherwise than prompts: then the text is made here."""
        prompt = self._template.render([USER])
        reasoning, answer = self._template.split_thinking(last["content"])
        for content in dict.fromkeys((last["content"], answer)):
            answered: list[Message] = [USER, {"role": "assistant", "content": content}]
            whole = self._template.render(answered, is_prompt=False)
            if whole.startswith(prompt):
                target = whole.removeprefix(prompt)
                return target.partition(self._turn_end)[0] if self._turn_end else target
        if not self._template.opens_thinking:
            return last["content"]
        thought = (reasoning or "").strip("\n")
        parts = (thought, self._template.markers[0].close, "", answer.lstrip("\n"))
        return "\n".join(parts if thought else parts[1:])

    def _marked(self, messages: Sequence[Message], mark: str) -> list[Message]:
        """`messages` with `mark` inside each added token that their texts spell. A block of thinking that an
        assistant's message opens with is the template's business: the two markers of that one stay (spelled as the
        template does); all others are plain text."""
        self.require_roles(messages)
        marked: list[Message] = []
        for message in messages:
            role, content = message["role"], message["content"]
            reasoning, answer = self._template.split_thinking(content) if role == "assistant" else (None, content)
            text = mark.join(self._plain_pieces(answer))
            if reasoning is not None:
                markers = self._template.markers[0]
                text = f"{markers.open}{mark.join(self._plain_pieces(reasoning))}{markers.close}{text}"
            marked.append({"role": role, "content": text})
        return marked

    def _unused_character(self, messages: Sequence[Message]) -> str:
        """A private-use character that occurs neither in `messages` nor in the template."""
        used = {*self._template.source, *(character for message in messages for character in message["content"])}
        return next(mark for mark in map(chr, range(0xF0000, 0xFFFFE)) if mark not in used)


def find_markers(source: str) -> list[Markers]:
    """The pairs of thinking markers that a template's source spells, each once; of a paired one the closing will do."""
    found = [Markers(f"{end['left']}{end['name']}{end['right']}", end[0]) for end in PAIRED_MARKER.finditer(source)]
    found += [Markers(*pair) for pair in OTHER_MARKERS if all(marker in source for marker in pair)]
    return list(dict.fromkeys(found))


@lru_cache(maxsize=4)
def load_tokenizer(model_name: str) -> "PreTrainedTokenizerBase":
    """The tokenizer of a local model folder, or else of a model on the hub. Raises ConfigError if neither has it."""
    from transformers import AutoTokenizer  # seconds to import, and only needed here

    folder = local_model_folder(model_name)
    source = str(folder or model_name)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        where = f"the folder {folder}" if folder else "the Hugging Face hub (no local folder of that name)"
        first_line = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(f"Cannot load the tokenizer of {model_name!r} from {where}: {first_line}") from error
    return tokenizer


def model_renderer(
    model_name: str, renderer_name: str | None = None, thinking: bool | None = None, *, is_chat: bool = True
) -> Renderer:
    """The renderer for a model: `renderer_name`, or the recommended one; with thinking on, off, or as it is made for.
    Where prompts are no chat, a model without a chat template, as base models are, gets `plain_text`.
    Raises ConfigError as `load_tokenizer` and `get_renderer` do."""
    tokenizer = load_tokenizer(model_name)
    name = renderer_name or recommended_renderer(model_name)
    by_default = renderer_name is None and thinking is None
    if not is_chat and by_default and name == ChatTemplateRenderer.name and not tokenizer.chat_template:
        return PlainTextRenderer(tokenizer, end_tokens=generation_end_tokens(model_name))
    if renderer_name is None and name == "qwen3" and thinking is False:
        name = "qwen3_disable_thinking"
    # Asked for only where it is needed: for a model on the hub this is a download.
    end_tokens = generation_end_tokens(model_name) if name == ChatTemplateRenderer.name else ()
    return get_renderer(name, tokenizer, thinking=thinking, end_tokens=end_tokens)


def get_renderer(
    name: str, tokenizer: "PreTrainedTokenizerBase", *, thinking: bool | None = None, end_tokens: Sequence[int] = ()
) -> Renderer:
    """The renderer called `name` (qwen3 | qwen3_disable_thinking | qwen3_instruct | chat_template) on `tokenizer`;
    `thinking` and `end_tokens` are for `ChatTemplateRenderer`. Raises ValueError "Unknown renderer" for another name,
    ConfigError if the tokenizer lacks what the renderer needs or `thinking` contradicts the renderer."""
    if name == ChatTemplateRenderer.name:
        return ChatTemplateRenderer(tokenizer, thinking=thinking, end_tokens=end_tokens)
    if name not in QWEN3_RENDERERS:
        known = ", ".join((*QWEN3_RENDERERS, ChatTemplateRenderer.name))
        raise ValueError(f"Unknown renderer: {name!r}. Known: {known}")
    if thinking is not None and QWEN3_RENDERERS[name].thinking is not thinking:
        raise ConfigError(
            f"thinking={'on' if thinking else 'off'} and the renderer {name} contradict each other: leave thinking "
            "out, or set renderer_name=chat_template if the model's template has a switch for it"
        )
    return QWEN3_RENDERERS[name](tokenizer)


def recommended_renderer(model_name: str) -> str:
    """The renderer for a model: Instruct-2507 models get `qwen3_instruct`, other Qwen3 models `qwen3`; a local Qwen3
    folder whose chat template knows no think block, as the bundled nano model, gets `qwen3_instruct`. Every other model
    gets `chat_template`."""
    # The name comes first, and needs no download: `coderl doctor` tells the renderer of every model on offer.
    base_name = model_name.rstrip("/").rsplit("/", maxsplit=1)[-1].lower()
    if base_name.startswith("qwen3-") and "base" not in base_name:
        return "qwen3_instruct" if "instruct" in base_name else "qwen3"
    folder = local_model_folder(model_name)
    if folder is not None and json.loads((folder / "config.json").read_text("utf-8")).get("model_type") in QWEN3_TYPES:
        template = getattr(load_tokenizer(model_name), "chat_template", None)
        return "qwen3" if isinstance(template, str) and THINK_OPEN in template else "qwen3_instruct"
    return ChatTemplateRenderer.name


def generation_end_tokens(model_name: str) -> list[int]:
    """`eos_token_id`s in a model's generation_config.json, if there is one. Raises ConfigError for a damaged one."""
    from transformers.utils import cached_file

    folder = local_model_folder(model_name)
    try:
        file = cached_file(str(folder or model_name), "generation_config.json")
    except OSError as error:
        # No such file and no way to the hub are the same error here, so a model without the file must not fail.
        notice = "no generation_config.json of %s, so its template says what ends an answer: %s"
        logger.warning(notice, model_name, str(error).strip().partition("\n")[0])
        return []
    try:
        ids = json.loads(Path(str(file)).read_text(encoding="utf-8")).get("eos_token_id")
        return [] if ids is None else [int(token) for token in (ids if isinstance(ids, list) else [ids])]
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"the generation_config.json of {model_name!r} is damaged: {error}") from error
