"""The three phases of a GRPO step, each a retried task: sample, score, update. A phase whose file is there reads it.

sample   groups/NN.parquet as each arrives, then sampled.parquet
score    sampled rollouts -> scored.parquet
update   scored rollouts  -> commit.json and the row of metrics.jsonl

Rollouts go from phase to phase in memory. The files are the journal: they are read where an earlier process wrote them.

With `refill` or `first_completions` a step is sampled in rounds. Once all groups of a round are graded, those that were
begun with a few completions and have a signal get the rest, and further problems are added in place of those whose
group has none, until enough have one. The grades and the seed alone decide, not what arrived first, and what a round
samples is recorded before any of it is sampled: a step that was killed goes on with the same groups. (First a few, then
the rest: Zhang et al., "SPEED-RL", screening and continuation.)
"""

import asyncio
import ctypes
import gc
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl
import tinker
from prefect import task

from coderl_tasks.errors import BudgetReachedError, CoderlError, InfraError
from coderl_tasks.insight.logging import RunLogger
from coderl_tasks.insight.warning_signs import Notice
from coderl_tasks.journal.atomic import require_room
from coderl_tasks.journal.ledger import add_lost, frame_tokens, metrics_tokens
from coderl_tasks.journal.steps import Commit, StepProblems, index_step
from coderl_tasks.policy import sampling
from coderl_tasks.policy.clients import Kind, create_sampling_client
from coderl_tasks.policy.grpo import groups_without_signal, with_advantages
from coderl_tasks.policy.rollout import SAMPLED_SCHEMA
from coderl_tasks.policy.selection import outcome, seed_for
from coderl_tasks.policy.step_metrics import UPDATE_METRICS, UpdatedStep, rollout_metrics
from coderl_tasks.policy.update import UpdateResult, observed, with_base_logprobs
from coderl_tasks.retries import PHASE
from coderl_tasks.rollouts.engine import supervised
from coderl_tasks.rollouts.turns import further_turns, is_unfinished, require_replies
from coderl_tasks.training.run import TrainingRun, adam_params_at, temperature_at

logger = logging.getLogger(__name__)
LARGE_STEP = 2**26
"""Bytes of a step's rollouts from which on what else was held of them is freed at once."""


@dataclass(slots=True, eq=False)
class Phase:
    """The rollouts that a phase made, and the seconds that it took: 0 where an earlier process made them. Asking the
    base model, if it was asked, took `base_seconds` more.

    Phases are handed these, not bare frames: Prefect keeps what a task was given and returned while anything runs that
    was begun in it, a timer of the SDK's connections among others, which is steps later. `release` empties it there.
    """

    rollouts: pl.DataFrame
    seconds: float = 0.0
    base_seconds: float | None = None

    def release(self) -> None:
        self.rollouts = self.rollouts.clear()


