"""What a process that runs flows spares itself: PyTorch, and most of the searches for garbage."""

import gc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

LEAN_VARIABLE = "CODERL_LEAN_START"  # of the processes that `coderl up` starts, which heed it if they import flows
WORKER_VARIABLE = "CODERL_WORKER"  # names the worker of `coderl up` to all that it starts


class _WithoutPyTorch(PathFinder):
    """Finds modules as `PathFinder` does, but not PyTorch: the Tinker SDK and transformers import it wherever it is
    installed, a third of a flow's start and half of its memory, and no flow computes with it."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname == "torch" else super().find_spec(fullname, path, target)


def collect_less_often() -> None:
    # New objects between searches for garbage (Python's own default: 700 to 2,000). What imports make stays, a million
    # objects, and to look through it over and over is an eighth of the CPU time of a short run.
    gc.set_threshold(50_000)


def leave_out_pytorch() -> None:
    """Hides PyTorch from whatever this process imports from now on."""
    sys.meta_path = [_WithoutPyTorch if finder is PathFinder else finder for finder in sys.meta_path]
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # which it gives without PyTorch
