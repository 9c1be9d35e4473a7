"""Which policy is meant: to sample from, the newest run, a run directory, a tinker:// path, or a base model; to export,
a checkpoint of a run, which stays, or the state of one of the newest steps."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.journal.checkpoints import CHECKPOINTS_FILE, expiring_states, read_checkpoints
from coderl_tasks.journal.recorded_json import Score, read_shaped, recorded_config
from coderl_tasks.journal.run_directory import DEFAULT_ROOT
from coderl_tasks.journal.run_names import LATEST, did_you_mean, is_name, near_runs, run_path
from coderl_tasks.journal.steps import step_name
from coderl_tasks.paths import find_local, local_model_path

TINKER_SCHEME = "tinker://"
COMPLETIONS = "completions:"  # begins the name of a policy of which only a file of completions is known
BEST, LAST = "best", "last"


@dataclass(frozen=True, slots=True)
class FoundPolicy:
    """A policy to evaluate."""

    sampler_path: str | None  # of saved weights; None: the base model
    run: Path | None  # its run directory
    config: dict[str, Any]  # that run's configuration
    step: int  # the last one trained into it; -1 for the base model or where it is not known
    served_by: str = ""  # what answers for it, "" until somebody has asked


def find_policy(checkpoint: str, model_name: str | None, *, root: Path | None = None) -> FoundPolicy:
    """Returns the policy that `checkpoint` names, the first of these that exists: "latest" (the newest run under `root`
    with a checkpoint, of `model_name` if given), a tinker:// path, a run, a base model. A run's policy is its last
    checkpoint, or with a validation set the one that scores best on it. Raises ConfigError if there is none."""
    if checkpoint == LATEST:
        return _policy_of_latest_run(Path(root or DEFAULT_ROOT).expanduser(), model_name)
    if checkpoint.startswith(TINKER_SCHEME):
        return FoundPolicy(sampler_path=checkpoint, run=None, config={}, step=-1)
    # Where a run of that name or path is, if there is one; and what exists at that path, here or in coderl's folder.
    expected_run, existing_path = run_path(checkpoint), find_local(checkpoint)
    is_run_name = is_name(checkpoint) and (expected_run / "config.json").is_file()
    if is_run_name or (expected_run / CHECKPOINTS_FILE).is_file():
        return _policy_of_run(expected_run.resolve())  # also of a run without checkpoints: its error says so
    if existing_path is not None and (existing_path / CHECKPOINTS_FILE).is_file():
        return _policy_of_run(existing_path)
    similar_runs = near_runs(expected_run)
    # Else it is org/name, as hosted models are called.
    may_be_run = is_name(checkpoint) or checkpoint.startswith(("/", ".", "~"))
    if similar_runs and existing_path is None and may_be_run:
        raise ConfigError(f"checkpoint={checkpoint}: there is no such run{did_you_mean(similar_runs)}")
    if local_model_path(checkpoint) is not None or (existing_path is None and not may_be_run):
        return FoundPolicy(sampler_path=None, run=None, config={"model_name": checkpoint}, step=-1)
    raise ConfigError(
        f"checkpoint={checkpoint}: neither a run with checkpoints (coderl runs lists them), nor a tinker:// path, "
        "nor a model's name (org/name, or a local folder)"
    )


def _policy_of_latest_run(root: Path, model_name: str | None) -> FoundPolicy:
    """The policy of the run under `root` (of `model_name`, if given) that saved a checkpoint last."""
    files = root.glob(f"*/{CHECKPOINTS_FILE}")
    for checkpoints_file in sorted(files, key=lambda file: (file.stat().st_mtime_ns, file), reverse=True):
        run = checkpoints_file.parent
        try:
            config = recorded_config(run)
        except DataError:
            continue  # damaged: a user who names this run gets the error
        if config is None or (model_name is not None and config.get("model_name") != model_name):
            continue
        if any(row.get("sampler_path") for row in read_checkpoints(run)):
            return _policy_of_run(run)
    made_with = f" made with {model_name}" if model_name else ""
    raise ConfigError(f"checkpoint=latest: no run{made_with} with a checkpoint in {root}: train first, or name one")


def _required_config(run: Path) -> dict[str, Any]:
    if (config := recorded_config(run)) is None:
        raise ConfigError(f"{run} is no run directory: it has no config.json")
    return config


def _policy_of_run(run: Path) -> FoundPolicy:
    config = _required_config(run)
    rows = [row for row in read_checkpoints(run) if row.get("sampler_path")]
    if not rows:
        raise ConfigError(f"{run} has no checkpoint to sample from yet")
    chosen = rows[-1]
    if config.get("eval", {}).get("on") == "validation":
        rates = _validation_rates(run, config, [row["step"] for row in rows])
        # Of equal rates the later step, which has learned from more; one that was not evaluated comes after all.
        chosen = max(rows, key=lambda row: (rates.get(row["step"], -1.0), row["step"]))
    return FoundPolicy(str(chosen["sampler_path"]), run, config, int(chosen["step"]))


def _validation_rates(run: Path, config: dict[str, Any], steps: Iterable[int]) -> dict[int, float]:
    """Pass@1 by step on the validation problems; never on the test splits: it would be the best of several tries."""
    if config.get("eval", {}).get("on") != "validation":
        return {}
    files = {step: run / "evals" / step_name(step) / "summary.json" for step in steps}
    return {step: float(read_shaped(file, Score)["pass_at_1"]) for step, file in files.items() if file.is_file()}


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """The policy of the run in `run` (whose settings are `config`) after `step`."""

    run: Path
    config: dict[str, Any]
    step: int
    state_path: str  # of its training state
    why: str | None  # how it was chosen; None where its step was named
    expires: bool = False  # the service removes the state some day


def saved_policy(run: Path, wanted: str | None) -> SavedPolicy:
    """Returns the policy of `run` to export: `wanted` is a step's number, `last`, `best`, or None for the one that
    `coderl evaluate` takes (the best on the validation problems, else the last). It needs a training state: sampler
    weights alone cannot be exported. Raises ConfigError, naming the steps that have one, if there is none."""
    config = _required_config(run)
    states = {int(row["step"]): str(row["state_path"]) for row in read_checkpoints(run) if row.get("state_path")}
    trained = {step: path for step, path in states.items() if step >= 0}  # step -1 is the base model
    # The service removes these after a time: they are exported only if the number of their step is given.
    expiring = {state.step: state.path for state in expiring_states(run, config)}
    steps = ", ".join(map(str, sorted({*trained, *expiring})))
    known = f" (there are: {steps})" if steps else ""
    if wanted not in (None, BEST, LAST):
        if not wanted.isdigit():
            raise ConfigError(f"--step {wanted}: give a step's number, {LAST} or {BEST}")
        step = int(wanted)
        if path := trained.get(step) or expiring.get(step):
            return SavedPolicy(run, config, step, path, why=None, expires=step not in trained)
        raise ConfigError(
            f"{run}: of step {step} there is no state to export{known}; sampler weights alone are not handed out by "
            "the service"
        )
    if not trained:
        raise ConfigError(f"{run} has no checkpoint yet{known}")
    rates = {} if wanted == LAST else _validation_rates(run, config, trained)
    if wanted == BEST and not rates:
        raise ConfigError(
            f"{run}: the best checkpoint is the one with the best Pass@1 on the validation problems, and none was "
            "evaluated on them (train with eval=on:validation; on the test problems it would be the best of several "
            "tries): take --step last, or a step's number"
        )
    step = max(trained) if wanted == LAST else _policy_of_run(run).step  # the latter may have sampler weights alone
    if step not in trained:
        raise ConfigError(f"{run}: of step {step} there is no state to export{known}")
    why = "the last checkpoint"
    if rates:
        among = f"of {len(rates)} checkpoints" if len(rates) > 1 else "of the only checkpoint that was evaluated there"
        why = f"the best Pass@1 on the validation problems, {rates.get(step, 0):.1%}, {among}"
    return SavedPolicy(run, config, step, trained[step], why=why)
