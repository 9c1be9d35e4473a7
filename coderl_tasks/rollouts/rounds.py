"""Rounds of completions of each problem, until a stopping rule says enough: profile and evaluation are built on this.

1. A problem is sampled in rounds; the next one is asked for as soon as the last is graded, whatever the others do.
2. A round is recorded when it arrives and again when it is graded, so a restart samples nothing twice and grades only
   what is not graded yet. Of what the sandbox failed to grade nothing further is sampled: it is graded once more when
   all others are through, and then by the next call.
3. A completion depends on seed, round, problem and its place in the round only.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import polars as pl
import tinker

from coderl_tasks.errors import InfraError
from coderl_tasks.grading.scoring import Verdict
from coderl_tasks.journal.atomic import try_read_json, write_json
from coderl_tasks.journal.ledger import add_lost, files_tokens
from coderl_tasks.journal.steps import FINGERPRINT_FILE, TIME_LIMIT_KEY, GroupFiles, same_samples
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA, SAMPLED_SCHEMA
from coderl_tasks.policy.sampling import MISSING, require_graded, try_all
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.problems.problem import Problem, StoredTests, Test
from coderl_tasks.rollouts.engine import RolloutEngine
from coderl_tasks.rollouts.turns import further_turns, is_unfinished

logger = logging.getLogger(__name__)

GRADING_PASSES = 2
ROUNDS = 1000
"""The most rounds per problem: a problem's files are numbered from its place times this."""
ROUND_SIZE = 2

Progress = Callable[[int, int], None]
"""Called with (problems graded, problems in all) as they are done."""


class Rule(Protocol):
    """When what a problem's samples decide is clear."""

    def is_clear(self, n_correct: int, n: int, max_samples: int) -> bool:
        """Whether `n_correct` of `n` samples (at least one) settle what `max_samples` would decide."""


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """At most `max_samples` completions per problem, in rounds of `round_size`."""

    max_samples: int
    round_size: int = ROUND_SIZE
    rule: Rule | None = None  # None: all samples are taken
    rules: Mapping[str, Rule] = field(default_factory=dict)  # by problem_id, a problem's own in place of `rule`
    sampled: frozenset[str] | None = None  # the ids of those that are sampled at all; None: every one

    def __post_init__(self) -> None:
        if self.max_samples < 1 or self.round_size < 1:
            raise ValueError(f"a plan needs samples: {self.max_samples=}, {self.round_size=}")
        if len(self.round_sizes) > ROUNDS:
            raise ValueError(f"{len(self.round_sizes)} rounds are more than {ROUNDS}: make them larger")

    @property
    def round_sizes(self) -> list[int]:
        return [min(self.round_size, self.max_samples - first) for first in range(0, self.max_samples, self.round_size)]

    def is_enough(self, n_correct: int, n: int, problem_id: str = "") -> bool:
        """Whether no further round of a problem is needed after `n_correct` of `n` samples."""
        if n >= self.max_samples:
            return True
        rule = self.rules.get(problem_id, self.rule)
        return rule is not None and rule.is_clear(n_correct, n, self.max_samples)


ONE_SAMPLE = SamplingPlan(1, 1)


async def sample_in_rounds(
    problems: Sequence[Problem],
    sampler: tinker.SamplingClient,
    engine: RolloutEngine,
    plan: SamplingPlan = ONE_SAMPLE,
    *,
    groups: GroupFiles | None = None,
    recorded: pl.DataFrame | None = None,
    on_progress: Progress | None = None,
) -> pl.DataFrame:
    """Samples and grades the completions that `plan` wants of each problem: ROLLOUT_SCHEMA in problem and sample order;
    group_index is the problem's place in `problems`, attempt the round.

    `groups` is a folder for the rounds of a call that is not finished, with a fingerprint of all that decides the
    samples. Rounds that an earlier call recorded there are used if the fingerprint is the same, graded again if only
    the time limit is another, else deleted. `recorded` (ROLLOUT_SCHEMA) is what a finished call with that fingerprint
    returned, even if its stopping rule was another. Raises InfraError when sampling fails, and as `require_graded` if
    too many could not be graded; what arrived stays recorded."""
    wanted = {problem.problem_id for problem in problems} if plan.sampled is None else plan.sampled
    unfinished = [index for index, problem in enumerate(problems) if problem.problem_id in wanted]
    rounds = _Rounds(problems, sampler, engine, plan, groups, on_progress, total=len(unfinished), recorded=recorded)
    # Twice: after all others, completions that the sandbox failed to grade are graded again; it may be back by then.
    for _ in range(GRADING_PASSES):
        finished = await try_all(rounds.finish_problem, unfinished)
        unfinished = [index for index, is_finished in zip(unfinished, finished, strict=True) if not is_finished]
    # Not all recorded rounds: an earlier plan may have sampled more of a problem than this one wants.
    used = [rounds.frames[index, number] for index, n in sorted(rounds.n_used.items()) for number in range(n)]
    rollouts = pl.concat([pl.DataFrame(schema=ROLLOUT_SCHEMA), *used])
    require_graded(rollouts, engine.settings.purpose)
    return rollouts


