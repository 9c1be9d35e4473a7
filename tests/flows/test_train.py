"""Training end to end on the embedded servers: the record, resuming, and what a kill costs."""

import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, FlowRunFilter, FlowRunFilterName
from sampling_gateway import Gateway

from coderl_tasks.cli import main
from coderl_tasks.insight.query import query
from coderl_tasks.journal.atomic import read_json, write_json
from coderl_tasks.paths import NANO_MODEL, WORDS_DATASET, coderl_home
from coderl_tasks.planning.flow_plans import plan_evaluation
from coderl_tasks.runtime import display
from coderl_tasks.services.supervisor import EmbeddedServer
from coderl_tasks.settings import EvaluateSettings, parse_settings
from flows.evaluate import taken_from_the_run
from flows.train import ARTIFACT_EVERY, is_history_due, publishing_histories
from tests.flows.conftest import Coderl, Refused
from tests.flows.run_records import TINY, checkpoint_weights, rollouts, rows, step_rows, wait_for, without_observed
from tests.insight.recorded_runs import write_run
from tests.warm_start import Command

STEP_FILES = ["commit.json", "sampled.parquet", "scored.parquet", "trainer_logprobs.parquet"]


def test_the_run_directory_holds_what_was_promised(run: Path) -> None:
    assert sorted(path.name for path in run.glob("steps/*")) == ["000000", "000001", "000002"]
    for step in run.glob("steps/*"):
        assert sorted(path.name for path in step.iterdir()) == STEP_FILES
    assert [row["step"] for row in rows(run / "metrics.jsonl")] == [-1, 0, 1, 1, 2, 2]
    assert [row["name"] for row in rows(run / "checkpoints.jsonl")] == ["initial", "step-000001", "step-000002"]
    assert sorted(path.name for path in run.glob("evals/*")) == ["baseline", "final", "step-000001"]
    summary = json.loads((run / "evals/final/summary.json").read_text())
    assert summary["n"] == 4
    assert summary["compare"]["to"] == "baseline"
    assert (run / "report.html").is_file()
    assert "rewards" in (run / "logs.log").read_text()


def test_the_rollouts_are_groups_with_mean_zero_advantages(run: Path) -> None:
    scored = rollouts(run)
    assert scored.height == 3 * 24
    assert (scored["sampler_step"] == scored["step"] - 1).all()
    means = scored.group_by("step", "group_index").agg(pl.col("advantage").mean())
    assert max(means["advantage"].abs().to_list()) < 1e-12


def test_the_importance_ratio_of_each_token_is_recorded(run: Path) -> None:
    gaps = query(
        run,
        """
        SELECT step, avg(sampler - trainer) AS gap, max(exp(trainer - sampler)) AS ratio FROM (
            SELECT step, unnest(logprobs)::DOUBLE AS sampler, unnest(trainer_logprobs)::DOUBLE AS trainer
            FROM rollouts JOIN trainer USING (run, step, group_index, sample_index)
        ) GROUP BY step ORDER BY step
        """,
    )
    trained = [row for row in step_rows(run) if row["kl_sample_train"] is not None]
    assert gaps["step"].to_list() == [row["step"] for row in trained] != []
    assert gaps["gap"].to_list() == pytest.approx([row["kl_sample_train"] for row in trained], abs=1e-7)
    assert gaps["ratio"].to_list() == pytest.approx([row["ratio_max"] for row in trained])


def test_the_tests_ran_in_the_recorded_order(run: Path) -> None:
    orders = json.loads((run / "test_order.json").read_text())
    failed = rollouts(run).filter(pl.col("first_failed").is_not_null()).to_dicts()
    out_of_turn = {row["problem_id"] for row in failed if row["tests_run"] <= row["first_failed"]}
    assert out_of_turn and out_of_turn <= orders.keys()  # in the problems' own order nothing fails that early
    for row in failed:
        order = orders.get(row["problem_id"], list(range(row["tests_total"])))
        assert row["tests_run"] == order.index(row["first_failed"]) + 1


def test_a_failed_test_is_shown_as_the_judge_saw_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scored = pl.read_parquet(sorted(run.glob("steps/*/scored.parquet")))
    wrong = scored.filter(verdict="wrong_answer").row(0, named=True)
    assert main(["show", str(run), wrong["problem_id"], "--step", str(wrong["step"]), "--json"]) == 0
    completions = json.loads(capsys.readouterr().out)["completions"]
    failed = next(row["failed_test"] for row in completions if row["sample_index"] == wrong["sample_index"])
    assert failed["got"] == wrong["failed_output"] and failed["input"] and failed["expected"] != failed["got"]
    assert "expected" in failed["difference"]
    assert scored.filter(verdict="passed")["failed_output"].null_count() == scored.filter(verdict="passed").height
    reasons = scored.filter(pl.col("reason").is_not_null())["verdict"].unique().to_list()
    assert reasons and "wrong_answer" not in reasons


