"""The errors a user can meet: each message says what was wrong and what to do, and the command line prints it alone."""


class CoderlError(Exception):
    """Base of every error that ends a command with one clear line instead of a traceback."""

    exit_code = 1


class ConfigError(CoderlError):
    """Bad arguments, settings or environment: retrying cannot help, the user has to change something."""

    exit_code = 2


class DataError(CoderlError):
    """An input file or data set is missing, damaged or of a shape we do not know."""

    exit_code = 2


class BudgetReachedError(CoderlError):
    """The next group could pass the cap of a setting of `flow`: with a higher one the work goes on where it ended."""

    exit_code = 3

    def __init__(self, setting: str, cap: float, said: str, *, flow: str) -> None:
        super().__init__(f"{setting}={cap:.10g} is reached: {said}; what is recorded stays")
        self.setting = setting
        self.cap = cap
        self.flow = flow


class TerminatedError(CoderlError):
    """The command was told to end (SIGTERM); the exit code is a shell's for that signal."""

    exit_code = 143


class InfraError(CoderlError):
    """A service failed for a reason that is not the submission's: retried by the task, never turned into a reward."""


class SandboxDownError(InfraError):
    """The sandbox failed: whoever retries can keep the session with Tinker."""
