"""`coderl clean` shows what nothing needs any more, asks, and removes it.

| what                                                           | removed          |
|----------------------------------------------------------------|------------------|
| attempts at a run that recorded neither sample nor step        | always           |
| curations and evaluations that recorded nothing                | always           |
| expired checkpoints of the embedded Tinker server              | always           |
| its checkpoints, a day old, that no run names                  | with `--weights` |
| what a finished curation recorded on the way                   | with `--parts`   |
| model folders made of GGUF files, which are made again on use  | with `--models`  |

An unfinished run needs the states that its commits name; a finished one only those in its checkpoints.jsonl, to add
steps. Weights need `--weights`, because runs outside the default root are unknown here and theirs look unneeded.
"""

import os
import re
import shutil
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.gguf_models import models_folder, remove
from coderl_tasks.insight.record import run_state, tree_bytes
from coderl_tasks.journal.directory_lock import RUN_LOCK, DirectoryBusyError, DirectoryLock, held_by
from coderl_tasks.journal.recorded_json import CONFIG_FILE, LOCK_FILE, is_untouched, recorded_config
from coderl_tasks.journal.run_directory import is_unstarted
from coderl_tasks.journal.run_names import runs_root
from coderl_tasks.paths import POOLS, tinker_store
from coderl_tasks.services import load_environment
from local_servers.interface import checkpoints, remove_checkpoint

if TYPE_CHECKING:
    from local_servers.interface import CheckpointRecord

UNRECORDED_S = 24 * 3600.0
"""A checkpoint is saved before its run records it; a younger one may still come to be named."""
_TINKER_PATH = re.compile(r'tinker://[^"\s]+')


@dataclass(frozen=True, slots=True)
class Removal:
    """Something that nothing needs. `remove` returns False where another process has locked them meanwhile."""

    what: str
    size: int
    remove: Callable[[], bool]


def clean(options: Namespace) -> int:
    """Lists what can be removed and its size, and removes it if the user agrees or with `--yes`. Hints say what
    `--weights`, `--parts` and `--models` would add. ConfigError if a `--runs` folder is missing."""
    load_environment()  # which may set CODERL_HOME
    root, store = runs_root(), tinker_store()
    if missing := [str(folder) for folder in options.runs if not folder.is_dir()]:
        raise ConfigError(f"--runs: there is no directory {', '.join(missing)}")
    removals = [*never_started(root, POOLS), *expired_checkpoints(store)]
    listed = " and ".join(map(str, [root, *options.runs]))
    unnamed = "{n} checkpoints ({size}) that no run in {listed} names; --runs FOLDER counts runs that lie elsewhere"
    # With what a conversion that was killed left.
    models = [
        Removal(f"model made of a GGUF file: {folder}", tree_bytes(folder), partial(remove, folder))
        for folder in _folders(models_folder())
    ]
    hints = []
    for flag, found, adds in (
        ("weights", unnamed_checkpoints(store, [root, *options.runs]), unnamed),
        ("parts", pool_parts(POOLS), "what {n} finished pools recorded on the way ({size})"),
        ("models", models, "{n} model folders that were made of GGUF files ({size})"),
    ):
        if getattr(options, flag):
            removals += found
        elif found:
            hints.append(f"--{flag} adds {adds.format(n=len(found), size=megabytes(found), listed=listed)}")
    for removal in removals:
        print(f"{megabytes([removal]):>10}  {removal.what}")
    for hint in hints:
        print(hint)
    if not removals or options.dry_run:
        print(f"would remove {megabytes(removals)}" if removals else "nothing to remove")
        return 0
    try:
        asked = "y" if options.yes else input(f"remove {len(removals)} of them, {megabytes(removals)}? [y/N] ")
    except EOFError:
        raise ConfigError("nothing was removed: there is nobody to ask; --yes removes it") from None
    if asked.strip().lower() not in ("y", "yes"):
        print("nothing was removed")
        return 0
    removed = [removal for removal in removals if removal.remove()]
    in_use = len(removals) - len(removed)  # another process has locked them meanwhile
    print(f"removed {megabytes(removed)}{f'; {in_use} came into use and stayed' if in_use else ''}")
    return 0