def test_the_first_update_is_on_policy(run: Path) -> None:
    gaps = [row["kl_sample_train"] for row in step_rows(run) if row["kl_sample_train"] is not None]
    assert gaps
    assert all(abs(gap) < 1e-4 for gap in gaps)


def test_a_tinker_server_that_dies_costs_nothing(
    flow_environment: dict[str, str], run: Path, pool: Path, tmp_path: Path
) -> None:
    path, home = tmp_path / "run", tmp_path / "home"
    environment = {**flow_environment, "TINKER_API_KEY": "", "TINKER_BASE_URL": ""}
    words = ("train", "preset=nano", f"pool={pool}", f"log_path={path}", "max_steps=2", *TINY[:4], "eval_every=-1")
    process = Command({**environment, "CODERL_HOME": str(home)}, *words, stderr=subprocess.STDOUT)
    wait_for(path / "steps/000000/scored.parquet", process)
    os.kill(tinker_server_of(home), signal.SIGKILL)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    # On the embedded server, which nobody bills, each step measures the KL to the base model by default.
    first, second = found = step_rows(path)
    assert [without_observed(row) for row in found] == [without_observed(row) for row in step_rows(run)[:2]]
    undisturbed = rollouts(run).filter(pl.col("step") < 2)
    assert rollouts(path).drop("base_logprobs").equals(undisturbed.drop("base_logprobs"))
    weights = [
        [checkpoint_weights(row["state_path"], place) for row in rows(folder / "checkpoints.jsonl")[:2]]
        for folder, place in ((path, home), (run, coderl_home()))
    ]
    assert weights[0] == weights[1], "before the first step, and after the second"
    assert abs(first["kl_base"]) < 1e-5 and 0 <= first["kl_base_k3"] < 1e-8, "a new adapter is the base model"
    assert second["kl_base_k3"] > 1e-6 and second["tokens_base"] > 0


