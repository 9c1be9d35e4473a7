"""A row's bits depend on the row alone."""

import pytest
import torch
import torch.nn.functional as F

from local_servers.tinker.engine.row_exact import (
    TILE,
    batched_tiles,
    choose_tiled_product,
    is_row_exact,
    looped_tiles,
    padded_rows,
    row_exact_activation,
)


@pytest.mark.parametrize("shape", [(192, 192), (64, 192), (512, 192), (192, 512), (1024, 192), (17, 96)])
def test_a_row_exact_product_is_found_and_is_right(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    product = choose_tiled_product([weight])
    assert is_row_exact(product, weight)
    x = torch.randn(3 * TILE, shape[1], generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(product(x, weight), x @ weight.t(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(looped_tiles(x, weight), batched_tiles(x, weight), rtol=1e-4, atol=1e-4)


def test_the_probe_notices_a_product_that_depends_on_the_batch() -> None:
    weight = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))

    def leaky(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight.t() + 1e-7 * len(x)

    assert not is_row_exact(leaky, weight)


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
