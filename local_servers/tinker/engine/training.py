"""forward and forward_backward of one request.

1. Sequences are packed with shared prefixes (`packing`) and run through the adapter's weights (`adapter`).
2. The unembedding is not part of the autograd graph: log-probabilities are taken in chunks of rows, and the loss's
   gradient goes back through it in closed form. So no (tokens x vocabulary) matrix is kept.
3. Series of micro-batches are dealt to a fixed number of lanes, which threads work off side by side. Packing, dealing
   and the order of every sum depend on the request's content alone, hence so do the bits, however many cores there are.
"""

import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from local_servers.tinker.engine.adapter import Adapter
from local_servers.tinker.engine.causal_lm import UNEMBED, BaseModel, RowAttention, Weights, merges, unembedded
from local_servers.tinker.engine.losses import checked_config, scored_tokens, token_losses
from local_servers.tinker.engine.packing import KeysAndValues, PackedGroup, Series, TreeAttention, pack
from local_servers.tinker.engine.row_exact import gemm
from local_servers.tinker.engine_types import LossOutput, TrainDatum

LANES = 4
"""Sums of gradients kept apart, hence how many threads can work; each costs the memory of the factors' gradients."""
_CACHE_ROWS = 2048
"""Rows of a micro-batch: activations then stay in the processor's cache (measured best of 512 to 16,384 on nano)."""
_ACTIVATION_BYTES = 600_000_000
"""What a micro-batch may keep for its backward pass; as many are under way as there are cores."""
_LEAST_ROWS = 256  # products of fewer rows are slower
_GPU_ROWS = 8192
_LOGIT_ELEMENTS = 6_000_000  # logits computed at a time: rows of a chunk times the vocabulary
_KEPT_ELEMENTS = 4 * _LOGIT_ELEMENTS
"""Log-probabilities that a micro-batch keeps for its backward pass, which computes them again where they are more."""


_Losses = dict[int, tuple[np.ndarray, np.ndarray]]
"""By the datum's index in the request: log-probabilities and losses (T,) of its targets."""


