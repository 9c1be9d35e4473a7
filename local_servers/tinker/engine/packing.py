"""Packing training sequences, and attention over them: a shared prefix is computed once, micro-batches stay under a
token budget.

Sequences are sorted, so that those of a group stand side by side; a run of neighbours becomes one
`PackedGroup` when sharing their longest common prefix saves rows. Its rows are the prefix, then the suffixes
in buckets of near-equal length (padded at the end, where causal attention never looks).

Prefix tokens attend to the prefix, a suffix to the prefix and to itself. Gradients of all suffixes flow back into the
one copy of the prefix.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

_BUCKET_WASTE = 0.15
"""The share of padding that a bucket may have before another one is opened."""
_BUCKET_KEYS = 16384
"""Keys of a bucket, prefix copies included; bounds its memory."""
_PREFIX_MULTIPLE = 3
"""A long prefix is recomputed in every micro-batch that needs it: such a one may be this many times as large. (Measured
with SmolLM2-135M and prefixes of 211 tokens: 4 takes 0.4 GB more and a tenth more time, 2 a third more time.)"""
_QUERY_BLOCK = 512
"""Suffix positions attended at a time, so that the mask stays small."""


@dataclass(frozen=True)
class Bucket:
    """`count` suffixes of at most `length` tokens each, in rows start .. start + count * length."""

    start: int
    count: int
    length: int


@dataclass(frozen=True)
class PackedGroup:
    """A prefix of `prefix` rows from `start`, and the suffixes that go on from it."""

    start: int
    prefix: int
    buckets: tuple[Bucket, ...]


class DatumRows(NamedTuple):
    """The packed rows of the T tokens of a request's datum; `number` is the datum's index in the request."""

    number: int
    rows: np.ndarray


@dataclass(frozen=True)
class MicroBatch:
    """Packed rows: `tokens` and `positions` (R,), the groups they form, and the rows of each datum in it."""

    tokens: np.ndarray
    positions: np.ndarray
    groups: tuple[PackedGroup, ...]
    datum_rows: tuple[DatumRows, ...]


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def group_by_prefix(sequences: list[np.ndarray]) -> list[tuple[int, list[int]]]:
    """(prefix length, indices of the members) of groups that share a prefix; a sequence alone has its whole length."""
    # By content: the same request packs the same, in whatever order its datums come.
    order = sorted(range(len(sequences)), key=lambda i: sequences[i].tolist())
    groups: list[tuple[int, list[int]]] = []
    for index in order:
        sequence = sequences[index]
        if groups:
            prefix, members = groups[-1]
            shared = common_prefix(sequences[members[-1]][:prefix], sequence)
            size = len(members)
            # rows saved by sharing: prefix * (members - 1); join if that does not become less
            if shared > 0 and shared * size >= prefix * (size - 1):
                groups[-1] = (shared, [*members, index])
                continue
        groups.append((len(sequence), [index]))
    return groups


def bucket_by_length(lengths: list[int], prefix: int, most_keys: int) -> list[list[int]]:
    """Groups suffixes of one prefix, given their `lengths`, into buckets, each of which is padded to its longest and
    computed at once. Returns indices into `lengths` per bucket, longest first; empty suffixes are left out.

    A bucket has little padding. Each of its suffixes gets a copy of the prefix's keys: `most_keys` bounds the keys of a
    bucket of several."""
    buckets: list[list[int]] = []
    filled = 0  # tokens without padding in the last bucket
    for place in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[place]
        if length == 0:
            continue
        if buckets:
            longest, count = lengths[buckets[-1][0]], len(buckets[-1]) + 1
            padding = longest * count - filled - length
            if padding <= _BUCKET_WASTE * longest * count and (prefix + longest) * count <= most_keys:
                buckets[-1].append(place)
                filled += length
                continue
        buckets.append([place])
        filled = length
    return buckets


class _Packer:
    """Collects groups until a micro-batch is full."""

    def __init__(self) -> None:
        self.rows = 0
        self._tokens: list[np.ndarray] = []
        self._positions: list[np.ndarray] = []
        self._groups: list[PackedGroup] = []
        self._datum_rows: list[DatumRows] = []

    def _put(self, tokens: np.ndarray, first_position: int, length: int) -> int:
        start = self.rows
        padded = np.zeros(length, dtype=np.int64)
        padded[: len(tokens)] = tokens
        self._tokens.append(padded)
        self._positions.append(np.arange(first_position, first_position + length))
        self.rows += length
        return start

    def add(self, sequences: list[np.ndarray], prefix: int, members: list[int]) -> None:
        start = self._put(sequences[members[0]][:prefix], 0, prefix)
        prefix_rows = np.arange(start, start + prefix)
        suffixes = [sequences[member][prefix:] for member in members]
        suffix_rows = [np.empty(0, dtype=np.int64)] * len(members)
        buckets = []
        for places in bucket_by_length([len(suffix) for suffix in suffixes], prefix, _BUCKET_KEYS):
            length = len(suffixes[places[0]])
            buckets.append(Bucket(self.rows, len(places), length))
            for place in places:
                row = self._put(suffixes[place], prefix, length)
                suffix_rows[place] = np.arange(row, row + len(suffixes[place]))
        self._groups.append(PackedGroup(start, prefix, tuple(buckets)))
        self._datum_rows += [
            DatumRows(member, np.concatenate([prefix_rows, rows]))
            for member, rows in zip(members, suffix_rows, strict=True)
        ]

    def finish(self) -> MicroBatch:
        tokens, positions = np.concatenate(self._tokens), np.concatenate(self._positions)
        return MicroBatch(tokens, positions, tuple(self._groups), tuple(self._datum_rows))


def pack(sequences: list[np.ndarray], max_tokens: int, usual_tokens: int) -> list[MicroBatch]:
    """Packs token sequences into micro-batches; those with a common prefix (completions of one prompt) share its rows.

    A micro-batch has about `usual_tokens` rows, more for long prefixes, and at most about `max_tokens`; one sequence
    alone may be longer. The same sequences are packed the same in whatever order they come."""
    batches = []
    packer = _Packer()
    for prefix, members in group_by_prefix(sequences):
        budget = min(max_tokens, max(usual_tokens, _PREFIX_MULTIPLE * prefix))
        while members:
            # Take as many members as fit into the budget together with their prefix, at least one.
            taken, size = 0, prefix
            while taken < len(members):
                suffix = len(sequences[members[taken]]) - prefix
                if taken and size + suffix > budget:
                    break
                size += suffix
                taken += 1
            # A group stays whole where it can: split, its prefix is computed once more.
            if packer.rows and packer.rows + size > budget:
                batches.append(packer.finish())
                packer = _Packer()
            packer.add(sequences, prefix, members[:taken])
            members = members[taken:]
    if packer.rows:
        batches.append(packer.finish())
    return batches


class TreeAttention:
    """Attention of one micro-batch: q (R, H, d), k and v (R, KV, d) -> (R, H, d)."""

    def __init__(self, groups: tuple[PackedGroup, ...]) -> None:
        self._groups = groups
        self._masks: dict[tuple[int, int, int], torch.Tensor] = {}

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        outs = []
        v = v.contiguous()  # what is kept of it would else keep the rows of q and k that it is a part of
        for group in self._groups:
            prefix = slice(group.start, group.start + group.prefix)
            outs.append(_prefix(q[prefix], k[prefix], v[prefix], scale))
            outs += [self._bucket(bucket, prefix, q, k, v, scale) for bucket in group.buckets]
        return torch.cat(outs)

    def _bucket(
        self, bucket: Bucket, prefix: slice, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attention of a bucket: the suffixes of one prefix, padded to one length, each see the prefix and themselves.
        Returns (rows of the bucket, H, d). `prefix` are the prefix's rows of q (R, H, d), k and v (R, KV, d)."""
        n, length = bucket.count, bucket.length
        (heads, d), kv = q.shape[1:], k.shape[1]
        group = heads // kv  # query heads that share a key head
        rows = slice(bucket.start, bucket.start + n * length)
        keys, values = (_suffix_keys(x, prefix, rows, n) for x in (k, v))  # (n, KV, prefix and suffix, d)
        outs = []
        for start in range(0, length, _QUERY_BLOCK):  # blocks of query positions, so that masks stay small
            stop = min(start + _QUERY_BLOCK, length)
            seen = prefix.stop - prefix.start + stop  # the keys up to the block's last query
            # (n, KV, group * (stop - start), d): the heads of a group are folded into the query positions.
            queries = _suffix_queries(q, rows, n, kv, start, stop)
            # Copies would take too much memory if they were kept: the backward pass makes each of them again.
            again = (
                partial(_suffix_queries, q.detach(), rows, n, kv, start, stop),
                partial(_suffix_keys, k.detach(), prefix, rows, n, seen),
                partial(_suffix_keys, v.detach(), prefix, rows, n, seen),
            )
            inputs = queries, keys[:, :, :seen], values[:, :, :seen]
            out = _attention(inputs, again, attn_mask=self._mask(seen, stop - start, group, q.device), scale=scale)
            outs.append(out.view(n, kv, group, stop - start, d))
        by_head = torch.cat(outs, dim=3)  # (n, KV, group, length, d)
        return by_head.permute(0, 3, 1, 2, 4).reshape(n * length, heads, d)

    def _mask(self, seen: int, queries: int, repeat: int, device: torch.device) -> torch.Tensor:
        """(repeat * queries, seen), 0 or -inf: the last `queries` of `seen` positions, each sees those up to itself. A
        mask of booleans would be turned into such a one, and kept for the backward pass, in every layer."""
        key = (seen, queries, repeat)
        if key not in self._masks:
            mask = torch.full((queries, seen), -torch.inf, device=device)
            self._masks[key] = mask.triu(seen - queries + 1).repeat(repeat, 1)
        return self._masks[key]