@task(name="sample", task_run_name="step-{step}-sample", **PHASE)
@supervised
async def sample(run: TrainingRun, step: int) -> Phase:
    """Returns the sampled rollouts of `step` (SAMPLED_SCHEMA): those recorded, and the rest sampled and recorded now.
    Raises InfraError if too many lack log-probabilities; their groups are discarded, and the task's retry samples them
    again. With `refill` or `first_completions` it grades each round; too many ungraded ones raise InfraError too."""
    journal = run.directory.step(step)
    recorded = journal.read("sampled")
    if recorded is None and (scored := journal.read("scored")) is not None:  # sampled.parquet was damaged or removed
        recorded = scored.select(list(SAMPLED_SCHEMA))  # scored rollouts hold the samples too
        journal.write("sampled", recorded)
    if recorded is not None:
        return Phase(recorded)
    started = time.monotonic()
    problems = journal.read_problems()
    if problems is None:
        # decided=0: no group has its final size yet.
        problems = StepProblems(run.select_problems(step=step, count=run.settings.problems_per_step), decided=0)
        if run.adaptive is not None or run.settings.first_completions:
            # Record the choice: adaptive estimates may round differently elsewhere, and later rounds extend the record.
            problems = _record_problems(run, step, problems.ids, known=[])
    groups = journal.groups.read()
    unfreed_bytes = 0.0

    def record(arrived: pl.DataFrame) -> None:
        nonlocal unfreed_bytes
        # Write it first: after a crash it need not be sampled, and paid for, again.
        index = arrived["group_index"][0]
        group = sampling.grown(groups[index], arrived) if index in groups else arrived
        journal.groups.write(index, group)
        groups[index] = group
        unfreed_bytes += arrived.estimated_size()  # the SDK's answer has the same tokens
        if unfreed_bytes > LARGE_STEP:
            free_garbage(unfreed_bytes)
            unfreed_bytes = 0.0

    sampler: tinker.SamplingClient | None = None  # one policy for all rounds
    engine, temperature = run.engine, temperature_at(run.settings, run.directory.commits(), step)
    sampler_step = max(-1, step - 1 - run.settings.max_steps_off_policy)  # trained into the policy; -1: none

    async def complete(request: sampling.GroupRequest) -> None:
        assert sampler is not None
        await engine.sample(sampler, run.pool[request.problem_id], request, record)
        run.graded_ahead.start(groups[request.group_index])

    async def go_on(group: pl.DataFrame) -> None:
        assert sampler is not None
        await further_turns(engine, sampler, run.pool[group["problem_id"][0]], group, temperature, record)
        run.graded_ahead.start(groups[group["group_index"][0]])

    # Groups that an earlier process sampled are graded as if they had just arrived; some lack turns.
    begun = [group for group in groups.values() if is_unfinished(group, engine.environment.turns.most)]
    if begun:
        sampler = await run.learner.sampling_client(sampler_step + 1)  # its updates
        await sampling.try_all(go_on, begun)
    for group in groups.values():
        run.graded_ahead.start(group)
    while True:
        # In a loop: `group_requests` asks for the first completions of a group alone, and then for the rest.
        while requests := group_requests(run, step, problems, groups, temperature, sampler_step):
            # A client is opened, and the policy restored for it, only where something is left to sample.
            sampler = sampler or await run.learner.sampling_client(sampler_step + 1)
            # Each group's own task records it, so it is on disk while slower groups are still being sampled.
            await sampling.try_all(complete, requests)
        sampled = sampling.in_order(groups.values(), SAMPLED_SCHEMA)
        try:
            sampling.require_sampled(sampled, f"step {step}")
        except InfraError:
            await _discard_unusable(run, step, groups)
            raise
        if engine.environment.turns.most > 1:
            require_replies(sampled, f"step {step}")
        next_problems = await _another_round(run, step, problems, sampled)
        if next_problems is None:
            break
        problems = next_problems
    free_garbage(sampled.estimated_size())  # writing needs memory too
    journal.write("sampled", sampled)
    return Phase(sampled, time.monotonic() - started)


async def _discard_unusable(run: TrainingRun, step: int, groups: Mapping[int, pl.DataFrame]) -> None:
    """Discard those of the recorded `groups` of `step` that lack log-probabilities, to be sampled again."""
    journal = run.directory.step(step)
    await run.graded_ahead.release(step)  # grades of groups that are discarded are void
    for index, group in groups.items():
        # Discard only these: the other groups are paid for, and stay recorded.
        if group["logprobs"].has_nulls():
            # Count before discarding: a crash in between may count the tokens twice, but never drops them.
            add_lost(journal.folder, frame_tokens(group))
            journal.groups.discard(index)


def free_garbage(size: float) -> None:
    """Free memory that is no longer referenced after a large step, whose rollouts have `size` bytes.

    The SDK's answers, and what Prefect's tasks returned, are in reference cycles. Python looks for these by the number
    of objects, and here they are few and large. A look takes 0.2 s, too long for every small step.
    """
    if size > LARGE_STEP:
        gc.collect()
        # The C library keeps what was freed, in pieces of many threads, and the next step would come on top of it.
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
            trim(0)