def tinker_server_of(home: Path) -> int:
    """The process that serves Tinker (not its guard) with this CODERL_HOME."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if (
                    b"tinker" in words
                    and b"guard.py" not in words[1]
                    and str(home).encode() in (folder / "environ").read_bytes()
                ):
                    return int(folder.name)
            except OSError:  # ended meanwhile
                continue
    raise AssertionError("no Tinker server found")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("seed=1", "seed: 0 -> 1"),
        ("group_size=4", "group_size: 3 -> 4 problems per step"),
        ("eval=on:validation", "eval.on: 'test' -> 'validation'"),
        ("adam.beta1=0.8", "adam.beta1: 0.9 -> 0.8"),
        ("reward=fraction", "reward: 'binary' -> 'fraction'"),
        ("nonsense=1", "nonsense"),
    ],
)
def test_a_change_that_matters_is_refused_with_one_line(refused: Refused, run: Path, change: str, says: str) -> None:
    before = (run / "config.json").read_bytes()
    assert says in refused("train", f"log_path={run}", change)
    assert (run / "config.json").read_bytes() == before


def test_a_hub_model_without_a_service_names_both_ways_out(refused: Refused, pool: Path, tmp_path: Path) -> None:
    words = ("train", "model_name=Qwen/Qwen3-4B-Instruct-2507", f"pool={pool}", f"log_path={tmp_path / 'run'}")
    said = refused(*words, TINKER_API_KEY="", TINKER_BASE_URL="")
    assert "TINKER_API_KEY" in said
    assert "preset=nano" in said


def test_a_finished_run_says_so_and_records_no_change(coderl: Coderl, run: Path) -> None:
    before = (run / "config.json").read_bytes()
    done = coderl("train", f"log_path={run}", "learning_rate=1")
    assert done.returncode == 0, done.stderr
    assert "finished: 3 steps, nothing is left to do; max_steps=N adds steps" in done.stdout
    assert "without effect, as no step is left: learning_rate: 0.001 -> 1.0" in done.stdout
    assert (run / "config.json").read_bytes() == before


def test_what_is_wrong_is_said_before_anything_starts(refused: Refused, pool: Path, tmp_path: Path) -> None:
    bad_pool = tmp_path / "pool.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(bad_pool)
    cases: tuple[tuple[dict[str, str], Path, str], ...] = (
        ({"TINKER_API_KEY": "garbage"}, pool, "starts with tml-"),
        ({"SANDBOX_URL": "foo"}, pool, "SANDBOX_URL: 'foo'"),
        ({"SANDBOX_MAX_CONCURRENCY": "abc"}, pool, "SANDBOX_MAX_CONCURRENCY='abc'"),
        ({}, bad_pool, "has no columns problem_id"),
    )
    path = tmp_path / "run"
    for variables, named, says in cases:
        words = ("train", "preset=nano", f"pool={named}", f"log_path={path}")
        assert says in refused(*words, PREFECT_API_URL="http://127.0.0.1:9/api", **variables)
        assert not path.exists()


def test_a_run_goes_on_from_what_damage_left_and_its_log_has_all_that_the_console_says(
    coderl: Coderl, run: Path, tmp_path: Path
) -> None:
    """Without checkpoints, and with scores that are made again from the samples."""
    path = tmp_path / "a run"
    shutil.copytree(run, path)
    (path / "logs.log").unlink()
    (path / "steps/000002/commit.json").unlink()
    for name in ("steps/000000", "steps/000001"):
        scored = path / name / "scored.parquet"
        scored.write_bytes(scored.read_bytes()[:-100])
    (path / "checkpoints.jsonl").write_text("damaged\ndamaged\n")
    done = coderl("train", f"log_path={path}", "eval_every=-1", "resume=must")
    assert done.returncode == 0, done.stderr
    assert "step 1: its scored rollouts are missing or damaged: its samples are scored again" in done.stdout
    assert "warning" not in done.stdout
    assert f"to resume: coderl train log_path='{path}'" in done.stdout
    assert step_rows(path) == step_rows(run)
    assert rollouts(path).equals(rollouts(run))

    log = (path / "logs.log").read_text()
    assert f"{path / 'checkpoints.jsonl'} is damaged: " in log and "set aside as checkpoints.jsonl.damaged" in log
    assert f"{path / 'checkpoints.jsonl'} is missing or empty: the policy comes from the state after step 0, " in log
    said = [line for line in done.stdout.splitlines() if line and not line.startswith("Prefect UI: ")]
    steps = [line for line in said if re.match(r"step +\d+/3 ", line)]  # those also say how far the run is
    assert len(steps) == 1 and "INFO    coderl_tasks: step    2  reward" in log
    assert [line for line in said if line not in steps and line not in log] == []
    assert "run directory: " in log and "to evaluate it: " in log and "steps: 3" in log


def test_a_stop_that_needs_a_hand_says_so(coderl: Coderl, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(run, path)
    (path / "steps/000002/commit.json").unlink()
    (path / "steps/000001/scored.parquet").unlink()
    (path / "steps/000001/sampled.parquet").unlink()
    checkpoints = rows(path / "checkpoints.jsonl")
    (path / "checkpoints.jsonl").write_text(json.dumps(checkpoints[0]) + "\n")
    done = coderl("train", f"log_path={path}")
    assert done.returncode == 2
    assert "stopped before step 2; fix the error below, then continue: coderl train" in done.stdout
    assert "remove the folders of the steps from 000001 on, to train these steps again" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("other", [(), ("reward_timeout=7",)])
def test_evaluate_finds_the_run_and_compares_with_its_baseline(
    coderl: Coderl, run: Path, tmp_path: Path, other: tuple[str]
) -> None:
    done = coderl("evaluate", f"checkpoint={run}", "eval_limit=4", f"log_path={tmp_path / 'eval'}", *other)
    assert done.returncode == 0, done.stderr
    # What the run's final evaluation measured is taken from there, and what it did not is measured.
    assert ("with these settings: nothing is sampled" in done.stdout) is not bool(other)
    assert ("Sandbox: " in done.stdout) is bool(other)
    summary = json.loads((tmp_path / "eval/summary.json").read_text())
    assert (summary.get("taken_from"), "in all " in done.stdout) == ((None, True) if other else ("final", False))
    final = json.loads((run / "evals/final/summary.json").read_text())
    assert {key: summary[key] for key in ("n", "pass_at_1", "by_split")} == {
        key: final[key] for key in ("n", "pass_at_1", "by_split")
    }
    assert summary["compare"]["to"] == "baseline"
    assert summary["policy"].startswith("tinker://")
    assert summary["compare"]["after"] == {
        key: summary[key] for key in ("policy", "step", "temperature", "max_tokens", "n", "served_by")
    }
    assert "  baseline: data/nano, not trained, temperature 0, max_tokens 64, n=4" in done.stdout.splitlines()


async def test_an_evaluation_with_other_settings_is_not_taken_from_the_run(
    servers: None, run: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("*.lock"))
    ids = pl.read_parquet(run / "evals/final/rollouts.parquet")["problem_id"].to_list()

    async def is_taken(recorded: Mapping[str, object], **given: object) -> bool:
        write_json(copy / "config.json", {**read_json(run / "config.json"), **recorded})
        words = {"checkpoint": str(copy), "eval_limit": 4, **given}
        settings, policy = await plan_evaluation(parse_settings(EvaluateSettings, words))
        return taken_from_the_run(settings, policy, ids) is not None

    assert await is_taken({})
    for given in ({"stop_after_code": True}, {"max_turns": 2}, {"seed": 5}, {"temperature": 0.5}, {"max_tokens": 63}):
        assert not await is_taken({}, **given), given
    words = {"environment": "gsm8k", "dataset": WORDS_DATASET}
    assert await is_taken(words)
    assert not await is_taken(words, environment="gsm8k", use_r1_zero_format=False)


async def test_a_flow_run_has_its_directorys_name(run: Path, pool: Path) -> None:
    async with get_client() as client:
        wanted = FlowRunFilter(name=FlowRunFilterName(any_=[run.name, pool.name]))
        names = {found.name for found in await client.read_flow_runs(flow_run_filter=wanted)}
    assert names == {run.name, pool.name}


def test_a_base_model_is_compared_with_the_final_evaluation_of_a_run(
    coderl: Coderl, refused: Refused, run: Path, tmp_path: Path
) -> None:
    words = ("preset=nano", "checkpoint=data/nano", "eval_limit=4", "max_tokens=64", "temperature=0.8", "n_samples=2")
    done = coderl("evaluate", *words, f"compare_to={run}", f"log_path={tmp_path / 'base'}")
    assert done.returncode == 0, done.stderr
    assert f"against {run.name}/final: " in done.stdout
    assert "warning: the evaluations are unlike in more than the policy: temperature 0 against 0.8" in done.stdout
    compare = json.loads((tmp_path / "base/summary.json").read_text())["compare"]
    assert (compare["to"], compare["before"]["step"], compare["after"]["step"]) == (f"{run.name}/final", 2, -1)

    assert re.search(r"^ +Pass@2 .*n=4$", done.stdout, re.M) and "n_samples 2" in done.stdout
    assert "\nformat rate  100.0%\n" in done.stdout and "truncated" not in done.stdout
    assert main(["power", str(tmp_path / "base")]) == 0
    assert main(["power", str(tmp_path / "base"), "--points=20", "--losses=40"]) == 0
    assert main(["power", str(tmp_path / "base"), "--points=20", "--losses=40.5"]) == 2  # more would change than all
    sides = coderl("evaluate", f"compare={tmp_path / 'base'},{run / 'evals/final'}")
    assert sides.returncode == 0, sides.stderr
    assert re.search(r"^B - A, all: [+-].* on 4 problems$", sides.stdout, re.M) and "Sandbox: " not in sides.stdout

    command = ("evaluate", *words, f"log_path={tmp_path / 'base'}")
    rollouts = (tmp_path / "base/rollouts.parquet").read_bytes()
    again = coderl(*command, f"compare_to={run / 'evals/baseline'}")
    assert "evaluated before with these settings: nothing is sampled" in again.stdout, again.stderr
    assert "Sandbox: " not in again.stdout
    assert f"against {run.name}/baseline: " in again.stdout
    assert (tmp_path / "base/rollouts.parquet").read_bytes() == rollouts
    uncompared = coderl(*command, "compare_to=none")
    assert "nothing is sampled" in uncompared.stdout and "against" not in uncompared.stdout, uncompared.stderr
    assert json.loads((tmp_path / "base/summary.json").read_text())["compare"]["to"] == f"{run.name}/baseline"
    assert "base holds an evaluation with other settings" in refused(*command, "seed=5")

    other = coderl("evaluate", f"checkpoint={run}", "test_share=0.02", "temperature=0.5", f"compare_to={run}")
    assert other.returncode == 2
    assert "has none of these" in other.stderr and "Sandbox: " not in other.stdout


def test_an_evaluation_is_told_from_another_by_its_problems_and_by_what_serves_the_model(
    coderl: Coderl, flow_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same server at another address goes on with it; in bfloat16 it does not, nor is that compared unsaid."""
    monkeypatch.setitem(flow_environment, "HOME", str(tmp_path))
    before = "evaluated before with these settings: nothing is sampled"
    tests = [{"input": f"{number}\n", "output": f"{number}\n"} for number in range(5)]
    lines = [json.dumps({"statement": f"Print the number{mark}", "tests": tests}) for mark in ".!"]
    data = tmp_path / "mine.jsonl"
    data.write_text(lines[0])
    words = ("evaluate", "preset=nano", "checkpoint=data/nano", f"evaluation_dataset={data}", "max_tokens=64")
    first = coderl(*words)
    assert first.returncode == 0 and before not in first.stdout, first.stderr
    (folder,) = (tmp_path / "code-rl-logs/evals").iterdir()
    warned = "warning: the evaluations are unlike in more than the policy: coderl serve tinker, cpu float32"
    gateway = Gateway(flow_environment["TINKER_BASE_URL"])
    with gateway.serving():
        monkeypatch.setitem(flow_environment, "TINKER_BASE_URL", gateway.url)
        done = coderl(*words, f"compare_to={folder}")
        assert done.returncode == 0, done.stderr
        assert before in done.stdout and warned not in done.stdout
        data.write_text("\n".join(lines))
        changed = coderl(*words)
        assert changed.returncode == 2 and "has other problems than when " in changed.stderr
        assert "to evaluate again, set log_path=NAME" in changed.stderr
        data.write_text(lines[0])
    command = [sys.executable, "-m", "coderl_tasks.cli", "serve", "tinker", "--model", NANO_MODEL]
    rounded = [*command, "--dtype", "bfloat16"]
    with EmbeddedServer("Tinker", rounded, "/api/v1/healthz", tmp_path / "bfloat16.log", closed=True) as server:
        monkeypatch.setitem(flow_environment, "TINKER_BASE_URL", server.url)
        monkeypatch.setitem(flow_environment, "TINKER_API_KEY", server.key)
        done = coderl(*words, f"compare_to={folder}")
        assert done.returncode == 0, done.stderr
        assert before not in done.stdout and warned in done.stdout
        assert before in coderl(*words).stdout
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.delitem(flow_environment, name)
    embedded = coderl(*words)  # which is cpu float32 too, and need not be started
    assert before in embedded.stdout and str(folder) in embedded.stdout, embedded.stderr
    summaries = [json.loads(file.read_text()) for file in sorted(folder.parent.glob("*/summary.json"))]
    assert [" float32, " in found["served_by"] for found in summaries] == [True, False]


