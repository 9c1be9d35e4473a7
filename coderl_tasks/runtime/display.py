"""What people see of a flow run: lines and bars on the console, and its name, artifacts and state in the Prefect UI."""

import asyncio
import logging
import re
import shlex
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial, wraps
from time import monotonic
from typing import Any, ParamSpec, TypeVar
from uuid import UUID, uuid4

from prefect import get_client, get_run_logger
from prefect.artifacts import acreate_markdown_artifact, acreate_progress_artifact, aupdate_progress_artifact
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import Abort
from prefect.flow_runs import asuspend_flow_run
from prefect.logging.handlers import APILogHandler
from prefect.runtime import flow_run
from rich import progress as bars
from rich.console import Console, RenderableType
from rich.text import Text

from coderl_tasks.errors import BudgetReachedError, ConfigError, DataError, InfraError
from coderl_tasks.filtering.rows import OnRows, RowsProgress
from coderl_tasks.insight.logging import step_line
from coderl_tasks.insight.tables import duration
from coderl_tasks.insight.warning_signs import Notice
from coderl_tasks.journal.directory_lock import DirectoryBusyError, DirectoryTakenError
from coderl_tasks.journal.run_directory import is_eval_row
from coderl_tasks.planning.early_checks import is_deployed
from coderl_tasks.rollouts.rounds import Progress as OnProgress
from coderl_tasks.runtime.prefect_server import is_outage
from coderl_tasks.settings import FlowSettings, PipelineSettings
from coderl_tasks.settings.setting import words_of

logger = logging.getLogger(__name__)
_warnings = APILogHandler(logging.WARNING)  # warnings of the tasks in the flow run's log, which the UI shows
# Not what a run keeps in its logs.log. A thread that watches a server works for no flow run, and has no log.
_warnings.addFilter(
    lambda record: record.name != "coderl_tasks" and (FlowRunContext.get() or TaskRunContext.get()) is not None
)
_package = logging.getLogger("coderl_tasks")
RECENT = 0.2  # of the time per step: how much the last one counts
LOOK_EVERY_S = 1.0
LINE_EVERY_S = 30.0  # between lines that say how far something is, where there is no terminal to draw a bar on
ANSWER_S, AWAY_S = 15.0, 5.0  # how long an answer of the Prefect server may take; the pause if none comes
LONGEST_OUTAGE_S = 3600.0
LAST_S = 10.0  # how long a flow run that ends waits for what it has published to arrive
BUSY_POLL_S = 10.0
Request = Callable[[], Coroutine[Any, Any, object]]
Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


class _Counted(bars.ProgressColumn):
    """A column that is empty while a task has no end to count towards: its bar then only moves."""

    def __init__(self, column: bars.ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: bars.Task) -> RenderableType:
        return self._column.render(task) if task.total is not None else Text()


@dataclass
class _Steps:
    """The training loop's bar, and how far it is."""

    bar: bars.Progress
    task: bars.TaskID
    total: int | None  # steps in all; None: no end known
    done: int
    last: float  # seconds, when the last step ended
    pace: float | None = None  # the recent seconds per step, exponentially weighted; None before the first one


