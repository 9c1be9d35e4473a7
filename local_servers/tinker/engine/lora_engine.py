"""The engine: training and sampling of LoRA adapters on one base model. The wire uses this package through it alone."""

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from local_servers.memory import require_memory, return_freed_memory
from local_servers.tinker.engine.adapter import Adapter, LoraShape, Snapshot, adam_step, create_adapter, read_adapter
from local_servers.tinker.engine.causal_lm import BaseModel, Weights
from local_servers.tinker.engine.losses import LOSSES, MASK, OPTIONAL_INPUTS, checked_config
from local_servers.tinker.engine.sampling_batch import RunningRequest, SamplingBatch
from local_servers.tinker.engine.slot_caches import capacity_of
from local_servers.tinker.engine.training import run_datums
from local_servers.tinker.engine_types import AdamSettings, LossOutput, SampleResult, SampleSpec, TrainDatum
from local_servers.tinker.refusal import BadRequest, about_datum

MAX_SAMPLES = 4096
MAX_TOP_K_LOGPROBS = 1024
COLDEST, HOTTEST = 0.01, 100.0  # temperatures that differ from greedy and from uniform sampling; a colder one overflows
_CACHE_ROOM = 4 << 30
_DRAW_BYTES = 40  # a token's part in drawing: logits and probabilities, sorted and summed in double precision


