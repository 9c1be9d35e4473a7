"""Logs, the console, progress and the closing summary."""

import logging
import os
from dataclasses import replace
from io import StringIO
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from coderl_tasks.curation.find_pool import FoundPool
from coderl_tasks.insight.logging import early_lines, setup_logging, step_line
from coderl_tasks.insight.record import load_run
from coderl_tasks.insight.tables import age, duration
from coderl_tasks.insight.terminal import pool_lines, print_summary
from coderl_tasks.journal.atomic import read_rows
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.settings import TrainSettings
from tests.insight.recorded_runs import ROW


def console(terminal: bool = False) -> tuple[Console, StringIO]:
    out = StringIO()
    return Console(file=out, width=160, force_terminal=terminal, color_system=None), out


def test_metrics_go_to_the_file_and_the_log(tmp_path: Path) -> None:
    with setup_logging(tmp_path, config={"seed": 3}) as run:
        run.log_metrics({"eval/mean_correct": 0.25}, step=-1)
        run.log_metrics(ROW, step=0)
        run.log_metrics(ROW | {"mean_reward": 0.6}, step=0)
        logging.getLogger("coderl_tasks.training").info("grad_norm=1.5")
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [(row["step"], row.get("mean_reward")) for row in rows] == [(-1, None), (0, 0.6)]
    log = (tmp_path / "logs.log").read_text()
    assert "reward 0.500  correct 52%  format 98%  trained on 6/8 groups" in log
    assert "seed=3" in log and "evaluation baseline  Pass@1 25.0%" in log and "grad_norm=1.5" in log


def test_what_is_said_before_there_is_a_log_comes_into_it_once(tmp_path: Path) -> None:
    package = logging.getLogger("coderl_tasks")
    before = (package.level, list(package.handlers))
    with early_lines():
        package.info("said by the command")
        with early_lines():
            package.info("said by the flow")
            with setup_logging(tmp_path / "one"):
                package.info("said by the run")
        with setup_logging(tmp_path / "two"):
            pass
    assert (package.level, package.handlers) == before
    logs = [(tmp_path / name / "logs.log").read_text() for name in ("one", "two")]
    said = [[line.partition("said ")[2] for line in log.splitlines() if "said " in line] for log in logs]
    assert said == [["by the command", "by the flow", "by the run"], []]


