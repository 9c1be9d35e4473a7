"""A file of completions, graded as those of a model: only the sandbox is asked.

A completion with a closed code block is the program in it; without one it is the program, behind the prompt where the
benchmark's completions go on from there (HumanEval). `solution` and `code` are programs.
"""

import asyncio
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
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
from coderl_tasks.rollouts.rounds import Progress, deciding_digest, read_fingerprint
from coderl_tasks.settings import EvaluateSettings

logger = logging.getLogger(__name__)
_PROBLEMS_AT_ONCE = 64


@dataclass(frozen=True, slots=True, repr=False)
class CompletionsFile:
    """The completions in `file`, by problem id: their `texts`, which are recorded, and in the same order the programs
    in these, `codes` (None where there is none), which are graded."""

    file: Path
    texts: Mapping[str, Sequence[str]]
    codes: Mapping[str, Sequence[str | None]]


def read_completions_of(settings: EvaluateSettings, problems: Sequence[Problem]) -> CompletionsFile:
    """Reads the completions in the file that `settings` name, made elsewhere, for `problems`: those of the benchmarks,
    or some of them. Raises DataError for a file that cannot be read, for completions of problems that the benchmarks
    do not have, and for `problems` without one."""

    def some_of(ids: Collection[str], most: int = 3) -> str:
        return ", ".join([*list(ids)[:most], *(["..."] if len(ids) > most else [])])

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
        code = text
        if name == "completion" and text is not None and (code := extract_code(text)) is None:
            code = problem.statement + text if BENCHMARKS[problem.split].is_continued else text
        codes.setdefault(problem.problem_id, []).append(code)
    if unknown:
        raise DataError(f"{file}: {len(unknown)} of its tasks are not in the benchmark: {some_of(unknown)}")
    if missing := [problem_id for problem_id in by_id if problem_id not in texts]:
        raise DataError(
            f"{file}: {len(missing)} of {len(by_id)} problems have no completion: {some_of(missing)} (a benchmark's "
            "figure is of all problems; eval_limit, since and until take fewer)"
        )
    return CompletionsFile(file, texts, codes)


@task(name="grade-completions", **PHASE)
async def grade_completions(
    completions: CompletionsFile, problems: Sequence[Problem], judge: Judge, groups: GroupFiles, on_progress: Progress
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Grades the `completions` of a file. Returns them as rollouts (ROLLOUT_SCHEMA, in problem order) with a summary.
    `groups` records each problem's completions, by its index in `problems`, once they are graded: these are not graded
    again, unless completions, problems or limits changed. Raises InfraError if the sandbox could not grade them."""
    # What decides the verdicts: the completions, the problems in their order, and the limits.
    of_problems = [deciding_digest(problems), [p.split for p in problems]]
    of_file = [(completions.texts[p.problem_id], completions.codes[p.problem_id]) for p in problems]
    # JSON escapes lone surrogates, which UTF-8 has no bytes for.
    digest = sha256(json.dumps([of_problems, of_file]).encode()).hexdigest()
    request = {"completions": digest, "reward_timeout": judge.timeout_s, "isolation_per_test": judge.isolation_per_test}
    if read_fingerprint(groups.folder) != request:
        if groups.indices():
            logger.warning("%s holds groups of other completions or settings: they are deleted", groups.folder)
        groups.begin(request)
    recorded = {  # by index; what an outage left ungraded, or a file without verdicts, is graded again
        index: frame
        for index, frame in groups.read().items()
        if "verdict" in frame.columns and Verdict.INFRA_ERROR.value not in frame["verdict"]
    }
    slots = asyncio.Semaphore(_PROBLEMS_AT_ONCE)

    async def grade(index: int, problem: Problem) -> None:
        ungraded = _ungraded_group(index, problem, completions.texts[problem.problem_id])
        codes = completions.codes[problem.problem_id]  # the program of each text
        async with slots:
            problem_with_tests = await asyncio.to_thread(problem.whole)  # its tests may still be on the disk
            distinct = list(dict.fromkeys(codes))  # each program is run once
            scores = dict(zip(distinct, await score_codes(judge, problem_with_tests, distinct), strict=True))
        recorded[index] = graded_group(ungraded, [scores[code] for code in codes])
        groups.write(index, recorded[index])
        on_progress(len(recorded), len(problems))

    with first_error():  # raises the first task's error itself, not the group's
        async with asyncio.TaskGroup() as tasks:
            for index, problem in enumerate(problems):
                if index not in recorded:
                    tasks.create_task(grade(index, problem))
    rollouts = pl.concat([pl.DataFrame(schema=ROLLOUT_SCHEMA), *(recorded[index] for index in sorted(recorded))])
    require_graded(rollouts, "evaluate")
    return rollouts, summarize(rollouts, policy=f"{COMPLETIONS}{completions.file}")


def _ungraded_group(index: int, problem: Problem, texts: Sequence[str]) -> pl.DataFrame:
    """The completions `texts` of `problem` as a sampled group (SAMPLED_SCHEMA) without tokens and log-probabilities."""
    names = (index, problem.problem_id, problem.split)
    request = GroupRequest(*names, prompt_tokens=[], num_samples=len(texts), max_tokens=0, seed=None, temperature=0.0)
    remaining_texts = iter(texts)
    completion = Completion(tokens=[], logprobs=None, stop_reason="stop")
    # `group_frame` decodes the completions in order. As there are no tokens, the next text takes the place of decoding.
    return group_frame(request, [completion] * len(texts), decode=lambda no_tokens: next(remaining_texts))
