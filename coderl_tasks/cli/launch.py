"""Runs a flow from the command line against a Prefect server; `coderl estimate FLOW key=value ...`."""

import asyncio
import inspect
import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, NoReturn

from prefect.events.worker import EventsWorker
from prefect.exceptions import TerminationSignal
from prefect.logging.handlers import APILogWorker
from rich.console import Console

from coderl_tasks.errors import TerminatedError
from coderl_tasks.insight.logging import WarningLines, early_lines
from coderl_tasks.planning.flow_plans import plan
from coderl_tasks.policy.clients import causes
from coderl_tasks.runtime import prefect_server
from coderl_tasks.services import load_environment
from coderl_tasks.settings import FlowSettings, PipelineSettings, parse_settings

DELIVERY_S, SIGTERM_GRACE_S = 30.0, 5.0


def launch(name: str, settings: FlowSettings | PipelineSettings) -> Any:
    """Plans and runs the flow `name` on a Prefect server; its result. Raises what the flow raises, TerminatedError
    after SIGTERM, ConfigError or InfraError if the server refuses or stops answering."""
    signal.signal(signal.SIGTERM, _raise_terminated)  # by default it ends the process without cleaning up
    load_environment()
    console = Console()
    with ExitStack() as stack:
        # Planning may repair a run's files and logs it: these lines are kept until the run's log is open.
        stack.enter_context(early_lines())
        settings = asyncio.run(plan(settings))
        flow = getattr(import_module(f"flows.{name}"), name)
        _show_plain_lines()  # our warnings, without Prefect's; after the import, which sets up Prefect's logging
        if (notice := prefect_server.notice_of_unusable_server()) is not None:  # of what listens on the default port
            console.print(notice, highlight=False, markup=False)
        with console.status("starting the Prefect server"):
            api_url = stack.enter_context(prefect_server.prefect_server())
        # The address that logs the user in goes to a terminal only, never to a log. soft_wrap keeps it copyable.
        address = prefect_server.ui_address(api_url) if console.is_terminal else api_url.removesuffix("/api")
        console.print(f"Prefect UI: {address}", highlight=False, soft_wrap=True)
        with prefect_server.faults_explained(api_url):
            try:
                return asyncio.run(_run_and_send_logs(flow, settings, api_url))
            except BaseException as error:
                if was_terminated(error):
                    raise TerminatedError("terminated") from error
                raise


def was_terminated(error: BaseException) -> bool:
    """Whether SIGTERM is behind `error`. Where it comes while a task is being created, Prefect stumbles over that."""
    return any(isinstance(cause, TerminationSignal) for cause in causes(error))


def _raise_terminated(*_: object) -> NoReturn:
    raise TerminatedError("terminated")


async def ended_by_sigterm(work: Coroutine[Any, Any, Any], grace_s: float = SIGTERM_GRACE_S) -> Any:
    """Awaits `work`, a run of a Prefect flow, and returns its result. After SIGTERM ends it, and raises TerminatedError
    or Prefect's own exception.

    While the flow runs, Prefect's handler of SIGTERM raises TerminationSignal wherever the main thread is. In an
    asyncio callback, a side task, `__del__` or a weak reference's callback it is lost and ends nothing, so the event
    loop listens for the signal too. `work` has `grace_s` seconds to end by Prefect's exception, in which it reports its
    end; then, or at once if that exception was lost, it is cancelled until it ends."""
    signalled, running = asyncio.Event(), asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signalled.set)
    with _noting_lost_signals() as lost:
        wait_for_signal, wait_for_loss = asyncio.create_task(signalled.wait()), asyncio.create_task(lost.wait())
        try:
            await asyncio.wait({running, wait_for_signal, wait_for_loss}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():  # if the exception is lost already, this returns at once
                await asyncio.wait({running, wait_for_loss}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():  # `finally` cancels it
                raise TerminatedError("terminated")
            return await running
        finally:
            wait_for_signal.cancel()
            wait_for_loss.cancel()
            # Still running after the grace, or if Ctrl-C cancelled the wait above. Cancel repeatedly: without a Prefect
            # server, each report (of a task, of the flow) is retried for minutes.
            while not running.done():
                running.cancel()
                await asyncio.wait({running}, timeout=grace_s)
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, _raise_terminated)  # the line above has reset it


@contextmanager
def _noting_lost_signals() -> Iterator[asyncio.Event]:
    """Yields an event that is set when a TerminationSignal is lost: Python and asyncio report that to two hooks."""
    lost, loop, previous_hook = asyncio.Event(), asyncio.get_running_loop(), sys.unraisablehook

    def note_unraisable(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, TerminationSignal):
            lost.set()
        else:
            previous_hook(unraisable)

    def note_loop_error(_: Any, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), TerminationSignal):
            lost.set()
        else:
            loop.default_exception_handler(context)

    sys.unraisablehook = note_unraisable
    loop.set_exception_handler(note_loop_error)
    try:
        yield lost
    finally:
        sys.unraisablehook = previous_hook
        loop.set_exception_handler(None)  # asyncio's own


async def _run_and_send_logs(flow: Any, settings: FlowSettings | PipelineSettings, api_url: str) -> Any:
    """The flow's result, with its logs and events delivered before the server it reports to may stop."""
    try:
        return await ended_by_sigterm(flow(settings))
    finally:
        if prefect_server.is_up(api_url):  # else each event would be tried for minutes
            for worker in (APILogWorker, EventsWorker):
                drained = worker.drain_all(timeout=DELIVERY_S)
                if inspect.isawaitable(drained):
                    await drained


def _show_plain_lines() -> None:
    """Our own warnings as plain lines, and none of Prefect's, as the UI has them all. If the variable
    PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL is set, Prefect's stay."""
    if "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL" not in os.environ:
        for logger in (logging.getLogger(), logging.getLogger("prefect._internal")):
            for handler in list(logger.handlers):
                logger.removeHandler(handler)
            logger.addHandler(logging.NullHandler())  # without any handler Python prints warnings by itself
        logging.raiseExceptions = False  # or a log that a lost server does not take is said for each line
    for name in ("coderl_tasks", "flows"):
        # The stream is looked up at each line: a live progress bar puts itself in its place.
        logging.getLogger(name).addHandler(WarningLines(lambda line: print(line, file=sys.stderr, flush=True)))


def estimate(options: Namespace) -> int:
    """Prints what the command `options.flow` with `options.settings` will take, as a table and notes below it."""
    from coderl_tasks.cli.arguments import FLOW_SETTINGS, parse_key_values
    from coderl_tasks.insight.tables import rich_table
    from coderl_tasks.planning.estimates import estimates, estimates_table

    model = FLOW_SETTINGS[options.flow]
    settings = parse_settings(model, parse_key_values(options.settings, model))
    rows, notes = asyncio.run(estimates(settings, options.probe))
    if not rows:
        print("nothing is to be sampled: the evaluations are finished")
        return 0
    # Numbers cut off at the edge would be other numbers: a narrow terminal breaks the lines itself.
    console = Console(width=max(Console().width, 150))
    console.print(rich_table(estimates_table(rows), "Tokens by kind, with intervals of 95%"))
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    return 0
