"""The tool that a policy may call, `run_python(code, stdin)`: how it is described, and how a call is read.

A call is written as Qwen2.5 and Qwen3 write it (and Hermes before them), a JSON object between tags:

    <tool_call>
    {"name": "run_python", "arguments": {"code": "print(int(input()) + 1)", "stdin": "5\\n"}}
    </tool_call>

`stdin` may be left out. A model whose chat template describes tools and writes calls in just this form has the
template's own prompt. All others (no tools in the template, or calls of another form) have the format described by
`tools_text`, Qwen's words, at the end of the system message, and a result as a user's message between
<tool_response> tags.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NAME = "run_python"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
RESULT_OPEN, RESULT_CLOSE = "<tool_response>", "</tool_response>"
Tools = Sequence[Mapping[str, Any]]
"""Descriptions of functions, as `apply_chat_template(tools=...)` takes them."""


@dataclass(frozen=True, slots=True)
class Call:
    """A program that a policy asks to be run, and its standard input."""

    code: str
    stdin: str = ""


def run_python(most: int) -> dict[str, Any]:
    """The tool's description; at most `most` calls may be made."""
    text = {"type": "string"}
    code = text | {"description": "The whole program."}
    stdin = text | {"description": "What the program reads from standard input."}
    said = (
        "Runs a Python program and returns its output, its errors and its exit status. Make one call per answer, at "
        f"most {most} in all. An answer without a call is the last one: it has the whole program in a code block."
    )
    parameters = {"type": "object", "properties": {"code": code, "stdin": stdin}, "required": ["code"]}
    return {"type": "function", "function": {"name": NAME, "description": said, "parameters": parameters}}


def tools_text(tools: Tools) -> str:
    """What a system message says of `tools`: the words of Qwen's chat templates (Qwen2.5, Qwen3)."""
    described = "".join(f"\n{json.dumps(tool, ensure_ascii=False)}" for tool in tools)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>{described}\n</tools>\n\n"
        f"For each function call, return a json object with function name and arguments within {CALL_OPEN}{CALL_CLOSE} "
        f'XML tags:\n{CALL_OPEN}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{CALL_CLOSE}'
    )


def call_in(text: str) -> Call | str | None:
    """The tool call in a model's answer (without its thinking), a text that says what is wrong with it, or None."""
    _, is_opened, rest = text.partition(CALL_OPEN)
    if not is_opened:
        return None
    body, is_closed, rest = rest.partition(CALL_CLOSE)
    if not is_closed:
        return f"it does not end with {CALL_CLOSE}"
    if CALL_OPEN in rest:
        return "there are several: make one call per answer"
    try:
        call = json.loads(body, strict=False)  # line ends in a text need not be written as \n
    except (ValueError, RecursionError) as error:
        return f"it is not JSON ({error})"
    if not isinstance(call, dict) or call.get("name") != NAME or not isinstance(call.get("arguments"), dict):
        return f'it is not {{"name": "{NAME}", "arguments": {{...}}}}'
    arguments = {"stdin": ""} | call["arguments"]
    if arguments.keys() != {"code", "stdin"} or not all(isinstance(value, str) for value in arguments.values()):
        return "its arguments are the texts code and stdin"
    return Call(arguments["code"], arguments["stdin"])
