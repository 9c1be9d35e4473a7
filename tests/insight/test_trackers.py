"""W&B and trackio: what is installed, what is sent, and that a row is there once however often a run is killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coderl_tasks.errors import ConfigError
from coderl_tasks.insight.logging import setup_logging
from coderl_tasks.insight.trackers import Tracker, directory_id
from coderl_tasks.journal.atomic import read_rows
from coderl_tasks.settings.families import Trackers
from tests.insight.recorded_runs import ROW

NO_TRACKIO = "trackio is not installed: pip install 'coderl[trackio]'"
STEPS = 12
# A run as the flow makes it: reconciled rows first, then the steps that are missing, the evaluations that are due.
RUN = f"""
import sys, time
from pathlib import Path
from coderl_tasks.insight.logging import setup_logging
from coderl_tasks.journal.run_directory import metrics_rows
from coderl_tasks.settings.families import Trackers

folder = Path(sys.argv[1])
done = len(metrics_rows(folder / "metrics.jsonl"))
with setup_logging(folder, Trackers(trackio="kills", name="run"), config={{"seed": 3}}) as run:
    run.log_metrics({{"eval/name": "baseline", "eval/mean_correct": 0.25}}, step=-1)
    for step in range(max(0, done - 1), {STEPS}):
        reward = None if step == 5 else step / 100
        run.log_metrics({{"mean_reward": reward, "n_datums": step, "act": "told" if step == 7 else None}}, step=step)
        time.sleep(0.1)
    run.log_metrics({{"eval/name": "final", "eval/mean_correct": 0.5}}, step={STEPS} - 1)
"""
# What trackio holds of every run of the project, in its order.
READ = """
import json
from trackio import Api
from trackio.sqlite_storage import SQLiteStorage
runs = [(run.name, run.id, run.config) for run in Api().runs("kills")]
rows = [SQLiteStorage.get_logs("kills", name, run_id=key) for name, key, _ in runs]
print("result:" + json.dumps([[name, config, found] for (name, _, config), found in zip(runs, rows)]))
"""


@pytest.mark.parametrize("package", ["wandb", "trackio"])
def test_a_missing_package_is_a_configuration_error(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ConfigError, match=rf"^trackers\.{package} is set but .* pip install 'coderl\[{package}\]'$"
    ) as told:
        setup_logging(tmp_path / "run", Trackers(**{package: "p"}))
    assert "\n" not in str(told.value) and not (tmp_path / "run" / "logs.log").exists()


def test_wandb_offline_keeps_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with setup_logging(tmp_path / "run", Trackers(wandb="p"), config={"seed": 0}) as run:
        run.log_metrics(ROW, step=0)
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))


class Lacking(Tracker):
    """Keeps its rows in a list, and says that it lacks `missing` of the rows of earlier starts."""

    def __init__(self, missing: Sequence[int]) -> None:
        super().__init__()
        self.missing = missing
        self.rows: list[dict[str, Any]] = []
        self.ended: bool | None = None

    def _sent_before(self, rows: Sequence[dict[str, Any]]) -> set[tuple[int, bool, str]]:
        return super()._sent_before([row for row in rows if row["step"] not in self.missing])

    def _send(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def finish(self, failed: bool) -> None:
        self.ended = failed


def test_recorded_rows_are_sent_where_they_are_missing_and_nowhere_else(tmp_path: Path) -> None:
    evaluation = {"eval/name": "step-000002", "eval/mean_correct": 0.5}
    with setup_logging(tmp_path) as run:
        for step in range(3):
            run.log_metrics(ROW, step=step)
        run.log_metrics(evaluation, step=2)
    recorded, has_all, lacks = read_rows(tmp_path / "metrics.jsonl"), Lacking([]), Lacking([1])
    with pytest.raises(RuntimeError), setup_logging(tmp_path) as run:
        run.track(has_all, recorded)
        run.track(lacks, recorded)
        run.log_metrics(evaluation, step=2)  # as a run does that goes on where an evaluation is due
        run.log_metrics(ROW, step=3)
        raise RuntimeError("sandbox gone")
    assert [row["step"] for row in has_all.rows] == [3]
    assert [row["step"] for row in lacks.rows] == [1, 3]
    assert has_all.ended is lacks.ended is True


def child(tmp_path: Path, code: str, *words: str) -> subprocess.Popen[str]:
    # trackio reads TRACKIO_DIR as it is imported: a process of its own.
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "TRACKIO_STORAGE_MODE": "sqlite"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def output(process: subprocess.Popen[str]) -> str:
    out, problems = process.communicate()
    assert process.returncode == 0, problems
    return out


def tracked(tmp_path: Path) -> list[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """Each trackio run: its name, its settings and its rows without their times."""
    [line] = [line for line in output(child(tmp_path, READ)).splitlines() if line.startswith("result:")]
    return [
        (name, config, [{key: row[key] for key in row if key != "timestamp"} for row in rows])
        for name, config, rows in json.loads(line.removeprefix("result:"))
    ]


def recorded_rows(folder: Path) -> list[dict[str, Any]]:
    return [{key: row[key] for key in row if row[key] is not None} for row in read_rows(folder / "metrics.jsonl")]


def test_trackio_has_every_row_once_however_often_the_run_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason=NO_TRACKIO)
    folder, draw = tmp_path / "runs" / "nano", random.Random(0)
    for reached in (1, 5, 9):
        process = child(tmp_path, RUN, str(folder))
        while len(read_rows(folder / "metrics.jsonl")) < reached:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        time.sleep(draw.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    output(child(tmp_path, RUN, str(folder)))
    [(name, config, rows)] = tracked(tmp_path)  # one run
    assert name == f"run-{directory_id(folder)[:6]}" and config["seed"] == 3
    assert len(rows) == STEPS + 2

    def in_order(rows: list[dict[str, Any]]) -> list[str]:
        return sorted(json.dumps(row, sort_keys=True) for row in rows)

    assert in_order(rows) == in_order(recorded_rows(folder))


def test_trackio_follows_a_run_whose_steps_were_removed(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason=NO_TRACKIO)
    output(child(tmp_path, RUN, str(tmp_path / "nano")))
    metrics = tmp_path / "nano" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:4]))
    output(child(tmp_path, RUN.replace("step / 100", "step / 10"), str(tmp_path / "nano")))
    [(_, _, rows)] = tracked(tmp_path)
    assert sorted(row["mean_reward"] for row in rows if "mean_reward" in row) == [
        *(0.0, 0.01, 0.02),
        *(step / 10 for step in range(3, STEPS) if step != 5),
    ]


def test_a_project_that_trackio_refuses_is_named(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason=NO_TRACKIO)
    code = """
import sys
from coderl_tasks.errors import ConfigError
from coderl_tasks.insight.logging import setup_logging
from coderl_tasks.settings.families import Trackers
try:
    setup_logging(sys.argv[1], Trackers(trackio="registry-x"))
except ConfigError as error:
    print(f"refused:{error}")
"""
    assert "refused:trackers.trackio=registry-x: " in output(child(tmp_path, code, str(tmp_path / "run")))
