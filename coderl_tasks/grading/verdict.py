"""What grading says of a program: the verdict, how far it got and why."""

from dataclasses import KW_ONLY, dataclass
from enum import StrEnum

SHOWN_CHARS = 1000


class Verdict(StrEnum):
    """The ten verdicts. `infra_error` is ours and `checker_error` is that of a problem's own tests or checker: neither
    is the program's, and neither becomes a reward. `reward_error` is the user's compute_reward's, and a reward of 0."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    FORMAT_ERROR = "format_error"
    INFRA_ERROR = "infra_error"
    CHECKER_ERROR = "checker_error"
    REWARD_ERROR = "reward_error"


UNGRADED = (Verdict.INFRA_ERROR, Verdict.CHECKER_ERROR)
"""The verdicts that say nothing of the program."""


@dataclass(frozen=True, slots=True)
class SandboxUse:
    """The sandbox that answered last for a program, and how many requests came to nothing and were sent again."""

    server: str
    retries: int


@dataclass(frozen=True, slots=True)
class Grade:
    """The grade of one program on one problem. Grading stops at the first failure, unless all tests were asked for."""

    verdict: Verdict
    tests_passed: int
    tests_run: int
    tests_total: int
    first_failed: int | None  # index, among the problem's tests, of the test that failed first
    run_seconds: float  # CPU seconds summed over the tests
    reason: str = ""  # one line for people, empty for a pass
    output: str | None = None  # what that test printed or returned, `shortened`; None where nothing came back
    error: str = ""  # the last line of its error output
    python: str = ""  # version of the interpreter that ran it, as far as it is known
    test_seconds: tuple[float, ...] = ()  # CPU seconds of the tests that ran, in their order
    sandbox: SandboxUse | None = None  # None where none has answered

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED

    @property
    def gradable(self) -> bool:
        return self.verdict not in UNGRADED


@dataclass(frozen=True, slots=True)
class ScoredCompletion:
    """A completion's grade and its scores by the table in `grading.scoring`, all None for the verdict `infra_error`."""

    code: str | None  # None if the format was wrong: then the verdict is `format_error`
    grade: Grade
    format_score: float | None
    correctness: float | None
    reward: float | None
    _: KW_ONLY
    suspicion: str = ""  # the signs of `grading.suspicion`, of a program that passed a test
    passes_held_back: bool | None = None  # of a program that passed, where tests are held back


def shortened(text: str | bytes) -> str:
    """The first 1,000 characters of `text`, and how much there is where that is not all. What UTF-8 cannot hold (odd
    bytes, lone surrogates) is shown as escapes, so that any table takes the result."""
    size, unit = len(text), "bytes" if isinstance(text, bytes) else "characters"
    if isinstance(text, bytes):
        text = text[: 4 * SHOWN_CHARS + 1].decode("utf-8", "backslashreplace")  # a character has four bytes at most
    shown = text[:SHOWN_CHARS].encode("utf-8", "backslashreplace").decode()
    return shown if len(text) <= SHOWN_CHARS else f"{shown}... ({size:,} {unit})"
