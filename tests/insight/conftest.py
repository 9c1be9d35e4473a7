"""A synthetic training run and a synthetic curation, written with the public schemas: what insight reads. They are made
once for the workers of a session, so no test writes into them."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import Share
from tests.insight.recorded_runs import curate, write_run


@pytest.fixture(scope="session")
def run_dir(common: Path, share: Share) -> Iterator[Path]:
    folder = common / "recorded-run" / "2026_11_21-10_00_00"
    with share("recorded-run-made", lambda _: str(write_run(folder))):
        yield folder


@pytest.fixture(scope="session")
def runs_dir(common: Path, share: Share) -> Iterator[Path]:
    """A folder of two small runs."""
    folder = common / "recorded-runs"

    def make(_: ExitStack) -> None:
        for seed in range(2):
            write_run(folder / f"run-{seed}", steps=3, seed=seed, test_size=10)

    with share("recorded-runs-made", make):
        yield folder


@pytest.fixture(scope="session")
def pool_dir(common: Path, share: Share) -> Iterator[Path]:
    folder = common / "recorded-pool" / "demo"
    with share("recorded-pool-made", lambda _: str(curate(folder))):
        yield folder
