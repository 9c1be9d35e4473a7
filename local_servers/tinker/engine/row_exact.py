"""Kernels whose result for a row depends on that row alone, never on how many other rows are in the batch.

What breaks that in plain torch, and what is done about it:

1. A GEMM picks other kernels at other row counts, hence other bits. Rows are run in tiles of `TILE`,
   the last one padded, so that every GEMM has the same shape.
2. An elementwise op cuts its work into chunks for the threads and finishes each chunk with scalar code. For
   +, *, /, sqrt both paths round alike; `exp` and friends do not. Activations are run on blocks that one
   thread does with vector code only.

Attention mixes rows and is therefore done per request (see `cached_attention`).
"""

import logging
from collections.abc import Callable

import torch
import torch.nn.functional as F

logger = logging.getLogger(__name__)

TILE = 32
"""Rows of one GEMM. MKL on AVX-512 has other kernels below 12 rows; 32 keeps the padding small and the speed
near the best."""

_SERIAL_ELEMENTS = 32768
"""ATen's grain size: an elementwise op on at most this many elements is run by one thread."""
_VECTOR_ELEMENTS = 64
"""A multiple of what one step of ATen's vector loops handles (2 x 16 floats with AVX-512)."""


def padded_rows(rows: int) -> int:
    """`rows` rounded up to whole tiles."""
    return -(-rows // TILE) * TILE


def batched_tiles(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x (R, K), R a multiple of TILE, times weight (N, K) transposed, as one batch of equal GEMMs."""
    tiles = x.view(-1, TILE, x.shape[-1])
    return torch.bmm(tiles, weight.t().expand(tiles.shape[0], -1, -1)).view(x.shape[0], weight.shape[0])


def looped_tiles(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same, one GEMM after the other."""
    out = x.new_empty(x.shape[0], weight.shape[0])
    for start in range(0, x.shape[0], TILE):
        torch.mm(x[start : start + TILE], weight.t(), out=out[start : start + TILE])
    return out


TiledProduct = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def is_row_exact(product: TiledProduct, weight: torch.Tensor) -> bool:
    """Whether `product` gives a row the same bits at every place, in every batch size and next to any neighbours."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5 * TILE, weight.shape[1], generator=generator).to(weight.dtype)
    order = torch.randperm(len(x), generator=generator)
    whole = product(x, weight)
    if not torch.equal(product(x[order], weight), whole[order]):
        return False
    for tiles in (1, 2, 3):
        start = tiles * 7  # neighbours and places in the tile differ from those of `whole`
        rows = slice(start, start + tiles * TILE)
        if not torch.equal(product(x[rows].contiguous(), weight), whole[rows]):
            return False
    return True


def choose_tiled_product(weights: list[torch.Tensor]) -> TiledProduct:
    """The fastest product that is row-exact on this machine for every shape among `weights`.

    Raises RuntimeError if none is: sampling could then not promise the same tokens at another load.
    """
    shapes = {weight.shape: weight for weight in weights}
    # Batched, bfloat16 is up to 20 times slower: oneDNN rearranges the matrix for every tile.
    bfloat16 = any(weight.dtype == torch.bfloat16 for weight in weights)
    # Tried on this machine and not looked up: which kernels a library picks follows from its version and the processor.
    for product in (looped_tiles,) if bfloat16 else (batched_tiles, looped_tiles):
        if all(is_row_exact(product, weight) for weight in shapes.values()):
            logger.debug("row-exact product: %s", product.__name__)
            return product
    raise RuntimeError("matrix products are not reproducible row by row on this machine")


def row_exact_activation(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """`function`, an elementwise one, of x (R, K), in blocks of whole rows that a thread runs without a scalar tail."""
    columns = x.shape[-1]
    ragged = columns % _VECTOR_ELEMENTS
    if ragged:
        return row_exact_activation(function, F.pad(x, (0, _VECTOR_ELEMENTS - ragged)))[..., :columns]
    rows = max(1, _SERIAL_ELEMENTS // columns)
    return torch.cat([function(block) for block in x.split(rows)])