@dataclass
class _Rounds:
    """The rounds of one call of `sample_in_rounds`."""

    problems: Sequence[Problem]
    sampler: tinker.SamplingClient
    engine: RolloutEngine
    plan: SamplingPlan
    groups: GroupFiles | None
    on_progress: Progress | None
    total: int  # problems to be sampled
    recorded: InitVar[pl.DataFrame | None]  # rounds that a finished call returned
    done: int = 0
    n_used: dict[int, int] = field(default_factory=dict)  # problem: how many of its rounds count

    def __post_init__(self, recorded: pl.DataFrame | None) -> None:
        self.sizes = self.plan.round_sizes
        self.frames = self._recorded(fingerprint(self.problems, self.engine, self.plan))
        """Sampled so far, graded or not, by (problem, round)."""
        if recorded is not None:
            parts = recorded.partition_by("group_index", "attempt", as_dict=True, maintain_order=True)
            self.frames = self._fitting(parts) | self.frames  # what an unfinished call recorded is newer

    async def finish_problem(self, index: int) -> bool:
        """Sample and grade problem `index`, round by round, until that is enough. False if it stops early because
        something could not be graded: the next round depends on that."""
        n = n_correct = 0
        for number in range(len(self.sizes)):
            graded = await self._graded(index, number)
            # Also where something of it could not be graded: `require_graded` counts that in what is returned.
            self.n_used[index] = number + 1
            if Verdict.INFRA_ERROR.value in graded["verdict"]:
                return False
            n += graded.height
            n_correct += int((graded["correctness_score"] == 1.0).sum())
            if self.plan.is_enough(n_correct, n, self.problems[index].problem_id):
                break
        self.done += 1
        if self.on_progress is not None:
            self.on_progress(self.done, self.total)
        return True

    async def _graded(self, index: int, number: int) -> pl.DataFrame:
        """A round as it is recorded, or sampled now, or graded now: only what is missing is done."""
        problem, settings, record = self.problems[index], self.engine.settings, partial(self._arrived, index, number)
        frame = self.frames.get((index, number))
        if frame is None:
            seed = seed_for(settings.seed, settings.purpose, number, problem.problem_id)
            size, first = self.sizes[number], sum(self.sizes[:number])
            request = self.engine.request(problem, index, size, seed=seed, attempt=number, first_sample=first)
            frame = await self.engine.sample(self.sampler, problem, request, record)
        elif is_unfinished(self.engine, frame):
            sampled = frame.select(SAMPLED_SCHEMA.keys())
            frame = await further_turns(self.engine, self.sampler, problem, sampled, settings.temperature, record)
        if "verdict" not in frame.columns or Verdict.INFRA_ERROR.value in frame["verdict"]:
            graded = await self.engine.grade(problem, frame.select(SAMPLED_SCHEMA.keys()))
            frame = self._record(index, number, graded)
        return frame

    def _arrived(self, index: int, number: int, frame: pl.DataFrame) -> None:
        # Without log-probabilities a completion can be graded; one that never came would count as a wrong answer.
        if missing := int((frame["stop_reason"] == MISSING.stop_reason).sum()):
            raise InfraError(f"Tinker, sampling: {frame.height} completions asked for, {frame.height - missing} came")
        self._record(index, number, frame)

    def _record(self, index: int, number: int, frame: pl.DataFrame) -> pl.DataFrame:
        # First on disk, as in a step: a crash after this line does not pay for the round again.
        if self.groups is not None:
            self.groups.write(index * ROUNDS + number, frame)
        self.frames[index, number] = frame
        return frame

    def _recorded(self, request: dict[str, Any]) -> dict[tuple[Any, ...], pl.DataFrame]:
        """What an unfinished call for the same `request` left, by (problem, round)."""
        if self.groups is None:
            return {}
        are_samples_valid, are_grades_valid = validity(self.groups.folder, request)
        if not are_samples_valid:
            if self.groups.folder.exists():
                logger.warning("%s holds groups of other problems or settings: they are deleted", self.groups.folder)
                add_lost(self.groups.folder.parent, files_tokens(self.groups.folder.glob("*.parquet")))
            self.groups.begin(request)
            return {}
        frames = self.groups.read()
        if not are_grades_valid:
            frames = {place: ungraded(frame) for place, frame in frames.items()}
            for place, frame in frames.items():
                self.groups.write(place, frame)
            # After the groups: a crash in between must not leave it beside grades by another time limit.
            write_json(self.groups.folder / FINGERPRINT_FILE, request)
        return self._fitting({divmod(place, ROUNDS): frame for place, frame in frames.items()})

    def _fitting(self, found: dict[tuple[Any, ...], pl.DataFrame]) -> dict[tuple[Any, ...], pl.DataFrame]:
        """The recorded rounds that are of this plan."""
        sizes = dict(enumerate(self.sizes))
        return {place: frame for place, frame in found.items() if frame.height == sizes.get(place[1])}