class Engine:
    """One base model folder. Training calls come from one thread, sampling calls from another or the same; each
    adapter's calls in order. On the CPU the same calls give the same bits on the same machine."""

    def __init__(
        self,
        folder: Path,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        max_batch_rows: int | None = None,
        threads: int = 1,
    ) -> None:
        """Loads a Hugging Face causal LM onto `device` (cpu or cuda), with the layers' weights in `dtype` (float32
        or bfloat16). Raises SetupError if its architecture is not supported, OutOfMemory if it does not fit.

        `max_batch_rows` samples take a step together, by default 256, on a GPU 1,024. `threads` share one operation,
        for the whole process; another number gives other bits. One is best, as requests and micro-batches are dealt to
        the cores, and on busy ones every operation waits for the slower thread (ten times as long on nano)."""
        torch.set_num_threads(threads)
        self.folder = folder
        self._model = BaseModel(folder, torch.device(device), getattr(torch, dtype))
        self.tokenizer: Any | None = None
        if any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
            self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        on_cpu = device == "cpu"
        self._max_batch_rows = max_batch_rows or (256 if on_cpu else 1024)
        # Whether each sample of a request is run as a request of its own: a GPU is slow where there are many calls, and
        # one attention call can take requests for one sample from any prompt. The CPU is quicker with a call for each
        # whole request, which reads the keys of the prompt once for all samples.
        self.splits_samples = not on_cpu
        self.context_length = self._model.context_length
        self.vocab_size = self._model.vocab_size
        self.dtype = self._model.dtype
        self.large = self._model.large  # its requests are long, and take enough memory to give it back at their end
        self.needed_bytes = self._model.needed_bytes
        # How many operations, of `threads` threads each, this process can run at once.
        self.cores = max(1, len(os.sched_getaffinity(0)) // threads) if on_cpu else 1

    @property
    def eos_tokens(self) -> list[int]:
        """The tokens that end a completion when a request names no stop of its own."""
        found = self._model.config.eos_token_id
        if found is None and self.tokenizer is not None:
            found = self.tokenizer.eos_token_id
        return [] if found is None else list(found) if isinstance(found, list) else [found]

    def create_adapter(
        self, rank: int, seed: int, *, train_mlp: bool = True, train_attn: bool = True, train_unembed: bool = True
    ) -> Adapter:
        """A new adapter with zero delta; deterministic in `seed`. Raises BadRequest if nothing would be trained."""
        return create_adapter(self._model.weights, LoraShape(rank, train_mlp, train_attn, train_unembed), seed)

    def forward_backward(
        self, adapter: Adapter, datums: list[TrainDatum], loss: str, config: dict[str, float], *, backward: bool
    ) -> LossOutput:
        """Losses of the datums, summed over tokens; with `backward`, gradients are added to the adapter's. Raises
        BadRequest as `validate`."""
        self.validate(datums, loss, config)
        output = run_datums(self._model, adapter, datums, loss, config, backward=backward)
        if self.large:
            return_freed_memory()
        return output

    def optim_step(self, adapter: Adapter, settings: AdamSettings) -> dict[str, float]:
        """Makes one Adam step on the accumulated gradients, which it clears. Raises BadRequest if there are none, or if
        they are not finite."""
        return adam_step(adapter, settings)

    def validate(self, datums: list[TrainDatum], loss: str, config: dict[str, float]) -> None:
        """Raises BadRequest for an unknown loss, a setting that it cannot take, or the first datum that is wrong."""
        if not datums:
            raise BadRequest("no datums")
        checked_config(loss, config)
        for number, datum in enumerate(datums):
            with about_datum(number):
                _check_datum(datum, loss, self.vocab_size, self.context_length)

    def snapshot(self, adapter: Adapter) -> Snapshot:
        """The adapter as it is now, which later steps do not change. Raises OutOfMemory as `sampler_weights` does."""
        return adapter.adapted_weights(self._model.weights).snapshot

    def sampler_weights(self, adapter: Adapter | None) -> Weights:
        """The base model's weights, or what the adapter makes of them now, which later steps do not change. Raises
        OutOfMemory before it makes a copy that there is no room for."""
        return self._model.weights if adapter is None else adapter.adapted_weights(self._model.weights)

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
        return spec.by_sample() if self.splits_samples else [spec]

    def validate_sample(self, spec: SampleSpec) -> None:
        _check_sample(spec, self.vocab_size, self.context_length, has_tokenizer=self.tokenizer is not None)

    def sampling_batch(self, threads: int | None = None) -> SamplingBatch:
        """An empty batch, whose requests are run by so many threads; by default one on each core."""
        return SamplingBatch(self._model, self._max_batch_rows, threads or self.cores)

    def running_request(self, weights: Weights, spec: SampleSpec) -> RunningRequest:
        """A valid request, ready to be put into a batch. Raises OutOfMemory if there is no room for its prompt and its
        first token."""
        need = len(spec.prompt) * self._position_bytes + spec.num_samples * self.vocab_size * _DRAW_BYTES
        what = f"sampling {spec.num_samples} completions of {len(spec.prompt)} prompt tokens"
        require_memory(need, what, self._model.device.type)
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

    def save_adapter(self, adapter: Adapter, folder: Path, *, optimizer: bool) -> None:
        """Writes the adapter, with Adam's state if `optimizer`, into `folder` (PEFT's format)."""
        adapter.write(folder, self.folder, optimizer=optimizer)

    def load_adapter(self, folder: Path, *, optimizer: bool) -> Adapter:
        """The adapter saved in `folder`. Raises OutOfMemory, and BadRequest as `read_adapter` does."""
        stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        require_memory(stored, f"loading {folder.name}", self._model.device.type)
        return read_adapter(folder, self._model.weights, optimizer=optimizer)


def _check_tokens(tokens: np.ndarray, vocab_size: int, what: str) -> None:
    """Token ids must be integers of the vocabulary."""
    if tokens.dtype.kind not in "iu":
        raise BadRequest(f"{what} must be integers, not {tokens.dtype}")
    outside = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if len(outside):
        raise BadRequest(f"{what} has token id {outside[0]}, outside the vocabulary of {vocab_size}")


def _check_datum(datum: TrainDatum, loss: str, vocab_size: int, context_length: int) -> None:
    """A datum must be non-empty, fit the context, and have every input of its loss, finite and of its length."""
    tokens = datum.tokens
    if tokens.ndim != 1 or len(tokens) == 0:
        raise BadRequest("a datum's model_input must be a non-empty sequence of tokens")
    _check_tokens(tokens, vocab_size, "model_input")
    if len(tokens) > context_length:
        raise BadRequest(f"model_input has {len(tokens)} tokens, the model's context is {context_length}")
    for name in ("target_tokens", *LOSSES[loss].inputs):
        values = datum.loss_inputs.get(name)
        if values is None and name in OPTIONAL_INPUTS:
            continue
        if values is None:
            raise BadRequest(f"{loss} needs loss_fn_inputs[{name!r}]")
        if values.shape != tokens.shape:
            raise BadRequest(f"{name} has shape {values.shape}, model_input has {len(tokens)} tokens")
        if name == "target_tokens":
            _check_tokens(values, vocab_size, name)
        elif not (finite := np.isfinite(values)).all():
            raise BadRequest(f"{name} has a value that is not finite, at position {int(np.argmin(finite))}")
    if LOSSES[loss].divergence:
        if datum.sampler is None:
            raise BadRequest(f"{loss} needs the sampler's recorded distributions")
        _check_tokens(datum.sampler.tokens, vocab_size, "the recorded distribution")
    if MASK in LOSSES[loss].inputs and not datum.loss_inputs[MASK].any():
        raise BadRequest(f"{MASK} marks no token: it has to be 1 on those that were sampled")


def _check_sample(spec: SampleSpec, vocab_size: int, context_length: int, *, has_tokenizer: bool) -> None:
    """A sampling request must have a prompt that leaves room in the context and settings within their ranges."""
    if not spec.prompt:
        raise BadRequest("the prompt is empty")
    _check_tokens(np.asarray(spec.prompt), vocab_size, "the prompt")
    scores_only = spec.prompt_logprobs or spec.topk_prompt_logprobs > 0
    if len(spec.prompt) > context_length - (0 if scores_only else 1):
        raise BadRequest(
            f"the prompt has {len(spec.prompt)} tokens and leaves no room in the model's context of {context_length}"
        )
    if not 1 <= spec.num_samples <= MAX_SAMPLES:
        raise BadRequest(f"num_samples must be at least 1 and at most {MAX_SAMPLES}, not {spec.num_samples}")
    if spec.max_tokens < 1:
        raise BadRequest(f"max_tokens must be at least 1, not {spec.max_tokens}")
    if spec.temperature != 0 and not COLDEST <= spec.temperature <= HOTTEST:
        raise BadRequest(
            f"temperature must be 0 (greedy), or from {COLDEST:g} to {HOTTEST:g}, not {spec.temperature}: dividing by "
            "less overflows"
        )
    if not 0 < spec.top_p <= 1:
        raise BadRequest(f"top_p must be in (0, 1], not {spec.top_p}")
    if spec.top_k < -1:
        raise BadRequest(f"top_k must be positive, or -1 or 0 for no limit, not {spec.top_k}")
    if not 0 <= spec.topk_prompt_logprobs <= MAX_TOP_K_LOGPROBS:
        raise BadRequest(
            f"topk_prompt_logprobs must not be negative, nor more than {MAX_TOP_K_LOGPROBS}, "
            f"but is {spec.topk_prompt_logprobs}"
        )
    if spec.stop_tokens:
        _check_tokens(np.asarray(spec.stop_tokens), vocab_size, "stop")
    if spec.stop_strings and not has_tokenizer:
        raise BadRequest("stop strings need a tokenizer, and the model's folder has none: use stop token ids")
