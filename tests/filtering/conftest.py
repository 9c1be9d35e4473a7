"""A data set folder to filter."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DataSet = Callable[[list[Any], list[Any]], Path]


@pytest.fixture
def data_set(tmp_path: Path) -> DataSet:
    """Writes a data set folder: taco to train on, codeforces to test on."""

    def write(train: list[Any], test: list[Any]) -> Path:
        home = tmp_path / "set"
        home.mkdir()
        (home / "README.md").write_text(
            "---\nconfigs:\n- config_name: taco\n  data_files:\n  - {split: train, path: taco.jsonl}\n"
            "- config_name: codeforces\n  data_files:\n  - {split: test, path: codeforces.jsonl}\n---\n"
        )
        for name, rows in (("taco", train), ("codeforces", test)):
            lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
            (home / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return home

    return write
