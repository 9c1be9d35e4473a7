"""OpenTelemetry: a span per step, with a child span per phase and the step's metrics as attributes.

The SDK's batch processor sends them in its own thread: no step waits for a collector, or fails if it is down. Spans are
made from the row of metrics.jsonl: the phases' lengths are laid end to end, up to the time of logging. With staleness,
sampling may begin before its step. Each step is a trace, because a trace shows only after its end, days for a run.

Not covered: evaluations, and OpenTelemetry's metrics and logs. Spans that a kill left unsent are lost.
"""

import logging
import os
import threading
import time
from typing import Any, Self, cast

from coderl_tasks.insight.trackers import Tracker
from coderl_tasks.journal.atomic import Row
from coderl_tasks.journal.run_directory import is_eval_row
from coderl_tasks.policy.step_metrics import PHASES

logger = logging.getLogger(__name__)
FLUSH_S = 5.0
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class StepSpans(Tracker):
    """Sends the steps of run `run` as spans. The tracer is its own: Prefect's spans, and others, go where they went."""

    def __init__(self, run: str) -> None:
        super().__init__()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._run = run
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override the name.
        resource = Resource({"service.name": "coderl"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._exporter = _SaysOnce(OTLPSpanExporter())
        self._provider.add_span_processor(BatchSpanProcessor(cast(Any, self._exporter)))
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
        if is_eval_row(row):
            return
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        end = time.time_ns()
        known = {"run": self._run} | {key: value for key, value in row.items() if value is not None}
        plain = str | bool | int | float
        attributes = {key: value if isinstance(value, plain) else str(value) for key, value in known.items()}
        begun = end - _nanoseconds(row.get("time_step_s"))
        # In a context, and so a trace, of its own, whatever is current.
        step = self._tracer.start_span("step", Context(), attributes=attributes, start_time=begun)
        within, phase_end = set_span_in_context(step, Context()), end
        for phase in reversed((*PHASES, "save")):
            if taken := _nanoseconds(row.get(f"time_{phase}_s")):  # 0: an earlier process did it, or it was not due
                self._tracer.start_span(phase, within, start_time=phase_end - taken).end(phase_end)
                phase_end -= taken
        step.end(end)

    def finish(self, failed: bool) -> None:
        # The SDK's shutdown waits for up to 30 s; a collector that hangs is not worth that.
        flushing = threading.Thread(target=self._provider.shutdown, daemon=True)
        flushing.start()
        flushing.join(FLUSH_S)
        if flushing.is_alive():
            self._exporter.say(f"took no more spans within {FLUSH_S:g} s")


class _SaysOnce:
    """An exporter of spans that says once that they are not taken."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        self._said = False

    def export(self, spans: Any) -> Any:
        result = self._exporter.export(spans)
        if result.name != "SUCCESS":
            self.say("does not take spans")
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def say(self, what: str) -> None:
        if not self._said:
            self._said = True
            logger.warning("the OpenTelemetry collector %s; the run goes on without", what)


def _nanoseconds(seconds: float | None) -> int:
    return int((seconds or 0) * 1e9)
