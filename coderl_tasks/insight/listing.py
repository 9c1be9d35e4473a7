"""The runs and the pools there are, one row each: `coderl runs` and `coderl pools`. Nothing here takes a lock."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.errors import DataError
from coderl_tasks.insight.record import load_run
from coderl_tasks.insight.tables import duration
from coderl_tasks.journal.atomic import held_by
from coderl_tasks.journal.json_shapes import Manifest, read_shaped
from coderl_tasks.journal.run_config import recorded_config
from coderl_tasks.journal.run_directory import committed_steps, has_ended, is_unstarted
from coderl_tasks.journal.unfinished import LOCK_FILE, is_untouched, recorded_settings
from coderl_tasks.paths import shown

INT, FLOAT, TEXT = pl.Int64(), pl.Float64(), pl.String()
RUN_SCHEMA: dict[str, pl.DataType] = {
    "name": TEXT, "state": TEXT, "model": TEXT, "steps": INT, "max_steps": INT, "baseline_percent": FLOAT,
    "latest_percent": FLOAT, "megabytes": FLOAT, "age": TEXT,
}  # fmt: skip
POOL_SCHEMA: dict[str, pl.DataType] = {
    "name": TEXT, "state": TEXT, "model": TEXT, "problems": INT, "megabytes": FLOAT, "age": TEXT,
}  # fmt: skip


def runs_table(root: Path) -> pl.DataFrame:
    """The runs in `root` (RUN_SCHEMA), newest first. Weights are the Tinker service's, and count into no size."""
    folders = [folder for folder in _folders(root) if (folder / "config.json").is_file() or is_unstarted(folder)]
    return pl.DataFrame([_run_row(folder) for folder in folders], schema=RUN_SCHEMA)


def pools_table(pools: Path) -> pl.DataFrame:
    return pl.DataFrame([_pool_row(folder) for folder in _folders(pools)], schema=POOL_SCHEMA)


def run_state(folder: Path, config: dict[str, Any]) -> str:
    """Where the run in `folder` stands: running, never started, finished, or stopped, and at which step."""
    if held_by(folder) is not None:
        return "running"
    if is_unstarted(folder):
        return "never started"
    steps, planned = committed_steps(folder), config.get("max_steps", -1)
    every, steer = config.get("eval", {}).get("every", -1), config.get("steer", "advise")
    ended = has_ended(folder, steps - 1, max_steps=planned, eval_every=every, steer=steer)
    return "finished" if ended else f"stopped at step {steps}"


def tree_bytes(folder: Path) -> int:
    """The size of a file or of all in a folder. What a link leads to takes its space elsewhere; `clean` keeps it."""
    files = [folder] if folder.is_file() else folder.rglob("*")
    return sum(file.lstat().st_size for file in files if file.is_file() and not file.is_symlink())


def _run_row(folder: Path) -> dict[str, Any]:
    row = {"name": shown(folder.name), **_size_and_age(folder)}
    try:
        config = recorded_config(folder) or {}
        evals = load_run(folder) if config and any(folder.glob("evals/*/summary.json")) else None
        state = run_state(folder, config)
    except DataError as error:  # a row of the list too: one damaged run must not hide the others
        return row | {"state": shown(f"damaged: {error}")}
    before, after = (evals.baseline, evals.latest) if evals is not None else (None, None)
    return row | {
        "state": state,
        "model": config.get("model_name"),
        "steps": committed_steps(folder),
        "max_steps": None if config.get("max_steps", -1) == -1 else config["max_steps"],
        "baseline_percent": None if before is None else round(before.pass_at_1 * 100, 1),
        "latest_percent": None if after is None else round(after.pass_at_1 * 100, 1),
    }


def _pool_row(folder: Path) -> dict[str, Any]:
    row = {"name": shown(folder.name), **_size_and_age(folder)}
    manifest = folder / "manifest.json"
    try:
        finished: dict[str, Any] | None = read_shaped(manifest, Manifest) if manifest.is_file() else None
    except DataError as error:
        return row | {"state": shown(f"damaged: {error}")}
    started, known = recorded_settings(folder), finished or {}
    if held_by(folder, LOCK_FILE) is not None:
        state = "running"
    elif finished is None:
        state = "never started" if is_untouched(folder) else "unfinished"
    elif known.get("settings") and started not in (None, known["settings"]):
        state = "finished, then started anew"
    else:
        state = "finished" if known.get("kept") else "finished, empty"
    model = (finished or started or {}).get("model_name")
    return row | {"state": state, "model": model, "problems": known.get("kept")}


def _size_and_age(folder: Path) -> dict[str, Any]:
    age = duration(max(0.0, time.time() - _last_written(folder)))
    return {"megabytes": round(tree_bytes(folder) / 1e6, 1), "age": age}


def _last_written(folder: Path) -> float:
    """When the newest file or folder in `folder` was written, but for a report, which anyone may write at any time."""
    written = [path.stat().st_mtime for path in folder.glob("*") if path.name != "report.html"]
    return max(written or [folder.stat().st_mtime])


def _folders(root: Path) -> Iterable[Path]:
    found = [child for child in root.iterdir() if child.is_dir()] if root.is_dir() else []
    return sorted(found, key=lambda folder: (_last_written(folder), folder.name), reverse=True)
