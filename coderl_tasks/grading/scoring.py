"""From completions to scores: extract, grade, score; one completion or a whole group."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from coderl_tasks.grading.extract import extract_code
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.reward import FORMAT_COEF, Score, score
from coderl_tasks.grading.verdict import Grade, Verdict
from coderl_tasks.problems.problem import Problem


@dataclass(frozen=True, slots=True)
class ScoredCompletion:
    """A completion's code (None if the format was wrong: then the verdict is `format_error`), grade and score."""

    code: str | None
    grade: Grade
    score: Score

    @property
    def format_ok(self) -> bool:
        return self.code is not None


def format_failure(problem: Problem) -> Grade:
    """The grade of a completion without code: nothing was run."""
    return Grade(Verdict.FORMAT_ERROR, 0, 0, len(problem.tests), None, 0.0, "no closed code block in the answer")


async def score_completion(
    judge: Judge,
    problem: Problem,
    completion_text: str,
    format_coef: float = FORMAT_COEF,
    *,
    order: Sequence[int] | None = None,
    fraction: bool = False,
) -> ScoredCompletion:
    """Grade and score one completion. `order` and `fraction` as in `Judge.grade` and `reward.score`."""
    scored = await score_group(judge, problem, [completion_text], format_coef, order=order, fraction=fraction)
    return scored[0]


async def score_group(
    judge: Judge,
    problem: Problem,
    texts: Sequence[str],
    format_coef: float = FORMAT_COEF,
    *,
    order: Sequence[int] | None = None,
    fraction: bool = False,
) -> list[ScoredCompletion]:
    """Score the completions of one problem, in order. Identical code is graded once; what has no code is not run.

    `order` as in `Judge.grade`; with `fraction` every test is run, and a program that passes some has that share of the
    reward. Never raises for an outage: such a completion has the verdict `infra_error` and no score.
    """
    codes = [extract_code(text) for text in texts]
    distinct = list(dict.fromkeys(code for code in codes if code is not None))
    grades = await asyncio.gather(*(judge.grade(problem, code, order=order, run_all=fraction) for code in distinct))
    grade_of = dict(zip(distinct, grades, strict=True))
    scored = []
    for code in codes:
        grade = format_failure(problem) if code is None else grade_of[code]
        scored.append(ScoredCompletion(code, grade, score(code is not None, grade, format_coef, fraction=fraction)))
    return scored
