"""Which pool is meant: a folder, a parquet file, or the newest finished one of the same model that is large enough; and
the one that `train` makes where there is none: all problems of a data set, without a profile."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.curation.from_run import recorded_policy
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.journal.atomic import read_parquet, scan_parquet
from coderl_tasks.journal.recorded_json import Manifest, read_shaped
from coderl_tasks.journal.run_names import LATEST, did_you_mean, near_names
from coderl_tasks.paths import MANIFEST_FILE, POOL_FILE, POOLS, find_local, same_model
from coderl_tasks.problems.loading import SIDES, evaluation_side, load_problems, same_side, same_source
from coderl_tasks.problems.problem import Problem
from coderl_tasks.problems.profile_columns import SOLUTION_SCHEMA
from coderl_tasks.problems.sources import files_read
from coderl_tasks.rollouts.rounds import read_fingerprint
from coderl_tasks.settings import CurateSettings, FlowSettings, TrainSettings, about
from coderl_tasks.settings.curate_settings import NO_PROFILE
from coderl_tasks.settings.setting import PROGRAMS

OF_DATASET = "dataset-"
"""Begins the names of the pools that `train` makes: found by what they are made of, not as the latest."""


@dataclass(frozen=True, slots=True)
class FoundPool:
    """A pool's parquet `file`; `manifest` is empty where it has none. `larger` is, where "latest" was asked for, the
    largest pool made with the same model, if that is another one."""

    file: Path
    manifest: dict[str, Any]
    larger: "FoundPool | None" = None

    @property
    def name(self) -> str:
        """The folder's name, or the file's where it does not lie in a pool's folder."""
        return self.file.parent.name if self.manifest else self.file.name

    @property
    def kept(self) -> int | None:
        """How many problems it has, as the manifest says; None if nothing says it."""
        return self.manifest.get("kept")

    @property
    def written(self) -> float:
        """When it was finished, in seconds since the epoch."""
        return (self.file.with_name(MANIFEST_FILE) if self.manifest else self.file).stat().st_mtime

    @property
    def environment(self) -> str | None:
        """What the pool is of, as the manifest says; None if nothing says it."""
        settings = self.manifest.get("settings")
        # A curation that names none is from before there were others.
        return None if settings is None else str(settings.get("environment", "code"))

    @property
    def of_run(self) -> str | None:
        """The run and step whose policy's pass rates chose the problems, in words; None for a base model's."""
        policy = self.manifest.get("policy", {})
        return f"{policy['run']} after step {policy['step']}" if "run" in policy else None

    @property
    def made_with(self) -> CurateSettings | None:
        """The settings that it was made with, as the manifest says; None if nothing says it."""
        settings = self.manifest.get("settings")
        return None if settings is None else CurateSettings().filled_from(settings)

    @property
    def is_profiled(self) -> bool:
        """Whether its problems have pass rates, unless the manifest says that they have none."""
        return self.manifest.get("band_low", 0.0) is not None

    def profiled_with(self) -> str | None:
        """The model whose pass rates chose the problems, as the manifest says; None if nothing says it."""
        name = self.manifest.get("model_name")
        return str(name) if name is not None and self.is_profiled else None


def find_pool(pool: str, *, pools: Path = POOLS) -> FoundPool:
    """The pool that `pool` names: the folder of a finished pool, or a parquet file of problems. Raises ConfigError,
    saying what to do, if there is none."""
    path = find_local(str(pools / pool)) or find_local(pool)
    if path is None:
        raise ConfigError(
            f"pool={pool}: no such pool, file or folder{did_you_mean(near_names(pool, pools))} (coderl pools lists the "
            "pools there are, coderl curate makes one)"
        )
    if path.is_dir():
        if not (path / MANIFEST_FILE).is_file() or not (path / POOL_FILE).is_file():
            raise ConfigError(f"pool={pool}: {path} is not a finished pool (no {POOL_FILE} or {MANIFEST_FILE}).")
        return FoundPool(path / POOL_FILE, read_shaped(path / MANIFEST_FILE, Manifest))
    manifest = path.with_name(MANIFEST_FILE)
    return FoundPool(path, read_shaped(manifest, Manifest) if path.name == POOL_FILE and manifest.is_file() else {})


