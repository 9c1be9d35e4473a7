"""Seeds as hashes: what has to be sampled again comes out the same, on any machine, in any order, without state."""

import hashlib

SEED_BITS = 31


def seed_for(*parts: int | str) -> int:
    """A seed of 31 bits from `parts`, as in seed_for(run_seed, "sample", step, problem_id).

    Stable across processes and versions. An int and a string of the same digits differ, and so do
    ("ab", "c") and ("a", "bc"). Raises TypeError for anything but int and str (a float's text is not stable).
    """
    if not parts:
        raise TypeError("seed_for needs at least one part")
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | str):
            raise TypeError(f"a seed is made of int and str, not {type(part).__name__}: {part!r}")
        data = str(part).encode()
        digest.update(f"{'i' if isinstance(part, int) else 's'}{len(data)}:".encode() + data)
    return int.from_bytes(digest.digest()[:4], "big") >> (32 - SEED_BITS)
