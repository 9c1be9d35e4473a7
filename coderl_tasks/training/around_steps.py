"""What a run does besides its steps: what a start does before the first one, and the evaluations.

Grading is deterministic: a step that is scored again comes out as it was. Where it does not (a program at the edge of
its time limit), the log says so. No evaluation is repeated.
"""

from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any

from prefect import task

from coderl_tasks.errors import DataError
from coderl_tasks.evaluation.paired import compared
from coderl_tasks.evaluation.pass_at_1 import evaluate_policy, evaluation_subset
from coderl_tasks.journal.checkpoints import read_checkpoints
from coderl_tasks.journal.steps import BASELINE, FINAL, step_name
from coderl_tasks.policy.probe import Probe, probe_service
from coderl_tasks.policy.step_metrics import rollout_metrics
from coderl_tasks.retries import PHASE
from coderl_tasks.rollouts.engine import supervised
from coderl_tasks.rollouts.rounds import Progress
from coderl_tasks.training.run import TrainingRun
from coderl_tasks.training.step import PhaseResult, Score

BEFORE_TRAINING = -1
COMPARED = ("mean_reward", "groups_skipped", "infra_errors")
"""What tells whether rollouts that were re-scored are those that a commit counted."""


def lost_scores(run: TrainingRun) -> list[int]:
    """Returns the committed steps whose scored rollouts are missing or damaged, and whose samples a replay
    of the update may need: those since the newest saved state that does not expire. Raises DataError for a step whose
    samples are lost too, if no saved state holds its update."""
    committed = run.directory.next_step
    # A resume first restores the policy that samples the next step: a state with more updates is of no use.
    most_updates = max(0, committed - run.settings.max_steps_off_policy)
    states = run.learner.saved_states(most_updates)
    in_newest = max((state.updates for state in states), default=0)
    in_newest_lasting = max((state.updates for state in states if not state.expires), default=0)
    lost = []
    for step in range(in_newest_lasting, committed):
        journal = run.directory.step(step)
        if journal.read("scored") is not None:
            continue
        if journal.read("sampled") is not None:
            lost.append(step)
        elif step >= in_newest:  # else an expiring state has the update: a replay is needed only if it has expired
            raise DataError(
                f"{journal.folder}: neither scored.parquet nor sampled.parquet can be read, and the update of step "
                f"{step} is in no saved state: put one of them back, or remove the folders of the steps from "
                f"{journal.folder.name} on, to train these steps again, "
                "and in evals/ those of the evaluations after these steps"
            )
    return lost


async def prepare(
    run: TrainingRun,
    sample: Callable[[TrainingRun, int], Coroutine[Any, Any, PhaseResult]],
    score: Score,
    probe: Callable[[TrainingRun], Coroutine[Any, Any, Probe]],
    say: Callable[[str], object],
) -> None:
    """Does what a start needs before its first step: scores again the steps in `lost_scores`, and probes a Tinker
    service that was not probed yet, before anything is paid for. `sample`, `score` and `probe` are the phases, with the
    caller's retries; `say` shows the user a line."""
    for step in lost_scores(run):
        say(f"step {step}: its scored rollouts are missing or damaged: its samples are scored again")
        sampled = await sample(run, step)  # as recorded: nothing is sampled again
        scored = await score(run, step, sampled)
        commit = run.directory.step(step).read_commit()
        committed = commit.metrics if commit is not None else {}
        rescored = rollout_metrics(scored.rollouts, run.settings)
        changed = [name for name in COMPARED if committed.get(name) != rescored[name]]
        if changed:
            differences = ", ".join(f"{name} {committed.get(name)} -> {rescored[name]}" for name in changed)
            say(f"warning: step {step} got other scores than before, so its update differs: {differences}")
        sampled.release()  # frees memory: the updates that follow read the recorded rollouts
        scored.release()
    if needs_probe(run):
        found = await probe(run)
        for line in (f"probe: {found.summary()}", *(f"warning: {warning}" for warning in found.warnings())):
            say(line)


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
        probe = await probe_service(
            *(sampler, trainer, run.session.renderer),
            service=service,
            model=run.settings.model_name,
            temperature=run.settings.temperature,
            loss=run.learner.method.loss,
        )
    probe.require_trainable()
    # Only if it can be trained on: a service that is put right is probed anew by the next start.
    run.directory.record_finding("probe", asdict(probe))
    run.probe = probe
    return probe


@task(name="evaluate", task_run_name="{name}-evaluate", **PHASE)
@supervised
async def evaluate_run(run: TrainingRun, name: str, step: int, on_progress: Progress | None = None) -> dict[str, Any]:
    """Returns the summary of evaluation `name` of the policy after `step` (-1: before training), recorded or new. A new
    one is compared with the baseline."""
    journal = run.directory.evaluation(name)
    recorded = journal.read_summary()
    # Compare the step too: once a run gets more steps, its recorded final evaluation is of an earlier policy.
    if recorded is not None and recorded.get("step") == step:
        return recorded
    # Rename that one, do not replace it: it is paid for, and `compare_to` may name it. Old summaries lack the step.
    if recorded is not None:
        journal.keep_as(f"{name}-{step_name(recorded['step'])}" if "step" in recorded else f"{name}-before")
    settings = run.settings
    is_end = name in (BASELINE, FINAL)
    if run.validation_problems and not is_end:  # the test side must not steer the training
        problems = run.validation_problems
    else:
        limit = settings.eval.ends_limit if is_end else settings.eval.limit
        problems = evaluation_subset(run.test_problems, limit, seed=settings.seed)
    # The policy is named by its saved sampler weights, else by the model and the step.
    policy = settings.model_name if step == BEFORE_TRAINING else f"{settings.model_name} after step {step}"
    for row in read_checkpoints(run.directory.path) if step != BEFORE_TRAINING else ():
        if row["step"] == step and "sampler_path" in row:
            policy = str(row["sampler_path"])
    engine = run.session.engine(
        settings,
        purpose="evaluate",
        policy=policy,
        temperature=0.0,  # greedy: two evaluations of one policy agree, and a difference is the training's
        sampler_step=step,
        served_by=run.session.served_by,  # for the record: samples of another inference server are not reused
    )
    client = await run.learner.sampling_client(updates=step + 1)
    rollouts, summary = await evaluate_policy(problems, client, engine, groups=journal.groups, on_progress=on_progress)
    summary["step"] = step
    baseline = run.directory.evaluation(BASELINE)
    if name != BASELINE and (baseline_summary := baseline.read_summary()) is not None:
        summary |= compared(baseline.read_rollouts(), rollouts, to=BASELINE, sides=(baseline_summary, summary))
    journal.write(rollouts, summary)
    return summary


def eval_metrics(name: str, summary: dict[str, Any]) -> dict[str, Any]:
    """The row of metrics.jsonl for evaluation `name`."""
    same = ("ci_low", "ci_high", "n", "mean_reward", "format_rate", "truncated_rate", "infra_errors")
    own = {"eval/name": name, "eval/mean_correct": summary["pass_at_1"]}
    return own | {f"eval/{key}": summary[key] for key in same}
