"""A training run in this process: its problems, its directory and the clients it works with; and what `steer=act`
changes of it as it goes: a lower learning rate, a higher temperature, or the end.

test_order.json is {problem id: test indices}, of those problems only whose tests are not run in their own order.

An act is decided when a step is committed, from what the run has recorded, and stands in the commit: a run that is
killed goes on with the same ones. It holds only while steer=act. What comes after an act is judged by the steps that it
has changed, and not before there are PAUSE.
"""

import hashlib
import logging
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import polars as pl
import tinker

from coderl_tasks.disk import adapter_bytes
from coderl_tasks.environments import environment_of
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.grading.priority import learned_priority
from coderl_tasks.insight.warning_signs import ACTED_ON, QUIET, Watch
from coderl_tasks.journal.atomic import read_json, read_rows, scan_parquet, try_read_json, write_json
from coderl_tasks.journal.ledger import run_budget
from coderl_tasks.journal.run_directory import STOP, RunDirectory, is_eval_row
from coderl_tasks.journal.steps import Commit
from coderl_tasks.paths import coderl_home
from coderl_tasks.policy.grpo import counted_rewards, estimator
from coderl_tasks.policy.probe import Probe
from coderl_tasks.policy.sampling import completion_budget
from coderl_tasks.policy.selection import SELECTIONS, Adaptive, Selection
from coderl_tasks.problems.loading import evaluation_side
from coderl_tasks.problems.problem import Problem, SpilledTests, profiled_counts, read_pool
from coderl_tasks.rollouts.engine import GradedAhead, Session, open_session
from coderl_tasks.services import Services
from coderl_tasks.settings import TrainSettings
from coderl_tasks.training.learner import Learner

logger = logging.getLogger(__name__)

STANDS = QUIET + 1
"""Steps that a sign has to stand: one more than a single bad step stays in the shortest window of five."""
PAUSE = 20
"""Steps between the effect of an act and the next one."""
LR_FACTOR, MOST_HALVINGS = 0.5, 3
"""Two of them take the recipe's 4e-5 to the 1e-5 that it says where the loss explodes."""
WARMER, HOTTEST = 0.1, 1.3
"""Added to the temperature at a time, and how high that may get: hotter samples of a small model are noise."""

TestOrders = Mapping[str, Sequence[int]]
COUNT_COLUMNS = ("test_runs", "test_catches")
PROMPT_KEYS = ("pool_sha256", "model_name", "renderer_name", "thinking", "environment", "max_tool_calls", "max_tokens")
"""What of config.json decides how long prompts are, and completions may be. With the context it is recorded as `of` in
prompts.json, with the ids of problems `without` room for a completion, and how many have less than max_tokens."""


@dataclass(frozen=True, slots=True)
class Act:
    """A change of `setting` from `from_step` on; of max_steps, no step is trained from there on."""

    setting: Literal["learning_rate", "temperature", "max_steps"]
    by: float  # a factor of the learning rate, an amount of the temperature
    from_step: int
    why: str  # the sign


class Decision(NamedTuple):
    act: Act
    message: str  # what the user is told of it


def adam_params_at(settings: TrainSettings, commits: Iterable[Commit], step: int) -> tinker.AdamParams:
    """Adam's parameters for `step`. Its number and the acts alone decide: a run that goes on does not warm up again.
    The learning rate grows in equal parts to the setting, which the last step of the warmup has. Then it stays there,
    or falls, by a straight line or half a cosine, to 0 at the schedule's total: the steps before that one learn."""
    rate, schedule = settings.learning_rate, settings.schedule
    if step < schedule.warmup:
        rate = rate * (step + 1) / schedule.warmup
    elif schedule.kind != "constant" and schedule.total is not None:
        done = min(1.0, (step - schedule.warmup) / (schedule.total - schedule.warmup))
        rate = rate * (1 - done) if schedule.kind == "linear" else rate * (1 + math.cos(math.pi * done)) / 2
    factor = math.prod(act.by for act in _in_effect(settings, commits, "learning_rate", step))
    return tinker.AdamParams(learning_rate=rate * factor, **settings.adam.model_dump())


def temperature_at(settings: TrainSettings, commits: Iterable[Commit], step: int) -> float:
    raised = sum(act.by for act in _in_effect(settings, commits, "temperature", step))
    # Rounded: 0.1 added three times is no 0.3 in floating point, and the number is shown and compared.
    return round(settings.temperature + raised, 6) if raised else settings.temperature


