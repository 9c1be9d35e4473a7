"""The contents of a training run's report: the numbers, tables and samples that its template lays out."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.insight.comparison import Comparison, compare_evals, comparison_table, weak_splits
from coderl_tasks.insight.console import duration
from coderl_tasks.insight.diagnosis import checks_table, smoke_checks
from coderl_tasks.insight.plots import FIRST, flat_panels, history_pairs, history_plots, pass_at_1_plot
from coderl_tasks.insight.problem_view import failed_test, problems_at_hand, prompt_decoder
from coderl_tasks.insight.record import EvalRecord, RunRecord
from coderl_tasks.insight.token_uses import costs, costs_table, uses, uses_table, visits_in_words
from coderl_tasks.insight.warning_signs import hints
from coderl_tasks.journal.checkpoints import expiring_states
from coderl_tasks.journal.recorded_json import config_changes, shown_setting
from coderl_tasks.paths import POOL_FILE
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA, TRUNCATED
from coderl_tasks.problems.problem import Problem

SIDES = ("A", "B")
"""What two runs are called on one page: their names may be the same."""
LONGEST_SHOWN, TEST_SHOWN, SPANS = 6000, 600, 5
SAMPLE_COLUMNS = (
    "problem_id", "prompt_tokens", "completion", "verdict", "tests_passed", "tests_run", "tests_total", "stop_reason",
    "first_failed", "failed_output", "reason", "reward_error",
)  # fmt: skip
QUERIES = ("steps", "verdicts", "flips", "hardest", "degenerate_groups", "infra")


def run_page(run: RunRecord) -> dict[str, Any]:
    """The variables of the template that lays out a run's page."""
    comparison = compare_evals(run.baseline, run.latest)
    answers, missing = samples(run, comparison)
    plots = history_plots(run) if len(run.metrics) else {}
    titles = sorted(plots, key=lambda title: title not in FIRST)
    n_first = len(plots.keys() & FIRST) + 1 & ~1  # rounded up to even: two in each row
    weak = weak_splits(comparison.by_split, str(run.config.get("dataset", ""))) if comparison else {}
    quoted_path = shlex.quote(str(run.path))
    return {
        "title": run.path.name,
        "run": run,
        "facts": facts(run),
        "comparison": comparison,
        "split_table": comparison_table(comparison, weak) if comparison else None,
        "weak_splits": weak,
        "checks": checks_table(smoke_checks(run)),
        "hints": hints(run),
        "pass_plot": pass_at_1_plot(comparison.before, comparison.after) if comparison else None,
        "history": [plots[title] for title in titles[:n_first]],
        "more_history": [plots[title] for title in titles[n_first:]],
        "flat": list(flat_panels(run).values()),
        "times": phase_times(run.metrics),
        "verdicts": verdict_table(run),
        "samples": answers,
        "samples_missing": missing,
        "show": f"coderl show {quoted_path} PROBLEM",
        "uses": uses_table(spent) if (spent := uses(run)) else None,
        "costs": costs_table(costs(run)),
        "visits": visits_in_words(run),
        "skipped": skipped_groups(run),
        "infra": infra_errors(run),
        "expiring": expiring_states(run.path, run.config),
        "export": f"coderl export {quoted_path}",
        "queries": [f"coderl query {quoted_path} --name {name}" for name in QUERIES],
        "sql": f'coderl query {quoted_path} "SELECT step, avg(reward) FROM rollouts GROUP BY step"',
    }


def comparison_page(first: RunRecord, second: RunRecord) -> dict[str, Any]:
    """The variables of the template that lays out two runs side by side, called A and B."""
    runs = (first, second)
    sides = list(zip(SIDES, runs, strict=True))
    latest = [run.latest and replace(run.latest, name=f"{letter}: {run.latest.name}") for letter, run in sides]
    comparison = compare_evals(*latest)
    answers, missing = samples(second, comparison, SIDES)
    known = [facts(run) for run in runs]
    labels = dict.fromkeys([*known[0], *known[1]])
    changes = config_changes(first.config, second.config)
    return {
        "title": f"{first.path.name} and {second.path.name}",
        "runs": sides,
        "facts": [(label, *(side.get(label) for side in known)) for label in labels],
        "changes": [(one.key, _setting(one.key, one.old), _setting(one.key, one.new)) for one in changes],
        "comparison": comparison,
        "lacking": " and ".join(letter for letter, run in sides if run.latest is None),
        "split_table": comparison_table(comparison) if comparison else None,
        "pass_plot": pass_at_1_plot(comparison.before, comparison.after, SIDES) if comparison else None,
        "history": history_pairs(runs, SIDES),
        "flat": [said for said in flat_panels(first).values() if said in flat_panels(second).values()],
        "verdicts": [verdict_table(run) for run in runs],
        "samples": answers,
        "samples_missing": missing,
        "costs": [costs_table(spent) if (spent := costs(run)) else None for run in runs],
        "times": [phase_times(run.metrics) for run in runs],
        "hints": [hints(run) for run in runs],
        "queries": [f"coderl query {shlex.quote(str(run.path))} --name steps" for run in runs],
        "sql": f"coderl report {' '.join(shlex.quote(str(run.path)) for run in runs)}",
    }


