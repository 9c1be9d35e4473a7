"""Kernels whose result for a row depends on that row alone, never on how many other rows are in the batch.

What breaks that in plain torch, and what is done about it:

1. A GEMM can pick other kernels at other row counts, hence other bits. Rows are padded to whole tiles of `TILE`,
   and only numbers of rows are multiplied at once for which the bits were found to be the same.
2. An elementwise op cuts its work into chunks for the threads and finishes each chunk with scalar code. For
   +, *, /, sqrt both paths round alike; `exp` and friends do not. Activations are run on blocks that one
   thread does with vector code only.

Attention mixes rows and is therefore done per request (see `cached_attention`).
"""

import functools
import logging
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

logger = logging.getLogger(__name__)

TILE = 32
"""Batches come in multiples of so many rows. MKL on AVX-512 has other kernels below 12 rows; 32 keeps the padding
small."""
_GEMM_ROWS = (256, 128, 64, TILE)
"""Larger ones are faster: of a 576 x 1,536 matrix in float32 a core did 72, 82, 88 and 92 GFLOP/s at 32 to 256 rows."""
_PACKED_NUMBERS = 4_000_000
"""Numbers of the largest matrix that is kept in another order too: those of models up to about 0.6 B parameters."""
_SERIAL_ELEMENTS = 32768
"""ATen's grain size: an elementwise op on at most this many elements is run by one thread."""
_VECTOR_ELEMENTS = 64
"""A multiple of what one step of ATen's vector loops handles (2 x 16 floats with AVX-512)."""


def padded_rows(rows: int) -> int:
    """`rows` rounded up to whole tiles."""
    return -(-rows // TILE) * TILE


class RowExactProduct:
    """The product x (R, in) times weight (out, in) transposed -> (R, out); R a multiple of `TILE`.

    A batch is cut into GEMMs of a few numbers of rows, the largest first. A weight's shape is tried once on this
    machine: of the sizes in `_GEMM_ROWS` those are taken that give a row the same bits. They are tried and not looked
    up, as the library's version and the processor decide which kernels run."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[torch.Size, torch.dtype], tuple[int, ...]] = {}

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return product_in(self.sizes(weight), x, packed(weight))

    def sizes(self, weight: torch.Tensor) -> tuple[int, ...]:
        """Rows of the GEMMs that this shape allows. Where it allows none, sampling cannot promise the same tokens at
        another load: raises RuntimeError for float32, and warns for bfloat16, which goes on in tiles."""
        key = weight.shape, weight.dtype
        if key not in self._sizes:
            found = row_exact_sizes(weight)
            if not found:
                problem = f"products of shape {tuple(weight.shape)} are not reproducible row by row on this machine"
                if weight.dtype == torch.float32:
                    raise RuntimeError(problem)
                logger.warning("bfloat16 %s: samples can depend on what is sampled beside them", problem)
                found = (TILE,)
            self._sizes[key] = found
        return self._sizes[key]


def packed(weight: torch.Tensor, *, transposed: bool = False) -> torch.Tensor:
    """The matrix, or its transpose, for `gemm`: a bfloat16 one in the order that oneDNN's kernels want.

    Each product would bring it into that order again: at 64 rows that takes two thirds of the time. So it is kept, as
    an attribute of the matrix. Matrices that are not `packable` are taken as they are."""
    if not packable(weight):
        return weight.t() if transposed else weight
    name = "packed_transposed" if transposed else "packed"
    kept: torch.Tensor | None = getattr(weight, name, None)
    if kept is None:
        plain = weight.detach()
        kept = torch.ops.mkldnn._reorder_linear_weight(plain.t().contiguous() if transposed else plain, 2 * TILE)
        setattr(weight, name, kept)
    return kept


def packable(weight: torch.Tensor) -> bool:
    """Whether `packed` keeps up to two copies of this matrix: it is bfloat16, for which the processor has kernels, and
    of a model whose copies take no more than a few gigabytes."""
    small = weight.dtype == torch.bfloat16 and weight.numel() <= _PACKED_NUMBERS
    return small and weight.device.type != "cuda" and _has_bfloat16_kernels()


@functools.cache
def _has_bfloat16_kernels() -> bool:
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def product_in(sizes: Sequence[int], x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x (R, in) times weight (out, in) transposed, in GEMMs of `sizes` rows, which descend; what is left is padded to
    the smallest. The weight may be `packed`."""
    rows = x.shape[0]
    if rows in sizes:
        return gemm(x, weight)
    out = x.new_empty(rows, weight.shape[0])
    start = 0
    for size in sizes:
        while rows - start >= size:
            gemm(x[start : start + size], weight, out=out[start : start + size])
            start += size
    if left := rows - start:
        out[start:] = gemm(F.pad(x[start:], (0, 0, 0, sizes[-1] - left)), weight)[:left]
    return out


def gemm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """x (R, in) times a matrix (out, in), packed or not, transposed; into `out` if it is given."""
    if not weight.is_mkldnn:
        return torch.mm(x, weight.t(), out=out)
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")
    return product if out is None else out.copy_(product)


@torch.no_grad()
def row_exact_sizes(
    weight: torch.Tensor, product: Callable[[Sequence[int], torch.Tensor, torch.Tensor], torch.Tensor] = product_in
) -> tuple[int, ...]:
    """Those of `_GEMM_ROWS`, as many as agree, at which `product` gives a row the same bits at another place in the
    batch and next to other rows. Tried on drawn numbers: a factor that was not trained yet is 0, and so is its every
    product."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(weight.shape, generator=generator).to(weight.dtype)
    x = torch.randn(_GEMM_ROWS[0], weight.shape[1], generator=generator).to(weight.dtype)
    order = torch.randperm(len(x), generator=generator)
    weight = packed(weight)
    found = {size: product((size,), x, weight) for size in _GEMM_ROWS}
    moved = {size: product((size,), x[order], weight) for size in _GEMM_ROWS}
    agreeing = [
        tuple(size for size in _GEMM_ROWS if torch.equal(moved[size], expected[order]))
        for expected in reversed(found.values())
    ]
    return max(agreeing, key=len)  # the smallest, where several have as many


def row_exact_activation(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """`function`, an elementwise one, of x (R, K), in blocks of whole rows that a thread runs without a scalar tail."""
    columns = x.shape[-1]
    if torch.get_num_threads() == 1 and columns % _VECTOR_ELEMENTS == 0:
        return function(x)  # one chunk, and no tail
    ragged = columns % _VECTOR_ELEMENTS
    if ragged:
        return row_exact_activation(function, F.pad(x, (0, _VECTOR_ELEMENTS - ragged)))[..., :columns]
    rows = max(1, _SERIAL_ELEMENTS // columns)
    return torch.cat([function(block) for block in x.split(rows)])
