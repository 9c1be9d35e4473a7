"""Kernels whose result for a row depends on that row alone, never on how many other rows are in the batch.

What breaks that in plain torch, and what is done about it:

1. A GEMM can pick other kernels at other row counts, hence other bits. Rows are padded to whole tiles of `TILE`,
   and only numbers of rows are multiplied at once for which the bits were found to be the same.
2. An elementwise op cuts its work into chunks for the threads and finishes each chunk with scalar code. For
   +, *, /, sqrt both paths round alike; `exp` and friends do not. Activations are run on blocks that one
   thread does with vector code only.

Attention mixes rows and is therefore done per request (see `cached_attention`).
"""

import ctypes
import functools
import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class Factors(NamedTuple):
    """Of a low-rank product beside a matrix (out, in): A (rank, in) and B (out, rank)."""

    a: torch.Tensor
    b: torch.Tensor


class RowExactProduct:
    """`product` for any number of rows, each of which has the same bits wherever it is in a batch.

    A batch is cut into GEMMs of a few numbers of rows, the largest first. A weight's shape is tried once on this
    machine: of the sizes in `_GEMM_ROWS` those are taken that give a row the same bits. They are tried and not looked
    up, as the library's version and the processor decide which kernels run."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[torch.Size, torch.dtype, int, torch.dtype], tuple[int, ...]] = {}
        self._trying = threading.Lock()

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        factors: Factors | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        rank = 0 if factors is None else len(factors.a)
        return product_in(self.sizes(weight, rank, dtype), x, weight, factors, dtype)

    def sizes(self, weight: torch.Tensor, rank: int = 0, dtype: torch.dtype | None = None) -> tuple[int, ...]:
        """Rows of the GEMMs that this shape allows, for a result of `dtype` with factors of this rank beside it. Where
        it allows none, sampling cannot promise the same tokens at another load: raises RuntimeError for float32, and
        warns for bfloat16, which goes on in tiles."""
        key = weight.shape, weight.dtype, rank, dtype or weight.dtype
        with self._trying:
            if key not in self._sizes:
                found = row_exact_sizes(weight, rank, dtype)
                if not found:
                    problem = f"products of shape {tuple(weight.shape)} are not reproducible row by row on this machine"
                    if weight.dtype == torch.float32:
                        raise RuntimeError(problem)
                    logger.warning("bfloat16 %s: samples can depend on what is sampled beside them", problem)
                    found = (TILE,)
                self._sizes[key] = found
            return self._sizes[key]


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    factors: Factors | None = None,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x (R, in), rounded to the dtype of `weight`, times that matrix (out, in) transposed, plus the product with
    factors beside it -> (R, out) of `dtype`, by default the weight's; into `out` if it is given. A float32 result of
    bfloat16 matrices is not rounded, where `has_float32_result`. It has no gradients."""
    x = x.to(weight.dtype)
    if dtype == torch.float32 and has_float32_result(weight, x.device):
        if out is None:
            out = x.new_empty(len(x), len(weight), dtype=dtype)
        _multiply_into(out, x, weight)
        if factors is not None:
            _multiply_into(out, gemm(x, packed(factors.a)), factors.b, add=True)
        return out
    low_rank = None if factors is None else gemm(gemm(x, packed(factors.a)), packed(factors.b))
    if dtype in (None, weight.dtype):
        return gemm(x, packed(weight), low_rank, out)
    result = gemm(x, packed(weight)).to(dtype)
    if low_rank is not None:
        result += low_rank  # unrounded: early in a run all of it is less than the rounding
    return result if out is None else out.copy_(result)


