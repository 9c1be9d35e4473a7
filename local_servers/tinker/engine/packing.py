"""Packing training sequences, and attention over them: a shared prefix is computed once, micro-batches stay under a
token budget.

Sequences are sorted, so that those of a group stand side by side; a run of neighbours becomes one `PackedGroup` when
sharing their longest common prefix saves rows. Its rows are the prefix, then the suffixes in buckets of near-equal
length (padded at the end, where causal attention never looks). A group that is larger than a micro-batch becomes a
`Series`: the prefix has a pass of its own, from which micro-batches of suffixes go on. A suffix attends to the prefix
and to itself, and gradients of all suffixes flow back into the one copy of the prefix.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

_BUCKET_WASTE = 0.15  # the share of padding that a bucket may have before another one is opened
_BUCKET_KEYS = 16384  # keys of a bucket, prefix copies included; bounds its memory
_ROWS_PER_PREFIX_ROW = 8
"""A series has about so many suffix rows for each row of its prefix: with more, one thread would have most to do."""
_QUERY_BLOCK = 512  # suffix positions attended at a time, so that the mask stays small


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
    """The rows (T,), numbered through a series, of the tokens of the request's datum with index `number`."""

    number: int
    rows: np.ndarray


@dataclass(frozen=True)
class MicroBatch:
    """Packed rows: `tokens` and `positions` (R,), the groups they form, and the rows of each datum. In a series with a
    prefix, groups have none, and their suffixes attend to the series's."""

    tokens: np.ndarray
    positions: np.ndarray
    groups: tuple[PackedGroup, ...]
    datum_rows: tuple[DatumRows, ...]


class Series(NamedTuple):
    """`prefix` (P,) tokens that are run once, and the micro-batches of suffixes that go on from them; P is 0 where the
    one micro-batch has its prefixes in itself. Rows are numbered from those of the prefix through all micro-batches."""

    prefix: np.ndarray
    batches: list[MicroBatch]

    @property
    def rows(self) -> int:
        return len(self.prefix) + sum(len(batch.tokens) for batch in self.batches)


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
    """Groups suffixes of one prefix, given their `lengths`, into buckets with little padding, each of which is padded
    to its longest and computed at once. Returns indices into `lengths` per bucket, longest first, without empty
    suffixes. `most_keys` bounds the keys of a bucket of several, whose suffixes each get a copy of the prefix's."""
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

    def __init__(self, rows_before: int = 0) -> None:
        """`rows_before` are those of its series, the prefix among them; 0: the micro-batch has its prefixes in
        itself."""
        self.rows = 0
        self._rows_before = rows_before
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
        start, own_prefix = self.rows, 0 if self._rows_before else prefix
        if own_prefix:
            self._put(sequences[members[0]][:prefix], 0, prefix)
        prefix_rows = np.arange(prefix) + (start if own_prefix else 0)
        suffixes = [sequences[member][prefix:] for member in members]
        suffix_rows = [np.empty(0, dtype=np.int64)] * len(members)
        buckets = []
        for places in bucket_by_length([len(suffix) for suffix in suffixes], prefix, _BUCKET_KEYS):
            length = len(suffixes[places[0]])
            buckets.append(Bucket(self.rows, len(places), length))
            for place in places:
                row = self._put(suffixes[place], prefix, length) + self._rows_before
                suffix_rows[place] = np.arange(row, row + len(suffixes[place]))
        self._groups.append(PackedGroup(start, own_prefix, tuple(buckets)))
        self._datum_rows += [
            DatumRows(member, np.concatenate([prefix_rows, rows]))
            for member, rows in zip(members, suffix_rows, strict=True)
        ]

    def finish(self) -> MicroBatch:
        tokens, positions = np.concatenate(self._tokens), np.concatenate(self._positions)
        return MicroBatch(tokens, positions, tuple(self._groups), tuple(self._datum_rows))


