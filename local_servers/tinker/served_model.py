"""What a server says of a model that it serves, and what coderl expects of one that it will start."""

import hashlib
import os
from pathlib import Path

SAMPLED_BYTES = 2**20
"""Of each end of a file of weights: what tells it from another one."""


def served_model(folder: Path, device: str = "cpu", dtype: str = "float32") -> str:
    """What coderl's own server answers with from a model folder, by default as a run starts it: the same text means
    the same numbers, at whatever address."""
    digest = hashlib.sha256()
    for file in (folder / "config.json", *sorted(folder.glob("*.safetensors"))):
        # Both ends and not the whole, which takes minutes of a large model: other weights are others everywhere.
        with file.open("rb") as content:
            size = content.seek(0, os.SEEK_END)
            digest.update(f"{file.name} {size} ".encode())
            for place in (0, max(0, size - SAMPLED_BYTES)):
                content.seek(place)
                digest.update(content.read(SAMPLED_BYTES))
    return f"coderl serve tinker, {device} {dtype}, weights {digest.hexdigest()[:12]}"
