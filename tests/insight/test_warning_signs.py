"""Each fault of a run is named, with the setting that mends it; healthy runs are silent.

`healthy_runs/` has the rows of ten runs of the nano model on the embedded servers, of seeds 1 to 10 (8 problems x 8
completions, 30 steps), without their clocks.
"""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coderl_tasks.insight.record import load_run
from coderl_tasks.insight.warning_signs import RULES, Notice, Remedy, Watch, hints, memory_advice
from coderl_tasks.policy.grpo import with_advantages
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.policy.step_metrics import rollout_metrics
from coderl_tasks.settings import TrainSettings
from local_servers.memory import OutOfMemory
from tests.insight.recorded_runs import draw_verdict, rollout

HEALTHY = sorted(Path(__file__).with_name("healthy_runs").glob("*.jsonl"))
CONFIG = {**TrainSettings(preset="nano").content(), "pool_sha256": "0"}
STEPS, GROUPS, SAMPLES = 24, 8, 4
Row = dict[str, Any]
Verdicts = Callable[[int, int, random.Random], str]


def rows_of(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def watched(rows: list[Row], config: Row = CONFIG) -> list[Notice]:
    watch = Watch(config)
    return [notice for row in rows for notice in watch.add(row)]


def warnings(rows: list[Row], config: Row = CONFIG) -> list[str]:
    return [notice.text for notice in watched(rows, config) if notice.is_warning]


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_a_healthy_run_is_silent(path: Path) -> None:
    rows = rows_of(path)
    assert rows
    assert watched(rows) == []


def test_there_are_ten_healthy_runs_that_learned() -> None:
    runs = [rows_of(path) for path in HEALTHY]
    assert len(runs) == 10
    for rows in runs:
        rewards = [row["mean_reward"] for row in rows]
        assert len(rows) == 30 and sum(rewards[-5:]) > sum(rewards[:5]) + 1


def sampled_rows(verdicts: Verdicts, clones: bool = False, seed: int = 0) -> list[Row]:
    """Rows of metrics.jsonl, computed from rollouts: `verdicts` says what a completion of (step, group) is."""
    draw, rows = random.Random(seed), []
    for step in range(STEPS):
        completions, tokens = [], [0]
        for group in range(GROUPS):
            for sample in range(SAMPLES):
                if sample == 0 or not clones:
                    tokens = [draw.randrange(256) for _ in range(8)]
                row = rollout(f"p{group}", verdicts(step, group, draw), draw, step=step, group_index=group)
                logprobs = [-0.5 - draw.random() for _ in tokens]
                row |= {
                    "sample_index": sample,
                    "completion_tokens": tokens,
                    "logprobs": logprobs,
                    "stop_reason": "stop",
                }
                completions.append(row)
        frame = with_advantages(pl.DataFrame(completions, schema=ROLLOUT_SCHEMA))
        updated = {"n_tokens": 400, "loss": draw.gauss(-2, 2), "kl_sample_train": draw.gauss(0, 1e-4)}
        rows.append({"step": step, **rollout_metrics(frame), **updated})
    return rows


def mixed(step: int, group: int, draw: random.Random) -> str:
    return draw_verdict(0.4, 0.99, 0.0, draw)


def later(fault: Verdicts) -> Verdicts:
    return lambda step, group, draw: (fault if step >= 8 else mixed)(step, group, draw)


def half_and_half(step: int, group: int, draw: random.Random) -> str:
    """The mean reward is that of a run that learns."""
    return "passed" if group % 2 else "wrong_answer"


SAMPLED: dict[str, tuple[Verdicts, set[str]]] = {
    "none right": (later(lambda step, group, draw: "wrong_answer"), {"all zero", "reward collapse"}),
    "all right": (later(lambda step, group, draw: "passed"), {"all one"}),
    "half of each": (later(half_and_half), {"all zero", "all one"}),
    "format": (later(lambda step, group, draw: draw_verdict(0.4, 0.7, 0.0, draw)), {"format rate falls"}),
    "no code": (later(lambda step, group, draw: draw_verdict(0.9, 0.3, 0.0, draw)), {"low format"}),
    "time": (
        later(lambda step, group, draw: draw.choice(["passed", "time_limit", "time_limit"])),
        {"time-outs dominate"},
    ),
    "sandbox": (later(lambda step, group, draw: draw_verdict(0.4, 0.99, 0.05, draw)), {"infra errors"}),
}


@pytest.mark.parametrize("fault", SAMPLED)
def test_what_the_rollouts_show_is_named(fault: str) -> None:
    verdicts, names = SAMPLED[fault]
    said = warnings(sampled_rows(verdicts))
    found = {text.split(": ")[1] for text in said if "worse since" not in text}
    assert names <= found <= names | {"low format", "format rate falls", "reward collapse"}, said


def test_groups_that_ended_with_their_first_completions_are_judged_by_their_cost() -> None:
    half = {"groups_total": lambda *_: 20, "groups_skipped": lambda *_: 15, "groups_all_zero": lambda *_: 0.7}
    config = CONFIG | {"first_completions": 4}
    for cost, told in ((0.4, False), (0.8, True)):
        rows = changed(**half, tokens_without_signal=lambda *_, cost=cost: cost)
        assert any("75% of the last groups had equal rewards" in text for text in warnings(rows, config)) is told
        assert any("75% of the last groups had equal rewards" in text for text in warnings(rows))


def test_clones_are_named_and_mixed_rollouts_are_not() -> None:
    assert warnings(sampled_rows(mixed)) == []
    found = warnings(sampled_rows(mixed, clones=True))
    assert len(found) == 1 and "clones" in found[0] and "num_samples" in found[0]


def evaluation(step: int, rate: float, n: int = 400) -> Row:
    return {"step": step, "eval/name": f"step-{step:06d}", "eval/mean_correct": rate, "eval/n": n}


def with_evaluations(rates: tuple[float, float]) -> Iterator[Row]:
    """A run that learns by 0.4 in 30 steps, evaluated before and after."""
    yield evaluation(-1, rates[0])
    yield from rows_of(HEALTHY[0])
    yield evaluation(29, rates[1])
    yield rows_of(HEALTHY[0])[-1] | {"step": 30}


def changed(**columns: Callable[[int, Row], Any]) -> list[Row]:
    """A healthy run with other values in some columns."""
    rows = rows_of(HEALTHY[0])
    return [row | {name: value(row["step"], row) for name, value in columns.items()} for row in rows]


def from_step(step: int, value: Any, name: str) -> Callable[[int, Row], Any]:
    return lambda now, row: value if now >= step else row.get(name)


def test_a_jump_of_the_kl_to_the_base_model_is_a_spike_and_its_growth_is_none() -> None:
    every = [step for step in range(30) if step % 3 == 2]
    growing = {step: 0.02 * number for number, step in enumerate(every)}
    rows = changed(kl_base=lambda step, row: growing.get(step))
    assert warnings(rows) == []
    assert warnings(changed(kl_base=lambda step, row: 5.0 if step == 29 else growing.get(step))) == []
    (said,) = warnings(changed(kl_base=lambda step, row: 0.5 if step in (26, 29) else growing.get(step)))
    assert said.startswith("step 29: KL spike: KL to the base model jumped from 0.14 to 0.50")


RECORDS: dict[str, tuple[list[Row], str]] = {
    "reward without pass at 1": (list(with_evaluations((0.5, 0.5))), "rollout_samples"),
    "never one": (changed(mean_correct=lambda *_: 0.0), "Pass@1 counts these alone and stays 0"),
    "loss explodes": (changed(loss=lambda step, row: row["loss"] * (1 if step < 20 else 1e4)), "learning_rate: lower"),
    "KL spike": (changed(kl_sample_train=from_step(20, 0.3, "kl_sample_train")), "temperature: lower"),
    "rewards oscillate": (
        changed(mean_reward=lambda step, row: 0.8 if step // 6 % 2 else 0.2),
        "learning_rate: lower (now 0.001; on resume)",
    ),
    "reward collapse": (changed(mean_reward=from_step(24, 0.05, "mean_reward")), "learning_rate: lower"),
    "entropy collapse": (
        changed(entropy=from_step(20, 1e-4, "entropy"), mean_correct=from_step(20, 0.5, "mean_correct")),
        "temperature: raise (now 1.0; on resume)",
    ),
    "truncation": (changed(truncated_rate=from_step(15, 0.4, "truncated_rate")), "max_tokens: raise (now 128"),
    "reward errors": (changed(reward_errors=lambda step, row: 3 * (step > 9)), "do not train through it"),
    "suspicious": (changed(suspicious=lambda step, row: int(step == 9)), "on_hack: quarantine"),
    "holdback gap": (
        changed(holdback_checked=lambda *_: 40, holdback_gap=lambda step, row: 0.2 * (step > 19)),
        "pool: problems with more tests",
    ),
    "samples skipped": (changed(samples_skipped=lambda step, row: int(step == 9)), "log-probabilities"),
    "equal groups": (
        changed(groups_skipped=lambda *_: 8, groups_all_zero=lambda *_: 0.0, groups_all_one=lambda *_: 0.1),
        "completions_per_problem: raise (now 16; only in a new run)",
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_what_the_metrics_show_is_named_with_what_mends_it(name: str) -> None:
    rows, words = RECORDS[name]
    found = [text for text in warnings(rows) if text.split(": ")[1] == name]
    assert found and words in found[0]


@pytest.mark.parametrize(
    ("environment", "correct", "named"),
    [
        ("gsm8k", 0.0, "all zero"),
        ("code", 0.0, "all zero"),
        ("gsm8k", 0.1, "equal groups"),
        ("custom", 0.0, "equal groups"),
    ],
)
def test_equal_rewards_of_wrong_answers_mean_a_pool_that_is_too_hard(
    environment: str, correct: float, named: str
) -> None:
    """Wrong answers in the format of environment=gsm8k have rewards of 0.2; rewards of one's own may never reach 1."""
    equal = {"groups_skipped": 8, "groups_all_zero": 0.0, "groups_all_one": 0.0, "mean_reward": 0.2}
    rows = changed(**{name: lambda *_, value=value: value for name, value in equal.items()})
    said = warnings([row | {"mean_correct": correct} for row in rows], CONFIG | {"environment": environment})
    assert {text.split(": ")[1] for text in said if "never one" not in text} == {named}
    assert any("pool looks too hard; try: pool: easier problems" in text for text in said) is (named == "all zero")
    assert any("a reward function of your own" in text for text in said) is (environment == "custom")


@pytest.mark.parametrize(("loss_fn", "named"), [("importance_sampling", True), ("cispo", False), ("dro", False)])
def test_a_loss_that_weighs_log_probabilities_is_judged_by_their_size(loss_fn: str, named: bool) -> None:
    """Four per token, at an entropy of two nats."""
    large = changed(loss=lambda step, row: 4 * row["n_tokens"], entropy=lambda step, row: 2.0)
    assert bool(warnings(large, {**CONFIG, "loss_fn": loss_fn})) is named
    exploded = [row | ({"loss": 100 * row["loss"], "entropy": 90.0} if row["step"] >= 25 else {}) for row in large]
    assert [text for text in warnings(exploded, {**CONFIG, "loss_fn": loss_fn}) if "loss explodes" in text]


@pytest.mark.parametrize(("environment", "advantage"), [("custom", "mean_centred"), ("custom", "maxrl"), ("code", "")])
def test_scores_of_any_size_are_judged_by_their_size(environment: str, advantage: str) -> None:
    """A healthy run whose rewards are a hundred times as large, and one that swings and falls by a fifteenth."""
    config = CONFIG | {"environment": environment, "advantage": advantage}
    scores = changed(
        mean_reward=lambda step, row: 100 * row["mean_reward"],
        loss=lambda step, row: 4 * row["n_tokens"],
        advantage_std=lambda *_: 40.0,
    )
    found = {text.split(": ")[1] for text in warnings(scores, config)}
    assert found == (set() if advantage == "mean_centred" else {"loss explodes"})
    swings = [row | {"mean_reward": 75.0 + 5 * (row["step"] // 6 % 2)} for row in scores]
    assert not any("oscillate" in text for text in warnings(swings, config))
    losses = [row | {"mean_reward": -70.0 - 5 * (row["step"] > 20)} for row in scores]
    assert not any("collapse" in text for text in warnings(losses, config))
    exploded = [row | ({"loss": 1e3 * row["loss"], "mean_reward": 1.0} if row["step"] >= 20 else {}) for row in scores]
    assert {"loss explodes", "reward collapse"} <= {text.split(": ")[1] for text in warnings(exploded, config)}


@pytest.mark.parametrize("environment", ["code", "gsm8k"])
def test_a_renderer_is_blamed_for_the_format_only_where_prompts_have_a_chat_format(environment: str) -> None:
    (said,) = warnings(changed(format_rate=lambda *_: 0.2), CONFIG | {"environment": environment})
    assert said.startswith("step 4: low format: only 20% of the last completions ")
    assert ("code block" in said) is ("renderer" in said) is (environment == "code")
    assert "; try: " in said and "max_tokens: raise" in said


def test_each_rule_is_tested() -> None:
    tested = {*RECORDS, *(name for _, names in SAMPLED.values() for name in names), "clones"}
    assert {rule.name.replace("_", " ") for rule in RULES} == tested


def test_pass_at_1_that_rises_too_or_is_measured_on_few_problems_is_no_sign() -> None:
    assert warnings(list(with_evaluations((0.5, 0.75)))) == []
    few = [row | {"eval/n": 10} if "eval/n" in row else row for row in with_evaluations((0.5, 0.5))]
    assert warnings(few) == []
    others = [row | ({"eval/n": 30} if row["step"] == -1 else {}) for row in with_evaluations((0.5, 0.5))]
    assert warnings(others) == [], "the baseline on other problems is no comparison"


def test_an_evaluation_of_other_settings_is_compared_with_none_of_the_run(tmp_path: Path) -> None:
    """`coderl evaluate` records its settings beside its results."""
    for row in with_evaluations((0.5, 0.5)):
        if "eval/n" in row:
            folder = tmp_path / "evals" / row["eval/name"]
            folder.mkdir(parents=True)
            share = {"n": row["eval/n"], "pass_at_1": row["eval/mean_correct"], "ci_low": 0.4, "ci_high": 0.6}
            (folder / "summary.json").write_text(json.dumps(share | {"step": row["step"]}))
        else:
            with (tmp_path / "metrics.jsonl").open("a") as metrics:
                metrics.write(json.dumps(row) + "\n")
    assert any("reward without pass at 1" in text for text in hints(load_run(tmp_path)))
    (tmp_path / "evals" / "step-000029" / "settings.json").write_text("{}")
    assert hints(load_run(tmp_path)) == []


def test_a_reward_that_rises_as_the_policy_becomes_sure_has_two_explanations() -> None:
    def said_of(entropy: Callable[[int], float]) -> str:
        rows = [
            row | ({"entropy": entropy(row["step"])} if "mean_reward" in row else {})
            for row in with_evaluations((0.5, 0.5))
        ]
        (said,) = [text for text in warnings(rows) if "reward without pass at 1" in text]
        return said

    assert "greedy" not in said_of(lambda step: 1.0)
    said = said_of(lambda step: 2 / (1 + step))
    assert "way round the tests" in said and "come nearer to its greedy answers (entropy " in said


def test_a_sign_is_said_once_when_it_begins_and_once_when_it_is_over() -> None:
    rows = changed(truncated_rate=lambda step, row: 0.3 if 5 <= step < 12 else 0.0)
    begun, over = watched(rows)
    assert begun.is_warning and begun.text.startswith("step 7: truncation: 11% of the last completions")
    assert not over.is_warning and over.text.startswith("step 22: over since step 18: truncation")
    assert Watch(CONFIG, rows).still() == []
    assert len(Watch(CONFIG, rows).was()) == 1 and Watch(CONFIG, rows).was()[0].startswith("steps 7 to 17, and over")


def test_what_has_doubled_is_said_again() -> None:
    worse = [text for text in warnings(changed(infra_errors=lambda step, row: step)) if "worse since step 1" in text]
    assert 2 <= len(worse) <= 5


def test_a_run_that_goes_on_says_what_one_that_was_never_stopped_says() -> None:
    """The evaluation before the kill comes again, as a run that goes on reads it once more."""
    rows = sampled_rows(later(half_and_half))
    rows.insert(11, evaluation(10, 0.4))
    whole = watched(rows)
    for stop in (1, 10, 12, 14, 20):
        watch = Watch(CONFIG, rows[:stop])
        again = [notice for row in rows[stop - 1 : stop] if "eval/n" in row for notice in watch.add(row)]
        said = watched(rows[:stop]) + again + [notice for row in rows[stop:] for notice in watch.add(row)]
        assert said == whole and whole


@pytest.mark.parametrize(
    ("metrics", "probe", "warned"),
    [
        ({"duplicate_rate": 0.15, "clone_groups": 0}, None, False),
        ({"duplicate_rate": 0.25, "clone_groups": 0}, None, True),
        ({"duplicate_rate": 0.25, "clone_groups": 0}, {"duplicate_rate": 0.1}, False),
        ({"duplicate_rate": 0.05, "clone_groups": 1}, {"duplicate_rate": 0.0}, True),
        ({"duplicate_rate": None, "clone_groups": 0}, None, False),
        ({}, None, False),
    ],
)
def test_repeats_beyond_chance_are_warned_of(metrics: Row, probe: Row | None, warned: bool) -> None:
    assert bool(warnings([{"step": 3, "groups_total": 8, **metrics}], {"probe": probe})) == warned


def test_what_the_probe_found_in_this_start_counts() -> None:
    config: Row = {}
    watch = Watch(config)
    config["probe"] = {"duplicate_rate": 0.3}  # as the run directory records it
    assert watch.add({"step": 0, "groups_total": 8, "duplicate_rate": 0.4}) == []


def test_a_setting_says_itself_whether_a_run_can_go_on_with_another_value() -> None:
    for rule in RULES:
        for remedy in rule.remedies:
            assert remedy.text(CONFIG).startswith(f"{remedy.setting}: {remedy.how} (")
    assert Remedy("lora_rank", "lower").text({"lora_rank": 32}) == "lora_rank: lower (now 32; only in a new run)"
    assert Remedy("max_steps", "raise").text({}) == "max_steps: raise (on resume)"
    pool = {"pool": "p.parquet", "pool_sha256": "0"}
    assert Remedy("pool", "another").text(pool) == "pool: another (now p.parquet; only in a new run)"


def test_a_run_that_ends_for_want_of_memory_says_what_to_lower() -> None:
    advice = memory_advice(OutOfMemory("a batch of 128 sequences"), CONFIG)
    assert advice is not None and "max_tokens: lower (now 128; on resume)" in advice
    assert "problems_per_step: lower (now 8; only in a new run)" in advice
    assert memory_advice(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), CONFIG) == advice
    assert memory_advice(RuntimeError("the sandbox is down"), CONFIG) is None
