"""What is trained on: from a row to a prompt, and from a completion to a reward with named components."""

from coderl_tasks.environments.choice import ROWS, environment_of
from coderl_tasks.environments.environment import CodeReward, Environment
from coderl_tasks.environments.gsm8k import (
    build_gsm8k_prompt,
    gsm8k_reward_fn,
    run_compute_group_normalized_rewards,
)
from coderl_tasks.environments.programs import CODE

__all__ = [
    "CODE",
    "ROWS",
    "CodeReward",
    "Environment",
    "build_gsm8k_prompt",
    "environment_of",
    "gsm8k_reward_fn",
    "run_compute_group_normalized_rewards",
]