def fingerprint(problems: Sequence[Problem], engine: RolloutEngine, plan: SamplingPlan) -> dict[str, Any]:
    """What decides the samples and their grades, recorded beside them; neither the concurrency nor when sampling stops
    does."""
    values = asdict(engine.settings)
    # It changes when groups arrive and nothing in them: a faster machine goes on with what a slower one sampled.
    del values["concurrency"]
    values |= {"renderer": engine.renderer.label, "round_size": plan.round_size, **engine.environment.fingerprint}
    # A row's own id stays when its statement, tests or limit are corrected, and a comparator may be inferred.
    return values | {"problems": deciding_digest(problems), TIME_LIMIT_KEY: engine.judge.timeout_s}


def deciding_digest(problems: Sequence[Problem]) -> str:
    """A hash of what of `problems` decides samples and grades, which reference solutions do not."""
    # Tests in a file can be gigabytes: their number and, where it is known, their hash stand for them.
    tests = (
        (Test(p.tests.digest, str(p.tests_total)),) if isinstance(p.tests, StoredTests) else p.tests for p in problems
    )
    pairs = zip(problems, tests, strict=True)
    return content_digest([replace(each, tests=its, solutions=(), wrong_solutions=()) for each, its in pairs])


def content_digest(problems: Sequence[Problem]) -> str:
    """A hash of `problems` with all tests and programs, but not where they come from."""
    digest = sha256()
    for problem in problems:
        tests = (text for test in problem.tests for text in (test.input, test.expected))
        about = (problem.kind, problem.entry_point, problem.statement, problem.starter_code)
        decides = (*about, problem.comparator, problem.checker, str(problem.time_limit_s))
        for text in (problem.problem_id, *decides, *problem.solutions, *problem.wrong_solutions, *tests):
            digest.update(len(text).to_bytes(8, "little") + text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def validity(folder: Path, request: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether the samples recorded in `folder` are of the fingerprint `request`, and whether their grades are, too."""
    recorded = read_fingerprint(folder)
    return recorded is not None and same_samples(recorded, request), recorded == request


def ungraded(rollouts: pl.DataFrame) -> pl.DataFrame:
    """`rollouts` (SAMPLED_SCHEMA at least) as if the sandbox had failed to grade them (ROLLOUT_SCHEMA): those that are
    needed are graded again."""
    sampled = rollouts.select(SAMPLED_SCHEMA.keys())
    empty = pl.DataFrame(schema=ROLLOUT_SCHEMA)
    return pl.concat([empty, sampled], how="diagonal").with_columns(verdict=pl.lit(Verdict.INFRA_ERROR.value))


def read_fingerprint(folder: Path) -> dict[str, Any] | None:
    """The fingerprint recorded in `folder`, None if there is none that can be read."""
    return try_read_json(folder / FINGERPRINT_FILE)
