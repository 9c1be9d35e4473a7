"""`coderl estimate`: what is known before a run, and after three steps of it; against what its journal has."""

import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from coderl_tasks.cli import main
from coderl_tasks.curation.find_pool import find_pool
from coderl_tasks.insight.record import load_run
from coderl_tasks.journal.atomic import write_json, write_rows
from coderl_tasks.journal.ledger import Tokens
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.planning.estimates import REPLY_TOKENS, Estimate, estimates_table, recorded_speed, training_estimates
from coderl_tasks.policy.update import KL_SAMPLE
from coderl_tasks.settings import TrainSettings
from tests.flows.run_records import ENDS, TINY, rollouts, rows


@pytest.fixture
def estimated(
    flow_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> "Says":
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY", "SANDBOX_URL"):
        monkeypatch.setenv(name, flow_environment[name])
    return Says(capsys)


class Says:
    """What `coderl estimate ...` prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: object) -> str:
        assert main(["estimate", *map(str, words)]) == 0
        return self.capsys.readouterr().out


def settings(*words: str, **values: object) -> TrainSettings:
    sizes = dict(word.split("=") for word in (*TINY, ENDS, *words))
    return TrainSettings.model_validate({"preset": "nano", **sizes, **values})


def train_row(values: TrainSettings, pool: Path, path: Path | None) -> Estimate:
    (row, *_) = training_estimates(values, find_pool(str(pool)), path)
    return row


def test_a_new_run_is_estimated_by_the_profile_and_one_under_way_by_its_steps(
    estimated: Says, run: Path, pool: Path
) -> None:
    said = estimated("train", "--preset=nano", f"pool={pool}", "--max_steps", "9", *TINY, ENDS)
    assert "train: by the profile of 12 problems" in said and "prices: not known" in said
    prices = {"prefill": 1.0, "sample": 1.0, "train": 1.0}
    profile = pl.read_parquet(pool / "profile.parquet")
    mean_of = {name: sum(profile[name].to_list()) / 12 for name in ("prompt_tokens", "mean_completion_tokens")}
    before = train_row(settings(max_steps=9, prices=prices), pool, None)
    assert before.expected.prompt == round(9 * 3 * mean_of["prompt_tokens"])
    assert before.expected.completion == round(9 * 24 * mean_of["mean_completion_tokens"])
    assert before.low.completion < before.expected.completion < before.high.completion
    assert before.price is not None and before.price.usd(before.high) is not None
    observing = train_row(settings(max_steps=9, prices=prices, kl="base_every:4"), pool, None)
    lengths = round(mean_of["prompt_tokens"] + mean_of["mean_completion_tokens"])
    assert observing.expected == before.expected + Tokens(base=2 * KL_SAMPLE * lengths)

    said = estimated("train", f"log_path={run}", "max_steps=9")
    assert "train: by the run's first 3 steps, against the profile of their problems" in said and "time left" in said
    after = train_row(settings(max_steps=9), pool, run)
    sampled = rollouts(run)
    taken = int(sampled["completion_tokens"].list.len().sum())
    problems = sampled.join(profile, on="problem_id", how="left")["mean_completion_tokens"].to_list()
    ratio = mean_of["mean_completion_tokens"] / (sum(problems) / len(problems))
    assert after.expected.completion == pytest.approx(taken + 6 * taken / 3 * ratio, abs=1)
    # With no step left it is what was spent, as the run's own metrics have it.
    done = train_row(settings(max_steps=3), pool, run)
    metrics = load_run(run).metrics
    assert done.low == done.expected == done.high and done.expected.completion == taken
    names = ("tokens_prompt", "tokens_prompt_cached", "tokens_completion", "tokens_training")
    kinds = (done.expected.prompt, done.expected.cached, done.expected.completion, done.expected.training)
    assert kinds == tuple(metrics[name].sum() for name in names)
    assert done.price is None and estimates_table([done]).columns[-1].text(done) == "not known"


def test_what_nothing_is_known_of_is_estimated_at_most(estimated: Says, run: Path) -> None:
    said = estimated("curate", "preset=nano", "limit=12", "profile_samples=2", "max_tokens=64", "check_solutions=false")
    assert "12 problems, 2 completions each; max_tokens=64 for each completion: at most" in said
    assert f"{12 * 2 * 64:,} [0 to {12 * 2 * 64:,}]" in said
    sizes = ("preset=nano", "limit=12", "max_tokens=64", "check_solutions=false")
    screened = estimated("curate", *sizes, "profile_mode=screen")  # of 16 samples one round of 2
    assert "12 problems, 2 completions each" in screened and f"{12 * 2 * 64:,} [0 to {12 * 2 * 64:,}]" in screened
    # At least the first quarter is sampled: the prompts of 3 problems.
    low, expected = re.search(r"profile +([\d,]+) \[([\d,]+) to \1\]", screened).group(2, 1)  # type: ignore[union-attr]
    assert int(low.replace(",", "")) == pytest.approx(int(expected.replace(",", "")) / 4, abs=1)
    said = estimated("evaluate", f"checkpoint={run}", "eval_limit=4")
    assert "evaluate: by 1 evaluation, 4 completions; max_tokens=64" in said and f"256 [0 to {4 * 64}]" in said
    said = estimated("evaluate", f"checkpoint={run}", "eval_limit=4", "n_samples=2", "temperature=1")
    assert "1 evaluation, 8 completions" in said and "512 [0 to 512]" in said


def test_answers_after_the_first_are_counted_as_an_upper_bound(estimated: Says, run: Path, pool: Path) -> None:
    one, two = (train_row(settings(max_steps=9, **more), pool, None) for more in ({}, {"max_turns": 2}))
    assert two.expected.completion == pytest.approx(2 * one.expected.completion, abs=1)
    assert two.low == one.low, "no program may fail"
    count, groups = 9 * 24, 9 * 3
    prompt, answer = one.expected.prompt / groups, one.expected.completion / count
    assert two.expected.prompt == pytest.approx(one.expected.prompt + count * REPLY_TOKENS, abs=1)
    assert two.expected.cached == pytest.approx(one.expected.cached + count * (prompt + answer), abs=count)
    trained = two.high.training - one.high.training
    assert trained == pytest.approx(count * REPLY_TOKENS + two.high.completion - one.high.completion, abs=1)
    tool = train_row(settings(max_steps=9, environment="tool", max_tool_calls=2, max_trajectory_tokens=50), pool, None)
    assert tool.expected.completion == pytest.approx(count * min(50, 3 * answer), abs=1)
    said = estimated("evaluate", f"checkpoint={run}", "eval_limit=4", "max_turns=3")
    assert f"{4 * 3 * 64:,} [0 to {4 * 3 * 64:,}]" in said
    assert f"an upper bound of 3 answers each, with {REPLY_TOKENS} tokens per reply" in " ".join(said.split())
    said = estimated(
        "curate",
        "preset=nano",
        "limit=12",
        "profile_samples=2",
        "max_tokens=64",
        "environment=tool",
        "check_solutions=false",
    )
    assert f"{12 * 2 * 5 * 64:,} [0 to" in said


def test_minutes_come_from_a_probe_or_from_the_runs_of_the_model_on_this_server(
    estimated: Says, run: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("train", "preset=nano", f"pool={pool}", "max_steps=9", *TINY[:4], "eval_every=-1", "kl=base_every:3")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "time: not known before three steps" in estimated(*words)  # a service bills, and is not asked by itself
    said = estimated("train", "--probe", *words[1:])
    assert re.search(r"time: train about \d.* tokens/s sampled, .* trained on, by a probe of \d+ tokens\)", said)
    assert re.search(r"the base model reads about [\d,]+ tokens more \(kl.base_every=3", said)
    shutil.copytree(run, tmp_path / "code-rl-logs/mine", ignore=shutil.ignore_patterns("steps", "index"))
    said = estimated(*words)
    steps = [row for row in rows(run / "metrics.jsonl") if row.get("tokens_completion")]
    spent = sum(max(row["time_sample_s"], row["time_step_s"] - row["time_train_s"]) for row in steps)
    rate = f"{sum(row['tokens_completion'] for row in steps) / spent:,.0f}"
    assert f"({rate} tokens/s sampled, " in said and "by run 'mine')" in said
    other = tmp_path / "code-rl-logs/mine/config.json"
    other.write_text(other.read_text().replace('"service": "http', '"service": "http://another'))
    assert "by the run" not in estimated(*words)


def test_steps_that_are_sampled_while_others_are_trained_take_their_time_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = tmp_path / "code-rl-logs/mine"
    run.mkdir(parents=True)
    write_json(run / "config.json", settings().content())
    row = {"tokens_completion": 900, "tokens_training": 1200, "time_train_s": 3.0, "time_step_s": 10.0}
    for sample_s, sampling in ((6.0, 900 / 7), (25.0, 900 / 10)):
        write_rows(run / "metrics.jsonl", [{"step": step, **row, "time_sample_s": sample_s} for step in range(4)])
        speed = recorded_speed(settings())
        assert speed is not None and speed.sampling == pytest.approx(sampling)
        assert speed.seconds(Tokens(completion=900, training=1200)) == pytest.approx(10)


def test_a_pipeline_on_a_service_is_estimated_with_the_steps_that_it_would_train(estimated: Says) -> None:
    data = [
        f"{part}.{key}" for part in ("curate", "train", "evaluate") for key in ("dataset=data/mini", "max_tokens=64")
    ]
    words = ("train.model_name=data/nano", *data, "train.eval_every=-1", "train.batch_size=24", "train.group_size=3")
    as_by_default = estimated("pipeline", *words, "--no-probe")
    assert as_by_default == estimated("pipeline", *words, "train.max_steps=100", "--no-probe")


def test_what_nothing_was_curated_for_is_estimated_from_its_rows(estimated: Says, tmp_path: Path) -> None:
    dataset = shutil.copy(
        PROJECT_ROOT / "data/mini/taco-train.jsonl", tmp_path
    )  # of the bundled rows there may be pools
    said = estimated("train", "preset=nano", f"dataset={dataset}", "max_steps=2", *TINY[:4], "eval_every=-1")
    assert "train: by max_tokens=64 for each completion: at most" in said and f"{2 * 24 * 64:,} [0 to" in said
