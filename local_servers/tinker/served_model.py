"""What a server says of a model that it serves, and what coderl expects of one that it will start; the dtype that suits
a model on this machine."""

import hashlib
import os
from pathlib import Path

SAMPLED_BYTES = 2**20  # of each end of a file of weights: what tells it from another one
ROUNDED_BYTES = 200_000_000
"""Weights, as stored, from which bfloat16 pays: a smaller model's steps are not mostly products."""
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""How /proc/cpuinfo names a processor's own bfloat16 products, on x86-64 and on ARM."""


def chosen_dtype(wanted: str, folder: Path, device: str, processor: Path = Path("/proc/cpuinfo")) -> str:
    """float32 or bfloat16 for `wanted`, one of these and auto: bfloat16 for a large model where the CPU has products
    for it. There they are three to five times as fast as float32's, elsewhere up to ten times as slow."""
    if wanted != "auto":
        return wanted
    large = sum(file.stat().st_size for file in folder.glob("*.safetensors")) >= ROUNDED_BYTES
    if device != "cpu" or not large:
        return "float32"
    flags = next((line for line in processor.read_text().splitlines() if line.startswith(("flags", "Features"))), "")
    return "bfloat16" if BFLOAT16_FLAGS & set(flags.split()) else "float32"


def served_model(folder: Path, device: str = "cpu", dtype: str = "auto") -> str:
    """What coderl's own server answers with from a model folder, by default as a run starts it: the same text means
    the same numbers, at whatever address."""
    dtype = chosen_dtype(dtype, folder, device)
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