@dataclass(frozen=True, slots=True)
class NamedProblems:
    """The problems of a pool, or of data: `folder` is the pool's, None for other data; `checks` (rows of
    SOLUTION_SCHEMA) is what the curation found out about their solutions; `unusable` says which rows give none."""

    name: str
    problems: list[Problem]
    folder: Path | None = None
    checks: Sequence[dict[str, Any]] = ()
    unusable: str = ""


def named_problems(name: str, limit: int = -1) -> NamedProblems:
    """The problems, solutions included, of the pool that `name` names or of a data file or folder here, of at most
    `limit` rows (-1: all), and what a pool's curation recorded of these solutions. Raises ConfigError, with the near
    names, if there is neither, or no problem with tests to run, and DataError for data that cannot be read."""
    path = find_local(str(POOLS / name)) or find_local(name)
    is_pool = path is not None and (
        path.name == POOL_FILE
        or path.parent == POOLS.resolve()
        or any((path / file).is_file() for file in (POOL_FILE, MANIFEST_FILE))
    )
    if path is not None and not is_pool:
        loaded = load_problems(str(path), role="train", limit=limit)
        found = NamedProblems(path.stem, loaded.problems, unusable=loaded.unusable)
    else:
        pool = find_pool(name)  # raises ConfigError for an unfinished pool and for a name of nothing
        loaded = load_problems(str(pool.file), role="train", limit=limit)
        folder = pool.file.parent if pool.manifest else None
        solutions = pool.file.with_name("solutions.parquet")
        has_checks = folder is not None and solutions.is_file()
        checks = read_parquet(solutions, SOLUTION_SCHEMA).to_dicts() if has_checks else []
        found = NamedProblems(Path(pool.name).stem, loaded.problems, folder, checks, loaded.unusable)
    if not found.problems:
        raise ConfigError(f"{name} has no problem with tests to run{f': {found.unusable}' if found.unusable else ''}")
    return found


def wanted_pool(settings: TrainSettings, at_least: int, pools: Path = POOLS) -> FoundPool | CurateSettings:
    """The pool to train a run on; if there is none, the curation that `train` runs first, of all problems of `dataset`.
    "latest" is the newest pool in `pools` (by manifest) for the model and environment with `at_least` problems, since
    nobody means a small experiment without naming it, nor a pool for another run's policy. If `dataset` is given
    without `pool`, it is of that data set. Raises ConfigError if a named pool is missing, or all are too small."""
    if settings.pool != LATEST:
        return find_pool(settings.pool, pools=pools)
    found = _finished_pools(settings.model_name, pools, settings.environment)
    if "dataset" in settings.given and "pool" not in settings.given:
        found = [pool for pool in found if (pool.kept or 0) >= at_least and _is_of_dataset(pool, settings)]
    if found:
        return _newest(found, settings.model_name, pools, at_least)
    made = dataset_pool(settings, pools)
    return find_pool(str(made.name)) if finished_with(Path(str(made.name))) == made.content() else made


