"""What a run's tokens went into, and how it came by its problems: counted again from the rollouts themselves."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from coderl_tasks.insight.query import query
from coderl_tasks.insight.record import RunRecord, load_run
from coderl_tasks.insight.report import render_report, step_history_markdown
from coderl_tasks.insight.token_uses import costs, uses, visits_in_words


@pytest.fixture(scope="module")
def run(run_dir: Path, pool_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """The run, on a pool that there is, its last steps as selection=adaptive records them."""
    path = shutil.copytree(run_dir, tmp_path_factory.mktemp("used") / "run")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"pool": str(pool_dir / "pool.parquet")}))
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    known = {"signal_expected": 0.8, "problems_seen": 20, "problems_solved": 7, "problems_hopeless": 3}
    (path / "metrics.jsonl").write_text("".join(json.dumps(row | known) + "\n" for row in rows))
    return load_run(path)


def test_tokens_are_counted_by_use(run: RunRecord, pool_dir: Path) -> None:
    found = {use.what: use for use in uses(run)}
    spent = json.loads((pool_dir / "manifest.json").read_text())["spent"]
    profile = found["profile of the pool"]
    assert (profile.completions, profile.tokens) == (spent["samples"], spent["completion_tokens"])
    rollouts = run.rollouts(["step", "group_index", "completion_tokens", "trained"]).collect()
    groups = rollouts.group_by("step", "group_index").agg(
        n=pl.len(), tokens=pl.col("completion_tokens").list.len().sum(), trained=pl.col("trained").any()
    )
    config = {**run.config, "first_completions": 4}
    of_first = {use.what for use in uses(replace(run, config=config))}
    assert of_first == {*found} - {"groups without"} | {"groups without, begun with 4 completions"}
    for what, trained in (("groups with a signal", True), ("groups without", False)):
        part = groups.filter(trained=trained)
        assert (found[what].completions, found[what].tokens) == (part["n"].sum(), part["tokens"].sum())
        assert part.height
    files = [record.rollouts for record in run.evals.values()]
    evaluations = pl.concat(pl.read_parquet(file) for file in files if file is not None)
    tokens = evaluations["completion_tokens"].list.len().sum()
    assert (found["evaluations"].completions, found["evaluations"].tokens) == (evaluations.height, tokens)
    everything = found.pop("all")
    assert everything.tokens == sum(use.tokens for use in found.values()) and everything.share == 1
    assert sum(use.share for use in found.values()) == pytest.approx(1)


def test_visits_are_counted_by_what_the_last_group_showed(run: RunRecord, pool_dir: Path) -> None:
    last: dict[str, bool] = {}
    seen, again, gained = set(), 0, 0
    for step in run.rollouts(["step", "group_index", "problem_id", "trained"]).collect().partition_by("step"):
        now: dict[str, list[bool]] = {}
        for group in step.partition_by("group_index"):
            now.setdefault(group["problem_id"][0], []).append(bool(group["trained"].any()))
        for name, signals in now.items():
            seen.add(name)
            if last.get(name) is False:
                again, gained = again + len(signals), gained + sum(signals)
            last[name] = any(signals)
    assert again > gained > 0
    size = json.loads((pool_dir / "manifest.json").read_text())["kept"]
    sampled, known, revisited = visits_in_words(run)
    assert sampled == f"{len(seen)} of the pool's {size} problems were sampled."
    assert "7 looked solved and 3 hopeless" in known
    assert revisited.startswith(f"{again} groups revisited") and f"; {gained} of them had one (" in revisited


def test_report_and_artifact_show_them(run: RunRecord) -> None:
    page, markdown = render_report(run.path), step_history_markdown(run)
    for text in (page, markdown):
        for words in ("Tokens by use", "profile of the pool", "groups without", "7 looked solved and 3 hopeless"):
            assert words in text
    assert "Groups with a signal" in page and re.search(r">expected \d+%<", page)


def test_tokens_are_counted_by_kind_and_cost(run: RunRecord, pool_dir: Path) -> None:
    spent = json.loads((pool_dir / "manifest.json").read_text())["spent"]
    (run.path / "steps/000000/lost.json").write_text('{"prompt": 5, "cached": 10, "completion": 7, "training": 0}')
    found = {each.use: each for each in costs(run)}
    assert list(found) == ["profile", "train", "evaluate", "lost", "all"] and found["all"].usd is None
    assert found["profile"].tokens.completion == spent["completion_tokens"]
    columns = ["step", "group_index", "prompt_tokens", "completion_tokens", "trained"]
    lengths = pl.col("prompt_tokens").list.len().alias("p"), pl.col("completion_tokens").list.len().alias("c")
    rows = run.rollouts(columns).with_columns(*lengths).collect()
    train = found["train"].tokens
    assert train.prompt == rows.group_by("step", "group_index").agg(pl.col("p").first())["p"].sum()
    assert train.prompt + train.cached == rows["p"].sum() and train.completion == rows["c"].sum()
    assert train.training == rows.filter("trained").select(pl.col("p") + pl.col("c")).sum().item() > 0
    assert found["all"].tokens.counted == sum(found[use].tokens.counted for use in list(found)[:-1])

    prices = {"prefill": 1.0, "sample": 2.0, "train": 4.0}
    costly = {each.use: each for each in costs(replace(run, config=run.config | {"prices": prices}))}
    assert costly["lost"].usd == pytest.approx((5 + 10 + 2 * 7) / 1e6), "without a price of its own cached is prefill"
    assert costly["train"].usd == pytest.approx(
        (train.prompt + train.cached + 2 * train.completion + 4 * train.training) / 1e6
    )
    assert "cached prompt" in render_report(run.path)


def test_an_evaluation_that_took_over_another_ones_rollouts_cost_nothing(run: RunRecord, tmp_path: Path) -> None:
    path = tmp_path / "again"
    shutil.copytree(run.path, path)
    before = uses(load_run(path)), costs(load_run(path))
    final = path / "evals" / "final"
    taken = path / "evals" / "evaluate-later"
    shutil.copytree(final, taken)
    summary = json.loads((final / "summary.json").read_text())
    (taken / "summary.json").write_text(json.dumps(summary | {"taken_from": "final"}))
    assert "evaluate-later" not in load_run(path).evals
    assert "evaluate-later" in query(path, "SELECT eval FROM evals")["eval"]
    assert "evaluate-later" not in query(path, name="evals")["eval"]
    assert (uses(load_run(path)), costs(load_run(path))) == before
    (taken / "summary.json").write_text(json.dumps(summary))  # and one that was sampled does
    assert "evaluate-later" in query(path, name="evals")["eval"]
    assert uses(load_run(path)) != before[0] and costs(load_run(path)) != before[1]
