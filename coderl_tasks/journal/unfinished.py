"""The folder of work that is not a run (a curation, an evaluation), from its start on.

    settings.json    what decides the outcome, written before anything else
    work.lock        held by the one process that works there

So the same command finds what an earlier start of it left, and continues there instead of paying for it again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coderl_tasks.journal.atomic import DamagedFileError, DirectoryLock, held_by, make_folder, read_json, write_json

SETTINGS_FILE = "settings.json"
LOCK_FILE = "work.lock"


@contextmanager
def working_in(folder: Path, settings: Mapping[str, Any], *, instead: str) -> Iterator[None]:
    """Hold `folder`, which is created if it is missing, with `settings` recorded in it. Raises DirectoryBusyError if
    another process works there; `instead` says in words what to do then, besides waiting."""
    lock = DirectoryLock(make_folder(folder, private=True), LOCK_FILE, instead)
    try:
        # Only once the folder is held: who is refused must not put its settings into another's work.
        if recorded_settings(folder) != settings:
            write_json(folder / SETTINGS_FILE, dict(settings))
        yield
    finally:
        lock.release()


def recorded_settings(folder: Path) -> dict[str, Any] | None:
    """The settings that the work in `folder` was last started with; None if none are recorded."""
    try:
        return read_json(folder / SETTINGS_FILE)
    # A folder below a file: nothing is recorded there, and whoever is to work in it says what is wrong.
    except (FileNotFoundError, NotADirectoryError, DamagedFileError):
        return None


def is_untouched(folder: Path) -> bool:
    """Whether the work in `folder` was begun and recorded nothing: a service was missing, say."""
    names = {child.name for child in folder.iterdir()}
    return SETTINGS_FILE in names and names <= {SETTINGS_FILE, LOCK_FILE}


def find_unfinished(
    folders: Iterable[Path], settings: Mapping[str, Any], is_finished: Callable[[Path], bool]
) -> Path | None:
    """The folder of the newest work that was started with `settings`, is not finished, and not under way now."""
    started = [(file.stat().st_mtime_ns, folder) for folder in folders if (file := folder / SETTINGS_FILE).is_file()]
    for _, folder in sorted(started, reverse=True):
        is_same = recorded_settings(folder) == settings
        # Asked last, and without taking the lock: the process that works there must not find it taken.
        if is_same and not is_finished(folder) and held_by(folder, LOCK_FILE) is None:
            return folder
    return None
