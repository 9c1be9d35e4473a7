"""Markdown for Prefect's artifacts: step history, pool, evaluation. Pure functions, and thin ones that publish.

Prefect renders markdown images with data URIs and escapes raw HTML, so plots are images. A constant key makes a
history of versions in the UI: one key a kind of artifact and run.
"""

import re
from collections.abc import Sequence
from typing import Any

import polars as pl

from coderl_tasks.insight.comparison import compare_evals, weak_splits
from coderl_tasks.insight.diagnosis import hints, smoke_checks
from coderl_tasks.insight.figure import Plot
from coderl_tasks.insight.funnel import Example, examples, funnel, suspects
from coderl_tasks.insight.history_plot import history_plot
from coderl_tasks.insight.pass_at_1_plot import pass_at_1_plot
from coderl_tasks.insight.pool_plot import difficulty_plot, funnel_plot, pass_rate_plot
from coderl_tasks.insight.pool_tables import FEW_SAMPLES, few_at_half, make_up, reference_counts, spending
from coderl_tasks.insight.record import DIFFICULTIES, CurationRecord, EvalRecord, RunRecord

LAST_STEPS = 10
EXCERPT_CHARS = 160
STEP_COLUMNS = {
    "step": ("step", "d"),
    "mean_reward": ("reward", ".3f"),
    "mean_correct": ("correct", ".1%"),
    "format_rate": ("format", ".1%"),
    "truncated_rate": ("truncated", ".1%"),
    "groups_skipped": ("skipped", "d"),
    "n_datums": ("datums", "d"),
    "kl_sample_train": ("kl", ".1e"),
    "infra_errors": ("infra errors", "d"),
    "samples_skipped": ("samples skipped", "d"),
    "duplicate_rate": ("duplicates", ".1%"),
    "time_step_s": ("seconds", ".1f"),
}


def step_history_markdown(run: RunRecord, last: int = LAST_STEPS) -> str:
    """A run's history: where it stands, the plots as one SVG image, checks, hints, and the last steps as a table."""
    planned = run.config.get("max_steps")
    of = f" of {planned}" if isinstance(planned, int) and planned > 0 else ""
    lines = [f"# Step history: {_cell(run.path.name)}", "", f"{len(run.metrics)}{of} steps, in `{run.path}`.", ""]
    if not len(run.metrics):
        return "\n".join([*lines, "No step has been committed yet."])
    plot = history_plot(run)
    lines += [f"![{plot.alt}]({plot.data_uri()})", "", "## Checks", ""]
    checks = [[check.word, check.name, check.value, check.threshold, check.explanation] for check in smoke_checks(run)]
    lines += [*markdown_table(["", "check", "value", "wanted", "why"], checks), ""]
    lines += [f"- {_cell(hint)}" for hint in hints(run)]
    lines += ["", f"## The last {min(last, len(run.metrics))} steps", "", *_step_table(run.metrics.tail(last))]
    return "\n".join(lines)


def pool_markdown(curation: CurationRecord, band: tuple[float, float] | None = None) -> str:
    """A curation: funnel, pass rates, what sampling cost, the pool's make-up, suspects, and examples of each drop."""
    pool, profile = curation.pool, curation.profile
    rows = funnel(curation)
    lines = [f"# Pool: {_cell(curation.path.name)}", ""]
    lines += [f"{len(pool)} problems kept, {len(curation.dropped)} dropped, {rows[0].left} read.", ""]
    lines += _image(funnel_plot(rows))
    reasons = [[row.stage, reason.reason, reason.dropped] for row in rows for reason in row.reasons]
    if reasons:
        lines += [*markdown_table(["stage", "reason", "problems"], reasons), ""]
    if len(profile):
        lines += ["## Pass rates", "", *_image(pass_rate_plot(profile, band or curation.band))]
        lines += [text, ""] if (text := few_at_half(profile)) else []
        heads = ["split", "problems", "samples", "fixed 16", "share", "tokens"]
        spent = [[s.split, s.problems, s.samples, s.fixed, f"{s.share:.0%}", s.tokens] for s in spending(profile)]
        lines += ["## Samples spent", "", *markdown_table(heads, spent), ""]
    if len(pool):
        counts = [
            [row.split, *(f"{n} ({few})" if few else n for n, few in row.labels), row.problems] for row in make_up(pool)
        ]
        lines += ["## The pool", "", *_image(difficulty_plot(pool))]
        lines += [*markdown_table(["split", *DIFFICULTIES, "all"], counts), ""]
        lines += [f"In brackets: labels from {FEW_SAMPLES} samples or fewer.", ""] if sum(make_up(pool)[-1].few) else []
    if len(curation.solutions):
        lines += ["## Reference solutions", ""]
        lines += [*markdown_table(["status", "problems"], reference_counts(curation.solutions)), ""]
    suspected = suspects(curation)
    if len(suspected):
        lines += [
            f"## Suspects of several right answers: {len(suspected)}",
            "",
            *_example_lines(examples(suspected)),
            "",
        ]
    for row in rows:
        for reason in row.reasons:
            lines += [
                f"## Dropped at {_cell(row.stage)}: {_cell(reason.reason)}",
                "",
                *_example_lines(reason.examples),
                "",
            ]
    return "\n".join(lines)


