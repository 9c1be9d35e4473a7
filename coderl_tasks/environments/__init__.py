"""What is trained on: from a row to a prompt, and from a completion to a reward with named components."""

from coderl_tasks.environments.benchmarks import BenchmarkEnvironment
from coderl_tasks.environments.environment import CODE, CodeEnvironment, CustomEnvironment, Environment, Turns
from coderl_tasks.environments.gsm8k import (
    Gsm8kEnvironment,
    build_gsm8k_prompt,
    gsm8k_reward_fn,
    run_compute_group_normalized_rewards,
)
from coderl_tasks.grading.reward_function import RewardFunction
from coderl_tasks.problems.loading import RowReader
from coderl_tasks.prompts.renderers import Renderer
from coderl_tasks.prompts.tokenizer import model_renderer
from coderl_tasks.settings import EvaluateSettings, FlowSettings
from coderl_tasks.settings.setting import PROGRAMS

__all__ = [
    "CODE", "ROWS", "CodeEnvironment", "Environment", "build_gsm8k_prompt", "environment_of", "gsm8k_reward_fn",
    "renderer_of", "run_compute_group_normalized_rewards",
]  # fmt: skip

ROWS: dict[str, RowReader] = {
    **dict.fromkeys(PROGRAMS, CODE.rows),
    **{each.name: each.rows for each in (Gsm8kEnvironment, CustomEnvironment)},
}
"""How the rows of each environment are read, by its name."""


def environment_of(settings: FlowSettings) -> Environment:
    """The environment of `settings`. Raises ConfigError for an unusable reward file or impossible turns."""
    settings.require_turns()
    turns = Turns(settings.most_answers, settings.feedback, settings.max_trajectory_tokens, settings.max_tool_calls)
    if settings.environment == "custom":
        assert settings.reward_file is not None  # the settings see to that
        return CustomEnvironment(RewardFunction.read(settings.reward_file), turns)
    if settings.environment == "gsm8k":
        return Gsm8kEnvironment(settings.use_r1_zero_format)
    if isinstance(settings, EvaluateSettings) and settings.benchmark is not None:
        return BenchmarkEnvironment(stop_after_code=settings.stop_after_code, turns=turns)
    return CodeEnvironment(stop_after_code=settings.stop_after_code, turns=turns)


def renderer_of(settings: FlowSettings) -> Renderer:
    """The renderer of the model of `settings` for their environment. Raises ConfigError."""
    is_chat = environment_of(settings).is_chat
    return model_renderer(settings.model_name, settings.renderer_name, settings.thinking, is_chat=is_chat)
