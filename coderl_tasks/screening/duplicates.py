"""De-duplication: which problems an earlier one already is.

Earlier is meant in the order of reading; one that was dropped itself does not count. The reasons:

    same_identity         the same id, or the same statement, starter code and tests but for white space
    same_id_other_tests   the data's own id of an earlier one, with other tests
    near_duplicate        the statement resembles an earlier one's, and at least half of the smaller one's tests are
                          shared, all with the same answers; or it is the same word for word and no test says otherwise

Resembling statements alone prove nothing: "print the maximum" and "print the minimum" differ in one word. MinHash finds
the pairs worth a look (`datasketch`), the exact similarity and the tests decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from datasketch import MinHashLSH

from coderl_tasks.problems.loading import SAME_ID_OTHER_TESTS
from coderl_tasks.screening.signature import (
    PERMUTATIONS,
    Signature,
    as_minhash,
    resemblance,
    shared_tests,
)

BANDS = (32, 4)
"""Bands and rows of the LSH index: of pairs that are 0.6 alike it finds 99%, of those that are 0.2 alike 5%."""
FEWEST_WORDS = 8
"""Statements of fewer words are too short to be told apart by their words."""


@dataclass(frozen=True, slots=True)
class DuplicateRules:
    """How alike two statements must be, as Jaccard similarity of their 5-word shingles."""

    resemblance: float = 0.8


@dataclass(frozen=True, slots=True)
class Entry:
    """A problem as de-duplication and decontamination see it. `place` names it for people."""

    problem_id: str
    place: str
    signature: Signature


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the problem number `index` is dropped."""

    index: int
    reason: str
    detail: str


def find_duplicates(entries: Sequence[Entry], rules: DuplicateRules) -> list[Fault]:
    """The entries that an earlier one already is, in order."""
    by_id: dict[str, int] = {}
    by_content: dict[tuple[int, int], int] = {}
    index = MinHashLSH(num_perm=PERMUTATIONS, params=BANDS)
    faults = []
    for number, entry in enumerate(entries):
        content = (entry.signature.statement, entry.signature.tests)
        minhash = as_minhash(entry.signature.sketch)
        earlier = by_id.get(entry.problem_id)
        if earlier is not None and entries[earlier].signature.tests != entry.signature.tests:
            faults.append(Fault(number, SAME_ID_OTHER_TESTS, f"the id of {entries[earlier].place}"))
            continue
        earlier = by_content.get(content) if earlier is None else earlier
        if earlier is not None:
            faults.append(Fault(number, "same_identity", f"same as {entries[earlier].place}"))
            continue
        if entry.signature.words >= FEWEST_WORDS:
            near = _near_duplicate(entry, [entries[other] for other in sorted(index.query(minhash))], rules)
            if near is not None:
                faults.append(Fault(number, "near_duplicate", near))
                continue
            index.insert(number, minhash)
        by_id[entry.problem_id] = number
        by_content[content] = number
    return faults


def _near_duplicate(entry: Entry, candidates: Sequence[Entry], rules: DuplicateRules) -> str | None:
    """What `entry` is a near duplicate of and why; None if of nothing."""
    for other in candidates:
        alike = resemblance(entry.signature, other.signature)
        if alike < rules.resemblance:
            continue
        tests = shared_tests(entry.signature, other.signature)
        if tests.agree:
            return f"{alike:.0%} alike with {other.place}, {tests.equal} of {tests.of} tests the same"
        if entry.signature.statement == other.signature.statement and not tests.contradict:
            return f"the statement of {other.place}, with other tests"
    return None
