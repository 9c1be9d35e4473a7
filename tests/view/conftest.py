"""A server of `coderl view` over runs with a pool at hand: an ordinary one, one that goes on, one of hostile texts."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest

from coderl_tasks.curation.pool import build_pool
from coderl_tasks.curation.pool import write_pool as write_curation
from coderl_tasks.filtering.overlap import Entry, find_duplicates
from coderl_tasks.filtering.signature import signature_of
from coderl_tasks.journal.atomic import write_parquet
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.steps import Commit, index_step
from coderl_tasks.paths import POOL_FILE, PROJECT_ROOT, known_sha256
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.policy.step_metrics import rollout_metrics
from coderl_tasks.problems.loading import LoadResult
from coderl_tasks.problems.problem import Drop, Problem, Test, dropped_frame, problems_frame
from coderl_tasks.problems.profile_columns import AUDIT_SCHEMA
from tests.filtering.made_problems import make_text
from tests.insight.recorded_runs import curate, problem_names, rollout, statement, write_run
from tests.view.hostile import HOSTILE_TEXTS, LONG_LINE

N_TESTS = 12


def problem(problem_id: str, split: str, text: str) -> Problem:
    tests = tuple(Test(f"{number}\n", f"expected {number}\n") for number in range(N_TESTS))
    return Problem(problem_id, split, text, "", "stdin", "", tests, N_TESTS, N_TESTS, 6.0, (), 0)


def write_pool(file: Path, problems: list[Problem]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(file, problems_frame(problems))
    return file


def pool_with_near_duplicates(folder: Path) -> Path:
    """A pool of three problems, and the two rows that de-duplication has found to be two of them again."""
    texts = [make_text(seed) for seed in range(3)]
    texts += [texts[0] + " Print the answer.", texts[2] + " Print it."]
    problems = [replace(problem(f"taco-{row:04d}", "taco", text), source_row=row) for row, text in enumerate(texts)]
    entries = [Entry(each.problem_id, f"row {each.source_row} of taco", signature_of(each)) for each in problems]
    faults = find_duplicates(entries, threshold=0.6)
    drops = [Drop.of(problems[index], "dedup", *fault) for index, fault in faults.items()]
    kept = [each for index, each in enumerate(problems) if index not in faults]
    leaked = replace(problem("taco-0005", "taco", make_text(5)), source_row=5)
    problems.append(leaked)
    drops.append(Drop.of(leaked, "decontaminate", "near_duplicate_statement", "80% alike with row 1 of taco test"))
    write_curation(
        folder,
        build_pool(LoadResult(kept, dropped_frame(drops), len(problems)), None),
        {"model_name": "data/nano", "dataset": "data/mini"},
    )
    return folder


def audited(pool: Path) -> None:
    """Records an audit of three problems, of which one has weak tests."""
    weak = {"audit": ["weak"], "mutants": 8, "mutants_survive": 6, "evidence": ["6 of 8 mutants pass"]}
    clean = {"audit": [], "mutants": 8, "mutants_survive": 0, "evidence": []}
    rows = [{"problem_id": f"taco-{n:04d}", "split": "taco"} | (clean if n else weak) for n in range(3)]
    write_parquet(pool / "audit.parquet", pl.DataFrame(rows, schema=AUDIT_SCHEMA))
    (pool / "audit.html").write_text("the evidence")


def with_pool(run: Path, pool: Path) -> Path:
    file = run / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pool": str(pool), "model_name": "no/such-model"}))
    return run


def without_pool(run: Path, content: str) -> Path:
    """The run, whose pool is no longer where it was; its SHA-256 was `content`."""
    file = run / "config.json"
    moved = {"pool": "/nowhere/pool.parquet", "pool_sha256": content}
    file.write_text(json.dumps(json.loads(file.read_text()) | moved))
    return run


def graded_step(
    run: RunDirectory, step: int, rows: list[dict[str, Any]], trainer: dict[str, Any] | None = None
) -> None:
    """Records and commits a step of these rollouts, with advantages."""
    frame = pl.DataFrame(rows, schema=ROLLOUT_SCHEMA)
    mean = pl.col("reward").mean().over("group_index")
    frame = frame.with_columns(advantage=pl.col("reward") - mean)
    has_signal = (pl.col("advantage").abs() > 1e-8).any().over("group_index").fill_null(False)
    frame = frame.with_columns(trained=has_signal & pl.col("advantage").is_not_null())
    run.step(step).write("scored", frame.select(ROLLOUT_SCHEMA.keys()))
    row = {"step": step, **rollout_metrics(frame), "n_datums": frame.height, "loss": 0.0, "kl_sample_train": 0.0}
    run.step(step).write_commit(Commit(step, row), None if trainer is None else pl.DataFrame(trainer))
    run.metrics.append(row)
    index_step(run.path, step, frame)


def further_step(path: Path, step: int) -> None:
    """One more committed step of a run, as a run at work adds it."""
    draw = random.Random(step)
    rows = [
        rollout("taco-0001", "passed" if sample % 2 else "wrong_answer", draw, step=step, sample_index=sample)
        for sample in range(8)
    ]
    with RunDirectory.open(path, json.loads((path / "config.json").read_text())) as run:
        graded_step(run, step, rows)


def fallen_run(folder: Path, problem_id: str) -> Path:
    """A run without a final evaluation, and with a problem that step 1 solves and step 2 does not."""
    path = write_run(folder, steps=1, test_size=12, seed=3)
    shutil.rmtree(path / "evals" / "final")
    draw = random.Random(3)
    with RunDirectory.open(path, json.loads((path / "config.json").read_text())) as run:
        for step, verdicts in {1: ("passed", "wrong_answer"), 2: ("wrong_answer", "runtime_error")}.items():
            rows = [
                rollout(
                    problem_id,
                    verdict,
                    draw,
                    step=step,
                    sample_index=sample,
                    first_failed=None if verdict == "passed" else 4,
                )
                for sample, verdict in enumerate(verdicts)
            ]
            graded_step(run, step, rows)
    return path


def hostile_run(folder: Path) -> Path:
    """A step with a group per hostile text, which is the problem's name, statement, test, answer, program, error and
    output; and a step with a line of 10 MB, and a completion in two turns."""
    problems, rows, draw = [], [], random.Random(0)
    for number, text in enumerate(HOSTILE_TEXTS):
        problem_id = f"{number}-{text[:200]}"
        tests = tuple(Test(text, text) for _ in range(N_TESTS))
        problems.append(
            Problem(problem_id, text[:40], text, text, "stdin", "", tests, N_TESTS, N_TESTS, None, (), number)
        )
        row = rollout(problem_id, "wrong_answer", draw, step=0, group_index=number, first_failed=2)
        row |= {"completion": text, "code": text, "failed_output": text, "suspicion": text, "split": text[:40]}
        row |= {"tests_passed": 2, "tests_run": 3, "reason": None}
        passed = rollout(problem_id, "passed", draw, step=0, group_index=number, sample_index=1, split=text[:40])
        error = {"verdict": "runtime_error", "reason": f"test 2: {text}", "failed_output": None, "sample_index": 2}
        rows += [row, passed, row | error]
    pool = write_pool(folder / "pools" / "hostile" / POOL_FILE, problems)
    config = {"model_name": HOSTILE_TEXTS[1], "pool": str(pool), "note": HOSTILE_TEXTS[2], "environment": "code"}
    with RunDirectory.open(folder / "hostile<b>&'run", config) as run:
        graded_step(run, 0, rows)
        long = {"step": 1, "completion": LONG_LINE, "code": LONG_LINE, "group_index": 0}
        turn = {"environment_text": "", "environment_tokens": [], "kept": 0, "is_split": False, "stop_reason": "stop"}
        first = turn | {"n_tokens": 4, "text": HOSTILE_TEXTS[0], "check": "wrong_answer"}
        second = turn | {"n_tokens": 6, "text": HOSTILE_TEXTS[1], "environment_text": HOSTILE_TEXTS[2], "check": None}
        tokens = {"completion_tokens": list(range(10)), "logprobs": [-0.5] * 10}
        turns = {"step": 1, "turns": [first, second], "turn_advantages": [-0.25, 0.5], **tokens}
        logprobs = [[-0.5] * 9 + [-1.25]]
        trainer = {"group_index": [0], "sample_index": [1], "trainer_logprobs": logprobs}
        graded_step(run, 1, [rows[0] | long, rows[1] | turns], trainer)
    return run.path


@dataclass(frozen=True)
class Served:
    """A running server: its `origin`, its `key`, and the folder of the runs that it shows."""

    origin: str
    key: str
    folder: Path

    def client(self) -> httpx.Client:
        client = httpx.Client(base_url=self.origin, follow_redirects=True, timeout=120)
        client.get("/", params={"key": self.key})
        return client


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("view")
    names = [(name, split) for split in ("taco", "primeintellect") for name in problem_names(split, 60)]
    pool = write_pool(
        folder / "pools" / "tests" / POOL_FILE, [problem(name, split, statement(name)) for name, split in names]
    )
    ordinary = with_pool(write_run(folder / "ordinary", steps=12, test_size=12), pool)
    live = with_pool(write_run(folder / "live", steps=3, test_size=4, seed=1), pool)
    moved = without_pool(write_run(folder / "moved", steps=2, test_size=3, seed=2), known_sha256(pool))
    # A name that dictionaries have as an attribute: templates look for both.
    lost = without_pool(fallen_run(folder / "lost", "items"), "0" * 64)
    fallen = with_pool(fallen_run(folder / "fallen", "taco-0002"), pool)
    hostile = hostile_run(folder)
    curated = curate(folder / "pools" / "curated", size=90)
    near = pool_with_near_duplicates(folder / "pools" / "near")
    audited(near)
    shown = (ordinary, live, moved, lost, fallen, hostile, pool.parent, curated, near)
    command = [sys.executable, "-m", "coderl_tasks.cli", "view", *map(str, shown)]
    environment = {"CODERL_HOME": str(folder / "home"), "PYTHONPATH": str(PROJECT_ROOT), "PATH": "/usr/bin:/bin"}
    server = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        origin, _, key = address.partition("/?key=")
        yield Served(origin, key, folder)
    finally:
        server.terminate()
        server.wait(120)


@pytest.fixture(scope="session")
def client(served: Served) -> Iterator[httpx.Client]:
    with closing(served.client()) as client:
        yield client