def megabytes(removals: Sequence[Removal]) -> str:
    return f"{sum(removal.size for removal in removals) / 1e6:,.1f} MB"


def never_started(root: Path, pools: Path) -> list[Removal]:
    """What recorded nothing and is at rest: runs in `root`, curations in `pools`, evaluations in `root` and runs."""
    evaluations = sorted([*root.glob("evals/*/"), *root.glob("*/evals/*/")])
    found = []
    for kind, folders, lock, recorded_nothing in (
        ("run", _folders(root), RUN_LOCK, is_unstarted),
        ("pool", _folders(pools), LOCK_FILE, is_untouched),
        ("evaluation", evaluations, LOCK_FILE, is_untouched),
    ):
        for folder in folders:
            if held_by(folder, lock) is None and recorded_nothing(folder):
                remove = partial(_remove_folders, folder, [folder], lock)
                found.append(Removal(f"{kind} that never started: {folder}", tree_bytes(folder), remove))
    return found


def pool_parts(pools: Path) -> list[Removal]:
    """What the finished curations in `pools` recorded on the way: another band or mix under the name would read it."""
    found = []
    for folder in _folders(pools):
        names = ("screening", "solutions", "audit", "shards", "strengthened")
        parts = [part for name in names if (part := folder / name).is_dir() and not part.is_symlink()]
        shards = (lock.parent for part in parts for lock in part.rglob(RUN_LOCK))
        held = held_by(folder, LOCK_FILE) is not None or any(held_by(shard) for shard in shards)
        if parts and (folder / "manifest.json").is_file() and not held:
            remove = partial(_remove_folders, folder, parts, LOCK_FILE)
            what = f"{', '.join(part.name for part in parts)} of the pool {folder}"
            found.append(Removal(what, sum(map(tree_bytes, parts)), remove))
    return found


def expired_checkpoints(tinker: Path) -> list[Removal]:
    return [_checkpoint(tinker, record, "expired") for record in checkpoints(tinker) if record.expired()]


def unnamed_checkpoints(tinker: Path, roots: Sequence[Path]) -> list[Removal]:
    old = [r for r in checkpoints(tinker) if not r.expired() and time.time() - r.created_at > UNRECORDED_S]
    named = {path for root in roots for path in _named_in(root)} if old else set()
    return [_checkpoint(tinker, record, "named by no run") for record in old if record.path not in named]


def _named_in(root: Path) -> Iterable[str]:
    for folder in [root] if (root / CONFIG_FILE).is_file() else _folders(root):  # --runs may name a run itself
        try:
            config = recorded_config(folder)
            finished = config is not None and run_state(folder, config) == "finished"
        except DataError:
            finished = False  # whoever mends it needs all that it names
        for place, _, names in os.walk(folder, followlinks=True):  # steps may lie on another disk
            for name in names:
                if name.endswith((".json", ".jsonl")) and not (finished and name == "commit.json"):
                    yield from _TINKER_PATH.findall(Path(place, name).read_text(errors="replace"))


def _checkpoint(tinker: Path, record: "CheckpointRecord", why: str) -> Removal:
    def remove() -> bool:
        remove_checkpoint(tinker, record)
        return True

    return Removal(f"checkpoint {why}: {record.path}", record.size, remove)


def _remove_folders(locked: Path, folders: Sequence[Path], lock_file: str) -> bool:
    """Remove `folders` while this process holds `locked`; False if another one does."""
    try:
        with DirectoryLock(locked, lock_file):
            for folder in folders:
                shutil.rmtree(folder)
    except DirectoryBusyError:
        return False
    return True


def _folders(root: Path) -> list[Path]:
    return sorted(child for child in root.iterdir() if child.is_dir()) if root.is_dir() else []