async def _another_round(
    run: TrainingRun, step: int, problems: StepProblems, sampled: pl.DataFrame
) -> StepProblems | None:
    """Records and returns what `step` samples next: the rest of each group whose first completions have a signal, and
    new problems in place of those whose group has none. Returns None if it has enough groups or may not sample more.
    Raises as `score` does: during an outage nobody knows which groups have a signal."""
    settings, problem_ids, recorded = run.settings, problems.ids, _sizes(run, problems)
    first, whole = settings.first_completions, settings.completions_per_problem
    # With `first`, `decided` is None where a caller chose the problems: none are added. (Without, refill is 1 there.)
    by_caller = first > 0 and problems.decided is None
    n_final = (problems.decided or 0) if first else 0  # the first so many groups have their final size
    # Needs no grades. With `first`: all have their final size. Without: no group is replaced, or no more are allowed.
    is_done = n_final == len(problem_ids) if first else settings.refill == 1 or settings.most_groups <= len(problem_ids)
    if is_done:
        return None
    try:
        graded = await run.graded_ahead.graded(sampled, f"step {step}")
    except Exception:
        await run.graded_ahead.release(step)  # so that a retry grades again
        raise
    without_signal = set(groups_without_signal(graded, run.count))
    sizes = recorded
    if first:
        # A group that ended stays ended: graded anew after a kill it could go on, but others have its completions.
        ended = {index for index, size in enumerate(recorded[:n_final]) if size == first}
        without_signal = ended | {index for index in without_signal if index >= n_final}
        sizes = [size if index in without_signal else whole for index, size in enumerate(recorded)]
    # With `first` a step's completions are bounded, not its groups: count each further problem as a whole group.
    limit = (settings.most_completions - sum(sizes)) // whole if first else settings.most_groups - len(problem_ids)
    missing = min(settings.problems_per_step - (len(problem_ids) - len(without_signal)), limit)
    further: list[str] = []
    if missing > 0 and not by_caller:
        further = run.select_problems(step=step, count=missing, taken=problem_ids)
    if not first and not further:
        return None
    counts = len(without_signal), len(problem_ids), len(further)
    logger.info("step %d: %d of %d groups without a signal: sampling %d more", step, *counts)
    # Record before sampling: grading anew could decide otherwise (a program at the edge of its time limit). With first
    # completions also if nothing follows: that is a decision too.
    return _record_problems(run, step, [*problem_ids, *further], known=sizes)


def _sizes(run: TrainingRun, problems: StepProblems) -> list[int]:
    return problems.sizes or [run.settings.completions_per_problem] * len(problems.ids)


def _record_problems(run: TrainingRun, step: int, problem_ids: list[str], known: list[int]) -> StepProblems:
    """Record that `step` is sampled on `problem_ids`: the first groups with the sizes `known`, further ones with those
    that the settings want."""
    journal, first = run.directory.step(step), run.settings.first_completions
    if not first:
        return journal.write_problems(problem_ids)
    return journal.write_problems(problem_ids, [*known, *[first] * (len(problem_ids) - len(known))], len(known))


def group_requests(
    run: TrainingRun,
    step: int,
    problems: StepProblems,
    sampled: Mapping[int, pl.DataFrame],
    temperature: float,
    sampler_step: int,
) -> list[sampling.GroupRequest]:
    """Returns what `step` samples next, in group order: one request per problem whose group lacks completions.
    `sampled` has the groups that there are. A group's `first_completions` are always a request of their own: a step
    that is resumed makes the same requests."""
    settings, requests = run.settings, []
    seeds_clone = run.probe is not None and run.probe.seeds_clone  # with a seed, all samples of a request are the same
    for index, (problem_id, size) in enumerate(zip(problems.ids, _sizes(run, problems), strict=True)):
        present = sampled[index].height if index in sampled else 0
        if present >= size:
            continue
        seed_suffix = (present,) if present else ()  # with the same seed the rest would repeat the first completions
        until = size if present else min(size, settings.first_completions or size)
        request = run.engine.request(
            run.pool[problem_id],
            group_index=index,
            num_samples=until - present,
            seed=None if seeds_clone else seed_for(settings.seed, "train", step, index, problem_id, *seed_suffix),
            step=step,
            temperature=temperature,
            sampler_step=sampler_step,
            first_sample=present,
        )
        requests.append(request)
    return requests


