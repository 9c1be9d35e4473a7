import asyncio
import io
import re

import pytest
from rich.console import Console

from coderl_tasks.filtering.rows import RowsProgress
from coderl_tasks.runtime.display import Display, StepProgress, _PhaseProgress

ROW = {"mean_reward": 0.5, "mean_correct": 0.52, "format_rate": 0.98, "groups_total": 8, "groups_skipped": 2}


@pytest.mark.parametrize(
    ("read", "bar"),
    [
        (RowsProgress(0, 0, 0, "hashing"), r"hashing ━+"),
        (RowsProgress(1234, 3_900_000_000, 7_750_000_000), r"reading 1,234 rows ━+.* 3\.9/7\.8 GB \S+ \S+"),
        (RowsProgress(24_974, 10**9, 10**9, "comparing"), r"comparing 24,974 rows ━+ 1\.0/1\.0 GB \S+ 0:00:00"),
    ],
)
def test_the_bar_of_reading_says_what_is_going_on(
    monkeypatch: pytest.MonkeyPatch, read: RowsProgress, bar: str
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(
        "coderl_tasks.runtime.display.Console", lambda: Console(file=shown, force_terminal=True, width=80)
    )
    with Display().reading("reading /a/long/path/of/a/data/set/that/would/leave/no/room/for/a/bar") as on_rows:
        on_rows(read)
    lines = [re.sub(r"\x1b\[[0-9;?]*\w", "", line).strip() for line in re.split(r"[\r\n]+", shown.getvalue())]
    assert re.fullmatch(bar, [line for line in lines if line][-1])


def test_progress_tells_the_time_left_without_a_terminal() -> None:
    ticks = iter([0.0, 0.0, 10.0, 20.0, 60.0])
    out = io.StringIO()
    screen = Console(file=out, width=160)
    with StepProgress(screen, total=10, done=4, clock=lambda: next(ticks)) as progress:
        assert progress.left_s is None
        progress.phase("sampling")
        first = progress.line({"step": 4, **ROW})
        measured = {
            "eval/mean_correct": 0.5,
            "eval/mean_reward": 0.4,
            "eval/ci_low": 0.4,
            "eval/ci_high": 0.6,
            "eval/n": 90,
        }
        line = progress.line({"step": 4, **measured, "eval/truncated_rate": 0.25, "eval/infra_errors": 2})
        assert (
            line == "evaluation step 4  Pass@1 50.0% [40.0%, 60.0%]  reward 0.400  n 90  truncated 25%  infra errors 2"
        )
        progress.line({"step": 5, **ROW})
        assert progress.left_s == pytest.approx(40)
        progress.line({"step": 6, **ROW})
        assert progress.left_s == pytest.approx(3 * (0.8 * 10 + 0.2 * 40))
    assert first.startswith("step    4/10  reward 0.500") and first.endswith("50 s left")
    assert out.getvalue() == ""


def test_a_phase_that_takes_minutes_says_how_many() -> None:
    so_far = _PhaseProgress("profiling", 90.0)
    assert so_far.line(40, 100, 100.0) == "profiling: 40/100"  # which an earlier start had done
    assert so_far.line(40, 100, 110.0) == "profiling: 40/100"
    assert so_far.line(50, 100, 130.0) == "profiling: 50/100, about 2 min left"
    assert so_far.line(99, 100, 400.0) == "profiling: 99/100"


def test_a_phase_in_which_nothing_is_done_yet_says_how_long_it_has_taken() -> None:
    so_far = _PhaseProgress("evaluation baseline", 0.0)
    assert so_far.line(0, 0, 20.0) == "evaluation baseline"
    assert so_far.line(0, 0, 200.0) == "evaluation baseline, after 3 min"
    assert so_far.line(0, 40, 200.0) == "evaluation baseline: 0/40, after 3 min"


async def test_a_step_that_is_long_sampled_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coderl_tasks.runtime.display.LINE_EVERY_S", 0.0)
    monkeypatch.setattr("coderl_tasks.runtime.display.LOOK_EVERY_S", 0.001)
    asked = asyncio.Event()

    def count() -> tuple[int, int]:
        asked.set()
        return 3, 8

    display = Display()
    async with display.bar("step 0: sampling groups", count):
        await asked.wait()
    assert "step 0: sampling groups: 3/8" in capsys.readouterr().out


def test_progress_draws_a_bar_on_a_terminal() -> None:
    out = io.StringIO()
    screen = Console(file=out, width=160, force_terminal=True, color_system=None)
    with StepProgress(screen, total=None) as progress:
        progress.phase("scoring")
        assert "reward 0.500" in progress.line({"step": 0, **ROW})
        assert progress.left_s is None
    assert "scoring" in out.getvalue()
