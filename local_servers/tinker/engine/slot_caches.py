"""Key-value caches of requests for one sample: slots side by side, so that one product does the attention of many.

The shapes of a request's matrices follow from positions alone, so that its bits do not depend on what runs beside it:

1. Prompts are computed in chunks cut at multiples of `CHUNK`, each against all keys up to the chunk's end. Positions of
   the chunk that are not computed now have a row all the same, whose result is dropped. So the bits of a position
   depend on the tokens up to it alone: what another request has computed of a prefix has the same bits, and is copied.
2. A new token attends to its slot's whole capacity, which follows from its position. Keys behind it are masked, and 0.

PyTorch's attention for the CPU takes each (slot, head) by itself, so the number of slots changes no bits. What was
decoded, by other shapes, is not taken for a later prompt.
"""

import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from local_servers.memory import OutOfMemory, as_out_of_memory, require_memory
from local_servers.tinker.engine.adapter import SnapshotWeights
from local_servers.tinker.engine.causal_lm import Weights
from local_servers.tinker.engine.packing import common_prefix

CHUNK = 64
_BLOCK_BYTES = 64 << 20  # of a block of slots
_MOST_SLOTS = 32
_MOST_UNUSED = 4  # query positions between two slots that cost less than another call; on a GPU any number does
_GPU_MOST_SLOTS = 512
_GPU_MEMORY_PARTS = 32  # a block is that part of a GPU's memory
_GPU_ROOM = 256
"""Positions that a slot on a GPU has room for beyond those that are needed: to move takes hundreds of calls."""


