import json
import os
import shutil
from pathlib import Path

import polars as pl
import pytest

from coderl_tasks.errors import ConfigError
from coderl_tasks.insight.pool_view import pool_markdown
from coderl_tasks.insight.record import load_curation
from coderl_tasks.journal.atomic import read_json
from coderl_tasks.problems.loading import load_problems
from coderl_tasks.problems.problem import PROBLEM_SCHEMA, read_pool
from coderl_tasks.problems.profile_columns import (
    ANSWER_COLUMNS,
    PROFILE_COLUMNS,
    PROFILE_SCHEMA,
    SOLUTION_SCHEMA,
    STRENGTH_SCHEMA,
)
from coderl_tasks.settings import CurateSettings
from flows.curate import curate
from tests.flows.conftest import Coderl, Refused
from tests.flows.run_records import wait_for
from tests.problems.test_packages import package
from tests.warm_start import Command


def test_a_pool_has_its_files_and_loses_nothing(pool: Path) -> None:
    manifest = json.loads((pool / "manifest.json").read_text())
    kept, dropped = pl.read_parquet(pool / "pool.parquet"), pl.read_parquet(pool / "dropped.parquet")
    assert manifest["model_name"] == "data/nano"
    assert manifest["read"] == 12 == kept.height + dropped.height
    assert kept.schema == pl.Schema(PROBLEM_SCHEMA | PROFILE_COLUMNS | ANSWER_COLUMNS)
    assert max(kept["tests_total"].to_list()) <= 3
    checks = pl.read_parquet(pool / "solutions.parquet")
    assert checks.schema == pl.Schema(SOLUTION_SCHEMA)
    assert checks.height == 12 and set(checks["status"]) == {"good", "no_solution"}
    assert pl.read_parquet(pool / "profile.parquet").schema == pl.Schema(PROFILE_SCHEMA)
    assert (pool / "report.html").read_text().startswith("<!doctype html>")


def test_nothing_in_the_band_is_one_line_and_exit_1(coderl: Coderl, tmp_path: Path) -> None:
    sizes = ("limit=2", "profile_samples=2", "max_tests=1", "max_tokens=1")
    done = coderl("curate", "preset=nano", *sizes, f"name={tmp_path / 'empty'}")
    assert done.returncode == 1
    assert done.stderr.startswith("coderl curate: Nothing lies in the band: of 2 rows none has")
    assert "(2 too_hard): take easier problems, or a model that solves some of them." in done.stderr
    assert done.stderr.count("\n") == 1
    assert pl.read_parquet(tmp_path / "empty" / "profile.parquet").height == 2
    assert (tmp_path / "empty" / "report.html").is_file()


def test_a_data_set_that_is_not_there_is_one_line_and_exit_2(refused: Refused, tmp_path: Path) -> None:
    assert "nothing.parquet" in refused("curate", "preset=nano", f"dataset={tmp_path / 'nothing.parquet'}")


async def test_a_finished_pool_stays_as_it_is_unless_it_is_to_be_replaced(servers: None, tmp_path: Path) -> None:
    dataset, folder = tmp_path / "mine.jsonl", tmp_path / "pool"
    values = {
        "preset": "nano",
        "dataset": str(dataset),
        "profile_mode": "none",
        "check_solutions": True,
        "near_duplicate": 1,
        "name": str(folder),
    }
    parts, files = ("screening", "solutions"), ("pool.parquet", "dropped.parquet", "manifest.json")

    async def curated(rows: int, **more: object) -> list[bytes]:
        dataset.write_text("\n".join(map(json.dumps, divisor_rows()[:rows])))
        await curate(CurateSettings.model_validate(values | more))
        return [(folder / name).read_bytes() for name in files]

    first = await curated(3)
    assert await curated(3) == first
    with pytest.raises(ConfigError, match=r"the data have changed since the pool .* replace=true"):
        await curated(4)
    assert [(folder / name).read_bytes() for name in files] == first
    second = await curated(4, replace=True, shard_size=2)
    assert [shard.name for shard in (folder / "solutions").iterdir()] == ["0000"], "shards keep their size"
    assert second != first and read_json(folder / "manifest.json")["read"] == 4
    shutil.rmtree(folder / "solutions")
    assert await curated(4) == second and not (folder / "solutions").exists(), "nothing was done again"
    for part in parts:  # as coderl clean --parts does
        shutil.rmtree(folder / part, ignore_errors=True)
    assert await curated(4) == second == await curated(3)
    assert not any((folder / part).exists() for part in parts), "nothing was done again"
    assert await curated(3, replace=True) == first