def product_in(
    sizes: Sequence[int],
    x: torch.Tensor,
    weight: torch.Tensor,
    factors: Factors | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`product` in GEMMs of `sizes` rows, which descend; what is left is padded to the smallest."""
    rows = x.shape[0]
    if rows in sizes:
        return product(x, weight, factors, dtype)
    out = x.new_empty(rows, weight.shape[0], dtype=dtype or weight.dtype)
    start = 0
    for size in sizes:
        while rows - start >= size:
            product(x[start : start + size], weight, factors, dtype, out[start : start + size])
            start += size
    if left := rows - start:
        out[start:] = product(F.pad(x[start:], (0, 0, 0, sizes[-1] - left)), weight, factors, dtype)[:left]
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
        result: torch.Tensor = linear.default(x, weight, None, "none", [], "")
    else:
        result = linear.binary(x, plus, weight, None, "add")
    return result if out is None else out.copy_(result)


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


def packable(weight: torch.Tensor, device: torch.device | None = None) -> bool:
    """Whether `packed` keeps up to two copies of this matrix, where it is or on `device`: it is bfloat16, for which the
    processor has kernels, and of a model whose copies take no more than a few gigabytes."""
    return weight.numel() <= _PACKED_NUMBERS and _rounded_on_cpu(weight, device or weight.device)


def has_float32_result(weight: torch.Tensor, device: torch.device) -> bool:
    """Whether `product` gives this bfloat16 matrix a float32 result that is not rounded before, on the device."""
    return _rounded_on_cpu(weight, device) and _mkl_gemm() is not None


def _rounded_on_cpu(weight: torch.Tensor, device: torch.device) -> bool:
    return weight.dtype == torch.bfloat16 and device.type == "cpu" and has_bfloat16_kernels()


@functools.cache
def has_bfloat16_kernels() -> bool:
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


@functools.cache
def _mkl_gemm() -> Any:
    """MKL's product of bfloat16 matrices with a float32 result, which PyTorch has in itself and has no operator for:
    what an operator returns is bfloat16, and a logit of 20 is rounded by up to 0.06. None where PyTorch is built
    without MKL, and on processors without AMX, where it was not measured."""
    if not torch.cpu._is_amx_tile_supported():
        return None
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function: Any = ctypes.CDLL(str(library)).cblas_gemm_bf16bf16f32
    except (OSError, AttributeError):
        return None
    integer, number, pointer = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    # order, transpositions of x and weight, rows, outputs, inputs, alpha, x, weight, beta and out with their strides
    matrices = [number, pointer, integer, pointer, integer, number, pointer, integer]
    function.argtypes, function.restype = [integer] * 6 + matrices, None
    return function


def _multiply_into(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *, add: bool = False) -> None:
    """x (R, in) times weight (out, in) transposed, both bfloat16, into `out` (R, out), float32, or added to it."""
    (rows, inputs), outputs = x.shape, len(weight)
    x, weight = _of_whole_rows(x), _of_whole_rows(weight)
    if _of_whole_rows(out) is not out:
        raise ValueError("a result whose rows overlap, or are not in one piece")
    row_major, plain, transposed = 101, 111, 112  # CBLAS's codes
    _mkl_gemm()(
        *(row_major, plain, transposed, rows, outputs, inputs),
        *(1.0, x.data_ptr(), _row_stride(x), weight.data_ptr(), _row_stride(weight)),
        *(float(add), out.data_ptr(), _row_stride(out)),
    )


def _of_whole_rows(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix as BLAS takes one, copied if need be: its rows lie one behind the other, each in one piece."""
    one_piece = matrix.stride(1) == 1 or matrix.shape[1] == 1
    return matrix if one_piece and (matrix.stride(0) >= matrix.shape[1] or len(matrix) == 1) else matrix.contiguous()


def _row_stride(matrix: torch.Tensor) -> int:
    return max(matrix.stride(0), matrix.shape[1])


@torch.no_grad()
def row_exact_sizes(
    weight: torch.Tensor,
    rank: int = 0,
    dtype: torch.dtype | None = None,
    multiply: Callable[..., torch.Tensor] = product_in,
) -> tuple[int, ...]:
    """Those of `_GEMM_ROWS`, as many as agree, at which `multiply`, with factors of this rank and a result of `dtype`,
    gives a row the same bits at another place in the batch and next to other rows. Tried on drawn numbers: a matrix
    that was not trained yet can be 0, and so is its every product. Only an unembedding is taken as it is, as a copy of
    it takes much memory."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(weight.dtype)

    out_features, in_features = weight.shape
    if weight.numel() <= _PACKED_NUMBERS:
        weight = drawn(out_features, in_features)
    factors = Factors(drawn(rank, in_features), drawn(out_features, rank)) if rank else None
    x = drawn(_GEMM_ROWS[0], in_features)
    order = torch.randperm(len(x), generator=generator)
    back = order.argsort()

    def digest(rows: torch.Tensor) -> bytes:
        """Of the bits; one result at a time is held, as the unembedding's are large."""
        return hashlib.sha256(rows.contiguous().view(torch.uint8).numpy().tobytes()).digest()

    found = {size: digest(multiply((size,), x, weight, factors, dtype)) for size in _GEMM_ROWS}
    moved = {size: digest(multiply((size,), x[order], weight, factors, dtype)[back]) for size in _GEMM_ROWS}
    agreeing = [tuple(size for size in _GEMM_ROWS if moved[size] == expected) for expected in reversed(found.values())]
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
