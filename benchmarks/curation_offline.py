"""The stages of a curation that need no model, on a generated data set: speed, memory, what is found.

    python benchmarks/curation_offline.py [--scale 0.02] [--folder DATA] [--keep] [--workers N]

Scale 1 is 24,287 train rows and 7.8 GB (deepcoder_sized.py says what is planted in them). Prints the planted faults,
how many were found and named (the right stage, reason, and other problem), what was dropped of the clean rows, raw
MB/s, and the peak memory of all processes together: the sum of what is resident, shared pages counted for each. Exits
with 1 if a planted fault was not found and named, a clean row was dropped, or rows were lost.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from deepcoder_sized import generate

from coderl_tasks.filtering.stages import FilterRequest, FilterResult, filter_dataset

SAMPLE_S = 0.02


class PeakMemory(threading.Thread):
    """Watches the resident memory of this process and all below it; `peak` in bytes, `before` when it started."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.peak = resident(os.getpid())
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.peak = max(self.peak, resident(os.getpid()))

    def end(self) -> int:
        self._ended.set()
        self.join()
        return self.peak


def resident(pid: int) -> int:
    """Bytes resident in a process and all below it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has just ended
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident(child) for child in children)


def check(planted: list[dict[str, Any]], done: FilterResult) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """Rows of the table (fault, planted, found, named, as what), and the clean rows that were dropped."""
    dropped = {(row["split"], row["source_row"]): row for row in done.dropped.iter_rows(named=True)}
    table = []
    for fault in dict.fromkeys(item["fault"] for item in planted):
        items = [item for item in planted if item["fault"] == fault]
        drops = [dropped.get((item["split"], item["row"])) for item in items]
        named = [
            drop is not None
            and drop["stage"] == item["stage"]
            and drop["reason"] in item["reasons"]
            and item["names"] in drop["detail"]
            for item, drop in zip(items, drops, strict=True)
        ]
        reasons = Counter(f"{drop['stage']}/{drop['reason']}" for drop in drops if drop is not None)
        as_what = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        table.append([fault, len(items), sum(drop is not None for drop in drops), sum(named), as_what])
    faulty = {(item["split"], item["row"]) for item in planted}
    return table, [row for place, row in dropped.items() if place not in faulty]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, help="where the data set is, or is to be written")
    parser.add_argument("--keep", action="store_true", help="leave the data set and the result there")
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp()) / "data"
    try:
        return measure(folder, options.scale, options.workers)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def measure(folder: Path, scale: float, workers: int | None) -> int:
    if not (folder / "planted.json").is_file():
        started = time.perf_counter()
        writer = multiprocessing.get_context("spawn").Process(target=generate, args=(folder, scale))
        writer.start()
        writer.join()
        if writer.exitcode:
            return 1
        print(f"generated in {time.perf_counter() - started:.0f} s")
    planted = json.loads((folder / "planted.json").read_text())
    result = folder / "result"
    memory = PeakMemory()
    memory.start()
    started = time.perf_counter()
    read = 0

    def on_rows(progress: Any) -> None:
        nonlocal read
        read = progress.bytes_total

    done = filter_dataset(result, FilterRequest(str(folder), workers=workers), on_rows)
    seconds = time.perf_counter() - started
    peak = memory.end()
    table, wrongly = check(planted, done)
    print(f"{'planted fault':<50} {'planted':>8} {'found':>6} {'named':>6}   as")
    for fault, count, found, named, as_what in table:
        print(f"{fault:<50} {count:>8} {found:>6} {named:>6}   {as_what}")
    for row in wrongly[:10]:
        print(
            f"dropped, though clean: {row['split']} {row['source_row']} {row['stage']}/{row['reason']}: {row['detail']}"
        )
    missed = sum(row[1] - row[3] for row in table)
    print(f"{done.read} rows read, {len(done.kept)} kept, {done.dropped.height} dropped, {len(wrongly)} of them clean")
    cores = len(os.sched_getaffinity(0))
    print(
        f"{read / 1e9:.2f} GB in {seconds:.1f} s: {read / 1e6 / seconds:.0f} MB/s on {cores} cores, "
        f"peak {peak / 1e9:.2f} GB resident ({memory.before / 1e9:.2f} GB before)"
    )
    return 1 if missed or wrongly else 0


if __name__ == "__main__":
    sys.exit(main())
