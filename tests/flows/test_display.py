import io
import re

import pytest
from rich.console import Console

from coderl_tasks.filtering import RowsProgress
from coderl_tasks.runtime.display import Display


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
