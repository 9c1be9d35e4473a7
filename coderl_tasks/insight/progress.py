"""One line per step, and a progress bar with the time left. Without a terminal (a file, a worker's log) lines only."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from coderl_tasks.journal.metrics import is_eval_row

RECENT = 0.2


def step_line(row: Mapping[str, Any], steps: int | None = None, left_s: float | None = None) -> str:
    """One row of metrics.jsonl as a compact line; keys that the row lacks are left out."""
    if is_eval_row(dict(row)):
        return _eval_line(row)
    parts = [f"step {row['step']:>4}" + (f"/{steps}" if steps else "")]
    if row.get("mean_reward") is not None:
        parts.append(f"reward {row['mean_reward']:.3f}")
    parts += _percentages(row, {"mean_correct": "correct", "format_rate": "format", "truncated_rate": "truncated"})
    if row.get("groups_skipped") is not None and row.get("groups_total") is not None:
        parts.append(f"trained on {row['groups_total'] - row['groups_skipped']}/{row['groups_total']} groups")
    if row.get("kl_sample_train") is not None:
        parts.append(f"kl {row['kl_sample_train']:.1e}")
    if row.get("infra_errors"):
        parts.append(f"infra errors {row['infra_errors']}")
    if row.get("samples_skipped"):
        parts.append(f"samples skipped {row['samples_skipped']}")
    if row.get("clone_groups"):
        parts.append(f"groups of clones {row['clone_groups']}")
    parts += _time_parts(row)
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
    parts += _percentages(row, {"eval/format_rate": "format", "eval/truncated_rate": "truncated"})
    if row.get("eval/infra_errors"):
        parts.append(f"infra errors {row['eval/infra_errors']}")
    return "  ".join(parts)


def _percentages(row: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    return [f"{label} {row[key]:.0%}" for key, label in labels.items() if row.get(key) is not None]


def _time_parts(row: Mapping[str, Any]) -> list[str]:
    if row.get("time_step_s") is None:
        return []
    phases = [
        f"{label} {row[key]:.1f}"
        for key, label in (("time_sample_s", "sample"), ("time_score_s", "score"), ("time_train_s", "train"))
        if row.get(key) is not None
    ]
    return [f"{row['time_step_s']:.1f} s" + (f" ({', '.join(phases)})" if phases else "")]


def duration(seconds: float) -> str:
    """A length of time as people say it: 40 s, 12 min, 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def age(seconds: float) -> str:
    """A length of time since something was done: as `duration`, and days from two days on."""
    days = int(seconds // 86_400)
    return f"{days} days" if days >= 2 else duration(max(seconds, 0))


class StepProgress:
    """The training loop's display: `line(row)` is a step's line and moves the bar; a context manager.

    `total` steps in all (None: no end known), `done` of them before this start. The time left is the recent time a step
    (exponentially weighted), as the loop sees it, so evaluations and checkpoints count in.
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
        return step_line(row, self._total, None if self._bar is not None else self.left_s)

    def _count_step(self) -> None:
        now = self._clock()
        taken, self._last = now - self._last, now
        self._pace = taken if self._pace is None else (1 - RECENT) * self._pace + RECENT * taken
        self._done += 1
        if self._bar is not None and self._task is not None:
            left = f"{duration(self.left_s)} left" if self.left_s is not None else ""
            self._bar.update(self._task, completed=self._done, left=left)
