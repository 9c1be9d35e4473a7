"""metrics.jsonl: no row lost, none doubled."""

from pathlib import Path

from coderl_tasks.journal.atomic import read_rows
from coderl_tasks.journal.run_directory import MetricsLog, metrics_rows

BASELINE: dict[str, object] = {"step": -1, "eval/name": "baseline", "eval/mean_correct": 0.2}


def step_row(step: int, loss: float = 0.0) -> dict[str, object]:
    return {"step": step, "mean_reward": 0.5, "loss": loss}


def eval_row(step: int, name: str = "") -> dict[str, object]:
    return {"step": step, "eval/name": name or f"step-{step:06d}", "eval/mean_correct": 0.3}


def test_a_row_of_the_same_step_replaces(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(BASELINE)
    for row in (step_row(0), step_row(1), eval_row(1), step_row(1, 0.75), eval_row(1, "final")):
        log.append(row)
    assert read_rows(log.path) == [BASELINE, step_row(0), step_row(1, 0.75), eval_row(1, "final"), eval_row(1)]


def test_a_late_row_goes_to_its_place(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for row in (step_row(0), step_row(1), BASELINE, eval_row(0)):
        log.append(row)
    assert read_rows(log.path) == [BASELINE, step_row(0), eval_row(0), step_row(1)]
    assert [row["step"] for row in metrics_rows(log.path)] == [-1, 0, 0, 1]


def test_reconcile_follows_the_commits(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for row in (BASELINE, step_row(0), step_row(1), eval_row(1), step_row(2), eval_row(2)):
        log.append(row)
    log.reconcile([step_row(0), step_row(1, 0.25)])
    assert read_rows(log.path) == [BASELINE, step_row(0), step_row(1, 0.25), eval_row(1)]
    log.reconcile([step_row(step) for step in range(4)])
    assert [row["step"] for row in read_rows(log.path)] == [-1, 0, 1, 1, 2, 3]
    before = log.path.stat().st_mtime_ns
    log.reconcile([step_row(step) for step in range(4)])
    assert log.path.stat().st_mtime_ns == before


def test_reading_without_a_torn_last_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert metrics_rows(path) == []
    rows: list[dict[str, object]] = [BASELINE, {"step": 0, "mean_reward": 1, "loss": None}, step_row(1, 0.5)]
    log = MetricsLog(path)
    for row in rows:
        log.append(row)
    path.open("a").write('{"step": 2, "mea')
    assert metrics_rows(path) == rows