def evaluation_markdown(record: EvalRecord, before: EvalRecord | None = None, *, dataset: str = "") -> str:
    """An evaluation on `dataset`: Pass@1 by split with 95% intervals and, against `before`, the paired difference."""
    summary = record.summary
    low, high = record.interval
    lines = [f"# Evaluation: {_cell(record.name)}", ""]
    lines += [f"**Pass@1 {record.pass_at_1:.1%}** [{low:.1%}, {high:.1%}] on {summary['n']} problems", ""]
    shares = {"all": summary, **summary.get("by_split", {})}
    rows = [
        [split, share["n"], f"{share['pass_at_1']:.1%}", f"{share['ci_low']:.1%} to {share['ci_high']:.1%}"]
        for split, share in shares.items()
    ]
    lines += [*markdown_table(["split", "problems", "Pass@1", "95% interval"], rows), ""]
    lines += [f"- {split}: {why}" for split, why in weak_splits(shares, dataset).items()]
    facts = {"format ok": "format_rate", "truncated": "truncated_rate"}
    lines += [f"- {label} {summary[key]:.1%}" for label, key in facts.items() if summary.get(key) is not None]
    lines += [f"- infra errors {summary.get('infra_errors', 0)}", f"- policy `{summary.get('policy', '')}`", ""]
    comparison = compare_evals(before, record)
    if before is not None and comparison is not None:
        differences = [
            [
                split,
                found.n,
                f"{found.difference * 100:+.1f}",
                f"{found.ci_low * 100:+.1f} to {found.ci_high * 100:+.1f}",
            ]
            for split, found in {"all": comparison.overall, **comparison.by_split}.items()
        ]
        plot = pass_at_1_plot(before, record)
        names = (before.name, record.name)
        lines += [f"## Against {_cell(before.name)}", "", f"![{plot.alt}]({plot.data_uri()})", ""]
        lines += markdown_table(["split", "shared problems", "points", "paired 95% interval"], differences)
        lines += ["", f"{comparison.gained} problems gained, {comparison.lost} lost.", ""]
        lines += [f"- {_cell(name)}: {_cell(side)}" for name, side in zip(names, comparison.sides, strict=True)]
        lines += ["", f"**Warning: {_cell(comparison.warning)}.**"] if comparison.warning else []
    return "\n".join(lines)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The lines of a markdown table; cells are escaped."""
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return lines + ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]


def artifact_key(kind: str, name: str) -> str:
    """Prefect's key of an artifact: lower case letters, digits and dashes only."""
    return re.sub(r"[^a-z0-9]+", "-", f"{kind}-{name}".lower()).strip("-")


async def publish(kind: str, name: str, markdown: str, description: str | None = None) -> None:
    """Publish markdown as a Prefect artifact; the same kind and name again is a new version. Needs a Prefect server."""
    from prefect.artifacts import acreate_markdown_artifact

    await acreate_markdown_artifact(markdown=markdown, key=artifact_key(kind, name), description=description)


def _image(plot: Plot) -> list[str]:
    return [f"![{plot.alt}]({plot.data_uri()})", ""]


def _example_lines(shown: Sequence[Example]) -> list[str]:
    lines = []
    for example in shown:
        beginning = " ".join(example.statement.split())[:EXCERPT_CHARS]
        lines.append(
            f"- **{_cell(example.name)}** ({_cell(example.split)})"
            + (f" {_cell(example.detail)}" if example.detail else "")
            + (f": {_cell(beginning)}" if beginning else "")
        )
    return lines


def _step_table(metrics: pl.DataFrame) -> list[str]:
    known = {key: form for key, form in STEP_COLUMNS.items() if key in metrics.columns}
    rows = [
        ["–" if row[key] is None else format(row[key], style) for key, (_, style) in known.items()]
        for row in metrics.reverse().iter_rows(named=True)
    ]
    return markdown_table([label for label, _ in known.values()], rows)


def _cell(value: Any) -> str:
    """Text that stays text in a markdown cell."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", str(value).replace("\n", " "))
