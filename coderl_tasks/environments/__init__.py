"""What is trained on: from a row to a prompt, and from a completion to a reward with named components."""

from coderl_tasks.environments.choice import environment_of
from coderl_tasks.environments.environment import CodeReward, Environment
from coderl_tasks.environments.programs import CODE

__all__ = ["CODE", "CodeReward", "Environment", "environment_of"]