async def test_the_history_is_published_while_the_run_goes_on_and_at_its_end(run: Path) -> None:
    async with get_client() as client:
        key = ArtifactFilter(key=ArtifactFilterKey(any_=[f"step-history-{run.name}"]))
        found = sorted(await client.read_artifacts(artifact_filter=key), key=lambda artifact: str(artifact.created))
    told = [str(artifact.data) for artifact in found]
    assert "1 of 3 steps" in told[0], "of the step before which it was begun, though it was drawn beside the next one"
    assert "3 of 3 steps" in told[-1]
    assert all("data:image/svg+xml" in text for text in told)


def published_at(seconds_per_step: float, steps: int) -> list[int]:
    """The lengths of the histories that a run of so many steps publishes."""
    found: list[int] = []
    then = -math.inf
    for step in range(1, steps + 1):
        if is_history_due(step, found[-1] if found else 0, (now := step * seconds_per_step) - then):
            found.append(step)
            then = now
    return found


def test_the_history_is_published_early_and_then_ever_more_rarely() -> None:
    assert published_at(1, 120) == [1, *range(10, 101, 10), 120]
    assert published_at(20, 40) == [1, 3, 5, 7, 9, 10, 20, 30, 40]
    assert len(published_at(1, 2000)) < 50
    assert max(later - earlier for earlier, later in itertools.pairwise(published_at(60, 2000))) <= 20


async def test_a_history_that_cannot_be_drawn_is_warned_of_and_the_next_one_is_published(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    published: list[str] = []

    async def create(markdown: str, key: str) -> None:
        published.append(markdown)

    monkeypatch.setattr(display, "acreate_markdown_artifact", create)
    path = write_run(tmp_path / "run", steps=3, test_size=4)
    metrics, kept = path / "metrics.jsonl", tmp_path / "kept"
    async with publishing_histories(path, display.Display()) as publish:
        metrics.rename(kept)
        metrics.mkdir()
        await publish(0)
        metrics.rmdir()
        kept.rename(metrics)
        await publish(ARTIFACT_EVERY - 1)
    await display._outbox.wait_until_sent(60)
    assert len(published) == 1 and "# Step history: run" in published[0]
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1 and warnings[0].startswith("warning: the step history was not published: ")
