"""Samples a policy on problems and grades what comes: profiling and evaluation both stand on this.

1. A group is recorded when it arrives and again when it is graded, so a restart samples nothing twice and grades only
   what is not graded yet. Infra errors count as not graded.
2. Grading runs beside sampling: the sandbox works while the sampler does.
3. Greedy or not, a completion depends on the seed and the problem only, not on the order or on what else is measured.
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

from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.scoring import score_group
from coderl_tasks.grading.verdict import Verdict
from coderl_tasks.journal.atomic import DamagedFileError, make_folder, read_json, write_json
from coderl_tasks.journal.steps import GroupFiles
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA, SAMPLED_SCHEMA
from coderl_tasks.policy.rollout_frames import TRUNCATED, graded_frame, group_frame, require_graded
from coderl_tasks.policy.sampling import Completion, GroupRequest, cap_max_tokens, sample_groups
from coderl_tasks.policy.seeds import seed_for
from coderl_tasks.problems.problem import Problem
from coderl_tasks.prompts.problem_prompt import problem_prompt
from coderl_tasks.prompts.renderers import Renderer

logger = logging.getLogger(__name__)

OUTSIDE_TRAINING = -1
FINGERPRINT_FILE = "request.json"

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
    num_samples: int
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
    *,
    groups: GroupFiles | None = None,
    on_progress: Progress | None = None,
) -> pl.DataFrame:
    """`num_samples` graded completions of each problem: a frame of ROLLOUT_SCHEMA in problem and sample order.

    group_index is the problem's place in `problems`. With `groups`, groups recorded there by an earlier, unfinished
    call with the same problems and settings are used; recorded ones of any other call are deleted. A prompt that leaves
    no room for a completion counts as an empty truncated one. Raises InfraError when sampling fails, or too much could
    not be graded; what arrived stays recorded.
    """
    prompts = [problem_prompt(problem, renderer) for problem in problems]
    done: dict[int, pl.DataFrame] = {}

    async def grade(index: int, sampled: pl.DataFrame) -> None:
        texts = sampled["completion"].to_list()
        scored = await score_group(judge, problems[index], texts, settings.format_coef)
        done[index] = graded_frame(sampled, {index: scored})
        if groups is not None:
            groups.write(index, done[index])
        if on_progress is not None:
            on_progress(len(done), len(problems))

    async def record_and_grade(request: GroupRequest, completions: list[Completion]) -> None:
        sampled = _sampled(request, completions, renderer, settings)
        if groups is not None:
            groups.write(request.group_index, sampled)
        await grade(request.group_index, sampled)

    ungraded: dict[int, pl.DataFrame] = {}
    for index, frame in _recorded(groups, problems, settings).items():
        if "verdict" in frame.columns and (frame["verdict"] != Verdict.INFRA_ERROR.value).all():
            done[index] = frame.select(ROLLOUT_SCHEMA.keys())
        else:
            ungraded[index] = frame.select(SAMPLED_SCHEMA.keys())
    requests = [
        _request(index, problem, prompts[index], settings)
        for index, problem in enumerate(problems)
        if index not in done and index not in ungraded
    ]
    await asyncio.gather(*(grade(index, sampled) for index, sampled in ungraded.items()))
    for request in requests:
        if request.max_tokens < 1:
            await record_and_grade(request, [Completion([], [], TRUNCATED)] * settings.num_samples)
    await sample_groups(
        sampler,
        [request for request in requests if request.max_tokens >= 1],
        temperature=settings.temperature,
        stop=renderer.stop_tokens,
        max_concurrency=settings.concurrency,
        on_group=record_and_grade,
    )
    rollouts = pl.concat([pl.DataFrame(schema=ROLLOUT_SCHEMA), *(done[index] for index in sorted(done))])
    require_graded(rollouts, settings.purpose)
    return rollouts


def _request(index: int, problem: Problem, prompt: list[int], settings: MeasureSettings) -> GroupRequest:
    return GroupRequest(
        group_index=index,
        problem_id=problem.problem_id,
        split=problem.split,
        prompt_tokens=prompt,
        num_samples=settings.num_samples,
        max_tokens=cap_max_tokens(len(prompt), settings.max_tokens, settings.context),
        seed=seed_for(settings.seed, settings.purpose, problem.problem_id),
    )


def _sampled(
    request: GroupRequest, completions: list[Completion], renderer: Renderer, settings: MeasureSettings
) -> pl.DataFrame:
    return group_frame(
        request,
        completions,
        step=OUTSIDE_TRAINING,
        attempt=0,
        sampler_step=settings.sampler_step,
        decode=lambda tokens: renderer.parse_response(tokens)[0],
    )


def _recorded(
    groups: GroupFiles | None, problems: Sequence[Problem], settings: MeasureSettings
) -> dict[int, pl.DataFrame]:
    """The groups that an unfinished call with the same problems and settings left, by index."""
    if groups is None:
        return {}
    request = fingerprint(problems, settings)
    if read_fingerprint(groups.folder) != request:
        if groups.folder.exists():
            logger.warning("%s holds groups of other problems or settings: they are deleted", groups.folder)
        groups.remove()
        write_json(make_folder(groups.folder) / FINGERPRINT_FILE, request)
        return {}
    return {index: frame for index, frame in groups.read().items() if frame.height == settings.num_samples}


def fingerprint(problems: Sequence[Problem], settings: MeasureSettings) -> dict[str, Any]:
    """What decides the rollouts, to be recorded beside them: problems and settings, but not the concurrency."""
    content = "\n".join(f"{problem.problem_id} {problem.tests_total}" for problem in problems)
    values = asdict(settings)
    del values["concurrency"]
    return values | {"problems": sha256(content.encode()).hexdigest()}


def read_fingerprint(folder: Path) -> dict[str, Any] | None:
    """The fingerprint recorded in `folder`, None if there is none that can be read."""
    try:
        return read_json(folder / FINGERPRINT_FILE)
    except (FileNotFoundError, DamagedFileError):
        return None
