"""All that coderl uses of the local servers. It is light to import: PyTorch, aiohttp and pydantic come with their use.

What goes wrong is a `ServerError`, or a `SetupError` where the user has to change something.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from local_servers.server_errors import ServerError, SetupError
from local_servers.server_keys import new_key, read_key
from local_servers.tinker.served_model import served_model

if TYPE_CHECKING:
    from local_servers.tinker.records import CheckpointRecord

__all__ = [
    "CheckpointRecord",
    "ServerError",
    "SetupError",
    "checkpoints",
    "isolation_level",
    "new_key",
    "read_key",
    "remove_checkpoint",
    "serve_sandbox",
    "serve_tinker",
    "served_model",
]


def serve_tinker(
    port: int,
    host: str,
    models: Sequence[str],
    *,
    folder_of: Callable[[str], Path | None],
    root: Path,
    key: str | None,
    device: str,
    dtype: str,
) -> None:
    """Run the Tinker server until SIGTERM or SIGINT: `models` on `device` (cpu, cuda, auto) in `dtype` (auto, float32,
    bfloat16), their runs and checkpoints below `root`. `folder_of` says which folder a model's name means, if any;
    `key` is the one that callers need (None: any of the right form)."""
    from local_servers.memory import fast_imports

    # Here and not above: these import PyTorch, for seconds, which other commands need not wait for.
    with fast_imports():  # without garbage collection, and without packages that no server uses
        from local_servers.tinker.engines import EnginePool
        from local_servers.tinker.tinker_server import serve
    serve(port, host, EnginePool(models, folder_of, device, dtype), root, key)


def serve_sandbox(
    port: int,
    host: str,
    concurrency: int | None,
    allow_unisolated: bool,
    *,
    key: str | None,
    prepared: Sequence[str],
    hidden: Mapping[str, Path],
) -> None:
    """Run the sandbox until SIGTERM or SIGINT, as `sandbox.sandbox_server.serve` says."""
    from local_servers.sandbox.sandbox_server import serve

    serve(port, host, concurrency, allow_unisolated, key=key, prepared=prepared, hidden=hidden)


def isolation_level() -> tuple[str | None, str]:
    """The level at which the sandbox isolates programs on this machine, None where it would not start, and why it is
    not a better one. SetupError if it cannot be tried."""
    from local_servers.sandbox import interpreter

    return interpreter.isolation_level()


def checkpoints(root: Path) -> "list[CheckpointRecord]":
    """The Tinker server's checkpoints below `root`, expired ones too: each has `path`, `size` in bytes, `created_at`,
    `expires_at` and `expired()`. Empty where there is no such folder."""
    if not root.is_dir():
        return []
    from local_servers.tinker.checkpoint_store import CheckpointStore

    return CheckpointStore(root).all_checkpoints()


def remove_checkpoint(root: Path, checkpoint: "CheckpointRecord") -> None:
    """Remove one of `checkpoints(root)`."""
    from local_servers.tinker.checkpoint_store import CheckpointStore

    CheckpointStore(root).delete(checkpoint)
