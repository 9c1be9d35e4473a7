"""Kernels whose result for a row depends on that row alone, never on how many other rows are in the batch.

What breaks that in plain torch, and what is done about it:

1. A GEMM can pick other kernels at other row counts, hence other bits. Rows are padded to whole tiles of `TILE`,
   and only numbers of tiles are multiplied at once for which the bits were found to be the same.
2. An elementwise op cuts its work into chunks for the threads and finishes each chunk with scalar code. For
   +, *, /, sqrt both paths round alike; `exp` and friends do not. Activations are run on blocks that one
   thread does with vector code only.

Attention mixes rows and is therefore done per request (see `cached_attention`).
"""

import logging
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

logger = logging.getLogger(__name__)

TILE = 32
"""Rows of the smallest GEMM. MKL on AVX-512 has other kernels below 12 rows; 32 keeps the padding small."""
_GEMM_ROWS = (256, 128, 64, TILE)
"""Larger ones are faster: of a 576 x 1,536 matrix in float32 a core did 72, 82, 88 and 92 GFLOP/s at 32 to 256 rows."""

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
    machine: of the sizes in `_GEMM_ROWS` those are taken that give every row the bits that it has in a tile. They are
    tried and not looked up, as the library's version and the processor decide which kernels run.
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[torch.Size, torch.dtype], tuple[int, ...]] = {}

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return product_in(self.sizes(weight), x, weight)

    def sizes(self, weight: torch.Tensor) -> tuple[int, ...]:
        """Rows of the GEMMs that this shape allows. Where it allows none, sampling cannot promise the same tokens at
        another load: raises RuntimeError for float32, and warns for bfloat16, which goes on in tiles."""
        key = weight.shape, weight.dtype
        if key not in self._sizes:
            found = row_exact_sizes(weight)
            if TILE not in found:
                problem = f"products of shape {tuple(weight.shape)} are not reproducible row by row on this machine"
                if weight.dtype == torch.float32:
                    raise RuntimeError(problem)
                logger.warning("bfloat16 %s: samples can depend on what is sampled beside them", problem)
                found = (TILE,)
            self._sizes[key] = found
        return self._sizes[key]


def product_in(sizes: Sequence[int], x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x (R, in) times weight (out, in) transposed, in GEMMs of `sizes` rows, which descend to `TILE`."""
    rows, transposed = x.shape[0], weight.t()
    if rows in sizes:
        return torch.mm(x, transposed)
    out = x.new_empty(rows, weight.shape[0])
    start = 0
    for size in sizes:
        while rows - start >= size:
            torch.mm(x[start : start + size], transposed, out=out[start : start + size])
            start += size
    return out


@torch.no_grad()
def row_exact_sizes(
    weight: torch.Tensor, product: Callable[[Sequence[int], torch.Tensor, torch.Tensor], torch.Tensor] = product_in
) -> tuple[int, ...]:
    """Those of `_GEMM_ROWS` at which `product` gives every row the bits of a tile, at another place in the batch and
    next to other rows. Tried on drawn numbers: a factor that was not trained yet is 0, and so is its every product."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(weight.shape, generator=generator).to(weight.dtype)
    x = torch.randn(_GEMM_ROWS[0], weight.shape[1], generator=generator).to(weight.dtype)
    order = torch.randperm(len(x), generator=generator)
    expected = product((TILE,), x, weight)[order]
    moved = x[order]
    return tuple(size for size in _GEMM_ROWS if torch.equal(product((size,), moved, weight), expected))


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
