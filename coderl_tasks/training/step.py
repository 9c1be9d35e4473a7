"""The three phases of a GRPO step, each a retried task: sample, score, update. A phase whose file is there reads it.

sample   groups/NN.parquet as each arrives, then sampled.parquet
score    sampled rollouts -> scored.parquet
update   scored rollouts  -> commit.json and the row of metrics.jsonl

Rollouts go from phase to phase in memory; the files are read where an earlier process wrote them.

With `refill` or `first_completions` a step is sampled in rounds, until enough groups have a signal. The grades and the
seed alone decide what the next round samples, and that is recorded before any of it is sampled: a step that was killed
goes on with the same groups. (Zhang et al., "SPEED-RL", screening and continuation.)
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
ROUND_LINE = "step %d: %d of %d groups without a signal: sampling %d more"
LARGE_STEP = 2**26
"""Bytes of a step's rollouts from which on what else was held of them is freed at once."""


@dataclass(slots=True, eq=False)
class PhaseResult:
    """The rollouts that a phase made, and the seconds that it took: 0 where an earlier process made them. Asking the
    base model, if it was asked, took `base_seconds` more.

    Not a bare frame: Prefect keeps what a task was given and returned for several steps. `release` empties it there."""

    rollouts: pl.DataFrame
    seconds: float = 0.0
    base_seconds: float | None = None

    def release(self) -> None:
        self.rollouts = self.rollouts.clear()


@task(name="sample", task_run_name="step-{step}-sample", **PHASE)
@supervised
async def sample(run: TrainingRun, step: int) -> PhaseResult:
    """Returns the sampled rollouts of `step` (SAMPLED_SCHEMA): one group of completions per problem. Uses what an
    earlier process recorded, and samples only the rest. Each group is recorded as it arrives, and graded while
    others are sampled. Raises InfraError if a round cannot be graded, or if too many completions lack
    log-probabilities: their groups are discarded, and the retry samples them again."""
    settings, journal, engine = run.settings, run.directory.step(step), run.engine
    recorded = journal.read("sampled")
    if recorded is None and (scored := journal.read("scored")) is not None:  # sampled.parquet was damaged or removed
        recorded = scored.select(list(SAMPLED_SCHEMA))  # scored rollouts hold the samples too
        journal.write("sampled", recorded)
    if recorded is not None:
        return PhaseResult(recorded)
    started = time.monotonic()
    problems = journal.read_problems()
    if problems is None:
        # decided=0: no group has its final size yet.
        problems = StepProblems(run.select_problems(step=step, count=settings.problems_per_step), decided=0)
        if run.adaptive is not None or settings.first_completions:
            # Record the choice: adaptive estimates may round differently elsewhere, and later rounds extend the record.
            problems = _record_problems(run, step, problems.ids, final_sizes=[])
    groups = journal.groups.read()  # by group index; what arrives is added
    unfreed_bytes = 0.0
    # The policy may lack the updates of the last max_steps_off_policy steps.
    policy_updates = max(0, step - settings.max_steps_off_policy)
    temperature = temperature_at(settings, run.directory.commits(), step)
    # One client for all rounds. It is opened only if something is left to sample: the policy may have to be restored.
    sampler: tinker.SamplingClient | None = None

    def record(arrived: pl.DataFrame) -> None:  # a group, or the completions or turns that it has grown by
        nonlocal unfreed_bytes
        # Write it first: after a crash it need not be sampled, and paid for, again.
        index = arrived["group_index"][0]
        group = sampling.grown(groups[index], arrived) if index in groups else arrived
        journal.groups.write(index, group)
        groups[index] = group
        unfreed_bytes += arrived.estimated_size()  # about as much as the SDK's answer, which is garbage now
        if unfreed_bytes > LARGE_STEP:
            free_garbage(unfreed_bytes)
            unfreed_bytes = 0.0

    async def sample_and_grade(request: sampling.GroupRequest) -> None:
        assert sampler is not None
        await engine.sample(sampler, run.pool[request.problem_id], request, record)
        run.graded_ahead.start(groups[request.group_index])

    async def finish_turns(group: pl.DataFrame) -> None:
        assert sampler is not None
        await further_turns(engine, sampler, run.pool[group["problem_id"][0]], group, temperature, record)
        run.graded_ahead.start(groups[group["group_index"][0]])

    # Groups of an earlier process get the turns that they lack, and are graded as if they had just arrived.
    unfinished = [group for group in groups.values() if is_unfinished(engine, group)]
    if unfinished:
        # On a retry, their grades are of the completions that lacked a reply.
        await run.graded_ahead.release(step)
        sampler = await run.learner.sampling_client(policy_updates)
        await sampling.try_all(finish_turns, unfinished)
    for group in groups.values():
        run.graded_ahead.start(group)
    while True:  # one pass per round
        # Request repeatedly: the rest of a group is another request than its first completions, and comes after them.
        while requests := group_requests(run, step, problems, groups, temperature, sampler_step=policy_updates - 1):
            sampler = sampler or await run.learner.sampling_client(policy_updates)
            # Each group's own task records it, so it is on disk while slower groups are still being sampled.
            await sampling.try_all(sample_and_grade, requests)
        sampled = sampling.in_order(groups.values(), SAMPLED_SCHEMA)
        try:
            sampling.require_sampled(sampled, f"step {step}")
        except InfraError:
            # Discard the groups that lack log-probabilities, and no others: these are paid for, and stay recorded.
            await run.graded_ahead.release(step)  # grades of groups that are discarded are void
            for index, group in groups.items():
                if group["logprobs"].has_nulls():
                    # Count before discarding: a crash in between may count the tokens twice, but never drops them.
                    add_lost(journal.folder, frame_tokens(group))
                    journal.groups.discard(index)
            raise
        if engine.environment.turns.most > 1:
            require_replies(sampled, f"step {step}")
        further = None  # the problems of the next round, if there is one
        if settings.first_completions or settings.refill > 1:
            further = await _next_round(run, step, problems, sampled)
        if further is None:
            break
        problems = further
    free_garbage(sampled.estimated_size())  # writing needs memory too
    journal.write("sampled", sampled)
    return PhaseResult(sampled, seconds=time.monotonic() - started)


