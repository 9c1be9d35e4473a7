"""train: GRPO steps on a pool, each phase a retried task; `coderl train log_path=RUN` goes on where RUN ends."""

import asyncio
import math
import shlex
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import polars as pl
from prefect import flow

import flows  # noqa: F401 - first: Prefect loads this file by its path, without its package
from coderl_tasks.curation.find_pool import FoundPool, finished_with
from coderl_tasks.disk import states_line
from coderl_tasks.errors import CoderlError
from coderl_tasks.insight.diagnosis import smoke_checks
from coderl_tasks.insight.logging import RunLogger, early_lines, run_logger
from coderl_tasks.insight.record import load_run
from coderl_tasks.insight.report import step_history_markdown, write_report
from coderl_tasks.insight.terminal import pool_lines
from coderl_tasks.insight.token_uses import costs
from coderl_tasks.insight.warning_signs import memory_advice
from coderl_tasks.journal.directory_lock import held_by
from coderl_tasks.journal.ledger import Tokens, cost_line, recorded_price
from coderl_tasks.journal.recorded_json import LOCK_FILE
from coderl_tasks.journal.run_directory import RunDirectory, was_stopped
from coderl_tasks.journal.steps import BASELINE, FINAL, step_name
from coderl_tasks.paths import same_model
from coderl_tasks.planning.early_checks import deployed_name
from coderl_tasks.planning.estimates import FIRST_STEPS, forecast_line, minutes_line
from coderl_tasks.planning.flow_plans import doubt_of, is_finished_run, plan_training, run_config, start_note
from coderl_tasks.policy.grpo import compute_advantages, make_datum, should_skip, train_step
from coderl_tasks.problems.loading import NO_EVALUATION, evaluation_side, same_side
from coderl_tasks.problems.sources import is_file
from coderl_tasks.runtime.display import (
    Display,
    command_line,
    exclusive_flow,
    forget_old_task_results,
    is_subflow,
    name_flow_run,
    publish_later,
    saying_what_next,
    suspended_in_outages,
)
from coderl_tasks.services import services
from coderl_tasks.settings import CurateSettings, TrainSettings
from coderl_tasks.settings.flow_settings import SMOKE
from coderl_tasks.training import step as phases
from coderl_tasks.training.around_steps import BEFORE_TRAINING, eval_metrics, evaluate_run, prepare, probe_run
from coderl_tasks.training.run import TrainingRun, open_run
from flows.curate import curate

# The flow, and beside it the four functions that one looks for in a `train.py`; coderl_tasks.policy.grpo has them.
__all__ = ["compute_advantages", "make_datum", "should_skip", "train", "train_step"]
# Steps between histories, and the share by which the run has to have grown since the last one. Seconds after which a
# history is due anyway, in the first ARTIFACT_EVERY steps and later.
ARTIFACT_EVERY, ARTIFACT_GROWTH = 10, 0.1
ARTIFACT_PAUSE_S, LATER_PAUSE_S = 30.0, 600.0


@flow(name="train")
@exclusive_flow
async def train(settings: TrainSettings) -> str:
    """Train on a pool with GRPO. Returns the run directory; a run directory that exists is resumed."""
    with early_lines():
        async with suspended_in_outages(settings.suspend_hours):
            return await _run(settings)


async def _run(settings: TrainSettings) -> str:
    """Makes a missing pool, creates or resumes the run, trains its remaining steps, reports. Returns the directory."""
    settings, pool, path = await plan_training(settings)
    if isinstance(pool, CurateSettings):  # the settings of the curation that makes the missing pool; then start over
        with services(settings.model_name, settings.model_reason):  # the pool and the run share them
            with saying_what_next(Display(), command_line("train", settings)):
                made = await _make_pool(pool)
            return await _run(settings.with_changes(pool=made))
    # A warning if log_path may be a misspelled run. Asked now: opening the directory creates it.
    doubt = doubt_of(settings)
    finished = partial(is_finished_run, settings=settings)
    with RunDirectory.open(path, run_config(settings), is_finished=finished) as directory:
        display = Display()
        name_flow_run(directory.path.name, root=True)
        for line in _first_lines(settings, directory, pool, doubt):
            display.say(line)
        if directory.finished:
            await _finish(directory, settings, display)
            return str(directory.path)
        with run_logger(settings, directory) as logger:  # open while the servers stop and until results are shown
            await _train_with_services(settings, directory, pool, logger, display)
            directory.reconcile_metrics()  # restores rows that an earlier start's crash left out
            await _finish(directory, settings, display)
    return str(directory.path)