def pack(sequences: list[np.ndarray], usual_tokens: int) -> list[Series]:
    """Packs token sequences into micro-batches of about `usual_tokens` rows; one sequence alone may be longer. Those
    with a common prefix share its rows. The result does not depend on the order of the sequences."""
    packed = []
    packer = _Packer()
    no_prefix = np.empty(0, dtype=np.int64)
    for prefix, members in group_by_prefix(sequences):
        suffix_rows = sum(len(sequences[member]) - prefix for member in members)
        too_large = suffix_rows > 0 and prefix + suffix_rows > usual_tokens
        if too_large and prefix * _ROWS_PER_PREFIX_ROW > usual_tokens:
            packed += _series(sequences, prefix, members, usual_tokens)
            continue
        while members:
            taken = _fitting(sequences, prefix, members, usual_tokens - prefix)
            size = prefix + sum(len(sequences[member]) - prefix for member in members[:taken])
            # A group stays whole where it can: split, its prefix is computed once more.
            if packer.rows and packer.rows + size > usual_tokens:
                packed.append(Series(no_prefix, [packer.finish()]))
                packer = _Packer()
            packer.add(sequences, prefix, members[:taken])
            members = members[taken:]
    if packer.rows:
        packed.append(Series(no_prefix, [packer.finish()]))
    return packed


def _fitting(sequences: list[np.ndarray], prefix: int, members: list[int], rows: int) -> int:
    """How many of the first `members` have at most so many rows after their prefix; at least one."""
    ends = np.cumsum([len(sequences[member]) - prefix for member in members])
    return int(np.searchsorted(ends, max(rows, ends[0]), side="right"))


