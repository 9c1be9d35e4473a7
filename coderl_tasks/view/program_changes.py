"""How programs for one problem differ: a failing one from a passing one, of one place or of two."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from markupsafe import Markup

from coderl_tasks.grading.scoring import UNGRADED, Verdict
from coderl_tasks.insight.problem_view import failed_test
from coderl_tasks.problems.problem import Problem
from coderl_tasks.stats import fisher_fall
from coderl_tasks.view import marked_text

Row = dict[str, Any]
COMPARED_CHARS = 4000  # of a program, in search of the most similar one


@dataclass(frozen=True, slots=True)
class Change:
    """A completion `before` and one `after`, of which one passes and the other fails; of each side how many of the
    graded ones passed (`counts`); the test that `failed`, as `failed_test` returns it; the `diff` from the failing
    program to the passing one, or of answers that are none; None where one side alone is."""

    before: Row
    after: Row
    counts: tuple[tuple[int, int], tuple[int, int]]
    is_lost: bool
    failed: dict[str, Any] | None
    diff: Markup | None

    @property
    def p(self) -> float | None:
        """How often chance alone makes a fall as large (`stats.fisher_fall`), a rise read backwards; None of sides with
        one completion each."""
        earlier, later = self.counts if self.is_lost else self.counts[::-1]
        return fisher_fall(*earlier, *later) if earlier[1] > 1 or later[1] > 1 else None


def is_graded(row: Mapping[str, Any]) -> bool:
    return row["verdict"] is not None and row["verdict"] not in UNGRADED


def program_change(before: Sequence[Row], after: Sequence[Row], problem: Problem | None) -> Change | None:
    """The change between a problem's completions of two places; None if as many of them passed (in per cent). If fewer
    pass, it is the first failing one against the most similar one that passed, else the other way round."""
    counts = _counts(before), _counts(after)
    if not all(graded for _, graded in counts):
        return None
    rates = [passed / graded for passed, graded in counts]
    if rates[0] == rates[1]:
        return None
    is_lost = rates[0] > rates[1]
    passed, failed = (before, after) if is_lost else (after, before)
    failing = next(row for row in failed if is_graded(row) and row["verdict"] != Verdict.PASSED)
    passing = [row for row in passed if row["verdict"] == Verdict.PASSED]
    similar = most_similar(text_of(failing), passing)
    assert similar is not None  # the higher rate is not 0
    old, new = (similar, failing) if is_lost else (failing, similar)
    alike = (old["code"] is None) == (new["code"] is None)
    diff = marked_text.difference(text_of(failing), text_of(similar)) if alike else None
    return Change(old, new, counts, is_lost, failed_test(failing, problem), diff)


def _counts(rows: Sequence[Row]) -> tuple[int, int]:
    """How many of the graded completions passed, and how many these are."""
    graded = [row["verdict"] == Verdict.PASSED for row in rows if is_graded(row)]
    return sum(graded), len(graded)


def text_of(row: Row) -> str:
    """What is compared of a completion: its program, or the whole answer where no program was looked for or found."""
    return row["code"] or row["completion"] or ""


def most_similar(text: str, rows: Sequence[Row]) -> Row | None:
    """The completion whose program, or answer, is most like `text`, by the characters that both have; None if there is
    none."""
    own = _characters(text)

    def ratio(row: Row) -> float:
        other = _characters(text_of(row))
        return 2 * (own & other).total() / max(1, own.total() + other.total())

    return max(rows, key=ratio, default=None)


@lru_cache(512)
def _characters(text: str) -> Counter[str]:
    return Counter(text[:COMPARED_CHARS])