def dataset_pool(settings: TrainSettings, pools: Path = POOLS) -> CurateSettings:
    """The curation that keeps all problems of the data set, without a profile. A hash of all that decides its content
    names the folder: a restart resumes it, and runs on the same data share it. DataError if there is no data set."""
    decides = {key for key, field in FlowSettings.model_fields.items() if about(field).inherited}
    decides = {*decides, *SIDES} - {"max_tokens", "stop_after_code", "reward_timeout"}  # nothing is sampled or run
    values = {key: getattr(settings, key) for key in decides}
    made = CurateSettings.model_validate({**values, "profile_mode": NO_PROFILE})
    side = evaluation_side(settings)
    read = [files_read(settings.dataset, "train"), files_read(side.source, side.role)]
    number = sha256(json.dumps([made.content(), read], sort_keys=True).encode()).hexdigest()[:12]
    stem = re.sub(r"[^\w-]+", "-", Path(settings.dataset).name.partition(".")[0])
    made = made.with_model(settings.model_name, settings.model_reason or "")
    return made.with_changes(name=str((pools / f"{OF_DATASET}{stem}-{number}").resolve()))


def _is_of_dataset(pool: FoundPool, settings: TrainSettings) -> bool:
    if (made := pool.made_with) is None or not same_source(made.dataset, settings.dataset):
        return False
    return same_side(evaluation_side(made), evaluation_side(settings))


def _finished_pools(model_name: str, pools: Path, environment: str) -> list[FoundPool]:
    """The pools in `pools` that were curated with `model_name` for `environment`, and are not empty."""
    # By the manifest, which is written last: a folder without one is a curation that has not ended.
    found = [FoundPool(file.with_name(POOL_FILE), _readable(file)) for file in pools.glob(f"*/{MANIFEST_FILE}")]
    return [
        pool
        for pool in found
        if pool.file.is_file()
        and pool.kept
        and same_model(str(pool.manifest.get("model_name")), model_name)
        and pool.environment in (environment, None)
        and pool.of_run is None
        and not pool.name.startswith(OF_DATASET)
    ]


def _newest(found: list[FoundPool], model_name: str, pools: Path, at_least: int) -> FoundPool:
    largest = max(found, key=lambda pool: (pool.kept or 0, pool.written))
    enough = [pool for pool in found if (pool.kept or 0) >= at_least]
    if not enough:
        raise ConfigError(
            f"pool=latest: the run needs {at_least} problems, and the largest pool made with {model_name} in {pools}, "
            f"{largest.name}, has {largest.kept}: curate more, lower problems_per_step (or eval.validation_size), "
            f"or name the pool (pool={largest.name}), whose problems then repeat within a step"
        )
    newest = max(enough, key=lambda pool: (pool.written, pool.file))
    return newest if (newest.kept or 0) == largest.kept else replace(newest, larger=largest)


def require_environment(pool: FoundPool, environment: str) -> None:
    """Raise ConfigError if the pool was made for another environment, as its manifest says or its problems show."""
    made_for = pool.environment
    if made_for is None:
        kinds = set(scan_parquet(pool.file).select(pl.col("kind").unique()).collect()["kind"])
        made_for = environment if ("answer" in kinds) == (environment not in PROGRAMS) else "another kind"
    if made_for != environment and not {made_for, environment} <= {*PROGRAMS}:
        raise ConfigError(
            f"pool={pool.file} is of environment={made_for}, not environment={environment}: name that environment, or "
            "another pool (coderl pools lists them)"
        )


def _readable(manifest_file: Path) -> dict[str, Any]:
    """A manifest, empty if it is missing or damaged: no finished pool then; naming that pool says what is wrong."""
    try:
        return read_shaped(manifest_file, Manifest)
    except (FileNotFoundError, DataError):
        return {}


def finished_with(folder: Path) -> dict[str, Any] | None:
    """The settings (`CurateSettings.content`) with which the curation in `folder` ended last; None if it never did."""
    return _readable(folder / MANIFEST_FILE).get("settings")


def recorded_model(folder: Path) -> str | None:
    """The base model that the curation in `folder`, finished or not, profiles; None if it has recorded no samples."""
    if (policy := recorded_policy(folder)) is not None:
        return policy.model_name
    for shard in sorted(folder.glob("shards/*")):
        request = read_fingerprint(shard) or read_fingerprint(shard / "groups")
        if request is not None:
            return str(request["policy"])
    return None