def _setting(key: str, value: Any) -> str:
    """A setting short enough for a table: of a pool its name, of a hash the beginning."""
    if value is None:
        return "–"
    if key == "pool":
        file = Path(value)
        return file.parent.name if file.name == POOL_FILE else file.name
    return value[: 12 if key.endswith("sha256") else None] if isinstance(value, str) else shown_setting(value)


def facts(run: RunRecord) -> dict[str, str]:
    known: dict[str, str] = {"model": str(run.config.get("model_name", "–"))}
    known["steps"] = f"{len(run.metrics):,}" + (f" of {run.planned_steps:,}" if run.planned_steps else "")
    if {"batch_size", "group_size"} <= run.config.keys():
        prompts = int(run.config["group_size"])
        known["batch"] = f"{prompts} problems × {int(run.config['batch_size']) // prompts} completions"
        if run.config.get("first_completions"):
            known["batch"] += f", first {run.config['first_completions']}"
        if run.config.get("refill", 1) > 1:
            known["batch"] += f", refill={run.config['refill']:g}"
    if "learning_rate" in run.config:
        known["learning rate"] = f"{run.config['learning_rate']:g}, LoRA rank {run.config.get('lora_rank', '–')}"
    if "time_step_s" in run.metrics.columns:
        known["time in steps"] = duration(float(run.metrics["time_step_s"].sum()))
    metrics = run.path / "metrics.jsonl"
    if metrics.is_file():
        known["last written"] = f"{datetime.fromtimestamp(metrics.stat().st_mtime):%Y-%m-%d %H:%M}"
    return known


def phase_times(metrics: pl.DataFrame) -> list[dict[str, Any]]:
    names = {phase: f"time_{phase}_s" for phase in ("sample", "score", "train", "save")}
    names["whole step"] = "time_step_s"
    known = {label: metrics[name].drop_nulls() for label, name in names.items() if name in metrics.columns}
    known = {label: values for label, values in known.items() if len(values)}
    whole = float(known["whole step"].sum()) if "whole step" in known else None
    return [
        {
            "phase": label,
            "median": float(values.median()),  # type: ignore[arg-type]
            "slowest": float(values.max()),  # type: ignore[arg-type]
            "total": duration(float(values.sum())),
            "share": float(values.sum()) / whole if whole else None,
        }
        for label, values in known.items()
    ]