def _first_lines(settings: TrainSettings, directory: RunDirectory, pool: FoundPool, doubt: str | None) -> Iterator[str]:
    """Which directory the run has, and why that may not be the one that the user means. If no step is left, how to
    train more; else what the run trains on and is evaluated on, warnings about both, its steps, and how to resume."""
    yield f"run directory: {directory.path} ({start_note(directory)})"
    if doubt is not None:  # only in a deployment's run, which nobody can ask; `plan_training` refuses any other
        yield f"warning: {doubt}"
    # Whether nobody named the run. `deployed_name` is last, as it may ask the Prefect server.
    if directory.resumed and settings.log_path is None and deployed_name() is None:
        yield "continuing the unfinished run that has these settings (resume=never starts another one)"
    if directory.finished:
        # With steer=act a run changes its own settings: each change is an act, and one of them may end the run.
        was_ended_by_act = settings.steer == "act" and was_stopped(directory.path, directory.last_committed_step)
        more = "an act ended it; steer=advise continues" if was_ended_by_act else "max_steps=N adds steps"
        yield f"finished: {directory.next_step} steps, nothing is left to do; {more}"
        if directory.changes:
            yield f"without effect, as no step is left: {', '.join(map(str, directory.changes))}"
        return
    yield from pool_lines(pool, settings, time.time())
    if settings.eval.every != -1:
        yield f"evaluated on: {evaluation_side(settings)}"
    warnings = (pool_warning(pool, settings.model_name), leakage_warning(pool, settings), settings.size_warning)
    yield from filter(None, warnings)
    yield f"steps: {steps_note(settings, resumed=directory.resumed)}"
    if note := optimizer_steps_note(settings):
        yield note
    yield f"to resume: {resume_command(directory)}"


async def _train_with_services(
    settings: TrainSettings, directory: RunDirectory, pool: FoundPool, logger: RunLogger, display: Display
) -> None:
    """Trains the remaining steps of the run in `directory`, on services that start and stop with this call."""
    with services(settings.model_name, settings.model_reason) as used:
        for line in used.lines:
            display.say(line)
        changes = [change.on_resume(directory.next_step) for change in directory.changes]  # since an earlier start
        # What the training will need: disk and time here, else a service's tokens and money, before anything is billed.
        if used.tinker_is_embedded:
            ratio_note = temperature_note(settings.temperature)  # with other services the probe before step 0 tells it
            needs = [states_line(settings), *changes, ratio_note, minutes_line(settings, pool, directory.path)]
        else:
            needs = [*changes, forecast_line(settings, pool, directory.path)]
        for line in filter(None, needs):
            display.say(line)
        command = resume_command(directory)
        with saying_what_next(display, command, lambda: f"stopped before step {directory.next_step}"):
            try:
                async with open_run(settings, directory, used) as run:
                    await _train(run, logger, display, pool)
            except Exception as error:
                # Caught here, where the run's settings are known: they decide what would take less memory.
                if advice := memory_advice(error, directory.config):
                    display.say(f"warning: {advice}")
                raise


async def _make_pool(pool: CurateSettings) -> str:
    """The folder of the pool, once this process or another one has made it."""
    display, folder = Display(), Path(str(pool.name))
    display.say(f"no pool of {pool.dataset} yet: making one of all its problems, without a profile: {folder}")
    if (other := held_by(folder, LOCK_FILE)) is not None:
        display.say(f"waiting for {other}, which is making it")
        while held_by(folder, LOCK_FILE) is not None:
            await asyncio.sleep(1)
    return str(folder) if finished_with(folder) == pool.content() else await curate(pool)


def resume_command(directory: RunDirectory) -> str:
    """The command that goes on with a run, as a shell takes it."""
    return f"coderl train log_path={shlex.quote(str(directory.path))} resume=must"


def steps_note(settings: TrainSettings, *, resumed: bool) -> str:
    steps = settings.max_steps
    if steps == -1:
        return "until it is stopped (max_steps=N ends it)"
    if resumed or "max_steps" in settings.given:
        return str(steps)
    if settings.preset is not None:
        return f"{steps} (preset {settings.preset})"
    return f"{steps}, as max_steps was not given and a service bills (max_steps=-1: until it is stopped)"


def optimizer_steps_note(settings: TrainSettings) -> str | None:
    """How many optimizer steps a step makes with a given train_batch_size, which is problems per step in other tools;
    None where it is not given, or each pass is one optimizer step."""
    size, completions = settings.train_batch_size, settings.batch_size
    if "train_batch_size" not in settings.given or size is None or size >= completions:
        return None
    count = settings.epochs_per_rollout_batch * math.ceil(completions / size)
    return (
        f"each step makes up to {count} optimizer steps: train_batch_size={size} of its {completions} completions "
        "(problems_per_step sets its problems)"
    )


