"""Steps as OpenTelemetry spans, received by a small collector that decodes what a real one is sent."""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coderl_tasks.insight import trackers
from coderl_tasks.insight.logging import setup_logging
from coderl_tasks.services.supervisor import free_port

pytest.importorskip("opentelemetry.sdk.trace", reason="no OpenTelemetry SDK: pip install 'coderl[otel]'")
collector_protocol = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="no OTLP: pip install 'coderl[otel]'"
)

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
SECONDS = {"time_sample_s": 4.0, "time_score_s": 0.0, "time_train_s": 1.5, "time_save_s": 0.25, "time_step_s": 6.0}
ROW = {"mean_reward": 0.5, "groups_total": 8, "loss": None, "act": "told", **SECONDS}


class Collector(ThreadingHTTPServer):
    """Takes spans on a port of 127.0.0.1; with `answers` cleared it takes connections and never answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[tuple[str, Any]] = []
        self.answers = threading.Event()
        self.answers.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Collector  # pyrefly: ignore[bad-override-mutable-attribute]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.answers.wait()
        self.server.received.append((self.path, collector_protocol.ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """No line per request on the test's output."""


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.answers.set()
            collector.shutdown()
            thread.join()


def values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def test_a_step_is_a_span_with_its_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv(ENDPOINT, collector.url)
        with setup_logging(tmp_path / "run") as run:
            run.log_metrics({"eval/mean_correct": 0.25}, step=-1)
            for step in range(2):
                run.log_metrics(ROW, step=step)
    assert {path for path, _ in collector.received} == {"/v1/traces"}
    resources = [resource for _, request in collector.received for resource in request.resource_spans]
    assert {values(each.resource.attributes)["service.name"] for each in resources} == {"coderl"}
    sent = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    steps = [span for span in sent if span.name == "step"]
    assert [(span.parent_span_id, values(span.attributes)["step"]) for span in steps] == [(b"", 0), (b"", 1)]
    told = {key: value for key, value in ROW.items() if value is not None}
    assert values(steps[0].attributes) == {"run": "run", "step": 0, **told}
    for step_span in steps:
        phases = [span for span in sent if span.parent_span_id == step_span.span_id]
        assert {span.trace_id for span in phases} == {step_span.trace_id}
        lasted = {span.name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in phases}
        assert lasted == {"sample": 4.0, "train": 1.5, "save": 0.25}  # scoring: an earlier process did it
        first, *rest = sorted(phases, key=lambda span: span.start_time_unix_nano)
        assert [span.name for span in (first, *rest)] == ["sample", "train", "save"]
        assert step_span.start_time_unix_nano < first.start_time_unix_nano
        assert rest[-1].end_time_unix_nano == step_span.end_time_unix_nano
    assert len(sent) == 8


def test_recorded_steps_are_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with setup_logging(tmp_path) as run:
        run.log_metrics(ROW, step=0)
    with collecting() as collector:
        monkeypatch.setenv(ENDPOINT, collector.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
        with setup_logging(tmp_path) as run:
            run.log_metrics(ROW, step=1)
    [(_, request)] = collector.received
    [resource] = request.resource_spans
    assert values(resource.resource.attributes)["service.name"] == "ours"
    named = [(span.name, values(span.attributes).get("step")) for span in resource.scope_spans[0].spans]
    assert [step for name, step in named if name == "step"] == [1]


@pytest.mark.parametrize("hangs", [False, True])
def test_a_collector_that_is_down_or_hangs_costs_a_line(
    hangs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trackers, "FLUSH_S", 1.0)
    with collecting() as collector:
        collector.answers.clear()
        monkeypatch.setenv(ENDPOINT, collector.url if hangs else f"http://127.0.0.1:{free_port()}")
        with setup_logging(tmp_path) as run:
            for step in range(20):
                run.log_metrics(ROW, step=step)
    lines = [record.message for record in caplog.records if record.name == "coderl_tasks.insight.spans"]
    assert len(lines) == 1 and lines[0].startswith("the OpenTelemetry collector ")
    assert lines[0] in (tmp_path / "logs.log").read_text()


@pytest.mark.parametrize(
    ("variables", "missing", "said"),
    [
        ({}, False, None),
        ({ENDPOINT: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}, False, None),
        ({ENDPOINT: "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"}, False, None),
        ({ENDPOINT: "http://127.0.0.1:1"}, True, f"{ENDPOINT} is set, but no spans are sent without: pip install"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True, "OTEL_TRACES_EXPORTER is set, but no spans are sent without: pip"),
        ({ENDPOINT: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False, "OTLP over http/protobuf"),
        ({ENDPOINT: "http://127.0.0.1:1", "OTEL_BSP_MAX_QUEUE_SIZE": "0"}, False, "variable is wrong ("),
    ],
)
def test_what_the_environment_asks_for(
    variables: dict[str, str],
    missing: bool,
    said: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if missing:
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    threads = threading.active_count()
    with caplog.at_level(logging.WARNING), setup_logging(tmp_path):
        assert threading.active_count() == threads  # none that sends
    lines = [record.message for record in caplog.records if record.name == "coderl_tasks.insight.spans"]
    assert [said in line for line in lines] == [True] if said else lines == []
