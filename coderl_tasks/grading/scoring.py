"""From completions to scores: extract, grade, score; one completion or a whole group."""

import asyncio
from collections.abc import Sequence

from coderl_tasks.grading.extract import extract_code
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.verdict import FORMAT_COEF, Grade, ScoredCompletion, Verdict, score
from coderl_tasks.problems.problem import Problem


def format_failure(problem: Problem) -> Grade:
    """The grade of a completion without code: nothing was run."""
    return Grade(Verdict.FORMAT_ERROR, 0, 0, len(problem.tests), None, 0.0, "no closed code block in the answer")


async def score_completion(
    judge: Judge,
    problem: Problem,
    completion_text: str,
    format_coef: float = FORMAT_COEF,
    *,
    priority: Sequence[int] | None = None,
    fraction: bool = False,
) -> ScoredCompletion:
    """Grade and score one completion, as `score_group` does."""
    scored = await score_group(judge, problem, [completion_text], format_coef, priority=priority, fraction=fraction)
    return scored[0]


async def score_group(
    judge: Judge,
    problem: Problem,
    texts: Sequence[str],
    format_coef: float = FORMAT_COEF,
    *,
    priority: Sequence[int] | None = None,
    fraction: bool = False,
) -> list[ScoredCompletion]:
    """Score the completions of one problem (G texts, G scored completions in the same order).

    Identical code is graded once; what has no code is not run. `priority` as in `Judge.grade`; with `fraction` every
    test is run, and a program that passes some has that share of the reward. Never raises for an outage: such a
    completion has the verdict `infra_error` and no reward. Raises DataError as `Judge.grade` does.
    """
    codes = [extract_code(text) for text in texts]
    distinct = list(dict.fromkeys(code for code in codes if code is not None))
    graded = await asyncio.gather(*(judge.grade(problem, one, priority=priority, run_all=fraction) for one in distinct))
    grades = {None: format_failure(problem)} | dict(zip(distinct, graded, strict=True))
    return [score(code, grades[code], format_coef, fraction=fraction) for code in codes]
