"""Scored rollouts that were lost after their step was committed: re-scored from the recorded samples.

The replay that follows a restore needs them. Grading is deterministic, so the update comes out as it was; where it does
not (a program at the edge of its time limit, a sandbox that failed), the log says so.
"""

import polars as pl

from coderl_tasks.errors import DataError
from coderl_tasks.policy.rollout_frames import rollout_metrics
from coderl_tasks.training.run import TrainingRun

COMPARED = ("mean_reward", "groups_skipped", "infra_errors")


def lost_scores(run: TrainingRun) -> list[int]:
    """The committed steps whose update may have to be replayed and whose scored rollouts are missing or damaged.

    That is all since the last state that does not expire, of those from which the next step can be sampled. Raises
    DataError, saying what can be done, for a step whose samples are lost too, and whose update is in no saved state.
    """
    committed = run.directory.next_step
    states = run.learner.saved_states(max(0, committed - run.settings.max_steps_off_policy))
    saved = max((state.updates for state in states), default=0)
    kept = max((state.updates for state in states if state.kept), default=0)
    lost = []
    for step in range(kept, committed):
        journal = run.directory.step(step)
        if journal.read_scored() is not None:
            continue
        if journal.read_sampled() is not None:
            lost.append(step)
        elif step >= saved:
            raise DataError(
                f"{journal.folder}: neither scored.parquet nor sampled.parquet can be read, and the update of step "
                f"{step} is in no saved state: put one of them back, or remove the folders of the steps from "
                f"{journal.folder.name} on, to train these steps anew"
            )
    return lost


def differences(run: TrainingRun, step: int, scored: pl.DataFrame) -> str:
    """How re-scored rollouts differ from those that the commit of `step` counted; empty if they do not."""
    commit = run.directory.step(step).read_commit()
    recorded, found = commit.metrics if commit is not None else {}, rollout_metrics(scored)
    return ", ".join(
        f"{name} {recorded.get(name)} -> {found[name]}" for name in COMPARED if recorded.get(name) != found[name]
    )
