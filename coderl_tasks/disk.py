"""What the states of a run with the embedded Tinker server take on this machine's disks."""

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path

from coderl_tasks.journal.atomic import LEAST_FREE, free_bytes
from coderl_tasks.paths import coderl_home, local_model_path
from coderl_tasks.settings import TrainSettings

MB = 1e6
GIB = 2**30
LARGE_STATES = GIB  # bytes of a run's states from which on its first lines say how to have fewer
_FLOAT32 = 4
_EMBEDDING, _UNEMBEDDING = "embed_tokens.weight", "lm_head.weight"


def adapter_bytes(model_name: str, lora_rank: int) -> int | None:
    """Bytes of a LoRA's weights as the embedded Tinker server saves them: a state takes three times as much, with the
    optimizer's two moments. None where `model_name` is no local folder of readable safetensors files."""
    if (folder := local_model_path(model_name)) is None:
        return None
    try:
        shapes = dict(_shapes(folder))
    except (struct.error, ValueError, RecursionError):  # what is wrong with them the server says, which loads them
        return None
    tied = not any(name.endswith(_UNEMBEDDING) for name in shapes)
    # With tied weights the embedding's matrix is the one that gives the logits.
    adapted = (shape for name, shape in shapes.items() if tied or not name.endswith(_EMBEDDING))
    return _FLOAT32 * lora_rank * sum(sum(shape) for shape in adapted if len(shape) == 2) or None


def needed_by_states(settings: TrainSettings) -> tuple[int, str] | None:
    """Bytes that a run's states take on the embedded Tinker server (without max_steps: in 1,000 steps), and words."""
    if (weights := adapter_bytes(settings.model_name, settings.lora_rank)) is None:
        return None
    state = 3 * weights
    with_sampler = state + weights
    rolling = settings.rolling_states * (with_sampler if settings.max_steps_off_policy else state)
    steps = settings.max_steps if settings.max_steps != -1 else 1000
    # The first one is from before any step, the last one from after the last.
    checkpoints = 1 + (math.ceil(steps / settings.save_every) if settings.save_every else 1)
    total = rolling + with_sampler * checkpoints
    return total, (
        f"up to {total / MB:,.0f} MB in {steps:,} step{'s' if steps > 1 else ''} ({settings.rolling_states} states of "
        f"{rolling / settings.rolling_states / MB:.1f} MB, rolling_save.keep; {checkpoints:,} checkpoints of "
        f"{with_sampler / MB:.1f} MB, save_every={settings.save_every})"
    )


def states_line(settings: TrainSettings) -> str | None:
    """What the states of a run need, and what is free for them; None where the first is not known."""
    if (needed := needed_by_states(settings)) is None:
        return None
    home, (total, words) = coderl_home(), needed
    is_short = free_bytes(home) < total + LEAST_FREE
    short = ": less than they need" if is_short else ""
    # Of a run that goes on, the first two may be others.
    less = "; less with save_every=0 (one checkpoint, at the end), rolling_save.keep=2, or a lower lora_rank"
    advice = less if is_short or total > LARGE_STATES else ""
    return f"states: {words}; {free_bytes(home) / GIB:.1f} GiB free at {home}{short}{advice}"


def _shapes(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Name and shape of every tensor in the folder's safetensors files, read from their heads alone: 8 bytes of length,
    then JSON. Source: the format's description, https://github.com/huggingface/safetensors."""
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > file.stat().st_size:  # a model of others may say 2**63
                raise ValueError(f"{file} has a header of {length} bytes")
            head = json.loads(opened.read(length))
        if not isinstance(head, dict):
            raise ValueError(f"{file} has no header")
        for name in head.keys() - {"__metadata__"}:
            shape = head[name].get("shape") if isinstance(head[name], dict) else None
            if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
                raise ValueError(f"{file}: {name} has no shape")
            yield name, shape