def free_garbage(size: float) -> None:
    """Free memory that is no longer referenced after a large step, whose rollouts have `size` bytes: the SDK's answers
    and the results of Prefect's tasks are in reference cycles, few and large. A look takes 0.2 s."""
    if size > LARGE_STEP:
        gc.collect()
        # The C library keeps what was freed, in pieces of many threads, and the next step would come on top of it.
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
            trim(0)


async def _next_round(
    run: TrainingRun, step: int, problems: StepProblems, sampled: pl.DataFrame
) -> StepProblems | None:
    """Returns, and records, what `step` samples next, once its `sampled` groups are graded; None if nothing more.

    With `refill` new problems are added in place of those whose groups have no signal. With `first_completions` groups
    whose first completions have a signal also get the rest of them; the others stay as they are."""
    settings, problem_ids = run.settings, problems.ids
    first, whole = settings.first_completions, settings.completions_per_problem
    n_final = problems.decided or 0  # with `first_completions`: the sizes of the first so many groups are final
    is_last = n_final == len(problem_ids) if first else len(problem_ids) >= settings.most_groups
    if is_last:
        return None
    graded = await run.graded_ahead.graded(sampled, f"step {step}")
    without_signal = set(groups_without_signal(graded, run.counted_rewards))
    sizes: list[int] = []
    if first:
        recorded_sizes = _group_sizes(run, problems)
        # Final sizes stay, even if groups that are graded anew after a kill come out otherwise: what an ended group did
        # not get went to other groups.
        ended = {index for index, size in enumerate(recorded_sizes[:n_final]) if size == first}
        without_signal = ended | {index for index in without_signal if index >= n_final}
        sizes = [size if index in without_signal else whole for index, size in enumerate(recorded_sizes)]
        # A step's completions are bounded, not its groups: count each new problem as a whole group. If a caller chose
        # the problems (`decided` is None), none are added.
        may_be_added = 0 if problems.decided is None else (settings.most_completions - sum(sizes)) // whole
    else:
        may_be_added = settings.most_groups - len(problem_ids)
    count = min(settings.problems_per_step - (len(problem_ids) - len(without_signal)), may_be_added)
    further = run.select_problems(step=step, count=count, taken=problem_ids) if count > 0 else []
    if not further and not first:
        return None
    logger.info(ROUND_LINE, step, len(without_signal), len(problem_ids), len(further))
    # Before sampling: grading anew could decide otherwise (a program at the edge of its time limit). With
    # `first_completions` also if no problem is added, since the sizes are a decision too.
    return _record_problems(run, step, [*problem_ids, *further], final_sizes=sizes)


def _group_sizes(run: TrainingRun, problems: StepProblems) -> list[int]:
    return problems.sizes or [run.settings.completions_per_problem] * len(problems.ids)