@task(name="score", task_run_name="step-{step}-score", **PHASE)
@supervised
async def score(run: TrainingRun, step: int, sampled: Phase) -> Phase:
    """Returns the scored rollouts of `step` (ROLLOUT_SCHEMA), with advantages: those recorded, or `sampled` once it is
    graded. Raises SandboxDownError or CoderlError if too many completions could not be graded."""
    journal = run.directory.step(step)
    recorded = journal.read("scored")
    if recorded is not None:
        return Phase(recorded)
    started = time.monotonic()
    try:
        # If this raises, nothing is written: the samples are scored again once the reward function is corrected.
        graded = await run.graded_ahead.graded(sampled.rollouts, f"step {step}")
    finally:
        await run.graded_ahead.release(step)  # after success for the memory, else so that a retry grades again
    settings = run.settings
    if settings.on_hack == "stop":
        require_honest(graded, step)  # before it is written: on resume the rewards are those of the setting then
    scored = with_advantages(graded, run.estimate, run.count, settings.turn_credit)
    base_rows: pl.Series | None = None
    asked = time.monotonic()
    if settings.kl.penalty_coef:  # the penalty needs all rows that are trained on
        base_rows = scored["trained"]
    elif run.measures_kl(step):
        base_rows = observed(scored, seed_for(settings.seed, "kl_base", step))
    base_seconds = None
    if base_rows is not None and base_rows.any():
        # Before scored.parquet is written: a replay of the update must not need the base model.
        base_client = await create_sampling_client(await run.session.service(), base_model=settings.model_name)
        scored = await with_base_logprobs(base_client, scored, settings.sample_concurrency, base_rows)
        base_seconds = time.monotonic() - asked
    journal.write("scored", scored)
    return Phase(scored, time.monotonic() - started - (base_seconds or 0.0), base_seconds)


def require_honest(graded: pl.DataFrame, step: int) -> None:
    """Raises CoderlError if a program of `step` (ROLLOUT_SCHEMA) is suspicious."""
    found = graded.filter(pl.col("suspicion").is_not_null())
    if found.height:
        first = found.row(0, named=True)
        raise CoderlError(
            f"step {step}: on_hack=stop: {found.height} programs that passed tests seem to have taken their reward "
            f"from the tests or the grader, the first on problem {first['problem_id']}: {first['suspicion']}. Nothing "
            "was trained on this step; resume with on_hack=quarantine (leaves them out) or on_hack=warn"
        )