def _suffix_queries(q: torch.Tensor, rows: slice, count: int, n_kv_heads: int, start: int, stop: int) -> torch.Tensor:
    """Positions start .. stop of a bucket's suffixes, of q (R, H, d): (count, KV, positions of each head, d)."""
    of_heads = q[rows].view(count, -1, n_kv_heads, q.shape[1] // n_kv_heads, q.shape[2]).permute(0, 2, 3, 1, 4)
    return of_heads[:, :, :, start:stop].reshape(count, n_kv_heads, -1, q.shape[2])


def _suffix_keys(x: torch.Tensor, prefix: slice, rows: slice, count: int, seen: int | None = None) -> torch.Tensor:
    """The first `seen` keys, or values, of each of a bucket's suffixes, of x (R, KV, d): (count, KV, seen, d)."""
    own = x[rows].view(count, -1, *x.shape[1:])
    return torch.cat([x[prefix].expand(count, -1, -1, -1), own], dim=1).transpose(1, 2)[:, :, :seen]


def _prefix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Plain causal attention, heads of a key repeated."""
    repeat = q.shape[1] // k.shape[1]
    inputs = _heads_first(q), _heads_first(k, repeat), _heads_first(v, repeat)
    again = tuple(partial(_heads_first, x.detach(), times) for x, times in ((q, None), (k, repeat), (v, repeat)))
    out = _attention(inputs, again, is_causal=True, scale=scale)
    return out[0].transpose(0, 1)


def _heads_first(x: torch.Tensor, repeat: int | None = None) -> torch.Tensor:
    """Of x (P, heads, d), (1, heads, P, d), each head `repeat` times."""
    return (x if repeat is None else x.repeat_interleave(repeat, dim=1)).transpose(0, 1)[None]


def _attention(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    again: tuple[Callable[[], torch.Tensor], ...],
    **options: Any,
) -> torch.Tensor:
    """PyTorch's attention of queries, keys and values. They are copies of rows, which would be a fifth of what a
    micro-batch of SmolLM2-135M keeps for its backward pass: that makes each of them `again`."""
    made = dict(zip(map(_place, inputs), again, strict=True))

    def keep(tensor: torch.Tensor) -> torch.Tensor | Callable[[], torch.Tensor]:
        return made.get(_place(tensor), tensor)

    def take(kept: torch.Tensor | Callable[[], torch.Tensor]) -> torch.Tensor:
        return kept if isinstance(kept, torch.Tensor) else kept()

    with torch.autograd.graph.saved_tensors_hooks(keep, take):
        return F.scaled_dot_product_attention(*inputs, **options)


def _place(x: torch.Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return x.data_ptr(), x.shape, x.stride()
