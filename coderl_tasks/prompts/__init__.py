"""Question text in LiveCodeBench's format and the chat renderers that turn it into tokens."""

from coderl_tasks.prompts.renderers import (
    LCB_SYSTEM_MESSAGE_GENERIC,
    Message,
    Qwen3InstructRenderer,
    Renderer,
    build_question,
    fetch_live_code_bench_system_prompt,
    problem_messages,
    problem_prompt,
)
from coderl_tasks.prompts.tokenizer import get_renderer, load_tokenizer, model_renderer, recommended_renderer

__all__ = [
    "LCB_SYSTEM_MESSAGE_GENERIC", "Message", "Qwen3InstructRenderer", "Renderer", "build_question",
    "fetch_live_code_bench_system_prompt", "get_renderer", "load_tokenizer", "model_renderer", "problem_messages",
    "problem_prompt", "recommended_renderer",
]  # fmt: skip
