import os

import pyarrow as pa

from coderl_tasks.filtering.rows import run_jobs


def allocator(job: int) -> tuple[int, str]:
    return job, pa.default_memory_pool().backend_name


def test_workers_give_back_what_arrow_frees() -> None:
    before = dict(os.environ)
    assert run_jobs(allocator, [1, 2, 3], 2) == [(1, "system"), (2, "system"), (3, "system")]
    assert dict(os.environ) == before
