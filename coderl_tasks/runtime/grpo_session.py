"""GRPO from a notebook or a script, one call per step, over the same journal as `coderl train`.

    grpo = init_grpo("data/nano", problems=rows, log_path="my-run")
    while grpo.next_step < 20:
        grpo.train_grpo_step(grpo.fresh_subset(8))
    grpo.finish()

`coderl report`, `coderl query` and `coderl evaluate` take the run directory; `init_grpo` with its log_path goes on with
the run. The problems of a step are recorded before the first of them is sampled, so that what a crash left is used.
"""

import asyncio
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from coderl_tasks.environments import environment_of
from coderl_tasks.errors import CoderlError, ConfigError, DataError
from coderl_tasks.grading.grader import result_of
from coderl_tasks.grading.reward_function import file_of
from coderl_tasks.insight.logging import RunLogger, WarningLines, run_logger, step_line
from coderl_tasks.insight.report import write_report
from coderl_tasks.insight.warning_signs import Notice
from coderl_tasks.journal.atomic import write_bytes, write_parquet
from coderl_tasks.journal.checkpoints import read_checkpoints
from coderl_tasks.journal.ledger import add_lost, frame_tokens
from coderl_tasks.journal.recorded_json import recorded_config
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.run_names import run_path
from coderl_tasks.paths import coderl_home, private_folder
from coderl_tasks.planning.flow_plans import plan_training, run_config, start_note
from coderl_tasks.policy.sampling import GroupRequest, completion_budget, group_frame
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.problems.loading import RowReader
from coderl_tasks.problems.problem import Problem, RowDropped, problems_frame
from coderl_tasks.retries import without_prefect
from coderl_tasks.rollouts.engine import supervised
from coderl_tasks.services import services
from coderl_tasks.settings import CurateSettings, TrainSettings, parse_settings
from coderl_tasks.training.around_steps import prepare, probe_run
from coderl_tasks.training.run import TrainingRun, open_run
from coderl_tasks.training.step import checkpoint, run_step, sample, score, update

logger = logging.getLogger(__name__)
NO_EVALUATIONS = {"eval.every": -1}
T = TypeVar("T")
Row = Mapping[str, Any]
Say = Callable[[str], object]
_sample, _score, _update = without_prefect(sample), without_prefect(score), without_prefect(update)
_save, _probe = without_prefect(checkpoint), without_prefect(probe_run)


def init_grpo(
    base_model: str | None = None, *, problems: Iterable[Row] | None = None, say: Say = print, **settings: Any
) -> "GrpoSession":
    """A session that trains `base_model`: a name of the Tinker service, or a local model folder; None for the resumed
    run's, or the default one. It is open until `finish` or `close`.

    Steps train only on `problems`, raw rows as `coderl curate` reads them; without them `pool` names a pool. `settings`
    are those of `coderl train`; for a resumed run, those that may change. `reward` may be a function (completion,
    ground_truth) -> float, whose source is sent to the sandbox, or a file with compute_reward: then `environment` is
    custom. Nothing is evaluated by default: `coderl evaluate` does that. `say` gets the lines for people. Raises
    ConfigError or DataError, before anything is sampled."""
    given = _with_reward_file({key: value for key, value in settings.items() if value is not None})
    if base_model is not None:
        given["model_name"] = base_model
    if problems is not None:
        if "pool" in given:
            raise ConfigError("problems and pool both say what to train on: give one")
        given["pool"] = _write_pool_file(problems, environment_of(parse_settings(TrainSettings, given)).rows)
    parsed = parse_settings(TrainSettings, given)
    is_resumed = parsed.log_path is not None and recorded_config(run_path(parsed.log_path)) is not None
    # No evaluations unless the caller has asked for them. A run that goes on keeps its own setting.
    keep = "eval.every" in parsed.given or is_resumed
    return GrpoSession(parsed if keep else parsed.with_changes(**NO_EVALUATIONS), say)


