"""A row's bits depend on the row alone."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F

from local_servers.tinker.engine.row_exact import (
    TILE,
    RowExactProduct,
    padded_rows,
    product_in,
    row_exact_activation,
    row_exact_sizes,
)


@pytest.mark.parametrize("shape", [(192, 192), (64, 192), (512, 192), (192, 512), (1024, 192), (17, 96)])
def test_a_row_exact_product_is_found_and_is_right(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    product = RowExactProduct()
    assert product.sizes(weight)[-1] == TILE
    x = torch.randn(13 * TILE, shape[1], generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(product(x, weight), x @ weight.t(), rtol=1e-4, atol=1e-4)
    for rows in (TILE, 3 * TILE, 8 * TILE, 12 * TILE):  # in GEMMs of other sizes
        assert torch.equal(product(x[TILE : TILE + rows], weight), product(x, weight)[TILE : TILE + rows])


def test_sizes_at_which_a_row_has_other_bits_are_not_taken() -> None:
    weight = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))

    def other_kernels(sizes: Sequence[int], x: torch.Tensor, weight: torch.Tensor, *_: None) -> torch.Tensor:
        return product_in(sizes, x, weight) + (1e-7 if sizes[0] > 2 * TILE else 0)

    def by_place(sizes: Sequence[int], x: torch.Tensor, weight: torch.Tensor, *_: None) -> torch.Tensor:
        return product_in(sizes, x, weight) + 1e-7 * torch.arange(len(x))[:, None]

    assert row_exact_sizes(weight, multiply=other_kernels) == (2 * TILE, TILE)
    assert row_exact_sizes(weight, multiply=by_place) == ()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("columns", [512, 160, 7, 33_000])
def test_activation_of_a_row_does_not_depend_on_the_others(threads: int, columns: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(41, columns, generator=torch.Generator().manual_seed(3))
        whole = row_exact_activation(F.silu, x)
        torch.testing.assert_close(whole, F.silu(x))
        for start, stop in ((0, 1), (5, 38), (37, 41)):
            assert torch.equal(row_exact_activation(F.silu, x[start:stop].contiguous()), whole[start:stop])
    finally:
        torch.set_num_threads(before)


def test_padded_rows() -> None:
    assert [padded_rows(n) for n in (1, TILE, TILE + 1)] == [TILE, TILE, 2 * TILE]
