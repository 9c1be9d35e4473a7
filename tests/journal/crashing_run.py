"""Kills a small run at each of its durable operations and starts it again. Prints a report as JSON.

Run by test_crashes.py with a folder to work in. It forks one child a crash point. The child dies inside `os.fsync`,
`os.replace` or `os.unlink`, before the call, and for a file being written with its last bytes missing. Only processes
die here, not machines, so that `os.fsync` itself is left out, which would take most of the time.
"""

import hashlib
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.journal.checkpoints import get_last_checkpoint, record_checkpoint
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.steps import Commit
from coderl_tasks.policy.rollout import GRADED_SCHEMA, ROLLOUT_SCHEMA, SAMPLED_SCHEMA

STEPS, GROUPS = 1, 2


def sample(path: Path, step: int, group: int) -> pl.DataFrame:
    """One group; that it was drawn is noted beside the run."""
    drawn = os.open(path.with_name("drawn"), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(drawn, f"{step}/{group}\n".encode())
    os.close(drawn)
    row = dict.fromkeys(SAMPLED_SCHEMA) | {"step": step, "group_index": group, "completion": "x" * 50}
    return pl.DataFrame([row], schema=SAMPLED_SCHEMA)


def run_to_the_end(path: Path) -> None:
    """What a training run does with its journal, from wherever it stands."""
    with RunDirectory.open(path, {"seed": 0}) as run:
        baseline = run.evaluation("baseline")
        if baseline.read_summary() is None:
            baseline.groups.write(0, sample(path, -1, 0))
            baseline.write(score(baseline.groups.read()[0]), {"pass_at_1": 0.5})
        run.metrics.append({"step": -1, "eval/name": "baseline", "eval/mean_correct": 0.5})
        for step in range(run.next_step, STEPS):
            journal = run.step(step)
            sampled = journal.read("sampled")
            if sampled is None:
                groups = journal.groups.read()
                for group in set(range(GROUPS)) - groups.keys():
                    groups[group] = sample(path, step, group)
                    journal.groups.write(group, groups[group])
                sampled = pl.concat(groups[group] for group in sorted(groups))
                journal.write("sampled", sampled)
            if journal.read("scored") is None:
                journal.write("scored", score(sampled))
            commit = Commit(step, {"step": step, "mean_reward": 0.5, "note": "y" * 40})
            journal.write_commit(commit)
            run.metrics.append(commit.metrics)
        last = get_last_checkpoint(path)
        if last is None or last["step"] < STEPS - 1:
            record_checkpoint(path, "final", {"step": STEPS - 1}, {"state_path": "tinker://a/weights/final"})


def score(sampled: pl.DataFrame) -> pl.DataFrame:
    extra = [pl.lit(None, dtype=kind).alias(name) for name, kind in GRADED_SCHEMA.items()]
    return sampled.with_columns(extra).select(list(ROLLOUT_SCHEMA))


def crash_at(point: int | None) -> list[int]:
    """Die at the durable operation number `point`; None only counts them."""
    counted = [0]

    def wrap(name: str) -> None:
        call = getattr(os, name)

        def crashing(target: Any, *rest: Any, **more: Any) -> Any:
            if counted[0] == point:
                if name == "fsync" and stat.S_ISREG(os.fstat(target).st_mode):
                    os.ftruncate(target, max(0, os.fstat(target).st_size - 5))
                os._exit(9)
            counted[0] += 1
            return None if name == "fsync" else call(target, *rest, **more)

        setattr(os, name, crashing)

    for name in ("fsync", "replace", "unlink"):
        wrap(name)
    return counted


def child(path: Path, point: int | None) -> tuple[int, int]:
    """Run to the end, or to the crash, in a fork: its exit status (9 after a crash) and the number of operations."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        counted = crash_at(point)
        try:
            run_to_the_end(path)
        except BaseException as error:
            os.write(2, f"point {point}: {error!r}\n".encode())
            os._exit(1)
        os.write(writer, str(counted[0]).encode())
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 100)
    os.close(reader)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), int(answer or -1)


def contents(path: Path) -> dict[str, str]:
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != "run.lock")
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def main(root: Path) -> None:
    (root / "quiet").mkdir()
    status, operations = child(root / "quiet" / "run", None)
    if status != 0:
        raise SystemExit("the quiet run failed")
    wanted = contents(root / "quiet" / "run")
    crashed, different, redrawn = 0, [], 0
    for point in range(operations):
        folder = root / str(point)
        folder.mkdir()
        status, _ = child(folder / "run", point)
        crashed += status == 9
        status, _ = child(folder / "run", None)
        if status != 0 or contents(folder / "run") != wanted:
            different.append(point)
        drawn = (folder / "drawn").read_text().split()
        redrawn = max(redrawn, len(drawn) - len(set(drawn)))
    report = {"operations": operations, "crashed": crashed, "different": different, "redrawn": redrawn}
    print(json.dumps(report | {"files": sorted(wanted)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
