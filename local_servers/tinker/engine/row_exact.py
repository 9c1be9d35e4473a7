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
import threading
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
_FLOAT32_GEMM_ROWS = (64, TILE)
"""The same for `float32_gemm`, which is no faster in larger ones."""
_PACKED_NUMBERS = 4_000_000
"""Numbers of the largest matrix that is kept in another order too: those of models up to about 0.6 B parameters."""
_PART_OUTPUTS = 8192
"""Outputs of `float32_gemm` that are computed at a time: they stay in the processor's cache."""
_PACKED_PARTS_NUMBERS = 200_000_000
"""Numbers of the largest matrix that `float32_gemm` takes: the unembedding of such a model."""
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
        self._sizes: dict[tuple[torch.Size, torch.dtype, int | None], tuple[int, ...]] = {}
        self._trying = threading.Lock()

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return product_in(self.sizes(weight), x, weight)

    def float32_result(self, x: torch.Tensor, weight: torch.Tensor, factors: Factors | None = None) -> torch.Tensor:
        """The same by `float32_gemm`, for x in float32 and a bfloat16 weight."""
        rank = 0 if factors is None else len(factors.a)
        return product_in(self.sizes(weight, float32_rank=rank), x, weight, partial(float32_gemm, factors=factors))

    def sizes(self, weight: torch.Tensor, float32_rank: int | None = None) -> tuple[int, ...]:
        """Rows of the GEMMs that this shape allows; for `float32_result` with factors of a rank, if that is given.
        Where it allows none, sampling cannot promise the same tokens at another load: raises RuntimeError for float32,
        and warns for bfloat16, which goes on in tiles."""
        key = weight.shape, weight.dtype, float32_rank
        with self._trying:
            if key not in self._sizes:
                found = row_exact_sizes(weight, float32_rank)
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


def packable(weight: torch.Tensor, device: torch.device | None = None, most_numbers: int = _PACKED_NUMBERS) -> bool:
    """Whether `packed` keeps up to two copies of this matrix, where it is or on `device`: it is bfloat16, for which the
    processor has kernels, and of a model whose copies take no more than a few gigabytes."""
    small = weight.dtype == torch.bfloat16 and weight.numel() <= most_numbers
    return small and (device or weight.device).type == "cpu" and has_bfloat16_kernels()


def has_float32_result(weight: torch.Tensor, device: torch.device) -> bool:
    """Whether `float32_gemm` multiplies this matrix on the device; a packed copy of it is then kept."""
    return packable(weight, device, _PACKED_PARTS_NUMBERS)


@functools.cache
def has_bfloat16_kernels() -> bool:
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def product_in(
    sizes: Sequence[int], x: torch.Tensor, weight: torch.Tensor, multiply: Callable[..., torch.Tensor] | None = None
) -> torch.Tensor:
    """x (R, in) times weight (out, in) transposed, in GEMMs of `sizes` rows, which descend; what is left is padded to
    the smallest. `multiply` is used in place of `gemm`; its result has the dtype of x too."""
    if multiply is None:
        multiply, weight = gemm, packed(weight)
    rows = x.shape[0]
    if rows in sizes:
        return multiply(x, weight)
    out = x.new_empty(rows, weight.shape[0])
    start = 0
    for size in sizes:
        while rows - start >= size:
            multiply(x[start : start + size], weight, out=out[start : start + size])
            start += size
    if left := rows - start:
        out[start:] = multiply(F.pad(x[start:], (0, 0, 0, sizes[-1] - left)), weight)[:left]
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


def float32_gemm(
    x: torch.Tensor, weight: torch.Tensor, factors: Factors | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x (R, in), float32, times a bfloat16 matrix (out, in) transposed, plus the product with bfloat16 factors beside
    it -> (R, out), float32; into `out` if it is given. At 64 rows in two thirds of the time of a float32 product.

    oneDNN rounds what it returns to bfloat16, a logit of 20 by up to 0.06. So a second product has the first taken from
    it before it is rounded, and a third adds what x loses by being rounded: the result is within 0.002 of float32's.
    What factors add is rounded, to about 1/500 of itself."""
    if out is None:
        out = x.new_empty(len(x), len(weight))
    linear = torch.ops.mkldnn._linear_pointwise
    coarse = x.to(weight.dtype)
    fine = (x - coarse).to(weight.dtype)
    low, its_parts = (None, None) if factors is None else (gemm(coarse, packed(factors.a)), _packed_parts(factors.b))
    for number, (place, part) in enumerate(zip(out.split(_PART_OUTPUTS, dim=1), _packed_parts(weight), strict=True)):
        rounded = linear.default(coarse, part, None, "none", [], "")
        rest = linear.binary(fine, linear.binary(coarse, rounded, part, None, "sub"), part, None, "add")
        if low is not None and its_parts is not None:
            rest = linear.binary(low, rest, its_parts[number], None, "add")
        place.copy_(rounded).add_(rest)
    return out


def _packed_parts(weight: torch.Tensor) -> list[torch.Tensor]:
    """A bfloat16 matrix in parts of `_PART_OUTPUTS` rows, each in the order that oneDNN's kernels want, as `packed` has
    a small one. Kept as an attribute of the matrix."""
    kept: list[torch.Tensor] | None = getattr(weight, "packed_parts", None)
    if kept is None:
        parts = weight.detach().split(_PART_OUTPUTS)
        kept = [torch.ops.mkldnn._reorder_linear_weight(part, 2 * TILE) for part in parts]
        weight.packed_parts = kept  # type: ignore[attr-defined]
    return kept


@torch.no_grad()
def row_exact_sizes(
    weight: torch.Tensor,
    float32_rank: int | None = None,
    product: Callable[..., torch.Tensor] = product_in,
) -> tuple[int, ...]:
    """Those of `_GEMM_ROWS`, as many as agree, at which `product` gives a row the same bits at another place in the
    batch and next to other rows. Tried on drawn numbers: a factor that was not trained yet is 0, and so is its every
    product. With `float32_rank`, of `float32_gemm` with this weight and drawn factors of this rank."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    candidates = _GEMM_ROWS
    (out_features, in_features), dtype = weight.shape, weight.dtype
    if float32_rank is None:
        weight = drawn(out_features, in_features).to(dtype)
        x = drawn(candidates[0], in_features).to(dtype)
    else:
        candidates = _FLOAT32_GEMM_ROWS  # the weight as it is: a copy of the largest of a model takes its memory
        shapes = (float32_rank, in_features), (out_features, float32_rank)
        factors = Factors(*(drawn(*shape).to(dtype) for shape in shapes)) if float32_rank else None
        product = partial(product, multiply=partial(float32_gemm, factors=factors))
        x = drawn(candidates[0], in_features)
    order = torch.randperm(len(x), generator=generator)
    found = {size: product((size,), x, weight) for size in candidates}
    moved = {size: product((size,), x[order], weight) for size in candidates}
    agreeing = [
        tuple(size for size in candidates if torch.equal(moved[size], expected[order]))
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
