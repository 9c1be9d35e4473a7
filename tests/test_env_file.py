"""A `.env` of anybody: what it means, and what is refused in a line."""

import re
from pathlib import Path

import pytest

from coderl_tasks.errors import ConfigError
from coderl_tasks.services import LARGEST_FILE, read_env_file


def test_a_file_is_read_as_python_dotenv_means_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLOUR", "red")
    file = tmp_path / ".env"
    file.write_text(
        "\ufeff# comment\nexport PLACE='/x y'\nB=${PLACE}/${COLOUR}/${NOBODY:-none}\nCOLOUR=blue\nC=${COLOUR}\nALONE\n"
        'LINES="a\\nb"\n'
    )
    assert read_env_file(file) == {
        "PLACE": "/x y",
        "B": "/x y/red/none",
        "COLOUR": "blue",
        "C": "red",
        "LINES": "a\nb",
    }


DOUBLING = "A0=0123456789\n" + "".join(f"A{n}=${{A{n - 1}}}${{A{n - 1}}}\n" for n in range(1, 60))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"A=\xff\xfe\n", "is not UTF-8 text"),
        (b"\x7fELF\2\1\1\xff", "is not UTF-8 text"),
        (b"A=x\0y\n", "sets 'A', which cannot be a variable"),
        (b"'a=b'=x\n", "sets 'a=b', which cannot be a variable"),
        (b"A" * (LARGEST_FILE + 1), "has more than 64 KiB"),
        (DOUBLING.encode(), "gives A12 more than 32,768 characters"),
    ],
    ids=["latin", "random", "nul", "name", "huge", "doubling"],
)
def test_what_no_settings_are_is_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / ".env"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        read_env_file(file)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("missing", "folder", "loop", "device"):
        assert read_env_file(tmp_path / name) == {}
