"""The models this server offers: names resolved to local folders, engines loaded on first use.

Each model has a thread for training (and loading, saving) and the sampling scheduler's own: neither blocks HTTP.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from local_servers.memory import fast_imports
from local_servers.server_errors import SetupError
from local_servers.tinker.engine_types import SampleResult, SampleSpec
from local_servers.tinker.refusal import Refusal
from local_servers.tinker.served_model import chosen_dtype, served_model

if TYPE_CHECKING:
    from local_servers.tinker.engine.causal_lm import Weights
    from local_servers.tinker.engine.lora_engine import Engine
    from local_servers.tinker.engine.sampling_processes import Scheduler

T = TypeVar("T")
FolderOf = Callable[[str], Path | None]  # the model folder that a name means, None if it means none


class EngineHost:
    """One model folder with its engine, once that is loaded."""

    def __init__(self, name: str, folder: Path, device: str, dtype: str) -> None:
        self.name = name
        self.folder = folder
        self.device, self.dtype = device, chosen_dtype(dtype, folder, device)
        self.served = served_model(folder, device, self.dtype)
        config = json.loads((folder / "config.json").read_text())
        if "max_position_embeddings" not in config:
            raise SetupError(f"{folder}: its config.json has no max_position_embeddings; it cannot be served")
        self.context_length = int(config["max_position_embeddings"])
        self.architecture = str(config.get("model_type", "unknown"))
        self.sampled_requests = 0
        self.loaded: Engine | None = None
        self._scheduler: Scheduler | None = None
        self._loading = asyncio.Lock()
        # One thread: requests of all models on these weights take turns, and each has all lanes.
        self._trainer = ThreadPoolExecutor(1, thread_name_prefix=f"train {name}")

    async def engine(self) -> "Engine":
        """The engine, loaded by the first caller. Raises SetupError for a model it cannot run."""
        if self.loaded is None:
            # Requests that come while it loads wait for the one load, and do not begin their own.
            async with self._loading:
                if self.loaded is None:
                    loaded, self._scheduler = await self._in_thread(_load_engine, self.folder, self.device, self.dtype)
                    self.loaded = loaded
        return self.loaded

    async def train(self, work: Callable[["Engine"], T]) -> T:
        """Run `work` on the training thread, after the work given before it."""
        return await self._in_thread(work, await self.engine())

    async def sample(self, weights: "Weights", spec: SampleSpec) -> SampleResult:
        """Sample, together with whatever else is being sampled; cancelling the awaiting task stops the request."""
        await self.engine()
        assert self._scheduler is not None
        self.sampled_requests += 1
        return await asyncio.wrap_future(self._scheduler.submit(weights, spec))

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._trainer, work, *args)

    def close(self) -> None:
        """Start nothing new: sampling ends after its current token, training after its current request."""
        self._trainer.shutdown(wait=False, cancel_futures=True)
        if self._scheduler is not None:
            self._scheduler.close()


class EnginePool:
    """The models offered, by the names given at start-up; other names of the same folders are understood too."""

    def __init__(self, names: Sequence[str], folder_of: FolderOf, device: str = "cpu", dtype: str = "auto") -> None:
        """Raises SetupError if a name is not a local model folder, or the device is not there."""
        device = usable_device(device)
        self._folder_of = folder_of
        self.hosts: dict[str, EngineHost] = {}
        for name in names:
            folder = folder_of(name)
            if folder is None:
                raise SetupError(f"{name} is not a local model folder (a folder with a config.json)")
            self.hosts[name] = EngineHost(name, folder, device, dtype)
        if not self.hosts:
            raise SetupError("no model to serve: name at least one local model folder")

    def find(self, name: str) -> EngineHost:
        """The host of the model a client means; Refusal 404 that lists those there are."""
        if name in self.hosts:
            return self.hosts[name]
        folder = self._folder_of(name)
        for host in self.hosts.values():
            if host.folder == folder:
                return host
        offered = ", ".join(sorted(self.hosts))
        raise Refusal(404, f"model {name!r} is not served here; the models of this server are: {offered}")

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()


def usable_device(wanted: str) -> str:
    """cpu or cuda for `wanted`, one of cpu, cuda, auto (cuda where there is one). Raises SetupError."""
    if wanted == "cpu":
        return "cpu"
    import torch  # takes seconds, which a server on the CPU pays with its first request

    if torch.cuda.is_available():
        return "cuda"
    if wanted == "auto":
        return "cpu"
    raise SetupError(
        f"--device cuda: PyTorch {torch.__version__} sees no GPU here. Install a build for CUDA and the GPU's driver "
        "(nvidia-smi shows whether it works), or serve with --device cpu"
    )


def _load_engine(folder: Path, device: str, dtype: str) -> "tuple[Engine, Scheduler]":
    # Imported here: it takes seconds, which a server that only lists or heartbeats need not pay.
    with fast_imports():
        from transformers.utils import logging as transformers_logging

        from local_servers.tinker.engine.lora_engine import Engine
        from local_servers.tinker.engine.sampling_processes import sampling_scheduler

    transformers_logging.disable_progress_bar()
    engine = Engine(folder, device=device, dtype=dtype)
    return engine, sampling_scheduler(engine)