def _series(sequences: list[np.ndarray], prefix: int, members: list[int], usual_tokens: int) -> list[Series]:
    """The members of one group, in micro-batches of similar lengths, which are dealt to several series where each gets
    `_ROWS_PER_PREFIX_ROW` rows per row of the prefix: each runs the prefix once, and threads can share the group."""
    members = sorted(members, key=lambda member: -len(sequences[member]))
    parts = []
    while members:
        taken = _fitting(sequences, prefix, members, usual_tokens)
        parts.append(members[:taken])
        members = members[taken:]
    wanted = max(1, len(parts) * usual_tokens // (prefix * _ROWS_PER_PREFIX_ROW))
    packed = []
    for number in range(wanted):
        batches: list[MicroBatch] = []
        rows = prefix
        for part in parts[number::wanted]:  # each series has long ones and short ones
            packer = _Packer(rows)
            packer.add(sequences, prefix, part)
            batches.append(packer.finish())
            rows += packer.rows
        packed.append(Series(sequences[parts[0][0]][:prefix], batches))
    return packed


class KeysAndValues(NamedTuple):
    """Those of a layer, each (rows, KV, d)."""

    keys: torch.Tensor
    values: torch.Tensor


class TreeAttention:
    """Attention of one micro-batch: q (R, H, d), k and v (R, KV, d) -> (R, H, d)."""

    def __init__(self, groups: tuple[PackedGroup, ...], prefix: list[KeysAndValues] | None = None) -> None:
        """`prefix`, by layer, is of the prefix that all suffixes go on from, where the micro-batch does not have it."""
        self._groups = groups
        self._prefix = prefix
        self._masks: dict[tuple[int, int, int], torch.Tensor] = {}

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        outs = []
        v = v.contiguous()  # what is kept of it would else keep the rows of q and k that it is a part of
        for group in self._groups:
            rows = slice(group.start, group.start + group.prefix)
            prefix = KeysAndValues(k[rows], v[rows]) if self._prefix is None else self._prefix[layer]
            if group.prefix:
                outs.append(_prefix(q[rows], k[rows], v[rows], scale))
            outs += [self._bucket(bucket, prefix, q, k, v, scale) for bucket in group.buckets]
        return torch.cat(outs)

    def _bucket(
        self, bucket: Bucket, prefix: KeysAndValues, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attention of a bucket, whose suffixes each see the prefix and themselves: q is (R, H, d), k and v are (R, KV,
        d), the result (rows of the bucket, H, d)."""
        n, length = bucket.count, bucket.length
        (heads, d), kv = q.shape[1:], k.shape[1]
        group = heads // kv  # query heads that share a key head
        rows = slice(bucket.start, bucket.start + n * length)
        # (n, KV, prefix and suffix, d)
        keys, values = (_suffix_keys(x, before, rows, n) for x, before in zip((k, v), prefix, strict=True))
        outs = []
        for start in range(0, length, _QUERY_BLOCK):  # blocks of query positions, so that masks stay small
            stop = min(start + _QUERY_BLOCK, length)
            seen = len(prefix.keys) + stop  # the keys up to the block's last query
            # (n, KV, group * (stop - start), d): the heads of a group are folded into the query positions.
            queries = _suffix_queries(q, rows, n, kv, start, stop)
            # Copies would take too much memory if they were kept: the backward pass makes each of them again.
            again = (
                partial(_suffix_queries, q.detach(), rows, n, kv, start, stop),
                partial(_suffix_keys, k.detach(), prefix.keys.detach(), rows, n, seen),
                partial(_suffix_keys, v.detach(), prefix.values.detach(), rows, n, seen),
            )
            inputs = queries, keys[:, :, :seen], values[:, :, :seen]
            out = _attention(inputs, again, attn_mask=self._mask(seen, stop - start, group, q.device), scale=scale)
            outs.append(out.view(n, kv, group, stop - start, d))
        by_head = torch.cat(outs, dim=3)  # (n, KV, group, length, d)
        return by_head.permute(0, 3, 1, 2, 4).reshape(n * length, heads, d)

    def _mask(self, seen: int, queries: int, repeat: int, device: torch.device) -> torch.Tensor:
        """(repeat * queries, seen), 0 or -inf: the last `queries` of `seen` positions, each sees those up to itself.
        Not of booleans, which would be turned into such a mask, and kept for the backward pass, in every layer."""
        key = (seen, queries, repeat)
        if key not in self._masks:
            mask = torch.full((queries, seen), -torch.inf, device=device)
            self._masks[key] = mask.triu(seen - queries + 1).repeat(repeat, 1)
        return self._masks[key]


def _suffix_queries(q: torch.Tensor, rows: slice, count: int, n_kv_heads: int, start: int, stop: int) -> torch.Tensor:
    """Positions start .. stop of a bucket's suffixes, of q (R, H, d): (count, KV, positions of each head, d)."""
    of_heads = q[rows].view(count, -1, n_kv_heads, q.shape[1] // n_kv_heads, q.shape[2]).permute(0, 2, 3, 1, 4)
    return of_heads[:, :, :, start:stop].reshape(count, n_kv_heads, -1, q.shape[2])


def _suffix_keys(
    x: torch.Tensor, prefix: torch.Tensor, rows: slice, count: int, seen: int | None = None
) -> torch.Tensor:
    """The first `seen` keys, or values, of each of a bucket's suffixes, those of the prefix (P, KV, d) and its own of x
    (R, KV, d): (count, KV, seen, d)."""
    own = x[rows].view(count, -1, *x.shape[1:])
    return torch.cat([prefix.expand(count, -1, -1, -1), own], dim=1).transpose(1, 2)[:, :, :seen]


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
    """PyTorch's attention of queries, keys and values, copies of rows that are not kept for the backward pass: it makes
    each of them `again`."""
    made = dict(zip(map(_place, inputs), again, strict=True))

    def take(kept: torch.Tensor | Callable[[], torch.Tensor]) -> torch.Tensor:
        return kept if isinstance(kept, torch.Tensor) else kept()

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: made.get(_place(tensor), tensor), take):
        return F.scaled_dot_product_attention(*inputs, **options)


def _place(x: torch.Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return x.data_ptr(), x.shape, x.stride()
