"""From completions to rewards: the program in each, its verdict and grade, and the reward that follows.

    | format ok | tests pass | format_score | correctness | reward = format_coef * format_score + correctness |
    |-----------|------------|--------------|-------------|--------------------------------------------------|
    | no        | not run    |      -1      |      0      | -format_coef                                     |
    | yes       | no         |       0      |      0      | 0                                                |
    | yes       | yes        |       0      |      1      | 1                                                |
    | yes       | infra      |      none    |     none    | none: not a reward                               |

With `fraction`, correctness is the share of tests passed, all of them run, for recipes that prefer partial credit. It
is 1 where and only where the verdict is `passed`.

The program is the last closed fenced block of the answer:

1. Only the text after the last `</think>` counts, and of it only what stands before a further `<think>`:
   nothing is taken from a train of thought, finished or not.
2. A fence is a line of at least three backticks or tildes, with or without a language tag; it closes with a
   bare line of the same character, at least as long, indented at most three columns more than it opened.
3. Shorter fences, or fences of the other character, inside a block are its content. A line that opens a new
   block with a language tag inside an open one starts over: the earlier block was never closed. A tagged fence
   indented more than three columns further than the open block is its content too, if that has a tag and closes at all.
4. What stands after the last block of rules 2 and 3 (all of the answer, where there is none) is read once more, for
   backticks that share their line with something else. A fence may then stand at the end of a line of text, with at
   most one word as its tag, and it closes at the next backticks that are at least as many, wherever they stand: at the
   end of the last line of code, or before text. Where these open a fence with the same tag, the next block begins too.
5. By rules 2 and 3, the indentation of the opening fence is taken off each line (blocks in lists); by rule 4, that of
   the first line of code. CRLF ends are read as LF.
6. Blank blocks are ignored. Backticks that pair up within a line of text, and fences in quotes (`> ```), are text. A
   fence that never closes gives nothing.

Rule 4 is the usual pattern of code recipes (the last text between three backticks and the next three), which cuts a
program at backticks in a string and takes drafts and thoughts. So it is kept to where rules 2 and 3 find nothing.
tests/grading/test_extract.py shows both verdicts form by form.
"""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from coderl_tasks.problems.problem import Problem

if TYPE_CHECKING:  # it gives the grades that are defined here
    from coderl_tasks.grading.judge import Judge

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<marks>`{3,}|~{3,})(?P<tag>[^\r\n]*)$")
_BACKTICKS = re.compile(r"`{3,}")
_TAG = re.compile(r"[\w.+#-]*")
FORMAT_COEF = 0.1
SHOWN_CHARS = 1000
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


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
    """A completion's grade and its scores by the table above, all None for the verdict `infra_error`."""

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


@dataclass
class _Block:
    marks: str
    indent: int = 0
    tag: str = ""
    lines: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The lines without as much of their white space as the indentation is deep."""
        return "\n".join(line[min(self.indent, len(line) - len(line.lstrip(" \t"))) :] for line in self.lines)


def answer_in(text: str) -> str:
    """What counts of a completion's text: no thinking (rule 1 above)."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def extract_code(text: str) -> str | None:
    """The program in a completion's text by the rules above, without a final newline, or None if it has none."""
    lines = answer_in(text).replace("\r\n", "\n").split("\n")
    code, end = _closed_by_a_line(lines)
    later = _closed_within_a_line(lines[end:])
    return code if later is None else later


def _closed_by_a_line(lines: Sequence[str], further_in: float = 3) -> tuple[str | None, int]:
    """The code of the last non-blank block whose two fences each have a line of their own, and the index of the line
    after it; None and 0 if there is none. The rules are those of CommonMark, but a fence with a tag inside an open
    block, at most `further_in` columns further in, begins a new one: policies often leave the earlier one unclosed."""
    code, end = None, 0
    block: _Block | None = None  # the open one
    deep = 0  # the line of its first fence that only its indentation keeps from beginning a new block; 0: none

    def found_before(stop: int) -> tuple[str | None, int]:
        """What is found in the lines up to `stop`, where the open block is known to never close: no example stands in
        it, so it is read once more from `deep`, with every tag beginning a block."""
        inner, inner_end = _closed_by_a_line(lines[deep:stop], math.inf) if deep else (None, 0)
        return (code, end) if inner is None else (inner, deep + inner_end)

    for index, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None or fence["marks"][0] in fence["tag"]:  # no fence: text, or inline code such as ```x```
            if block is not None:
                block.lines.append(line)
            continue
        indent, marks, tag = len(fence["indent"]), fence["marks"], fence["tag"].strip()
        # The same character, and enough of them: it may close the open block.
        is_matching = block is not None and marks[0] == block.marks[0] and len(marks) >= len(block.marks)
        # A new block; an open one was never closed, and is dropped. One further in may be a docstring's example.
        # What stands in a block without a tag is an answer rather than a program.
        if block is None or (tag and is_matching and (indent <= block.indent + further_in or not block.tag)):
            code, end = found_before(index)
            block, deep = _Block(marks, indent, tag), 0
        # A fence further in is content, as in CommonMark, which counts from the list item that the block stands in.
        elif not tag and is_matching and indent <= block.indent + 3:
            text = block.text()
            if text.strip():
                code, end = text, index + 1
            block, deep = None, 0
        else:  # shorter, of the other character, or indented too far: content
            block.lines.append(line)
            if tag and is_matching:
                deep = deep or index
    return found_before(len(lines))