def temperature_note(temperature: float) -> str | None:
    """What the importance ratio means on the embedded server at a sampling temperature T other than 1; None at 1. A
    token sampled at T from the same weights has the ratio P(token)^(1 - 1/T) Z, with Z the sum of the trainer's
    P^(1/T)."""
    if temperature == 1:
        return None
    above, below = ("likely", "unlikely") if temperature > 1 else ("unlikely", "likely")
    return (
        f"temperature {temperature:g}: the importance ratio is the trainer's probability at temperature 1 over the "
        f"sampler's at {temperature:g}: not 1 even for equal weights, above 1 for {above} tokens, below for {below} "
        "ones. It corrects each token's own draw towards temperature 1, not the tokens before and after it; "
        "kl_sample_train holds the same gap"
    )


def pool_warning(pool: FoundPool, model_name: str) -> str | None:
    if (other := pool.profiled_with()) is None or same_model(other, model_name):
        return None
    return (
        f"warning: the pool was profiled with {other}, and {model_name} is trained: its pass rates may be others "
        "(coderl curate makes a pool for it)"
    )


def size_warning(problems: int, settings: TrainSettings) -> str | None:
    if problems >= settings.problems_per_step:
        return None
    return (
        f"warning: a step trains on {settings.problems_per_step} groups (problems_per_step, the recipe's group_size), "
        f"but the pool's problems to train on are only {problems}: each step takes the same problem several times"
    )


def leakage_warning(pool: FoundPool, settings: TrainSettings) -> str | None:
    """A warning if the pool may hold problems that are evaluated on; None where that cannot be told."""
    made_with = pool.made_with
    if settings.eval.every == -1 or made_with is None:
        return None
    kept_from, side = evaluation_side(made_with), evaluation_side(settings)
    if same_side(kept_from, side):
        return None
    no_side = made_with.evaluation_dataset is None and kept_from.share is None and is_file(kept_from.source)
    apart = "nothing" if no_side or made_with.evaluation_dataset == NO_EVALUATION else str(kept_from)
    return (
        f"warning: the pool's problems, of {made_with.dataset}, were not compared with those evaluated on: it was kept "
        f"apart from {apart} (curate with the same dataset, evaluation_dataset or test_share; eval_every=-1 evaluates "
        "nothing)"
    )


async def _train(run: TrainingRun, logger: RunLogger, display: Display, pool: FoundPool) -> None:
    """Trains every step that is not committed, with checkpoints and evaluations as due. Skips all that is recorded."""
    if warning := size_warning(len(run.pool), run.settings):
        display.say(warning)
    await prepare(run, phases.sample, phases.score, probe_run, display.say)
    if run.learner.outdated():  # training states: an earlier start kept more, or stopped before it deleted them
        await phases.delete_old_states(run)
    display.notices(logger.reminders())
    if run.settings.steer == "act":  # the changes that the run made to its own settings in earlier starts still hold
        for commit in run.directory.commits():
            if act := commit.metrics.get("act"):
                display.say(f"act of step {commit.step}: {act}")
    evaluating = run.settings.eval.every > 0
    if evaluating and run.directory.next_step == 0:
        await _evaluate(run, BASELINE, BEFORE_TRAINING, logger, display)
    # Start at the last committed step, not after it: a crash may have left out its checkpoint or evaluation.
    step = max(0, run.directory.last_committed_step)
    showing = display.steps(run.last_step, done=run.directory.next_step)
    # Samples up to `max_steps_off_policy` steps ahead, with an older policy, while a step is trained.
    sampling_ahead = phases.SamplingAhead(
        partial(phases.sample, run),
        may_begin=lambda later: run.has_step(later) and not run.directory.step(later).has("commit"),
        ahead=run.settings.max_steps_off_policy,
    )
    # `publish_history` draws a page of all steps so far for the Prefect UI, in the background.
    publishing = publishing_histories(run.directory.path, display)
    async with showing, sampling_ahead as sampler, publishing as publish_history:
        while run.has_step(step):
            is_new = not run.directory.step(step).has("commit")
            if is_new:
                await _step(run, step, sampler, logger, display)
                # Only a service bills. After the first steps their token counts are known.
                is_forecast = step + 1 == FIRST_STEPS and run.session.service_address is not None
                if is_forecast and (line := forecast_line(run.settings, pool, run.directory.path)):
                    display.say(line)
            if run.checkpoint_is_due(step) and not run.learner.is_saved(step):
                await phases.checkpoint(run, step)
            # The final evaluation covers the last step, unless evaluations during the run use validation problems.
            if run.is_due(step, run.settings.eval.every) and (step != run.last_step or run.validation_problems):
                await _evaluate(run, step_name(step), step, logger, display)
            if is_new:  # for steps of an earlier start, the next new step publishes the history
                await publish_history(step)
            forget_old_task_results()  # Prefect would keep all in memory until the flow ends
            step += 1
    if evaluating and run.last_step is not None:
        await _evaluate(run, FINAL, run.last_step, logger, display)