class Display:
    """One flow run's lines and bars, on the console or, of a deployment's run, in its log. Bars need a terminal."""

    def __init__(self) -> None:
        self._console = Console()
        self._log = get_run_logger() if is_deployed() else None
        _package.addHandler(_warnings)  # once: it is the same one each time
        self._steps: _Steps | None = None
        self._artifact: UUID | None = None

    def say(self, text: str) -> None:
        """A line for people, which the logs.log of a run has too."""
        self._show(text)
        # By the package's own name: the handlers that show people warnings leave out what it logs.
        warned = text.removeprefix("warning: ")
        _package.log(logging.INFO if warned == text else logging.WARNING, "%s", warned)

    def notices(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            self._show(notice.line)  # the run's logger has logged it

    def _show(self, text: str) -> None:
        if self._log is None:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            self._log.info("%s", text)

    def _drawn(self, *columns: bars.ProgressColumn, width: int | None = 40) -> bars.Progress:
        """A bar that is only of the moment: what stays on the screen are lines."""
        name, bar = bars.TextColumn("{task.description}"), bars.BarColumn(bar_width=width)
        return bars.Progress(name, bar, *columns, console=self._console, transient=True)

    @asynccontextmanager
    async def bar(self, text: str, count: Callable[[], tuple[int, int]] | None = None) -> AsyncIterator[OnProgress]:
        """Shows the progress of the block under the label `text`: in a bar of its own, or beside the bar that counts a
        run's steps if that is shown; without a terminal, in a line from time to time. Yields a callback that takes
        (done, total), with a total of 0 if it is not known yet. `count`, if given, is asked for both instead."""
        reported = (0, 0)

        def report(done: int, total: int) -> None:
            nonlocal reported
            reported = (done, total)

        with ExitStack() as drawing:
            move_own_bar: Callable[..., None] | None = None
            if self._steps is None and self._console.is_terminal:
                own_bar = drawing.enter_context(self._drawn(bars.MofNCompleteColumn(), bars.TimeRemainingColumn()))
                move_own_bar = partial(own_bar.update, own_bar.add_task(text, total=None))
            elif self._steps is None:  # no terminal, and no phase of a step: of these only long ones get lines
                self.say(text)
            showing = asyncio.create_task(self._show_progress(text, count or (lambda: reported), move_own_bar))
            try:
                yield report
            finally:
                showing.cancel()

    async def _show_progress(
        self, label: str, count: Callable[[], tuple[int, int]], move_own_bar: Callable[..., None] | None
    ) -> None:
        """Shows (done, total), which `count` returns, every LOOK_EVERY_S until it is cancelled, as `bar` says."""
        begun = last_line_at = monotonic()
        # The pace is measured from when the total became known. What was done by then (`done_before`) does not count.
        pace_since: float | None = None
        done_before = 0
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            (done, total), now = count(), monotonic()
            text = f"{label}: {done}/{total}" if total else label
            if pace_since is None and total:
                pace_since, done_before = now, done
            if pace_since is not None and done > done_before:
                left_s = (total - done) * (now - pace_since) / (done - done_before)
                text += f", about {duration(left_s)} left" if left_s >= 60 else ""
            elif now - begun >= LINE_EVERY_S:
                text += f", after {duration(now - begun)}"
            if move_own_bar is not None:
                move_own_bar(completed=done, total=total or None)  # None: the bar only moves
            elif self._console.is_terminal:
                self.label_steps_bar(text)
            elif now - last_line_at >= LINE_EVERY_S:
                last_line_at = now
                self.say(text)

    @contextmanager
    def reading(self, text: str) -> Iterator[OnRows]:
        """A progress callback for the block that reads a data set: a bar of rows, bytes, speed and time left."""
        self.say(text)
        if not self._console.is_terminal:
            yield lambda read: None
            return
        columns = (bars.DownloadColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn())
        with self._drawn(*map(_Counted, columns)) as progress:
            task = progress.add_task("hashing", total=None)

            def show(read: RowsProgress) -> None:
                what = f"{read.phase} {read.rows:,} rows" if read.rows else read.phase
                progress.update(task, completed=read.bytes_read, total=read.bytes_total or None, description=what)

            yield show

    @asynccontextmanager
    async def steps(self, last_step: int | None, done: int) -> AsyncIterator[None]:
        """Shows training steps while the block runs; `done` of them were done before. The time left is by the recent
        time per step, as the loop sees it, so evaluations and checkpoints count in."""
        total = None if last_step is None else last_step + 1
        bar = self._drawn(bars.MofNCompleteColumn(), bars.TextColumn("{task.fields[left]}"), width=None)
        task = bar.add_task("training", total=total, completed=done, left="")
        self._steps = _Steps(bar, task, total, done, monotonic())
        with bar if self._console.is_terminal else nullcontext():
            self._move_artifact()
            yield
        self._steps = None

    def label_steps_bar(self, text: str) -> None:
        if self._steps is not None:
            self._steps.bar.update(self._steps.task, description=text)

    def row(self, row: Mapping[str, Any]) -> None:
        """Shows a row of metrics.jsonl; that of a step moves the bar, the time left and the progress artifact."""
        steps = self._steps
        if steps is None or is_eval_row(dict(row)):
            self._show(step_line(row))
            return
        now = monotonic()
        taken, steps.last = now - steps.last, now
        steps.pace = taken if steps.pace is None else (1 - RECENT) * steps.pace + RECENT * taken
        steps.done += 1
        left_s = None if steps.total is None else steps.pace * max(steps.total - steps.done, 0)
        left = "" if left_s is None else f"{duration(left_s)} left"
        steps.bar.update(steps.task, completed=steps.done, left=left)
        # With a bar the time left is in it, and a line that stays would hold an old one.
        self._show(step_line(row, steps.total, None if self._console.is_terminal else left_s))
        self._move_artifact()

    def _move_artifact(self) -> None:
        if self._steps is None or not self._steps.total:
            return
        progress = 100.0 * self._steps.done / self._steps.total

        async def move() -> None:
            if self._artifact is None:
                text = "steps trained"
                self._artifact = await acreate_progress_artifact(progress, key="training", description=text)
            else:
                await aupdate_progress_artifact(self._artifact, progress)

        _outbox.put("the progress artifact", move)


def command_line(flow: str, settings: FlowSettings | PipelineSettings, **pinned: str) -> str:
    """The command that starts `flow` with `settings`, as a shell takes it; `pinned` are settings to name in it."""
    return shlex.join(["coderl", flow, *words_of(settings.changed() | pinned)])


_is_subflow: ContextVar[bool] = ContextVar("is_subflow", default=False)
is_subflow = _is_subflow.get  # whether another flow, such as a pipeline, has called the flow that runs


@contextmanager
def saying_what_next(display: Display, command: str, stopped: Callable[[], str] = lambda: "stopped") -> Iterator[None]:
    """If the block raises, tells the user where it `stopped`, and how to continue: with `command`, or first by raising
    a cap or fixing the error, which would recur. Of nested blocks (a pipeline and its parts) only the outermost does.
    """
    is_inner = is_subflow()
    token = _is_subflow.set(True)  # of the flows that the block calls
    try:
        yield
    except BaseException as error:
        advice = f"to continue: {command}"
        if isinstance(error, BudgetReachedError):
            words = shlex.split(command)  # coderl FLOW KEY=VALUE ...
            # A pipeline's settings have their flow's name before them (train.max_usd).
            setting = f"{error.flow}.{error.setting}" if words[1] == "pipeline" else error.setting
            others = [word for word in words if word.partition("=")[0] != setting]
            higher = shlex.join([*others, f"{setting}={2 * error.cap:.10g}"])  # twice the cap, as an example
            advice = f"to continue, raise {setting}, for example: {higher}"
        elif isinstance(error, ConfigError | DataError):
            advice = f"fix the error below, then continue: {command}"
        if not is_inner:
            display.say(f"{stopped()}; {advice}")
        raise
    finally:
        _is_subflow.reset(token)


@asynccontextmanager
async def interruptible() -> AsyncIterator[None]:
    """Lets Ctrl-C end a block that awaits nothing: asyncio's handler only cancels, which takes effect at an await."""
    handler = signal.getsignal(signal.SIGINT)
    # Only the main thread can set handlers. A process that ignores Ctrl-C keeps ignoring it.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which raises KeyboardInterrupt
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, handler)
        signal.raise_signal(signal.SIGINT)  # as if Ctrl-C came at this await: all ends as elsewhere
        await asyncio.sleep(1)
        raise  # with a handler that does not cancel
    finally:
        signal.signal(signal.SIGINT, handler)


