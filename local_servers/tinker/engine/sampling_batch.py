"""Continuous batching: every step runs one token of each running sample and a chunk of each waiting prompt.

1. All rows of a step go through the linear layers together, in row-exact tiles; attention and draws keep requests
   apart. So a request's result does not depend on what runs beside it, nor on the threads that steps are dealt to.
2. A prompt is prefilled once, whatever its number of samples, in chunks cut at multiples of `PREFILL_CHUNK`. What a
   request for one sample has computed of its prompt serves all such requests that begin with the same tokens: those
   beside it, and those that follow while it is kept (`KeptPrompts`).
3. Where more samples would run than fit in a step, the requests that came first run, and the next begins as soon as
   enough of their samples have ended.
"""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch

from local_servers.tinker.engine.cached_attention import GroupCache, SampleAttention, Segment
from local_servers.tinker.engine.causal_lm import BaseModel, Weights
from local_servers.tinker.engine.decoding import StopRule, UniformDraws, draw_tokens
from local_servers.tinker.engine.row_exact import padded_rows
from local_servers.tinker.engine.slot_caches import CHUNK, KeptPrompts, SlotCache, SlotPool, longer_prefix
from local_servers.tinker.engine_types import SampledSequence, SampleResult, SamplerTopK, SampleSpec

PREFILL_CHUNK = 512
PREFILL_ROWS = 4 * PREFILL_CHUNK  # prompt tokens in one step; more would make running samples wait
_THREAD_OPERATIONS = 2e9
"""Multiplications and additions of a step from which a thread of its own pays for the requests that do them."""
_THREAD_ROWS = 64
"""The same in rows, where products are bfloat16 and threads soon wait for each other's Python: with SmolLM2-135M a step
of 48 rows took 254 ms in one thread and 396 ms in two, one of 128 rows 390 and 300 ms."""
_KEPT_BYTES = 256 << 20  # of prompts that were computed for requests that have ended
_WORTH_WAITING = CHUNK  # prompt tokens for whose computation a request waits some steps