def is_history_due(steps: int, published: int, since_s: float) -> bool:
    """Whether to publish the history of so many steps, `since_s` seconds after that of `published` steps: more rarely
    the longer the run, as each version, 200 KB, stays in Prefect's database, twice."""
    if steps <= ARTIFACT_EVERY:
        return steps == ARTIFACT_EVERY or since_s > ARTIFACT_PAUSE_S
    grown = steps - published >= ARTIFACT_GROWTH * steps
    return steps % ARTIFACT_EVERY == 0 and (grown or since_s > LATER_PAUSE_S)


@asynccontextmanager
async def publishing_histories(path: Path, display: Display) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """Yields a function to call after each committed step, which begins to publish the history of the run at `path` up
    to it. It does so at the first call, and later if `is_history_due`. No step waits for that: drawing a history takes
    a second or two. The block ends once the last history is published; after an error in it, that one is given up."""
    publishing: asyncio.Task[None] | None = None
    published_steps, published_at = 0, -math.inf

    async def publish(step: int) -> None:
        nonlocal publishing, published_steps, published_at
        is_first_call = published_steps == 0
        if not is_first_call and not is_history_due(step + 1, published_steps, time.monotonic() - published_at):
            return
        if publishing is not None:
            await publishing  # one at a time, and in order
        publishing = asyncio.create_task(_publish_history(path, display))
        await asyncio.sleep(0)  # it reads the run now, so that the history is of this step
        published_steps, published_at = step + 1, time.monotonic()

    try:
        yield publish
    except BaseException:
        if publishing is not None:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)  # what stopped the run is what is raised
        raise
    if publishing is not None:
        await publishing


async def _step(
    run: TrainingRun, step: int, sampler: phases.SamplingAhead, logger: RunLogger, display: Display
) -> None:
    groups = run.directory.step(step).groups

    async def sampled(step: int) -> phases.PhaseResult:
        wanted = run.settings.problems_per_step
        async with display.bar(f"step {step}: sampling groups", lambda: (len(groups.indices()), wanted)):
            return await sampler.sampled(step)

    def show(phase: str) -> None:
        display.label_steps_bar(f"step {step}: {phase}")

    commit, notices = await phases.run_step(run, step, sampled, phases.score, phases.update, logger, show)
    display.row(commit.metrics)
    display.notices(notices)


async def _evaluate(run: TrainingRun, name: str, step: int, logger: RunLogger, display: Display) -> None:
    async with display.bar(f"evaluation {name}") as on_progress:
        summary = await evaluate_run(run, name, step, on_progress)
    row = eval_metrics(name, summary)
    logger.log_metrics(row, step)
    display.row({"step": step, **row})


async def _publish_history(path: Path, display: Display) -> None:
    """Publishes the history of the run at `path`, which is read at once and drawn in a thread. Only warns if that
    fails: the run does not depend on what it shows, and the next history is of all steps too."""
    try:
        run = load_run(path)
        publish_later("step-history", run.path.name, await asyncio.to_thread(step_history_markdown, run))
    except (Exception, pl.exceptions.PanicException) as error:  # whatever reading or drawing raises
        reason = " ".join(str(error).split())
        display.say(f"warning: the step history was not published: {reason or type(error).__name__}")


async def _finish(directory: RunDirectory, settings: TrainSettings, display: Display) -> None:
    """Report, artifact and the smoke-test checks; with preset=smoke a check that does not pass fails the run."""
    await _publish_history(directory.path, display)
    run = load_run(directory.path)
    display.say(f"report: {write_report(directory.path)}")
    checks = smoke_checks(run)
    for check in checks:
        why = f": {check.explanation}" if check.passed is None else ""
        display.say(f"{check.mark.text:<10} {check.name}: {check.value} (wanted: {check.threshold}){why}")
    failed = [check.name for check in checks if not check.passed]
    if settings.preset == SMOKE and failed:
        raise CoderlError(f"the smoke test did not pass: {', '.join(failed)}")
    if spent := [each for each in costs(run) if each.use not in ("profile", "all")]:
        price = recorded_price(run.config)
        display.say(cost_line(sum((each.tokens for each in spent), Tokens()), price))
    if not is_subflow():
        display.say(f"to evaluate it: coderl evaluate checkpoint={shlex.quote(str(directory.path))}")


if __name__ == "__main__":
    from coderl_tasks.cli import command

    command(["train", *sys.argv[1:]])
