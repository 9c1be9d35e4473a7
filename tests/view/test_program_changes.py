"""What changed in the programs for a problem between two places."""

from typing import Any

from coderl_tasks.view.marked_text import MOST_CHARS, difference
from coderl_tasks.view.program_changes import Change, Side, program_change
from coderl_tasks.view.run_data import Place

RIGHT, NEAR, FAR = "a = 1\nb = 2\nprint(a + b)", "a = 1\nb = 2\nprint(a - b)", "import sys\nsys.exit(3)"


def completion(verdict: str | None, code: str | None, first_failed: int | None = None) -> dict[str, Any]:
    about = {"failed_output": None, "reward_error": None, "reason": None, "tests_total": 5}
    return about | {"verdict": verdict, "code": code, "completion": f"It is:\n{code}", "first_failed": first_failed}


def changed(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Change | None:
    return program_change(Side("before", "run", Place(0), before), Side("after", "run", Place(1), after), None)


PASSED, FAILED = completion("passed", RIGHT), completion("wrong_answer", NEAR, 2)


def test_a_lost_problem_has_the_failed_test_and_the_difference() -> None:
    found = changed([completion("passed", FAR), PASSED], [FAILED, PASSED])
    assert found is not None and found.failed is not None and found.diff is not None
    assert found.is_lost and (found.passing.row, found.failing.row) == (PASSED, FAILED), "the most similar one"
    assert [side.called for side in found.sides] == [found.passing.called, found.failing.called] == ["before", "after"]
    assert found.failed["index"] == 2
    assert (
        found.diff.striptags() == "a = 1 b = 2 -print(a - b) +print(a + b)"
    )  # from the failing one to the passing one, as below


def test_a_gained_problem_has_them_too() -> None:
    found = changed([FAILED], [PASSED])
    assert found is not None and found.failed is not None and found.diff is not None
    assert not found.is_lost and (found.passing.row, found.failing.row) == (PASSED, FAILED)
    assert [side.called for side in found.sides] == [found.failing.called, found.passing.called] == ["before", "after"]
    assert found.failed["index"] == 2
    assert found.diff.striptags() == "a = 1 b = 2 -print(a - b) +print(a + b)"


def test_a_failing_completion_may_have_no_program() -> None:
    bare = completion("format_error", None)
    found = changed([PASSED], [bare])
    assert found is not None
    assert (found.passing.row, found.failing.row, found.failed, found.diff) == (PASSED, bare, None, None)


def test_what_is_as_good_as_before_or_was_not_graded_has_not_changed() -> None:
    assert changed([PASSED, FAILED], [FAILED, PASSED]) is None
    assert changed([FAILED], [completion("runtime_error", FAR, 0)]) is None
    assert changed([PASSED], [completion("infra_error", NEAR)]) is None
    assert changed([PASSED], [completion(None, NEAR)]) is None
    assert changed([PASSED], []) is None


def test_what_a_difference_does_not_show_is_said() -> None:
    assert difference("print(1)\n", "print(1)\n") == difference(None, "") == ""
    assert difference("print(1)", "print(1)\n") == "(they differ in line ends or in characters that show nothing)"
    long = "#" * MOST_CHARS
    assert difference(f"{long}a", f"{long}b") == "(no difference in the first 20,000 characters)"
