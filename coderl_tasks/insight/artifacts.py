"""Markdown for Prefect's artifacts. It renders images with data URIs and escapes raw HTML, so plots are images."""

import re
from typing import Any

import polars as pl

from coderl_tasks.grading.verdict import Verdict
from coderl_tasks.insight.diagnosis import (
    checks_table,
    compare_evals,
    comparison_table,
    smoke_checks,
    splits_table,
    weak_splits,
)
from coderl_tasks.insight.plots import history_plot, pass_at_1_plot
from coderl_tasks.insight.record import EvalRecord, RunRecord
from coderl_tasks.insight.shown_metrics import SHOWN
from coderl_tasks.insight.tables import Column, Table, markdown_table, markdown_text, shorten
from coderl_tasks.insight.token_uses import costs, costs_table, uses, uses_table, visits_in_words
from coderl_tasks.insight.warning_signs import hints
from coderl_tasks.untrusted_text import printable

LAST_STEPS, SAMPLE_CHARS = 10, 1200
SAMPLE_COLUMNS = ("step", "problem_id", "group_index", "sample_index", "verdict", "reward", "stop_reason", "completion")


def step_history_markdown(run: RunRecord) -> str:
    """Markdown about a run's steps so far: curves, checks, hints, tokens, costs, the last steps, some completions."""
    planned = f" of {run.planned_steps}" if run.planned_steps else ""
    lines = [f"# Step history: {markdown_text(run.path.name)}", ""]
    lines += [f"{len(run.metrics)}{planned} steps, in `{run.path}`.", ""]
    if not len(run.metrics):
        return "\n".join([*lines, "No step has been committed yet."])
    lines += [*history_plot(run).markdown(), "## Checks", "", *markdown_table(checks_table(smoke_checks(run))), ""]
    lines += [f"- {markdown_text(hint)}" for hint in hints(run)]
    lines += ["", "## Tokens by use", "", *markdown_table(uses_table(uses(run))), ""]
    lines += [*markdown_table(costs_table(costs(run))), ""]
    lines += [" ".join(sentences), ""] if (sentences := visits_in_words(run)) else []
    last = run.metrics.tail(LAST_STEPS)
    columns: list[Column[dict[str, Any]]] = [Column("step", lambda row: row["step"])]
    for name, shown in SHOWN.items():
        if shown.column and name in last.columns:
            heading, form = shown.column
            columns.append(Column(heading, lambda row, name=name: row[name], form))  # type: ignore[misc]
    table = Table(columns, last.reverse().rows(named=True))
    lines += ["", f"## The last {len(last)} steps", "", *markdown_table(table), ""]
    return "\n".join(lines + _sample_lines(run))


def _sample_lines(run: RunRecord) -> list[str]:
    """A right and a wrong completion of the last step, one halfway and the first."""
    files = run.scored_files
    lines = ["## Samples", "", "More of them: `coderl query RUN --name rollout_samples`.", ""] if files else []
    for place in dict.fromkeys((len(files) - 1, (len(files) - 1) // 2, 0)) if files else ():
        # Of three files, whatever the run's length. The first of their kind, as the query takes them.
        rows = pl.scan_parquet(files[place]).select(SAMPLE_COLUMNS).filter(pl.col("reward").is_not_null())
        passed = pl.col("verdict") == Verdict.PASSED
        for kind in (passed, ~passed):
            for row in rows.filter(kind).sort("sample_index", "group_index").head(1).collect().iter_rows(named=True):
                facts = f"{row['verdict']}, reward {row['reward']:.2f}, {row['stop_reason']}"
                lines += [f"Step {row['step']}, {markdown_text(row['problem_id'])}: {markdown_text(facts)}", ""]
                # Indented: no fence in the completion, which is the model's, can end this block.
                text = shorten(row["completion"], SAMPLE_CHARS).splitlines()
                lines += [*(f"    {printable(line)}" for line in text or [""]), ""]
    return lines


def evaluation_markdown(record: EvalRecord, before: EvalRecord | None = None, *, dataset: str = "") -> str:
    """Markdown about an evaluation, overall and by split, and its paired comparison with `before` if they share
    problems. `dataset` is what it was made on: it decides which splits are marked as weak evidence."""
    summary = record.summary
    low, high = record.interval
    lines = [f"# Evaluation: {markdown_text(record.name)}", ""]
    lines += [f"**Pass@1 {record.pass_at_1:.1%}** [{low:.1%}, {high:.1%}] on {summary['n']} problems", ""]
    lines += [*markdown_table(splits_table(record)), ""]
    lines += [f"- {split}: {why}" for split, why in weak_splits(summary.get("by_split", {}), dataset).items()]
    if summary.get("mean_reward") is not None:
        lines.append(f"- mean reward {summary['mean_reward']:.3f}")
    facts = {"format ok": "format_rate", "truncated": "truncated_rate"}
    lines += [f"- {label} {summary[key]:.1%}" for label, key in facts.items() if summary.get(key) is not None]
    lines += [f"- infra errors {summary.get('infra_errors', 0)}", f"- policy `{summary.get('policy', '')}`", ""]
    comparison = compare_evals(before, record)
    if before is not None and comparison is not None:
        lines += [f"## Against {markdown_text(before.name)}", "", *pass_at_1_plot(before, record).markdown()]
        lines += markdown_table(comparison_table(comparison))
        lines += ["", f"{comparison.gained} problems gained, {comparison.lost} lost.", ""]
        sides = zip((before.name, record.name), comparison.sides, strict=True)
        lines += [f"- {markdown_text(name)}: {markdown_text(side)}" for name, side in sides]
        lines += ["", f"**Warning: {markdown_text(comparison.warning)}.**"] if comparison.warning else []
    return "\n".join(lines)


def artifact_key(kind: str, name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{kind}-{name}".lower()).strip("-")


async def publish(kind: str, name: str, markdown: str) -> None:
    """Publish markdown as a Prefect artifact; the same kind and name again is a new version. Needs a Prefect server."""
    # Imported where it is needed: the markdown alone is made without Prefect.
    from prefect.artifacts import acreate_markdown_artifact

    await acreate_markdown_artifact(markdown=markdown, key=artifact_key(kind, name))
