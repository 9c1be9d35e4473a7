"""Names that a retry of the same flow run finds again."""

from pathlib import Path
from uuid import UUID

from prefect import get_client
from prefect.runtime import deployment, flow_run

from coderl_tasks.errors import ConfigError
from coderl_tasks.journal.run_names import did_you_mean, doubt, near_runs, run_path, runs_root
from coderl_tasks.paths import POOLS
from coderl_tasks.settings import TrainSettings


def deployed_name() -> str | None:
    """A name from the flow run's id if a deployment started it, None for a bare run (which is named by the time)."""
    return f"run-{str(flow_run.root_flow_run_id or flow_run.id)[:8]}" if deployment.id else None


def pool_name(folder: Path) -> str:
    """What `name` says to name the pool in `folder`."""
    return folder.name if folder.parent == POOLS.resolve() else str(folder)


def training_path(settings: TrainSettings) -> Path | None:
    """The run directory: `log_path`, else one named by the flow run's id, else None (a new one, named by the time).

    Raises ConfigError where there is no run and `resume` says there must be, or where `log_path` may be a typo and
    `new` does not say otherwise. A deployment's run, which nobody watches, then starts a new one and says so
    (`doubt_of`).
    """
    name = deployed_name()
    if settings.log_path is not None:
        path = run_path(settings.log_path)
    elif name is not None:
        path = runs_root() / name
    elif settings.resume == "must":
        raise ConfigError("resume=must needs log_path=RUN (coderl runs lists them)")
    else:
        return None
    if settings.resume == "must" and not (path / "config.json").is_file():
        raise ConfigError(f"resume=must: there is no run in {path}{did_you_mean(near_runs(path))}")
    if name is None and (why := doubt_of(settings)) is not None:
        raise ConfigError(f"log_path={settings.log_path}: {why}{'' if why.endswith('?') else ';'} new=true starts one")
    return path


def doubt_of(settings: TrainSettings) -> str | None:
    """Why the new run that `log_path` would start may not be meant; None where there is a run or a folder."""
    if settings.log_path is None or settings.new or (path := run_path(settings.log_path)).exists():
        return None
    return doubt(path)


async def name_flow_run(name: str, *, root: bool = False) -> None:
    """Give this flow run, and with `root` the one that it is a part of, the name of its directory in the Prefect UI."""
    runs = {flow_run.id, flow_run.root_flow_run_id if root else None} - {None}
    async with get_client() as client:
        for run in runs:
            await client.update_flow_run(UUID(run), name=name)
