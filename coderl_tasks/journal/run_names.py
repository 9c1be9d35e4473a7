"""How the name of a run or a pool is resolved, and whether an unknown one may be a typo.

A name without a slash lies below the default root, a pool's below data/pools; what has a slash is a path. A run, or a
curation, of that name in the working directory is found too (see `record_path`).
"""

import difflib
import re
from pathlib import Path

from coderl_tasks.errors import ConfigError
from coderl_tasks.journal.run_directory import DEFAULT_ROOT, is_given_name
from coderl_tasks.paths import POOLS

LATEST = "latest"  # names the newest run, or pool, wherever one is asked for


def runs_root() -> Path:
    return Path(DEFAULT_ROOT).expanduser()


def is_name(given: str) -> bool:
    """Whether `given` is a name, to be looked for, and not a path."""
    return "/" not in given and not given.startswith(("~", "."))


def run_path(given: str) -> Path:
    """The directory of the run that `given` names, whether it is there or not."""
    here, named = Path(given).expanduser(), runs_root() / given
    return here if not is_name(given) or (_is_run_or_curation(here) and not _is_run_or_curation(named)) else named


def record_path(given: str, *, pools_first: bool = False) -> Path:
    """The existing directory that `given` means. A path is itself. A name is a run's, else a pool's (with `pools_first`
    the other way round), else that of a folder here; "latest" is the run that was written to last; a file of a run or a
    pool means its folder. A prefix `log_path=` is ignored. Raises ConfigError, with near names, if there is none."""
    given = given.removeprefix("log_path=").removeprefix("--log_path=")
    path = Path(given).expanduser()
    run_and_pool = (POOLS / given, run_path(given)) if pools_first else (run_path(given), POOLS / given)
    places = (*run_and_pool, path) if is_name(given) else (path,)
    directory = next((place for place in places if place.is_dir()), None)
    if directory is None and given == LATEST:  # a folder of that name comes first
        root = runs_root()
        runs = [child for child in root.iterdir() if (child / "config.json").is_file()] if root.is_dir() else []
        if not runs:
            raise ConfigError(f"there is no run in {root} yet: coderl train starts one")
        # The newest time of its folder and its logs: appending to a log leaves the folder's time. Equal times: by name.
        directory = max(
            runs, key=lambda run: (max(path.stat().st_mtime_ns for path in (run, *run.glob("*.jsonl"))), run.name)
        )
    if directory is None and path.is_file() and _is_run_or_curation(path.parent):
        directory = path.parent
    if directory is None:
        lacking = f"there is no run and no pool called {given}" if is_name(given) else f"there is no directory {path}"
        near = [*near_runs(path), *(near_names(given, POOLS) if is_name(given) else ())]
        raise ConfigError(f"{lacking}{did_you_mean(near)} (coderl runs and coderl pools list them)")
    return directory


def doubt(path: Path) -> str | None:
    """Why a new run at `path`, where nothing is yet, may be meant for another one; None where nothing speaks for that.
    Nobody makes up a name of the form that runs get by themselves. Any other name is in doubt if it is spelt like that
    of a run beside it, unless it continues a series (exp1, exp2, exp2-long)."""
    near = near_runs(path)
    if is_given_name(path.name):
        return f"there is no run in {path}{did_you_mean(near)}"
    near = [name for name in near if not _is_series(path.name, Path(name).name)]
    return f"there is no run in {path}{did_you_mean(near)}" if near else None


def near_runs(path: Path) -> list[str]:
    """The runs that `path` may be meant for: beside it, or below the default root, as they are to be given."""
    root = runs_root()
    # Named once: below the default root both searches would find the same runs.
    places = [] if path.parent.resolve() == root.resolve() else [path.parent]
    beside = [str(place / name) for place in places for name in near_names(path.name, place)]
    return [*beside, *near_names(path.name, root)][:3]


def near_names(name: str, folder: Path) -> list[str]:
    """The names spelt like `name`, or the same, of runs and curations in `folder`, the likeliest first."""
    if not folder.is_dir():
        return []
    known = {child.name.lower(): child.name for child in sorted(folder.iterdir()) if _is_run_or_curation(child)}
    # Of a short name one letter is a larger part.
    cutoff = min(0.8, 1 - 1 / max(3, len(name)))
    return [known[near] for near in difflib.get_close_matches(name.lower(), known, n=3, cutoff=cutoff)]


def did_you_mean(near: list[str]) -> str:
    """The question that an error asks; empty without anything near."""
    return f": did you mean {' or '.join(near)}?" if near else ""


def _is_run_or_curation(path: Path) -> bool:
    """Whether a run or a curation lies there: a folder of another kind has neither mark."""
    return any((path / mark).exists() for mark in ("run.lock", "metrics.jsonl", "steps", "manifest.json", "shards"))


def _is_series(name: str, other: str) -> bool:
    """Whether two names differ in their numbers alone, or one adds a word to the other."""
    short, long = sorted((name.lower().rstrip("-_."), other.lower().rstrip("-_.")), key=len)
    numberless = [re.sub(r"[-_.]?v?\d+", "", text) for text in (short, long)]
    return short != long and (numberless[0] == numberless[1] or long.startswith(tuple(short + mark for mark in "-_.")))
