"""One line per step, and a progress bar with the time left. Without a terminal (a file, a worker's log) lines only."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from coderl_tasks.insight.console import duration
from coderl_tasks.journal.metrics import is_eval_row
from coderl_tasks.policy.step_metrics import BY_THEME

RECENT = 0.2


def step_line(row: Mapping[str, Any], steps: int | None = None, left_s: float | None = None) -> str:
    """One row of metrics.jsonl as a compact line; keys that the row lacks are left out."""
    if is_eval_row(dict(row)):
        return _eval_line(row)
    parts = [f"step {row['step']:>4}" + (f"/{steps}" if steps else "")]
    parts += [text for metric in BY_THEME if (text := metric.text(row))]
    if left_s is not None:
        parts.append(f"{duration(left_s)} left")
    return "  ".join(parts)


def _eval_line(row: Mapping[str, Any]) -> str:
    name = row.get("eval/name") or ("baseline" if row["step"] == -1 else f"step {row['step']}")
    parts = [f"evaluation {name}", f"Pass@1 {row['eval/mean_correct']:.1%}"]
    if row.get("eval/ci_low") is not None:
        parts[-1] += f" [{row['eval/ci_low']:.1%}, {row['eval/ci_high']:.1%}]"
    if row.get("eval/n") is not None:
        parts.append(f"n {row['eval/n']}")
    for key, label in {"eval/format_rate": "format", "eval/truncated_rate": "truncated"}.items():
        parts += [f"{label} {row[key]:.0%}"] if row.get(key) is not None else []
    if row.get("eval/infra_errors"):
        parts.append(f"infra errors {row['eval/infra_errors']}")
    return "  ".join(parts)


class StepProgress:
    """The training loop's display: `line(row)` is a step's line and moves the bar; a context manager.

    `total` steps in all (None: no end known), `done` of them before this start. The time left is the recent time per
    step (exponentially weighted), as the loop sees it, so evaluations and checkpoints count in.
    """

    def __init__(
        self,
        console: Console,
        total: int | None,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._total = total
        self._done = done
        self._clock = clock
        self._last = clock()
        self._pace: float | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._last = self._clock()
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
                console=self._console,
                # A bar is only of the moment: what stays on the screen are the lines of the steps.
                transient=True,
            )
            self._task = self._bar.add_task("training", total=self._total, completed=self._done, left="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def left_s(self) -> float | None:
        """Seconds left at the recent pace; None before the first step or without a known end."""
        if self._pace is None or self._total is None:
            return None
        return self._pace * max(self._total - self._done, 0)

    def phase(self, text: str) -> None:
        """Name what is going on now (sampling, scoring, evaluation at step 9, ...)."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=text)

    def line(self, row: Mapping[str, Any]) -> str:
        """The line of a row of metrics.jsonl; a training row also moves the bar and the time left."""
        if is_eval_row(dict(row)):
            return step_line(row)
        self._count_step()
        # With a bar the time left is in it, and a line that stays would hold an old one.
        return step_line(row, self._total, None if self._bar is not None else self.left_s)

    def _count_step(self) -> None:
        now = self._clock()
        taken, self._last = now - self._last, now
        self._pace = taken if self._pace is None else (1 - RECENT) * self._pace + RECENT * taken
        self._done += 1
        if self._bar is not None and self._task is not None:
            left = f"{duration(self.left_s)} left" if self.left_s is not None else ""
            self._bar.update(self._task, completed=self._done, left=left)
