"""The reward of a completion: the score table, in one function.

    | format ok | tests pass | format_score | correctness | reward = format_coef * format_score + correctness |
    |-----------|------------|--------------|-------------|--------------------------------------------------|
    | no        | not run    |      -1      |      0      | -format_coef                                     |
    | yes       | no         |       0      |      0      | 0                                                |
    | yes       | yes        |       0      |      1      | 1                                                |
    | yes       | infra      |      none    |     none    | none: not a reward                               |

With `fraction`, correctness is the share of tests passed, all of them run, for recipes that prefer partial credit. It
is 1 where and only where the verdict is `passed`.
"""

from dataclasses import dataclass

from coderl_tasks.grading.verdict import Grade, Verdict

FORMAT_COEF = 0.1


@dataclass(frozen=True, slots=True)
class Score:
    """The three numbers of a completion; all None where grading failed for a reason that is ours."""

    format_score: float | None
    correctness: float | None
    reward: float | None


NO_SCORE = Score(None, None, None)


def score(format_ok: bool, grade: Grade | None, format_coef: float = FORMAT_COEF, *, fraction: bool = False) -> Score:
    """The score by the table. `grade` is not looked at where the format is not ok; else it is needed (ValueError)."""
    if not format_ok:
        return Score(-1.0, 0.0, -format_coef)
    if grade is None or grade.verdict is Verdict.FORMAT_ERROR:
        raise ValueError("a completion in the right format needs a grade of its code")
    if not grade.gradable:
        return NO_SCORE
    correctness = grade.tests_passed / grade.tests_total if fraction else float(grade.passed)
    return Score(0.0, correctness, correctness)
