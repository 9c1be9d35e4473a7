import os
from pathlib import Path

import pytest

from coderl_tasks.errors import ConfigError
from coderl_tasks.journal.recorded_json import find_unfinished, recorded_settings, working_in
from coderl_tasks.settings import CurateSettings

SETTINGS = CurateSettings(mix={"hard": 0.5}, limit=7).content()


def start(folder: Path, settings: dict[str, object], at: int) -> Path:
    """Work that was begun at the time `at`, and ended in whatever way."""
    with working_in(folder, settings, instead="go"):
        pass
    os.utime(folder / "settings.json", (at, at))
    return folder


def test_unfinished_work_is_found_by_its_settings_the_newest_first(tmp_path: Path) -> None:
    first, newer = start(tmp_path / "first", SETTINGS, 1), start(tmp_path / "newer", SETTINGS, 2)
    start(tmp_path / "other", SETTINGS | {"seed": 1}, 3)
    (tmp_path / "empty").mkdir()

    def found(*done: Path) -> Path | None:
        return find_unfinished(tmp_path.iterdir(), SETTINGS, lambda folder: folder in done)

    assert found() == newer
    assert found(newer) == first
    assert found(newer, first) is None
    (newer / "settings.json").write_text("{")
    assert found() == first
    with working_in(first, SETTINGS, instead="go"):
        assert found() is None
    assert found() == first


def test_two_do_not_work_in_one_folder_and_the_second_changes_nothing(tmp_path: Path) -> None:
    with working_in(tmp_path / "a", SETTINGS, instead="choose another name"):
        with (
            pytest.raises(ConfigError, match=r"a is in use by .*: wait for it, stop it, or choose another name$"),
            working_in(tmp_path / "a", {}, instead="choose another name"),
        ):
            pass
        assert recorded_settings(tmp_path / "a") == SETTINGS
    start(tmp_path / "a", {"seed": 1}, 1)
    assert recorded_settings(tmp_path / "a") == {"seed": 1}
