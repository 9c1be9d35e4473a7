"""What a flow that stops before its end says: the command that goes on."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from coderl_tasks.arguments import words_of
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.runtime.display import Display
from coderl_tasks.settings import FlowSettings, PipelineSettings


def command_line(flow: str, settings: FlowSettings | PipelineSettings, **pinned: str) -> str:
    """The command that starts `flow` with `settings`, as a shell takes it; `pinned` are settings to name in it."""
    return shlex.join(["coderl", flow, *words_of(settings.changed() | pinned)])


def what_next(command: str, error: BaseException) -> str:
    """How `command` goes on with what `error` stopped: some errors come again until what they name is put right."""
    first = "put right what the error below names, then " if isinstance(error, ConfigError | DataError) else ""
    return f"{first}{command} goes on"


_in_a_block: ContextVar[bool] = ContextVar("in_a_block", default=False)


@contextmanager
def saying_what_next(display: Display, command: str, stopped: Callable[[], str] = lambda: "stopped") -> Iterator[None]:
    """Where the block does not come to its end, say where it `stopped`, and that `command` goes on with it. Of a
    pipeline and its part only the pipeline does."""
    is_part = _in_a_block.get()
    token = _in_a_block.set(True)
    try:
        yield
    except BaseException as error:
        if not is_part:
            display.say(f"{stopped()}; {what_next(command, error)}")
        raise
    finally:
        _in_a_block.reset(token)
