"""What a flow is going to do, settled before anything is started or written: its settings, base model and inputs.

The command plans before it starts a Prefect server, so that what is wrong is said at once. The flow plans too, since a
deployment starts it without the command; what the command has decided stays.
"""

from datetime import datetime
from pathlib import Path

from coderl_tasks.base_model import MadeWith, with_decided_model
from coderl_tasks.curation.find_pool import POOLS, FoundPool, recorded_model
from coderl_tasks.errors import ConfigError
from coderl_tasks.evaluation.policy import FoundPolicy, find_policy
from coderl_tasks.services import for_this_machine
from coderl_tasks.settings import CurateSettings, EvaluateSettings, FlowSettings, PipelineSettings, TrainSettings
from coderl_tasks.training.run import planned, run_record
from flows.naming import deployed_name, training_path

INHERITED = ("model_name", "renderer_name", "thinking", "dataset", "max_tokens", "reward_timeout")
"""Settings that an evaluation of a run takes from the run where they are not given."""


async def plan(settings: FlowSettings | PipelineSettings) -> FlowSettings | PipelineSettings:
    """The settings to start a flow with, its base model decided.

    Raises ConfigError or DataError for what can be seen to be wrong, InfraError if the Tinker service does not answer.
    """
    if isinstance(settings, TrainSettings):
        return (await plan_training(settings))[0]
    if isinstance(settings, CurateSettings):
        return (await plan_curation(settings))[0]
    if isinstance(settings, EvaluateSettings):
        return (await plan_evaluation(settings))[0]
    assert isinstance(settings, PipelineSettings)
    return await plan_pipeline(settings)


async def plan_curation(settings: CurateSettings) -> tuple[CurateSettings, Path]:
    """The settings, and the pool's folder, which may be there from an earlier start."""
    folder = _pool_folder(settings)
    return await with_decided_model(for_this_machine(settings), _pool_record(folder)), folder


def _pool_folder(settings: CurateSettings) -> Path:
    return (POOLS / (settings.name or deployed_name() or f"{datetime.now():%Y_%m_%d-%H_%M_%S}")).resolve()


def _pool_record(folder: Path) -> MadeWith | None:
    model_name = recorded_model(folder)
    if model_name is None:
        return None
    return MadeWith(f"the pool {folder}", model_name, "make another one (name=...) with one that it offers")


async def plan_training(settings: TrainSettings) -> tuple[TrainSettings, FoundPool, Path | None]:
    """The complete settings, the pool, and the run directory (None: a new one, named by the time)."""
    path = training_path(settings)
    return *(await planned(settings, path)), path


async def plan_evaluation(settings: EvaluateSettings) -> tuple[EvaluateSettings, FoundPolicy]:
    """The settings, completed by those of the policy's run where it has one, and the policy."""
    wanted_model = settings.model_name if "model_name" in settings.given or settings.preset else None
    policy = find_policy(settings.checkpoint, wanted_model)
    if policy.sampler_path is not None and policy.run is None and wanted_model is None:
        raise ConfigError(f"checkpoint={settings.checkpoint}: say which model it is of, with model_name or preset")
    inherited = {key: policy.config[key] for key in INHERITED if key in policy.config}
    if "model_name" not in inherited:
        return await with_decided_model(for_this_machine(settings)), policy
    settings = settings.filled_from(inherited)
    if policy.run is None:  # the checkpoint is a base model, which is thereby named
        return await with_decided_model(settings.with_changes(model_name=settings.model_name)), policy
    run = MadeWith(f"the run {policy.run}", inherited["model_name"], "evaluate it on a service that offers it")
    return await with_decided_model(settings, run), policy


async def plan_pipeline(settings: PipelineSettings) -> PipelineSettings:
    """The settings with one base model for all three parts: the one that any of them names, else one decided for all.

    Raises ConfigError too if they name different ones.
    """
    parts = {"curate": settings.curate, "train": settings.train, "evaluate": settings.evaluate}
    named = {f"{key}.model_name": part.model_name for key, part in parts.items() if "model_name" in part.given}
    if len(set(named.values())) > 1:
        listed = ", ".join(f"{key}={name}" for key, name in named.items())
        raise ConfigError(f"a pipeline takes one base model, not several ({listed})")
    if named:
        model_name = next(iter(named.values()))
        parts = {key: part.with_changes(model_name=model_name) for key, part in parts.items()}
    parts = {key: for_this_machine(part) for key, part in parts.items()}
    record = run_record(training_path(settings.train)) or _pool_record(_pool_folder(settings.curate))
    leading = await with_decided_model(parts["train"], record)
    return settings.model_copy(
        update={key: part.with_model(leading.model_name, leading.model_reason or "") for key, part in parts.items()}
    )
