"""How programs for one problem differ: a failing one from a passing one, of one place or of two."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from markupsafe import Markup

from coderl_tasks.grading.scoring import UNGRADED, Verdict
from coderl_tasks.insight.problem_view import failed_test
from coderl_tasks.problems.problem import Problem
from coderl_tasks.stats import fisher_fall
from coderl_tasks.view import marked_text
from coderl_tasks.view.run_data import Place

Row = dict[str, Any]
COMPARED_CHARS = 4000  # of a program, in search of the most similar one


@dataclass(frozen=True, slots=True)
class Side:
    """A problem's completions at a place of a run, and what they are called; `row` is the one that a change shows."""

    called: str
    run: str
    place: Place
    rows: Sequence[Row]
    row: Row | None = None

    @property
    def graded(self) -> int:
        return self.passed + sum(map(has_failed, self.rows))

    @property
    def passed(self) -> int:
        return sum(row["verdict"] == Verdict.PASSED for row in self.rows)


@dataclass(frozen=True, slots=True)
class Change:
    """On the `passing` side one more passes, and the completion that it shows does; that of the `failing` one does not.
    `is_lost`: the passing one was before. `failed` is the test that it failed; `diff` leads from the failing program
    (or answer) to the passing one; None where one side alone is a program."""

    passing: Side
    failing: Side
    is_lost: bool
    failed: dict[str, Any] | None
    diff: Markup | None

    @property
    def sides(self) -> tuple[Side, Side]:
        return (self.passing, self.failing) if self.is_lost else (self.failing, self.passing)

    @property
    def is_of_single_completions(self) -> bool:
        return self.passing.graded == self.failing.graded == 1

    @property
    def p(self) -> float | None:
        """How often chance alone makes a fall as large, a rise read backwards; None of sides with one completion
        each."""
        counts = [n for side in (self.passing, self.failing) for n in (side.passed, side.graded)]
        return None if self.is_of_single_completions else fisher_fall(*counts)


def has_failed(row: Mapping[str, Any]) -> bool:
    return row["verdict"] not in (None, Verdict.PASSED, *UNGRADED)


def program_change(before: Side, after: Side, problem: Problem | None) -> Change | None:
    """What changed between a problem's completions of two places; None if the same share passed. If fewer pass, it is
    the first failing one against the most similar one that passed, else the other way round."""
    if not before.graded or not after.graded:
        return None
    rates = before.passed / before.graded, after.passed / after.graded
    if rates[0] == rates[1]:
        return None
    is_lost = rates[0] > rates[1]
    more, fewer = (before, after) if is_lost else (after, before)
    failing = next(filter(has_failed, fewer.rows))
    passing = most_similar(text_of(failing), [row for row in more.rows if row["verdict"] == Verdict.PASSED])
    assert passing is not None  # the higher rate is not 0
    alike = (passing["code"] is None) == (failing["code"] is None)
    diff = marked_text.difference(text_of(failing), text_of(passing)) if alike else None
    sides = replace(more, row=passing), replace(fewer, row=failing)
    return Change(*sides, is_lost, failed_test(failing, problem), diff)


def text_of(row: Row) -> str:
    """What is compared of a completion: its program, or the whole answer where no program was looked for or found."""
    return row["code"] or row["completion"] or ""


def most_similar(text: str, rows: Sequence[Row]) -> Row | None:
    """The completion whose program, or answer, is most like `text`, by common characters; None if there is none."""
    own = _characters(text)

    def ratio(row: Row) -> float:
        other = _characters(text_of(row))
        return 2 * (own & other).total() / max(1, own.total() + other.total())

    return max(rows, key=ratio, default=None)


@lru_cache(512)
def _characters(text: str) -> Counter[str]:
    return Counter(text[:COMPARED_CHARS])
