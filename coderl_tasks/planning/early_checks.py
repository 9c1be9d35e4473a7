"""What can be seen to be wrong with a place or a data set before anything is started or written, and whether a
deployment started this flow run."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from prefect.context import FlowRunContext
from prefect.runtime import deployment, flow_run

from coderl_tasks import disk
from coderl_tasks.disk import MIB
from coderl_tasks.errors import ConfigError
from coderl_tasks.journal.run_config import CONFIG_FILE
from coderl_tasks.journal.unfinished import SETTINGS_FILE
from coderl_tasks.paths import shown
from coderl_tasks.problems.sources import Role, find_source, may_be_on_the_hub, open_source


def check_place(folder: Path, setting: str) -> None:
    """Raise ConfigError, naming `setting`, if `folder` is a file, has a name that is no text, is or would be in a place
    that cannot be written to, or on a disk with less than `disk.LEAST_FREE` bytes left; for this InfraError where a run
    or a curation was begun there."""
    folder = folder.expanduser().resolve()
    if shown(folder) != str(folder):
        raise ConfigError(
            f"{setting}={shown(folder)} is not UTF-8, which Prefect and reports need: choose another {setting}"
        )
    # The nearest folder that is there: nothing is created by a look.
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"{setting}={folder}: {there} is a file: choose another {setting}")
    try:
        # By trying: permission bits say nothing of a read-only file system, and nothing at all to root.
        with tempfile.TemporaryFile(dir=there):
            free = disk.free_bytes(there)
    except OSError as error:
        raise ConfigError(f"{there} cannot be written to ({error.strerror}): choose another {setting}") from error
    if free < disk.LEAST_FREE:
        if any((folder / name).is_file() for name in (CONFIG_FILE, SETTINGS_FILE)):
            disk.require_room([folder])  # what is begun there can wait for room
        raise ConfigError(
            f"{free / MIB:.0f} MiB are free at {there}, less than {disk.LEAST_FREE / MIB:.0f}: free some space, or "
            f"choose another {setting}"
        )


def check_data(source: str, splits: Sequence[str] | None, role: Role) -> None:
    """Raise DataError if a data set on this machine has not the side `role`, with `splits`. The hub is not asked here:
    its files are read, as all are, before anything is sampled."""
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
    """A name from the flow run's id if a deployment started it, None for a bare run (which is named by the time).

    A retry of the same flow run has the same id, and so finds its directory again.
    """
    return f"run-{str(flow_run.root_flow_run_id or flow_run.id)[:8]}" if is_deployed() else None
