import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coderl_tasks.curation.find_pool import FoundPool, find_pool, wanted_pool
from coderl_tasks.curation.labels import Prior, learn_prior, with_labels
from coderl_tasks.curation.pool import EmptyPoolError, Mix, Pool, build_pool, require_problems, write_pool
from coderl_tasks.curation.stopping_rule import difficulty
from coderl_tasks.errors import ConfigError
from coderl_tasks.problems.loading import LoadResult, load_problems
from coderl_tasks.problems.problem import (
    DROPPED_SCHEMA,
    PROBLEM_SCHEMA,
    Drop,
    Problem,
    dropped_frame,
    problems_from_frame,
)
from coderl_tasks.problems.profile_columns import ANSWER_COLUMNS, PROFILE_COLUMNS, PROFILE_SCHEMA
from coderl_tasks.settings import CurateSettings, TrainSettings
from coderl_tasks.stats import jeffreys_interval
from tests.curation.conftest import MakeProblem

SETTINGS: dict[str, Any] = {"model_name": "Qwen/Qwen3-4B-Instruct-2507", "dataset": "somewhere", "max_tests": 15}


def profiled(problem: Problem, correct: int, n: int = 8) -> dict[str, Any]:
    low, high = jeffreys_interval(correct, n) if n else (None, None)
    rate = correct / n if n else None
    return {
        "problem_id": problem.problem_id,
        "split": problem.split,
        "pass_rate": rate,
        "n_samples": n,
        "n_correct": correct,
        "ci_low": low,
        "ci_high": high,
        "difficulty": None if rate is None else difficulty(rate),
        "format_rate": 1.0,
        "mean_completion_tokens": 30.0,
        "truncated_rate": 0.0,
        "infra_errors": 0 if n else 8,
        "prompt_tokens": 200,
        "rounds": -(-n // 4),
        "prompt_tokens_spent": 200 * -(-n // 4),
        "completion_tokens_spent": 30 * n,
    }


@pytest.fixture
def loaded(make_problem: MakeProblem) -> LoadResult:
    """Nine problems, one unreadable row."""
    problems = [make_problem(f"p{index}", "1", split="taco" if index % 2 else "lcbv5") for index in range(9)]
    return LoadResult(problems, dropped_frame([Drop("parse", "no_tests", "", None, "taco", 9)]), 10)


@pytest.fixture
def pool(loaded: LoadResult) -> Pool:
    """p0..p5 have 0, 1, 3, 5, 7, 8 of 8 right; p6 has 4; p7 could not be graded; p8 has too long a prompt."""
    rights = [0, 1, 3, 5, 7, 8, 4]
    rows = [profiled(problem, right) for problem, right in zip(loaded.problems, rights, strict=False)]
    rows.append(profiled(loaded.problems[7], 0, n=0))
    drops = [Drop.of(loaded.problems[8], "prompt", "prompt_too_long")]
    return build_pool(loaded, pl.DataFrame(rows, schema=PROFILE_SCHEMA), drops=drops)


def test_the_band_keeps_what_can_teach(pool: Pool, loaded: LoadResult) -> None:
    assert pool.pool.schema == PROBLEM_SCHEMA | PROFILE_COLUMNS | ANSWER_COLUMNS
    assert pool.pool["problem_id"].to_list() == ["p1", "p2", "p3", "p4", "p6"]
    assert pool.pool["difficulty"].to_list() == ["hard", "medium", "medium", "easy", "medium"]
    assert problems_from_frame(pool.pool) == [loaded.problems[index] for index in (1, 2, 3, 4, 6)]


def test_every_row_read_is_kept_or_dropped_with_a_reason(pool: Pool) -> None:
    assert pool.read == pool.pool.height + pool.dropped.height == 10
    assert pool.dropped.schema == DROPPED_SCHEMA
    reasons = {(r["problem_id"], r["stage"], r["reason"]) for r in pool.dropped.iter_rows(named=True)}
    assert reasons == {
        (None, "parse", "no_tests"),
        ("p8", "prompt", "prompt_too_long"),
        ("p0", "band", "too_hard"),
        ("p5", "band", "too_easy"),
        ("p7", "profile", "not_graded"),
    }


def test_the_bands_ends_are_in_it(loaded: LoadResult) -> None:
    problems = loaded.problems[:4]
    whole = LoadResult(problems, dropped_frame([]), 4)
    rows = [profiled(problem, right, n=10) for problem, right in zip(problems, (0, 1, 9, 10), strict=True)]
    pool = build_pool(whole, pl.DataFrame(rows, schema=PROFILE_SCHEMA))
    assert pool.pool["pass_rate"].to_list() == [0.1, 0.9]
    narrow = build_pool(whole, pl.DataFrame(rows, schema=PROFILE_SCHEMA), band_low=0.0, band_high=0.1)
    assert narrow.pool["pass_rate"].to_list() == [0.0, 0.1]


def test_a_mix_leaves_out_and_says_so(pool: Pool, loaded: LoadResult, tmp_path: Path) -> None:
    """Of one hard, one easy and three medium problems in the band."""
    profile = pool.profile
    drops = [Drop.of(loaded.problems[8], "prompt", "prompt_too_long")]
    mixed = build_pool(loaded, profile, drops=drops, mix=Mix({"hard": 1, "medium": 1}, size=4))
    assert mixed.read == mixed.pool.height + mixed.dropped.height == 10
    assert sorted(mixed.pool["difficulty"]) == ["hard", "medium", "medium"]
    left_out = mixed.dropped.filter(stage="mix")
    assert sorted(left_out["reason"]) == ["not_in_mix", "over_share"]
    manifest = write_pool(tmp_path, mixed, SETTINGS, inputs={"dataset": "somewhere", "revision": "abc"})
    assert manifest["short"] == {"hard": 1}
    assert manifest["mix"]["size"] == 4
    assert manifest["inputs"]["revision"] == "abc"
    assert manifest["sha256"]["pool.parquet"] == sha256((tmp_path / "pool.parquet").read_bytes()).hexdigest()
    assert manifest["spent"]["samples"] == 7 * 8 + 8
    nothing = build_pool(loaded, profile, drops=drops, mix=Mix(split={"primeintellect": 1}))
    with pytest.raises(EmptyPoolError, match="The mix leaves nothing: a cell"):
        require_problems(nothing, tmp_path, " (as it is small)")


def test_what_could_not_be_graded_is_not_judged_by_the_rest(loaded: LoadResult) -> None:
    problems = loaded.problems[:1]
    row = profiled(problems[0], 2, n=4) | {"infra_errors": 1}
    pool = build_pool(LoadResult(problems, dropped_frame([]), 1), pl.DataFrame([row], schema=PROFILE_SCHEMA))
    assert pool.dropped["reason"].to_list() == ["not_graded"]


def test_a_profile_of_other_problems_is_refused(loaded: LoadResult) -> None:
    with pytest.raises(ValueError, match="profile"):
        build_pool(loaded, pl.DataFrame(schema=PROFILE_SCHEMA))


@pytest.mark.parametrize(
    ("rate", "label"),
    [(0.0, "hard"), (0.349, "hard"), (0.35, "medium"), (0.649, "medium"), (0.65, "easy"), (1, "easy")],
)
def test_difficulty(rate: float, label: str) -> None:
    assert difficulty(rate) == label


def test_a_written_pool_is_deterministic_and_found(pool: Pool, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_pool(tmp_path / name, pool, SETTINGS)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["dropped.parquet", "manifest.json", "pool.parquet", "profile.parquet"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert (manifest["read"], manifest["kept"], manifest["dropped"]) == (10, 5, 5)
    assert manifest["by_difficulty"] == {"hard": 1, "medium": 3, "easy": 1}
    assert manifest["by_split"] == {"lcbv5": 3, "taco": 2}
    assert manifest["dropped_by_reason"]["band/too_hard"] == 1
    assert manifest["settings"] == SETTINGS
    for named in (tmp_path / "a", tmp_path / "a" / "pool.parquet"):
        found = find_pool(str(named))
        assert (found.file, found.manifest, found.name) == (tmp_path / "a" / "pool.parquet", manifest, "a")
    assert len(load_problems(str(found.file), role="train").problems) == 5


def latest(model_name: str, pools: Path, at_least: int = 1) -> FoundPool:
    found = wanted_pool(TrainSettings(model_name=model_name), at_least, pools)
    assert isinstance(found, FoundPool)
    return found


def test_latest_is_the_newest_finished_pool_of_the_model(pool: Pool, tmp_path: Path, loaded: LoadResult) -> None:
    empty = build_pool(LoadResult([], dropped_frame([]), 0), pl.DataFrame(schema=PROFILE_SCHEMA))
    write_pool(tmp_path / "older", pool, SETTINGS)
    write_pool(tmp_path / "newer", pool, SETTINGS)
    write_pool(tmp_path / "other-model", pool, SETTINGS | {"model_name": "data/nano"})
    write_pool(tmp_path / "empty", empty, SETTINGS)
    policy = {"model_name": SETTINGS["model_name"], "run": "demo", "step": 7, "sampler_path": "tinker://demo/x"}
    write_pool(tmp_path / "of-a-run", pool, SETTINGS, policy=policy)
    write_pool(tmp_path / "damaged", pool, SETTINGS)
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    (tmp_path / "unfinished").mkdir()
    for age, name in enumerate(("damaged", "empty", "of-a-run", "other-model", "newer", "older")):
        os.utime(tmp_path / name / "manifest.json", (2_000_000_000 - age, 2_000_000_000 - age))
    assert latest(SETTINGS["model_name"], tmp_path).name == "newer"
    assert latest("data/nano", tmp_path).name == "other-model"
    assert find_pool("older", pools=tmp_path).of_run is None
    assert find_pool("of-a-run", pools=tmp_path).of_run == "demo after step 7"
    made = wanted_pool(TrainSettings(model_name="data/nano_words", dataset="data/mini"), 1, tmp_path)
    assert isinstance(made, CurateSettings) and Path(str(made.name)).parent == tmp_path
    with pytest.raises(ConfigError, match="not a finished pool"):
        find_pool(str(tmp_path / "unfinished"))
    with pytest.raises(ConfigError, match="no such"):
        find_pool(str(tmp_path / "nowhere"))


def test_latest_passes_over_a_pool_that_is_too_small_and_names_a_larger_one(tmp_path: Path) -> None:
    sizes = {"trial": 3, "newer": 24, "older": 400, "other-model": 9000}
    for age, (name, kept) in enumerate(sizes.items()):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pool.parquet").touch()
        model = "another/model" if name == "other-model" else "data/nano"
        manifest = tmp_path / name / "manifest.json"
        manifest.write_text(json.dumps({"model_name": model, "kept": kept}))
        os.utime(manifest, (2_000_000_000 - age, 2_000_000_000 - age))

    found = latest("data/nano", tmp_path, 8)
    assert (found.name, found.kept, found.written) == ("newer", 24, 2_000_000_000 - 1)
    assert found.larger is not None and (found.larger.name, found.larger.kept) == ("older", 400)
    assert [latest("data/nano", tmp_path, n).name for n in (1, 3, 4, 24, 25, 400)] == [
        "trial",
        "trial",
        "newer",
        "newer",
        "older",
        "older",
    ]
    assert latest("data/nano", tmp_path, 25).larger is None
    with pytest.raises(ConfigError, match=r"needs 401 problems, and the largest .* in .*, older, has 400"):
        latest("data/nano", tmp_path, 401)
    assert find_pool(str(tmp_path / "trial")).kept == 3  # one that is named is meant


def test_a_pool_says_what_its_labels_rest_on(pool: Pool, loaded: LoadResult, tmp_path: Path) -> None:
    drops = [Drop.of(loaded.problems[8], "prompt", "prompt_too_long")]
    prior = learn_prior(pool.profile)
    labelled = build_pool(loaded, with_labels(pool.profile, prior), drops=drops, prior=prior)
    manifest = write_pool(tmp_path / "now", labelled, CurateSettings().content())
    assert manifest["labels"]["version"] == 1
    assert manifest["labels"]["weights"].keys() == prior.weights.keys() > {"all", "taco", "lcbv5/long"}
    assert sum(manifest["labels"]["expected"].values()) == pytest.approx(5, abs=0.05)
    assert Prior(manifest["labels"]["weights"], manifest["labels"]["prompt_tokens"]).distribution() == pytest.approx(
        prior.distribution()
    ), "the manifest has all of it"
    kept = pl.read_parquet(tmp_path / "now" / "pool.parquet")
    assert (
        kept.schema == PROBLEM_SCHEMA | PROFILE_COLUMNS | ANSWER_COLUMNS
        and kept["posterior_mean"].is_between(0, 1).all()
    )


def test_an_empty_pool_says_why_in_one_line(loaded: LoadResult, tmp_path: Path, pool: Pool) -> None:
    require_problems(pool, tmp_path)
    rows = [profiled(problem, 0) for problem in loaded.problems]
    nothing = build_pool(loaded, pl.DataFrame(rows, schema=PROFILE_SCHEMA))
    write_pool(tmp_path, nothing, SETTINGS)
    with pytest.raises(EmptyPoolError) as caught:
        require_problems(nothing, tmp_path, " (as it is small)")
    message = str(caught.value)
    assert "Nothing lies in the band" in message and "9 too_hard" in message and "\n" not in message
    assert "a model that solves some of them (as it is small). Profile and report" in message
    assert caught.value.exit_code == 1
