"""What grading says of one program: the verdict, how far it got, and why."""

from dataclasses import dataclass
from enum import StrEnum

SHOWN_CHARS = 1000


class Verdict(StrEnum):
    """The eight verdicts. `infra_error` is ours, never the program's, and never becomes a reward."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    FORMAT_ERROR = "format_error"
    INFRA_ERROR = "infra_error"


@dataclass(frozen=True, slots=True)
class Grade:
    """The grade of one program on one problem.

    `tests_run` of `tests_total` were run (grading stops at the first failure, unless all tests were asked for);
    `first_failed` is the index, in the problem's own test order, of the test that failed first, None if none failed;
    `run_seconds` is CPU seconds summed over the tests; `reason` is one line for people, empty for a pass. Of the test
    that failed first, `output` is what the program printed or returned (see `shortened`), None where nothing came back
    or nothing failed, and `error` the last line of its error output, empty where there was none. `python` is the
    version of the interpreter that ran it, as far as it is known.
    """

    verdict: Verdict
    tests_passed: int
    tests_run: int
    tests_total: int
    first_failed: int | None
    run_seconds: float
    reason: str = ""
    output: str | None = None
    error: str = ""
    python: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED

    @property
    def gradable(self) -> bool:
        return self.verdict is not Verdict.INFRA_ERROR


def shortened(text: str | bytes, length: int = SHOWN_CHARS) -> str:
    """The first `length` characters of `text`, and how much there is where that is not all.

    What UTF-8 cannot hold (odd bytes, lone surrogates) is shown as escapes, so that any table takes the result.
    """
    size, unit = len(text), "bytes" if isinstance(text, bytes) else "characters"
    if isinstance(text, bytes):
        text = text[: 4 * length + 1].decode("utf-8", "backslashreplace")  # a character has four bytes at most
    shown = text[:length].encode("utf-8", "backslashreplace").decode()
    return shown if len(text) <= length else f"{shown}... ({size:,} {unit})"