def _record_problems(
    run: TrainingRun, step: int, problem_ids: list[str], final_sizes: Sequence[int] = ()
) -> StepProblems:
    """Records the problems of `step`. With `first_completions` also each group's size: the first groups have
    `final_sizes`, and those after them begin with their first completions."""
    journal, first = run.directory.step(step), run.settings.first_completions
    if not first:
        return journal.write_problems(problem_ids)
    sizes = [*final_sizes, *[first] * (len(problem_ids) - len(final_sizes))]
    return journal.write_problems(problem_ids, sizes, decided=len(final_sizes))


def group_requests(
    run: TrainingRun,
    step: int,
    problems: StepProblems,
    sampled: Mapping[int, pl.DataFrame],
    temperature: float,
    sampler_step: int,
) -> list[sampling.GroupRequest]:
    """Returns what `step` samples next, in group order: one request per problem whose group (in `sampled`, by index)
    lacks completions. A group's `first_completions` are a request of their own; the rest follows if `problems` says so.
    A resumed step makes the same requests."""
    settings, requests = run.settings, []
    seeds_clone = run.probe is not None and run.probe.seeds_clone  # with a seed, all samples of a request are the same
    for index, (problem_id, size) in enumerate(zip(problems.ids, _group_sizes(run, problems), strict=True)):
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
async def score(run: TrainingRun, step: int, sampled: PhaseResult) -> PhaseResult:
    """Returns the scored rollouts of `step` (ROLLOUT_SCHEMA), with advantages: those recorded, or `sampled` once it is
    graded. Raises SandboxDownError or CoderlError if too many completions could not be graded."""
    journal = run.directory.step(step)
    recorded = journal.read("scored")
    if recorded is not None:
        return PhaseResult(recorded)
    started = time.monotonic()
    # Most groups are graded already. If this raises, nothing is written: the samples are scored again later.
    graded = await run.graded_ahead.graded(sampled.rollouts, f"step {step}")
    settings = run.settings
    if settings.on_hack == "stop":
        require_honest(graded, step)  # before it is written: on resume the rewards are those of the setting then
    scored = with_advantages(graded, run.estimate_advantages, run.counted_rewards, settings.turn_credit)
    # The base model's log-probabilities: a KL penalty needs those of all rows that are trained on, the metric a sample.
    asked = time.monotonic()
    is_asked: pl.Series | None = None  # per row: whether the base model is asked about it
    if settings.kl.penalty_coef:
        is_asked = scored["trained"]
    elif run.measures_kl(step):
        is_asked = observed(scored, seed_for(settings.seed, "kl_base", step))
    base_seconds: float | None = None
    if is_asked is not None and is_asked.any():
        # Before scored.parquet is written: a replay of the update must not need the base model.
        base_client = await create_sampling_client(await run.session.service(), base_model=settings.model_name)
        scored = await with_base_logprobs(base_client, scored, settings.sample_concurrency, which=is_asked)
        base_seconds = time.monotonic() - asked
    journal.write("scored", scored)
    # Only now: a retry after a failure of the base model takes the grades that decided what was sampled.
    await run.graded_ahead.release(step)
    return PhaseResult(scored, seconds=time.monotonic() - started - (base_seconds or 0.0), base_seconds=base_seconds)


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
async def update(run: TrainingRun, step: int, scored: PhaseResult, begun: float, seconds: dict[str, float]) -> Commit:
    """Applies the update of `step` and commits it; a recorded commit is returned as it is. `begun` (time.monotonic) is
    when the run began to wait for the step, `seconds` what its phases took until now."""
    journal = run.directory.step(step)
    recorded = journal.read_commit()
    if recorded is not None:
        return recorded
    settings, rollouts = run.settings, scored.rollouts
    adam = adam_params_at(settings, run.directory.commits(), step)
    # Saved now, and named in the commit: sampler weights if later steps are sampled while this policy is trained on,
    # and a training state if one is due, unless a checkpoint has it.
    save: Kind | None = "sampler" if settings.max_steps_off_policy else None
    if run.is_due(step, settings.rolling_save.every) and not run.checkpoint_is_due(step):
        save = "both" if settings.max_steps_off_policy else "state"
    result, saved_paths, update_seconds = await run.learner.update(step, rollouts, adam, save)
    free_garbage(rollouts.estimated_size())
    service_metrics = result.steps[-1].service_metrics if result.steps else {}
    answered = ", ".join(f"{name}={value:.6g}" for name, value in sorted(service_metrics.items()))
    logger.info("step %d: Tinker answered %s", step, answered or "nothing: no group had a signal")
    metrics = step_metrics(run, step, rollouts, result, adam.learning_rate, begun, seconds | update_seconds)
    # With steer=act: a change of settings for later steps. Recorded, since after a kill another might be decided on.
    acts: list[dict[str, Any]] = []
    if run.steering is not None:
        decision = run.steering.decide(step, metrics, may_raise_temperature=run.may_raise_temperature)
        if decision is not None:
            metrics["act"] = decision.message
            acts = [asdict(decision.act)]
    # What selection=adaptive learns from: of each group its problem, and how many completions were right and counted.
    outcomes: list[tuple[str, float, int]] = []
    for group in sampling.split_groups(rollouts) if run.adaptive is not None else []:
        n_right, n_counted = outcome(run.counted_rewards(group))
        outcomes.append((group["problem_id"][0], n_right, n_counted))
    commit = Commit(
        step=step,
        metrics=metrics,
        # A replay uses these parameters, whatever a resume has changed in the settings since.
        adam=adam.model_dump(),
        method=run.learner.method.record(),
        # A single optimizer step is in the metrics.
        updates=[optimizer_step.row() for optimizer_step in result.steps] if len(result.steps) > 1 else [],
        acts=acts,
        outcomes=outcomes,
        **saved_paths,
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
    """Returns the step's row of metrics.jsonl, by column, for what its update did (`result`). `begun` and `seconds` are
    as in `update`, with train and save."""
    settings = run.settings
    of_rollouts = rollout_metrics(scored, settings)
    # Read the clock after the metrics of rollouts are computed: this time is part of the step.
    spent = {"sample": 0.0, "score": 0.0} | seconds | {"step": time.monotonic() - begun}
    forecast = None
    if run.adaptive is not None:
        recorded = run.directory.step(step).read_problems()
        problems = recorded or StepProblems(run.select_problems(step=step, count=settings.problems_per_step))
        # Forecast the first completions only, if groups begin with these: final sizes tell which of them had a signal.
        first, sizes = settings.first_completions, _group_sizes(run, problems)
        forecast = run.adaptive.forecast(step, problems.ids, sizes=[first] * len(sizes) if first else sizes)
    # What the base model read to measure the KL, trained on or not. The price of training includes a KL penalty's.
    base_rows = scored.lazy().filter(pl.col("base_logprobs").is_not_null()).drop("trained")
    base_tokens = 0 if settings.kl.penalty_coef else frame_tokens(base_rows, epochs=1).training
    price, faults = run.session.budget.price, run.session.judge.client.take_faults()  # failed requests, by sandbox
    cost = None if price is None else price.usd(metrics_tokens(of_rollouts | {"tokens_base": base_tokens}))
    updated = UpdatedStep(
        result, learning_rate, settings.seed, spent, forecast, cost, sandbox_faults=faults, base_tokens=base_tokens
    )
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


Sample = Callable[[int], Coroutine[Any, Any, PhaseResult]]
Score = Callable[[TrainingRun, int, PhaseResult], Coroutine[Any, Any, PhaseResult]]
Update = Callable[[TrainingRun, int, PhaseResult, float, dict[str, float]], Coroutine[Any, Any, Commit]]


async def run_step(
    run: TrainingRun,
    step: int,
    sample: Sample,
    score: Score,
    update: Update,
    log: RunLogger,
    on_phase: Callable[[str], object] = lambda phase: None,
) -> tuple[Commit, list[Notice]]:
    """Samples, scores, updates and logs `step`, by phases that have the caller's retries. Returns the commit and new
    warning signs. Raises InfraError if a disk is nearly full."""
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
    log.log_groups(scored.rollouts, commit.metrics["clone_groups"])  # how many groups have identical completions
    notices = log.log_metrics(commit.metrics, step)
    # Free memory before the next step is sampled: a step of long completions takes most of the run's.
    size = scored.rollouts.estimated_size()
    sampled.release()
    scored.release()
    free_garbage(size)
    return commit, notices


class SamplingAhead(AbstractAsyncContextManager["SamplingAhead"]):
    """Runs `sample`, which retries what is retryable, for one step after the other, and for up to `ahead` steps before
    their turn, of which `may_begin` is true. They are begun in order, so that no slot is empty while a step waits for
    its slowest group. What is under way when the block ends is cancelled; the groups that have arrived are recorded."""

    def __init__(self, sample: Sample, may_begin: Callable[[int], bool], ahead: int = 1) -> None:
        self._sample, self._may_begin, self._ahead = sample, may_begin, ahead
        self._begun: dict[int, asyncio.Task[PhaseResult]] = {}

    async def __aexit__(self, *_: object) -> None:
        await self._cancel(list(self._begun))

    async def sampled(self, step: int) -> PhaseResult:
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
