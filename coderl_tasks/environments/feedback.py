"""What a policy is told between its answers: of a program that fails (`code_replies`), by the samples that the
statement shows and no other test; and of one that it asked to be run (`tool_replies`): output, errors, how it ended.

    samples   the first sample that fails, with its expected output, what the program answered or the error it ended
              with, and the line of the error
    verdict   the verdict alone
    none      that it should look again

A problem whose statement shows no sample that can be run has its program run on nothing: without input, or as the
module that defines the function. Of a program that reads its input only errors count that no input could cure.
Two programs that differ only on hidden tests get the same text; no times are shown. An outage and a checker that fails
are no reply: the completion is left out of its group.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from coderl_tasks.errors import InfraError
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.scoring import UNGRADED, Grade, Verdict, answer_in, each_once, shortened
from coderl_tasks.problems.assertion_tests import with_given_code
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.problems.samples import samples
from coderl_tasks.prompts.tool_calls import Call, call_in
from coderl_tasks.settings.flow_settings import Feedback

PART_CHARS = 400
"""Of an input, an output or an error that is shown."""
ANY_INPUT = ("SyntaxError", "IndentationError", "TabError", "NameError", "ImportError", "ModuleNotFoundError")
"""Errors that a program has whatever it reads."""
NO_CODE = (
    "Your answer has no closed code block. Answer with the whole program between ```python and ```, each on a line of "
    "its own."
)
AGAIN = "Correct the program, and answer with the whole of it in a code block."
NO_CALLS_LEFT = "That was the last call. Answer with the whole program in a code block."
CALLED, ANSWERED = "called", "answered"
"""The `check` of an answer that has a call, and of one that has none."""
LOOK_AGAIN = f"Check your program once more. {AGAIN}"
_VERDICTS = {
    Verdict.WRONG_ANSWER: "wrong answer",
    Verdict.RUNTIME_ERROR: "runtime error",
    Verdict.TIME_LIMIT: "time limit exceeded",
    Verdict.MEMORY_LIMIT: "memory limit exceeded",
    Verdict.OUTPUT_LIMIT: "output limit exceeded",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """The `check` that a reply was made of, a verdict (or CALLED, ANSWERED); and the reply, None where the completion
    ends with the answer: it passed, has no call, or nothing can be said of it (the verdicts of UNGRADED)."""

    check: str
    text: str | None


async def code_replies(
    judge: Judge, problem: Problem, codes: Sequence[str | None], feedback: Feedback = "samples"
) -> list[Reply]:
    """The reply to each program (None: the answer had none), in order. Equal programs run once."""
    shown = shown_problem(problem)
    by_code = await each_once(partial(_grade, judge, problem, shown), [code for code in codes if code is not None])
    replies = []
    for code in codes:
        if code is None:
            replies.append(Reply(Verdict.FORMAT_ERROR, LOOK_AGAIN if feedback == "none" else NO_CODE))
        elif (grade := by_code[code]).passed or grade.verdict in UNGRADED:
            replies.append(Reply(grade.verdict, None))
        else:
            replies.append(Reply(grade.verdict, _text(shown, code, grade, feedback)))
    return replies


async def tool_replies(judge: Judge, texts: Sequence[str], *, is_last: bool) -> list[Reply]:
    """The result of the call in each answer, in order; no reply where there is none. Equal calls run once. `is_last`:
    none may follow. A call that cannot be read counts as one."""
    calls = [call_in(answer_in(text)) for text in texts]
    results = await each_once(partial(_result, judge), [call for call in calls if isinstance(call, Call)])
    after = f"\n\n{NO_CALLS_LEFT}" if is_last else ""
    replies = []
    for call in calls:
        if call is None:
            replies.append(Reply(ANSWERED, None))
        elif isinstance(call, str):
            replies.append(Reply(Verdict.FORMAT_ERROR, f"The call cannot be read: {call}.{after}"))
        elif (result := results[call]) is None:
            replies.append(Reply(Verdict.INFRA_ERROR, None))
        else:
            replies.append(Reply(CALLED, f"{result}{after}"))
    return replies


def shown_problem(problem: Problem) -> Problem | None:
    """`problem` with the samples of its statement in place of its tests; None if it shows none that can be run."""
    tests = tuple(sample.test for sample in samples(problem) if sample.is_exact)
    if not tests:
        return None
    kind = "call" if problem.kind == "assert" else problem.kind
    return replace(problem, kind=kind, tests=tests, tests_total=len(tests), tests_generated=0)


async def _grade(judge: Judge, problem: Problem, shown: Problem | None, code: str) -> Grade:
    """The grade of a program on the samples, or else as it runs on nothing."""
    whole = with_given_code(problem.starter_code, code) if problem.kind == "assert" else code
    if shown is not None:
        return await judge.grade(shown, whole)
    nothing = replace(problem, kind="stdin", tests=(Test("", ""),), tests_total=1, checker="", comparator="tokens")
    grade = await judge.grade(nothing, whole)
    if grade.verdict in UNGRADED:
        return grade
    is_fault = grade.verdict is Verdict.RUNTIME_ERROR and (
        problem.kind != "stdin" or grade.error.startswith(tuple(f"{name}:" for name in ANY_INPUT))
    )
    return grade if is_fault else replace(grade, verdict=Verdict.PASSED, first_failed=None, reason="")


async def _result(judge: Judge, call: Call) -> str | None:
    """What is said of a run; None in an outage."""
    try:
        result = await judge.run(call.code, call.stdin)
    except InfraError:
        return None
    output, errors = shortened(result.answer).strip("\n"), result.stderr.strip("\n")
    none = ["No output."] if result.ended == "exit" else []  # of a program that was ended it is not kept
    parts = [f"Output:\n{output}"] if output else none
    parts += [f"Errors:\n{_cut(errors)}"] if errors else []
    if result.verdict in (Verdict.TIME_LIMIT, Verdict.MEMORY_LIMIT, Verdict.OUTPUT_LIMIT):
        ended = _VERDICTS[result.verdict]
    elif result.ended in ("signal", "lost"):
        ended = result.reason
    else:
        ended = f"exit status {1 if result.ended == 'compile' else result.code}"
    return "\n\n".join([*parts, f"Ended: {ended}."])


def _text(shown: Problem | None, code: str, grade: Grade, feedback: Feedback) -> str:
    """The reply to a program that failed on the tests of `shown`, or if that is None, run on nothing."""
    if feedback == "none":
        return LOOK_AGAIN
    verdict = _VERDICTS[grade.verdict]
    if feedback == "verdict":
        of_what = "when it is run" if shown is None else "an example of the problem"
        return f"Your program fails {of_what}: {verdict}. {AGAIN}"
    if shown is None:
        return f"Your program fails when it is run.\n\n{_error(code, grade)}\n\n{AGAIN}"
    assert grade.first_failed is not None  # a program that fails does so on a test
    test = shown.tests[grade.first_failed]
    head, what, given = "Input", "output", test.input
    if shown.kind == "call":  # its input is its arguments as a JSON list; without the brackets they read as a call
        head, what, given = "Call", "value", f"{shown.entry_point}({test.input[1:-1]})"
    parts = [
        f"Your program fails example {grade.first_failed + 1} of the problem: {verdict}.",
        f"{head}:\n{_cut(given)}",
        f"Expected {what}:\n{_cut(test.expected)}",
    ]
    if grade.verdict is Verdict.WRONG_ANSWER and grade.output is not None:
        parts.append(f"Your program's {what}:\n{_cut(grade.output)}")
    elif grade.verdict is Verdict.RUNTIME_ERROR:
        parts.append(_error(code, grade))
    return "\n\n".join([*parts, AGAIN])


def _error(code: str, grade: Grade) -> str:
    """The error that a program ended with, and the line of the program that it names."""
    error = grade.error or grade.reason.partition(": ")[2]
    number = error.rpartition(" (line ")[2].removesuffix(")")
    lines = code.splitlines()
    place = int(number) if number.isdecimal() else 0
    line = f"\nLine {place}: {_cut(lines[place - 1].strip())}" if 0 < place <= len(lines) else ""
    return f"Error:\n{_cut(error)}{line}"


def _cut(text: str) -> str:
    text = text.rstrip("\n")
    return text if len(text) <= PART_CHARS else f"{text[:PART_CHARS]}... ({len(text):,} characters)"
