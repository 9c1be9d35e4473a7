"""What the disk remembers of a training run and of a checkpoint, and how both appear in the REST answers."""

import re
import time
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from local_servers.tinker.refusal import BadRequest

CheckpointKind = Literal["weights", "sampler_weights", "external_weights"]
KIND_NAMES: dict[CheckpointKind, str] = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}
MIN_TTL_S = 3600
MAX_TTL_S = 10 * 365 * 24 * 3600
OWNER = "local"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=@-]{0,199}")
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,80}:train:[0-9]{1,9}")


class LoraSettings(BaseModel):
    """The shape of a run's adapter; `seed` decides its initial weights."""

    rank: int
    seed: int
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True


class RunRecord(BaseModel):
    """One training run. `optimizer_steps` counts the steps applied in it since it last loaded a checkpoint,
    `steps_before` those that this checkpoint's lineage had seen."""

    run_id: str
    session_id: str
    base_model: str
    lora: LoraSettings
    user_metadata: dict[str, Any] | None = None
    created_at: float = Field(default_factory=time.time)
    last_request_at: float = Field(default_factory=time.time)
    optimizer_steps: int = 0
    steps_before: int = 0
    loaded_from: str | None = None


class StoredFile(BaseModel):
    """One file of a checkpoint, as it was when it was written."""

    size: int
    sha256: str


class CheckpointRecord(BaseModel):
    """One checkpoint: `data` names the folder that holds its files; `optimizer_steps` counts its whole lineage."""

    run_id: str
    kind: CheckpointKind
    name: str
    data: str
    base_model: str
    lora: LoraSettings
    optimizer_steps: int
    has_optimizer: bool
    files: dict[str, StoredFile]
    created_at: float
    expires_at: float | None = None
    public: bool = False
    user_metadata: dict[str, str] | None = None

    @property
    def path(self) -> str:
        """The address clients use: tinker://<run>/<kind>/<name>."""
        return f"tinker://{self.run_id}/{self.kind}/{self.name}"

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files.values())

    def expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= time.time()


def check_name(name: str | None) -> str:
    """The checkpoint name if it can be a file name; Refusal 400 otherwise."""
    if name is None or not _NAME.fullmatch(name):
        raise BadRequest(
            f"checkpoint name {name!r} is not usable: 1 to 200 letters, digits and ._+=@-, "
            "starting with a letter, digit or _"
        )
    return name


def check_run_id(run_id: str) -> str:
    """The run id if it has the form of one; Refusal 400 otherwise."""
    if not _RUN_ID.fullmatch(run_id):
        raise BadRequest(f"{run_id!r} is not a training run id (<session>:train:<number>)")
    return run_id


def parse_path(path: str) -> tuple[str, CheckpointKind, str]:
    """Run id, kind and name of tinker://<run>/<kind>/<name>; Refusal 400 if it is not of that form."""
    parts = path.removeprefix("tinker://").split("/")
    if not path.startswith("tinker://") or len(parts) != 3:
        raise BadRequest(f"{path!r} is not a checkpoint path: tinker://<run>/weights|sampler_weights/<name>")
    run_id = check_run_id(parts[0])
    for kind in KIND_NAMES:
        if parts[1] == kind:
            return run_id, kind, check_name(parts[2])
    raise BadRequest(f"{parts[1]!r} is not a kind of checkpoint: {', '.join(KIND_NAMES)}")


def expiry(ttl_seconds: int | None) -> float | None:
    """When a checkpoint with this time to live expires (Unix time); Refusal 400 outside 1 hour to 10 years."""
    if ttl_seconds is None:
        return None
    if not MIN_TTL_S <= ttl_seconds <= MAX_TTL_S:
        raise BadRequest(f"ttl_seconds is {ttl_seconds}: from {MIN_TTL_S} (1 hour) to {MAX_TTL_S} (10 years), or none")
    return time.time() + ttl_seconds


def text_metadata(metadata: dict[str, Any] | None) -> dict[str, str] | None:
    """A user's metadata as the REST API shows them."""
    return None if metadata is None else {key: str(value) for key, value in metadata.items()}


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()


def checkpoint_json(record: CheckpointRecord) -> dict[str, object]:
    return {
        "checkpoint_id": f"{record.kind}/{record.name}",
        "checkpoint_type": KIND_NAMES[record.kind],
        "time": _iso(record.created_at),
        "tinker_path": record.path,
        "size_bytes": record.size,
        "public": record.public,
        "user_metadata": record.user_metadata,
        "expires_at": None if record.expires_at is None else _iso(record.expires_at),
        "optimizer_steps": record.optimizer_steps,
    }


def run_json(run: RunRecord, checkpoints: list[CheckpointRecord]) -> dict[str, object]:
    """A training run as the REST API shows it; `checkpoints` are its, newest first."""

    def newest(kind: CheckpointKind) -> dict[str, object] | None:
        return next((checkpoint_json(record) for record in checkpoints if record.kind == kind), None)

    return {
        "training_run_id": run.run_id,
        "base_model": run.base_model,
        "model_owner": OWNER,
        "is_lora": True,
        "corrupted": False,
        "lora_rank": run.lora.rank,
        "last_request_time": _iso(run.last_request_at),
        "last_checkpoint": newest("weights"),
        "last_sampler_checkpoint": newest("sampler_weights"),
        "user_metadata": text_metadata(run.user_metadata),
        "optimizer_steps": run.optimizer_steps,
        "steps_before": run.steps_before,
        "loaded_from": run.loaded_from,
    }
