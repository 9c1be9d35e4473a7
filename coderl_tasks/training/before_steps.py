"""What a start does before its first step: it scores again what was lost, and probes a Tinker service of which nothing
is known.

The replay after a restore needs the scored rollouts of committed steps: missing ones are re-scored from the recorded
samples. Grading is deterministic, so the update comes out as it was; where it does not (a program at the edge of its
time limit, a sandbox that failed), the log says so.
"""

from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any

import polars as pl
from prefect import task

from coderl_tasks.errors import DataError
from coderl_tasks.policy.probe import Probe, probe_service
from coderl_tasks.policy.step_metrics import rollout_metrics
from coderl_tasks.retries import PHASE
from coderl_tasks.rollouts.engine import supervised
from coderl_tasks.training.run import TrainingRun
from coderl_tasks.training.step import Phase, Score

COMPARED = ("mean_reward", "groups_skipped", "infra_errors")
"""What tells whether rollouts that were re-scored are those that a commit counted."""


def lost_scores(run: TrainingRun) -> list[int]:
    """Returns the committed steps whose scored rollouts are missing or damaged, and whose update may need a replay:
    those since the newest saved state that does not expire. Raises DataError for a step whose samples are lost too, if
    no saved state holds its update."""
    committed = run.directory.next_step
    # With max_steps_off_policy the next step is sampled from an older policy: count only states up to that one.
    states = run.learner.saved_states(max(0, committed - run.settings.max_steps_off_policy))
    saved = max((state.updates for state in states), default=0)
    kept = max((state.updates for state in states if state.kept), default=0)
    lost = []
    for step in range(kept, committed):
        journal = run.directory.step(step)
        if journal.read("scored") is not None:
            continue
        if journal.read("sampled") is not None:
            lost.append(step)
        elif step >= saved:
            raise DataError(
                f"{journal.folder}: neither scored.parquet nor sampled.parquet can be read, and the update of step "
                f"{step} is in no saved state: put one of them back, or remove the folders of the steps from "
                f"{journal.folder.name} on, to train these steps anew"
            )
    return lost


async def prepare(
    run: TrainingRun,
    sample: Callable[[TrainingRun, int], Coroutine[Any, Any, Phase]],
    score: Score,
    probe: Callable[[TrainingRun], Coroutine[Any, Any, Probe]],
    say: Callable[[str], object],
) -> None:
    """Before a start's first step: scores the committed steps again whose scored rollouts are lost (`lost_scores`), and
    probes the service if nothing is known of it yet. `sample`, `score` and `probe` are the phases, with the caller's
    retries; `say` tells the user a line."""
    for step in lost_scores(run):
        say(f"step {step}: its scored rollouts are missing or damaged: its samples are scored again")
        sampled = await sample(run, step)
        scored = await score(run, step, sampled)
        if different := differences(run, step, scored.rollouts):
            say(f"warning: step {step} was scored otherwise, and so its update is another one: {different}")
        sampled.release()
        scored.release()
    if needs_probe(run):
        found = await probe(run)
        for line in (f"probe: {found.summary()}", *(f"warning: {warning}" for warning in found.warnings())):
            say(line)


def differences(run: TrainingRun, step: int, scored: pl.DataFrame) -> str:
    """How re-scored rollouts differ from those that the commit of `step` counted; empty if they do not."""
    commit = run.directory.step(step).read_commit()
    recorded, found = commit.metrics if commit is not None else {}, rollout_metrics(scored)
    differing = [name for name in COMPARED if recorded.get(name) != found[name]]
    return ", ".join(f"{name} {recorded.get(name)} -> {found[name]}" for name in differing)


def needs_probe(run: TrainingRun) -> bool:
    """Whether steps are to be trained on a service that nothing is known of. An embedded one needs no probe."""
    return run.has_step(run.directory.next_step) and run.probe is None and run.session.service_address is not None


@task(name="probe", **PHASE)
@supervised
async def probe_run(run: TrainingRun) -> Probe:
    """Probe the service with the policy that is trained next, and record it. Raises as `Probe.require_trainable`."""
    service, updates = run.session.service_address, run.directory.next_step
    assert service is not None
    sampler = await run.learner.sampling_client(updates)
    async with run.learner.trainer(updates) as trainer:
        found = await probe_service(
            *(sampler, trainer, run.session.renderer),
            service=service,
            model=run.settings.model_name,
            temperature=run.settings.temperature,
            loss=run.learner.method.loss,
        )
    found.require_trainable()
    # Only if it can be trained on: a service that is put right is probed anew by the next start.
    run.directory.record_finding("probe", asdict(found))
    run.probe = found
    return found