def test_another_sink_takes_the_rows(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = []
    with setup_logging(tmp_path, sink=rows.append) as run:
        run.log_metrics(ROW, step=4)
    assert rows == [{"step": 4, **ROW}] and not (tmp_path / "metrics.jsonl").exists()


def test_groups_are_logged_with_warnings_for_degenerate_ones(run_dir: Path, tmp_path: Path) -> None:
    record = load_run(run_dir)
    step = int(record.metrics.filter(pl.col("groups_skipped") > 0)["step"][0])
    scored = pl.read_parquet(run_dir / "steps" / f"{step:06d}" / "scored.parquet")
    with setup_logging(tmp_path) as run:
        run.log_groups(scored, clone_groups=0)
    lines = (tmp_path / "logs.log").read_text().splitlines()
    assert sum(" INFO " in line for line in lines) == 8
    skipped = [line for line in lines if "skipped, all rewards are" in line]
    assert len(skipped) == record.metrics["groups_skipped"][step] and "WARNING" in skipped[0]


def test_a_group_without_two_grades_is_named(tmp_path: Path) -> None:
    with setup_logging(tmp_path) as run:
        run.log_groups(scored_group([None, 1.0], [[-0.5], [-0.5]]), clone_groups=0)
    log = (tmp_path / "logs.log").read_text()
    assert "1 of 2 completions could not be graded" in log and "fewer than two graded" in log
    assert "left out" not in log and "clones" not in log


def test_clones_and_missing_log_probabilities_are_named(tmp_path: Path) -> None:
    with setup_logging(tmp_path) as run:
        run.log_groups(scored_group([1.0, 1.0, None], [[-20.0], [-20.0], None]), clone_groups=1)
    log = (tmp_path / "logs.log").read_text()
    assert "step 0 group 0 p: 1 of 3 samples left out, no usable log-probabilities" in log
    assert "step 0 group 0 p: all 2 completions are the same, token for token: clones" in log
    assert "could not be graded" not in log


def test_an_id_forges_no_line_and_no_escape_sequence(tmp_path: Path) -> None:
    forged = "p\n2026-01-01 00:00:00,000 ERROR coderl_tasks: forged\x1b[2J\x9b1m\u2028"
    with setup_logging(tmp_path) as run:
        group = scored_group([1.0, 1.0], [[-0.5], [-0.5]]).with_columns(problem_id=pl.lit(forged))
        run.log_groups(group, clone_groups=0)
        try:
            raise ValueError("within")
        except ValueError:
            run.log.exception("a traceback keeps its lines")
    text = (tmp_path / "logs.log").read_text()
    assert "forged" in text and not any(line.startswith("2026-01-01") for line in text.splitlines())
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "\nValueError: within\n" in text


def scored_group(rewards: list[float | None], logprobs: list[list[float] | None]) -> pl.DataFrame:
    """A scored group of equal completions, one token each."""
    rows = [
        {"step": 0, "group_index": 0, "problem_id": "p", "completion_tokens": [7], "logprobs": scores, "reward": reward}
        for reward, scores in zip(rewards, logprobs, strict=True)
    ]
    return pl.DataFrame(rows, schema=ROLLOUT_SCHEMA)


def test_failures_are_logged_and_the_handler_goes(tmp_path: Path) -> None:
    before = list(logging.getLogger("coderl_tasks").handlers)
    with pytest.raises(RuntimeError), setup_logging(tmp_path):
        raise RuntimeError("sandbox gone")
    assert "ended by RuntimeError: sandbox gone" in (tmp_path / "logs.log").read_text()
    assert logging.getLogger("coderl_tasks").handlers == before


def test_step_line_leaves_out_what_is_not_known() -> None:
    assert step_line({"step": 3, "mean_reward": 0.25}) == "step    3  reward 0.250"
    assert step_line({"step": 3, "kl_sample_train": 8.3e-11}) == "step    3  kl <1e-6"
    all_skipped = {"step": 3, "mean_reward": None, "groups_total": 8, "groups_skipped": 8}
    assert step_line(all_skipped).endswith("trained on 0/8 groups")
    assert "infra errors 2" in step_line({"step": 3, "infra_errors": 2})
    assert step_line({"step": 3, "samples_skipped": 2, "clone_groups": 1}).endswith(
        "samples skipped 2  groups of clones 1"
    )


def test_durations_read_like_speech() -> None:
    assert [duration(s) for s in (40, 720, 11_100)] == ["40 s", "12 min", "3 h 05 min"]
    assert [age(s) for s in (-1, 40, 90_000, 3 * 86_400 + 5)] == ["0 s", "40 s", "25 h 00 min", "3 days"]


def test_the_summary_names_everything(run_dir: Path, pool_dir: Path) -> None:
    screen, out = console()
    print_summary(screen, run_dir, pool_dir)
    text = out.getvalue()
    for words in (
        "hard",
        "primeintellect",
        "52.5 [",
        "paired difference",
        "pass",
        "--name flips",
        str(run_dir),
        "UI      coderl up",
    ):
        assert words in text
    assert '"SELECT verdict, count(*) AS n FROM rollouts GROUP BY ALL ORDER BY n DESC"\n' in text
    narrow = StringIO()
    print_summary(Console(file=narrow, width=60), run_dir)
    policies = [line for line in narrow.getvalue().splitlines() if line.startswith("final: tinker://")]
    assert len(policies) == 1 and len(policies[0]) > 60 and ", n=" in policies[0]  # a path is neither broken nor cut


def test_the_pool_is_named_with_its_size_and_age(tmp_path: Path) -> None:
    pools = []
    for name, kept, written in (("small", 5, 1_000_000), ("large", 400, 500_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
        os.utime(tmp_path / name / "manifest.json", (written, written))
        pools.append(FoundPool(tmp_path / name / "pool.parquet", {"kept": kept}))
    small, large = pools
    settings = TrainSettings(problems_per_step=4, completions_per_problem=2)
    taken, step = pool_lines(replace(small, larger=large), settings, 1_000_000 + 720)
    assert taken == (
        f"warning: pool: {small.file} (5 problems, written 12 min ago); "
        "a larger one: pool=large, 400 problems, 5 days old"
    )
    assert step == "per step: 4 problems x 2 completions per problem"
    assert "a step takes some twice" in pool_lines(small, TrainSettings(), 1_000_000)[1]
    refilled = TrainSettings(problems_per_step=5, completions_per_problem=2, refill=1.5)
    assert ", and up to 2 problems in place of" in pool_lines(large, refilled, 1_000_000)[1]
    assert "all of the pool, so that refill=1.5 replaces no group" in pool_lines(small, refilled, 1_000_000)[1]
