"""The three phases of a GRPO step: sample, score, update. A phase whose file is there returns at once.

sample   groups/NN.parquet as each arrives, then sampled.parquet
score    sampled.parquet -> scored.parquet
update   scored.parquet  -> commit.json and the row of metrics.jsonl
"""

import logging
import time
from typing import Any

import polars as pl

from coderl_tasks.errors import DataError, InfraError
from coderl_tasks.journal.checkpoints import Kind
from coderl_tasks.journal.lock import require_in_place
from coderl_tasks.journal.steps import Commit, StepJournal
from coderl_tasks.policy.rollout import SAMPLED_SCHEMA
from coderl_tasks.policy.rollout_frames import (
    graded_frame,
    group_frame,
    require_graded,
    require_sampled,
    rollout_metrics,
    sampled_frame,
    with_advantages,
)
from coderl_tasks.policy.sampling import Completion, GroupRequest, sample_groups
from coderl_tasks.policy.seeds import seed_for
from coderl_tasks.policy.selection import select_problems
from coderl_tasks.policy.update import UpdateResult
from coderl_tasks.training.run import TrainingRun

logger = logging.getLogger(__name__)


async def sample_step(run: TrainingRun, step: int) -> pl.DataFrame:
    """The sampled rollouts of `step` (SAMPLED_SCHEMA): those recorded, and the rest drawn now and recorded.

    Raises InfraError if too many samples came without log-probabilities to train on; their groups are then forgotten,
    for the task's retry to draw again.
    """
    journal = run.directory.step(step)
    recorded = journal.read_sampled()
    if recorded is None and (scored := journal.read_scored()) is not None:  # which holds the samples too
        recorded = scored.select(list(SAMPLED_SCHEMA))
        journal.write_sampled(recorded)
    if recorded is not None:
        return recorded
    started = time.monotonic()
    groups = journal.read_groups()
    for group in groups.values():
        run.grader.start(group)
    requests = [request for request in group_requests(run, step) if request.group_index not in groups]
    if requests:
        sampler_step = run.sampler_step(step)
        sampler = await run.learner.sampling_client(sampler_step + 1)

        def record(request: GroupRequest, completions: list[Completion]) -> None:
            frame = group_frame(
                request, completions, step=step, attempt=0, sampler_step=sampler_step, decode=run.session.text
            )
            journal.write_group(request.group_index, frame)
            groups[request.group_index] = frame
            run.grader.start(frame)

        await sample_groups(
            sampler,
            requests,
            temperature=run.settings.temperature,
            stop=run.session.renderer.stop_tokens,
            max_concurrency=run.settings.sample_concurrency,
            on_group=record,
        )
    sampled = sampled_frame(groups.values())
    try:
        require_sampled(sampled, f"step {step}")
    except InfraError:
        await run.grader.forget(step)  # what it graded ahead of these groups is not theirs any more
        for index, group in groups.items():
            if group["logprobs"].has_nulls():
                journal.groups.discard(index)
        raise
    journal.write_sampled(sampled)
    run.seconds[step, "sample"] = time.monotonic() - started
    return sampled


def group_requests(run: TrainingRun, step: int) -> list[GroupRequest]:
    """What `step` samples: one request a problem, in group order. The settings and the step decide all of it."""
    settings = run.settings
    chosen = select_problems(list(run.pool), seed=settings.seed, step=step, count=settings.problems_per_step)
    requests = []
    for group_index, problem_id in enumerate(chosen):
        problem = run.pool[problem_id]
        prompt = run.session.prompt(problem)
        requests.append(
            GroupRequest(
                group_index=group_index,
                problem_id=problem_id,
                split=problem.split,
                prompt_tokens=prompt,
                num_samples=settings.completions_per_problem,
                max_tokens=run.session.room(prompt, settings.max_tokens),
                seed=seed_for(settings.seed, "train", step, group_index, problem_id) if run.sends_seeds else None,
            )
        )
    return requests


async def score_step(run: TrainingRun, step: int) -> pl.DataFrame:
    """The scored rollouts of `step` (ROLLOUT_SCHEMA), with advantages.

    Raises InfraError if too much could not be graded: then the sandbox is down, and the task's retry comes.
    """
    journal = run.directory.step(step)
    recorded = journal.read_scored()
    if recorded is not None:
        return recorded
    started = time.monotonic()
    sampled = _required(journal.read_sampled(), journal, "sampled")

    try:
        graded = graded_frame(sampled, await run.grader.grades(sampled))
        require_graded(graded, f"step {step}")
    finally:
        await run.grader.forget(step)  # a retry is to grade anew
    scored_frame = with_advantages(graded)
    journal.write_scored(scored_frame)
    run.seconds[step, "score"] = time.monotonic() - started
    return scored_frame


async def update_step(run: TrainingRun, step: int) -> Commit:
    """Apply the update of `step` and commit it; the commit, whose metrics are the row of metrics.jsonl."""
    journal = run.directory.step(step)
    recorded = journal.read_commit()
    if recorded is not None:
        return recorded
    scored = _required(journal.read_scored(), journal, "scored")
    update = await run.learner.update(step, _saved_with_commit(run, step))
    result, run.seconds[step, "train"], run.seconds[step, "save"] = update.result, update.train_s, update.save_s
    answered = ", ".join(f"{name}={value:.6g}" for name, value in sorted(result.service_metrics.items()))
    logger.info("step %d: Tinker answered %s", step, answered or "nothing: no group had a signal")
    adam = run.learner.adam_params()
    metrics = step_metrics(run, step, scored, result)
    commit = Commit(step=step, metrics=metrics, adam=adam.model_dump(), **update.saved)
    journal.write_commit(commit)
    await run.learner.delete_outdated()  # after the commit, which makes an older state one that nothing needs
    return commit


def _saved_with_commit(run: TrainingRun, step: int) -> Kind | None:
    """What is saved before `step` is committed: a state where one is due, and none is kept; weights for overlap."""
    state = run.is_due(step, run.settings.rolling_save_every) and not run.keeps(step)
    if run.settings.max_steps_off_policy:
        return "both" if state else "sampler"
    return "state" if state else None


def step_metrics(run: TrainingRun, step: int, scored: pl.DataFrame, result: UpdateResult) -> dict[str, Any]:
    """The row of metrics.jsonl: the rollouts, the update, and the seconds of each phase done by this process.

    `time_score_s` is what scoring took after the last group was sampled, `time_step_s` what the step took as a whole.
    """
    times = {name: run.seconds.get((step, name), 0.0) for name in ("sample", "score", "train", "save")}
    return {
        "step": step,
        **rollout_metrics(scored),
        "n_datums": result.n_datums,
        "n_tokens": result.n_tokens,
        "loss": result.loss,
        "kl_sample_train": result.kl_sample_train,
        "lr": run.settings.learning_rate,
        "seed": run.settings.seed,
        **{f"time_{name}_s": round(seconds, 3) for name, seconds in times.items()},
        "time_step_s": round(run.step_seconds(), 3),
    }


def _required(frame: pl.DataFrame | None, journal: StepJournal, phase: str) -> pl.DataFrame:
    if frame is None:
        require_in_place(journal.folder)
        raise DataError(
            f"{journal.folder}: {phase}.parquet is missing or damaged: start the run again to redo the phase"
        )
    return frame