class _Outbox:
    """What is published in the Prefect UI, sent in the background and in order: no work waits for it. While the server
    does not answer, the newest of each kind is kept, and sent when it answers again."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Request, Context]] = {}  # the context says which flow run it is of
        self._sending: asyncio.Task[None] | None = None

    def put(self, what: str, request: Request) -> None:
        self._waiting[what] = request, copy_context()
        if self._sending is None or self._sending.done() or self._sending.get_loop() is not asyncio.get_running_loop():
            self._sending = asyncio.create_task(self._send())

    async def wait_until_sent(self, within_s: float) -> None:
        """Waits for all to be sent, but not longer than `within_s`, and warns of what is not."""
        if self._sending is None or self._sending.get_loop() is not asyncio.get_running_loop():
            return
        await asyncio.wait({self._sending}, timeout=within_s)
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)
        if self._waiting:
            logger.warning("the Prefect server does not answer; not published: %s", ", ".join(self._waiting))
        self._waiting.clear()

    async def _send(self) -> None:
        """Sends what waits, the oldest first, until nothing does. Retries while the server does not answer."""
        is_away = False  # whether the server did not answer the last request: warn once, not at each try
        while self._waiting:
            what, (request, context) = next(iter(self._waiting.items()))
            try:
                await asyncio.wait_for(asyncio.create_task(request(), context=context), ANSWER_S)
            except Exception as error:  # whatever Prefect's client raises: no other request may wait for this one
                if is_outage(error):
                    if not is_away:
                        reason = str(error) or type(error).__name__
                        logger.warning("no answer from the Prefect server: continuing without it (%s)", reason)
                    is_away = True
                    await asyncio.sleep(AWAY_S)
                    continue
                logger.warning("%s was not published: %s", what, error)  # the server refuses it: do not retry
            if is_away:
                logger.warning("the Prefect server answers again")
            is_away = False
            if self._waiting[what][0] is request:  # else a newer one has replaced it while it was being sent
                del self._waiting[what]


_outbox = _Outbox()


def name_flow_run(name: str, *, root: bool = False) -> None:
    """Give this flow run, and with `root` the one that it is a part of, the name of its directory in the Prefect UI."""

    async def rename() -> None:
        # In a thread: Prefect asks the server for the root, and would block the event loop.
        ids = await asyncio.to_thread(lambda: {flow_run.id, flow_run.root_flow_run_id if root else None})
        async with get_client() as client:
            for run in ids - {None}:
                await client.update_flow_run(UUID(run), name=name)

    _outbox.put(f"the name {name}", rename)


def publish_later(kind: str, name: str, markdown: str) -> None:
    """Publish markdown as an artifact, a new version of the one with this kind and name."""
    key = re.sub(r"[^a-z0-9]+", "-", f"{kind}-{name}".lower()).strip("-")  # as Prefect takes it
    _outbox.put(f"the artifact {kind}-{name}", lambda: acreate_markdown_artifact(markdown=markdown, key=key))


def forget_old_task_results(kept: int = 200) -> None:
    """Let go of all but the newest results of finished tasks, which Prefect remembers to draw their use: 8 KB each."""
    context = FlowRunContext.get()
    if context is not None:
        for result in list(context.run_results)[:-kept]:
            del context.run_results[result]


def exclusive_flow(
    work: Callable[Arguments, Awaitable[Answer]], *, first_start_waits: bool = False
) -> Callable[Arguments, Coroutine[Any, Any, Answer]]:
    """Decorates `work`, the body of a Prefect flow. The flow ends when what it has published has reached the Prefect
    server, or LAST_S later. If another process holds the directory that `work` locks, a deployment's run that Prefect
    has started again waits for it, as its earlier worker may only have been out of reach, and be at work; with
    `first_start_waits` its first start too. Any other flow raises DirectoryBusyError."""

    @wraps(work)
    async def flow_of(*arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        shown_reason = ""  # each reason to wait is shown once
        while True:
            try:
                result = await work(*arguments, **named)
                await _wait_until_prefect_can_note_the_end()
                return result
            except DirectoryTakenError as error:  # this process held the directory, and another one has taken it
                if not is_deployed():
                    raise
                # The other process works on this same flow run: it must not fail. Prefect sets no state after Abort.
                raise Abort(str(error)) from error
            except DirectoryBusyError as error:  # another process held the directory before this one started
                context = FlowRunContext.get()
                is_restarted = context is not None and context.flow_run is not None and context.flow_run.run_count > 1
                if not ((is_restarted or first_start_waits) and is_deployed()):
                    raise
                if str(error) != shown_reason:
                    Display().say(f"waiting: {error}")
                shown_reason = str(error)
                await asyncio.sleep(BUSY_POLL_S)
            finally:
                await _outbox.wait_until_sent(LAST_S)

    return flow_of


async def _wait_until_prefect_can_note_the_end() -> None:
    """Wait for the Prefect server where a deployment's run has ended: Prefect fails a run whose end it cannot note."""
    context, waiting_since, is_said = FlowRunContext.get(), monotonic(), False
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        return
    while monotonic() - waiting_since < LONGEST_OUTAGE_S:
        try:
            async with asyncio.timeout(ANSWER_S), get_client() as client:
                await client.read_flow_run(context.flow_run.id)
            return
        except Exception as error:  # whatever Prefect's client raises
            if not is_outage(error):
                return
            if not is_said:
                logger.warning("the work is done: waiting for the Prefect server to note it (%s)", type(error).__name__)
            is_said = True
        await asyncio.sleep(AWAY_S)


@asynccontextmanager
async def suspended_in_outages(hours: float) -> AsyncIterator[None]:
    """Suspend this flow run for at most so many hours when the block ends in InfraError. Resuming starts the flow anew,
    which goes on where its directory ends. A bare run ends with the error."""
    try:
        yield
    except InfraError as error:
        # Only a deployment can start the flow again, and of a flow and its parts only the whole.
        if is_deployed() and flow_run.parent_flow_run_id is None:
            display = Display()
            display.say(str(error))
            # Prefect's command line can retry a flow run, but not resume one.
            code = f"from prefect.flow_runs import resume_flow_run; resume_flow_run('{flow_run.id}')"
            display.say(
                f"suspended for up to {hours:g} hours: fix the error above, then continue with Resume in the UI, or "
                f'`python -c "{code}"`'
            )
            # A key of its own: Prefect numbers a process's suspensions, and refuses a number that it has seen before.
            await asuspend_flow_run(timeout=round(hours * 3600), key=uuid4().hex)
        raise
