"""Metrics for Prometheus, at CODERL_METRICS: [HOST:]PORT (by default on 127.0.0.1), or the path of a folder, in which
each process keeps a file NAME-PID.prom. A run has those of its newest step (`insight.trackers`), `coderl up` those of
its workers and of their runs."""

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from coderl_tasks.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

VARIABLE = "CODERL_METRICS"
LAST_PORT, REFRESH_S = 65535, 15.0
logger = logging.getLogger(__name__)
Collect = Callable[[], "Iterable[Metric]"]


class Endpoint:
    """Serves what `collect` returns, in threads of its own, until it is closed. Raises ConfigError for an address that
    cannot be used, or a port that is taken."""

    def __init__(self, address: str, collect: Collect) -> None:
        from prometheus_client import start_http_server

        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > LAST_PORT:
            raise ConfigError(f"{VARIABLE}={address}: it is [HOST:]PORT, such as 9464, or the path of a folder")
        try:
            self._server, self._thread = start_http_server(int(port), host or "127.0.0.1", registry_of(collect))
        except OSError as error:
            raise ConfigError(f"{VARIABLE}={address}: {error.strerror}: choose another port") from error

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


def published(address: str, name: str, collect: Collect) -> Endpoint | TextFile:
    if "/" in address:
        return TextFile(Path(address) / f"{name}-{os.getpid()}.prom", collect)
    return Endpoint(address, collect)


def gauge(
    name: str, words: str, value: float | Mapping[str, float], labels: Mapping[str, str], by: str = "by"
) -> "Metric":
    """A gauge of one value, or of one for each value of the label `by`."""
    from prometheus_client.core import GaugeMetricFamily

    values = {(key,): number for key, number in value.items()} if isinstance(value, Mapping) else {(): value}
    names = [*labels, by] if isinstance(value, Mapping) else [*labels]
    family = GaugeMetricFamily("coderl_" + re.sub(r"\W", "_", name), words, labels=names)
    for key, number in values.items():
        family.add_metric([*labels.values(), *key], number)
    return family


@contextmanager
def publishing(name: str, collect: Collect) -> Iterator[dict[str, str]]:
    """Publishes what `collect` returns while the block lasts, if VARIABLE asks for it. Yields the environment of other
    processes that are published with it. ConfigError if the address cannot be used."""
    address = os.environ.get(VARIABLE)
    with ExitStack() as stack:
        others: dict[str, str] = {}
        if address and "/" not in address:  # a port is one process's: the others keep files, which it shows too
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="coderl-metrics-")))
            others, own = {VARIABLE: str(folder)}, collect
            collect = lambda: [*own(), *of_files(folder)]  # noqa: E731
        if address:
            stack.callback(published(address, name, collect).close)
        yield others


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