async def test_problem_packages_that_were_only_touched_are_the_same_data(servers: None, tmp_path: Path) -> None:
    about, folder = package(tmp_path / "packages" / "one"), tmp_path / "pool"
    values = {"dataset": str(tmp_path / "packages"), "profile_mode": "none", "min_tests": 1, "name": str(folder)}
    settings = CurateSettings.model_validate({"preset": "nano", "evaluation_dataset": "none"} | values)
    await curate(settings)
    first = (folder / "manifest.json").read_bytes()
    os.utime(about / "problem.yaml", (1, 1))
    await curate(settings)
    assert (folder / "manifest.json").read_bytes() == first
    (about / "data/secret/2.ans").write_text("one\n")
    with pytest.raises(ConfigError, match="the data have changed since the pool"):
        await curate(settings)


def test_a_screened_pool_has_one_round_of_each_problem_at_most(coderl: Coderl, tmp_path: Path) -> None:
    folder = tmp_path / "screened"
    sizes = ("dataset=data/skewed", "limit=24", "shard_size=10", "max_tests=2", "check_solutions=false")
    limits = ("profile_mode=screen", "screen_skip=0.58", "screen_drop=0.32")
    done = coderl("curate", "preset=nano", *sizes, *limits, "prices=prefill:1,sample:2", f"name={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    kept, dropped, profile = (pl.read_parquet(folder / f"{name}.parquet") for name in ("pool", "dropped", "profile"))
    unsampled = dropped.filter(stage="screen")
    assert kept.height + dropped.height == 24
    assert profile.height + unsampled.height == 24 - dropped.filter(~pl.col("stage").is_in(["screen", "band"])).height
    assert set(profile["n_samples"]) == {2} and set(profile["rounds"]) == {1}
    assert 0 < unsampled.height < 18, "the first quarter is sampled, whatever it is"
    assert unsampled["detail"].str.extract(r"probability of (0\.\d+)$").cast(pl.Float64).is_between(0, 0.58).all()
    samples = pl.read_parquet(sorted(folder.glob("shards/*/rollouts.parquet")))
    assert samples.height == 2 * profile.height and set(samples["problem_id"]) == set(profile["problem_id"])
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["spent"]["samples"] == samples.height
    assert set(manifest["learnable"]) == {"kept", "dropped", "unsampled"}
    assert f"{unsampled.height} of 24 problems are hardly learnable" in done.stdout
    (forecast,) = (line for line in done.stdout.splitlines() if line.startswith("estimate: profile "))
    assert f"by {profile.height + unsampled.height} problems, 2 completions each" in forecast
    assert forecast.endswith("; max_usd=N caps it")


READ = "n = int(input())\nd = [k for k in range(1, n + 1) if n % k == 0]\n"
UP, DOWN = (f"{READ}print(*d[::{step}], sep='\\n')" for step in (1, -1))


def divisor_rows() -> list[dict[str, object]]:
    """A problem of any order, one that does not say so, one of one answer, each three times, and a slow one of each."""
    rows: list[dict[str, object]] = []
    for start, busy in ((10, ""), (30, ""), (50, "sum(range(10**7))\n")):
        inputs = range(start, start + 12, 2)
        tests = [
            {"input": f"{n}\n", "output": "".join(f"{k}\n" for k in range(1, n + 1) if n % k == 0)} for n in inputs
        ]
        for words, solutions in (("Print them in any order.", [DOWN]), ("", [UP, DOWN]), ("Mind 1 and n.", [UP])):
            statement = f"Which numbers divide n? It is at least {start}. {words}"
            rows.append({"statement": statement, "tests": tests, "solutions": [busy + code for code in solutions]})
    return rows


def test_a_pool_has_inferred_comparators_and_a_kill_changes_nothing(
    coderl: Coderl, flow_environment: dict[str, str], tmp_path: Path
) -> None:
    dataset = tmp_path / "divisors.jsonl"
    dataset.write_text("\n".join(map(json.dumps, divisor_rows())))
    asked = ("preset=nano", f"dataset={dataset}", "profile_mode=none", "near_duplicate=1", "shard_size=2")
    infers = ("curate", *asked, "checkers=infer", "multi_answer=drop")
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    done = coderl(*infers, f"name={undisturbed}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 comparators inferred; 3 other problems may have several right answers" in done.stdout

    pool, dropped = (pl.read_parquet(undisturbed / f"{name}.parquet") for name in ("pool", "dropped"))
    said = pool["statement"].str.contains("any order")
    assert pool.height == 6 and said.sum() == 3
    assert set(pool.filter(said)["comparator"]) == {"lines_any_order"} and not pool["suspicion"].count()
    assert pool.filter(said)["comparator_from"].str.contains('says "Print them in any order"; 1 of 1 refer').all()
    assert set(pool.filter(~said)["comparator"]) == {"tokens"} and not pool.filter(~said)["comparator_from"].count()
    assert {problem.comparator for problem in read_pool(undisturbed / "pool.parquet")} == {"tokens", "lines_any_order"}
    assert set(dropped["reason"]) == {"several_answers"} and dropped.height == 3
    assert "a comparator that was inferred" in (undisturbed / "report.html").read_text()

    process = Command(flow_environment, *infers, f"name={killed}")
    wait_for(killed / "solutions" / "0000" / "checks.jsonl", process)
    process.kill()
    process.wait()
    recorded = (killed / "solutions" / "0000" / "checks.jsonl").read_text()
    assert not (killed / "solutions.parquet").exists()
    done = coderl(*infers, f"name={killed}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (killed / "solutions" / "0000" / "checks.jsonl").read_text().startswith(recorded.rpartition("\n")[0])
    for name in ("pool.parquet", "dropped.parquet", "solutions.parquet", "manifest.json"):
        assert (killed / name).read_bytes() == (undisturbed / name).read_bytes(), name

    # The id stays the raw row's: duplicates, evaluation problems, records and runs are found by it.
    raw = load_problems(str(dataset), role="train").problems
    assert {problem.problem_id for problem in raw} == {*pool["problem_id"], *dropped["problem_id"]}
    assert {problem.comparator for problem in raw} == {"tokens"}


def test_what_inference_needs_is_said_at_once(refused: Refused, tmp_path: Path) -> None:
    for words in ("checkers=infer", "multi_answer=drop"):
        said = refused("curate", "preset=nano", words, "check_solutions=false", f"name={tmp_path / 'none'}")
        assert "use check_solutions=true" in said


def test_an_audit_drops_or_flags_what_makes_rewards_wrong(coderl: Coderl, tmp_path: Path) -> None:
    def row(name: str, statement: str, given: tuple[int, ...]) -> dict[str, object]:
        tests = [{"input": f"{n}\n", "output": f"{2 * n if n > 3 else n}\n"} for n in given]
        solution = "n = int(input())\nprint(2 * n if n > 3 else n)"
        return {"problem_id": name, "statement": statement, "tests": tests, "solutions": [solution]}

    example = "Numbers above 3 are doubled.\n\nExample\nInput\n5\n\nOutput\n{}\n"
    rows = [
        row("clean", example.format(10), (5, 4, 3, 2, 1, 0, -7)),
        row("weak", "The input is large. What is it twice?", (9, 8, 7, 6, 11)),
        row("failed", example.format(11), (3, 4, 5, 0, 6)),
        row("several", "If there are several answers, print any of them.", (2, 3, 4, 5, 1, 0)),
    ]
    dataset = tmp_path / "planted.jsonl"
    dataset.write_text("\n".join(map(json.dumps, rows)))
    asked = ("curate", "preset=nano", f"dataset={dataset}", "profile_mode=none", "near_duplicate=1", "shard_size=3")
    for audit in ("drop", "flag"):
        done = coderl(*asked, f"audit={audit}", f"name={tmp_path / audit}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "4 problems audited, 3 with a finding that can make rewards wrong" in done.stdout
        audits = pl.read_parquet(tmp_path / audit / "audit.parquet")
        assert audits.height == 4 and (tmp_path / audit / "audit.html").is_file()
    dropped = pl.read_parquet(tmp_path / "drop" / "dropped.parquet")
    assert {tuple(each) for each in dropped.select("problem_id", "stage", "reason").iter_rows()} == {
        ("weak", "audit", "weak"),
        ("failed", "audit", "samples_failed"),
        ("several", "audit", "several_answers"),
    }
    assert dropped["detail"].str.len_chars().min() > 10  # type: ignore[operator]
    assert pl.read_parquet(tmp_path / "drop" / "pool.parquet")["problem_id"].to_list() == ["clean"]
    pool = pl.read_parquet(tmp_path / "flag" / "pool.parquet")
    found = dict(pool.select("problem_id", "audit").iter_rows())
    assert found["clean"] == [] and found["weak"] == ["weak"] and found["failed"] == ["samples_failed"]
    assert pool.height == len(read_pool(tmp_path / "flag" / "pool.parquet")) == 4
    assert (pool["mutants_survive"] <= pool["mutants"]).all()


def test_generated_tests_count_for_rewards_and_pass_rates_alone(coderl: Coderl, tmp_path: Path) -> None:
    sizes = ("limit=12", "max_tests=1", "min_tests=1", "profile_samples=8", "shard_size=5")
    band = ("band_low=0", "band_high=1")  # what is kept does not depend on what is caught
    plain, strong = tmp_path / "plain", tmp_path / "strong"
    for words in (("strengthen=0", f"name={plain}"), ("strengthen=4", f"name={strong}")):
        done = coderl("curate", "preset=nano", *sizes, *band, "profile_mode=fixed", *words)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "tests generated for" in done.stdout and "no reference passes the given tests" in done.stdout
    table = pl.read_parquet(strong / "strengthened.parquet")
    assert table.schema == pl.Schema(STRENGTH_SCHEMA)
    before, after = (pl.read_parquet(folder / "pool.parquet") for folder in (plain, strong))
    assert before["problem_id"].to_list() == after["problem_id"].to_list() == table["problem_id"].to_list()
    generated = table["tests"].list.len()
    assert generated.sum() > 0 and generated.max() <= 4  # type: ignore[operator]
    assert after["tests_generated"].to_list() == generated.to_list() and before["tests_generated"].sum() == 0
    assert (after["tests_total"] - after["tests_generated"] == before["tests_total"]).all()
    counted = (
        f"{generated.sum()} of {after['tests_total'].sum()} tests are generated, for {(generated > 0).sum()} problems"
    )
    assert counted in pool_markdown(load_curation(strong)) and "are generated" not in pool_markdown(
        load_curation(plain)
    )
    assert counted in (strong / "report.html").read_text()
    caught = table["first_failed"].list.drop_nulls().list.len()
    assert caught.sum() > 0 and (before["n_correct"] - after["n_correct"] == caught).all()
    assert (after["test_runs"].list.len() == after["tests_total"]).all()
    # Training has all tests; what evaluates on the pool, or curates it again, has the given ones.
    trained, given = read_pool(strong / "pool.parquet"), load_problems(str(strong / "pool.parquet"), role="test")
    assert [len(problem.tests) for problem in trained] == after["tests_total"].to_list()
    assert [tuple(problem.tests) for problem in given.problems] == [tuple(each.given().tests) for each in trained]
    assert [len(problem.tests) for problem in given.problems] == before["tests_total"].to_list()

    # Completions that only another profile counted do not count here: of 8 samples the first ones settle a band of all.
    words = ("strengthen=4", f"name={plain}", "replace=true")
    done = coderl("curate", "preset=nano", *sizes, *band, "profile_mode=adaptive", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    samples = pl.read_parquet(sorted(plain.glob("shards/*/rollouts.parquet")))
    profile, table = (pl.read_parquet(plain / f"{name}.parquet") for name in ("profile", "strengthened"))
    counted = samples.join(profile.select("problem_id", "n_samples"), on="problem_id")
    used = counted.filter(pl.col("sample_index") < pl.col("n_samples"))
    passed = {name: used.filter(problem_id=name, correctness_score=1.0).height for name in table["problem_id"]}
    assert counted.filter(correctness_score=1.0).height > sum(passed.values()) > 0
    assert dict(table.select("problem_id", pl.col("first_failed").list.len()).iter_rows()) == passed
    caught = dict(table.select("problem_id", pl.col("first_failed").list.drop_nulls().list.len()).iter_rows())
    correct = dict(profile.select("problem_id", "n_correct").iter_rows())
    assert correct == {name: n - caught[name] for name, n in passed.items()}
