"""Runs and curations as the flows record them, made up: rewards that rise, with every kind of verdict."""

import math
import random
from pathlib import Path
from typing import Any

import polars as pl
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from coderl_tasks.curation.labels import learn_prior, with_labels
from coderl_tasks.curation.pool import build_pool, write_pool
from coderl_tasks.curation.solutions import SolutionCheck, Status
from coderl_tasks.curation.stopping_rule import difficulty
from coderl_tasks.evaluation.paired import compared
from coderl_tasks.journal.atomic import write_parquet, write_rows
from coderl_tasks.journal.checkpoints import record_checkpoint
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.steps import Commit
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.policy.step_metrics import rollout_metrics
from coderl_tasks.policy.update import OptimizerStep
from coderl_tasks.problems.loading import LoadResult
from coderl_tasks.problems.problem import Drop, Problem, Test, dropped_frame
from coderl_tasks.problems.profile_columns import SHARD_SCHEMA, SOLUTION_SCHEMA
from coderl_tasks.settings import HUB_DATASET
from coderl_tasks.stats import jeffreys_interval, wilson_interval

HOSTILE = "</code></pre><script>document.title='owned'</script><img src=x onerror=alert(1)>"
STEPS, GROUPS, SAMPLES = 30, 8, 16
WRONG = ("wrong_answer", "wrong_answer", "wrong_answer", "runtime_error", "time_limit")
AGGREGATES = ("sum", "largest", "smallest", "number", "product")
FILTERS = ("even", "odd", "positive", "negative", "distinct")


def problem_names(split: str, count: int) -> list[str]:
    return [f"{split}-{index:04d}" for index in range(count)]


