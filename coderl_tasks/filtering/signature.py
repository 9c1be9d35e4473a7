"""What de-duplication and decontamination know of a problem: hashes of its words, its phrases and its tests.

1. Words are runs of letters, digits and underscores, lower case: layout and punctuation do not count.
2. Every n words in a row are one 64-bit hash. Shingles (5 words) serve resemblance: the share of shingles that two
   statements have in common among all of theirs (Jaccard similarity, after Broder 1997, "On the resemblance and
   containment of documents"). Windows (13 words, the length that GPT-3 was decontaminated with) serve containment: a
   passage of that length hardly appears twice by chance.
3. Of the tests the MAX_TESTS with the smallest input hashes are known. Two problems' known tests overlap as their tests
   do, since both take the same end of the same order.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coderl_tasks.problems import Problem, Test

if TYPE_CHECKING:
    from datasketch import MinHash

Hashes = npt.NDArray[np.uint64]
Sketch = npt.NDArray[np.uint32]

SHINGLE_WORDS = 5
WINDOW_WORDS = 13
PERMUTATIONS = 128
LEAST_RECALL = 0.98
SKETCH_ERROR = 0.2
"""More than the error of an estimate from PERMUTATIONS values, whose standard deviation is 0.044 at most."""
MAX_TESTS = 64
LONG_TEXT = 4096
_WORD = re.compile(r"\w+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class SharedTests:
    """How the tests of two problems compare: inputs in common, those with the same answer, tests of the smaller one."""

    common: int
    equal: int
    of: int

    @property
    def agree(self) -> bool:
        """Whether they test the same thing: half of the smaller one's inputs are shared, with the same answers."""
        return self.common > 0 and self.common == self.equal and 2 * self.common >= self.of

    @property
    def contradict(self) -> bool:
        return self.equal < self.common


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """One problem's hashes. Arrays are sorted, without repeats; `test_outputs` is in the order of `test_inputs`. The
    `statement_hash` is of the starter code too, without case and white space; the `tests_hash` of all tests, in any
    order."""

    statement_hash: int
    tests_hash: int
    n_words: int
    shingles: Hashes
    windows: Hashes
    sketch: Sketch
    test_inputs: Hashes
    test_outputs: Hashes

    def resemblance(self, other: "Signature") -> float:
        """Jaccard similarity of two statements' shingles, exact; 0 where one has no words."""
        if not len(self.shingles) or not len(other.shingles):
            return 0.0
        shared = len(np.intersect1d(self.shingles, other.shingles, assume_unique=True))
        return shared / (len(self.shingles) + len(other.shingles) - shared)

    def shared_tests(self, other: "Signature") -> SharedTests:
        """Compare the tests that are known of both (see MAX_TESTS)."""
        both = (self, other)
        # A full signature says nothing of tests beyond its last hash: up to there the two are compared.
        ends = [signature.test_inputs[-1] for signature in both if len(signature.test_inputs) == MAX_TESTS]
        known = [int(np.searchsorted(s.test_inputs, min(ends), "right")) if ends else len(s.test_inputs) for s in both]
        _, at_one, at_other = np.intersect1d(
            self.test_inputs[: known[0]], other.test_inputs[: known[1]], assume_unique=True, return_indices=True
        )
        equal = int((self.test_outputs[at_one] == other.test_outputs[at_other]).sum())
        return SharedTests(len(at_one), equal, min(known))


_HASH, _HASHES = pa.uint64(), pa.large_list(pa.uint64())
SIGNATURE_FIELDS = [
    pa.field("statement_hash", _HASH), pa.field("tests_hash", _HASH), pa.field("words", pa.int32()),
    pa.field("shingles", _HASHES), pa.field("windows", _HASHES), pa.field("sketch", pa.large_list(pa.uint32())),
    pa.field("test_inputs", _HASHES), pa.field("test_outputs", _HASHES),
]  # fmt: skip
"""A signature's columns in a part (see `parts`), in the order of its fields."""


def signature_of(problem: Problem) -> Signature:
    """The signature of `problem`, which must have all its tests."""
    words = _WORD.findall(problem.statement.lower())
    hashed = np.array([_word_hash(word) for word in words], dtype=np.uint64)
    shingles = _phrases(hashed, min(SHINGLE_WORDS, max(1, len(words))))
    windows = _phrases(hashed, WINDOW_WORDS)
    # An assertion has no input: as one of all, it would make any two problems contradict each other.
    tests = [Test(test.expected, "") for test in problem.tests] if problem.kind == "assert" else problem.tests
    inputs, outputs, digest = _hash_tests(tests)
    text = " ".join(f"{problem.statement}\n{problem.starter_code}".lower().split())
    minhash = _empty().copy()
    minhash.update_batch((shingles >> np.uint64(32)).tolist())  # the upper half: this scheme takes 32 bits
    sketch = np.asarray(minhash.hashvalues, dtype=np.uint32)
    return Signature(_hash(text), digest, len(words), shingles, windows, sketch, inputs, outputs)