def stopped_before(settings: TrainSettings, commits: Sequence[Commit]) -> int | None:
    """The step that an act ended the run before, None if none did. One that the run went past is void."""
    ends = [act.from_step for act in _in_effect(settings, commits, STOP, None) if act.from_step >= len(commits)]
    return min(ends, default=None)


def _in_effect(settings: TrainSettings, commits: Iterable[Commit], setting: str, step: int | None) -> list[Act]:
    """The acts on `setting` that hold at `step` (None: at any step); none unless steer=act."""
    if settings.steer != "act":
        return []
    acts = (Act(**row) for commit in commits for row in commit.acts)
    return [act for act in acts if act.setting == setting and (step is None or act.from_step <= step)]


class Steering:
    """Decides the acts of a run with steer=act, from the metrics of its committed steps."""

    def __init__(self, settings: TrainSettings, directory: RunDirectory) -> None:
        self._settings = settings
        self._directory = directory
        self._first = 0  # first step whose metrics the watch judges
        self._watch = Watch(directory.config)

    def decide(self, step: int, metrics: Mapping[str, Any], *, may_raise_temperature: bool) -> Decision | None:
        """Returns the act due after `step` (whose row is `metrics`), if any. Rows must come in step order. A second
        call for the same step returns the same result."""
        commits = self._directory.commits()[:step]
        earlier = [Act(**row) for commit in commits for row in commit.acts]
        first = max((act.from_step for act in earlier), default=0)
        # Signs from before an act are no reason for another one: watch anew from the first step that it changed.
        if first != self._first:
            self._first, self._watch = first, Watch(self._directory.config)
        judged = first + len(self._watch.history.steps)
        # If an update is retried, its row was already added, so skip it.
        rows = [*(commit.metrics for commit in commits), metrics]
        for row in rows[judged:]:
            self._watch.add(row)
        if earlier and step - first < PAUSE:
            return None
        return self._act_due(step, commits, earlier, may_raise_temperature)

    def _act_due(
        self, step: int, commits: list[Commit], earlier: list[Act], may_raise_temperature: bool
    ) -> Decision | None:
        """Returns the act due after `step`, if any: by signs that have stood for STANDS steps, of instability first,
        then of too little exploration, then of convergence. A setting at its limit is not changed further."""
        # An episode is one time that a sign stands, from step `begun` to `seen`; `over` is None while it goes on.
        ongoing = [episode for episode in self._watch.episodes if episode.over is None]
        standing = {
            episode.rule.name: episode
            for episode in ongoing
            if episode.seen == step and step - episode.begun + 1 >= STANDS
        }
        # Earlier ones may already be sampled. The setting alone decides, not what has been begun: as after a kill.
        start = step + 1 + self._settings.max_steps_off_policy
        temperature = temperature_at(self._settings, commits, start)
        # At another temperature than 1 KL_spike is expected, so it is ignored.
        lr_signs = ACTED_ON["learning_rate"]
        for_slower = [name for name in lr_signs if name in standing and (name != "KL_spike" or temperature == 1)]
        for_hotter = [name for name in ACTED_ON["temperature"] if name in standing]
        # Also by a sign that has not stood long enough to act on: such a run is not ended.
        unstable = any(episode.rule.name in lr_signs for episode in ongoing)
        converged = next((name for name in ACTED_ON[STOP] if name in standing), None)
        if for_slower and sum(act.setting == "learning_rate" for act in earlier) < MOST_HALVINGS:
            act = Act("learning_rate", by=LR_FACTOR, from_step=start, why=for_slower[0])
            so_far = math.prod(act.by for act in _in_effect(self._settings, commits, "learning_rate", start))
            factor = so_far * LR_FACTOR
            effect = f"the learning rate is {factor:g} of what the settings say"
        # The epsilon absorbs rounding: the last act, to exactly HOTTEST, is allowed.
        elif for_hotter and may_raise_temperature and temperature + WARMER <= HOTTEST + 1e-9:
            act = Act("temperature", by=WARMER, from_step=start, why=for_hotter[0])
            effect = f"temperature {temperature + WARMER:.3g}"
        elif converged and not unstable and self._pass_at_1_is_at_its_height(step, since=standing[converged].begun):
            act = Act(STOP, by=0.0, from_step=start, why=converged)  # `by` has no meaning for max_steps
            effect = "the run ends: it has converged, and Pass@1 is at its height"
        else:
            return None
        sign = standing[act.why].sign.what
        return Decision(act, f"from step {start} on {effect} (steer=advise takes it back), since {act.why}: {sign}")

    def _pass_at_1_is_at_its_height(self, step: int, since: int) -> bool:
        """Whether the newest evaluation was after `since`, and neither it nor the one before it is off the highest
        (of as many problems) by more than the standard error, or one problem."""
        # Up to the step before: its own evaluation comes after its commit.
        rows = [row for row in read_rows(self._directory.metrics.path) if is_eval_row(row) and row["step"] < step]
        if not rows or rows[-1]["step"] < since or not rows[-1].get("eval/n"):
            return False
        n = rows[-1]["eval/n"]
        alike = [row for row in rows if row.get("eval/n") == n]
        best = max(float(row["eval/mean_correct"]) for row in alike)
        trained = [float(row["eval/mean_correct"]) for row in alike if row["step"] >= 0]
        error = math.sqrt(max(best * (1 - best), 1 / n) / n)
        return len(trained) >= 2 and min(trained[-2:]) >= best - error