class RunningRequest:
    """One sampling request on its way: its cache, its draws, and the samples that still run."""

    def __init__(self, model: BaseModel, weights: Weights, spec: SampleSpec, tokenizer: Any | None) -> None:
        """`spec` has been checked. `tokenizer` (None: the model has none) is for stop strings."""
        self.weights = weights
        self.spec = spec
        self.error: Exception | None = None
        n, length = spec.num_samples, len(spec.prompt)
        limit = min(spec.max_tokens, model.context_length - length)  # 0: only the prompt's log-probabilities
        self._stop = StopRule(spec, limit, tokenizer)
        self._draws = UniformDraws(spec.seed, range(spec.first_sample, spec.first_sample + n))
        shape = model.n_layers, model.n_kv_heads, model.head_dim
        # A SlotCache's tensors come from the batch's SlotPool, in `reserve`; several samples have tensors of their own,
        # in which the prompt is stored once.
        self.cache: GroupCache | SlotCache = (
            SlotCache(length) if n == 1 else GroupCache(*shape, length, n, model.device)
        )
        self.prompt = np.array(spec.prompt)
        # How much of the prompt others have computed, and its keys and values, to be copied before the next step.
        self.prefix: tuple[int, Callable[[], list[torch.Tensor]]] | None = None
        self.drawn_from: torch.Tensor | None = None  # logits of the last step, from which the next tokens are drawn
        # Per sample. What is recorded at each token is the likeliest tokens' ids and log-probabilities.
        self._tokens: list[list[int]] = [[] for _ in range(n)]
        self._logprobs: list[list[float]] = [[] for _ in range(n)]
        self._recorded_top_k: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(n)]
        self._reasons: list[str | None] = [None if limit > 0 else "length"] * n
        self._running = list(range(n)) if limit > 0 else []  # samples that have not ended
        # Per prompt token. Nothing predicts the first one, hence None.
        self._prompt_logprobs: list[float | None] = [None]
        self._prompt_top_k: list[list[tuple[int, float]] | None] = [None]

    @property
    def prefilling(self) -> bool:
        return self.cache.prompt_filled < len(self.spec.prompt)

    @property
    def done(self) -> bool:
        return self.error is not None or (not self.prefilling and not self._running)

    @property
    def rows(self) -> int:
        """How many rows its next step takes."""
        if self.prefilling:
            known = self.cache.prompt_filled if self.prefix is None else self.prefix[0]
            return min(PREFILL_CHUNK, len(self.spec.prompt) - known)
        return len(self._running)

    @property
    def lanes(self) -> int:
        """How many rows its steps take once its prompt is read."""
        return max(1, len(self._running))

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.spec.prompt_logprobs or self.spec.topk_prompt_logprobs > 0

    def reserve(self, slots: SlotPool) -> None:
        """Makes room for its next step. Raises OutOfMemory if there is none."""
        # As it grows: room for max_tokens at once would often be refused, and few completions get that long.
        if isinstance(self.cache, GroupCache):
            if not self.prefilling:
                self.cache.reserve()
            return
        slots.reserve(self.cache)
        if self.prefix is not None:
            positions, source = self.prefix
            for own, other in zip(self.cache.tensors(positions), source(), strict=True):
                own.copy_(other[:positions])
            self.cache.prompt_filled = positions
            self.prefix = None

    def inputs(self) -> tuple[list[int], list[int]]:
        """Tokens and positions of its next step's rows."""
        if self.prefilling:
            start = self.cache.prompt_filled
            positions = list(range(start, start + self.rows))
            return [self.spec.prompt[i] for i in positions], positions
        position = len(self.spec.prompt) + self.cache.generated
        return [self._tokens[i][-1] for i in self._running], [position] * len(self._running)

    def logit_rows(self) -> slice:
        """Which of its rows need logits."""
        if not self.prefilling or self.wants_prompt_logprobs:
            return slice(0, self.rows)
        return slice(self.rows - 1, self.rows)

    def advance(self, logits: torch.Tensor) -> None:
        """Takes the logits of `logit_rows`: notes prompt log-probabilities, and those to draw the next tokens from."""
        if self.prefilling:
            self.cache.prompt_filled += self.rows
            if self.wants_prompt_logprobs:
                self._note_prompt(logits)
            if self.prefilling or not self._running:
                return
            logits = logits[-1:]
        else:
            self.cache.generated += 1
        self.drawn_from = logits

    def uniforms(self) -> np.ndarray:
        """The numbers (samples,) that decide its next tokens."""
        return self._draws.at(len(self._tokens[self._running[0]]))[self._running]

    def take(self, tokens: list[int], logprobs: list[float]) -> None:
        """Appends the next token of each running sample, which was drawn from `drawn_from`."""
        logits, self.drawn_from = self.drawn_from, None  # all of the step's are held with them
        if self.spec.record_top_k > 0 and logits is not None:
            best = logits.log_softmax(dim=1).topk(min(self.spec.record_top_k, logits.shape[1]), dim=1)
            n = len(self._running)  # of (1, V) shared by all too
            ids, values = (part.expand(n, -1).cpu().numpy() for part in (best.indices, best.values))
            for place, sample in enumerate(self._running):
                self._recorded_top_k[sample].append((ids[place], values[place]))
        keep = []
        for place, (sample, token, logprob) in enumerate(zip(self._running, tokens, logprobs, strict=True)):
            self._tokens[sample].append(token)
            self._logprobs[sample].append(logprob)
            self._reasons[sample] = self._stop.reason(self._tokens[sample])
            if self._reasons[sample] is None:
                keep.append(place)
        # Cut as samples end: their part of the cache is what the next step would read in vain.
        if keep and len(keep) < len(self._running) and isinstance(self.cache, GroupCache):
            self.cache.keep(keep)
        self._running = [self._running[place] for place in keep]

    def _note_prompt(self, logits: torch.Tensor) -> None:
        """Log-probabilities of the prompt tokens that follow this chunk's rows."""
        following = self.spec.prompt[len(self._prompt_logprobs) : self.cache.prompt_filled + 1]
        logprobs = logits[: len(following)].log_softmax(dim=1)
        index = torch.tensor(following, dtype=torch.long, device=logits.device)
        self._prompt_logprobs += logprobs.gather(1, index[:, None])[:, 0].tolist()
        k = min(self.spec.topk_prompt_logprobs, logits.shape[1])
        if k > 0:
            best = logprobs.topk(k, dim=1)
            rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            self._prompt_top_k += [list(zip(ids, values, strict=True)) for ids, values in rows]

    def result(self) -> SampleResult:
        def top_k(recorded: list[tuple[np.ndarray, np.ndarray]]) -> SamplerTopK | None:
            if not recorded:
                return None
            ids, values = (np.stack(part) for part in zip(*recorded, strict=True))
            return SamplerTopK(np.arange(len(recorded)), ids.astype(np.int32), values)

        samples = zip(self._tokens, self._logprobs, self._reasons, map(top_k, self._recorded_top_k), strict=True)
        return SampleResult(
            [SampledSequence(*sample) for sample in samples],  # type: ignore[arg-type]
            self._prompt_logprobs if self.spec.prompt_logprobs else None,
            self._prompt_top_k if self.spec.topk_prompt_logprobs > 0 else None,
        )


