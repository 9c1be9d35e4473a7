"""The learned priority of tests: pure counts, and what it saves and keeps through a real sandbox."""

import pytest

from coderl_tasks.grading import Judge, Verdict
from coderl_tasks.grading.priority import count_catches, learned_priority
from tests.grading.programs import stdin_problem


def test_only_what_is_known_is_counted() -> None:
    assert count_catches(3, [None, 0, 0, 2]) == ([4, 2, 2], [2, 0, 1])
    assert count_catches(2, []) == ([0, 0], [0, 0])


@pytest.mark.parametrize(
    ("first_failures", "priority"),
    [
        ([], [0, 1, 2, 3]),
        ([None] * 8, [0, 1, 2, 3]),
        ([3], [3, 0, 1, 2]),
        ([2, 2, 1], [2, 1, 0, 3]),
        ([0, 0, 0, 2, None], [0, 2, 1, 3]),
        # Test 0 catches six of ten, test 3 three of the four that get so far: 6 / 11 and 3 / 5.
        ([0] * 6 + [3] * 3 + [None], [3, 0, 1, 2]),
        ([0] * 7 + [3] * 2 + [None], [0, 3, 1, 2]),
        # The last test catches all that reach it, which is one program of twenty.
        ([0] * 15 + [3] + [None] * 4, [0, 3, 1, 2]),
    ],
)
def test_first_comes_what_catches_most_of_what_it_runs(first_failures: list[int | None], priority: list[int]) -> None:
    assert learned_priority(*count_catches(4, first_failures)) == priority


def test_counts_of_other_numbers_of_tests_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        learned_priority([1], [])


async def test_the_learned_priority_keeps_verdicts_and_saves_tests(embedded_judge: Judge) -> None:
    problem = stdin_problem(*[(f"{n}\n", f"{abs(n)}\n") for n in (1, 2, 3, -4, 5, -6, 0)])
    wrong = ["print(input())", "n = int(input())\nprint(abs(n) or 1)", "n = int(input())\nprint(n if n > -5 else -n)"]
    programs = [*wrong, "print(abs(int(input())))"]
    before = [await embedded_judge.grade(problem, code) for code in programs]
    priority = learned_priority(*count_catches(len(problem.tests), [grade.first_failed for grade in before]))
    assert priority[0] == 3, "the negative number catches two of the three that reach it"
    after = [await embedded_judge.grade(problem, code, priority=priority) for code in programs]
    assert [grade.verdict for grade in after] == [Verdict.WRONG_ANSWER] * 3 + [Verdict.PASSED]
    assert [grade.first_failed for grade in after] == [3, 6, 3, None], "indices are the problem's own"
    assert sum(grade.tests_run for grade in after) < sum(grade.tests_run for grade in before)
