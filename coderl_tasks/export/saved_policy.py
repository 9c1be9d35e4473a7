"""Which saved policy of a run is meant: a checkpoint, which stays, or the state of one of the newest steps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coderl_tasks.errors import ConfigError
from coderl_tasks.evaluation.policy import find_policy
from coderl_tasks.journal.checkpoints import expiring_states, read_checkpoints
from coderl_tasks.journal.json_shapes import Score, read_shaped
from coderl_tasks.journal.run_config import recorded_config
from coderl_tasks.journal.steps import step_name

BEST, LAST = "best", "last"


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """The policy of the run in `run` (whose settings are `config`) after `step`, as a training state at `state_path`.

    `why` says how it was chosen, None where its step was named. With `expires` the service removes the state some day.
    """

    run: Path
    config: dict[str, Any]
    step: int
    state_path: str
    why: str | None
    expires: bool = False


def saved_policy(run: Path, wanted: str | None) -> SavedPolicy:
    """The policy of `run` that `wanted` means: a step's number, `last`, `best`, or None: what `coderl evaluate` takes.

    Raises ConfigError, naming the steps that there are.
    """
    config = recorded_config(run)
    if config is None:
        raise ConfigError(f"{run} is no run directory: it has no config.json")
    kept = {int(row["step"]): str(row["state_path"]) for row in read_checkpoints(run) if row.get("state_path")}
    trained = {step: path for step, path in kept.items() if step >= 0}  # the one before any step is the base model
    if wanted not in (None, BEST, LAST):
        return _at_step(run, config, str(wanted), trained)
    if not trained:
        raise ConfigError(f"{run} has no checkpoint yet{_steps_there(run, config, trained)}")
    if wanted == LAST:
        step = max(trained)
        return SavedPolicy(run, config, step, trained[step], "the last checkpoint")
    rates = _validation_rates(run, config, trained)
    if wanted == BEST and not rates:
        raise ConfigError(
            f"{run}: the best checkpoint is the one with the best Pass@1 on the validation problems, and none was "
            "evaluated on them (train with eval=on:validation; on the test problems it would be the best of several "
            "tries): take --step last, or a step's number"
        )
    step = find_policy(str(run.resolve()), None).step
    if step not in trained:
        raise ConfigError(f"{run}: of step {step} there is no state to export{_steps_there(run, config, trained)}")
    why = "the last checkpoint"
    if rates:
        among = f"of {len(rates)} checkpoints" if len(rates) > 1 else "of the only checkpoint that was evaluated there"
        why = f"the best Pass@1 on the validation problems, {rates.get(step, 0):.1%}, {among}"
    return SavedPolicy(run, config, step, trained[step], why)


def _at_step(run: Path, config: dict[str, Any], wanted: str, trained: dict[int, str]) -> SavedPolicy:
    if not wanted.isdigit():
        raise ConfigError(f"--step {wanted}: give a step's number, {LAST} or {BEST}")
    step = int(wanted)
    if step in trained:
        return SavedPolicy(run, config, step, trained[step], None)
    for state in expiring_states(run, config):
        if state.step == step:
            return SavedPolicy(run, config, step, state.path, None, expires=True)
    raise ConfigError(
        f"{run}: of step {step} there is no state to export{_steps_there(run, config, trained)}; sampler weights alone "
        "are not handed out by the service"
    )


def _steps_there(run: Path, config: dict[str, Any], trained: dict[int, str]) -> str:
    steps = sorted({*trained, *(state.step for state in expiring_states(run, config))})
    return f" (there are: {', '.join(map(str, steps))})" if steps else ""


def _validation_rates(run: Path, config: dict[str, Any], trained: dict[int, str]) -> dict[int, float]:
    """Pass@1 on the validation problems by step, of the checkpoints that were evaluated on them."""
    if config.get("eval", {}).get("on") != "validation":
        return {}
    files = {step: run / "evals" / step_name(step) / "summary.json" for step in trained}
    return {step: float(read_shaped(file, Score)["pass_at_1"]) for step, file in files.items() if file.is_file()}
