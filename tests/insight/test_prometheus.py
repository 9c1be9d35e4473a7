"""The Prometheus endpoints of a run and of `coderl up`, as a scraper reads them."""

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coderl_tasks.errors import ConfigError
from coderl_tasks.grading.client import SERVER_STATES, SandboxClient
from coderl_tasks.insight.logging import setup_logging
from coderl_tasks.insight.prometheus import VARIABLE, Endpoint, gauge, publishing
from coderl_tasks.insight.trackers import PrometheusTracker
from coderl_tasks.runtime.worker import LostRuns
from coderl_tasks.services.supervisor import free_port

Labelled = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(port: int) -> Labelled:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def row(reward: float | None, tokens: int, **others: object) -> dict[str, object]:
    counts = {f"tokens_{kind}": tokens for kind in ("prompt", "prompt_cached", "completion", "training")}
    return {"mean_reward": reward, "act": "", **counts, **others}


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    port = free_port()
    monkeypatch.setenv(VARIABLE, str(port))
    yield port


async def test_a_run_shows_its_newest_step_and_all_its_tokens_also_after_a_restart(port: int, tmp_path: Path) -> None:
    of_run = frozenset({("run", "first")})
    server = "127.0.0.1:9"
    async with SandboxClient([f"http://{server}"], 1):
        for start in range(2):
            with setup_logging(tmp_path / "first") as logger:
                for step in (2 * start, 2 * start + 1):
                    logger.log_metrics(row(0.25 * step, 100, **{f"sandbox_faults/{server}": step}), step)
                logger.log_metrics({"eval/mean_correct": 0.5}, 2 * start + 1)
                found = scraped(port)
            os.utime(tmp_path / "first" / "metrics.jsonl", (1, 1))
        with setup_logging(tmp_path / "first"):
            resumed = scraped(port)
    assert resumed["coderl_last_commit_timestamp_seconds", of_run] == 1, "a start is no commit"
    assert found["coderl_step", of_run] == 3
    assert found["coderl_mean_reward", of_run] == 0.75
    assert found["coderl_tokens_total", of_run | {("kind", "completion")}] == 400
    assert found["coderl_sandbox_faults_by_server", of_run | {("server", server)}] == 3
    assert found["coderl_sandbox_up", of_run | {("server", server)}] == 1
    assert found["coderl_last_commit_timestamp_seconds", of_run] > 1e9
    with pytest.raises(OSError):  # the run is over
        scraped(port)


def test_a_sandbox_that_is_down_is_seen_while_no_step_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coderl_tasks.insight.prometheus.REFRESH_S", 0.05)
    in_a_file = PrometheusTracker(tmp_path / "run", str(tmp_path))
    in_a_file.resume([{"step": 0, **row(0.5, 1)}])
    monkeypatch.setitem(SERVER_STATES, "http://gone:1", "down")
    monkeypatch.setitem(SERVER_STATES, "http://late:1", "slow")
    (file,) = tmp_path.glob("run-*.prom")
    while 'coderl_sandbox_up{run="run",server="gone:1"} 0.0' not in (text := file.read_text()):
        time.sleep(0.01)
    assert 'coderl_sandbox_up{run="run",server="late:1"} 1.0' in text
    in_a_file.finish(failed=False)
    assert not file.exists()
    port = free_port()
    tracker = PrometheusTracker(tmp_path / "run", f"127.0.0.1:{port}")
    try:
        found = scraped(port)
    finally:
        tracker.finish(failed=False)
    assert found["coderl_sandbox_up", frozenset({("run", "run"), ("server", "gone:1")})] == 0


def test_a_run_goes_on_without_an_endpoint_where_the_port_is_taken(
    port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with publishing("x", lambda: [gauge("x", "x.", 1, {})]), caplog.at_level(logging.WARNING):
        with setup_logging(tmp_path / "run") as logger:
            logger.log_metrics(row(None, 1), 0)
        assert scraped(port) == {("coderl_x", frozenset()): 1}
    assert f"no Prometheus endpoint: CODERL_METRICS={port}: Address already in use: choose another port" in caplog.text


def test_a_run_goes_on_where_its_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING), setup_logging(tmp_path / "run") as logger:
        for step in range(3):
            logger.log_metrics(row(None, 1), step)
    assert caplog.text.count("no metrics for Prometheus: ") == 1


@pytest.mark.parametrize("address", ["9464x", "localhost:", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_one_line(address: str) -> None:
    with pytest.raises(ConfigError, match=r"it is \[HOST:\]PORT"):
        Endpoint(address, list)


def test_up_shows_its_pool_and_the_runs_that_it_works_on(port: int) -> None:
    one, two = frozenset({("run", "one")}), frozenset({("run", "two")})
    lost = LostRuns()
    lost._alive, lost._runs_by_state = 2, {"running": 3}
    with publishing("coderl-up", lost.counted) as environment:
        folder = Path(environment[VARIABLE])
        runs = [PrometheusTracker(Path(name), str(folder)) for name in ("one", "two")]
        for number, run in enumerate(runs):
            run.resume([{"step": number, **row(0.5 + number, 10)}])
        (folder / "killed-4194305.prom").write_text("coderl_step 9\n")  # no process has that number
        found = scraped(port)
        assert not (folder / "killed-4194305.prom").exists()
        runs[0].finish(failed=False)
        after = scraped(port)
    assert (found["coderl_step", one], found["coderl_step", two]) == (0, 1)
    assert (found["coderl_mean_reward", two], found["coderl_tokens_total", two | {("kind", "prompt")}]) == (1.5, 10)
    assert ("coderl_step", one) not in after and after["coderl_step", two] == 1
    assert found["coderl_workers", frozenset()] == 2
    assert found["coderl_flow_runs", frozenset({("state", "running")})] == 3
    assert found["coderl_runs_begun_again", frozenset()] == 0
    assert found["coderl_prefect_up", frozenset()] == 1


def test_up_keeps_a_file_in_a_folder_beside_those_of_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coderl_tasks.insight.prometheus.REFRESH_S", 0.05)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with publishing("coderl-up", LostRuns().counted) as environment:
        assert environment == {}, "runs find the folder themselves"
        while not (files := list(tmp_path.glob("coderl-up-*.prom"))):
            time.sleep(0.01)
        assert "coderl_prefect_up 1.0" in files[0].read_text().splitlines()
    assert list(tmp_path.iterdir()) == []
