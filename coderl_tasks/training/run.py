"""A training run in this process: its settings, directory, pool, and the clients it works with."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import polars as pl

from coderl_tasks.disk import adapter_bytes, require_room
from coderl_tasks.environments import CODE, CodeEnvironment
from coderl_tasks.journal.ledger import run_budget
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.paths import coderl_home
from coderl_tasks.policy.adaptive import Adaptive
from coderl_tasks.policy.probe import Probe
from coderl_tasks.policy.selection import SELECTIONS
from coderl_tasks.problems.problem import Problem, profiled_counts, read_pool
from coderl_tasks.rollouts.engine import GradedAhead, RolloutEngine, RolloutSettings
from coderl_tasks.rollouts.session import Session, open_session
from coderl_tasks.services import Services
from coderl_tasks.settings import TrainSettings
from coderl_tasks.training.learner import Learner
from coderl_tasks.training.run_problems import (
    Orders,
    fitting_problems,
    frozen_orders,
    read_evaluation_side,
    split_validation,
)
from coderl_tasks.training.steering import Steering, stopped_before


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
        # The run's own evaluations keep the session's: their rewards are those of any other evaluation.
        environment = session.environment
        if environment is CODE:
            is_fraction = settings.reward == "fraction"
            environment = CodeEnvironment(settings.format_coef, fraction=is_fraction, priorities=test_orders)
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
            ),
            environment=environment,
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
        if self.settings.kl_penalty_coef:
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
    orders = frozen_orders(directory, problems, Path(settings.pool), settings.order_from or ())
    test_problems = [] if settings.eval_every == -1 else read_evaluation_side(settings, problems, directory.path)
    budget = run_budget(settings, directory.path, directory.commits())
    async with open_session(settings, used, budget) as session:
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
