"""Samples a policy on problems and grades what comes: profiling and evaluation both stand on this.

1. A problem is sampled in rounds; the next one is asked for as soon as the last is graded, whatever the others do. A
   single round of all samples is the plain case.
2. A round is recorded when it arrives and again when it is graded, so a restart samples nothing twice and grades only
   what is not graded yet. Infra errors count as not graded, and nothing is sampled on their account: such a problem
   waits, is graded once more when all others are through, and then by the next call.
3. Grading runs beside sampling: the sandbox works while the sampler does.
4. What is recorded serves whatever the stopping rule says: with another band, more is sampled where it is needed.
5. Greedy or not, a completion depends on seed, round, problem and its place in the round only: not on the order, on
   what else is measured, or on when the plan stops.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import polars as pl
import tinker

from coderl_tasks.curation.sampling_plan import ONE_SAMPLE, SamplingPlan
from coderl_tasks.errors import InfraError
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.scoring import score_group
from coderl_tasks.grading.verdict import Verdict
from coderl_tasks.journal.atomic import DamagedFileError, make_folder, read_json, write_json
from coderl_tasks.journal.steps import GroupFiles
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA, SAMPLED_SCHEMA
from coderl_tasks.policy.rollout_frames import TRUNCATED, graded_frame, group_frame, require_graded
from coderl_tasks.policy.sampling import MISSING, Completion, GroupRequest, cap_max_tokens, sample_group, try_all
from coderl_tasks.policy.seeds import seed_for
from coderl_tasks.problems.problem import Problem
from coderl_tasks.prompts.problem_prompt import problem_prompt
from coderl_tasks.prompts.renderers import Renderer

logger = logging.getLogger(__name__)

OUTSIDE_TRAINING = -1
FINGERPRINT_FILE = "request.json"
GRADING_PASSES = 2
ROUNDS = 1000  # at most, of a problem: its rounds' files are numbered from the problem's place times this

Purpose = Literal["profile", "evaluate"]

Progress = Callable[[int, int], None]
"""Called with (problems graded, problems in all) as they are done."""


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """How problems are measured. `purpose` keeps the random draws of different uses apart; `policy` names what is
    measured, where the folder that records it does not imply that.

    `max_tokens` is the completion's limit and `context` the model's, both in tokens; `sampler_step` is the last step
    trained into the policy, -1 for the base model.
    """

    purpose: Purpose
    policy: str
    temperature: float
    max_tokens: int
    context: int
    seed: int
    concurrency: int = 64
    format_coef: float = 0.1
    sampler_step: int = OUTSIDE_TRAINING


async def measure(
    problems: Sequence[Problem],
    sampler: tinker.SamplingClient,
    judge: Judge,
    renderer: Renderer,
    settings: MeasureSettings,
    sampling: SamplingPlan = ONE_SAMPLE,
    *,
    groups: GroupFiles | None = None,
    recorded: pl.DataFrame | None = None,
    on_progress: Progress | None = None,
) -> pl.DataFrame:
    """Graded completions of each problem, as many as `sampling` wants: ROLLOUT_SCHEMA in problem and sample order.

    group_index is the problem's place in `problems`, attempt the round. With `groups`, rounds recorded there by an
    earlier, unfinished call with the same `fingerprint` are used; recorded ones of any other call are deleted.
    `recorded` (ROLLOUT_SCHEMA) is what a finished call with that fingerprint returned, by whichever stopping rule. A
    prompt that leaves no room for a completion counts as an empty truncated one. Raises InfraError when sampling fails,
    or too much could not be graded; what arrived stays recorded.
    """
    work = _Measurement(problems, sampler, judge, renderer, settings, sampling, groups, on_progress)
    work.take(recorded)
    unclear: Sequence[int] = range(len(problems))
    for _ in range(GRADING_PASSES):
        clear = await try_all(work.measure_problem, unclear)
        unclear = [index for index, is_clear in zip(unclear, clear, strict=True) if not is_clear]
    rollouts = work.rollouts()
    require_graded(rollouts, settings.purpose)
    return rollouts


class _Measurement:
    """One call of `measure`."""

    def __init__(
        self,
        problems: Sequence[Problem],
        sampler: tinker.SamplingClient,
        judge: Judge,
        renderer: Renderer,
        settings: MeasureSettings,
        sampling: SamplingPlan,
        groups: GroupFiles | None,
        on_progress: Progress | None,
    ) -> None:
        self.problems = problems
        self.sampler = sampler
        self.judge = judge
        self.renderer = renderer
        self.settings = settings
        self.sizes = sampling.round_sizes
        if len(self.sizes) > ROUNDS:
            raise ValueError(f"{len(self.sizes)} rounds are more than {ROUNDS}: make them larger")
        self.is_enough = sampling.is_enough
        self.groups = groups
        self.on_progress = on_progress
        self.rounds = self._recorded(fingerprint(problems, settings, sampling, renderer))
        """Sampled so far, graded or not, by (problem, round)."""
        self.in_use: dict[int, int] = {}  # problem: how many of its rounds count
        self.done = 0
        self.slots = asyncio.Semaphore(settings.concurrency)

    def take(self, recorded: pl.DataFrame | None) -> None:
        """Use rounds that were recorded elsewhere, where there is nothing newer."""
        if recorded is not None:
            parts = recorded.partition_by("group_index", "attempt", as_dict=True, maintain_order=True)
            for (index, number), frame in parts.items():
                if number < len(self.sizes) and frame.height == self.sizes[number]:
                    self.rounds.setdefault((index, number), frame)

    async def measure_problem(self, index: int) -> bool:
        """Sample and grade problem `index`, round by round, until that is enough.

        False if it has to be left before, because something could not be graded: what comes next hangs on that.
        """
        n = n_correct = 0
        for number in range(len(self.sizes)):
            graded = await self._graded_round(index, number)
            self.in_use[index] = number + 1
            if _has_infra_errors(graded):
                return False
            n += graded.height
            n_correct += int((graded["correctness_score"] == 1.0).sum())
            if self.is_enough(n_correct, n):
                break
        self.done += 1
        if self.on_progress is not None:
            self.on_progress(self.done, len(self.problems))
        return True

    def rollouts(self) -> pl.DataFrame:
        """The rounds that count, in order."""
        frames = [self.rounds[index, number] for index in sorted(self.in_use) for number in range(self.in_use[index])]
        return pl.concat([pl.DataFrame(schema=ROLLOUT_SCHEMA), *frames])

    async def _graded_round(self, index: int, number: int) -> pl.DataFrame:
        """A round as it is recorded, or sampled now, or graded now: only what is missing is done."""
        frame = self.rounds.get((index, number))
        if frame is None:
            frame = self._record(index, number, await self._sampled_round(index, number))
        if "verdict" not in frame.columns or _has_infra_errors(frame):
            sampled = frame.select(SAMPLED_SCHEMA.keys())
            texts = sampled["completion"].to_list()
            scored = await score_group(self.judge, self.problems[index], texts, self.settings.format_coef)
            frame = self._record(index, number, graded_frame(sampled, {index: scored}))
        return frame

    async def _sampled_round(self, index: int, number: int) -> pl.DataFrame:
        problem, settings, size = self.problems[index], self.settings, self.sizes[number]
        prompt = problem_prompt(problem, self.renderer)
        max_tokens = cap_max_tokens(len(prompt), settings.max_tokens, settings.context)
        seed = seed_for(settings.seed, settings.purpose, number, problem.problem_id)
        request = GroupRequest(index, problem.problem_id, problem.split, prompt, size, max_tokens, seed)
        if max_tokens < 1:
            completions = [Completion([], [], TRUNCATED)] * size
        else:
            async with self.slots:
                completions = await sample_group(
                    self.sampler,
                    prompt,
                    num_samples=size,
                    max_tokens=max_tokens,
                    temperature=settings.temperature,
                    seed=seed,
                    stop=self.renderer.stop_tokens,
                )
            # Without log-probabilities a completion can be graded; one that never came would count as a wrong answer.
            if missing := completions.count(MISSING):
                raise InfraError(f"Tinker, sampling: {size} completions asked for, {size - missing} came")
        return group_frame(
            request,
            completions,
            step=OUTSIDE_TRAINING,
            attempt=number,
            sampler_step=settings.sampler_step,
            decode=lambda tokens: self.renderer.parse_response(tokens)[0],
            first_sample=sum(self.sizes[:number]),
        )

    def _record(self, index: int, number: int, frame: pl.DataFrame) -> pl.DataFrame:
        if self.groups is not None:
            self.groups.write(index * ROUNDS + number, frame)
        self.rounds[index, number] = frame
        return frame

    def _recorded(self, request: dict[str, Any]) -> dict[tuple[int, int], pl.DataFrame]:
        """What an unfinished call for the same `request` left, by (problem, round)."""
        if self.groups is None:
            return {}
        if not is_recorded(self.groups.folder, request):
            if self.groups.folder.exists():
                logger.warning("%s holds groups of other problems or settings: they are deleted", self.groups.folder)
            self.groups.remove()
            write_json(make_folder(self.groups.folder) / FINGERPRINT_FILE, request)
            return {}
        found = {divmod(place, ROUNDS): frame.select(_columns(frame)) for place, frame in self.groups.read().items()}
        return {
            (index, number): frame
            for (index, number), frame in found.items()
            if number < len(self.sizes) and frame.height == self.sizes[number]
        }


def _columns(frame: pl.DataFrame) -> list[str]:
    return list(ROLLOUT_SCHEMA if "verdict" in frame.columns else SAMPLED_SCHEMA)


def _has_infra_errors(graded: pl.DataFrame) -> bool:
    return bool((graded["verdict"] == Verdict.INFRA_ERROR.value).any())


def fingerprint(
    problems: Sequence[Problem], settings: MeasureSettings, sampling: SamplingPlan, renderer: Renderer
) -> dict[str, Any]:
    """What decides the draws, to be recorded beside them: problems, settings, chat format and the size of a round, but
    neither the concurrency nor when sampling stops."""
    content = "\n".join(f"{problem.problem_id} {problem.tests_total}" for problem in problems)
    values = asdict(settings)
    del values["concurrency"]
    values |= {"renderer": renderer.label, "round_size": sampling.round_size}
    return values | {"problems": sha256(content.encode()).hexdigest()}


def is_recorded(folder: Path, request: dict[str, Any]) -> bool:
    """Whether `folder` records draws of this `request`; of early records, which name no renderer, that is not asked."""
    recorded = read_fingerprint(folder)
    return recorded is not None and {"renderer": request["renderer"], **recorded} == request


def read_fingerprint(folder: Path) -> dict[str, Any] | None:
    """The fingerprint recorded in `folder`, None if there is none that can be read."""
    try:
        return read_json(folder / FINGERPRINT_FILE)
    except (FileNotFoundError, DamagedFileError):
        return None
