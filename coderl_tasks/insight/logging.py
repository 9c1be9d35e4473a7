"""Where a run's numbers go: metrics.jsonl, logs.log, and Weights & Biases, trackio or OpenTelemetry when asked for.

logs.log also holds what metrics cannot: each group's rewards, whatever other modules log, such as what Tinker answered,
and what the console says (`runtime/display.py`), which is kept until there is a run directory (`early_lines`).
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import polars as pl

from coderl_tasks.insight.shown_metrics import line_texts
from coderl_tasks.insight.tables import duration
from coderl_tasks.insight.trackers import TRACKERS, PrometheusTracker, StepSpans, Tracker, import_tracker
from coderl_tasks.insight.warning_signs import Notice, Watch
from coderl_tasks.journal.atomic import read_rows, require_own
from coderl_tasks.journal.run_directory import MetricsLog, RunDirectory, is_eval_row
from coderl_tasks.paths import private_folder
from coderl_tasks.policy.step_metrics import group_repeats
from coderl_tasks.settings import TrainSettings
from coderl_tasks.settings.families import Trackers
from coderl_tasks.untrusted_text import _OneLine, printable

Sink = Callable[[dict[str, Any]], None]
EVALUATED = {
    "mean_reward": "reward {:.3f}", "n": "n {}", "format_rate": "format {:.0%}", "truncated_rate": "truncated {:.0%}",
}  # fmt: skip
"""What the line of an evaluation says after Pass@1, by the metric."""


def step_line(row: Mapping[str, Any], steps: int | None = None, left_s: float | None = None) -> str:
    """One row of metrics.jsonl, of a step or an evaluation, as a compact line."""
    if not is_eval_row(dict(row)):
        left = [] if left_s is None else [f"{duration(left_s)} left"]
        return "  ".join([f"step {row['step']:>4}" + (f"/{steps}" if steps else ""), *line_texts(row), *left])
    name = row.get("eval/name") or ("baseline" if row["step"] == -1 else f"step {row['step']}")
    interval = "" if row.get("eval/ci_low") is None else f" [{row['eval/ci_low']:.1%}, {row['eval/ci_high']:.1%}]"
    parts = [f"evaluation {name}", f"Pass@1 {row['eval/mean_correct']:.1%}{interval}"]
    parts += [form.format(value) for key, form in EVALUATED.items() if (value := row.get(f"eval/{key}")) is not None]
    return "  ".join([*parts, *([f"infra errors {errors}"] if (errors := row.get("eval/infra_errors")) else [])])


class _EarlyLines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: deque[logging.LogRecord] = deque(maxlen=1000)  # the newest

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def early_lines() -> Iterator[None]:
    """Keeps what is logged in the block before a run's logs.log is open, for that."""
    package = logging.getLogger("coderl_tasks")
    if any(isinstance(handler, _EarlyLines) for handler in package.handlers):  # a flow in a command, which has begun it
        yield
        return
    early, level = _EarlyLines(), package.level
    package.addHandler(early)
    if package.getEffectiveLevel() > logging.INFO:
        package.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.removeHandler(early)
        package.setLevel(level)


