"""Links from reports, artifacts and the terminal into a viewer that is at work."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from coderl_tasks.insight.record import load_run
from coderl_tasks.insight.report import render_report, step_history_markdown
from coderl_tasks.insight.terminal import view
from coderl_tasks.insight.viewer_link import announced, in_markdown, page_link
from coderl_tasks.journal.run_names import runs_root
from tests.insight.recorded_runs import write_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run where runs of this user lie."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CODERL_HOME", str(tmp_path / "home"))
    return write_run(runs_root() / "a run", steps=2, test_size=4)


def test_without_a_viewer_the_command_is_named(run: Path) -> None:
    assert page_link(run) is None
    assert in_markdown(run) == f"`coderl view '{run}'`"
    with announced(4999):
        assert page_link(run) == "http://127.0.0.1:4999/run/a%20run"
        assert page_link(run, "step", "3") == "http://127.0.0.1:4999/run/a%20run/step/3"
        assert page_link(run.parent / "other" / "place") is None  # of a run that it does not show
        with announced(5999):  # the first one is known
            assert page_link(run) == "http://127.0.0.1:4999/run/a%20run"
    assert page_link(run) is None  # it has ended


def test_links_lead_to_pages(run: Path) -> None:
    command = [sys.executable, "-m", "coderl_tasks.cli", "view", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        origin, _, key = server.stdout.readline().strip().partition("/?key=")
        with httpx.Client(follow_redirects=True, timeout=120) as client:
            client.get(f"{origin}/", params={"key": key})  # it serves, and has said where
            record = load_run(run)
            console = Console(record=True, width=60, file=(run / "screen").open("w"))
            console.print(view(record, "finished"))
            texts = [step_history_markdown(record), render_report(run), console.export_text()]
            links = [set(re.findall(rf"{origin}/run/a%20run[\w/]*", text)) for text in texts]
            assert all(links)
            assert len([link for link in links[0] if "/step/" in link]) > 1  # of the samples
            assert all(key not in text for text in texts)
            assert {client.get(link).status_code for link in set().union(*links)} == {200}
    finally:
        server.terminate()
        server.wait(120)
    assert page_link(run) is None