def _each_alone(work: Callable[[list[RunningRequest]], None], requests: list[RunningRequest], error: Exception) -> None:
    """What follows where `work` on `requests` failed: it is done for each by itself, and one alone has the error."""
    if len(requests) == 1:
        requests[0].error = error
    else:
        for request in requests:
            work([request])


class SamplingBatch:
    """The `requests` that run now. One thread adds them and calls `step`."""

    def __init__(self, model: BaseModel, max_rows: int, threads: int) -> None:
        self._model = model
        self._max_rows = max_rows
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sampling")
        self._threads = threads
        self._slots = SlotPool(model.n_layers, model.n_kv_heads, model.head_dim, model.device)
        self._kept = KeptPrompts(_KEPT_BYTES)
        self.requests: list[RunningRequest] = []

    def step(self) -> list[RunningRequest]:
        """Runs one step: a chunk of the prompt or one token per sample of as many requests as fit. Returns the requests
        that it finished, or that failed (`error` is then set)."""
        chosen = self._choose()
        by_weights: dict[int, list[RunningRequest]] = {}
        for request in chosen:
            try:
                request.reserve(self._slots)  # memory for what this step adds to its cache
                by_weights.setdefault(id(request.weights), []).append(request)
            except Exception as error:  # of this request alone: the others run
                request.error = error  # which makes it `done`
        # Together only where the weights are the same object: requests for the old policy and for the new one may run
        # side by side.
        shares = [share for requests in by_weights.values() for share in self._split_over_threads(requests)]
        # A single share, or a single thread, runs here: for another thread, PyTorch would allocate buffers on a GPU.
        if self._threads == 1 or len(shares) == 1:
            for share in shares:
                self._run(share)
        else:
            list(self._pool.map(self._run, shares))
        finished = [request for request in chosen if request.done]
        for request in finished:
            # Keep its prompt's keys and values for later prompts that begin with the same tokens: only in slots do
            # their bits not depend on how the prompt was cut into chunks.
            if isinstance(request.cache, SlotCache) and request.error is None and not request.wants_prompt_logprobs:
                self._kept.add(request.weights, request.prompt, request.cache.tensors(len(request.prompt)))
        self.requests = [request for request in self.requests if not request.done]
        return finished

    def _choose(self) -> list[RunningRequest]:
        """Requests for the next step, in the order in which they came: all whose samples fit in it, the first in any
        case. Of prompts as many chunks as fit; at least one."""
        chosen: list[RunningRequest] = []
        lanes = prompt_rows = 0
        for request in self.requests:
            lanes += request.lanes
            if chosen and lanes > self._max_rows:
                break
            if request.prefilling:
                if self._awaits_prefix(request):
                    continue
                if prompt_rows and prompt_rows + request.rows > PREFILL_ROWS:
                    continue
                prompt_rows += request.rows
            chosen.append(request)
        return chosen

    def _awaits_prefix(self, request: RunningRequest) -> bool:
        """Sets `prefix`, what others have computed of the request's prompt. True where one that came before it is about
        to compute much more of it, which it had better await."""
        if not isinstance(request.cache, SlotCache) or request.cache.filled or request.wants_prompt_logprobs:
            return False  # it has begun already, or wants logits of its prompt
        found, kept = self._kept.find(request.weights, request.prompt)
        source: Callable[[], list[torch.Tensor]] = partial(list, kept)
        for other in itertools.takewhile(lambda other: other is not request, self.requests):
            if isinstance(other.cache, SlotCache) and other.weights is request.weights:
                shared = longer_prefix(request.prompt[:-1], other.prompt, found)
                computed = min(shared, other.cache.prompt_filled)
                if computed > found:
                    found, source = computed, partial(other.cache.tensors, computed)  # it may move first
                if shared - found >= _WORTH_WAITING:
                    return True
        request.prefix = (found, source) if found else None
        return False

    def _split_over_threads(self, requests: list[RunningRequest]) -> list[list[RunningRequest]]:
        """Splits a step's requests into shares of about as many rows each, which threads run side by side; fewer than
        threads where there is so little to do that a thread costs more than it saves."""
        rows = sum(request.rows for request in requests)
        # How many threads the step is worth: by its multiplications, and in bfloat16 by its rows.
        worth = 2 * self._model.n_weights * rows / _THREAD_OPERATIONS
        if self._model.dtype == torch.bfloat16:
            worth = min(worth, rows / _THREAD_ROWS)
        count = int(min(self._threads, len(requests), max(1, worth)))
        if count == 1:
            return [requests]
        shares: list[list[RunningRequest]] = [[] for _ in range(count)]
        filled = [0] * count  # rows of each share

        def add(request: RunningRequest, share: int) -> None:
            shares[share].append(request)
            filled[share] += request.rows

        own_cache = [request for request in requests if isinstance(request.cache, GroupCache)]
        for request in sorted(own_cache, key=lambda request: -request.rows):  # the largest first, to even out
            add(request, filled.index(min(filled)))
        # One attention call takes neighbouring slots of a block, and computes those between distant ones in vain. So
        # requests in slots fill one share after the other, in the order of their slots.
        in_slots = [
            ((id(request.cache.slots), request.cache.slot), request)
            for request in requests
            if isinstance(request.cache, SlotCache)
        ]
        for _, request in sorted(in_slots, key=lambda pair: pair[0]):
            # At most half of the request goes over an even share.
            with_space = (share for share in range(count) if filled[share] + request.rows / 2 <= rows / count)
            add(request, next(with_space, filled.index(min(filled))))
        return [share for share in shares if share]

    @torch.inference_mode()
    def _run(self, requests: list[RunningRequest]) -> None:
        """One step of requests that share their weights. Where the pass as a whole fails, each is run by itself, which
        gives it the same bits: a fault is of the request that it concerns alone."""
        try:
            logits = self._forward(requests)
        except Exception as error:
            _each_alone(self._run, requests, error)
            return
        drawing: dict[object, list[RunningRequest]] = {}
        for request, its_logits in zip(requests, logits, strict=True):
            try:
                request.advance(its_logits)
            except Exception as error:
                request.error = error
                continue
            if request.drawn_from is not None:
                spec = request.spec
                alike = (spec.temperature, spec.top_k, spec.top_p) if spec.num_samples == 1 else request
                drawing.setdefault(alike, []).append(request)
        for together in drawing.values():
            self._draw(together)

    def _draw(self, requests: list[RunningRequest]) -> None:
        """Draws the next tokens of requests that draw alike; where that fails, of each by itself."""
        uniforms = [request.uniforms() for request in requests]
        try:
            logits = [request.drawn_from for request in requests if request.drawn_from is not None]
            shared = logits[0] if len(logits) == 1 else torch.cat(logits)
            drawn = draw_tokens(shared, requests[0].spec, np.concatenate(uniforms))
        except Exception as error:
            _each_alone(self._draw, requests, error)
            return
        tokens, logprobs = (iter(values.tolist()) for values in drawn)
        for request, its in zip(requests, uniforms, strict=True):
            count = len(its)
            try:
                request.take(list(itertools.islice(tokens, count)), list(itertools.islice(logprobs, count)))
            except Exception as error:
                request.error = error

    def _forward(self, requests: list[RunningRequest]) -> tuple[torch.Tensor, ...]:
        """Runs one forward pass over the next rows of all `requests`, which have the same weights. Returns per request
        the logits that it wants of its rows (those to draw from, or all of a prompt). A pass that fails can be repeated
        for each request by itself: it then writes the same keys and values into the caches again."""
        tokens: list[int] = []
        positions: list[int] = []
        segments = []
        logit_rows: list[int] = []
        n_logits = []  # per request
        for request in requests:
            start = len(tokens)
            segments.append(Segment(start, start + request.rows, request.cache, request.prefilling))
            wanted = request.logit_rows()
            n_logits.append(wanted.stop - wanted.start)
            logit_rows += range(start + wanted.start, start + wanted.stop)
            its_tokens, its_positions = request.inputs()
            tokens += its_tokens
            positions += its_positions
        # Whole tiles: the library picks kernels, and so bits, by the number of rows.
        padding = [0] * (padded_rows(len(tokens)) - len(tokens))
        weights = requests[0].weights
        hidden = self._model.hidden(
            weights,
            torch.tensor(tokens + padding, device=self._model.device),
            torch.tensor(positions + padding, device=self._model.device),
            SampleAttention(segments),
            row_exact=True,
        )
        return self._model.row_exact_logits(weights, hidden[logit_rows]).split(n_logits)
