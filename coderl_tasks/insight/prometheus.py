"""Metrics for Prometheus, of a run or of `coderl up`: at CODERL_METRICS ([HOST:]PORT, by default on 127.0.0.1), or,
where that is a folder's path, in a file RUN-PID.prom there.

A run's endpoint has each number of its newest step as a gauge named as its column of metrics.jsonl
(`coderl_mean_reward`); columns such as `sandbox_faults/ADDRESS` are one with the label `server`. Beside them are the
tokens of all steps, the time of the last commit, and whether each sandbox is up. The endpoint of `coderl up` has its
pool's flow runs by state, its workers, how many runs were begun again, and the metrics of the runs that it works on.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

from coderl_tasks.errors import ConfigError
from coderl_tasks.grading.client import SERVER_STATES, SLOW, UP
from coderl_tasks.insight.trackers import Tracker
from coderl_tasks.journal.atomic import Row
from coderl_tasks.journal.ledger import METRICS
from coderl_tasks.journal.run_directory import is_eval_row, row_identity

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

VARIABLE = "CODERL_METRICS"
LAST_PORT, REFRESH_S = 65535, 15.0
logger = logging.getLogger(__name__)
Collect = Callable[[], "Iterable[Metric]"]


class Endpoint:
    """Serves what `collect` returns, in threads of its own, until it is closed."""

    def __init__(self, address: str, collect: Collect) -> None:
        """Raises ConfigError for an address that cannot be used, or a port that is taken."""
        from prometheus_client import start_http_server

        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > LAST_PORT:
            raise ConfigError(f"{VARIABLE}={address}: it is [HOST:]PORT, such as 9464, or the path of a folder")
        try:
            self._server, self._thread = start_http_server(int(port), host or "127.0.0.1", registry_of(collect))
        except OSError as error:
            raise ConfigError(f"{VARIABLE}={address}: {error.strerror}: choose another port") from error
        self.port = self._server.server_port

    def refresh(self) -> None:
        """Nothing: who asks gets what there is then."""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class TextFile:
    """A file of what `collect` returns, written anew every REFRESH_S and by `refresh`, until it is closed."""

    def __init__(self, path: Path, collect: Collect) -> None:
        self._path, self._registry, self._has_warned = path, registry_of(collect), False
        self._closed, self._one_at_a_time = threading.Event(), threading.Lock()
        threading.Thread(target=self._refresh_on, name="metrics", daemon=True).start()

    def refresh(self) -> None:
        from prometheus_client import write_to_textfile

        with self._one_at_a_time:
            if self._closed.is_set():
                return
            try:
                write_to_textfile(str(self._path), self._registry)  # atomic
            except OSError as error:  # a run of days must not end for it
                if not self._has_warned:
                    logger.warning("no metrics for Prometheus: %s", error)
                self._has_warned = True

    def _refresh_on(self) -> None:
        while not self._closed.wait(REFRESH_S):
            self.refresh()

    def close(self) -> None:
        with self._one_at_a_time:
            self._closed.set()
            self._path.unlink(missing_ok=True)


def registry_of(collect: Collect) -> "CollectorRegistry":
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector

    class Collected(Collector):
        def collect(self) -> "Iterable[Metric]":
            return collect()

    registry = CollectorRegistry()
    registry.register(Collected())
    return registry


class RunEndpoint(Tracker):
    """The endpoint of the run in `folder`."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__()
        run, self._metrics_file = folder.name, folder / "metrics.jsonl"
        self._labels = {"run": run}
        self._row: Row = {}
        self._tokens = dict.fromkeys(METRICS, 0)
        self._committed_at = 0.0
        if "/" in address:
            self._out: Endpoint | TextFile = TextFile(Path(address) / f"{run}-{os.getpid()}.prom", self._collect)
        else:
            self._out = Endpoint(address, self._collect)

    @classmethod
    def of_environment(cls, folder: Path) -> Self | None:
        """None without the variable. An address that cannot be used is a warning: a run of days must not end for it."""
        address = os.environ.get(VARIABLE)
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
            yield gauge(
                "last_commit_timestamp_seconds", "When the last step was committed.", self._committed_at, self._labels
            )
        tokens = CounterMetricFamily("coderl_tokens", "Tokens of all steps.", labels=["run", "kind"])
        for kind, number in self._tokens.items():
            tokens.add_metric([self._labels["run"], kind.removeprefix("tokens_")], number)
        yield tokens
        by_server: dict[str, dict[str, float]] = {}
        for column, value in self._row.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            name, _, server = column.partition("/")
            if server:
                by_server.setdefault(f"{name}_by_server", {})[server] = value
            else:
                yield gauge(name, f"`{name}` of the newest step, as in metrics.jsonl.", value, self._labels)
        by_server["sandbox_up"] = {
            url.partition("//")[2]: state in (UP, SLOW) for url, state in dict(SERVER_STATES).items()
        }
        for name, values in by_server.items():
            yield gauge(name, f"`{name}`, for each server.", values, self._labels, "server")


def gauge(
    name: str, words: str, value: float | Mapping[str, float], labels: Mapping[str, str], by: str = "by"
) -> "Metric":
    """A gauge of one value, or of one for each value of the label `by`."""
    from prometheus_client.core import GaugeMetricFamily

    name = "coderl_" + re.sub(r"\W", "_", name)
    if isinstance(value, Mapping):
        family = GaugeMetricFamily(name, words, labels=[*labels, by])
        for key, number in value.items():
            family.add_metric([*labels.values(), key], number)
        return family
    family = GaugeMetricFamily(name, words, labels=[*labels])
    family.add_metric([*labels.values()], value)
    return family


@contextmanager
def endpoint(collect: Collect) -> Iterator[Path | None]:
    """An endpoint while the block lasts, if the variable asks for one, with what is in the files of a folder too, which
    it yields. ConfigError if its address cannot be used."""
    address = os.environ.get(VARIABLE)
    if not address:
        yield None
        return
    with TemporaryDirectory(prefix="coderl-metrics-") as name, ExitStack() as stack:
        folder = Path(name)
        stack.callback(Endpoint(address, lambda: [*collect(), *of_files(folder)]).close)
        yield folder


def of_files(folder: Path) -> "Iterable[Metric]":
    """The metrics in the files of a folder that processes of this machine keep there, each metric once."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, Metric] = {}
    for file in sorted(folder.glob("*.prom")):
        if not Path("/proc", file.stem.rpartition("-")[2]).exists():  # killed
            file.unlink(missing_ok=True)
            continue
        try:
            text = file.read_text()
        except FileNotFoundError:  # its run has just ended
            continue
        for metric in text_string_to_metric_families(text):
            if metric.name in found:
                found[metric.name].samples += metric.samples
            else:
                found[metric.name] = metric
    return found.values()
