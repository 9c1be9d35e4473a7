"""The runs and pools that the viewer shows, by the names that addresses have, and what tells that one has changed.

Of two directories with one name the second is called NAME~2. Nothing is written, and no lock is taken: a run may be at
work, or lie on another machine's disk.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from coderl_tasks.errors import CoderlError
from coderl_tasks.insight.query import find_directories
from coderl_tasks.insight.record import is_curation, is_run
from coderl_tasks.journal.directory_lock import held_by
from coderl_tasks.journal.run_names import runs_root
from coderl_tasks.paths import POOL_FILE, POOLS, shown

WATCHED = ("config.json", "metrics.jsonl", "checkpoints.jsonl", "evals")
"""What of a run changes when something is added to it: files by their content, folders by their entries."""


class NotThereError(CoderlError):
    """An address that leads to nothing: no such run, step, completion."""


class WrongValueError(CoderlError):
    """An address with a value that its page does not take."""


class Library:
    """What is shown: the directories `records` (runs, curations, or folders of them), or if none are given all runs
    below the default root and all pools, and the pools that shown runs were trained on."""

    def __init__(self, records: Sequence[Path] = ()) -> None:
        self._records = [path for record in records for path in find_directories(record.resolve())]
        self._pools_of_runs: dict[Path, None] = {}  # in order, each once

    @property
    def is_whole(self) -> bool:
        """Whether all runs and pools are shown, those to come too."""
        return not self._records

    def runs(self) -> dict[str, Path]:
        """The runs by name, those written to last first."""
        return _named(sorted(filter(is_run, self._all(runs_root())), key=_last_written, reverse=True))

    def pools(self) -> dict[str, Path]:
        """The pools by name, those written to last first."""
        pools = sorted(filter(is_curation, self._all(POOLS)), key=_last_written, reverse=True)
        return _named(dict.fromkeys([*pools, *filter(is_curation, self._pools_of_runs)]))

    def run(self, name: str) -> Path:
        if (path := self.runs().get(name)) is None:
            raise NotThereError(f"no run is called {name}")
        return path

    def pool(self, name: str) -> Path:
        if (path := self.pools().get(name)) is None:
            raise NotThereError(f"no pool is called {name}")
        return path

    def names_of_pools(self, files: Iterable[Path]) -> dict[Path, str]:
        """The names of the pools with these files, without files of no pool. All of them are shown from now on."""
        folders = {file: file.parent for file in files if file.name == POOL_FILE and is_curation(file.parent)}
        self._pools_of_runs = self._pools_of_runs | dict.fromkeys(folders.values())
        names = {path: name for name, path in self.pools().items()}
        return {file: names[folder] for file, folder in folders.items() if folder in names}  # not removed meanwhile

    def _all(self, usual: Path) -> Iterator[Path]:
        if self._records:
            return iter(self._records)
        return (child for child in usual.iterdir() if child.is_dir()) if usual.is_dir() else iter(())


def state_of(run: Path, *, commits: bool = False) -> str:
    """A short text that changes with the run: after a commit, an evaluation, a checkpoint, its start and end, and
    unless `commits` alone count with each phase of a step. It costs a few look-ups, however long the run is."""
    facts: list[Any] = [held_by(run) is not None]
    for name in WATCHED:
        try:
            about = (run / name).stat()
            facts += [about.st_mtime_ns, about.st_size]
        except OSError:
            facts.append(None)
    # A step's folder is made before its first group arrives; what is added to it later changes the folder itself.
    evals = (run / "evals").glob("*")
    step = None if commits else last_entry(run / "steps")
    for folder in filter(None, (step, *evals)):
        with suppress(OSError):  # removed meanwhile, of which the next look knows
            facts.append((folder.name, folder.stat().st_mtime_ns))
    return hashlib.blake2b(repr(facts).encode(), digest_size=8).hexdigest()


def last_entry(folder: Path) -> Path | None:
    """The entry of `folder` with the last name, which of a run's steps is the newest one."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names alone: this is asked once per second, of thousands of steps
    except OSError:
        return None
    return folder / max(names) if names else None


def address(*parts: object, **values: Any) -> str:
    """The path of a page with the values that are neither None nor empty. Ids of problems are values: browsers take
    `..` and `//` in a path for something else."""
    path = "/" + "/".join(quote(str(part), safe="~") for part in parts)
    given = {name: value for name, value in values.items() if value not in (None, "")}
    return path + ("?" + urlencode(given, doseq=True, quote_via=quote) if given else "")


def _named(paths: Iterable[Path]) -> dict[str, Path]:
    named: dict[str, Path] = {}
    for path in paths:
        name, number = shown(path.name), 2
        while name in named:
            name, number = f"{shown(path.name)}~{number}", number + 1
        named[name] = path
    return named


def _last_written(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder, *(folder / name for name in WATCHED)) if path.exists())