@dataclass(frozen=True)
class _Targets:
    """Which log-probabilities a loss reads of packed rows: pair p is `tokens[p]` at row `rows[p]`; rows ascend."""

    rows: torch.Tensor
    tokens: torch.Tensor

    def chunks(self, n_rows: int, vocab: int) -> Iterator[tuple[int, int, slice]]:
        """(first row, end row, pairs in between) of chunks that cover all rows."""
        size = max(1, _LOGIT_ELEMENTS // vocab)
        edges = torch.searchsorted(self.rows, torch.arange(0, n_rows + size, size, device=self.rows.device)).tolist()
        for number, start in enumerate(range(0, n_rows, size)):
            yield start, min(start + size, n_rows), slice(edges[number], edges[number + 1])


class _Unembedding:
    """Log-probabilities of targets for hidden states (R, hidden), and the way back from their gradients."""

    def __init__(self, hidden: torch.Tensor, weights: Weights, targets: _Targets) -> None:
        self._hidden, self._weights, self._targets = hidden, weights, targets
        self._vocab = len(weights[UNEMBED])
        self._kept: list[torch.Tensor] | None = [] if len(hidden) * self._vocab <= _KEPT_ELEMENTS else None

    @torch.no_grad()
    def target_logprobs(self, *, keep: bool) -> torch.Tensor:
        """Log-probability (pairs,) of every target, float32. `keep` is for `backward`, which then computes less."""
        targets = self._targets
        out = torch.empty(len(targets.rows), device=self._hidden.device)
        for start, stop, pairs in targets.chunks(len(self._hidden), self._vocab):
            logprobs = self._logprobs(self._hidden[start:stop])
            out[pairs] = logprobs[targets.rows[pairs] - start, targets.tokens[pairs]]
            if keep and self._kept is not None:
                self._kept.append(logprobs)
            del logprobs  # before the next are computed
        return out

    def _logprobs(self, x: torch.Tensor) -> torch.Tensor:
        logits = unembedded(x, self._weights)
        return torch.log_softmax(logits, dim=1, out=logits)

    @torch.no_grad()
    def backward(self, slopes: torch.Tensor, unembedding: torch.Tensor, unembed_grads: Weights) -> torch.Tensor:
        """Returns the gradient of sum(slopes * target log-probabilities) for the hidden states (R, hidden); `slopes`
        (pairs,) are the loss's derivatives. `unembedding` is the matrix in the dtype of the layers, and so of this
        pass's products. Adds the gradients of the unembedding's LoRA factors A and B to `unembed_grads`, if these are
        trained. Uses up what `target_logprobs` kept."""
        dtype = unembedding.dtype
        a, b = (self._weights.get(f"{UNEMBED}.lora_{factor}") for factor in "AB")
        grad = torch.zeros_like(self._hidden)
        kept = iter(self._kept or ())
        for start, _, pairs in self._targets.chunks(len(self._hidden), self._vocab):
            # Rows with slope 0, as of prompts and of completions with advantage 0, are left out of the products. A row
            # may have several pairs: `place` is each pair's among the rows that are left.
            live = slopes[pairs] != 0
            rows, place = self._targets.rows[pairs][live].unique_consecutive(return_inverse=True)
            x, its_slopes = self._hidden[rows], slopes[pairs][live]
            known = next(kept, None)
            if known is None:
                logprobs = self._logprobs(x)
            elif len(rows) == len(known):
                logprobs = known
            else:
                logprobs = known[rows - start]
            total = its_slopes.new_zeros(len(rows)).index_add_(0, place, its_slopes)
            # d logprob[target] / d logits = onehot(target) - softmax, summed over the row's targets
            logits_grad = logprobs.exp_().mul_(-total[:, None])
            logits_grad.index_put_((place, self._targets.tokens[pairs][live]), its_slopes, accumulate=True)
            logits_grad = logits_grad.to(dtype)
            del logprobs, known
            plus = None
            if a is not None and b is not None:
                through = gemm(logits_grad, b.to(dtype), transposed=True)
                if not merges(self._weights[UNEMBED]):
                    plus = through, a.to(dtype)
                unembed_grads[f"{UNEMBED}.lora_A"] += through.t() @ x.to(dtype)
                unembed_grads[f"{UNEMBED}.lora_B"] += logits_grad.t() @ gemm(x.to(a.dtype), a).to(dtype)
            grad[rows] = gemm(logits_grad, unembedding, plus, grad.dtype, transposed=True)
            del logits_grad
        self._kept = None
        return grad


class _Read:
    """The log-probabilities that the losses of a series read, of `tokens` at `rows`, in the order of the datums, and
    the losses' derivatives with respect to these (`slopes`), both (pairs,) and filled as they are known."""

    def __init__(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        # Stable: two tokens of one row keep their order, and the sum its bits.
        self.order = np.argsort(rows, kind="stable")
        self.rows, self.tokens = rows[self.order], tokens[self.order]
        self.logprobs = np.empty(len(rows), dtype=np.float32)
        self.slopes = np.empty(len(rows), dtype=np.float32)


class _Pass(NamedTuple):
    """A forward pass: final hidden states (R, hidden), and the places of what is read of them."""

    hidden: torch.Tensor
    unembedding: _Unembedding
    places: np.ndarray


class _Lane:
    """Runs some of a request's series and sums their gradients, on leaves of its own over the same factors."""

    def __init__(
        self, model: BaseModel, weights: Weights, trained: Weights, rounded_unembedding: torch.Tensor | None
    ) -> None:
        """`rounded_unembedding`, of the model's dtype, is for the backward pass; None: there is none."""
        self._model, self._rounded_unembedding = model, rounded_unembedding
        self._backward = rounded_unembedding is not None
        of_unembedding = {name: factor for name, factor in trained.items() if name.startswith(UNEMBED)}
        leaves = {
            name: factor.detach().requires_grad_() for name, factor in trained.items() if name not in of_unembedding
        }
        # Factors that stand beside a matrix are among its weights.
        self._weights = (of_unembedding if merges(weights[UNEMBED]) else {}) | weights | leaves
        self._unembed_grads = {name: torch.zeros_like(factor) for name, factor in of_unembedding.items()}

    def run(self, series: Series, datums: list[TrainDatum], loss: str, config: dict[str, float]) -> _Losses:
        """Returns log-probabilities and losses of the datums of a series, by their index in `datums`; with a backward
        pass adds the gradients to this lane's. A shared prefix goes back last: its gradients are those of its own
        targets, and of the keys and values that the micro-batches have read."""
        of_datums = [each for batch in series.batches for each in batch.datum_rows]
        scored = {each.number: scored_tokens(loss, datums[each.number], config) for each in of_datums}
        read = _Read(
            np.concatenate([each.rows[scored[each.number].positions] for each in of_datums]),
            np.concatenate([scored[each.number].tokens for each in of_datums]),
        )
        start = len(series.prefix)
        keys_and_values: list[KeysAndValues] = []  # of the prefix, by layer
        if start:
            prefix_attention = TreeAttention((PackedGroup(0, start, ()),))

            def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
                v = v.contiguous()  # not a part of what q and k are parts of too
                keys_and_values.append(KeysAndValues(k, v))
                return prefix_attention(layer, q, k, v, scale)

            # Few of its rows have slopes: their log-probabilities are computed again.
            prefix = self._forward(series.prefix, np.arange(start), attend, read, 0, keep=False)
        # Copies in the eyes of autograd: each micro-batch adds its gradients to theirs, and its graph ends there.
        seen = [KeysAndValues(*(x.detach().requires_grad_(x.requires_grad) for x in both)) for both in keys_and_values]
        out: _Losses = {}
        first = 0
        for batch in series.batches:
            attention = TreeAttention(batch.groups, seen or None)
            done = self._forward(batch.tokens, batch.positions, attention, read, start, keep=self._backward)
            start += len(batch.tokens)
            # The losses, each from its datum's share of the log-probabilities.
            for number, rows in batch.datum_rows:
                span = slice(first, first + len(scored[number].tokens))
                first = span.stop
                losses, read.slopes[span] = token_losses(loss, datums[number], read.logprobs[span], config)
                n_targets = len(rows)  # a datum has one target per token, and `scored_tokens` names these first
                out[number] = read.logprobs[span][:n_targets].copy(), losses
            self._go_back(done, read)
            del done  # before the next: what no slope went back through is still whole
        if seen:
            pairs = zip(itertools.chain(*keys_and_values), itertools.chain(*seen), strict=True)
            self._go_back(prefix, read, [(made, copy.grad) for made, copy in pairs if copy.grad is not None])
        return out

    def _forward(
        self,
        tokens: np.ndarray,
        positions: np.ndarray,
        attention: RowAttention,
        read: _Read,
        first_row: int,
        *,
        keep: bool,
    ) -> _Pass:
        """A pass over rows (R,) of a series, from `first_row` on; notes the log-probabilities that are read of them.
        `keep` as for `_Unembedding.target_logprobs`."""
        device = self._model.device
        with torch.set_grad_enabled(self._backward):
            hidden = self._model.hidden(
                self._weights,
                torch.from_numpy(tokens).to(device),
                torch.from_numpy(positions).to(device),
                attention,
                row_exact=False,
            )
        first, end = np.searchsorted(read.rows, [first_row, first_row + len(tokens)])
        rows, its_tokens = torch.from_numpy(read.rows[first:end] - first_row), torch.from_numpy(read.tokens[first:end])
        unembedding = _Unembedding(hidden.detach(), self._weights, _Targets(rows.to(device), its_tokens.to(device)))
        places = read.order[first:end]
        read.logprobs[places] = unembedding.target_logprobs(keep=keep).cpu().numpy()
        return _Pass(hidden, unembedding, places)

    def _go_back(self, done: _Pass, read: _Read, others: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()) -> None:
        """The backward pass of `done`, from the slopes of what was read of it and the gradients of `others`, which it
        has made."""
        ends = list(others)
        slopes = read.slopes[done.places]
        if self._rounded_unembedding is not None and slopes.any():
            slope_tensor = torch.from_numpy(slopes).to(self._model.device)
            grad = done.unembedding.backward(slope_tensor, self._rounded_unembedding, self._unembed_grads)
            if done.hidden.requires_grad:  # not where the unembedding alone is trained
                ends.append((done.hidden, grad))
        if ends:
            torch.autograd.backward([tensor for tensor, _ in ends], [grad for _, grad in ends])

    def grads(self) -> Weights:
        """Gradients of what is trained, by name; what no loss reached has none."""
        grads = {name: weight.grad for name, weight in self._weights.items() if weight.grad is not None}
        return grads | self._unembed_grads


def _rows_per_batch(model: BaseModel) -> int:
    """Rows of a micro-batch, as many as fit what may be kept of it."""
    if model.device.type != "cpu":
        return _GPU_ROWS
    config = model.config
    widths = 8 * config.hidden_size + 4 * getattr(config, "intermediate_size", 4 * config.hidden_size)
    kept = model.n_layers * widths * torch.float32.itemsize  # what backward reads: inputs of norms, products, attention
    return max(_LEAST_ROWS, min(_CACHE_ROWS, _ACTIVATION_BYTES // kept))


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    """The same for all requests: a thread keeps the kernels that it has made."""
    return ThreadPoolExecutor(count, thread_name_prefix="train")


def run_datums(
    model: BaseModel,
    adapter: Adapter,
    datums: list[TrainDatum],
    loss: str,
    loss_config: dict[str, float],
    *,
    backward: bool,
) -> LossOutput:
    """Returns log-probabilities and losses of `datums`, which have been checked; with `backward`, their gradients are
    added to the adapter's."""
    config = checked_config(loss, loss_config)
    sequences = [datum.tokens for datum in datums]
    packed = pack(sequences, _rows_per_batch(model))
    weights = adapter.adapted_weights(model.weights)
    model.join_factors(weights)
    # float32, also where the passes round them to bfloat16: a gradient has their dtype and is summed.
    trained = {name: factor.float() for name, factor in weights.snapshot.factors.items()} if backward else {}
    unembedding = weights[UNEMBED].to(model.dtype) if trained else None  # one copy at most

    def run_lane(its_series: list[Series]) -> tuple[list[_Losses], Weights]:
        lane = _Lane(model, weights, trained, unembedding)
        return [lane.run(series, datums, loss, config) for series in its_series], lane.grads()

    results: _Losses = {}
    grads: Weights = {}
    # A fixed number of lanes, and not one per core: which sums are added to which decides the last bits.
    lanes = [packed[number::LANES] for number in range(min(len(packed), LANES))]
    threads = _threads(min(LANES, len(os.sched_getaffinity(0))))
    # The longest first: begun last, it would have one core at work while the others wait.
    longest_first = sorted(range(len(lanes)), key=lambda number: -sum(series.rows for series in lanes[number]))
    running = {number: threads.submit(run_lane, lanes[number]) for number in longest_first}
    try:
        for number in range(len(lanes)):  # summed in this order, whichever is done first
            losses_of_series, its_grads = running.pop(number).result()
            for its_losses in losses_of_series:
                results |= its_losses
            for name, grad in its_grads.items():
                grads[name] = grads[name].add_(grad) if name in grads else grad
    finally:  # a lane that fails leaves none behind: they would take memory beside the next request
        for lane in running.values():
            lane.cancel()
        wait(running.values())
    if backward:
        adapter.add_grads(grads)
    logprobs, losses = ([results[index][part] for index in range(len(datums))] for part in (0, 1))
    # In float64, and in the order of the datums, whichever lane they were in.
    total = float(sum(float(values.sum(dtype=np.float64)) for values in losses))
    return LossOutput(logprobs, losses, {"loss:sum": total})