@task(name="update", task_run_name="step-{step}-update", **PHASE)
@supervised
async def update(run: TrainingRun, step: int, scored: Phase, begun: float, seconds: dict[str, float]) -> Commit:
    """Applies the update of `step`, from its scored rollouts, and commits it; a recorded commit is returned as it is.
    `begun` (time.monotonic) is when the run began to wait for the step, `seconds` what its phases took until now."""
    journal = run.directory.step(step)
    recorded = journal.read_commit()
    if recorded is not None:
        return recorded
    settings, rollouts = run.settings, scored.rollouts
    adam = adam_params_at(settings, run.directory.commits(), step)
    # The commit names what is saved here: a state if due, unless a checkpoint has it, and with overlap sampler weights.
    save: Kind | None = "sampler" if settings.max_steps_off_policy else None
    if run.is_due(step, settings.rolling_save.every) and not run.keeps(step):
        save = "both" if settings.max_steps_off_policy else "state"
    result, saved, update_seconds = await run.learner.update(step, rollouts, adam, save)
    free_garbage(rollouts.estimated_size())
    service_metrics = result.steps[-1].service_metrics if result.steps else {}
    answered = ", ".join(f"{name}={value:.6g}" for name, value in sorted(service_metrics.items()))
    logger.info("step %d: Tinker answered %s", step, answered or "nothing: no group had a signal")
    metrics = step_metrics(run, step, rollouts, result, adam.learning_rate, begun, seconds | update_seconds)
    # Decide once, and record it in the commit: decided again after a kill, the result could differ.
    steering = run.steering
    decided = None if steering is None else steering.decide(step, metrics, may_be_hotter=run.may_be_hotter)
    if decided is not None:  # (act, message)
        metrics["act"] = decided[1]
    groups = sampling.split_groups(rollouts) if run.adaptive is not None else []  # nothing else asks for outcomes
    commit = Commit(
        step=step,
        metrics=metrics,
        # A replay uses these parameters, whatever a resume has changed in the settings since.
        adam=adam.model_dump(),
        method=run.learner.method.record(),
        # A single optimizer step is in the metrics.
        updates=[optimizer_step.row() for optimizer_step in result.steps] if len(result.steps) > 1 else [],
        acts=[] if decided is None else [asdict(decided[0])],
        outcomes=[(group["problem_id"][0], *outcome(run.count(group))) for group in groups],
        **saved,
    )
    # A crash before this line repeats the update from a saved state: nothing else says that it was applied.
    journal.write_commit(commit, result.trainer_logprobs)
    index_step(run.directory.path, step, rollouts)
    run.session.budget.commit(step, metrics["tokens_training"], metrics["tokens_base"])
    await run.learner.delete_outdated()  # after the commit: until then an older state may be needed
    return commit


def step_metrics(
    run: TrainingRun,
    step: int,
    scored: pl.DataFrame,
    result: UpdateResult,
    learning_rate: float,
    begun: float,
    seconds: dict[str, float],
) -> dict[str, Any]:
    """The step's row of metrics.jsonl, by column. `result` is what its update did, `begun` (time.monotonic) when the
    run began to wait for it, `seconds` what sample, score, base, train and save took in this process."""
    spent = {"sample": 0.0, "score": 0.0} | seconds
    settings = run.settings
    # From this index on, groups replaced others; None: without these settings no group does.
    own_groups = settings.problems_per_step if settings.refill > 1 or settings.first_completions else None
    # Computed before the clock is read: this time is part of the step.
    of_rollouts = rollout_metrics(scored, own_groups, epochs=settings.epochs_per_rollout_batch)
    spent["step"] = time.monotonic() - begun
    forecast = None
    if run.adaptive is not None:
        # Forecast for first completions only: a group's final size already tells whether they had a signal.
        recorded = run.directory.step(step).read_problems()
        problems = recorded or StepProblems(run.select_problems(step=step, count=settings.problems_per_step))
        first, sizes = settings.first_completions, _sizes(run, problems)
        forecast = run.adaptive.forecast(step, problems.ids, [first] * len(sizes) if first else sizes)
    price = run.session.budget.price
    # The base model reads of a row what training on it would. With the penalty the price of training has this.
    base_rows = scored.lazy().filter(pl.col("base_logprobs").is_not_null()).drop("trained")
    base_tokens = 0 if settings.kl.penalty_coef else frame_tokens(base_rows, epochs=1).training
    cost = None if price is None else price.usd(metrics_tokens(of_rollouts | {"tokens_base": base_tokens}))
    faults = run.session.judge.client.take_faults()
    updated = UpdatedStep(result, learning_rate, settings.seed, spent, forecast, cost, faults, base_tokens)
    of_update = {metric.name: metric.compute(updated) for metric in UPDATE_METRICS}
    by_server = {f"sandbox_faults/{url.partition('//')[2]}": count for url, count in faults.items()}
    return {"step": step, **of_rollouts, **of_update, **by_server}


