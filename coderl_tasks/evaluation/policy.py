"""Which policy is meant: the newest run, a run directory, a tinker:// path, or a base model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.journal.checkpoints import CHECKPOINTS_FILE, read_checkpoints
from coderl_tasks.journal.json_shapes import Score, read_shaped
from coderl_tasks.journal.run_config import recorded_config
from coderl_tasks.journal.run_directory import DEFAULT_ROOT
from coderl_tasks.journal.run_names import LATEST, did_you_mean, is_name, near_runs, run_path
from coderl_tasks.journal.steps import step_name
from coderl_tasks.paths import find_local, local_model_folder

TINKER_SCHEME = "tinker://"


@dataclass(frozen=True, slots=True)
class FoundPolicy:
    """A policy to evaluate: `sampler_path` of saved weights, or None for the base model.

    `run` is its run directory and `config` that run's configuration (None and empty without one); `step` is the last
    step trained into it, -1 for the base model or where it is not known. `served_by` says what answers for it, "" until
    somebody has asked.
    """

    sampler_path: str | None
    run: Path | None
    config: dict[str, Any]
    step: int
    served_by: str = ""


def find_policy(checkpoint: str, model_name: str | None, *, root: Path | None = None) -> FoundPolicy:
    """The policy that `checkpoint` names. "latest" is the newest run under `root` with a checkpoint, of `model_name`
    unless that is None.

    Of a run, the last checkpoint is taken; where it was trained with a validation set, the one that did best there.
    Raises ConfigError, saying what to do, if there is none.
    """
    if checkpoint == LATEST:
        return _of_run(_latest(model_name, Path(root or DEFAULT_ROOT).expanduser()))
    if checkpoint.startswith(TINKER_SCHEME):
        return FoundPolicy(checkpoint, None, {}, -1)
    run, path = run_path(checkpoint), find_local(checkpoint)
    if (run / CHECKPOINTS_FILE).is_file() or (is_name(checkpoint) and (run / "config.json").is_file()):
        return _of_run(run.resolve())
    if path is not None and (path / CHECKPOINTS_FILE).is_file():
        return _of_run(path)
    is_path = checkpoint.startswith(("/", ".", "~"))
    near = near_runs(run)
    if near and path is None and (is_name(checkpoint) or is_path):
        raise ConfigError(f"checkpoint={checkpoint}: there is no such run{did_you_mean(near)}")
    is_on_a_service = path is None and not is_path and not is_name(checkpoint)  # models there have an owner: org/name
    if local_model_folder(checkpoint) is not None or is_on_a_service:
        return FoundPolicy(None, None, {"model_name": checkpoint}, -1)
    raise ConfigError(
        f"checkpoint={checkpoint}: neither a run with checkpoints (coderl runs lists them), nor a tinker:// path, "
        "nor a model's name (org/name, or a local folder)"
    )


def _latest(model_name: str | None, root: Path) -> Path:
    files = sorted(root.glob(f"*/{CHECKPOINTS_FILE}"), key=lambda file: (file.stat().st_mtime_ns, file), reverse=True)
    for file in files:
        if _is_candidate(file.parent, model_name):
            return file.parent
    made_with = f" made with {model_name}" if model_name else ""
    raise ConfigError(f"checkpoint=latest: no run{made_with} with a checkpoint in {root}: train first, or name one")


def _is_candidate(run: Path, model_name: str | None) -> bool:
    try:
        config = recorded_config(run)
    except DataError:
        return False  # naming it says what is wrong with it
    same_model = config is not None and (model_name is None or config.get("model_name") == model_name)
    return same_model and any(row.get("sampler_path") for row in read_checkpoints(run))


def _of_run(run: Path) -> FoundPolicy:
    config = recorded_config(run)
    if config is None:
        raise ConfigError(f"{run} is no run directory: it has no config.json")
    rows = [row for row in read_checkpoints(run) if row.get("sampler_path")]
    if not rows:
        raise ConfigError(f"{run} has no checkpoint to sample from yet")
    chosen = rows[-1]
    # Chosen on problems held out of the pool, never on the test splits: their Pass@1 would be the best of several
    # tries.
    if config.get("eval", {}).get("on") == "validation":
        # Of equal rates the later step, which has learned from more.
        chosen = max(rows, key=lambda row: (_validation_pass_rate(run, row), row["step"]))
    return FoundPolicy(str(chosen["sampler_path"]), run, config, int(chosen["step"]))


def _validation_pass_rate(run: Path, row: dict[str, Any]) -> float:
    """Pass@1 on the validation problems after the checkpoint's step; below any rate if it was not evaluated there."""
    summary = run / "evals" / step_name(row["step"]) / "summary.json"
    return float(read_shaped(summary, Score)["pass_at_1"]) if summary.is_file() else -1.0
