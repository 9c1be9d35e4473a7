"""A run on the terminal while it goes on."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from coderl_tasks.cli import main
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