def capacity_of(positions: int) -> int:
    """The least multiple of CHUNK that holds so many positions; beyond 512 of a fourth of the power of two below."""
    step = max(CHUNK, 1 << max(0, (positions - 1).bit_length() - 3))
    return -(-positions // step) * step


class SlotCache:
    """Keys and values of one request, `slot` of `slots`, which has room for the whole prompt and the next position."""

    def __init__(self, prompt_length: int) -> None:
        self.prompt_length = prompt_length
        self.prompt_filled = 0
        self.generated = 0
        self.slots: Slots | None = None
        self.slot = 0

    @property
    def filled(self) -> int:
        return self.prompt_filled + self.generated

    def tensors(self, positions: int) -> list[torch.Tensor]:
        """The first `positions` keys and values of all layers, views (positions, KV, d); none without a slot."""
        return [] if self.slots is None else [each[self.slot, :positions] for each in self.slots.tensors]


class Slots:
    """A block of slots of one capacity: keys and values (slots, capacity, KV, d), float32, layer by layer."""

    def __init__(self, count: int, shape: tuple[int, int, int], n_layers: int, device: torch.device) -> None:
        self.capacity = shape[0]
        self.tensors = [torch.empty((count, *shape), device=device, dtype=torch.float32) for _ in range(2 * n_layers)]
        self._owners: list[Callable[[], SlotCache | None]] = [lambda: None] * count

    def of_layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tensors[2 * layer], self.tensors[2 * layer + 1]

    def free(self) -> int | None:
        """A slot whose owner is gone, if there is one."""
        return next((slot for slot, owner in enumerate(self._owners) if owner() is None), None)

    def give(self, slot: int, cache: SlotCache) -> None:
        """Moves the cache into the slot, with what it has."""
        filled, before = cache.filled, cache.tensors(cache.filled)
        if cache.slots is not None:
            cache.slots._owners[cache.slot] = lambda: None
        cache.slots, cache.slot, self._owners[slot] = self, slot, weakref.ref(cache)
        for tensor in self.tensors:
            tensor[slot, filled:] = 0  # what was there may be no number, and masking does not make it one
        for own, other in zip(cache.tensors(filled), before, strict=bool(before)):
            own.copy_(other)


class SlotPool:
    """Gives caches their slots. A block lives as long as a cache in it, and a slot is free when its cache is gone."""

    def __init__(self, n_layers: int, n_kv_heads: int, head_dim: int, device: torch.device) -> None:
        self._n_layers, self._n_kv_heads, self._head_dim, self._device = n_layers, n_kv_heads, head_dim, device
        self._block_bytes, self._most_slots, self._room = _BLOCK_BYTES, _MOST_SLOTS, 1
        if device.type == "cuda":
            self._block_bytes = torch.cuda.get_device_properties(device).total_memory // _GPU_MEMORY_PARTS
        if device.type != "cpu":
            self._most_slots, self._room = _GPU_MOST_SLOTS, _GPU_ROOM
        self._blocks: list[weakref.ref[Slots]] = []

    def reserve(self, cache: SlotCache) -> None:
        """Makes room for the prompt and for one more position. Raises OutOfMemory if there is none."""
        if cache.slots is not None and cache.filled < cache.slots.capacity:
            return
        capacity = capacity_of(max(cache.prompt_length, cache.filled) + self._room)
        blocks = [block for ref in self._blocks if (block := ref()) is not None]
        self._blocks = [weakref.ref(block) for block in blocks]
        for block in blocks:
            if block.capacity == capacity and (slot := block.free()) is not None:
                block.give(slot, cache)
                return
        slot_bytes = 2 * self._n_layers * capacity * self._n_kv_heads * self._head_dim * torch.float32.itemsize
        count = max(1, min(self._most_slots, self._block_bytes // slot_bytes))
        what = "the cache of the completions that are being sampled"
        try:
            require_memory(count * slot_bytes, what, self._device.type)
        except OutOfMemory:
            count = 1
            require_memory(slot_bytes, what, self._device.type)
        block = Slots(count, (capacity, self._n_kv_heads, self._head_dim), self._n_layers, self._device)
        self._blocks.append(weakref.ref(block))
        block.give(0, cache)


@dataclass(frozen=True)
class _Rows:
    """Rows of a step that are positions `first`, `first` + 1, ... of one request."""

    cache: SlotCache
    rows: range
    first: int


class _CallShape(NamedTuple):
    """An attention call has `width` query positions of each of its slots of a block, and their first `keys` keys."""

    slots: Slots
    keys: int
    width: int


def _by_shape(rows: range, cache: SlotCache) -> Iterator[tuple[_CallShape, _Rows]]:
    """Cuts a request's rows of a step into those of one call each, whose shape depends on positions alone: a new token
    sees its slot's whole capacity, a prompt row all keys up to the end of its CHUNK."""
    assert cache.slots is not None
    first = cache.filled
    if cache.prompt_filled == cache.prompt_length:  # the prompt is computed: these are new tokens
        yield _CallShape(cache.slots, cache.slots.capacity, width=1), _Rows(cache, rows, first)
        return
    while rows:
        chunk_end = (first // CHUNK + 1) * CHUNK
        in_chunk, rows = rows[: chunk_end - first], rows[chunk_end - first :]
        yield _CallShape(cache.slots, chunk_end, width=CHUNK), _Rows(cache, in_chunk, first)
        first = chunk_end


class _Call:
    """One attention call of a shape, for each slot from the first to the last of those that `parts` are in."""

    def __init__(self, shape: _CallShape, parts: list[_Rows], device: torch.device) -> None:
        numbers = [part.cache.slot for part in parts]
        self._slots, self._keys, self._width = shape
        self._used = slice(min(numbers), max(numbers) + 1)
        count = self._used.stop - self._used.start
        places: list[int] = []
        rows: list[int] = []
        for part in parts:
            place = (part.cache.slot - self._used.start) * self._width + part.first % self._width
            places += range(place, place + len(part.rows))
            rows += part.rows
        self._places, self._rows = (torch.tensor(each, device=device) for each in (places, rows))
        # Places that are no row of the step get any row, whose result is dropped.
        self._index = torch.zeros(count * self._width, dtype=torch.long, device=device)
        self._index[self._places] = self._rows
        # -inf for keys behind a query, else 0: (slots or 1, 1, width, keys).
        positions = torch.arange(self._keys, device=device)
        if self._width > 1:
            queries = positions[None, -self._width :, None]
        else:
            firsts = [0] * count
            for part in parts:
                firsts[part.cache.slot - self._used.start] = part.first
            queries = torch.tensor(firsts, device=device)[:, None, None]
        mask = torch.zeros(len(queries), self._width, self._keys, device=device)
        self._masked = mask.masked_fill_(positions > queries, -torch.inf)[:, None]

    def attend(self, out: torch.Tensor, layer: int, q: torch.Tensor, scale: float) -> None:
        """Writes the results (R, H, d) of its rows, of queries q (R, H, d), into `out`."""
        # (slots, KV, keys, d)
        keys, values = (each[self._used, : self._keys].transpose(1, 2) for each in self._slots.of_layer(layer))
        (count, kv, _, d), heads = keys.shape, q.shape[1]
        group = heads // kv
        if self._masked.shape[2] == self._width > 1:
            self._masked = self._masked.repeat_interleave(group, dim=2)
        # The query heads that share a key head stand in its query positions.
        queries = q.index_select(0, self._index).view(count, self._width, kv, group, d).transpose(1, 2)
        found = F.scaled_dot_product_attention(
            queries.reshape(count, kv, self._width * group, d), keys, values, self._masked, scale=scale
        )
        found = found.view(count, kv, self._width, group, d).transpose(1, 2).reshape(-1, heads, d)
        out.index_copy_(0, self._rows, found.index_select(0, self._places))


def _split_at_gaps(parts: list[_Rows], width: int, most_unused: float) -> Iterator[list[_Rows]]:
    """Splits the parts of one block where a single call would compute more than `most_unused` query positions of slots
    between them, whose results nobody needs."""
    run: list[_Rows] = []
    for part in sorted(parts, key=lambda part: part.cache.slot):
        if run and (part.cache.slot - run[-1].cache.slot - 1) * width > most_unused:
            yield run
            run = []
        run.append(part)
    yield run


class SlotAttention:
    """Attention of the rows of a step that are requests' for one sample; also fills their caches."""

    def __init__(self, segments: list[tuple[range, SlotCache]]) -> None:
        """Plans a step, the same for each layer: where its new keys and values go, and which attention calls there are,
        one for all rows of a shape. A segment is a request's rows in the step, and its cache."""
        stored: dict[Slots, tuple[list[int], list[int]]] = {}  # by block: positions in it, and the rows that go there
        rows_by_shape: dict[_CallShape, list[_Rows]] = {}
        for rows, cache in segments:
            assert cache.slots is not None
            first = cache.slot * cache.slots.capacity + cache.filled  # the slots of a block lie behind each other
            positions, stored_rows = stored.setdefault(cache.slots, ([], []))
            positions += range(first, first + len(rows))
            stored_rows += rows
            for shape, part in _by_shape(rows, cache):
                rows_by_shape.setdefault(shape, []).append(part)
        device = next(iter(stored)).tensors[0].device
        # A call computes all slots from its first to its last, also those between that the step does not need. On the
        # CPU it is split where these cost more than another call; on a GPU another call costs more than any number.
        most_unused = _MOST_UNUSED if device.type == "cpu" else math.inf
        self._stored = [
            (slots, torch.tensor(positions, device=device), torch.tensor(stored_rows, device=device))
            for slots, (positions, stored_rows) in stored.items()
        ]
        self._calls = [
            _Call(shape, neighbours, device)
            for shape, parts in rows_by_shape.items()
            for neighbours in _split_at_gaps(parts, shape.width, most_unused)
        ]

    def attend(
        self, out: torch.Tensor, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> None:
        """Writes the results of its rows into `out` (R, H, d): q (R, H, d), k and v (R, KV, d)."""
        for slots, positions, rows in self._stored:
            for cache, new in zip(slots.of_layer(layer), (k, v), strict=True):
                cache.flatten(0, 1).index_copy_(0, positions, new.index_select(0, rows))
        for call in self._calls:
            call.attend(out, layer, q, scale)


@dataclass(frozen=True, eq=False)
class _Prompt:
    """Its tokens, and the keys and values of them that these weights make, all layers' (tokens, KV, d)."""

    weights: Callable[[], Weights | None]
    tokens: np.ndarray
    tensors: list[torch.Tensor]
    nbytes: int


def longer_prefix(a: np.ndarray, b: np.ndarray, known: int) -> int:
    """How many tokens a and b have in common at their beginning, if those are more than `known`, else 0."""
    if len(a) <= known or len(b) <= known or a[known] != b[known]:  # as almost all that are compared
        return 0
    shared = common_prefix(a, b)
    return shared if shared > known else 0


class KeptPrompts:
    """Keys and values of prompts, those used last, up to `max_bytes`; none of weights that nobody samples from."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._prompts: list[_Prompt] = []

    def add(self, weights: Weights, tokens: np.ndarray, tensors: list[torch.Tensor]) -> None:
        """Keeps a copy of `tensors`, the prompt's keys and values by these weights, for later prompts that begin alike.
        Drops kept prompts that are a beginning of this one, those of weights that are gone, and the oldest if there are
        too many. Keeps none if memory is short."""
        need = sum(tensor.nbytes for tensor in tensors)
        if need > self._max_bytes:
            return

        def begins_this_one(other: _Prompt) -> bool:
            known = len(other.tokens) - 1
            return other.weights() is weights and longer_prefix(tokens, other.tokens, known) > 0

        self._prompts = [each for each in self._prompts if each.weights() is not None and not begins_this_one(each)]
        held = need + sum(each.nbytes for each in self._prompts)
        while held > self._max_bytes:
            held -= self._prompts.pop(0).nbytes
        try:
            require_memory(need, "a prompt that later ones may begin with", tensors[0].device.type)
            copies = [tensor.clone() for tensor in tensors]
        except Exception as error:
            # A device's memory, and what others have taken since, only the allocation shows.
            if as_out_of_memory(error) is None:
                raise
            self._prompts.clear()
            return
        # Weights of a training step are freed when nobody samples from them: do not hold them here.
        holder: Callable[[], Weights | None] = (
            weakref.ref(weights) if isinstance(weights, SnapshotWeights) else lambda: weights
        )
        self._prompts.append(_Prompt(holder, tokens, copies, need))

    def find(self, weights: Weights, tokens: np.ndarray) -> tuple[int, list[torch.Tensor]]:
        """How many of these tokens, the last not among them, the best prompt begins with, and its tensors."""
        found, best = 0, None
        for each in self._prompts:
            if each.weights() is weights and (shared := longer_prefix(tokens[:-1], each.tokens, found)):
                found, best = shared, each
        if best is None:
            return 0, []
        self._prompts.remove(best)
        self._prompts.append(best)
        return found, best.tensors