@task(name="delete-old-states", **PHASE)
@supervised
async def delete_old_states(run: TrainingRun) -> None:
    await run.learner.delete_outdated()


@task(name="checkpoint", task_run_name="step-{step}-checkpoint", **PHASE)
@supervised
async def checkpoint(run: TrainingRun, step: int) -> None:
    await run.learner.save(step)


Sample = Callable[[int], Coroutine[Any, Any, Phase]]
Score = Callable[[TrainingRun, int, Phase], Coroutine[Any, Any, Phase]]
Update = Callable[[TrainingRun, int, Phase, float, dict[str, float]], Coroutine[Any, Any, Commit]]


async def run_step(
    run: TrainingRun,
    step: int,
    sample: Sample,
    score: Score,
    update: Update,
    log: RunLogger,
    on_phase: Callable[[str], object] = lambda phase: None,
) -> tuple[Commit, list[Notice]]:
    """Samples, scores, updates and logs `step`, by phases that have the caller's retries; `on_phase` shows the current
    one. Returns the commit and new warning signs. Raises InfraError if a disk is nearly full."""
    require_room(run.folders, run.state_bytes)
    begun = time.monotonic()  # from here on the run waits for the step, part of which may be sampled already
    on_phase("sampling")
    sampled = await sample(step)
    on_phase("scoring")
    scored = await score(run, step, sampled)
    on_phase("updating")
    seconds = {"sample": sampled.seconds, "score": scored.seconds}
    if scored.base_seconds is not None:
        seconds["base"] = scored.base_seconds
    commit = await update(run, step, scored, begun, seconds)
    log.log_groups(scored.rollouts, commit.metrics["clone_groups"])
    notices = log.log_metrics(commit.metrics, step)
    # Free memory before the next step is sampled: a step of long completions takes most of the run's.
    size = scored.rollouts.estimated_size()
    sampled.release()
    scored.release()
    free_garbage(size)
    return commit, notices


class SamplingAhead(AbstractAsyncContextManager["SamplingAhead"]):
    """Runs `sample`, which retries what is retryable, for one step after the other, and for up to `ahead` steps before
    their turn, of which `may_begin` is true.

    They are begun in order, once the step before all of them is asked for: their groups queue for the same slots in
    that order, so that no slot is empty while a step waits for its slowest group. What is under way when the block ends
    is cancelled; the groups that have arrived are recorded.
    """

    def __init__(self, sample: Sample, may_begin: Callable[[int], bool], ahead: int = 1) -> None:
        self._sample = sample
        self._may_begin = may_begin
        self._ahead = ahead
        self._begun: dict[int, asyncio.Task[Phase]] = {}

    async def __aexit__(self, *_: object) -> None:
        await self._cancel(list(self._begun))

    async def sampled(self, step: int) -> Phase:
        """The sampled `step`; the steps after it are under way by then. Raises what sampling raised."""
        was_begun = step in self._begun
        window = range(step, step + 1 + self._ahead)
        if outside := [begun for begun in self._begun if begun not in window]:
            await self._cancel(outside)
        for later in window:
            if later not in self._begun and (later == step or self._may_begin(later)):
                self._begun[later] = asyncio.create_task(self._sample(later))
        try:
            sampled = await self._begun[step]
        except (InfraError, BudgetReachedError):
            if not was_begun:
                raise
            # A while ago: the service may be back, a commit have left room.
            self._begun[step] = asyncio.create_task(self._sample(step))
            sampled = await self._begun[step]
        del self._begun[step]
        return sampled

    async def _cancel(self, steps: Sequence[int]) -> None:
        ended = [self._begun.pop(step) for step in steps]
        for each in ended:
            each.cancel()
        # Until they have ended: no group may be recorded once the directory is no longer held.
        await asyncio.gather(*ended, return_exceptions=True)