def verdict_table(run: RunRecord) -> dict[str, Any]:
    """Shares of the verdicts of all training completions, in up to five equal spans of steps."""
    graded = run.rollouts(["step", "verdict"]).filter(pl.col("verdict").is_not_null())
    counts = graded.group_by("step", "verdict").len("n").collect()
    if not len(counts):
        return {"spans": [], "rows": []}
    first, last = int(counts["step"].min()), int(counts["step"].max())  # type: ignore[arg-type]
    spans = min(SPANS, last - first + 1)
    edges = [first + (last - first + 1) * i // spans for i in range(spans + 1)]
    span = ((pl.col("step") - first) * spans // (last - first + 1)).clip(0, spans - 1)
    placed = counts.with_columns(span.alias("span")).group_by("span", "verdict").agg(pl.col("n").sum())
    totals = dict(placed.group_by("span").agg(pl.col("n").sum()).iter_rows())
    by_verdict = placed.group_by("verdict").agg(pl.col("n").sum()).sort("n", "verdict", descending=[True, False])
    cells = {(row["verdict"], row["span"]): row["n"] for row in placed.iter_rows(named=True)}
    rows = []
    for verdict, n in by_verdict.iter_rows():
        shares = [cells.get((verdict, i), 0) / totals[i] if totals.get(i) else None for i in range(spans)]
        rows.append({"verdict": verdict, "n": n, "shares": shares})
    return {"spans": [(edges[i], edges[i + 1] - 1) for i in range(spans)], "rows": rows}


def samples(
    run: RunRecord, comparison: Comparison | None, sides: Sequence[str] = ("before", "after")
) -> tuple[list[dict[str, Any]], str | None]:
    """A few test problems (gained, lost, still failing) with an answer per side; and why tests are missing, or None."""
    if comparison is None:
        return [], None
    kinds = (
        ("gained", (pl.col("before") < pl.col("after")), 4),
        ("lost", (pl.col("before") > pl.col("after")), 2),
        ("still fails", (pl.col("before") == 0) & (pl.col("after") == 0), 2),
    )
    decode = prompt_decoder(str(run.config.get("model_name", "")))
    found = []
    # Spread over all rows: they are sorted by split, so the first few would be from one split.
    parts = [(kind, comparison.pairs.filter(condition), limit) for kind, condition, limit in kinds]
    shown = {kind: rows.gather_every(max(1, len(rows) // limit)).head(limit) for kind, rows, limit in parts}
    problems, missing = problems_at_hand(run, [name for rows in shown.values() for name in rows["problem_id"]])
    for kind, chosen in shown.items():
        ids = chosen["problem_id"].to_list()
        rollouts = [_first_rollouts(record, ids) for record in (comparison.before, comparison.after)]
        for problem_id, split in chosen.select("problem_id", "split").iter_rows():
            pair = [by_id[problem_id] for by_id in rollouts]
            tokens = pair[1]["prompt_tokens"]
            prompt = shorten(decode(tokens)) if decode is not None and tokens else None
            answers = [_shown(rollout, problems.get(problem_id)) for rollout in pair]
            row = {"kind": kind, "problem_id": problem_id, "split": split, "prompt": prompt}
            found.append(row | {"sides": list(zip(sides, answers, strict=True))})
    return found, missing


def _first_rollouts(record: EvalRecord, problem_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    assert record.rollouts is not None
    scan = pl.scan_parquet(record.rollouts, schema=ROLLOUT_SCHEMA, missing_columns="insert").filter(
        pl.col("problem_id").is_in(problem_ids)
    )
    rows = scan.sort("sample_index").select(SAMPLE_COLUMNS).unique("problem_id", keep="first").collect()
    return {row["problem_id"]: row for row in rows.iter_rows(named=True)}


def _shown(row: dict[str, Any], problem: Problem | None) -> dict[str, Any]:
    shown = row | {"completion": shorten(row["completion"]), "truncated": row["stop_reason"] == TRUNCATED}
    if (failed := failed_test(row, problem)) is None:
        return shown | {"failed": None}
    texts = {name: text and shorten(str(text), TEST_SHOWN) for name, text in asdict(failed).items()}
    return shown | {"failed": texts | {"index": failed.index}}


def shorten(text: str, limit: int = LONGEST_SHOWN) -> str:
    """`text`, its middle left out where it is longer than `limit` characters: the code is usually at the end."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 3]}\n\n[… {len(text) - limit:,} characters left out …]\n\n{text[-2 * limit // 3 :]}"


def skipped_groups(run: RunRecord) -> dict[str, Any]:
    # Rewards of a skipped group are equal, so the lowest one tells what all of them are.
    skipped = run.groups.filter(~pl.col("has_signal"))
    why = (
        pl.when(pl.col("graded") < 2)
        .then(pl.lit("fewer than two graded"))
        .when(pl.col("lowest") >= 1.0)
        .then(pl.lit("all right"))
        .when(pl.col("lowest") < 0)
        .then(pl.lit("none in format"))
        .otherwise(pl.lit("all wrong"))
    )
    reasons = skipped.group_by(why.alias("why")).len("n").sort("n", "why", descending=[True, False])
    problems = skipped.group_by("problem_id").len("n").sort("n", "problem_id", descending=[True, False]).head(5)
    counts = {"total": len(run.groups), "skipped": len(skipped)}
    return counts | {"reasons": reasons.rows(), "problems": problems.rows()}


def infra_errors(run: RunRecord) -> dict[str, Any]:
    scan = run.rollouts(["step", "verdict"]).filter(pl.col("verdict") == "infra_error")
    steps = scan.group_by("step").len("n").sort("n", "step", descending=[True, False]).collect()
    total = int(run.rollouts(["step"]).select(pl.len()).collect().item())
    in_evals = {name: int(record.summary.get("infra_errors") or 0) for name, record in run.evals.items()}
    return {
        "n": int(steps["n"].sum()),
        "total": total,
        "steps": list(steps.head(8).iter_rows()),
        "evals": {name: n for name, n in in_evals.items() if n},
    }
