"""What a run needs of a disk, from models of anybody."""

import json
import struct
from pathlib import Path

import pytest

from coderl_tasks.disk import adapter_bytes


def model(folder: Path, head: bytes, length: int | None = None) -> str:
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head) if length is None else length) + head)
    return str(folder)


def test_an_adapter_takes_its_rank_of_each_side_of_each_matrix(tmp_path: Path) -> None:
    head = {
        "__metadata__": {},
        "a.weight": {"shape": [8, 4]},
        "norm": {"shape": [8]},
        "lm_head.weight": {"shape": [9, 4]},
    }
    assert adapter_bytes(model(tmp_path, json.dumps(head).encode()), 2) == 4 * 2 * (8 + 4 + 9 + 4)


@pytest.mark.parametrize(
    ("head", "length"),
    [
        (b"{}", 2**63),
        (b"", 0),
        (b"[1]", None),
        (b'{"a": 1}', None),
        (b'{"a": {"shape": null}}', None),
        (b'{"a": {"shape": ["x", 1]}}', None),
        (b"[" * 100_000, None),
        (b"\xff\xfe", None),
    ],
)
def test_a_damaged_head_tells_no_size(tmp_path: Path, head: bytes, length: int | None) -> None:
    assert adapter_bytes(model(tmp_path, head, length), 2) is None