class TrainingRun:
    """What the phases of a step work on: a run's settings, its problems, its directory and its clients."""

    def __init__(
        self,
        settings: TrainSettings,
        directory: RunDirectory,
        session: Session,
        pool: dict[str, Problem],
        test_problems: list[Problem],
        validation_problems: list[Problem],
        test_orders: TestOrders,
        profiled: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """`pool` is by problem id. Evaluations during the run use `validation_problems` if there are any, else
        `test_problems`. By problem id: `test_orders`, where it is not the tests' own, and `profiled`, the right and the
        graded completions of the pool's profile."""
        self.settings, self.directory, self.session = settings, directory, session
        self.pool, self.test_problems, self.validation_problems = pool, test_problems, validation_problems
        self.probe: Probe | None = None  # how the Tinker service behaves; None: not asked yet, or an embedded server
        self.learner = Learner(session, directory, settings)
        # Decides changes of settings by warning signs.
        self.steering = Steering(settings, directory) if settings.steer == "act" else None
        environment = session.environment.of_run(settings, test_orders)
        self.engine = session.engine(settings, "train", settings.model_name, environment)
        self.graded_ahead = GradedAhead(self._grade)  # groups, while others of their step are sampled
        self._warned_of_suspicion = False  # once per process, of a program that seems to cheat
        self.estimate_advantages = estimator(settings.advantage, settings.advantage_eps)
        # What of each reward counts for advantages, as the truncation rule says.
        self.counted_rewards = counted_rewards(
            settings.truncation, settings.max_tokens, session.context, environment.turns.tokens
        )
        # The folders that a step writes to: an embedded server saves at most a state (the weights and two moments of
        # Adam) and sampler weights to coderl's home. 0 where their size is unknown.
        self.folders = (directory.path, coderl_home())
        is_embedded = session.service_address is None
        weights_bytes = adapter_bytes(settings.model_name, settings.lora_rank) if is_embedded else None
        self.state_bytes = 4 * (weights_bytes or 0)
        self.adaptive: Adaptive | None = None
        if settings.selection == "adaptive":
            self.adaptive = Adaptive(
                list(pool.values()),
                profiled or {},
                outcomes=lambda: [commit.outcomes for commit in directory.commits()],  # each step's pass counts
                completions=settings.first_completions or settings.completions_per_problem,  # per group, at first
                lag=settings.max_steps_off_policy,  # as many steps may be uncommitted yet when a later one is sampled
            )
        # Called with step=, count= and taken=, as `selection.Selection` says.
        select: Selection = self.adaptive or SELECTIONS[settings.selection]
        self.select_problems = partial(select, list(pool), seed=settings.seed)

    async def _grade(self, group: pl.DataFrame) -> pl.DataFrame:
        """A sampled group with its grades (ROLLOUT_SCHEMA). Warns of the first suspicious program of this process at
        once: the warning sign of its step comes after the update."""
        graded = await self.engine.grade(self.pool[group["problem_id"][0]], group)
        found = graded.filter(pl.col("suspicion").is_not_null())
        if found.height and not self._warned_of_suspicion:
            self._warned_of_suspicion = True
            first = found.row(0, named=True)
            logger.warning(
                "step %d: %d of %d completions of problem %s seem to have taken their reward from the tests or the "
                "grader: %s (on_hack: quarantine leaves such programs out)",
                *(first["step"], found.height, graded.height, first["problem_id"], first["suspicion"]),
            )
        return graded

    @property
    def last_step(self) -> int | None:
        """The last step to train (or trained, if that is more), None if the run goes on until it is stopped."""
        commits, planned = self.directory.commits(), self.settings.max_steps
        ends = [end for end in (planned, stopped_before(self.settings, commits)) if end not in (None, -1)]
        return max(min(ends), len(commits)) - 1 if ends else None

    def has_step(self, step: int) -> bool:
        return self.last_step is None or step <= self.last_step

    def checkpoint_is_due(self, step: int) -> bool:
        """Whether a checkpoint that stays is due after `step`."""
        return self.is_due(step, self.settings.save_every) or step == self.last_step

    def measures_kl(self, step: int) -> bool:
        """Whether `step` measures the KL to the base model without a penalty on it."""
        every, session = self.settings.kl.base_every, self.session
        if every is None:  # where nobody bills it
            every = int(session.service_address is None and session.budget.price is None)
        if self.settings.kl.penalty_coef or not self.is_due(step, every):
            return False
        # Only at temperature 1, which an act may have raised: else log-probabilities are not the policy's own.
        return temperature_at(self.settings, self.directory.commits(), step) == 1

    @property
    def may_raise_temperature(self) -> bool:
        """Whether steps may be sampled at a higher temperature than the settings': not with a penalty that compares
        log-probabilities at 1, nor where nobody asked what a service's log-probabilities at another one are of."""
        is_known = self.probe is not None and self.probe.logprobs_at in ("scaled", "unscaled")
        return not self.settings.kl.penalty_coef and (self.session.service_address is None or is_known)

    def is_due(self, step: int, every: int) -> bool:
        """Whether something done `every` so many steps (0 or less: never) is due after `step`."""
        return every > 0 and (step + 1) % every == 0


@asynccontextmanager
async def open_run(settings: TrainSettings, directory: RunDirectory, services: Services) -> AsyncIterator[TrainingRun]:
    """Yields the run in `directory`, ready to train, with its services open. `settings.pool` is the pool's file.
    Raises ConfigError if the pool is empty, no prompt leaves room for a completion, there is nothing to evaluate on, or
    programs in the sandbox could read the run or the pool."""
    pool_file = Path(settings.pool)
    services.require_hidden(directory.path, pool_file)  # from programs in the sandbox: both hold tests
    # Local files before the session, which may cost money: one that cannot be used is found first.
    problems = read_pool(pool_file)
    # As recorded at the run's first start.
    test_orders = frozen_test_orders(directory, problems, pool_file)
    test_problems: list[Problem] = []
    if settings.eval.every != -1:
        test_problems = read_evaluation_side(settings, problems, directory.path)
    budget = run_budget(settings, directory.path, directory.commits())
    async with open_session(settings, services, budget) as session:
        fitting = fitting_problems(session, problems, directory)
        to_train_on, held_out = split_validation(fitting, settings)
        pool = {problem.problem_id: problem for problem in to_train_on}
        profiled = profiled_counts(pool_file) if settings.selection == "adaptive" else {}  # nothing else asks for them
        run = TrainingRun(settings, directory, session, pool, test_problems, held_out, test_orders, profiled)
        # An earlier start may have asked the Tinker service how it treats seeds, stop tokens and log-probabilities.
        run.probe = recorded_probe(run)
        try:
            yield run
        finally:
            # Before the session closes: grading uses its sandbox client.
            await run.graded_ahead.release()


def recorded_probe(run: TrainingRun) -> Probe | None:
    """What an earlier start found out about this very service, model and temperature; None for an embedded server."""
    recorded, service, settings = run.directory.config.get("probe"), run.session.service_address, run.settings
    if recorded is None or service is None:
        return None
    probe = Probe(**recorded)
    is_same = (probe.service, probe.model, probe.temperature) == (service, settings.model_name, settings.temperature)
    return probe if is_same else None


def frozen_test_orders(directory: RunDirectory, problems: Sequence[Problem], pool: Path) -> TestOrders:
    """Returns the order in which each problem's tests are run, by problem id, if it is not their own: as recorded, or
    learned from the profile in the file `pool` and then recorded. Tests that most often fail wrong programs come first.
    Raises DataError for a record that is damaged or of other tests."""
    path = directory.path / "test_order.json"
    if path.is_file():
        recorded = read_json(path)
        for problem in problems:
            own_order = list(range(len(problem.tests)))
            order = recorded.get(problem.problem_id, own_order)
            if not isinstance(order, list) or sorted(order) != own_order:
                raise DataError(f"{path} is not of the tests of this pool (problem {problem.problem_id})")
        return recorded
    # The run began without the file, in the tests' own order: another one from here on would name other failures.
    if directory.step(0).has("scored"):
        return {}
    orders: dict[str, list[int]] = {}
    # A pool without a profile lacks the counts of how many programs ran each test, and of how many it failed first.
    in_pool = scan_parquet(pool)
    if set(COUNT_COLUMNS) <= in_pool.collect_schema().keys():
        n_tests = {problem.problem_id: len(problem.tests) for problem in problems}
        counted = in_pool.select("problem_id", *COUNT_COLUMNS).drop_nulls().sort("problem_id").collect()
        for problem_id, runs, catches in counted.iter_rows():
            if len(runs) == n_tests.get(problem_id):  # else the counts are of other tests
                order = learned_priority(runs, catches)
                if order != sorted(order):  # not the tests' own
                    orders[problem_id] = order
    # Even if it is empty: the file, once there, is what later starts go by, and not what they would learn.
    write_json(path, orders)
    logger.info("tests of %d of %d problems are run in a learned order: %s", len(orders), len(problems), path.name)
    return orders


def read_evaluation_side(settings: TrainSettings, pool: list[Problem], folder: Path) -> list[Problem]:
    """The test problems, their tests in a file of this process in `folder`; ConfigError if there are none."""
    side = evaluation_side(settings)
    loaded = side.load(rows=environment_of(settings).rows, transform=SpilledTests(folder).keep)
    if not loaded.problems:
        raise ConfigError(
            f"there is nothing to evaluate on in {side}: {loaded.unusable or 'no rows'}; name another "
            "evaluation_dataset, or eval_every=-1"
        )
    if loaded.unusable:
        logger.warning("%s, which is evaluated on: %s", side, loaded.unusable)
    # Both: an id may be the data's own, and mean another problem in another data set.
    trained = {(problem.problem_id, problem.statement) for problem in pool}
    both = sum((problem.problem_id, problem.statement) in trained for problem in loaded.problems)
    if both:
        logger.warning("%d of %d test problems are in the pool, and so trained on", both, len(loaded.problems))
    return loaded.problems


def fitting_problems(session: Session, problems: list[Problem], directory: RunDirectory) -> list[Problem]:
    """Returns the problems whose prompt leaves room for a completion; logs how many do not, and for how many prompts
    `max_tokens` is capped by the context. Raises ConfigError if no problem is left."""
    path = directory.path / "prompts.json"
    # Encoding thousands of prompts takes seconds: an earlier start's result is used if all that decides it is the same.
    decided_by: dict[str, Any] = {key: directory.config.get(key) for key in PROMPT_KEYS} | {"context": session.context}
    recorded: dict[str, Any] = try_read_json(path) or {}
    if recorded.get("of") != decided_by:
        limit = decided_by["max_tokens"]
        lengths = [len(session.environment.prompt(problem, session.renderer)) for problem in problems]
        budgets = [completion_budget(length, limit, session.context) for length in lengths]
        unfit = [problem.problem_id for problem, budget in zip(problems, budgets, strict=True) if not budget]
        recorded = {"of": decided_by, "without": unfit, "capped": sum(0 < budget < limit for budget in budgets)}
        write_json(path, recorded)
    without_room = set(recorded["without"])
    fitting = [problem for problem in problems if problem.problem_id not in without_room]
    if not fitting:
        raise ConfigError(f"no prompt of the pool fits in the model's context of {session.context} tokens")
    if without_room:
        logger.warning("%d of %d problems left out: prompt_too_long", len(problems) - len(fitting), len(problems))
    if recorded["capped"]:
        numbers = decided_by["max_tokens"], recorded["capped"], session.context
        logger.warning("max_tokens=%d is capped for %d prompts: the context is %d", *numbers)
    return fitting


def split_validation(problems: list[Problem], settings: TrainSettings) -> tuple[list[Problem], list[Problem]]:
    """The pool's problems to train on, and those held out for validation (none unless eval.on=validation)."""
    size = settings.eval.validation_size
    if settings.eval.on != "validation":
        return problems, []
    if size >= len(problems):
        raise ConfigError(f"eval.validation_size={size} leaves nothing of a pool of {len(problems)}")

    def key(problem: Problem) -> bytes:
        # By a hash and not by place: what is held out stays so whatever order the pool has.
        return hashlib.sha256(f"validation/{settings.seed}/{problem.problem_id}".encode()).digest()

    held_out = {problem.problem_id for problem in sorted(problems, key=key)[:size]}
    trained = [problem for problem in problems if problem.problem_id not in held_out]
    return trained, [problem.given() for problem in problems if problem.problem_id in held_out]
