"""Model folders of others: what is damaged is refused in one line, and nothing that is missing is made up."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from coderl_tasks.paths import PROJECT_ROOT
from local_servers.server_errors import SetupError
from local_servers.tinker.engine.causal_lm import BaseModel

ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"a": ONE | {"shape": [10**9, 10**9]}}, "cannot be loaded"),
        ({"a": ONE, "b": ONE}, "cannot be loaded"),
        ({"a": ONE | {"shape": [-1]}}, "cannot be loaded"),
        ({"model.embed_tokens.weight": ONE}, "cannot be loaded"),
        ({}, r"lack \S+ and \d+ more"),
    ],
)
def test_damaged_weights_are_refused(header: dict[str, Any], says: str, tmp_path: Path) -> None:
    for file in (PROJECT_ROOT / "data" / "nano").iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    text = json.dumps(header).encode()
    body = b"abcd" if header else b""
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    with pytest.raises(SetupError, match=says):
        BaseModel(tmp_path, torch.device("cpu"), torch.float32)


def test_code_of_a_model_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *question: "y")  # what transformers would ask for
    for file in (PROJECT_ROOT / "data" / "nano").iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    config = tmp_path / "config.json"
    evil = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}
    config.write_text(json.dumps(json.loads(config.read_text()) | evil))
    ran = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n")
    with pytest.raises(SetupError, match="contains custom code"):
        BaseModel(tmp_path, torch.device("cpu"), torch.float32)
    assert not ran.exists()
