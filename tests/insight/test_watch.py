"""A run on the terminal while it goes on."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from coderl_tasks.cli import main
from coderl_tasks.insight.plots import history_panels, with_signal
from coderl_tasks.insight.record import load_run
from coderl_tasks.insight.shown_metrics import SIGNAL
from coderl_tasks.insight.terminal import sparkline, watch_run
from coderl_tasks.journal.run_directory import RunDirectory


def test_a_sparkline_has_a_mark_per_value_or_per_stretch_of_them() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([2.0, None, 2.0]) == "▁ ▁"
    assert sparkline([float(step) for step in range(100)], width=50) == sparkline([2.0 * n for n in range(50)])
    assert sparkline([]) == "" and sparkline([None, None]) == "  "


def test_a_finished_run_is_shown_once(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(run_dir)]) == 0
    said = capsys.readouterr().out
    for part in ("step 30", "groups with signal", "baseline", "final", "step   29", "reward  "):
        assert part in said, said
    assert "…" not in said and "kl " in said
    assert main(["watch", str(run_dir), "--every", "0"]) == 2
    assert main(["watch", str(run_dir.parent / "none")]) == 2


def test_a_run_at_work_is_watched_until_it_ends(tmp_path: Path) -> None:
    console, looks = Console(file=StringIO(), width=100, force_terminal=True), []
    run = RunDirectory.open(tmp_path / "run", {"model_name": "data/nano", "max_steps": 3})
    run.__enter__()

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            run.metrics.append(
                {"step": 0, "mean_reward": 0.25, "groups_total": 8, "groups_skipped": 2, "time_step_s": 4.0}
            )
        else:
            run.__exit__(None, None, None)

    watch_run(tmp_path / "run", console, every_s=0.5, once=False, sleep=sleep)
    assert looks == [0.5, 0.5]
    assert isinstance(console.file, StringIO)
    said = console.file.getvalue()
    assert "step 0 of 3" in said and "step 1 of 3" in said and "8 s left" in said and "75%" in said


def test_a_step_without_a_group_has_no_share_of_groups_with_a_signal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    with RunDirectory.open(path, {"model_name": "data/nano", "max_steps": 4}) as run:
        for step, (total, skipped) in enumerate([(8, 2), (0, 0), (8, 4), (0, 0)]):
            row = {"step": step, "mean_reward": 0.5, "groups_total": total, "groups_skipped": skipped}
            run.metrics.append(row | {"time_step_s": 1.0})
    metrics = load_run(path).metrics
    assert with_signal(metrics)["signal"].to_list() == [0.75, None, 0.5, None]
    [found, _] = history_panels(metrics)[SIGNAL].series
    assert found.known() == [(0, 0.75), (2, 0.5)]
    assert main(["watch", str(path)]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "groups with signal" in line]
    assert line.split()[-4:] == ["75%", "█", "▁", "50%"]