def _closed_within_a_line(lines: Sequence[str]) -> str | None:
    """The last non-blank block in `lines` with fences that may share their lines with text, or None. `lines` are those
    after the last block whose fences have lines of their own, where no such block is left to find."""
    code: str | None = None
    block: _Block | None = None  # the open one
    for line in lines:
        # The line's last backticks open a block if they have no partner and at most a tag follows. Runs of backticks
        # are counted, as one pattern over the whole line would take quadratic time on a long line of them.
        fences = list(_BACKTICKS.finditer(line))
        opened: _Block | None = None
        if len(fences) % 2 == 1 and not line.lstrip().startswith(">"):  # not a quote
            tag = line[fences[-1].end() :].strip()
            opened = _Block(fences[-1][0], tag=tag) if _TAG.fullmatch(tag) else None
        if block is None:
            block = opened
            continue
        before, closing, _ = line.partition(block.marks)
        block.lines.append(before)
        if closing:
            first_line = next((line for line in block.lines if line.strip()), "")
            block.indent = len(first_line) - len(first_line.lstrip(" \t"))  # which `text` takes off each line
            code = block.text().rstrip() or code  # blank blocks are ignored
            # A fence that closes a ```python block and says ```python itself opens the next one. A bare one only ends.
            block = opened if opened is not None and opened.tag == block.tag != "" else None
    return code


def score(
    code: str | None,
    grade: Grade,
    format_coef: float = FORMAT_COEF,
    *,
    fraction: bool = False,
    n_tests: int | None = None,
) -> ScoredCompletion:
    """The completion scored by the table, `fraction` as a share of `n_tests`, all of the problem's unless given.
    ValueError if it has code and the verdict `format_error`, or neither."""
    if (code is None) != (grade.verdict is Verdict.FORMAT_ERROR):
        raise ValueError(f"{grade.verdict} is no verdict for a completion {'without' if code is None else 'with'} code")
    if code is None:
        return ScoredCompletion(code, grade, -1.0, 0.0, -format_coef)
    if not grade.gradable:
        return ScoredCompletion(code, grade, None, None, None)
    n_tests = n_tests or grade.tests_total
    correctness = grade.tests_passed / n_tests if fraction else float(grade.passed)
    return ScoredCompletion(code, grade, 0.0, correctness, correctness)


def format_failure(problem: Problem) -> Grade:
    """The grade of a completion without code: nothing was run."""
    return Grade(Verdict.FORMAT_ERROR, 0, 0, len(problem.tests), None, 0.0, "no closed code block in the answer")


async def score_completion(
    judge: "Judge",
    problem: Problem,
    completion_text: str,
    format_coef: float = FORMAT_COEF,
    *,
    priority: Sequence[int] | None = None,
    fraction: bool = False,
) -> ScoredCompletion:
    """Grade and score one completion, as `score_group` does."""
    return (await score_group(judge, problem, [completion_text], format_coef, priority=priority, fraction=fraction))[0]


async def score_group(
    judge: "Judge",
    problem: Problem,
    texts: Sequence[str],
    format_coef: float = FORMAT_COEF,
    *,
    priority: Sequence[int] | None = None,
    fraction: bool = False,
    only: Sequence[int] | None = None,
) -> list[ScoredCompletion]:
    """Score the completions of one problem (G texts, G scored completions in the same order). Identical code is graded
    once. `priority` and `only` as in `Judge.grade`; with `fraction` every test is run, and correctness is the share
    passed. A text without code has the verdict `format_error` and the reward -`format_coef`. An outage is the verdict
    `infra_error` and the reward None. Raises DataError as `Judge.grade`."""
    # Code is extracted here, not in the sandbox, so that every sandbox grades the same program.
    codes = [extract_code(text) for text in texts]
    return await score_codes(judge, problem, codes, format_coef, priority=priority, fraction=fraction, only=only)


async def score_codes(
    judge: "Judge",
    problem: Problem,
    codes: Sequence[str | None],
    format_coef: float = FORMAT_COEF,
    *,
    priority: Sequence[int] | None = None,
    fraction: bool = False,
    only: Sequence[int] | None = None,
) -> list[ScoredCompletion]:
    """`score_group` for programs that are extracted already, None where there was none."""
    grade = partial(judge.grade, problem, priority=priority, run_all=fraction, only=only)
    grades = {None: format_failure(problem)} | await each_once(grade, [code for code in codes if code is not None])
    rewarded = None if only is None else len(only)
    return [score(code, grades[code], format_coef, fraction=fraction, n_tests=rewarded) for code in codes]


async def each_once(work: Callable[[_Item], Awaitable[_Result]], items: Iterable[_Item]) -> dict[_Item, _Result]:
    """The results of `work` on `items`, by item. Equal ones are worked on once, different ones at a time."""
    distinct = list(dict.fromkeys(items))
    return dict(zip(distinct, await asyncio.gather(*map(work, distinct)), strict=True))
