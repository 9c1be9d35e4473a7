"""Decontamination: which train problems give an evaluation problem away.

A window is 13 words in a row. Windows that more than `common` problems of both sides have are boilerplate ("the first
line contains a single integer t, the number of test cases") and do not count. What is left of an evaluation problem's
windows is its own. The reasons:

    ngram_overlap               it has the share `overlap` of an evaluation problem's own windows and MANY of them, or
                                nearly all (ALL) where there are SOME: short statements resemble each other by nature
    near_duplicate_statement    the statement resembles an evaluation problem's and the tests agree (SharedTests), or
                                it is as good as the same (SAME) and no test says otherwise

MinHash finds the pairs that may be near duplicates (`datasketch`), the exact similarity decides.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from coderl_tasks.filtering.duplicates import FEWEST_WORDS, Entry, Fault
from coderl_tasks.filtering.signature import WINDOW_WORDS, Hashes, NearDuplicateIndex, resemblance, shared_tests

MANY, SOME = 40, 10
ALL, SAME = 0.8, 0.9


@dataclass(frozen=True, slots=True)
class OverlapRules:
    """How much of an evaluation problem a train problem may have: `overlap` and `resemblance` are shares, 0 to 1;
    `common` is how many problems may have a window that still counts."""

    overlap: float = 0.5
    resemblance: float = 0.6
    common: int = 10


def known_windows(evaluation: Iterable[Entry]) -> Hashes:
    """All windows of the evaluation problems, sorted."""
    windows = [entry.signature.windows for entry in evaluation]
    return np.unique(np.concatenate(windows)) if windows else np.empty(0, dtype=np.uint64)


def find_contaminated(train: Sequence[Entry], evaluation: Sequence[Entry], rules: OverlapRules) -> list[Fault]:
    """The entries of `train` that overlap with an entry of `evaluation`, in order, at most one Fault per entry."""
    overlaps = _Overlaps(train, evaluation, rules)
    index = NearDuplicateIndex(rules.resemblance)
    # Any two short statements may look alike, so the index leaves them out. Their hash still finds identical ones.
    by_statement: dict[int, int] = {}
    for number, entry in enumerate(evaluation):
        by_statement.setdefault(entry.signature.statement, number)
        if entry.signature.words >= FEWEST_WORDS:
            index.add(number, entry.signature)
    faults = []
    for number, entry in enumerate(train):
        if (detail := overlaps.detail(entry)) is not None:
            faults.append(Fault(number, "ngram_overlap", detail))
            continue
        candidates = index.query(entry.signature) if entry.signature.words else []
        # An identical statement comes first, so that `detail` names it rather than a similar one.
        if entry.signature.statement in by_statement:
            candidates.insert(0, by_statement[entry.signature.statement])
        if (detail := _near_duplicate(entry, [evaluation[other] for other in candidates], rules)) is not None:
            faults.append(Fault(number, "near_duplicate_statement", detail))
    return faults


class _Overlaps:
    """Finds the evaluation problem of which an entry has most, window by window."""

    def __init__(self, train: Sequence[Entry], evaluation: Sequence[Entry], rules: OverlapRules) -> None:
        windows = [entry.signature.windows for entry in (*train, *evaluation)]
        # A signature has each of its windows once, so these are counts of problems.
        values, counts = np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *windows]), return_counts=True)
        boilerplate = values[counts > rules.common]
        self._rules = rules
        self._evaluation = evaluation
        self._own: list[int] = []
        self._holders: dict[int, list[int]] = {}
        for number, entry in enumerate(evaluation):
            own = np.setdiff1d(entry.signature.windows, boilerplate, assume_unique=True)
            self._own.append(len(own))
            for window in own.tolist():
                self._holders.setdefault(window, []).append(number)

    def detail(self, entry: Entry) -> str | None:
        """Which evaluation problem `entry` gives away, and how much of it; None if none."""
        shared = Counter(
            holder for window in entry.signature.windows.tolist() for holder in self._holders.get(window, ())
        )
        # By share, then by place: of several the same one is named each time.
        for holder, count in sorted(shared.items(), key=lambda item: (-item[1] / self._own[item[0]], item[0])):
            own, place = self._own[holder], self._evaluation[holder].place
            least = self._rules.overlap if count >= MANY else max(ALL, self._rules.overlap)
            if count / own >= least and (count >= MANY or own >= SOME):
                return f"{count} of the {own} {WINDOW_WORDS}-word passages of its own that {place} has"
        return None


def _near_duplicate(entry: Entry, candidates: Sequence[Entry], rules: OverlapRules) -> str | None:
    for other in candidates:
        share = resemblance(entry.signature, other.signature)
        same = entry.signature.statement == other.signature.statement
        if share < rules.resemblance and not same:
            continue
        tests = shared_tests(entry.signature, other.signature)
        if tests.agree:
            return f"{share:.0%} alike with {other.place}, {tests.equal} of {tests.of} tests the same"
        if (share >= SAME or same) and not tests.contradict:
            return f"{share:.0%} alike with {other.place}"
    return None
