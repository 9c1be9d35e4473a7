"""Where a run's rows go beside metrics.jsonl: Weights & Biases, trackio, an OpenTelemetry collector, Prometheus.

What a kill left unsent the next start sends from the file, where the tracker can say what it has. A local trackio can;
of W&B, a trackio server and a collector nobody asks, and there what a kill caught on the way stays missing.

OpenTelemetry gets a span per step, with a child span per phase and the step's metrics as attributes. The SDK's batch
processor sends them in its own thread: no step waits for a collector, or fails if it is down. Spans are made from the
row of metrics.jsonl: the phases' lengths are laid end to end, up to the time of logging. With staleness, sampling may
begin before its step. Each step is a trace, because a trace shows only after its end, days for a run. Not covered:
evaluations, and OpenTelemetry's metrics and logs.
"""

import hashlib
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from coderl_tasks.errors import ConfigError
from coderl_tasks.grading.client import SERVER_STATES, SLOW, UP
from coderl_tasks.insight.prometheus import VARIABLE as METRICS_VARIABLE
from coderl_tasks.insight.prometheus import gauge, published
from coderl_tasks.journal.atomic import Row
from coderl_tasks.journal.ledger import METRICS
from coderl_tasks.journal.run_directory import is_eval_row, row_identity
from coderl_tasks.policy.step_metrics import PHASES

if TYPE_CHECKING:
    from prometheus_client.core import Metric

logger = logging.getLogger("coderl_tasks.insight.spans")  # the name that lines of logs.log carry, in old runs too
FLUSH_S = 5.0
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
Identity = tuple[int, bool, str]


class Tracker(ABC):
    """Takes the rows of one run, each once: a row is known by its step, its kind, and an evaluation's name."""

    def __init__(self) -> None:
        self._sent: set[Identity] = set()

    def resume(self, rows: Sequence[Row]) -> None:
        """Send what the tracker lacks of `rows`, those of metrics.jsonl at the start."""
        self._sent = self._sent_before(rows)
        for row in rows:
            self.log(row)

    def log(self, row: Row) -> None:
        """Send `row` unless it was sent. (An evaluation that is due where a run goes on is logged again.)"""
        identity = row_identity(row)
        if identity not in self._sent:
            self._send(row)
            self._sent.add(identity)

    def _sent_before(self, rows: Sequence[Row]) -> set[Identity]:
        """Which of `rows` earlier starts have sent: all, where the tracker cannot be asked."""
        return set(map(row_identity, rows))

    @abstractmethod
    def _send(self, row: Row) -> None: ...

    @abstractmethod
    def finish(self, failed: bool) -> None: ...


