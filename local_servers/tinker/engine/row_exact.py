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
from functools import partial
from typing import NamedTuple

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
_PART_OUTPUTS = 8192
"""Outputs of `float32_gemm` that are computed at a time: they stay in the processor's cache."""
_PACKED_PARTS_NUMBERS = 200_000_000
"""Numbers of the largest matrix whose parts are kept in another order too: the unembedding of such a model."""
_SERIAL_ELEMENTS = 32768
"""ATen's grain size: an elementwise op on at most this many elements is run by one thread."""
_VECTOR_ELEMENTS = 64
"""A multiple of what one step of ATen's vector loops handles (2 x 16 floats with AVX-512)."""


def padded_rows(rows: int) -> int:
    """`rows` rounded up to whole tiles."""
    return -(-rows // TILE) * TILE


class Factors(NamedTuple):
    """Of a low-rank product beside a matrix (out, in): A (rank, in) and B (out, rank)."""

    a: torch.Tensor
    b: torch.Tensor


class RowExactProduct:
    """The product x (R, in) times weight (out, in) transposed -> (R, out); R a multiple of `TILE`.

    A batch is cut into GEMMs of a few numbers of rows, the largest first. A weight's shape is tried once on this
    machine: of the sizes in `_GEMM_ROWS` those are taken that give a row the same bits. They are tried and not looked
    up, as the library's version and the processor decide which kernels run."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[torch.Size, torch.dtype, int, bool], tuple[int, ...]] = {}

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, factors: Factors | None = None, *, in_float32: bool = False
    ) -> torch.Tensor:
        """The product, and that with the factors beside the weight; `in_float32` by `float32_gemm`."""
        sizes = self.sizes(weight, 0 if factors is None else len(factors.a), in_float32=in_float32)
        return product_in(sizes, x, weight, factors, in_float32=in_float32)

    def sizes(self, weight: torch.Tensor, rank: int = 0, *, in_float32: bool = False) -> tuple[int, ...]:
        """Rows of the GEMMs that this shape allows, with factors of this rank beside it. Where it allows none, sampling
        cannot promise the same tokens at another load: raises RuntimeError for float32, and warns for bfloat16, which
        goes on in tiles."""
        key = weight.shape, weight.dtype, rank, in_float32
        if key not in self._sizes:
            found = row_exact_sizes(weight, rank, in_float32=in_float32)
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
    return small and weight.device.type == "cpu" and has_bfloat16_kernels()


@functools.cache
def has_bfloat16_kernels() -> bool:
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def product_in(
    sizes: Sequence[int],
    x: torch.Tensor,
    weight: torch.Tensor,
    factors: Factors | None = None,
    *,
    in_float32: bool = False,
) -> torch.Tensor:
    """x (R, in) times weight (out, in) transposed, in GEMMs of `sizes` rows, which descend; what is left is padded to
    the smallest. With `factors` and `in_float32` as for `RowExactProduct`."""
    multiply = partial(float32_gemm if in_float32 else adapted_gemm, weight=weight, factors=factors)
    rows = x.shape[0]
    if rows in sizes:
        return multiply(x)
    out = x.new_empty(rows, weight.shape[0], dtype=torch.float32 if in_float32 else x.dtype)
    start = 0
    for size in sizes:
        while rows - start >= size:
            multiply(x[start : start + size], out=out[start : start + size])
            start += size
    if left := rows - start:
        out[start:] = multiply(F.pad(x[start:], (0, 0, 0, sizes[-1] - left)))[:left]
    return out


def gemm(
    x: torch.Tensor, weight: torch.Tensor, plus: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x (R, in) times a matrix (out, in), packed or not, transposed, and `plus` (R, out), which is added before the
    product is rounded; into `out` if it is given."""
    if not weight.is_mkldnn:
        return torch.mm(x, weight.t(), out=out) if plus is None else torch.addmm(plus, x, weight.t(), out=out)
    linear = torch.ops.mkldnn._linear_pointwise
    if plus is None:
        product: torch.Tensor = linear.default(x, weight, None, "none", [], "")
    else:
        product = linear.binary(x, plus, weight, None, "add")
    return product if out is None else out.copy_(product)


def adapted_gemm(
    x: torch.Tensor, weight: torch.Tensor, factors: Factors | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x (R, in) times a matrix (out, in) transposed, plus the product with low-rank `factors` beside it; into `out` if
    it is given."""
    plus = None if factors is None else gemm(gemm(x, packed(factors.a)), packed(factors.b))
    return gemm(x, packed(weight), plus, out)


def float32_gemm(
    x: torch.Tensor, weight: torch.Tensor, factors: Factors | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """`adapted_gemm` of x in float32 and a bfloat16 matrix, as exact as in float32, in two thirds of the time.

    oneDNN rounds what it returns to bfloat16, a logit of 20 by up to 0.06. So a second product has the first taken from
    it before it is rounded, and a third adds what x loses by being rounded."""
    if out is None:
        out = x.new_empty(len(x), len(weight), dtype=torch.float32)
    linear = torch.ops.mkldnn._linear_pointwise
    coarse = x.to(weight.dtype)
    fine = (x - coarse).to(weight.dtype)
    low, its_parts = (None, None) if factors is None else (gemm(coarse, packed(factors.a)), packed_parts(factors.b))
    for number, (place, part) in enumerate(zip(out.split(_PART_OUTPUTS, dim=1), packed_parts(weight), strict=True)):
        rounded = linear.default(coarse, part, None, "none", [], "")
        rest = linear.binary(fine, linear.binary(coarse, rounded, part, None, "sub"), part, None, "add")
        if low is not None and its_parts is not None:
            rest = linear.binary(low, rest, its_parts[number], None, "add")
        place.copy_(rounded).add_(rest)
    return out


def packed_parts(weight: torch.Tensor) -> list[torch.Tensor]:
    """A bfloat16 matrix in parts of `_PART_OUTPUTS` rows, for oneDNN's kernels, as `packed` has a small one."""
    kept: list[torch.Tensor] | None = getattr(weight, "packed_parts", None)
    if kept is None:
        kept = list(weight.detach().split(_PART_OUTPUTS))
        if weight.numel() <= _PACKED_PARTS_NUMBERS:
            kept = [torch.ops.mkldnn._reorder_linear_weight(part, 2 * TILE) for part in kept]
        weight.packed_parts = kept  # type: ignore[attr-defined]
    return kept


@torch.no_grad()
def row_exact_sizes(
    weight: torch.Tensor,
    rank: int = 0,
    product: Callable[..., torch.Tensor] = product_in,
    *,
    in_float32: bool = False,
) -> tuple[int, ...]:
    """Those of `_GEMM_ROWS`, as many as agree, at which `product`, with factors of this rank, gives a row the same bits
    at another place in the batch and next to other rows. Tried on drawn numbers: a factor that was not trained yet is
    0, and so is its every product."""
    generator = torch.Generator().manual_seed(0)

    def drawn(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator).to(weight.dtype)

    out_features, in_features = weight.shape
    matrix, x = drawn(out_features, in_features), drawn(_GEMM_ROWS[0], in_features)
    order = torch.randperm(len(x), generator=generator)
    factors = Factors(drawn(rank, in_features), drawn(out_features, rank)) if rank else None
    if in_float32:
        x = x.float()
    product = partial(product, weight=matrix, factors=factors, in_float32=in_float32)
    found = {size: product((size,), x) for size in _GEMM_ROWS}
    moved = {size: product((size,), x[order]) for size in _GEMM_ROWS}
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