class WarningLines(logging.Handler):
    """Warnings as bare lines, handed to `say`, but for what a run logs for itself (logger `coderl_tasks`)."""

    def __init__(self, say: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(lambda record: record.name != "coderl_tasks")
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(printable(record.getMessage()))


class RunLogger:
    """Logs one run; leaving it closes logs.log and the trackers' runs. Made by `setup_logging`."""

    def __init__(self, logger: logging.Logger, handler: logging.Handler, sink: Sink, watch: Watch | None) -> None:
        self.log, self._handler, self._sink, self._watch = logger, handler, sink, watch
        self._trackers: list[Tracker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.log.error("ended by %s: %s", type(error).__name__, error)
        self.close(failed=error is not None)

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> list[Notice]:
        """Record one row, of a step or an evaluation (`eval/...`; step -1 is the baseline); what is off since it, or is
        over. A row of the same step and kind replaces the earlier one: a step done again after a crash counts once."""
        row = {"step": step, **metrics}
        self._sink(row)  # first: the file is what a resumed run reads, the log and trackers are for people
        self.log.info("%s", step_line(row))
        for tracker in self._trackers:
            tracker.log(row)
        acts = [Notice(f"step {step}: act: {row['act']}", True)] if row.get("act") else []
        return self._noted([*(self._watch.add(row) if self._watch is not None else []), *acts])

    def reminders(self) -> list[Notice]:
        """What was off when the run was stopped, for people, and in logs.log."""
        return self._noted([Notice(f"still so: {text}", True) for text in self._watch.still()] if self._watch else [])

    def _noted(self, notices: list[Notice]) -> list[Notice]:
        for notice in notices:
            self.log.log(logging.WARNING if notice.is_warning else logging.INFO, "%s", notice.text)
        return notices

    def log_groups(self, scored: pl.DataFrame, clone_groups: int) -> None:
        """Logs the rewards of each group of a step (`scored`: a row per completion), and warns of what the update left
        out. In `clone_groups` groups all completions are the same."""
        clone_sizes: dict[int, int] = {}
        if clone_groups:  # which these are takes a pass over every token
            clone_sizes = dict(group_repeats(scored).filter("clones").select("group_index", "n").iter_rows())
        reward, has_reward = pl.col("reward"), pl.col("reward").is_not_null()
        groups = scored.group_by("group_index", maintain_order=True).agg(
            pl.col("step", "problem_id").first(),
            rewards=reward,
            graded=reward.drop_nulls(),
            no_logprobs=pl.col("logprobs").is_null().sum(),
            quarantined=(~has_reward & pl.col("suspicion").is_not_null()).sum(),  # suspected of gaming the tests
            has_signal=pl.col("trained").any(),
        )
        for group in groups.iter_rows(named=True):
            place = f"step {group['step']} group {group['group_index']} {group['problem_id']}"
            rewards, graded, no_logprobs = group["rewards"], group["graded"], group["no_logprobs"]
            listed = " ".join("–" if reward is None else f"{reward:.2f}" for reward in rewards)
            self.log.info("%s rewards %s", place, listed)
            # A reward is null for one of three reasons: no log-probabilities to train on, quarantined, or not graded.
            if ungraded := len(rewards) - len(graded) - no_logprobs - group["quarantined"]:
                self.log.warning("%s: %d of %d completions could not be graded", place, ungraded, len(rewards))
            if no_logprobs:
                left_out = "%s: %d of %d samples left out, no usable log-probabilities"
                self.log.warning(left_out, place, no_logprobs, len(rewards))
            if n := clone_sizes.get(group["group_index"]):
                self.log.warning("%s: all %d completions are the same, token for token: clones", place, n)
            if not group["has_signal"]:  # the update leaves a group out for one of two reasons
                why = f"all rewards are {graded[0]:.2f}" if len(graded) > 1 else "fewer than two graded completions"
                self.log.warning("%s: skipped, %s", place, why)

    def track(self, tracker: Tracker, recorded: list[dict[str, Any]]) -> None:
        """Send further rows to `tracker` too, and those of `recorded` that it lacks."""
        self._trackers.append(tracker)
        tracker.resume(recorded)

    def close(self, failed: bool = False) -> None:
        """End the trackers' runs and close logs.log. Closing twice is fine."""
        try:
            while self._trackers:
                self._trackers.pop().finish(failed)
        finally:
            # The package's logger outlives this run: the next run in the process would write to this logs.log too.
            self.log.removeHandler(self._handler)
            self._handler.close()


def run_logger(settings: TrainSettings, directory: RunDirectory) -> RunLogger:
    advise, config = settings.steer != "off", directory.config
    return setup_logging(directory.path, settings.trackers, config, directory.metrics.append, advise=advise)


def setup_logging(
    log_dir: Path | str,
    trackers: Trackers | None = None,
    config: Mapping[str, Any] | None = None,
    sink: Sink | None = None,
    *,
    advise: bool = False,
) -> RunLogger:
    """Opens logs.log and the trackers of the run in `log_dir` (created if missing); returns the run's logger, whose
    owner closes it. It sends each row of metrics to `sink` (default: appends it to metrics.jsonl) and to all trackers:
    those of which `trackers` names a project (ConfigError if the package is missing), and those that the environment
    names. Trackers also get recorded rows that they lack. With `advise` it warns of problems that rows show, recorded
    ones too."""
    folder = private_folder(Path(log_dir))
    trackers = trackers or Trackers()
    projects = {name: project for name in TRACKERS if (project := getattr(trackers, name)) is not None}
    for name in projects:
        import_tracker(name)  # raises before a handler is added, so that a missing package leaves nothing behind
    require_own(folder / "logs.log")  # refuses a link, which could lead to any file
    handler = logging.FileHandler(folder / "logs.log", encoding="utf-8")
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    handler.setLevel(logging.INFO)
    # Not the root logger: libraries' records are not about this run, and their levels must not change.
    package = logging.getLogger("coderl_tasks")
    for early in list(package.handlers):
        if isinstance(early, _EarlyLines):  # lines logged before logs.log was open come first in it
            while early.records:
                handler.handle(early.records.popleft())
            package.removeHandler(early)  # the next run in this process must not get this run's lines
    package.addHandler(handler)
    if package.getEffectiveLevel() > logging.INFO:  # a lower level was set on purpose, and stays
        package.setLevel(logging.INFO)
    rows, tracked_config = read_rows(folder / "metrics.jsonl"), config or {}
    watch = Watch(tracked_config, rows) if advise else None
    run = RunLogger(package, handler, sink or MetricsLog(folder / "metrics.jsonl").append, watch)
    if config is not None:
        package.info("settings: %s", ", ".join(f"{key}={value!r}" for key, value in config.items()))
    try:
        for name, project in projects.items():
            run.track(TRACKERS[name](project, trackers.name, tracked_config, folder), rows)
        for tracker in (StepSpans.of_environment(folder.name), PrometheusTracker.of_environment(folder)):
            if tracker is not None:  # None: the environment asks for none
                run.track(tracker, rows)
    except BaseException:  # a tracker refused: end those that were opened before it
        run.close(failed=True)
        raise
    return run
