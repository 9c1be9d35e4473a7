"""A synthetic training run and a synthetic curation, written with the public schemas: what insight reads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.insight.recorded_runs import curate, write_run


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "2026_11_21-10_00_00")


@pytest.fixture(scope="session")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of two small runs."""
    folder = tmp_path_factory.mktemp("several")
    for seed in range(2):
        write_run(folder / f"run-{seed}", steps=3, seed=seed, test_size=10)
    yield folder


@pytest.fixture(scope="session")
def pool_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return curate(tmp_path_factory.mktemp("pools") / "demo")
