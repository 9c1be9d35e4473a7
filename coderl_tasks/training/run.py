"""A training run in this process: its settings, directory, pool, and the clients it works with."""

import hashlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import polars as pl
from prefect import task

from coderl_tasks.disk import adapter_bytes, require_room
from coderl_tasks.environments import environment_of
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.journal.atomic import read_json, write_json
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.paths import coderl_home
from coderl_tasks.policy.adaptive import Adaptive
from coderl_tasks.policy.cycle import cycle
from coderl_tasks.policy.probe import Probe, probe_service
from coderl_tasks.policy.sampling import completion_budget
from coderl_tasks.policy.selection import Selection
from coderl_tasks.policy.shuffle import shuffle
from coderl_tasks.problems.problem import PROBLEM_SCHEMA, Problem
from coderl_tasks.problems.problem_files import PoolFile, SpilledTests
from coderl_tasks.problems.sides import evaluation_side
from coderl_tasks.retries import PHASE
from coderl_tasks.rollouts.budget import run_budget
from coderl_tasks.rollouts.engine import GradedAhead, RolloutEngine, RolloutSettings
from coderl_tasks.rollouts.session import Session, open_session, supervised
from coderl_tasks.services import Services
from coderl_tasks.settings import TrainSettings
from coderl_tasks.training.frozen_orders import Orders, frozen_orders
from coderl_tasks.training.learner import Learner
from coderl_tasks.training.steering import Steering, stopped_before

logger = logging.getLogger(__name__)
SELECTIONS: dict[str, Selection] = {"shuffle": shuffle, "cycle": cycle}
"""By the value of the setting `selection`, those that the call alone decides; `Adaptive` is made with the run."""
PROMPTS_OF = ("pool_sha256", "model_name", "renderer_name", "thinking", "environment", "max_tokens")
"""What of config.json decides how long prompts are, and completions may be."""