def statement(problem_id: str) -> str:
    seed = sum(map(ord, problem_id))
    what, which = AGGREGATES[seed % 5], FILTERS[seed // 5 % 5]
    return f"Read n, then n integers. Print the {what} of the {which} elements of the list. ({problem_id})"


def completion_for(verdict: str, draw: random.Random) -> tuple[str, str | None]:
    """A completion with the code in it, as the nano policy writes them."""
    if verdict == "format_error":
        return "The answer is to loop over the list " + HOSTILE, None
    body = "n = int(input())\nvalues = list(map(int, input().split()))\n"
    body += {
        "passed": "print(sum(v for v in values if v % 2 == 0))",
        "wrong_answer": "print(sum(values))  # < & >",
        "runtime_error": "print(values[n])",
        "time_limit": "while True:\n    n += 1",
        "infra_error": "print(max(values))",
    }[verdict]
    text = f"```python\n{body}\n```"
    return (f"First I filter.{HOSTILE}\n{text}" if draw.random() < 0.1 else text), body


SANDBOX = "http://sandbox.example:8080"


def rollout(problem_id: str, verdict: str, draw: random.Random, **place: Any) -> dict[str, Any]:
    text, code = completion_for(verdict, draw)
    right, infra = verdict == "passed", verdict == "infra_error"
    tokens = list(text.encode())
    run = 0 if code is None or infra else 12 if right else draw.randint(1, 12)
    format_score = None if infra else -1.0 if code is None else 0.0
    return {
        "step": -1,
        "attempt": 0,
        "problem_id": problem_id,
        "split": problem_id.rsplit("-", 1)[0],
        "group_index": 0,
        "sample_index": 0,
        "sampler_step": -1,
        "prompt_tokens": byte_tokens(statement(problem_id)),
        "completion_tokens": tokens,
        "logprobs": [round(-draw.random(), 4) for _ in tokens],
        "completion": text,
        "stop_reason": "length" if verdict == "format_error" and draw.random() < 0.4 else "stop",
        "code": code,
        "verdict": verdict,
        "tests_passed": run if right else max(run - 1, 0),
        "tests_run": run,
        "tests_total": 12,
        "first_failed": None if right or not run else run - 1,
        "format_score": format_score,
        "correctness_score": None if infra else float(right),
        "reward": None if infra else 0.1 * (format_score or 0.0) + right,
        "advantage": None,
        "trained": False,
        "failed_output": f"3 {HOSTILE}\n" if verdict == "wrong_answer" else None,
        "reward_error": None,
        "reason": f"test {run - 1}: IndexError {HOSTILE}" if verdict == "runtime_error" else None,
        "run_seconds": 6.0 if verdict == "time_limit" else round(0.02 * run * (1 + draw.random()), 4),
        "test_seconds": [0.02] * run or None,
        "sandbox": {"server": SANDBOX, "retries": int(verdict == "runtime_error")} if run else None,
    } | place


def draw_verdict(p_right: float, p_format: float, p_infra: float, draw: random.Random) -> str:
    if draw.random() < p_infra:
        return "infra_error"
    if draw.random() > p_format:
        return "format_error"
    return "passed" if draw.random() < p_right else draw.choice(WRONG)


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZER = byte_tokenizer()


def byte_tokens(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


def share(rows: list[dict[str, Any]]) -> dict[str, Any]:
    graded = [row for row in rows if row["verdict"] != "infra_error"]
    rate = sum(row["verdict"] == "passed" for row in graded) / len(graded)
    low, high = wilson_interval(round(rate * len(graded)), len(graded))
    return {"n": len(graded), "pass_at_1": rate, "ci_low": low, "ci_high": high}


def write_evaluation(run: RunDirectory, name: str, skill: float, size: int, **extra: Any) -> dict[str, Any]:
    """Greedy answers on `size` problems per split; a problem's luck is its own, so that evaluations pair up."""
    rows = []
    for split in ("codeforces", "lcbv5"):
        for index, problem_id in enumerate(problem_names(split, size)):
            luck = random.Random(f"luck {problem_id}").random()
            draw = random.Random(f"{name} {problem_id}")
            right = luck < skill + 0.12 * (draw.random() - 0.5)
            verdict = "passed" if right else draw_verdict(0.0, 0.93, 0.0, draw)
            rows.append(rollout(problem_id, verdict, draw, group_index=index))
    summary = share(rows) | {
        "by_split": {s: share([row for row in rows if row["split"] == s]) for s in ("codeforces", "lcbv5")},
        "format_rate": sum(row["code"] is not None for row in rows) / len(rows),
        "truncated_rate": sum(row["stop_reason"] == "length" for row in rows) / len(rows),
        "infra_errors": 0,
        "temperature": 0.0,
        "max_tokens": 512,
        "policy": f"tinker://synthetic/sampler/{name}",
        **extra,
    }
    run.evaluation(name).write(pl.DataFrame(rows, schema=ROLLOUT_SCHEMA), summary)
    return summary


def write_step(run: RunDirectory, step: int, draw: random.Random, steps: int) -> dict[str, Any]:
    progress = 1 - math.exp(-3 * step / steps)
    rows = []
    for group in range(GROUPS):
        problem_id = draw.choice(problem_names("taco", 60) + problem_names("primeintellect", 60))
        ability = 0.35 + 0.4 * progress + draw.gauss(0, 0.25)
        group_rows = [
            rollout(
                problem_id,
                draw_verdict(ability, 0.88 + 0.115 * progress, 0.002, draw),
                draw,
                step=step,
                group_index=group,
                sample_index=sample,
                sampler_step=step,
            )
            for sample in range(SAMPLES)
        ]
        rewards = [row["reward"] for row in group_rows if row["reward"] is not None]
        mean = sum(rewards) / len(rewards)
        degenerate = max(rewards) - min(rewards) < 1e-8
        for row in group_rows:
            if row["reward"] is not None:
                row["advantage"], row["trained"] = row["reward"] - mean, not degenerate
        rows += group_rows
    frame = pl.DataFrame(rows, schema=ROLLOUT_SCHEMA)
    times = {
        "time_sample_s": draw.uniform(2.2, 3.2),
        "time_score_s": draw.uniform(0.8, 1.6),
        "time_train_s": draw.uniform(1.8, 2.6),
    }
    row = {
        "step": step,
        **rollout_metrics(frame),
        "n_datums": int(frame["trained"].sum()),
        "loss": draw.gauss(-2.0, 4.0),
        "kl_sample_train": draw.gauss(2e-4, 2e-4) + 4e-4 * progress,
        "seed": 0,
        **times,
        "time_step_s": sum(times.values()) + 0.2,
        "lr": 4e-4,
    }
    updates: list[dict[str, Any]] = []
    if step == STEPS - 1:  # the last one was trained on twice
        row["n_updates"] = 2
        sums: Any = (row["n_datums"], 100 * row["n_datums"], row["loss"], 0.5, 98.0, 1.5)
        updates = [OptimizerStep(epoch, *sums, clipped=3, service_metrics={}).row() for epoch in range(2)]
    run.step(step).write("scored", frame)
    run.step(step).write_commit(Commit(step, row, updates=updates))
    return row


def write_run(folder: Path, steps: int = STEPS, seed: int = 0, test_size: int = 120) -> Path:
    """A run of `steps` steps that learns, with evaluations before, during and after."""
    draw = random.Random(seed)
    model = folder.with_name(f"{folder.name}-model")
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    TOKENIZER.save(str(model / "tokenizer.json"))
    config = {
        "model_name": str(model),
        "preset": "nano",
        "dataset": HUB_DATASET,
        "batch_size": 128,
        "group_size": 8,
        "learning_rate": 4e-4,
        "lora_rank": 32,
        "max_tokens": 512,
        "temperature": 1.0,
        "max_steps": steps,
        "seed": seed,
        "pool": "data/pools/demo",
        "note": "<b>not bold</b>",
    }
    with RunDirectory.open(folder, config) as run:
        first = write_evaluation(run, "baseline", 0.50, test_size)
        rows: list[dict[str, Any]] = [{"step": -1, "eval/mean_correct": first["pass_at_1"]}]
        for step in range(steps):
            rows.append(write_step(run, step, draw, steps))
            if step % 10 == 9 and step + 1 < steps:
                skill = 0.50 + 0.25 * (1 - math.exp(-3 * step / steps))
                name = f"step-{step:06d}"
                during = write_evaluation(run, name, skill, test_size // 3)
                files = (folder / "evals" / each / "rollouts.parquet" for each in ("baseline", name))
                before, after = map(pl.read_parquet, files)
                compare = compared(before, after, to="baseline", sides=(first, during))
                write_evaluation(run, name, skill, test_size // 3, **compare)
                rows.append({"step": step, "eval/mean_correct": during["pass_at_1"]})
                name = f"{step:06d}"
                paths = {"state_path": f"tinker://s/weights/{name}", "sampler_path": f"tinker://s/sampler/{name}"}
                record_checkpoint(folder, name, {"step": step, "dataset_offset": step * GROUPS}, paths)
        last = write_evaluation(run, "final", 0.74, test_size)
        gain = last["pass_at_1"] - first["pass_at_1"]
        compare = {"to": "baseline", "difference": gain, "ci_low": gain - 0.06, "ci_high": gain + 0.06, "n": last["n"]}
        write_evaluation(run, "final", 0.74, test_size, compare=compare)
        rows.append({"step": steps - 1, "eval/mean_correct": last["pass_at_1"]})
        write_rows(run.metrics.path, rows)
    return folder


FAULTS = (
    ("parse", "malformed_json", "line 1 column 3"),
    ("sanity", "too_few_tests", "3 tests"),
    ("dedup", "same_identity", "same as row 7 of taco"),
    ("solution", "own_solution_fails", "test 4 <script>alert(1)</script>"),
)


def curate(folder: Path, size: int = 240, seed: int = 0) -> Path:
    """A finished curation: profile of most of `size` problems, the pool in the band, what was dropped and why."""
    draw = random.Random(seed)
    problems, drops, profile = [], [], []
    for index in range(size):
        split = ("taco", "primeintellect", "lcbv5")[index % 3]
        problem_id = f"{split}-{index:04d}"
        if draw.random() < 0.15:
            stage, reason, detail = draw.choice(FAULTS)
            known = None if stage == "parse" else problem_id
            drops.append(Drop(stage, reason, detail, known, split, index, known and statement(problem_id)))
            continue
        tests = (Test("1\n2\n", "2\n"),) * 5
        problems.append(
            Problem(problem_id, split, statement(problem_id), "", "stdin", "", tests, 5, 9, None, (), index)
        )
        n = draw.choice([2, 4, 8, 16])
        ability = draw.betavariate(0.7, 0.9)
        right = sum(draw.random() < ability for _ in range(n))
        low, high = jeffreys_interval(right, n)
        profile.append(
            {
                "problem_id": problem_id,
                "split": split,
                "pass_rate": right / n,
                "n_samples": n,
                "n_correct": right,
                "ci_low": low,
                "ci_high": high,
                "difficulty": difficulty(right / n),
                "format_rate": 0.9,
                "mean_completion_tokens": draw.uniform(30, 60),
                "truncated_rate": 0.0,
                "infra_errors": 0,
                "prompt_tokens": 200,
                "rounds": -(-n // 4),
                "prompt_tokens_spent": 200 * -(-n // 4),
                "completion_tokens_spent": 30 * n,
            }
        )
    profiles = pl.DataFrame(profile, schema=SHARD_SCHEMA)
    prior = learn_prior(profiles)
    profiles = with_labels(profiles, prior)
    pool = build_pool(LoadResult(problems, dropped_frame(drops), size), profiles, prior=prior)
    write_pool(folder, pool, {"model_name": "data/nano", "dataset": "data/mini", "seed": seed})
    write_parquet(folder / "solutions.parquet", solution_checks(problems, drops))
    return folder


def solution_checks(problems: list[Problem], drops: list[Drop]) -> pl.DataFrame:
    """What the reference solutions showed: every ninth problem is a suspect, those of lcbv5 have no solutions."""
    checks = [
        SolutionCheck(
            problem.problem_id,
            problem.split,
            Status.NO_SOLUTION if problem.split == "lcbv5" else Status.GOOD,
            suspicion=f'the statement says "print any" {HOSTILE}' if number % 9 == 0 else None,
        )
        for number, problem in enumerate(problems)
    ]
    failing = [drop for drop in drops if drop.stage == "solution"]
    checks += [SolutionCheck(str(drop.problem_id), drop.split, Status.FAILS, drop.detail) for drop in failing]
    return pl.DataFrame([check.to_row() for check in checks], schema=SOLUTION_SCHEMA)


ROW = {"mean_reward": 0.5, "mean_correct": 0.52, "format_rate": 0.98, "groups_total": 8, "groups_skipped": 2}
