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
"""Batches come in multiples of so many rows: MKL on AVX-512 has other kernels below 12; 32 keeps the padding small."""
_GEMM_ROWS = (256, 128, 64, TILE)
"""Larger ones are faster: of a 576 x 1,536 matrix in float32 a core did 72, 82, 88 and 92 GFLOP/s at 32 to 256 rows."""
_BLOCK_OUTPUTS, _BLOCK_INPUTS, _BLOCK_ROWS = 192, 1536, 512
"""Of a product of one block, at most: a block fits a core's second cache. Of 64 to 4,096 outputs 192 were the fastest
or nearly so, at 32 to 465 rows."""
_TILE_ROWS = 16  # rows, and outputs, that the processor has in a register of a product
_DRAWN_NUMBERS = 4_000_000  # numbers of the largest matrix that a trial draws another one for
_SERIAL_ELEMENTS = 32768  # ATen's grain size: an elementwise op on at most this many elements is run by one thread
_VECTOR_ELEMENTS = 64  # a multiple of what one step of ATen's vector loops handles (2 x 16 floats with AVX-512)


def padded_rows(rows: int) -> int:
    """`rows` rounded up to whole tiles."""
    return -(-rows // TILE) * TILE


class Factors(NamedTuple):
    """Of a low-rank product beside a matrix (out, in): A (rank, in) and B (out, rank)."""

    a: torch.Tensor
    b: torch.Tensor


class RowExactProduct:
    """`product` for any number of rows, each of which has the same bits wherever it is in a batch. A batch is cut into
    GEMMs of a few numbers of rows, the largest first. For a weight's shape those sizes in `_GEMM_ROWS` are taken that
    give a row the same bits when they are tried on this machine: the library's version and the processor decide which
    kernels run."""

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
        it allows none, raises RuntimeError for float32, and warns for bfloat16, which goes on in tiles."""
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
    """x (R, in), rounded to the dtype of `weight` (out, in), times that transposed, plus the product with factors
    beside it -> (R, out), as `gemm` has it. It has no gradients."""
    x = x.to(weight.dtype)
    return gemm(x, weight, None if factors is None else (gemm(x, factors.a), factors.b), dtype, out)


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
    x: torch.Tensor,
    weight: torch.Tensor,
    plus: tuple[torch.Tensor, torch.Tensor] | None = None,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    *,
    transposed: bool = False,
) -> torch.Tensor:
    """x (R, in) times a matrix (out, in) transposed, plus the product of another such pair -> (R, out) of `dtype`, by
    default the weight's; into `out` if it is given. `transposed`: x (R, out) times (out, in) -> (R, in), the pair too.
    Where the processor `has_bfloat16_kernels`, products of bfloat16 matrices are summed in float32, and rounded once,
    or not at all if `dtype` is float32. Elsewhere each is rounded."""
    dtype = dtype or weight.dtype
    if has_float32_result(weight, x.device):
        whole = out
        if whole is None or dtype != torch.float32:
            whole = x.new_empty(len(x), weight.shape[1 if transposed else 0], dtype=torch.float32)
        _multiply_into(whole, x, packed(weight, transposed=transposed))
        if plus is not None:
            _multiply_into(whole, plus[0], packed(plus[1], transposed=transposed), add=True)
        if whole is out:
            return whole
        return whole.to(dtype) if out is None else out.copy_(whole)
    matrix = weight if transposed else weight.t()
    added = None if plus is None else plus[0] @ (plus[1] if transposed else plus[1].t())
    if dtype == weight.dtype:
        return torch.mm(x, matrix, out=out) if added is None else torch.addmm(added, x, matrix, out=out)
    result = (x @ matrix).to(dtype)
    if added is not None:
        result += added  # unrounded: early in a run all of it is less than the rounding
    return result if out is None else out.copy_(result)


class Blocks(NamedTuple):
    """A bfloat16 matrix (out, in) in the order that the processor's kernels read. `parts`, one for each
    `_BLOCK_INPUTS` inputs, are (blocks of outputs, pairs of inputs, `width` outputs, 2), filled up with zeros."""

    outputs: int
    inputs: int
    width: int
    parts: list[torch.Tensor]


def packed(weight: torch.Tensor, *, transposed: bool = False) -> Blocks:
    """The bfloat16 matrix, or its transpose, in blocks, which are kept as an attribute of the matrix."""
    name = "packed_transposed" if transposed else "packed"
    kept: Blocks | None = getattr(weight, name, None)
    if kept is None:
        matrix = weight.detach().t() if transposed else weight.detach()
        outputs, inputs = matrix.shape
        width = min(_BLOCK_OUTPUTS, -(-outputs // _TILE_ROWS) * _TILE_ROWS)
        if inputs % 2 or outputs % width:
            matrix = F.pad(matrix, (0, inputs % 2, 0, -outputs % width))
        pairs = [part.unflatten(0, (-1, width)).unflatten(2, (-1, 2)) for part in matrix.split(_BLOCK_INPUTS, dim=1)]
        parts = [part.transpose(1, 2).contiguous() for part in pairs]
        kept = Blocks(outputs, inputs, width, parts)
        setattr(weight, name, kept)
    return kept


def has_float32_result(weight: torch.Tensor, device: torch.device) -> bool:
    """Whether `gemm` multiplies this matrix in blocks, bfloat16 summed in float32. Up to two copies of it are kept,
    `packed`."""
    return weight.dtype == torch.bfloat16 and device.type == "cpu" and has_bfloat16_kernels()


def has_bfloat16_kernels() -> bool:
    return _kernels() is not None


@functools.cache
def _kernels() -> tuple[Any, Any] | None:
    """oneDNN's product of a block, for which PyTorch has no operator: what an operator returns is bfloat16, and a logit
    of 20 is rounded by up to 0.06. None where the processor has no bfloat16 products, or PyTorch not these functions.

    The first takes the numbers of rows, outputs and inputs; the strides of x, block and result; whether it adds to the
    result; the addresses of x, block and result; and True, as the inputs of a block are in pairs. The second takes True
    and gives back the registers of the first, which other kernels set up in their own way."""
    if not (torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_bf16_supported()):
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        multiply: Any = library["_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb"]
        release: Any = library["_ZN2at6native7cpublas14brgemm_releaseEb"]
    except (OSError, AttributeError):
        return None
    number, pointer, flag = ctypes.c_int64, ctypes.c_void_p, ctypes.c_bool
    multiply.argtypes, multiply.restype = [number] * 6 + [flag] + [pointer] * 3 + [flag], None
    release.argtypes, release.restype = [flag], None
    return multiply, release


def _multiply_into(out: torch.Tensor, x: torch.Tensor, blocks: Blocks, *, add: bool = False) -> None:
    """x (R, in), bfloat16, times a matrix in blocks, transposed, into `out` (R, out), float32, or added to it."""
    kernels = _kernels()
    assert kernels is not None
    multiply, release = kernels
    if x.dtype != torch.bfloat16 or x.shape[1] != blocks.inputs:
        raise ValueError(f"{x.dtype} of shape {tuple(x.shape)} for a bfloat16 matrix of {blocks.inputs} inputs")
    if x.shape[1] % 2:
        x = F.pad(x, (0, 1))
    if x.stride(1) != 1 or x.stride(0) < x.shape[1]:
        x = x.contiguous()
    if out.stride(1) != 1 or out.stride(0) < out.shape[1]:
        raise ValueError("a result whose rows overlap, or are not in one piece")
    x_stride, out_stride = x.stride(0), out.stride(0)
    x_rows, out_rows = x.data_ptr(), out.data_ptr()
    # Few different numbers of rows: a thread takes a millisecond for each to make its kernel, and keeps it.
    left = len(x) % _BLOCK_ROWS
    pieces = [_BLOCK_ROWS] * (len(x) // _BLOCK_ROWS) + [left - left % _TILE_ROWS, left % _TILE_ROWS]
    for rows in filter(None, pieces):
        x_part = x_rows
        for number, part in enumerate(blocks.parts):
            inputs, block, block_bytes = 2 * part.shape[1], part.data_ptr(), 2 * part.stride(0)
            for first in range(0, blocks.outputs, blocks.width):
                multiply(
                    *(rows, min(blocks.width, blocks.outputs - first), inputs),
                    *(x_stride, blocks.width, out_stride, add or number > 0),
                    *(x_part, block, out_rows + 4 * first, True),
                )
                block += block_bytes
            x_part += inputs * 2
        x_rows += rows * x_stride * 2
        out_rows += rows * out_stride * 4
    release(True)


@torch.no_grad()
def row_exact_sizes(
    weight: torch.Tensor,
    rank: int = 0,
    dtype: torch.dtype | None = None,
    multiply: Callable[..., torch.Tensor] = product_in,
) -> tuple[int, ...]:
    """Those of `_GEMM_ROWS`, as many as agree, at which `multiply`, with factors of this rank and a result of `dtype`,
    gives a row the same bits at another place in the batch and next to other rows. Tried on drawn numbers, as an
    untrained matrix can be 0; a large one is taken as it is: a copy of it takes much memory."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(weight.dtype)

    out_features, in_features = weight.shape
    if weight.numel() <= _DRAWN_NUMBERS:
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
