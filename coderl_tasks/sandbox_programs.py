"""The programs that grading has a sandbox run, as text: none of them is imported here.

They stand alone, each in one file, because a request brings its program along. Most are put together of several files.
"""

from coderl_tasks.paths import CODE_ROOT

PAYLOAD = CODE_ROOT / "coderl_tasks" / "grading" / "payload"
_RUN_AS_PROGRAM = '\n\nif __name__ == "__main__":'


def _text(name: str) -> str:
    return (PAYLOAD / name).read_text()


DRIVER = _text("driver.py")
"""Runs one program on the inputs of tests."""
_definitions, _, _end = DRIVER.rpartition(_RUN_AS_PROGRAM)
OPERATIONS_DRIVER = f"{_definitions}\n\n{_text('values.py')}{_RUN_AS_PROGRAM}{_end}"
"""Does with one program what assertion tests ask of it."""
ASSERTION_JUDGE = _text("forked.py") + _text("values.py") + _text("assertions.py")
"""Runs assertion tests, without the program."""
CHECKER_RUNNER = _text("forked.py") + _text("checkers.py")
"""Runs a checker on the outputs of a program."""
REWARD_RUNNER = _text("forked.py") + _text("reward_runner.py")
"""Runs a user's reward function on completions."""
PRELOADED = (DRIVER, OPERATIONS_DRIVER, ASSERTION_JUDGE, CHECKER_RUNNER)
"""The programs that the embedded sandbox loads once, so that no request waits for their imports."""
