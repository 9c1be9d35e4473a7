"""What a warm parent has loaded when it forks, and which of the two a program should come from.

Each module slows every fork: its memory is copied page by page as it is written to, and a compiled one adds five
mappings. So there are two parents: one with what most programs and a grading driver use, and one that has as well what
takes long to import and few programs use. `threading` is in neither: its work at every fork is dear.
"""

import re
from functools import lru_cache

USUAL = """
    __future__ atexit binascii bisect builtins collections collections.abc contextlib copy errno functools gc heapq io
    itertools json math operator os re resource select signal stat string struct sys time types typing warnings weakref
""".split()  # noqa: SIM905

RARE = "array cmath dataclasses datetime decimal fractions numpy random statistics".split()  # noqa: SIM905

_IMPORTS_RARE = re.compile(rb"\b(?:import|from)\b[^\n]*\b(?:" + "|".join(RARE).encode() + rb")\b")


@lru_cache(maxsize=4)  # a grading driver comes with every request, and looking through it takes 0.2 ms
def imports_rare(text: bytes) -> bool:
    """Whether a program seems to import one of RARE; a wrong answer costs the time of an import, nothing else."""
    return _IMPORTS_RARE.search(text) is not None
