"""The engine: training and sampling of LoRA adapters on one base model. The wire uses this package through it alone."""

import itertools
import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from local_servers.memory import require_memory, return_freed_memory
from local_servers.tinker.engine.adapter import (
    Adapter,
    LoraShape,
    Snapshot,
    adam_step,
    create_adapter,
    read_adapter,
    write_adapter,
)
from local_servers.tinker.engine.causal_lm import BaseModel, Weights
from local_servers.tinker.engine.losses import checked_config
from local_servers.tinker.engine.sampling_batch import RunningRequest, SamplingBatch
from local_servers.tinker.engine.slot_caches import capacity_of
from local_servers.tinker.engine.training import run_datums
from local_servers.tinker.engine.validation import check_datum, check_sample
from local_servers.tinker.engine_types import AdamSettings, LossName, LossOutput, SampleResult, SampleSpec, TrainDatum
from local_servers.tinker.refusal import BadRequest, about_datum

_CACHE_ROOM = 4 << 30
_DRAW_BYTES = 40
"""A token's part in drawing: logits and probabilities, sorted and summed in double precision."""


class Engine:
    """One base model folder. Training calls come from one thread, sampling calls from another or the same;
    each adapter's calls in order. On the CPU the same calls give the same bits on the same machine, whatever runs
    beside them."""

    def __init__(
        self,
        folder: Path,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        max_batch_rows: int | None = None,
        max_train_tokens: int = 16384,
        threads: int = 1,
    ) -> None:
        """Loads a Hugging Face causal LM onto `device` (cpu or cuda), with the layers' weights in `dtype` (float32
        or bfloat16). Raises SetupError if its architecture is not supported, OutOfMemory if it does not fit.

        `max_batch_rows` samples take a step together, by default 256, on a GPU 1,024; `max_train_tokens` bounds a
        training micro-batch. `threads` is how many threads share one operation, for the whole process, and part of what
        decides the bits. One is best, as sampling deals its requests and training its micro-batches to the cores: two
        gain little on idle cores, and on busy ones every operation waits for the slower thread (sampling on nano took
        ten times as long).
        """
        torch.set_num_threads(threads)
        self.folder = folder
        self._model = BaseModel(folder, torch.device(device), getattr(torch, dtype))
        self.tokenizer: Any | None = None
        if any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
            self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        on_cpu = device == "cpu"
        self._max_batch_rows = max_batch_rows or (256 if on_cpu else 1024)
        self._max_train_tokens = max_train_tokens
        # A GPU waits for each call: there the attention of all samples is one, those of a group among them. The CPU is
        # quicker with one for each group, which reads the keys of the prompt once.
        self.samples_alone = not on_cpu
        self.context_length = self._model.context_length
        self.vocab_size = self._model.vocab_size
        self.dtype = self._model.dtype
        self.large = self._model.large
        self.needed_bytes = self._model.needed_bytes
        # Of which each runs an operation by itself.
        self.cores = max(1, len(os.sched_getaffinity(0)) // threads) if on_cpu else 1

    @property
    def eos_tokens(self) -> list[int]:
        """The tokens that end a completion when a request names no stop of its own."""
        found = self._model.config.eos_token_id
        if found is None and self.tokenizer is not None:
            found = self.tokenizer.eos_token_id
        return [] if found is None else list(found) if isinstance(found, list) else [found]

    # training

    def create_adapter(
        self, rank: int, seed: int, *, train_mlp: bool = True, train_attn: bool = True, train_unembed: bool = True
    ) -> Adapter:
        """A new adapter with zero delta; deterministic in `seed`. Raises BadRequest if nothing would be trained."""
        return create_adapter(self._model.weights, LoraShape(rank, train_mlp, train_attn, train_unembed), seed)

    def forward_backward(
        self, adapter: Adapter, datums: list[TrainDatum], loss: LossName, config: dict[str, float], *, backward: bool
    ) -> LossOutput:
        """Losses of the datums, summed over tokens; with `backward`, gradients are added to the adapter's. Raises
        BadRequest before any work if the request is invalid."""
        self.validate(datums, loss, config)
        output = run_datums(
            self._model, adapter, datums, loss, config, backward=backward, max_tokens=self._max_train_tokens
        )
        if self.large:
            return_freed_memory()
        return output

    def optim_step(self, adapter: Adapter, settings: AdamSettings) -> dict[str, float]:
        """One Adam step on the accumulated gradients, which it clears. Raises BadRequest if there are none."""
        return adam_step(adapter, settings)

    def validate(self, datums: list[TrainDatum], loss: LossName, config: dict[str, float]) -> None:
        """Raises BadRequest for an unknown loss, a setting that it cannot take, or the first datum that is wrong."""
        if not datums:
            raise BadRequest("no datums")
        checked_config(loss, config)
        for number, datum in enumerate(datums):
            with about_datum(number):
                check_datum(datum, loss, self.vocab_size, self.context_length)

    # sampling

    def snapshot(self, adapter: Adapter) -> Snapshot:
        """The adapter as it is now, which later steps do not change. Raises OutOfMemory as `sampler_weights` does."""
        return adapter.applied(self._model.weights).snapshot

    def sampler_weights(self, adapter: Adapter | None) -> Weights:
        """What the adapter makes of the weights now, which later steps do not change; None means the base model. Raises
        OutOfMemory before it makes a copy that there is no room for."""
        return self._model.weights if adapter is None else adapter.applied(self._model.weights)

    def sample(self, jobs: list[tuple[Weights, SampleSpec]]) -> list[SampleResult]:
        """Samples all jobs together; each result is what it would be alone. Raises BadRequest if one is invalid."""
        for _, spec in jobs:
            self.validate_sample(spec)
        batch = self.sampling_batch()
        of_jobs = [[self.running_request(weights, part) for part in self.parts(spec)] for weights, spec in jobs]
        batch.requests += itertools.chain.from_iterable(of_jobs)
        while batch.requests:
            for request in batch.step():
                if request.error is not None:
                    raise request.error
        return [SampleResult.joined([request.result() for request in requests]) for requests in of_jobs]

    def parts(self, spec: SampleSpec) -> list[SampleSpec]:
        """The requests that one is run as, whose results are `SampleResult.joined`."""
        return spec.by_sample() if self.samples_alone else [spec]

    def validate_sample(self, spec: SampleSpec) -> None:
        check_sample(spec, self.vocab_size, self.context_length, has_tokenizer=self.tokenizer is not None)

    def sampling_batch(self, threads: int | None = None) -> SamplingBatch:
        """An empty batch, whose requests are run by so many threads; by default one on each core."""
        return SamplingBatch(self._model, self._max_batch_rows, threads or self.cores)

    def running_request(self, weights: Weights, spec: SampleSpec) -> RunningRequest:
        """A valid request, ready to be put into a batch. Raises OutOfMemory if there is no room for its prompt and its
        first token; its cache asks for room as it grows."""
        need = len(spec.prompt) * self._position_bytes + spec.num_samples * self.vocab_size * _DRAW_BYTES
        self._require_memory(need, f"sampling {spec.num_samples} completions of {len(spec.prompt)} prompt tokens")
        return RunningRequest(self._model, weights, spec, self.tokenizer)

    def cache_bytes(self, spec: SampleSpec) -> int:
        """The most memory that the request's key-value cache can take."""
        tokens = len(spec.prompt) + spec.num_samples * min(spec.max_tokens, self.context_length - len(spec.prompt))
        return (capacity_of(tokens) if spec.num_samples == 1 else tokens) * self._position_bytes

    @property
    def cache_room(self) -> int:
        """What the key-value caches of requests that run at once may take: half of what is free on a GPU."""
        if self._model.device.type != "cuda":
            return _CACHE_ROOM
        free, _ = torch.cuda.mem_get_info(self._model.device)
        return int(free) // 2

    @property
    def _position_bytes(self) -> int:
        """Keys and values of one token in all layers."""
        model = self._model
        return model.n_layers * 2 * model.n_kv_heads * model.head_dim * torch.float32.itemsize

    def _require_memory(self, need_bytes: int, what: str) -> None:
        require_memory(need_bytes, what, self._model.device.type)

    # storage

    def save_adapter(self, adapter: Adapter, folder: Path, *, optimizer: bool) -> None:
        """Writes the adapter, with Adam's state if `optimizer`, into `folder` (PEFT's format)."""
        write_adapter(adapter, folder, self.folder, optimizer=optimizer)

    def load_adapter(self, folder: Path, *, optimizer: bool) -> Adapter:
        """The adapter saved in `folder`. Raises OutOfMemory, and BadRequest as `read_adapter` does."""
        stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        self._require_memory(stored, f"loading {folder.name}")
        return read_adapter(folder, self._model.weights, optimizer=optimizer)