def _with_reward_file(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with a reward that is a function, or a file by the name `reward`, as reward_file."""
    function = next((given[key] for key in ("reward", "reward_file") if callable(given.get(key))), None)
    reward = given.get("reward")
    if function is not None:
        source = file_of(function).encode()
        # Named by its content: a run that goes on with the same function goes on with the same file.
        file = private_folder(coderl_home() / "rewards") / f"{hashlib.sha256(source).hexdigest()[:16]}.py"
        write_bytes(file, source)
    elif isinstance(reward, Path) or (isinstance(reward, str) and reward.endswith(".py")):
        file = Path(reward)
    else:
        return dict(given)
    if {"reward", "reward_file"} <= given.keys():
        raise ConfigError("reward and reward_file are two names of one reward here: give one")
    others = {key: value for key, value in given.items() if key not in ("reward", "reward_file")}
    return {"environment": "custom", **others, "reward_file": str(file)}


def _read_problem(row: Any, reader: RowReader, what: str, number: int = 0) -> Problem:
    """The problem in a row of the caller's. A row that cannot be used raises: nobody reads a list of drops here."""
    try:
        if not isinstance(row, Mapping):
            raise RowDropped("row_not_object", f"{row!r} is no row, which is a dict")
        return reader.read(dict(row), split="own", source_row=number)
    except RowDropped as drop:
        raise DataError(f"{what}: {drop.detail} ({drop.reason})") from None


def _write_pool_file(rows: Iterable[Row], reader: RowReader) -> str:
    """Writes a pool that holds `rows`; its path. The file is named by its content: the same rows are the same pool."""
    if isinstance(rows, str | Path | Mapping):
        hint = "a file: coderl curate makes a pool of it for pool="
        raise ConfigError(f"problems is a list of rows, each a dict ({hint})")
    problems = [_read_problem(row, reader, f"problems[{number}]", number) for number, row in enumerate(rows)]
    if not problems:
        raise ConfigError("problems is empty: there is nothing to train on")
    places: dict[str, int] = {}
    for number, problem in enumerate(problems):
        if (first := places.setdefault(problem.problem_id, number)) != number:
            both = f"problems[{first}] and problems[{number}]"
            raise ConfigError(f"{both}: two of the problems have one problem_id, or are the same")
    content = json.dumps([problem.to_row() for problem in problems], sort_keys=True).encode()
    path = private_folder(coderl_home() / "problems") / f"{hashlib.sha256(content).hexdigest()[:16]}.parquet"
    if not path.is_file():
        write_parquet(path, problems_frame(problems))
    return str(path)


@contextmanager
def _showing_warnings(say: Say) -> Iterator[None]:
    """Gives coderl's warnings to `say`, and nothing to the root logger: Prefect prints all that reaches that."""
    package = logging.getLogger("coderl_tasks")
    warnings, propagates = WarningLines(say), package.propagate
    package.addHandler(warnings)
    package.propagate = False
    try:
        yield
    finally:
        package.removeHandler(warnings)
        package.propagate = propagates


class GrpoSession(AbstractContextManager["GrpoSession"]):
    """A run that is trained call by call; leaving the context closes it. A thread with its own event loop does all
    work, since a notebook's thread already has one. After Ctrl-C, the next call goes on with what was recorded."""

    def __init__(self, settings: TrainSettings, say: Say) -> None:
        self._say = say
        self._opened: Future[tuple[TrainingRun, RunLogger]] = Future()
        # A daemon: a script that ends without `close` is not held up; what was trained is recorded.
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work(settings)), daemon=True)
        try:
            self._thread.start()
            self._run, self._logger = result_of(self._opened)
        except BaseException:
            self._opened.cancel()  # interrupted: the thread stops opening (after an error there is nothing to cancel)
            self.close()
            raise

    async def _work(self, settings: TrainSettings) -> None:
        """The work of the session's thread. Opens the run and hands it, or an error, to the waiting constructor through
        the future `_opened`. Keeps it open until `close` sets `_closing`. All is in one task, because the task that
        opens services must close them; it is cancelled if the constructor is interrupted."""
        self._loop, self._closing, opening = asyncio.get_running_loop(), asyncio.Event(), asyncio.current_task()
        assert opening is not None

        self._opened.add_done_callback(
            lambda opened: self._loop.call_soon_threadsafe(opening.cancel) if opened.cancelled() else None
        )
        self._one_call_at_a_time = asyncio.Lock()  # calls of the session's methods, which `_do` runs on this loop
        with _showing_warnings(self._say):
            try:
                settings, pool, path = await plan_training(settings)
                if isinstance(pool, CurateSettings):  # no pool is given; `coderl train` would make this one
                    raise ConfigError(
                        "problems: give the rows to train on, or a pool (coderl curate profile_mode=none makes one of "
                        f"all problems of {pool.dataset})"
                    )
                # By these settings, a resumed run's too, a run decides itself what a step trains on.
                if settings.max_steps_off_policy:
                    raise ConfigError(
                        "max_steps_off_policy: here a step's problems are not known before it is called for"
                    )
                if settings.refill > 1:
                    raise ConfigError("refill: here the caller chooses a step's problems, all of them; leave it out")
                if settings.steer == "act":
                    raise ConfigError("steer=act: in a session the caller decides what to change; use steer=advise")
                with RunDirectory.open(path, run_config(settings)) as directory:
                    self._say(f"run directory: {directory.path} ({start_note(directory)})")
                    if settings.size_warning:
                        self._say(settings.size_warning)
                    # Recorded is what `coderl train` evaluates; a session never does, and needs no data for it.
                    await self._keep_open(settings.with_changes(**NO_EVALUATIONS), directory)
            except BaseException as error:
                if self._opened.cancelled():  # the constructor, which was interrupted, raises that
                    return
                if self._opened.done():  # the constructor has returned: nobody waits for the error
                    raise
                self._opened.set_exception(error)  # the constructor, which waits for it, raises it

    async def _keep_open(self, settings: TrainSettings, directory: RunDirectory) -> None:
        """Opens services and the run, prepares it, hands it to the constructor; closes all once `_closing` is set."""
        run_log = run_logger(settings, directory)

        def say_and_log(line: str) -> None:  # what `prepare` finds is to be in the run's logs.log too
            self._say(line)
            run_log.log.info("%s", line)

        with run_log, services(settings.model_name, settings.model_reason) as used:
            for line in used.lines:
                self._say(line)
            async with open_run(settings, directory, used) as run:
                await prepare(run, _sample, _score, _probe, say_and_log)
                for notice in run_log.reminders():
                    self._say(notice.line)
                self._opened.set_result((run, run_log))
                await self._closing.wait()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise CoderlError("the session has ended: init_grpo with the same log_path resumes the run")

        async def alone() -> T:
            # After Ctrl-C the next call comes while the one before is being cancelled: two must not write one step.
            async with self._one_call_at_a_time:
                return await work

        future = asyncio.run_coroutine_threadsafe(alone(), self._loop)
        try:
            return result_of(future)
        except KeyboardInterrupt:
            future.cancel()
            raise

    @property
    def path(self) -> str:
        """The run directory."""
        return str(self._run.directory.path)

    @property
    def next_step(self) -> int:
        """How many steps are committed, which is the number of the next one."""
        return self._run.directory.next_step

    @property
    def problem_ids(self) -> list[str]:
        """Ids of all that steps may be trained on, in the order of `problems`, or of the pool."""
        return list(self._run.pool)

    def fresh_subset(self, count: int) -> list[str]:
        """The ids of `count` problems for the next step, by the setting `selection` (default: shuffled)."""
        return self._run.select_problems(step=self.next_step, count=count)

    def train_grpo_step(self, subset: Sequence[str] | None = None, num_iterations: int = 1) -> dict[str, Any]:
        """Train `num_iterations` steps, each on new completions for the same problem ids: `subset` (None: fresh ones,
        by the settings). Returns the last step's row of metrics.jsonl.

        A step is sampled and graded completely before it is trained on: a large subset shows nothing for long. Raises
        ConfigError for an id outside the run, and if an interrupted step was begun with other problems."""
        if num_iterations < 1:
            raise ConfigError(f"num_iterations={num_iterations} trains nothing")
        if isinstance(subset, str):  # else each letter would be taken for an id
            raise ConfigError(f"subset is a list of ids: write train_grpo_step([{subset!r}])")
        ids = list(subset) if subset is not None else self.fresh_subset(self._run.settings.problems_per_step)
        if not ids:
            raise ConfigError("subset is empty: there is nothing to train on")
        for problem_id in ids:
            if not isinstance(problem_id, str) or problem_id not in self._run.pool:
                raise ConfigError(f"subset: the run has no problem {problem_id!r} (problem_ids lists them)")
        metrics: dict[str, Any] = {}
        settings = self._run.settings
        # With these settings a step selects its problems while it samples, as in `coderl train`, and `ids` is not used.
        # Not if several iterations have to train on the same problems.
        selects_own = subset is None and num_iterations == 1 and bool(self._run.adaptive or settings.first_completions)
        for _ in range(num_iterations):
            step = self._step(self.next_step, ids, by_caller=subset is not None, selects_own=selects_own)
            metrics, notices = self._do(step)
            for line in (step_line(metrics), *(notice.line for notice in notices)):
                self._say(line)
        return metrics

    async def _step(
        self, step: int, ids: list[str], *, by_caller: bool, selects_own: bool
    ) -> tuple[dict[str, Any], list[Notice]]:
        """Trains `step` on the problems `ids`, unless an interrupted start has recorded others for it, which then go on
        (an error if the caller chose `ids`). With `selects_own` the step selects its problems. Returns metrics and
        notices."""
        run, journal = self._run, self._run.directory.step(step)
        recorded = journal.read_problems()
        if recorded is None and not selects_own:
            first = run.settings.first_completions
            journal.write_problems(ids, [first] * len(ids) if first else None)
        elif recorded is not None and by_caller and recorded.ids != ids:
            raise ConfigError(f"step {step} was begun with other problems: train_grpo_step() without a subset ends it")
        commit, notices = await run_step(run, step, partial(_sample, run), _score, _update, self._logger)
        if run.is_due(step, run.settings.save_every):
            await self._checkpoint(step)
        return commit.metrics, notices

    def sample(
        self,
        prompts: Sequence[str | Row],
        *,
        num_samples: int = 1,
        temperature: float = 0.0,
        max_tokens: int | None = None,
    ) -> list[list[str]]:
        """Samples `num_samples` completions per prompt from the current policy. A prompt is the id of a problem of the
        pool, a problem's row, or any other text, which becomes a user message. Returns their texts, a list per prompt.
        Only their tokens are recorded: they count for the caps of the run. Raises BudgetReachedError at a cap."""
        if isinstance(prompts, str | Mapping):
            raise ConfigError("prompts is a list: write sample([prompt])")
        limit = self._run.settings.max_tokens if max_tokens is None else max_tokens  # None: as in training
        if num_samples < 1 or limit < 1:
            raise ConfigError(f"num_samples={num_samples} max_tokens={limit} samples nothing: both start at 1")
        renderer, environment, prompts_tokens = self._run.session.renderer, self._run.session.environment, []
        for prompt in prompts:
            run_problem = self._run.pool.get(prompt) if isinstance(prompt, str) else None
            if isinstance(prompt, str) and run_problem is None:
                prompts_tokens.append(renderer.prompt_tokens([{"role": "user", "content": prompt}]))
            else:
                problem = run_problem or _read_problem(prompt, environment.rows, "prompts")
                prompts_tokens.append(environment.prompt(problem, renderer))
        return self._do(_sample_texts(self._run, prompts_tokens, num_samples, temperature, limit))

    def save(self) -> dict[str, Any]:
        """Saves a checkpoint of the policy as it is now, which stays. Returns its row of checkpoints.jsonl, with
        `state_path` (what `init_from` takes) and `sampler_path`."""
        if not self.next_step:
            raise ConfigError("no step is trained yet: there is nothing to save")
        return self._do(self._checkpoint(self.next_step - 1))

    async def _checkpoint(self, step: int) -> dict[str, Any]:
        if not self._run.learner.is_saved(step):
            await _save(self._run, step)
        return next(row for row in reversed(read_checkpoints(self._run.directory.path)) if row["step"] == step)

    def finish(self) -> str:
        """Saves a checkpoint, writes the report and closes the session. Returns the run directory."""
        if self.next_step:
            self.save()
        self._run.directory.reconcile_metrics()
        self._say(f"report: {write_report(self._run.directory.path)}")
        self.close()
        return self.path

    def close(self) -> None:
        """Ends the session, and the servers that it started. What was trained is in the run directory."""
        is_open = self._opened.done() and not self._opened.cancelled() and self._opened.exception() is None
        if self._thread.is_alive() and is_open:
            self._loop.call_soon_threadsafe(self._closing.set)
        while self._thread.is_alive():  # in pieces, as in `result_of`; one that never started is not waited for
            self._thread.join(0.2)

    def __exit__(self, *_: object) -> None:
        self.close()


