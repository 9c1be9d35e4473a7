"""Which fork server a program comes from."""

import pytest

from coderl_tasks.sandbox_programs import PRELOADED
from local_servers.sandbox.fork_server import imports_rare


@pytest.mark.parametrize(
    "program",
    [
        b"import numpy as np",
        b"import sys, random\n",
        b"x = 1\nfrom decimal import Decimal",
        b"if x: import os, datetime",
    ],
)
def test_a_program_that_imports_what_few_do_is_known(program: bytes) -> None:
    assert imports_rare(program)


@pytest.mark.parametrize(
    "program", [b"import sys\nrandom = 1", b"print('numpy')", b"from collections import deque", b""]
)
def test_other_programs_come_from_the_small_parent(program: bytes) -> None:
    assert not imports_rare(program)


def test_the_grading_driver_is_one_of_them() -> None:
    assert not any(imports_rare(text.encode()) for text in PRELOADED)