class WandbTracker(Tracker):
    def __init__(self, project: str, name: str | None, config: Mapping[str, Any], folder: Path) -> None:
        super().__init__()
        wandb = import_tracker("wandb")
        # One id per directory, so that a resumed run continues its own history and no other takes it.
        place = {"project": project, "name": name or folder.name, "dir": str(folder), "id": directory_id(folder)}
        self._run = wandb.init(**place, config=dict(config), resume="allow")
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def _send(self, row: Row) -> None:
        self._run.log(row)

    def finish(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class TrackioTracker(Tracker):
    """A trackio run: in TRACKIO_DIR, or where TRACKIO_SPACE_ID or TRACKIO_SERVER_URL say."""

    def __init__(self, project: str, name: str | None, config: Mapping[str, Any], folder: Path) -> None:
        super().__init__()
        self._trackio = import_tracker("trackio")
        # trackio resumes by name alone: two runs of one name would be written into each other.
        own = f"{name or folder.name}-{directory_id(folder)[:6]}"
        try:
            self._run = self._trackio.init(project=project, name=own, config=dict(config), resume="allow", embed=False)
        except ValueError as error:
            raise ConfigError(f"trackers.trackio={project}: {error}") from error

    def _sent_before(self, rows: Sequence[Row]) -> set[Identity]:
        from trackio.sqlite_storage import SQLiteStorage
        from trackio.utils import get_storage_mode

        if self._run.url is not None or get_storage_mode() != "sqlite":
            return super()._sent_before(rows)
        place = {"project": self._run.project, "run": self._run.name, "run_id": self._run.id}
        there = set(map(row_identity, SQLiteStorage.get_logs(**place)))
        if there <= set(map(row_identity, rows)):
            return there
        # Steps that were removed from the run directory, to be trained anew. trackio replaces no row.
        SQLiteStorage.delete_run(**place)
        return set()

    def _send(self, row: Row) -> None:
        # The step is trackio's own column, and a null would be a point of a plot.
        values = {key: value for key, value in row.items() if key != "step" and value is not None}
        self._run.log(values, step=row["step"])

    def finish(self, failed: bool) -> None:
        self._trackio.finish()  # it has no state for a run that failed


TRACKERS: dict[str, type[WandbTracker | TrackioTracker]] = {"wandb": WandbTracker, "trackio": TrackioTracker}
"""By the setting of `settings.trackers` that names their project, which is also the package."""


class StepSpans(Tracker):
    """Sends the steps of run `run` as spans. The tracer is its own: Prefect's spans, and others, go where they went."""

    def __init__(self, run: str) -> None:
        """Raises ImportError without the extra `otel`, ValueError if an OTEL_* variable is wrong."""
        super().__init__()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._run, self._has_warned = run, False
        warn = self._warn  # in Exporter's methods `self` is the exporter

        class Exporter(OTLPSpanExporter):
            def export(self, spans: Any) -> Any:
                result = super().export(spans)
                if result.name != "SUCCESS":  # the run goes on: spans are lost, with a warning
                    warn("does not take spans")
                return result

        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override the name. `finish` shuts it down, so no exit handler.
        resource = Resource({"service.name": "coderl"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(Exporter()))
        self._tracer = self._provider.get_tracer("coderl")

    @classmethod
    def of_environment(cls, run: str) -> Self | None:
        """None where the OTEL_* variables ask for nothing, or for what cannot be had, which is said."""
        exporter = os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
        asked = next((name for name in ENDPOINTS if os.environ.get(name)), None)
        if exporter == "otlp" and asked is None:
            asked = "OTEL_TRACES_EXPORTER"  # to the SDK's default address
        if asked is None or exporter == "none" or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return None
        protocol = next((value for name in PROTOCOLS if (value := os.environ.get(name))), "http/protobuf")
        if exporter not in ("", "otlp") or protocol != "http/protobuf":
            logger.warning("%s is set, but steps are only sent by OTLP over http/protobuf: no spans", asked)
            return None
        try:
            return cls(run)
        except ImportError:
            logger.warning("%s is set, but no spans are sent without: pip install 'coderl[otel]'", asked)
        except ValueError as error:
            logger.warning("%s is set, but no spans are sent: an OTEL_* variable is wrong (%s)", asked, error)
        return None

    def _send(self, row: Row) -> None:
        if is_eval_row(row):  # it has no times
            return
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        end = time.time_ns()
        known = {"run": self._run} | {key: value for key, value in row.items() if value is not None}
        attribute_types = str | bool | int | float
        attributes = {key: value if isinstance(value, attribute_types) else str(value) for key, value in known.items()}
        begun = end - int((row.get("time_step_s") or 0) * 1e9)
        # An empty context makes it the root of a trace of its own, whatever span is current.
        step = self._tracer.start_span("step", Context(), attributes=attributes, start_time=begun)
        within_step, phase_end = set_span_in_context(step, Context()), end
        for phase in reversed((*PHASES, "save")):
            # Only the step's end is known, and how long each phase took: place them one before another from there. A
            # phase without a time was not due, or an earlier process did it.
            if duration_ns := int((row.get(f"time_{phase}_s") or 0) * 1e9):
                self._tracer.start_span(phase, within_step, start_time=phase_end - duration_ns).end(phase_end)
                phase_end -= duration_ns
        step.end(end)

    def finish(self, failed: bool) -> None:
        # The SDK's shutdown waits for up to 30 s; a collector that hangs is not worth that.
        flushing = threading.Thread(target=self._provider.shutdown, daemon=True)
        flushing.start()
        flushing.join(FLUSH_S)
        if flushing.is_alive():
            self._warn(f"took no more spans within {FLUSH_S:g} s")

    def _warn(self, what: str) -> None:
        """Warns once per run: a collector that is down fails every batch."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning("the OpenTelemetry collector %s; the run continues without it", what)


class PrometheusTracker(Tracker):
    """Publishes metrics of the run in `folder`: each number of its newest step as a gauge named as its column of
    metrics.jsonl (`coderl_mean_reward`; columns such as `sandbox_faults/ADDRESS` are one with the label `server`), the
    tokens of all steps, the time of the last commit, and whether each sandbox is up."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__()
        self._metrics_file, self._labels = folder / "metrics.jsonl", {"run": folder.name}
        self._row: Row = {}
        self._tokens, self._committed_at = dict.fromkeys(METRICS, 0), 0.0
        self._out = published(address, folder.name, self._collect)

    @classmethod
    def of_environment(cls, folder: Path) -> Self | None:
        """None without the variable. An address that cannot be used is a warning: a run of days must not end for it."""
        address = os.environ.get(METRICS_VARIABLE)
        if not address:
            return None
        try:
            return cls(folder, address)
        except ConfigError as error:
            logger.warning("no Prometheus endpoint: %s", error)
            return None

    def resume(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._send(row)
        with suppress(FileNotFoundError):  # of a new run
            self._committed_at = self._metrics_file.stat().st_mtime
        self._sent = set(map(row_identity, rows))

    def _send(self, row: Row) -> None:
        if is_eval_row(row):
            return
        self._row, self._committed_at = row, time.time()
        for kind in METRICS:
            self._tokens[kind] += row.get(kind) or 0
        self._out.refresh()

    def finish(self, failed: bool) -> None:
        self._out.close()

    def _collect(self) -> "Iterable[Metric]":
        from prometheus_client.core import CounterMetricFamily

        if self._row:
            words = "When the last step was committed."
            yield gauge("last_commit_timestamp_seconds", words, self._committed_at, self._labels)
        tokens = CounterMetricFamily("coderl_tokens", "Tokens of all steps.", labels=["run", "kind"])
        for kind, number in self._tokens.items():
            tokens.add_metric([self._labels["run"], kind.removeprefix("tokens_")], number)
        yield tokens
        by_server: dict[str, dict[str, float]] = {}
        for column, value in self._row.items():
            if isinstance(value, bool) or not isinstance(value, int | float):  # texts and flags are no gauges
                continue
            name, _, server = column.partition("/")
            if server:
                by_server.setdefault(f"{name}_by_server", {})[server] = value
            else:
                yield gauge(name, f"`{name}` of the newest step, as in metrics.jsonl.", value, self._labels)
        by_server["sandbox_up"] = {  # what this process knows now of each sandbox, without the row
            url.partition("//")[2]: state in (UP, SLOW) for url, state in dict(SERVER_STATES).items()
        }
        for name, values in by_server.items():
            yield gauge(name, f"`{name}`, for each server.", values, self._labels, "server")


def directory_id(folder: Path) -> str:
    """16 hexadecimal digits that stand for a run directory, by its path."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]


def import_tracker(name: str) -> ModuleType:
    """The package of a tracker; ConfigError if it is missing."""
    try:
        return __import__(name)
    except ImportError as error:
        missing = f"trackers.{name} is set but {name} is not installed"
        raise ConfigError(f"{missing}: pip install 'coderl[{name}]'") from error