class NearDuplicateIndex:
    """Finds the signatures added so far whose resemblance to a given one may reach `threshold`.

    An LSH index gives the candidates, with bands so wide that a pair at the threshold is missed once in fifty at most:
    to compare a problem with all earlier ones would take quadratic time. Of the candidates the sketches rule out what
    is far below, all at once: boilerplate makes every statement resemble others a little.
    """

    def __init__(self, threshold: float) -> None:
        from datasketch import MinHashLSH

        self._index = MinHashLSH(num_perm=PERMUTATIONS, params=_bands(threshold))
        self._least = threshold - SKETCH_ERROR
        self._sketches: dict[int, Sketch] = {}

    def add(self, number: int, signature: Signature) -> None:
        """Add a signature under a number of its own."""
        self._sketches[number] = signature.sketch
        self._index.insert(number, _as_minhash(signature.sketch))

    def query(self, signature: Signature) -> list[int]:
        """The numbers of those that may be near duplicates of it, in order."""
        candidates = sorted(self._index.query(_as_minhash(signature.sketch)))
        if not candidates:
            return []
        sketches = np.stack([self._sketches[number] for number in candidates])
        estimates = (sketches == signature.sketch).mean(axis=1)
        return [number for number, estimate in zip(candidates, estimates, strict=True) if estimate >= self._least]


def _bands(threshold: float) -> tuple[int, int]:
    """Bands and rows of an LSH index: as many rows as still find a pair at the threshold with LEAST_RECALL."""
    # From many rows down: the more of them, the fewer pairs that only look alike.
    for rows in range(16, 1, -1):
        bands = PERMUTATIONS // rows
        if 1 - (1 - threshold**rows) ** bands >= LEAST_RECALL:
            return bands, rows
    return PERMUTATIONS, 1


@lru_cache(maxsize=1)
def _empty() -> "MinHash":
    from datasketch import MinHash  # brings parts of scipy, a second that every command would wait for

    return MinHash(num_perm=PERMUTATIONS, seed=1, hashfunc=int, scheme="affine32")


def _as_minhash(sketch: Sketch) -> "MinHash":
    from datasketch import MinHash

    return MinHash(hashvalues=sketch, permutations=_empty().permutations, seed=1, hashfunc=int, scheme="affine32")


def read_signatures(table: pa.Table, known_windows: Hashes | None = None) -> list[Signature]:
    """The signatures in a table with SIGNATURE_FIELDS, in order; of windows only those in `known_windows` (sorted)."""
    columns = [table.column(field.name).combine_chunks() for field in SIGNATURE_FIELDS]
    signatures = []
    for row in range(table.num_rows):
        statement, tests, words = (column[row].as_py() for column in columns[:3])
        # Copies: views would keep the whole table of their part in memory.
        shingles, windows, *rest = (column[row].values.to_numpy(zero_copy_only=False).copy() for column in columns[3:])
        if known_windows is not None and not len(known_windows):
            windows = known_windows
        elif known_windows is not None:  # by far the longer one: searched, not sorted again
            places = np.minimum(np.searchsorted(known_windows, windows), len(known_windows) - 1)
            windows = windows[known_windows[places] == windows]
        signatures.append(Signature(statement, tests, words, shingles, windows, *rest))
    return signatures


def _phrases(words: Hashes, length: int) -> Hashes:
    """Hashes of all runs of `length` words, sorted, without repeats."""
    count = len(words) - length + 1
    if count <= 0:
        return np.empty(0, dtype=np.uint64)
    phrases = np.zeros(count, dtype=np.uint64)
    for offset in range(length):
        phrases = phrases * _FACTOR + words[offset : offset + count]
    # MurmurHash3's finaliser: the sums' high bits are good, the low ones are not.
    phrases ^= phrases >> np.uint64(33)
    phrases *= np.uint64(0xFF51AFD7ED558CCD)
    phrases ^= phrases >> np.uint64(33)
    phrases *= np.uint64(0xC4CEB9FE1A85EC53)
    phrases ^= phrases >> np.uint64(33)
    return np.unique(phrases)


def _hash_tests(tests: Sequence[Test]) -> tuple[Hashes, Hashes, int]:
    """The known tests' inputs and outputs, and a hash of all tests whatever their order."""
    # By input: a test that is given twice counts once, however often its author wrote it down.
    answers = {_hash(_plain(test.input)): _hash(_plain(test.expected)) for test in tests}
    inputs = np.array(sorted(answers), dtype=np.uint64)
    outputs = np.array([answers[int(given)] for given in inputs], dtype=np.uint64)
    digest = int.from_bytes(blake2b(inputs.tobytes() + outputs.tobytes(), digest_size=8).digest(), "little")
    return inputs[:MAX_TESTS], outputs[:MAX_TESTS], digest


def _plain(text: str) -> str:
    """A test's text but for its white space; of a long text (splitting is slow), but for that at its ends."""
    return " ".join(text.split()) if len(text) <= LONG_TEXT else text.strip()


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


_word_hash = lru_cache(maxsize=1 << 17)(_hash)
