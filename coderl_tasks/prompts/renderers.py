"""From messages to tokens, and from a problem to its prompt: the chat renderers of the Qwen3 family, written on the
tokenizer itself, and LiveCodeBench's question, word for word.

1. Turn markers and think tags become token ids; everything inside a message is encoded as plain text. So
   `<|im_end|>` in a problem statement can never end a turn, which `apply_chat_template` does not prevent.
2. The prompt of a conversation is a prefix, token for token, of its supervised example and of what was sampled.
3. On ordinary text the tokens are those of the models' own chat templates, which describe tools and write their
   results. A call stays the text that was sampled.
4. Profiling, training and evaluation get their prompts from `problem_prompt` alone: policies are trained and compared
   on exactly this one. Source of the wording: LiveCodeBench, lcb_runner/prompts/code_generation.py (arXiv:2403.07974).
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from coderl_tasks.errors import ConfigError
from coderl_tasks.problems.problem import Problem
from coderl_tasks.problems.raw_row import statement_of
from coderl_tasks.prompts.tool_calls import RESULT_CLOSE, RESULT_OPEN, Tools, tools_text

if TYPE_CHECKING:
    import tinker
    from transformers import PreTrainedTokenizerBase


TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
ROLES = ("system", "user", "assistant", "tool")
NO_END_TOKEN = (
    "nothing says which token ends the model's answers: add eos_token_id to its generation_config.json, or eos_token "
    "to its tokenizer_config.json"
)
RECURRING = 64  # encoded texts that a renderer keeps: a prompt has some five, of which four recur in the next one
LCB_SYSTEM_MESSAGE_GENERIC = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate "
    "a correct Python program that matches the specification and passes all tests."
)
FORMAT_WITH_STARTER_CODE = (
    "You will use the following starter code to write the solution to the problem and enclose your code within "
    "delimiters."
)
FORMAT_WITHOUT_STARTER_CODE = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on the "
    "sample inputs). Enclose your code within delimiters as follows. Ensure that when the python program runs, it "
    "reads the inputs, runs the algorithm and writes output to STDOUT."
)


class Message(TypedDict):
    """One chat message; `role` is one of ROLES, tool for the result of a call."""

    role: str
    content: str


class Renderer(ABC):
    """Turns messages into tokens and completions back into text. `stop_tokens` are the ids that end a completion."""

    name: ClassVar[str]

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer
        self.stop_tokens: list[int] = []  # a subclass fills it
        self._added_tokens: dict[str, int] = tokenizer.get_added_vocab()
        # A message that spells an added token (<|im_end|>) must not become one: `_plain_pieces` finds and splits these.
        # Not those of white space, which ordinary text has, nor single characters, which cannot be split.
        # Longest first: of two tokens that begin alike, a regular expression takes the one that is named first.
        written: list[str] = sorted((t for t in self._added_tokens if t.strip() and len(t) > 1), key=len, reverse=True)
        pattern = "|".join(re.escape(token) for token in written) or "(?!)"  # (?!) never matches
        self._spelled_token = re.compile(pattern)
        self._written_ids = {self._added_tokens[token] for token in written}
        # Some tokenizers look for added tokens in the text as they normalised it: `_plain_pieces` then checks ids too.
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._normalizes = (
            backend is not None
            and backend.normalizer is not None
            and any(token.normalized for token in tokenizer.added_tokens_decoder.values())
        )
        # Prompts differ in the user's message alone: their other texts recur, so their tokens are cached.
        self._encode = lru_cache(maxsize=RECURRING)(
            lambda text: tuple(tokenizer.encode(text, add_special_tokens=False))
        )

    @property
    def label(self) -> str:
        """The chat format in a word or two, for the record of what was sampled with it."""
        return self.name

    def build_generation_prompt(self, messages: Sequence[Message]) -> "tinker.ModelInput":
        """The prompt of `messages` as Tinker's sampling client takes it; `prompt_tokens` gives it as token ids."""
        import tinker  # seconds to import, which grading alone does not need

        return tinker.ModelInput.from_ints(self.prompt_tokens(messages))

    @abstractmethod
    def prompt_tokens(self, messages: Sequence[Message], tools: Tools = ()) -> list[int]:
        """Tokens of `messages`, which describe `tools`, and the opening of the assistant's next turn."""

    def answer_tokens(self, content: str) -> Sequence[int]:
        """Tokens of the assistant's last message as it is sampled, without its end of turn."""
        return self.encode_plain(content)

    def build_supervised_example(self, messages: Sequence[Message]) -> tuple[list[int], list[float]]:
        """Tokens of `messages`, and a weight for each token: 1.0 on what the assistant would have sampled as the last
        one, its end of turn included, and 0.0 on its prompt. Raises ValueError if the last message is another's."""
        if not messages or messages[-1]["role"] != "assistant":
            raise ValueError("a supervised example ends with an assistant message")
        prompt = self.prompt_tokens(messages[:-1])
        # Encoded apart from the prompt, as it is sampled: the prompt's last token is never merged with what follows.
        answer = [*self.answer_tokens(messages[-1]["content"]), self.stop_tokens[0]]
        return prompt + answer, [0.0] * len(prompt) + [1.0] * len(answer)

    def parse_response(self, tokens: Sequence[int]) -> tuple[str, bool]:
        """The completion's text up to its first stop token, and whether there was one (else it was cut off)."""
        stops = (index for index, token in enumerate(tokens) if token in self.stop_tokens)
        end = next(stops, None)
        return self.decoded(tokens[:end]), end is not None

    def continued_prompt(
        self,
        prompt: Sequence[int],
        completion: Sequence[int],
        messages: Sequence[Message],
        reply: Message,
        tools: Tools = (),
    ) -> tuple[list[int], bool]:
        """The prompt for the next turn, after `reply` (a tool's result, say), and whether it begins with `prompt` and
        the sampled `completion`, token for token, so that they can be trained as one sequence. `messages` are the
        conversation so far, of which the last is the completion's text. Where the chat format writes past turns
        otherwise than they were sampled (without their thinking, say), the prompt is that of the format."""
        answer = messages[-1]["content"]
        whole = self.prompt_tokens([*messages, reply], tools)
        so_far = [*prompt, *completion]
        if whole[: len(so_far)] == so_far:
            return whole, True
        head = self.prompt_tokens(messages[:-1], tools)
        # What the chat format puts after any answer: from the token that ends its turn on.
        any_answer: Message = {"role": "assistant", "content": "x"}
        answered = self.prompt_tokens([*messages[:-1], any_answer, reply], tools)[len(head) :]
        tail = list(dropwhile(lambda token: token not in self.stop_tokens, answered))
        # Texts are compared, not tokens: a policy need not sample the tokens that its text would be encoded to.
        goes_on = (
            bool(tail)
            and whole[-len(tail) :] == tail
            and self.decoded(whole[: -len(tail)]) == self.decoded(head) + answer
        )
        if not goes_on:
            return whole, False
        has_stop_token = bool(completion) and completion[-1] == tail[0]  # lacking if it was cut off
        return [*so_far, *(tail[1:] if has_stop_token else tail)], True

    def decoded(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special ones included."""
        text = self.tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def require_roles(self, messages: Sequence[Message]) -> None:
        """Raises ValueError for an unknown role."""
        for message in messages:
            if message["role"] not in ROLES:
                raise ValueError(f"unknown role {message['role']!r}: expected one of {', '.join(ROLES)}")

    def encode_plain(self, text: str) -> list[int]:
        """`text` as ordinary tokens: no added token of the tokenizer, special or not, is ever recognised in it."""
        return self._encode_pieces(self._plain_pieces(text))

    def _encode_pieces(self, pieces: Sequence[str], *, continued: bool = False) -> list[int]:
        """Tokens of pieces of a text, each encoded by itself; `continued`: the first follows on another text, too."""
        first, *rest = pieces
        tokens = self._encode_continued(first) if continued else self._encode(first)
        return [*tokens, *(token for piece in rest for token in self._encode_continued(piece))]

    def _plain_pieces(self, text: str) -> list[str]:
        """`text` in pieces, none of which holds an added token: it is cut after the first character of each.
        (`split_special_tokens` would do for special tokens, but `<think>` and its like are added without that flag.)"""
        pieces: list[str] = []
        start = 0
        while match := self._spelled_token.search(text, start):
            pieces.append(text[start : match.start() + 1])
            start = match.start() + 1
        pieces.append(text[start:])
        if not self._normalizes:
            return pieces
        # What is no added token as it is written can be one once the tokenizer has normalised it (full-width letters).
        checked: list[str] = []
        for piece in pieces:
            checked += [piece] if self._written_ids.isdisjoint(self._encode(piece)) else piece
        return checked

    def _encode_continued(self, text: str) -> Sequence[int]:
        """`text` as it is encoded behind other text: some tokenizers put a space before what they take for a start."""
        newline = self._encode("\n")
        tokens = self._encode(f"\n{text}")
        return tokens[len(newline) :] if tokens[: len(newline)] == newline else self._encode(text)


class PlainTextRenderer(Renderer):
    """`plain_text`: messages without a chat format, for environments whose prompts are no chat. `stop_tokens` are
    `end_tokens` (the generation configuration's) and the tokenizer's end token. Raises ConfigError without any."""

    name = "plain_text"

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, end_tokens: Sequence[int] = ()) -> None:
        super().__init__(tokenizer)
        own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.stop_tokens = list(dict.fromkeys([*end_tokens, *own]))
        if not self.stop_tokens:
            raise ConfigError(NO_END_TOKEN)

    def prompt_tokens(self, messages: Sequence[Message], tools: Tools = ()) -> list[int]:
        self.require_roles(messages)
        return self.encode_plain("".join(f"{message['content']}\n\n" for message in messages))


class Qwen3InstructRenderer(Renderer):
    """`qwen3_instruct`: ChatML without think blocks; the renderers of models that think differ in `thinking`.
    `stop_tokens` are `<|im_end|>`, and `<|endoftext|>` where the tokenizer has it."""

    name = "qwen3_instruct"
    thinking: ClassVar[bool | None] = None
    """Whether the policy thinks first. None: the model has no think blocks, and they are text like any other."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        super().__init__(tokenizer)
        missing = [token for token in (TURN_START, TURN_END) if token not in self._added_tokens]
        if missing:
            raise ConfigError(
                f"The tokenizer has no {' and '.join(missing)} token: the Qwen3 renderers need a ChatML tokenizer; "
                "renderer_name=chat_template takes the model's own format."
            )
        ends = (TURN_END, END_OF_TEXT)
        self.stop_tokens = [self._added_tokens[token] for token in ends if token in self._added_tokens]

    def prompt_tokens(self, messages: Sequence[Message], tools: Tools = ()) -> list[int]:
        """The prompt of a conversation in Qwen3's format (ChatML), as tokens; it ends where the next turn begins."""
        self.require_roles(messages)
        if tools and [message["role"] for message in messages[:1]] != ["system"]:
            messages = [{"role": "system", "content": ""}, *messages]
        # What follows the last message of the user belongs to the turn being written.
        last_user = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
        start, end = self._added_tokens[TURN_START], self._added_tokens[TURN_END]
        opening = [start, *self.encode_plain("assistant\n")]
        tokens: list[int] = []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                # Turns before the last user message lose their think block, as in the model's template. A turn without
                # reasoning gets no empty block.
                reasoning, answer = self._split(message["content"])
                block = self._think_block(reasoning) if reasoning and index > last_user else []
                turn = [*opening, *block, *self.encode_plain(answer)]
            elif message["role"] == "tool":
                result = self._block(RESULT_OPEN, message["content"], RESULT_CLOSE)
                turn = [start, *self.encode_plain("user\n"), *result]
            elif tools and index == 0:  # the system message also describes the tools
                content = f"{message['content']}\n\n" if message["content"] else ""
                turn = [start, *self.encode_plain(f"system\n{content}"), *self._encode(tools_text(tools))]
            else:
                turn = [start, *self.encode_plain(f"{message['role']}\n{message['content']}")]
            tokens += [*turn, end, *self.encode_plain("\n")]
        # A model that is not to think is handed an empty think block, and just answers.
        return tokens + opening + (self._think_block("") if self.thinking is False else [])

    def answer_tokens(self, content: str) -> list[int]:
        reasoning, text = self._split(content)
        return [*(self._think_block(reasoning) if self.thinking else []), *self.encode_plain(text)]

    def _split(self, content: str) -> tuple[str, str]:
        return ("", content) if self.thinking is None else split_thinking(content)

    def _think_block(self, reasoning: str) -> list[int]:
        return [*self._block(THINK_OPEN, reasoning, THINK_CLOSE), *self.encode_plain("\n\n")]

    def _block(self, opening: str, text: str, closing: str) -> list[int]:
        # A tag is its own token, or spelled out where the tokenizer has none.
        return [*self._encode(opening), *self.encode_plain(f"\n{text}\n"), *self._encode(closing)]


class ThinkingRenderer(Qwen3InstructRenderer):
    """`qwen3`: the policy thinks first."""

    name, thinking = "qwen3", True


class DisableThinkingRenderer(Qwen3InstructRenderer):
    """`qwen3_disable_thinking`: a hybrid model just answers; an empty think block is part of its prompt."""

    name, thinking = "qwen3_disable_thinking", False


QWEN3_RENDERERS = {each.name: each for each in (ThinkingRenderer, DisableThinkingRenderer, Qwen3InstructRenderer)}


def split_thinking(content: str) -> tuple[str, str]:
    """(reasoning, answer) of an assistant message; reasoning is empty unless it opens with a closed think block."""
    opened = content.lstrip()
    if not opened.startswith(THINK_OPEN) or THINK_CLOSE not in opened:
        return "", content
    reasoning, _, answer = opened.removeprefix(THINK_OPEN).partition(THINK_CLOSE)
    return reasoning.strip("\n"), answer.lstrip("\n")


def spelled_out(messages: Sequence[Message], tools: Tools) -> list[Message]:
    """The conversation for a chat format without tools: described in the system message, results as the user's."""
    has_system = bool(messages) and messages[0]["role"] == "system"
    asked = [messages[0]["content"]] if has_system else []
    found: list[Message] = [{"role": "system", "content": "\n\n".join([*asked, tools_text(tools)])}]
    for message in messages[has_system:]:
        result: Message = {"role": "user", "content": f"{RESULT_OPEN}\n{message['content']}\n{RESULT_CLOSE}"}
        found.append(result if message["role"] == "tool" else message)
    return found


def question_text(statement: str, starter_code: str | None = None) -> str:
    """The user message for one problem: question, format with a fence, answer line. Blank starter code is none."""
    rule, fenced = FORMAT_WITHOUT_STARTER_CODE, "# YOUR CODE HERE"
    if starter_code is not None and starter_code.strip():
        rule, fenced = FORMAT_WITH_STARTER_CODE, starter_code
    return (
        f"### Question:\n{statement}\n\n"
        f"### Format: {rule}\n```python\n{fenced}\n```\n\n"
        "### Answer: (use the provided format with backticks)\n\n"
    )


def fetch_live_code_bench_system_prompt(prompt: str, starter_code: str | None = None) -> str:
    """The whole prompt as one text, system message first, for callers that send a single message."""
    return f"{LCB_SYSTEM_MESSAGE_GENERIC}\n\n{question_text(prompt, starter_code)}"


def build_question(example: Mapping[str, Any]) -> str | None:
    """The one-text prompt of a raw row (`statement_of`, `starter_code`), or None if it has no question."""
    statement = statement_of(example)
    if statement is None:
        return None
    starter_code = example.get("starter_code")
    return fetch_live_code_bench_system_prompt(statement, starter_code if isinstance(starter_code, str) else None)


def problem_messages(problem: Problem) -> list[Message]:
    """LiveCodeBench's system and user message for `problem`."""
    return [
        {"role": "system", "content": LCB_SYSTEM_MESSAGE_GENERIC},
        {"role": "user", "content": question_text(problem.statement, effective_starter_code(problem))},
    ]


def problem_prompt(problem: Problem, renderer: Renderer) -> list[int]:
    """The prompt of `problem` as tokens, ready for sampling."""
    return renderer.prompt_tokens(problem_messages(problem))


def effective_starter_code(problem: Problem) -> str:
    """The problem's starter code, or for a `call` problem without one a bare signature: the format rule without starter
    code asks for a program that reads stdin, which could never pass."""
    if problem.kind != "call" or problem.starter_code.strip():
        return problem.starter_code
    parameters = "*args"
    if problem.tests:
        arguments = json.loads(problem.tests[0].input)
        parameters = ", ".join(f"arg{i + 1}" for i in range(len(arguments)))
    return f"def {problem.entry_point}({parameters}):\n    "
