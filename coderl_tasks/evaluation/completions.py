"""A file of completions, graded as those of a model: only the sandbox is asked.

A completion with a closed code block is the program in it; without one it is the program, behind the prompt where the
benchmark's completions go on from there (HumanEval). `solution` and `code` are programs. A problem's graded completions
are recorded at once, so a restart grades only the others.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from prefect import task

from coderl_tasks.environments.benchmarks import BENCHMARKS, benchmark_ids
from coderl_tasks.errors import DataError
from coderl_tasks.evaluation.pass_at_1 import summarize
from coderl_tasks.evaluation.policy import COMPLETIONS
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.scoring import Verdict, extract_code, score_codes
from coderl_tasks.grading.table import read_completions
from coderl_tasks.journal.steps import GroupFiles
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.policy.sampling import Completion, GroupRequest, graded_group, group_frame, require_graded
from coderl_tasks.problems import Problem
from coderl_tasks.retries import PHASE
from coderl_tasks.rollouts.engine import first_error
from coderl_tasks.rollouts.rounds import Progress
from coderl_tasks.settings import EvaluateSettings

_IN_WORK = 64  # problems graded side by side
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True, repr=False)
class CompletionsFile:
    """The completions of `file` and the programs in them (None: none), by problem id."""

    file: Path
    texts: Mapping[str, Sequence[str]]
    codes: Mapping[str, Sequence[str | None]]


def read_completions_of(settings: EvaluateSettings, problems: Sequence[Problem]) -> CompletionsFile:
    """Reads the completions in the file that `settings` name, made elsewhere, for `problems`: those of the benchmarks,
    or some of them. Raises DataError for a file that cannot be read, for completions of problems that the benchmarks
    do not have, and for `problems` without one."""
    file = Path(str(settings.completions))
    columns = read_completions(file)
    if columns and "problem_id" not in columns:
        raise DataError(f"{file}: its completions name no task: give each a task_id")
    # If only some problems are evaluated, the file may have completions of the others too: these are skipped.
    known: set[str] = set()
    if settings.eval_limit != -1 or settings.since is not None or settings.until is not None:
        known = benchmark_ids(settings.benchmark or ())
    by_id = {problem.problem_id: problem for problem in problems}
    texts: dict[str, list[str]] = {}
    codes: dict[str, list[str | None]] = {}
    unknown: dict[str, None] = {}  # a set that keeps the file's order
    name = "code" if "code" in columns else "completion"  # a program, or a text that has one
    for row, (problem_id, text) in enumerate(zip(columns.get("problem_id", ()), columns.get(name, ()), strict=True)):
        if not isinstance(text, str | None):
            raise DataError(f"{file}: the {name} of row {row} is no text")
        problem = by_id.get(str(problem_id))
        if problem is None:
            if str(problem_id) not in known:
                unknown[str(problem_id)] = None
            continue
        texts.setdefault(problem.problem_id, []).append(text or "")
        codes.setdefault(problem.problem_id, []).append(text if name == "code" else _program(problem, text))
    if unknown:
        raise DataError(f"{file}: {len(unknown)} of its tasks are not in the benchmark: {_some_of(unknown)}")
    if missing := [problem_id for problem_id in by_id if problem_id not in texts]:
        raise DataError(
            f"{file}: {len(missing)} of {len(by_id)} problems have no completion: {_some_of(missing)} (a benchmark's "
            "figure is of all problems; eval_limit, since and until take fewer)"
        )
    return CompletionsFile(file, texts, codes)


def _some_of(ids: Collection[str]) -> str:
    return ", ".join([*list(ids)[:_MOST_NAMED], *(["..."] if len(ids) > _MOST_NAMED else [])])


def _program(problem: Problem, text: str | None) -> str | None:
    if text is None:
        return None
    if (code := extract_code(text)) is not None:
        return code
    return problem.statement + text if BENCHMARKS[problem.split].is_continued else text


@task(name="grade-completions", **PHASE)
async def grade_completions(
    given: CompletionsFile, problems: Sequence[Problem], judge: Judge, groups: GroupFiles, on_progress: Progress
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Grades `given`, the completions read from a file. Returns them as rollouts (ROLLOUT_SCHEMA, in problem order) and
    their summary. Each problem's are recorded in `groups` when they are graded; recorded ones are not graded again.
    Raises InfraError if the sandbox could not grade them."""
    recorded = {  # what an outage left ungraded is graded again
        index: frame
        for index, frame in groups.read().items()
        if "verdict" in frame.columns and Verdict.INFRA_ERROR.value not in frame["verdict"]
    }
    slots = asyncio.Semaphore(_IN_WORK)

    async def grade(index: int, problem: Problem) -> None:
        texts = iter(given.texts[problem.problem_id])
        codes = given.codes[problem.problem_id]
        request = GroupRequest(index, problem.problem_id, problem.split, [], len(codes), 0, None, temperature=0.0)
        # Nothing is known but the texts: no tokens, and so no probabilities.
        sampled = group_frame(request, [Completion([], None, "stop")] * len(codes), decode=lambda _: next(texts))
        async with slots:
            whole = await asyncio.to_thread(problem.whole)  # its tests may still be on the disk
            distinct = list(dict.fromkeys(codes))  # each program is run once
            scored = dict(zip(distinct, await score_codes(judge, whole, distinct), strict=True))
        recorded[index] = graded_group(sampled, [scored[code] for code in codes])
        groups.write(index, recorded[index])
        on_progress(len(recorded), len(problems))

    with first_error():  # raises the first task's error itself, not the group's
        async with asyncio.TaskGroup() as tasks:
            for index, problem in enumerate(problems):
                if index not in recorded:
                    tasks.create_task(grade(index, problem))
    rollouts = pl.concat([pl.DataFrame(schema=ROLLOUT_SCHEMA), *(recorded[index] for index in sorted(recorded))])
    require_graded(rollouts, "evaluate")
    return rollouts, summarize(rollouts, policy=f"{COMPLETIONS}{given.file}")
