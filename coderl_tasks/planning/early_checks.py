"""What every flow settles first: whether a place and a data set can be used, and which base model is taken."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from prefect.context import FlowRunContext
from prefect.runtime import deployment, flow_run
from tinker.types import SupportedModel

from coderl_tasks.errors import ConfigError
from coderl_tasks.journal import atomic
from coderl_tasks.journal.recorded_json import CONFIG_FILE, SETTINGS_FILE
from coderl_tasks.paths import shown
from coderl_tasks.policy.clients import not_offered, some_of, supported_models
from coderl_tasks.problems.sources import Role, find_source, may_be_on_the_hub, open_source
from coderl_tasks.services import FlowT, check_environment, tinker_credentials, uses_tinker_service
from coderl_tasks.settings import DEFAULT_MODEL

BARE_MODELS = (
    DEFAULT_MODEL, "Qwen/Qwen3.5-4B", "Qwen/Qwen3-8B", "Qwen/Qwen3.5-9B", "Qwen/Qwen3.6-35B-A3B", "Qwen/Qwen3.6-27B",
    "Qwen/Qwen3.8-27B",
)  # fmt: skip
"""What a command that names no model takes: the recipe's, then small current ones, by active parameters and age."""


def check_place(folder: Path, setting: str) -> None:
    """Checks before a start that a run or a curation can be recorded in `folder`, which need not exist. Raises
    ConfigError, which names `setting`, if it cannot be made or written to, or has less than `atomic.LEAST_FREE` bytes
    free. Too little space raises InfraError instead if a run or a curation has begun there."""
    folder, choose = folder.expanduser().resolve(), f"choose another {setting}"
    if shown(folder) != str(folder):  # `shown` replaces bytes that are not UTF-8
        raise ConfigError(f"{setting}={shown(folder)} is not UTF-8, which Prefect and reports need: {choose}")
    # Checks the nearest existing folder, so that nothing is created.
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{setting}={folder}: {nearest} is a file: {choose}")
    try:
        # Try to write: permission bits do not show a read-only file system, and root ignores them.
        with tempfile.TemporaryFile(dir=nearest):
            free = atomic.free_bytes(nearest)
    except OSError as error:
        raise ConfigError(f"{nearest} cannot be written to ({error.strerror}): {choose}") from error
    if free < atomic.LEAST_FREE:
        if any((folder / name).is_file() for name in (CONFIG_FILE, SETTINGS_FILE)):
            atomic.require_room([folder])  # raises InfraError: what has begun can be retried
        lack = f"{free / atomic.MIB:.0f} MiB are free at {nearest}, less than {atomic.LEAST_FREE / atomic.MIB:.0f}"
        raise ConfigError(f"{lack}: free some space, or {choose}")


def check_data(source: str, splits: Sequence[str] | None, role: Role) -> None:
    """Raises DataError if a data set on this machine has not the side `role`, with `splits`. The hub is not asked."""
    if find_source(source) is not None or not may_be_on_the_hub(source):
        open_source(source, splits, role)


def is_deployed() -> bool:
    """Whether a deployment started this flow run, or the one that it is a part of."""
    context = FlowRunContext.get()
    own = None if context is None else context.flow_run
    if own is not None and own.deployment_id is None and own.parent_task_run_id is None:
        return False  # Prefect's own answer would ask the server for the record that is at hand
    return bool(deployment.id)


def deployed_name() -> str | None:
    """A name from the flow run's id if a deployment started it, so that a retry finds its directory again."""
    if not is_deployed():
        return None
    run_id = str(flow_run.root_flow_run_id or flow_run.id)
    # The id of a scheduled run (version 7) begins with the time at which the scheduler made it, along with others.
    return f"run-{run_id[:8] if UUID(run_id).version == 4 else run_id[-8:]}"


@dataclass(frozen=True, slots=True)
class RecordedModel:
    """The base model of a run or a pool that a command continues."""

    owner: str  # "the run PATH", say, for messages
    model_name: str
    advice: str  # if the service lacks the model


async def with_decided_model(settings: FlowT, recorded: RecordedModel | None = None) -> FlowT:
    """Decides the base model of a flow. Returns `settings` with that model and, for display, the reason for it:

    1. the model that `settings` name, by `model_name` or by a preset,
    2. else the `recorded` model of the run or pool that the command continues,
    3. else the first default model that the service offers.

    Raises ConfigError if the service does not offer the model, InfraError if the service fails."""
    if settings.model_reason is not None:  # already decided
        return settings
    check_environment(settings.model_name)  # raises for bad environment variables, before any request is sent
    is_from_preset = settings.names_model and "model_name" not in settings.given
    reason = f"preset {settings.preset}" if is_from_preset else ""  # a model that the user named needs no reason
    if not uses_tinker_service():
        return settings.with_model(settings.model_name, reason)  # the embedded server is started for this model
    url, key = tinker_credentials()
    offered = await supported_models(url, key)
    if settings.names_model and (recorded is None or settings.model_name != recorded.model_name):
        if settings.model_name not in offered:
            raise ConfigError(f"model_name is {not_offered(settings.model_name, offered)}")
        return settings.with_model(settings.model_name, reason)
    if recorded is None:
        return settings.with_model(*choose_model(offered))  # the model, and why
    if recorded.model_name not in offered:
        model = not_offered(recorded.model_name, offered)  # "NAME, which the service does not offer"
        raise ConfigError(f"{recorded.owner} was made with {model}: {recorded.advice}")
    return settings.with_model(recorded.model_name, f"{recorded.owner} was made with it")


def choose_model(offered: Mapping[str, SupportedModel]) -> tuple[str, str]:
    """The model that a command takes which names none, and why. ConfigError if none of `BARE_MODELS` is offered."""
    usable = [name for name, model in offered.items() if model.trainable is not False and model.sampleable is not False]
    chosen = next((name for name in BARE_MODELS if name in usable), None)
    if chosen is None:
        raise ConfigError(
            f"the Tinker service offers none of the default models ({', '.join(BARE_MODELS)}): set model_name to one "
            f"that it offers: {some_of(usable)}"
        )
    if chosen == DEFAULT_MODEL:
        return chosen, "the default, which the service offers"
    why = f"the service does not offer the default, {DEFAULT_MODEL}; this is the first substitute that it offers"
    return chosen, why
