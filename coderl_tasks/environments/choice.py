"""Which environment settings ask for."""

from coderl_tasks.environments.custom import CustomEnvironment
from coderl_tasks.environments.environment import Environment
from coderl_tasks.environments.programs import CODE
from coderl_tasks.grading.reward_function import RewardFunction
from coderl_tasks.settings import FlowSettings


def environment_of(settings: FlowSettings) -> Environment:
    """The environment of `settings`. Raises ConfigError for a reward file that cannot be used."""
    if settings.environment == "custom":
        assert settings.reward_file is not None  # the settings see to that
        return CustomEnvironment(RewardFunction.read(settings.reward_file))
    return CODE
