"""The folder of a server that was killed is removed by the next one; a living server's is not."""

import tempfile
from pathlib import Path

import pytest

from local_servers.sandbox.interpreter import Scratch


def test_only_unlocked_folders_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "coderl-sandbox-left"
    (left / "run-1").mkdir(parents=True)
    other = tmp_path / "something-else"
    other.mkdir()
    first = Scratch()
    assert not left.exists()
    second = Scratch()
    assert Path(first.path).is_dir()
    second.remove()
    first.remove()
    assert list(tmp_path.iterdir()) == [other]
