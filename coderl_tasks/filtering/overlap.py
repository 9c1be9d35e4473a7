"""Which problems repeat others: de-duplication, and decontamination.

De-duplication finds the problems that an earlier one already is. Earlier is meant in the order of reading; one that was
dropped itself does not count. The reasons:

    same_identity         the same id, or the same statement, starter code and tests but for white space
    same_id_other_tests   the data's own id of an earlier one, with other tests
    near_duplicate        the statement resembles an earlier one's, and at least half of the smaller one's tests are
                          shared, all with the same answers; or it is the same word for word and no test says otherwise

Resembling statements alone prove nothing: "print the maximum" and "print the minimum" differ in one word. MinHash finds
the pairs worth a look (`datasketch`), the exact similarity and the tests decide.

Decontamination finds the train problems that give an evaluation problem away. A window is 13 words in a row. Windows
that more than `common` problems of both sides have are boilerplate ("the first line contains a single integer t, the
number of test cases") and do not count. What is left of an evaluation problem's windows is its own. The reasons:

    ngram_overlap               it has the share `overlap` of an evaluation problem's own windows and MANY of them, or
                                NEARLY_ALL of them if there are SOME: short statements resemble each other by nature
    near_duplicate_statement    the statement resembles an evaluation problem's and the tests agree (SharedTests), or
                                it is as good as the same (SAME) and no test says otherwise
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from coderl_tasks.filtering.signature import WINDOW_WORDS, Hashes, NearDuplicateIndex, Signature
from coderl_tasks.problems.loading import SAME_ID_OTHER_TESTS

FEWEST_WORDS = 8  # statements of fewer words are too short to be told apart by their words
MANY, SOME = 40, 10
NEARLY_ALL, SAME = 0.8, 0.9


@dataclass(frozen=True, slots=True)
class Entry:
    """A problem as de-duplication and decontamination see it. `place` names it for people."""

    problem_id: str
    place: str
    signature: Signature


Faults = dict[int, tuple[str, str]]
"""Reason and detail of each problem to drop, by its index."""


def find_duplicates(entries: Sequence[Entry], threshold: float) -> Faults:
    """The entries (problems) to drop as they repeat an earlier one that is not dropped."""
    by_id: dict[str, int] = {}
    by_content: dict[tuple[int, int], int] = {}  # hashes of the statement and of the tests
    index = NearDuplicateIndex(threshold)
    faults: Faults = {}
    for number, entry in enumerate(entries):
        content = (entry.signature.statement_hash, entry.signature.tests_hash)
        earlier = by_id.get(entry.problem_id)
        # The id is compared before the content, because one id must never stand for two problems.
        if earlier is not None and entries[earlier].signature.tests_hash != entry.signature.tests_hash:
            faults[number] = (SAME_ID_OTHER_TESTS, f"the id of {entries[earlier].place}")
            continue
        earlier = by_content.get(content) if earlier is None else earlier  # with this content, under another id
        if earlier is not None:
            faults[number] = ("same_identity", f"same as {entries[earlier].place}")
            continue
        if entry.signature.n_words >= FEWEST_WORDS:  # shorter ones look alike
            near = _resembling(entry, [entries[other] for other in index.query(entry.signature)], threshold)
            if near is not None:
                faults[number] = ("near_duplicate", near)
                continue
            # Only kept entries are indexed: of a chain of small edits, the first stays, and each that is far from it.
            index.add(number, entry.signature)
        by_id[entry.problem_id] = number
        by_content[content] = number
    return faults


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


def find_contaminated(train: Sequence[Entry], evaluation: Sequence[Entry], rules: OverlapRules) -> Faults:
    """The train problems to drop because they give an evaluation problem away."""
    index = NearDuplicateIndex(rules.resemblance)
    # Any two short statements may look alike, so the index leaves them out. Their hash still finds identical ones.
    by_statement: dict[int, int] = {}
    for number, entry in enumerate(evaluation):
        by_statement.setdefault(entry.signature.statement_hash, number)
        if entry.signature.n_words >= FEWEST_WORDS:  # shorter ones look alike
            index.add(number, entry.signature)
    faults: Faults = {}
    for number, (entry, passages) in enumerate(zip(train, _shared_passages(train, evaluation, rules), strict=True)):
        if passages is not None:
            faults[number] = ("ngram_overlap", passages)
            continue
        candidates = index.query(entry.signature) if entry.signature.n_words else []  # nothing resembles no words
        # An identical statement comes first, so that `detail` names it rather than a similar one.
        if entry.signature.statement_hash in by_statement:
            candidates.insert(0, by_statement[entry.signature.statement_hash])
        near = [evaluation[other] for other in candidates]
        if (detail := _resembling(entry, near, rules.resemblance, same_from=SAME)) is not None:
            faults[number] = ("near_duplicate_statement", detail)
    return faults


def _shared_passages(train: Sequence[Entry], evaluation: Sequence[Entry], rules: OverlapRules) -> Iterator[str | None]:
    """Yields for each train problem, in order, words that name the evaluation problem whose passages it contains, or
    None if it contains too few of any."""
    windows = [entry.signature.windows for entry in (*train, *evaluation)]
    # A signature has each of its windows once, so these are counts of problems.
    values, counts = np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *windows]), return_counts=True)
    boilerplate = values[counts > rules.common]
    own_counts: list[int] = []  # how many windows of its own each evaluation problem has
    holders: dict[int, list[int]] = {}  # the evaluation problems that have a window, by window
    for number, entry in enumerate(evaluation):
        own = np.setdiff1d(entry.signature.windows, boilerplate, assume_unique=True)
        own_counts.append(len(own))
        for window in own.tolist():
            holders.setdefault(window, []).append(number)
    for entry in train:
        shared = Counter(number for window in entry.signature.windows.tolist() for number in holders.get(window, ()))
        detail = None
        # The largest share first, though it may be of too few passages; then in order, so that no name is by chance.
        for number, count in sorted(shared.items(), key=lambda item: (-item[1] / own_counts[item[0]], item[0])):
            n_own, least = own_counts[number], rules.overlap
            if count < MANY:  # few shared windows prove less: then nearly all must be shared, of at least SOME
                least = max(NEARLY_ALL, rules.overlap) if n_own >= SOME else math.inf
            if count / n_own >= least:
                passages = f"{count} of the {n_own} {WINDOW_WORDS}-word passages"
                detail = f"{passages} of its own that {evaluation[number].place} has"
                break
        yield detail


def _resembling(entry: Entry, candidates: Sequence[Entry], least: float, same_from: float | None = None) -> str | None:
    """Which candidate `entry` repeats and why; None if none: one whose statement resembles the entry's by `least` and
    the tests agree, or is the same (by `same_from`, where that is given) and no test says otherwise."""
    for other in candidates:
        share = entry.signature.resemblance(other.signature)
        same = entry.signature.statement_hash == other.signature.statement_hash
        if share < least and not same:
            continue
        tests = entry.signature.shared_tests(other.signature)
        alike = f"{share:.0%} alike with {other.place}"
        if tests.agree:
            return f"{alike}, {tests.equal} of {tests.of} tests the same"
        # The same task with tests of its own is still the same task; tests that contradict show that it is another.
        if (same or (same_from is not None and share >= same_from)) and not tests.contradict:
            return f"the statement of {other.place}, with other tests" if same_from is None else alike
    return None