class TrainingRun:
    """What the phases of a step work on. `pool` maps ids to problems, `test_orders` some of them to the order in which
    their tests are run, `profiled` to (right, graded) of the pool's profile; `probe` is what the Tinker service was
    found to do, None for an embedded one, and `adaptive` chooses the problems of selection=adaptive."""

    def __init__(
        self,
        settings: TrainSettings,
        directory: RunDirectory,
        session: Session,
        pool: dict[str, Problem],
        test_problems: list[Problem],
        validation_problems: list[Problem],
        test_orders: Orders,
        profiled: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        self.settings = settings
        self.directory = directory
        self.session = session
        self.pool = pool
        self.test_problems = test_problems
        self.validation_problems = validation_problems
        self.probe: Probe | None = None
        self.learner = Learner(session, directory, settings)
        self.steering = Steering(settings, directory)
        session.budget = run_budget(settings, directory.path, directory.commits())
        self.engine = RolloutEngine(
            session.judge,
            session.renderer,
            RolloutSettings(
                purpose="train",
                policy=settings.model_name,
                temperature=settings.temperature,
                max_tokens=settings.max_tokens,
                context=session.context,
                seed=settings.seed,
                concurrency=settings.sample_concurrency,
                format_coef=settings.format_coef,
            ),
            environment=session.environment,
            priorities=test_orders,
            fraction=settings.reward == "fraction",
            budget=session.budget,
        )
        self.graded_ahead = GradedAhead(self._grade)
        self._folders = (directory.path, coderl_home())
        # What a step saves at most: a state, of three times the weights, and weights to sample from. A service has its
        # own disks.
        is_embedded = session.service_address is None
        self._state_bytes = 4 * (adapter_bytes(settings.model_name, settings.lora_rank) or 0) if is_embedded else 0
        self.adaptive = (
            Adaptive(
                list(pool.values()),
                profiled or {},
                lambda: [commit.outcomes for commit in directory.commits()],
                completions=settings.first_completions or settings.completions_per_problem,
                lag=settings.max_steps_off_policy,
            )
            if settings.selection == "adaptive"
            else None
        )

    @property
    def last_step(self) -> int | None:
        """The last step to train (or trained, if that is more), None if the run goes on until it is stopped."""
        commits, planned = self.directory.commits(), self.settings.max_steps
        ends = [end for end in (planned, stopped_before(self.settings, commits)) if end not in (None, -1)]
        return max(min(ends), len(commits)) - 1 if ends else None

    def has_step(self, step: int) -> bool:
        """Whether the run goes as far as `step`."""
        return self.last_step is None or step <= self.last_step

    def keeps(self, step: int) -> bool:
        """Whether a checkpoint that stays is due after `step`."""
        return self.is_due(step, self.settings.save_every) or step == self.last_step

    def sampler_step(self, step: int) -> int:
        """The last step trained into the policy that samples `step`, -1 if there is none."""
        return max(-1, step - 1 - self.settings.max_steps_off_policy)

    def select_problems(self, step: int, count: int, taken: Sequence[str] = ()) -> list[str]:
        """The ids of the `count` problems of `step`, in group order, as the setting `selection` says; up to `count`
        further ones where the step has `taken` some."""
        select = self.adaptive or SELECTIONS[self.settings.selection]
        return select(list(self.pool), seed=self.settings.seed, step=step, count=count, taken=taken)

    @property
    def sends_seeds(self) -> bool:
        """Whether sampling requests carry a seed: not where the service was found to clone with one."""
        return self.probe is None or not self.probe.seeds_clone

    @property
    def may_be_hotter(self) -> bool:
        """Whether steps may be sampled at a higher temperature than the settings': not with a penalty that compares
        log-probabilities at 1, nor where nobody asked what a service's log-probabilities at another one are of."""
        if self.settings.kl.penalty_coef:
            return False
        is_known = self.probe is not None and self.probe.logprobs_at in ("scaled", "unscaled")
        return self.session.service_address is None or is_known

    def require_room(self) -> None:
        """Raise InfraError if too little is free for another step: in the run directory's place, and in that of the
        embedded servers' states and database."""
        require_room(self._folders, self._state_bytes)

    async def _grade(self, group: pl.DataFrame) -> pl.DataFrame:
        return await self.engine.grade(self.pool[group["problem_id"][0]], group)

    def is_due(self, step: int, every: int) -> bool:
        """Whether something done `every` so many steps (0 or less: never) is due after `step`."""
        return every > 0 and (step + 1) % every == 0


@asynccontextmanager
async def open_run(settings: TrainSettings, directory: RunDirectory, used: Services) -> AsyncIterator[TrainingRun]:
    """The run in `directory`, ready to work on. `settings.pool` is the pool's file.

    Raises ConfigError if the pool is empty, no prompt of it leaves room for a completion, there is nothing to evaluate
    on, or programs could read the run or the pool.
    """
    used.require_hidden(directory.path, Path(settings.pool))
    # First what lies on this machine: a pool or a data set that cannot be used costs no session.
    problems = read_pool(Path(settings.pool))
    orders = frozen_orders(directory, problems, Path(settings.pool))
    test_problems = [] if settings.eval.every == -1 else read_evaluation_side(settings, problems, directory.path)
    async with open_session(settings, used) as session:
        trained, held_out = split_validation(fitting_problems(session, problems, directory), settings)
        pool = {problem.problem_id: problem for problem in trained}
        profiled = profiled_counts(Path(settings.pool)) if settings.selection == "adaptive" else {}
        run = TrainingRun(settings, directory, session, pool, test_problems, held_out, orders, profiled)
        run.probe = recorded_probe(run)
        try:
            yield run
        finally:
            # While the session is open: what is being graded uses its sandbox client.
            await run.graded_ahead.close()


def recorded_probe(run: TrainingRun) -> Probe | None:
    """What an earlier start found out about this very service, model and temperature; None for an embedded server."""
    found, service = Probe.recorded(run.directory.config.get("probe")), run.session.service_address
    if found is None or service is None:
        return None
    return found if found.is_of(service, run.settings.model_name, run.settings.temperature) else None


def needs_probe(run: TrainingRun) -> bool:
    """Whether steps are to be trained on a service that nothing is known of. An embedded one needs no probe."""
    steps_left = run.last_step is None or run.directory.next_step <= run.last_step
    return steps_left and run.probe is None and run.session.service_address is not None


@task(name="probe", **PHASE)
@supervised
async def probe_run(run: TrainingRun) -> Probe:
    """Probe the Tinker service with the policy that is trained next, and record what it does.

    Raises CoderlError or ConfigError for a service that must not be trained on, as `Probe.require_trainable` says.
    """
    service, updates = run.session.service_address, run.directory.next_step
    assert service is not None
    sampler = await run.learner.sampling_client(updates)
    async with run.learner.trainer(updates) as trainer:
        found = await probe_service(
            sampler,
            trainer,
            run.session.renderer,
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


def read_evaluation_side(settings: TrainSettings, pool: list[Problem], folder: Path) -> list[Problem]:
    """The test problems, their tests in a file of this process in `folder`; says how many of them are in the `pool`
    too. ConfigError if there are none."""
    side = evaluation_side(settings)
    loaded = side.load(rows=environment_of(settings).rows, keep=SpilledTests(folder).keep)
    if not loaded.problems:
        raise ConfigError(
            f"there is nothing to evaluate on in {side}: {loaded.unusable or 'no rows'}; name another "
            "evaluation_dataset, or eval_every=-1"
        )
    # Both: an id may be the data's own, and mean another problem in another data set.
    trained = {(problem.problem_id, problem.statement) for problem in pool}
    both = sum((problem.problem_id, problem.statement) in trained for problem in loaded.problems)
    if both:
        logger.warning("%d of %d test problems are in the pool, and so trained on", both, len(loaded.problems))
    return loaded.problems


def check_pool(path: Path) -> None:
    """Look at a pool's parquet file without reading its problems.

    Raises DataError if it cannot be read or is no pool, ConfigError if it is empty.
    """
    if path.suffix == ".jsonl":
        raise ConfigError(f"pool={path} is a data set, not a pool: make one of it (coderl curate dataset={path})")
    with _pool_errors(path):
        # From the footer: the tests of a pool can be gigabytes, and are read when all else is known to be right.
        schema = pl.read_parquet_schema(path)
        rows = pl.scan_parquet(path).select(pl.len()).collect().item()
    missing = [name for name in PROBLEM_SCHEMA if name not in schema]
    if missing:
        columns = f"column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        raise DataError(f"the pool {path} has no {columns}: it has to be one that `coderl curate` wrote")
    if schema["tests"] != PROBLEM_SCHEMA["tests"]:
        raise DataError(
            f"the pool {path}: column tests is {schema['tests']}, not {PROBLEM_SCHEMA['tests']}: "
            "it has to be one that `coderl curate` wrote"
        )
    if not rows:
        raise ConfigError(
            f"the pool {path} is empty: curate other problems, or with another model or band (the report beside it "
            "says why each row was dropped)"
        )


def read_pool(path: Path) -> list[Problem]:
    """The problems of a pool's parquet file, which `check_pool` accepts, without solutions, their tests left there;
    raises as it does."""
    check_pool(path)
    with _pool_errors(path):
        return PoolFile(path).problems()


def profiled_counts(path: Path) -> dict[str, tuple[int, int]]:
    """Right and graded completions of the profile by problem id, from a pool's file; empty where it has none."""
    names = ["problem_id", "n_correct", "n_samples"]
    with _pool_errors(path):
        if not set(names) <= pl.read_parquet_schema(path).keys():
            return {}
        rows = pl.read_parquet(path, columns=names).drop_nulls().iter_rows()
        return {problem_id: (right, graded) for problem_id, right, graded in rows}


@contextmanager
def _pool_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"the pool {path} cannot be read: {' '.join(str(error).split())}") from error


@dataclass(frozen=True, slots=True)
class PromptRoom:
    """What room a pool's prompts leave for completions: ids of problems `without`, and how many `capped` have less than
    `max_tokens`. `of` is all that decides it."""

    of: dict[str, Any]
    without: list[str]
    capped: int

    @classmethod
    def found(cls, of: dict[str, Any], session: Session, problems: list[Problem]) -> Self:
        """By encoding every prompt."""
        most, environment = of["max_tokens"], session.environment
        budgets = [
            completion_budget(len(environment.prompt(problem, session.renderer)), most, of["context"])
            for problem in problems
        ]
        without = [problem.problem_id for problem, budget in zip(problems, budgets, strict=True) if not budget]
        return cls(of, without, sum(0 < budget < most for budget in budgets))

    @classmethod
    def recorded(cls, of: dict[str, Any], path: Path) -> Self | None:
        """As an earlier start found it; None if there is none, of other prompts, or damaged."""
        try:
            record = read_json(path)
        except (FileNotFoundError, DataError):
            return None
        return cls(**record) if record["of"] == of else None


def fitting_problems(session: Session, problems: list[Problem], directory: RunDirectory) -> list[Problem]:
    """The problems whose prompt leaves room for a completion; says how many do not, and where `max_tokens` is capped.

    To encode the prompts of thousands of problems takes seconds: the run's prompts.json tells later starts what came
    out. Raises ConfigError if no problem is left.
    """
    of = {key: directory.config.get(key) for key in PROMPTS_OF} | {"context": session.context}
    path = directory.path / "prompts.json"
    room = PromptRoom.recorded(of, path)
    if room is None:
        room = PromptRoom.found(of, session, problems)
        write_json(path, asdict(room))
    without = set(room.without)
    kept = [problem for problem in problems if problem.problem_id not in without]
    if not kept:
        raise ConfigError(f"no prompt of the pool fits in the model's context of {session.context} tokens")
    if without:
        logger.warning("%d of %d problems left out: prompt_too_long", len(problems) - len(kept), len(problems))
    if room.capped:
        logger.warning(
            "max_tokens=%d is capped for %d prompts: the context is %d", of["max_tokens"], room.capped, session.context
        )
    return kept


def split_validation(problems: list[Problem], settings: TrainSettings) -> tuple[list[Problem], list[Problem]]:
    """The pool's problems to train on, and those held out for validation (none unless eval.on=validation)."""
    if settings.eval.on != "validation":
        return problems, []
    if settings.eval.validation_size >= len(problems):
        raise ConfigError(
            f"eval.validation_size={settings.eval.validation_size} leaves nothing of a pool of {len(problems)}"
        )
    # By a hash and not by place: what is held out stays so whatever order the pool has.
    ordered = sorted(problems, key=lambda problem: _keyed_hash(settings.seed, problem.problem_id))
    held_out = {problem.problem_id for problem in ordered[: settings.eval.validation_size]}
    return (
        [problem for problem in problems if problem.problem_id not in held_out],
        [problem for problem in problems if problem.problem_id in held_out],
    )


def _keyed_hash(seed: int, problem_id: str) -> bytes:
    return hashlib.sha256(f"validation/{seed}/{problem_id}".encode()).digest()
