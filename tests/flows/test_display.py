import asyncio
import io
import re
from uuid import UUID, uuid4

import pytest
from rich.console import Console

from coderl_tasks.filtering.rows import RowsProgress
from coderl_tasks.runtime import display
from coderl_tasks.runtime.display import Display

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


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> io.StringIO:
    """What a Display writes."""
    out = io.StringIO()
    console = Console(file=out, width=160, force_terminal=is_terminal, color_system=None)
    monkeypatch.setattr(display, "Console", lambda: console)
    return out


@pytest.mark.parametrize("is_terminal", [False])
async def test_progress_tells_the_time_left_without_a_terminal(
    screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks, moved = iter([0.0, 10.0, 20.0, 60.0]), list[float]()

    async def created(progress: float, **_: str) -> UUID:
        return await updated(uuid4(), progress)

    async def updated(artifact: UUID, progress: float) -> UUID:
        moved.append(progress)
        return artifact

    monkeypatch.setattr(display, "monotonic", lambda: next(ticks))
    monkeypatch.setattr(display, "acreate_progress_artifact", created)
    monkeypatch.setattr(display, "aupdate_progress_artifact", updated)
    measured = {"eval/mean_correct": 0.5, "eval/mean_reward": 0.4, "eval/ci_low": 0.4, "eval/ci_high": 0.6}
    measured |= {"eval/n": 90, "eval/truncated_rate": 0.25, "eval/infra_errors": 2}
    shown = Display()
    async with shown.steps(last_step=9, done=4):
        shown.label_steps_bar("sampling")
        for row in ({"step": 4, **ROW}, {"step": 4, **measured}, {"step": 5, **ROW}, {"step": 6, **ROW}):
            shown.row(row)
            await display._outbox.wait_until_sent(10)
    first, evaluation, second, third = screen.getvalue().splitlines()
    assert first.startswith("step    4/10  reward 0.500") and first.endswith("50 s left")
    scores = "Pass@1 50.0% [40.0%, 60.0%]  reward 0.400  n 90  truncated 25%  infra errors 2"
    assert evaluation == f"evaluation step 4  {scores}"
    assert second.endswith("40 s left") and third.endswith("48 s left")  # 3 steps of 0.8 * 10 + 0.2 * 40 s
    assert moved == [50, 60, 70]


async def lines_of(text: str, looks: list[tuple[int, int, float]], patch: pytest.MonkeyPatch) -> list[str]:
    """What is said of a phase that begins at 0 s when it is looked at: (done, total, seconds)."""
    lines, looked, shown = list[str](), asyncio.Event(), Display()
    counts, times = iter(looks), iter([0.0, 0.0, *(now for *_, now in looks)])

    def count() -> tuple[int, int]:
        done, total, _ = next(counts)
        return done, total

    def noted(line: str) -> None:
        lines.append(line)
        if len(lines) == len(looks):
            looked.set()
            patch.setattr(display, "LOOK_EVERY_S", 60.0)

    patch.setattr(display, "LOOK_EVERY_S", 0.0)
    patch.setattr(display, "monotonic", lambda: next(times))
    async with shown.steps(last_step=None, done=0):
        patch.setattr(shown, "label_steps_bar", noted)
        async with shown.bar(text, count):
            await looked.wait()
    return lines


@pytest.mark.parametrize("is_terminal", [True])
async def test_a_phase_that_takes_minutes_says_how_many(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [(40, 100, 10.0), (40, 100, 20.0), (50, 100, 40.0), (99, 100, 310.0)]  # an earlier start had done 40
    said = ["profiling: 40/100", "profiling: 40/100", "profiling: 50/100, about 2 min left", "profiling: 99/100"]
    assert await lines_of("profiling", looks, monkeypatch) == said


@pytest.mark.parametrize("is_terminal", [True])
async def test_a_phase_in_which_nothing_is_done_yet_says_how_long_it_has_taken(
    screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = ["evaluation", "evaluation, after 3 min", "evaluation: 0/40, after 3 min"]
    assert await lines_of("evaluation", [(0, 0, 20.0), (0, 0, 200.0), (0, 40, 200.0)], monkeypatch) == said


async def test_a_step_that_is_long_sampled_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coderl_tasks.runtime.display.LINE_EVERY_S", 0.0)
    monkeypatch.setattr("coderl_tasks.runtime.display.LOOK_EVERY_S", 0.001)
    asked = asyncio.Event()

    def count() -> tuple[int, int]:
        asked.set()
        return 3, 8

    async with Display().bar("step 0: sampling groups", count):
        await asked.wait()
    assert "step 0: sampling groups: 3/8" in capsys.readouterr().out


@pytest.mark.parametrize("is_terminal", [True])
async def test_progress_draws_a_bar_on_a_terminal(screen: io.StringIO) -> None:
    shown = Display()
    async with shown.steps(last_step=None, done=0):
        shown.label_steps_bar("scoring")
        shown.row({"step": 0, **ROW})
    assert "scoring" in screen.getvalue()
    assert "reward 0.500" in screen.getvalue()
    assert " left" not in screen.getvalue()
