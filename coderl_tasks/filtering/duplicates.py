"""De-duplication: which problems an earlier one already is.

Earlier is meant in the order of reading; one that was dropped itself does not count. The reasons:

    same_identity         the same id, or the same statement, starter code and tests but for white space
    same_id_other_tests   the data's own id of an earlier one, with other tests
    near_duplicate        the statement resembles an earlier one's, and at least half of the smaller one's tests are
                          shared, all with the same answers; or it is the same word for word and no test says otherwise

Resembling statements alone prove nothing: "print the maximum" and "print the minimum" differ in one word. The tests
prove it, so that statements need no more resemblance than in decontamination. MinHash finds the pairs worth a look
(`datasketch`), the exact similarity and the tests decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coderl_tasks.filtering.signature import NearDuplicateIndex, Signature, resemblance, shared_tests
from coderl_tasks.problems.loading import SAME_ID_OTHER_TESTS

FEWEST_WORDS = 8  # statements of fewer words are too short to be told apart by their words


@dataclass(frozen=True, slots=True)
class DuplicateRules:
    """How much two statements must resemble each other (Jaccard similarity of their 5-word shingles)."""

    resemblance: float = 0.6


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
    """The entries that repeat an earlier kept entry, in order, at most one Fault per entry."""
    by_id: dict[str, int] = {}
    by_content: dict[tuple[int, int], int] = {}
    index = NearDuplicateIndex(rules.resemblance)
    faults = []
    for number, entry in enumerate(entries):
        content = (entry.signature.statement, entry.signature.tests)
        earlier = by_id.get(entry.problem_id)
        # The id is compared before the content, because one id must never stand for two problems.
        if earlier is not None and entries[earlier].signature.tests != entry.signature.tests:
            faults.append(Fault(number, SAME_ID_OTHER_TESTS, f"the id of {entries[earlier].place}"))
            continue
        earlier = by_content.get(content) if earlier is None else earlier
        if earlier is not None:
            faults.append(Fault(number, "same_identity", f"same as {entries[earlier].place}"))
            continue
        if entry.signature.words >= FEWEST_WORDS:
            near = _near_duplicate(entry, [entries[other] for other in index.query(entry.signature)], rules)
            if near is not None:
                faults.append(Fault(number, "near_duplicate", near))
                continue
            # Only kept entries are indexed: of a chain of small edits, the first stays, and each that is far from it.
            index.add(number, entry.signature)
        by_id[entry.problem_id] = number
        by_content[content] = number
    return faults


def _near_duplicate(entry: Entry, candidates: Sequence[Entry], rules: DuplicateRules) -> str | None:
    """What `entry` is a near duplicate of and why; None if of nothing."""
    for other in candidates:
        share = resemblance(entry.signature, other.signature)
        if share < rules.resemblance:
            continue
        tests = shared_tests(entry.signature, other.signature)
        if tests.agree:
            return f"{share:.0%} alike with {other.place}, {tests.equal} of {tests.of} tests the same"
        # The same task with tests of its own is still the same task; tests that contradict show that it is another.
        if entry.signature.statement == other.signature.statement and not tests.contradict:
            return f"the statement of {other.place}, with other tests"
    return None
