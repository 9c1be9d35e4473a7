"""curate from_run=RUN: a pool for the policy of a run's last checkpoint, by its rollouts and what they leave open."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import polars as pl

from coderl_tasks.curation.from_run import RunPolicy, estimate_from_run, filled_from_run
from coderl_tasks.curation.profile import NO_PRICES
from coderl_tasks.curation.stopping_rule import Band, StoppingRule
from coderl_tasks.journal.atomic import append_row, read_json, read_rows, write_json
from coderl_tasks.policy.selection import HALF_AGE
from coderl_tasks.problems.problem import read_pool
from coderl_tasks.services import for_this_machine
from coderl_tasks.settings import CurateSettings, parse_settings
from tests.flows.conftest import Coderl, Refused

FILES = ("pool.parquet", "dropped.parquet", "profile.parquet", "manifest.json")


def hashes(pool: Path) -> dict[str, str]:
    return {name: sha256((pool / name).read_bytes()).hexdigest() for name in FILES}


def told(run: Path, step: int) -> dict[str, tuple[int, int]]:
    """(right, completions) by problem, as the rollouts up to a step say it, one by one."""
    right: dict[str, float] = {}
    graded: dict[str, float] = {}
    for row in pl.read_parquet(sorted(run.glob("steps/*/scored.parquet"))).iter_rows(named=True):
        if row["step"] <= step and row["correctness_score"] is not None:
            worth = 1 / (1 + (step - row["step"]) / HALF_AGE)
            graded[row["problem_id"]] = graded.get(row["problem_id"], 0) + worth
            right[row["problem_id"]] = right.get(row["problem_id"], 0) + worth * (row["correctness_score"] == 1.0)
    return {name: (round(round(n) * right[name] / n), round(n)) for name, n in graded.items()}


def test_a_pool_is_refreshed_from_a_run(coderl: Coderl, run: Path, pool: Path, tmp_path: Path) -> None:
    trained, fresh = shutil.copytree(run, tmp_path / "run"), tmp_path / "fresh"
    last = read_rows(trained / "checkpoints.jsonl")[-1]
    sampling = ("profile_samples=8", "band_low=0.1", "band_high=0.9", "sample_concurrency=4")
    command = ("curate", f"from_run={trained}", *sampling, f"name={fresh}")

    done = coderl(*command)

    assert done.returncode == 0, done.stdout + done.stderr
    manifest, made_with = (json.loads((folder / "manifest.json").read_text()) for folder in (fresh, pool))
    assert manifest["policy"] == {
        "model_name": "data/nano",
        "run": "run",
        "step": last["step"],
        "sampler_path": last["sampler_path"],
    }
    assert made_with["policy"]["step"] == -1 and len(made_with["policy"]["sha256"]) == 64
    # The problems, tests and data of the pool that the run was trained on.
    differ = {key for key, value in manifest["settings"].items() if made_with["settings"][key] != value}
    assert differ == {"from_run", "profile_samples", "band_low", "band_high", "max_tokens"}
    assert manifest["settings"]["max_tokens"] == 64, "the run's, as its rollouts are of that length"
    profile = pl.read_parquet(fresh / "profile.parquet")
    by_run, rule = told(trained, last["step"]), StoppingRule(Band(0.1, 0.9))
    assert profile["problem_id"].to_list() == pl.read_parquet(pool / "profile.parquet")["problem_id"].to_list()
    samples = pl.read_parquet(sorted(fresh.glob("shards/*/rollouts.parquet")))
    assert set(samples["sampler_step"]) == {last["step"]}
    settled = 0
    for row in profile.iter_rows(named=True):
        k, n = by_run.get(row["problem_id"], (0, 0))
        own = samples.filter(problem_id=row["problem_id"])
        assert (row["n_samples"], row["n_told"]) == (n + own.height, n)
        assert row["n_correct"] == k + (own["correctness_score"] == 1.0).sum()
        assert row["completion_tokens_spent"] == own["completion_tokens"].list.len().sum()
        is_settled = n >= 8 or (n > 0 and rule.is_clear(k, n, 8))
        assert is_settled == own.is_empty()
        settled += is_settled
    assert 0 < settled < len(profile), "both kinds were tried"
    assert manifest["spent"]["samples"] == samples.height
    assert manifest["spent"]["told"] == profile["n_told"].sum()
    assert f"settle {settled}" in done.stdout

    # Rollouts that were graded by another comparator tell nothing.
    policy = RunPolicy(str(trained), last["step"], last["sampler_path"], "data/nano")
    problems = [problem.whole() for problem in read_pool(pool / "pool.parquet")]
    assert estimate_from_run(policy, problems, NO_PRICES).counts == by_run
    others = [replace(problem, comparator="set") for problem in problems]
    assert not estimate_from_run(policy, others, NO_PRICES).counts

    # The run went on meanwhile, and the curation had not ended: it ends with the policy that it began with.
    before = hashes(fresh)
    append_row(trained / "checkpoints.jsonl", last | {"name": "later", "step": 9, "sampler_path": "tinker://gone/x"})
    (fresh / "manifest.json").unlink()
    again = coderl(*command)
    assert again.returncode == 0, again.stdout + again.stderr
    assert hashes(fresh) == before
    assert "nothing is sampled" in coderl(*command).stdout


def test_what_is_wrong_with_the_run_is_said_at_once(refused: Refused, run: Path, tmp_path: Path) -> None:
    assert "there is no run in" in refused("curate", f"from_run={tmp_path / 'none'}")
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(run / "config.json", begun)
    assert "no checkpoint to sample from yet" in refused("curate", f"from_run={begun}")
    for other in ("dataset=data/skewed", "environment=gsm8k", "test_share=0.5", "model_name=data/nano_words"):
        key = other.partition("=")[0]
        assert f"not {other}: leave {key} out" in refused("curate", f"from_run={run}", other)
    assert "use profile_mode=adaptive" in refused("curate", f"from_run={run}", "profile_mode=screen")


def test_new_samples_have_the_turns_of_the_runs_rollouts(run: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(run / "checkpoints.jsonl", begun)

    def filled(recorded: Mapping[str, object], **given: object) -> CurateSettings:
        write_json(begun / "config.json", {**read_json(run / "config.json"), **recorded})
        return filled_from_run(parse_settings(CurateSettings, {"from_run": str(begun), **given}))

    turns = {"max_turns": 3, "feedback": "verdict", "max_trajectory_tokens": 99, "stop_after_code": True}
    settings = filled(turns)
    assert {key: getattr(settings, key) for key in turns} == turns
    assert filled(turns, max_turns=1).most_answers == 1
    assert filled({"environment": "tool", "max_tool_calls": 2}).most_answers == 3
    # The run's model, where it is not the one that this machine or the service would take.
    assert for_this_machine(filled({"model_name": "data/nano_words"})).model_name == "data/nano_words"
