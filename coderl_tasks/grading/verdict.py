"""What grading says of a program and of a completion: the verdict, how far it got and why, and the reward.

    | format ok | tests pass | format_score | correctness | reward = format_coef * format_score + correctness |
    |-----------|------------|--------------|-------------|--------------------------------------------------|
    | no        | not run    |      -1      |      0      | -format_coef                                     |
    | yes       | no         |       0      |      0      | 0                                                |
    | yes       | yes        |       0      |      1      | 1                                                |
    | yes       | infra      |      none    |     none    | none: not a reward                               |

With `fraction`, correctness is the share of tests passed, all of them run, for recipes that prefer partial credit. It
is 1 where and only where the verdict is `passed`. `score_group` goes all the way, from completions to rewards.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from coderl_tasks.grading.extract import extract_code
from coderl_tasks.problems.problem import Problem

if TYPE_CHECKING:  # it imports this module, for the grades that it gives
    from coderl_tasks.grading.judge import Judge

FORMAT_COEF = 0.1
SHOWN_CHARS = 1000


class Verdict(StrEnum):
    """The nine verdicts. `infra_error` is ours, never the program's, and never becomes a reward; `reward_error` is the
    user's compute_reward's, and a reward of 0."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    FORMAT_ERROR = "format_error"
    INFRA_ERROR = "infra_error"
    REWARD_ERROR = "reward_error"


@dataclass(frozen=True, slots=True)
class Grade:
    """The grade of one program on one problem.

    `tests_run` of `tests_total` were run (grading stops at the first failure, unless all tests were asked for);
    `first_failed` is the index, among the problem's tests, of the test that failed first, None if none failed;
    `run_seconds` is CPU seconds summed over the tests; `reason` is one line for people, empty for a pass. Of the test
    that failed first, `output` is what the program printed or returned (see `shortened`), None where nothing came back
    or nothing failed, and `error` the last line of its error output, empty where there was none. `python` is the
    version of the interpreter that ran it, as far as it is known.
    """

    verdict: Verdict
    tests_passed: int
    tests_run: int
    tests_total: int
    first_failed: int | None
    run_seconds: float
    reason: str = ""
    output: str | None = None
    error: str = ""
    python: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED

    @property
    def shown_reason(self) -> str | None:
        """`reason` as tables have it: shortened, None where there is none."""
        return shortened(self.reason) or None

    @property
    def gradable(self) -> bool:
        return self.verdict is not Verdict.INFRA_ERROR


@dataclass(frozen=True, slots=True)
class ScoredCompletion:
    """A completion's code (None if the format was wrong: then the verdict is `format_error`), its grade and its scores.

    The scores are those of the table above, all None where grading failed for a reason that is ours.
    """

    code: str | None
    grade: Grade
    format_score: float | None
    correctness: float | None
    reward: float | None

    @property
    def format_ok(self) -> bool:
        return self.code is not None


def score(
    code: str | None, grade: Grade, format_coef: float = FORMAT_COEF, *, fraction: bool = False
) -> ScoredCompletion:
    """The completion scored by the table. ValueError if it has code and the verdict `format_error`, or neither."""
    if (code is None) != (grade.verdict is Verdict.FORMAT_ERROR):
        raise ValueError(f"{grade.verdict} is no verdict for a completion {'without' if code is None else 'with'} code")
    if code is None:
        return ScoredCompletion(code, grade, -1.0, 0.0, -format_coef)
    if not grade.gradable:
        return ScoredCompletion(code, grade, None, None, None)
    correctness = grade.tests_passed / grade.tests_total if fraction else float(grade.passed)
    return ScoredCompletion(code, grade, 0.0, correctness, correctness)


def shortened(text: str | bytes) -> str:
    """The first 1,000 characters of `text`, and how much there is where that is not all.

    What UTF-8 cannot hold (odd bytes, lone surrogates) is shown as escapes, so that any table takes the result.
    """
    size, unit = len(text), "bytes" if isinstance(text, bytes) else "characters"
    if isinstance(text, bytes):
        text = text[: 4 * SHOWN_CHARS + 1].decode("utf-8", "backslashreplace")  # a character has four bytes at most
    shown = text[:SHOWN_CHARS].encode("utf-8", "backslashreplace").decode()
    return shown if len(text) <= SHOWN_CHARS else f"{shown}... ({size:,} {unit})"


def format_failure(problem: Problem) -> Grade:
    """The grade of a completion without code: nothing was run."""
    return Grade(Verdict.FORMAT_ERROR, 0, 0, len(problem.tests), None, 0.0, "no closed code block in the answer")


async def score_completion(
    judge: "Judge",
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
    judge: "Judge",
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
    # Here and not in the sandbox: what counts as an answer is decided in one place, for every sandbox.
    codes = [extract_code(text) for text in texts]
    distinct = list(dict.fromkeys(code for code in codes if code is not None))
    graded = await asyncio.gather(*(judge.grade(problem, one, priority=priority, run_all=fraction) for one in distinct))
    grades = {None: format_failure(problem)} | dict(zip(distinct, graded, strict=True))
    return [score(code, grades[code], format_coef, fraction=fraction) for code in codes]
