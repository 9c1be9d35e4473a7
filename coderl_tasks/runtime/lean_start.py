"""What a process that runs flows spares itself: PyTorch, and most of the searches for garbage.

The command does so by itself. The processes that `coderl up` starts are Prefect's, and are told by their environment.
"""

import gc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

LEAN_VARIABLE = "CODERL_LEAN_START"
"""Set in the environment of the processes that `coderl up` starts; those that import flows heed it."""
WORKER_VARIABLE = "CODERL_WORKER"
"""Names the worker of `coderl up` in its environment, and so in that of all that it starts."""
COLLECT_AFTER = 50_000
"""New objects after which Python looks for garbage (its own default: 700 to 2,000). What imports make stays, a million
objects, and to look through it over and over is an eighth of the CPU time of a short run."""


class _WithoutPyTorch(PathFinder):
    """Finds modules as `PathFinder` does, but not PyTorch. The Tinker SDK and transformers import it wherever it is
    installed: a third of a flow's start and half of its memory. No flow computes with it; the embedded Tinker server,
    which does, is a process of its own."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname == "torch" else super().find_spec(fullname, path, target)


def collect_less_often() -> None:
    gc.set_threshold(COLLECT_AFTER)


def leave_out_pytorch() -> None:
    """Hide PyTorch from whatever this process imports from now on."""
    sys.meta_path = [_WithoutPyTorch if finder is PathFinder else finder for finder in sys.meta_path]
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # which it gives without PyTorch
