"""A run's own evaluations: the baseline, every `eval.every` steps, at the end. None is repeated."""

from typing import Any

from prefect import task

from coderl_tasks.evaluation.paired import compared
from coderl_tasks.evaluation.pass_at_1 import evaluate_policy, evaluation_subset
from coderl_tasks.journal.checkpoints import read_checkpoints
from coderl_tasks.journal.steps import BASELINE, FINAL, step_name
from coderl_tasks.problems.problem import Problem
from coderl_tasks.retries import PHASE
from coderl_tasks.rollouts.engine import supervised
from coderl_tasks.rollouts.rounds import Progress
from coderl_tasks.training.run import TrainingRun

BEFORE_TRAINING = -1


@task(name="evaluate", task_run_name="{name}-evaluate", **PHASE)
@supervised
async def evaluate_run(run: TrainingRun, name: str, step: int, on_progress: Progress | None = None) -> dict[str, Any]:
    """Returns the summary of evaluation `name` of the policy after `step` (-1: before training), recorded or new."""
    journal = run.directory.evaluation(name)
    recorded = journal.read_summary()
    # Compare the step too: once a run gets more steps, its recorded final evaluation is of an earlier policy.
    if recorded is not None and recorded.get("step") == step:
        return recorded
    # Rename that one, do not replace it: it is paid for, and `compare_to` may name it.
    if recorded is not None:
        journal.keep_as(f"{name}-{step_name(recorded['step'])}" if "step" in recorded else f"{name}-before")
    rollouts, summary = await evaluate_policy(
        evaluated_problems(run, name),
        await run.learner.sampling_client(step + 1),
        run.session.engine(
            *(run.settings, "evaluate", policy_name(run, step)),
            temperature=0.0,  # greedy: two evaluations of one policy agree, and a difference is the training's
            sampler_step=step,
            served_by=run.session.served_by,
        ),
        groups=journal.groups,
        on_progress=on_progress,
    )
    summary["step"] = step
    baseline = run.directory.evaluation(BASELINE)
    if name != BASELINE and (baseline_summary := baseline.read_summary()) is not None:
        summary |= compared(baseline.read_rollouts(), rollouts, to=BASELINE, sides=(baseline_summary, summary))
    journal.write(rollouts, summary)
    return summary


def evaluated_problems(run: TrainingRun, name: str) -> list[Problem]:
    """What evaluation `name` runs on: the test problems at both ends, else the subset or the validation problems."""
    if name in (BASELINE, FINAL):
        return evaluation_subset(run.test_problems, run.settings.eval.ends_limit, seed=run.settings.seed)
    if run.validation_problems:
        return run.validation_problems
    return evaluation_subset(run.test_problems, run.settings.eval.limit, seed=run.settings.seed)


def policy_name(run: TrainingRun, step: int) -> str:
    """What was evaluated: the sampler weights saved after `step`, else the model and the step in words."""
    if step == BEFORE_TRAINING:
        return run.settings.model_name
    rows = [row for row in read_checkpoints(run.directory.path) if row["step"] == step and "sampler_path" in row]
    return str(rows[-1]["sampler_path"]) if rows else f"{run.settings.model_name} after step {step}"


def eval_metrics(name: str, summary: dict[str, Any]) -> dict[str, Any]:
    """The row of metrics.jsonl for evaluation `name`."""
    same = ("ci_low", "ci_high", "n", "mean_reward", "format_rate", "truncated_rate", "infra_errors")
    own = {"eval/name": name, "eval/mean_correct": summary["pass_at_1"]}
    return own | {f"eval/{key}": summary[key] for key in same}