@supervised
async def _sample_texts(
    run: TrainingRun, prompts: list[list[int]], num_samples: int, temperature: float, limit: int
) -> list[list[str]]:
    """The work of `GrpoSession.sample`, with prompts as token ids and at most `limit` tokens per completion. Raises
    ConfigError for a prompt that fills the context."""
    sampler = await run.learner.sampling_client(run.directory.next_step)
    renderer, environment = run.session.renderer, run.session.environment
    texts: list[list[str]] = []
    for number, prompt in enumerate(prompts):
        budget = completion_budget(len(prompt), limit, run.session.context)
        if not budget:
            raise ConfigError(f"a prompt of {len(prompt)} tokens leaves no room in the context")
        seed = seed_for(run.settings.seed, "train", run.directory.next_step, number, "sample")
        request = GroupRequest(number, "", "", prompt, num_samples, budget, seed, temperature)
        async with run.engine.sampled_within_budget(sampler, request) as (completions, charge):
            group = group_frame(request, completions, decode=partial(environment.text, renderer=renderer))
            charge(group, None)
        # Beside the step that the policy comes from: a resume counts these tokens too.
        add_lost(run.directory.step(max(0, run.directory.last_committed_step)).folder, frame_tokens(group))
        texts.append(group["completion"].to_list())
    return texts
