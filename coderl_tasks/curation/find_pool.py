"""Which pool is meant: a folder, a parquet file, or the newest finished one made with the same model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coderl_tasks.curation.measure import read_fingerprint
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.journal.atomic import read_json
from coderl_tasks.paths import POOLS as POOLS
from coderl_tasks.paths import find_local, same_model

LATEST = "latest"
POOL_FILE = "pool.parquet"
MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True, slots=True)
class FoundPool:
    """A pool's parquet `file`; `manifest` is empty where it has none."""

    file: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """The folder's name, or the file's where it does not lie in a pool's folder."""
        return self.file.parent.name if self.manifest else self.file.name

    def profiled_with(self) -> str | None:
        """The model whose pass rates chose the problems, as the manifest says; None if nothing says it."""
        name = self.manifest.get("model_name")
        return None if name is None else str(name)


def find_pool(pool: str, model_name: str, *, pools: Path = POOLS) -> FoundPool:
    """The pool that `pool` names: "latest", the folder of a finished pool, or a parquet file of problems.

    "latest" is the one in `pools` whose manifest was written last, of those made with `model_name` that kept anything.
    Raises ConfigError, saying what to do, if there is none.
    """
    if pool == LATEST:
        return _latest(model_name, pools)
    path = find_local(str(pools / pool)) or find_local(pool)
    if path is None:
        raise ConfigError(
            f"pool={pool}: no such file or folder. Run curate first, or name a pool's folder or parquet file."
        )
    if path.is_dir():
        if not (path / MANIFEST_FILE).is_file() or not (path / POOL_FILE).is_file():
            raise ConfigError(f"pool={pool}: {path} is not a finished pool (no {POOL_FILE} or {MANIFEST_FILE}).")
        return FoundPool(path / POOL_FILE, read_json(path / MANIFEST_FILE))
    manifest = path.with_name(MANIFEST_FILE)
    return FoundPool(path, read_json(manifest) if path.name == POOL_FILE and manifest.is_file() else {})


def _latest(model_name: str, pools: Path) -> FoundPool:
    manifests = sorted(pools.glob(f"*/{MANIFEST_FILE}"), key=lambda path: (path.stat().st_mtime_ns, path), reverse=True)
    for manifest_file in manifests:
        file = manifest_file.with_name(POOL_FILE)
        try:
            manifest = read_json(manifest_file)
        except DataError:
            continue  # a damaged pool is not a finished one; naming it says what is wrong with it
        if file.is_file() and manifest.get("kept") and same_model(str(manifest.get("model_name")), model_name):
            return FoundPool(file, manifest)
    raise ConfigError(
        f"pool=latest: no finished pool made with {model_name} in {pools}. Run curate with this model first, "
        "or name a pool's folder or parquet file."
    )


def is_finished(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Whether the curation in `folder` has come to its end with these settings (`CurateSettings.content`)."""
    try:
        return bool(read_json(folder / MANIFEST_FILE).get("settings") == settings)
    except (FileNotFoundError, DataError):
        return False


def recorded_model(folder: Path) -> str | None:
    """The model that the curation in `folder`, finished or not, profiles with; None if it has recorded no samples."""
    for shard in sorted(folder.glob("shards/*")):
        request = read_fingerprint(shard) or read_fingerprint(shard / "groups")
        if request is not None:
            return str(request["policy"])
    return None
