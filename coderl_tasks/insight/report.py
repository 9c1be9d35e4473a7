"""A run, two runs side by side, or a curation (`pool_view.py`) as one HTML page, and a run as markdown for Prefect's
artifacts, which escape raw HTML: plots are images with data URIs. Model output is untrusted: the templates escape
everything, and the page's content security policy forbids scripts and loads."""

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers.diff import DiffLexer
from pygments.lexers.python import PythonLexer

from coderl_tasks.errors import ConfigError
from coderl_tasks.grading.scoring import UNGRADED, Verdict
from coderl_tasks.insight import diagnosis, plots
from coderl_tasks.insight.audit_view import audit_page
from coderl_tasks.insight.drawing import markdown
from coderl_tasks.insight.pool_view import pool_page
from coderl_tasks.insight.problem_view import failed_test, labelled_messages, problems_at_hand, prompt_decoder
from coderl_tasks.insight.record import RunRecord, is_curation, is_run, load_curation, load_run
from coderl_tasks.insight.shown_metrics import SHOWN, in_form
from coderl_tasks.insight.tables import Column, Table, duration, html_table, markdown_text, shorten
from coderl_tasks.insight.token_uses import costs, costs_table, uses, uses_table, visits_in_words
from coderl_tasks.insight.viewer_link import commands, in_markdown, page_link
from coderl_tasks.insight.warning_signs import hints
from coderl_tasks.journal.atomic import make_folder, output_file, scan_parquet, write_bytes, write_parquet
from coderl_tasks.journal.checkpoints import expiring_states
from coderl_tasks.journal.recorded_json import config_changes, shown_setting
from coderl_tasks.paths import POOL_FILE
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA, TRUNCATED
from coderl_tasks.policy.step_metrics import PHASES
from coderl_tasks.untrusted_text import printable

REPORT, AUDIT_REPORT = "report.html", "audit.html"
HALF = "backslashreplace"  # JSON of others may have half a surrogate in a text
# A Python block, also one that is not closed, as of a truncated completion.
_PYTHON = re.compile(r"^```(?:python|py)[^\n]*\n(?P<code>.*?)(?=^```|\Z)", re.DOTALL | re.MULTILINE | re.IGNORECASE)
# Lines as they are, blank ones at either end too: this is the model's text, not a listing.
PYTHON, FORMATTER = PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True)
SIDES = ("A", "B")  # what two runs are called on one page: their names may be the same
TEST_SHOWN, SPANS = 600, 5
SAMPLE_COLUMNS = (
    "problem_id", "prompt_tokens", "completion", "turns", "verdict", "tests_passed", "tests_run", "tests_total",
    "stop_reason", "first_failed", "failed_output", "reason", "reward_error",
)  # fmt: skip
LAST_STEPS, COMPLETION_CHARS = 10, 1200
COMPLETION_COLUMNS = (
    "step", "problem_id", "group_index", "sample_index", "verdict", "reward", "stop_reason", "completion", "turns",
)  # fmt: skip
QUERIES = ("steps", "verdicts", "flips", "hardest", "degenerate_groups", "infra")


def write_report(path: Path, target: Path | None = None) -> Path:
    """Write the report of the run or curation directory `path` to `target` (None: report.html there); its path."""
    page = render_report(path).encode(errors=HALF)
    if target is None:
        write_bytes(path / REPORT, page)  # a link there, in a directory of others, is replaced, not followed
        return path / REPORT
    with output_file(target) as file:
        file.write(page)
    return target


def write_comparison(first: Path, second: Path, target: Path | None = None) -> Path:
    """Write two runs beside each other to `target` (None: a file named after them here). ConfigError for no run."""
    for path in (first, second):
        if not is_run(path):
            raise ConfigError(f"{path} is not a run directory: two runs can be shown beside each other")
    target = target or Path(f"report-{first.resolve().name}-{second.resolve().name}.html")
    page = _render("compare.html.j2", comparison_page(load_run(first), load_run(second)))
    with output_file(target) as file:
        file.write(page.encode(errors=HALF))
    return target


def write_audit(folder: Path, audits: pl.DataFrame, name: str) -> Path:
    """Write what an audit of `name` found (AUDIT_SCHEMA) to audit.parquet and, as a page, audit.html; its path."""
    write_parquet(make_folder(folder) / "audit.parquet", audits)
    page = _render("audit.html.j2", audit_page(folder, audits, name)).encode(errors=HALF)
    write_bytes(folder / AUDIT_REPORT, page)
    return folder / AUDIT_REPORT


def render_report(path: Path) -> str:
    """The HTML page of the run or curation directory `path`; ConfigError if it is neither."""
    if path.is_dir() and is_curation(path):
        return _render("pool.html.j2", pool_page(load_curation(path)))
    if path.is_dir() and is_run(path):
        return _render("run.html.j2", run_page(load_run(path)))
    raise ConfigError(f"{path} is neither a run directory nor a curation directory")


def _render(template: str, page: dict[str, Any]) -> str:
    environment = page_environment("coderl_tasks.insight")
    environment.filters["highlighted"] = highlighted
    environment.filters["diff"] = lambda text: Markup(highlight(text, DiffLexer(), FORMATTER))
    return environment.get_template(template).render(page)


def page_environment(package: str) -> Environment:
    """The jinja templates of `package`, which make a Table a <table> and escape other values."""
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        finalize=lambda value: html_table(value) if isinstance(value, Table) else value,
        undefined=StrictUndefined,  # a value that a template misspells is an error, not an empty place
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=lambda share, digits=1: "–" if share is None else f"{share * 100:.{digits}f}%",
        points=lambda share: "–" if share is None else f"{share * 100:+.1f}",  # a difference of shares, in hundredths
        count=lambda number: "–" if number is None else f"{number:,}",
        gained_lost=lambda changed: Markup('<span class="nowrap">+{:,} <small>/ -{:,}</small></span>').format(
            changed["gained"], changed["lost"]
        ),
    )
    environment.globals["note_on_curves"] = plots.NOTE_ON_CURVES
    return environment


def highlighted(text: str) -> Markup:
    """A completion as HTML: its Python blocks coloured, all of it escaped."""
    parts, end = [Markup()], 0
    for block in _PYTHON.finditer(text):
        start, end_of_code = block.span("code")
        code = highlight(block["code"], PYTHON, FORMATTER)
        # The formatter ends each line, also one that the model did not.
        parts += [escape(text[end:start]), Markup(code if block["code"].endswith("\n") else code.removesuffix("\n"))]
        end = end_of_code
    return Markup().join([*parts, escape(text[end:])])


def run_page(run: RunRecord) -> dict[str, Any]:
    """The variables of the template run.html.j2, None or empty where the run has nothing (yet)."""
    comparison = diagnosis.compare_evals(run.baseline, run.latest)
    weak = diagnosis.weak_splits(comparison.results, str(run.config.get("dataset", ""))) if comparison else {}
    quoted_path = shlex.quote(str(run.path))
    history = plots.history_plots(run) if len(run.metrics) else {}
    # Those of FIRST, then the others (sorting is stable); a row of the page has two figures.
    figures = [history[title] for title in sorted(history, key=lambda title: title not in plots.FIRST)]
    n_at_top = len(history.keys() & plots.FIRST)
    n_at_top += n_at_top % 2
    return {
        "title": run.path.name,
        "run": run,
        "facts": facts(run),
        "checks": diagnosis.checks_table(diagnosis.smoke_checks(run)),
        "hints": hints(run),
        **_comparison_variables(comparison, data_of=run, weak_splits=weak, labels=("before", "after")),
        "weak_splits": weak,
        "history": figures[:n_at_top],
        "more_history": figures[n_at_top:],
        "level_panels": list(plots.flat_panels(run).values()),
        "verdicts": verdict_table(run),
        "tokens_by_use": uses_table(rows) if (rows := uses(run)) else None,  # by what they were sampled for
        "tokens_by_kind": costs_table(costs(run)),  # prompt, completion and training tokens, and their price
        "visits": visits_in_words(run),  # sentences: how much of the pool was sampled, and how often again
        "skipped_groups": skipped_groups(run),  # those of equal rewards, which taught nothing
        "times": phase_times(run.metrics),
        "infra_errors": infra_errors(run),  # completions that could not be graded
        "sandbox_faults": faults_table(run),  # failed requests per sandbox
        "expiring_states": expiring_states(run.path, run.config),  # checkpoints that the service will delete
        "show_command": f"coderl show {quoted_path} PROBLEM",
        "export_command": f"coderl export {quoted_path}",
        "viewer_link": page_link(run.path),
        "commands": commands(run.path, QUERIES, "SELECT step, avg(reward) FROM rollouts GROUP BY step"),
    }


def _comparison_variables(
    comparison: diagnosis.Comparison | None, data_of: RunRecord, weak_splits: Collection[str], labels: Sequence[str]
) -> dict[str, Any]:
    """The variables about two compared evaluations, called `labels`. Texts and tests are of one run's data."""
    examples, why_no_tests = example_problems(data_of, comparison, labels)
    return {
        "comparison": comparison,
        "split_table": diagnosis.comparison_table(comparison, weak_splits) if comparison else None,
        "pass_plot": plots.pass_at_1_plot(comparison.rates, labels) if comparison else None,
        "examples": examples,
        "why_no_tests": why_no_tests,
    }


def comparison_page(first: RunRecord, second: RunRecord) -> dict[str, Any]:
    """The variables of the template compare.html.j2, None or empty where the two runs, A and B, have nothing."""
    runs = (first, second)
    # Led by the letters, as evaluations of two runs may have one name.
    letters = zip(SIDES, runs, strict=True)
    latest = [run.latest and replace(run.latest, name=f"{letter}: {run.latest.name}") for letter, run in letters]
    comparison = diagnosis.compare_evals(*latest)
    facts_of_first, facts_of_second = facts(first), facts(second)
    labels = dict.fromkeys([*facts_of_first, *facts_of_second])  # of both runs, without repetitions
    changes = config_changes(first.config, second.config)
    # By panel whose curves stay level in the run: a text with the panel's heading and the value.
    level_in_first, level_in_second = (plots.flat_panels(run).values() for run in runs)
    return {
        "title": f"{first.path.name} and {second.path.name}",
        "sides": [
            {
                "letter": letter,
                "run": run,
                "verdicts": verdict_table(run),
                "tokens_by_kind": costs_table(rows) if (rows := costs(run)) else None,
                "times": phase_times(run.metrics),
                "hints": hints(run),
            }
            for letter, run in zip(SIDES, runs, strict=True)
        ],
        "facts": [(label, facts_of_first.get(label), facts_of_second.get(label)) for label in labels],
        "changes": [(each.key, _setting(each.key, each.old), _setting(each.key, each.new)) for each in changes],
        "without_evaluation": " and ".join(letter for letter, run in zip(SIDES, runs, strict=True) if not run.latest),
        # Both runs evaluated every compared problem, so the data of either has its statement and tests.
        **_comparison_variables(comparison, data_of=second, weak_splits=(), labels=SIDES),
        "history": plots.history_pairs(runs, SIDES),
        "level_panels": [text for text in level_in_first if text in level_in_second],  # of one value in both runs
        "commands": [
            *(f"coderl query {shlex.quote(str(run.path))} --name steps" for run in runs),
            f"coderl report {' '.join(shlex.quote(str(run.path)) for run in runs)}",
        ],
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
    """What the head of a run's page lists, by label; what the run did not record is left out."""
    known: dict[str, str] = {"model": str(run.config.get("model_name", "–"))}
    known["steps"] = f"{len(run.metrics):,}" + (f" of {run.planned_steps:,}" if run.planned_steps else "")
    if {"batch_size", "group_size"} <= run.config.keys():
        problems = int(run.config["group_size"])
        known["batch"] = f"{problems} problems × {int(run.config['batch_size']) // problems} completions"
        if run.config.get("first_completions"):
            known["batch"] += f", first {run.config['first_completions']}"
        if run.config.get("refill", 1) > 1:
            known["batch"] += f", refill={run.config['refill']:g}"
    if "learning_rate" in run.config:
        known["learning rate"] = f"{run.config['learning_rate']:g}, LoRA rank {run.config.get('lora_rank', '–')}"
    if "time_step_s" in run.metrics.columns:
        known["time in steps"] = duration(float(run.metrics["time_step_s"].sum() or 0))
    metrics = run.path / "metrics.jsonl"
    if metrics.is_file():
        known["last written"] = f"{datetime.fromtimestamp(metrics.stat().st_mtime):%Y-%m-%d %H:%M}"
    return known


def phase_times(metrics: pl.DataFrame) -> list[dict[str, Any]]:
    """A row per phase and one for the whole step: seconds per step (median, slowest), total, and share of the whole."""
    names = {phase: f"time_{phase}_s" for phase in (*PHASES, "save")} | {"whole step": "time_step_s"}
    whole = float(metrics["time_step_s"].sum() or 0) if "time_step_s" in metrics.columns else None
    rows = []
    for label, name in names.items():
        values: Any = metrics[name].drop_nulls() if name in metrics.columns else ()
        if len(values):
            total = float(values.sum())
            row = {"phase": label, "median": float(values.median()), "slowest": float(values.max())}
            rows.append(row | {"total": duration(total), "share": total / whole if whole else None})
    return rows


def verdict_table(run: RunRecord) -> dict[str, Any]:
    """How often each verdict was given in training, in up to SPANS nearly equal `spans` (first and last step): `rows`
    of `verdict`, its count `n`, and its `shares` of the completions in each span, None for a span without."""
    graded = run.rollouts(["step", "verdict"]).filter(pl.col("verdict").is_not_null())
    counts = graded.group_by("step", "verdict").len("n").collect()
    if not len(counts):
        return {"spans": [], "rows": []}
    steps = range(int(counts["step"].min()), int(counts["step"].max()) + 1)  # type: ignore[arg-type]
    spans = [part.tolist() for part in np.array_split(steps, min(SPANS, len(steps)))]  # lengths differ by one at most
    span_of_step = {step: index for index, steps in enumerate(spans) for step in steps}
    span = pl.col("step").replace_strict(span_of_step).alias("span")
    in_spans = counts.group_by(span, "verdict").agg(pl.col("n").sum())
    completions_of_span = dict(in_spans.group_by("span").agg(pl.col("n").sum()).iter_rows())
    count = {(verdict, index): n for index, verdict, n in in_spans.iter_rows()}
    by_verdict = in_spans.group_by("verdict").agg(pl.col("n").sum()).sort("n", "verdict", descending=[True, False])
    totals = [completions_of_span.get(index) for index in range(len(spans))]
    rows = [
        {
            "verdict": verdict,
            "n": n,
            "shares": [
                None if total is None else count.get((verdict, index), 0) / total for index, total in enumerate(totals)
            ],
        }
        for verdict, n in by_verdict.iter_rows()
    ]
    return {"spans": [(steps[0], steps[-1]) for steps in spans], "rows": rows}


def example_problems(
    run: RunRecord, comparison: diagnosis.Comparison | None, sides: Sequence[str]
) -> tuple[list[dict[str, Any]], str | None]:
    """A few problems that the later policy gained, lost, or still fails, and why their tests could not be read, or
    None. `run` names the data and the model. An example has its `kind`, its `number` among those shown and how many
    there are `of` the kind, `problem_id`, `split`, Pass@1 `before` and `after`, the `prompt` (None without a
    tokenizer), and `sides`: for each evaluation its label and an answer."""
    if comparison is None:
        return [], None
    kinds = (  # with the largest number of examples: what was lost tells most
        ("gained", (pl.col("before") < pl.col("after")), 4),
        ("lost", (pl.col("before") > pl.col("after")), 10),
        ("still fails", (pl.col("before") == 0) & (pl.col("after") == 0), 2),
    )
    parts = []
    for kind, condition, limit in kinds:
        pairs = comparison.pairs.filter(condition)
        # Rows are sorted by split: of many, the examples are spread over them, as the first ones are of one split.
        number = min(limit, len(pairs))
        chosen = pairs[[place * len(pairs) // number for place in range(number)]].with_row_index("number", 1)
        parts.append(chosen.with_columns(kind=pl.lit(kind), of=pl.lit(len(pairs))))
    shown = pl.concat(parts)
    ids = shown["problem_id"].to_list()
    problems, missing = problems_at_hand(run.config, ids)
    rollouts = []
    for record in (comparison.before, comparison.after):
        assert record.rollouts is not None  # else there is no comparison
        rows = scan_parquet(record.rollouts, ROLLOUT_SCHEMA).filter(pl.col("problem_id").is_in(ids))
        # Of several completions per problem the first is shown.
        firsts = rows.sort("sample_index").select(SAMPLE_COLUMNS).unique("problem_id", keep="first")
        rollouts.append({row["problem_id"]: row for row in firsts.collect().iter_rows(named=True)})
    decode, examples = prompt_decoder(str(run.config.get("model_name", ""))), []
    for example in shown.iter_rows(named=True):
        pair = [by_id[example["problem_id"]] for by_id in rollouts]
        tokens = pair[1]["prompt_tokens"]  # the later evaluation's, as `run` names its model, which decodes them
        prompt = shorten(decode(tokens)) if decode is not None and tokens else None
        answers = []
        for row in pair:
            said = [(label, shorten(text)) for label, text in labelled_messages(row)]
            failed = failed_test(row, problems.get(example["problem_id"])) or {}
            texts = {key: shorten(text, TEST_SHOWN) if isinstance(text, str) else text for key, text in failed.items()}
            answers.append(row | {"said": said, "truncated": row["stop_reason"] == TRUNCATED, "failed": texts or None})
        examples.append(example | {"prompt": prompt, "sides": list(zip(sides, answers, strict=True))})
    return examples, missing


def skipped_groups(run: RunRecord) -> dict[str, Any]:
    """How many groups there are in `total` and were `skipped`; counts of the latter by reason and of five problems."""
    skipped = run.groups.filter(~pl.col("has_signal"))
    reasons = skipped.group_by("why_skipped").len("n").sort("n", "why_skipped", descending=[True, False])
    problems = skipped.group_by("problem_id").len("n").sort("n", "problem_id", descending=[True, False]).head(5)
    counts = {"total": len(run.groups), "skipped": len(skipped)}
    return counts | {"reasons": reasons.rows(), "problems": problems.rows()}


def infra_errors(run: RunRecord) -> dict[str, Any]:
    """How many of `total` completions in training were not graded (`n`), the `steps` with most, and the `evals`."""
    n = pl.col("verdict").is_in(UNGRADED).sum()
    by_step = run.rollouts(["step", "verdict"]).group_by("step").agg(n=n, total=pl.len()).collect()
    most = by_step.filter(pl.col("n") > 0).sort("n", "step", descending=[True, False]).head(8)
    in_evals = {name: int(record.summary.get("infra_errors") or 0) for name, record in run.evals.items()}
    return {
        "n": int(by_step["n"].sum()),
        "total": int(by_step["total"].sum()),
        "steps": most.select("step", "n").rows(),
        "evals": {name: n for name, n in in_evals.items() if n},
    }


def faults_table(run: RunRecord) -> Table[tuple[str, int, int]] | None:
    """The sandboxes at which requests came to nothing, how many, and in how many steps; None without any."""
    prefix = "sandbox_faults/"
    faults = [run.metrics[name].fill_null(0) for name in run.metrics.columns if name.startswith(prefix)]
    rows = [(each.name.removeprefix(prefix), int(each.sum()), int((each > 0).sum())) for each in faults]
    if not rows:
        return None
    columns: tuple[Column[tuple[str, int, int]], ...] = (
        Column("faults of sandbox", lambda row: row[0], style="name"),
        Column("requests", lambda row: row[1], ",", "num"),
        Column("steps", lambda row: row[2], ",", "num"),
    )
    return Table(columns, sorted(rows, key=lambda row: (-row[1], row[0])), "dense")


def step_history_markdown(run: RunRecord) -> str:
    planned = f" of {run.planned_steps}" if run.planned_steps else ""
    title = f"# Step history: {markdown_text(run.path.name)}"
    steps = f"{len(run.metrics)}{planned} steps, in `{run.path}`."
    if not len(run.metrics):
        return markdown([title, steps, "No step has been committed yet."])
    last = run.metrics.tail(LAST_STEPS)
    columns: list[Column[dict[str, Any]]] = [Column("step", lambda row: row["step"])]
    for name, shown in SHOWN.items():
        if shown.column and name in last.columns:  # not every metric is shown as a column, and older runs lack some
            heading, form = shown.column
            columns.append(Column(heading, lambda row, name=name, form=form: in_form(row[name], form)))  # type: ignore[misc]
    return markdown(
        [
            *(title, steps, plots.history_plot(run), plots.NOTE_ON_CURVES),
            *("## Checks", diagnosis.checks_table(diagnosis.smoke_checks(run))),
            "\n".join(f"- {markdown_text(hint)}" for hint in hints(run)),
            *("## Tokens by use", uses_table(uses(run)), costs_table(costs(run)), faults_table(run)),
            " ".join(visits_in_words(run)),
            f"## The last {len(last)} steps",
            Table(columns, last.reverse().rows(named=True)),  # the newest first
            *_sample_parts(run),
        ]
    )


def _sample_parts(run: RunRecord) -> Iterator[str]:
    """Paragraphs with a right and a wrong completion of the last step, of one halfway and of the first."""
    files = run.scored_files
    if not files:
        return
    yield "## Samples"
    yield f"All of them, with the tests that they failed: {in_markdown(run.path)}."
    for place in dict.fromkeys((len(files) - 1, (len(files) - 1) // 2, 0)):
        # Three files at most are read, however long the run. Sorted as the named query `rollout_samples` sorts them.
        rows = scan_parquet(files[place], ROLLOUT_SCHEMA).select(COMPLETION_COLUMNS)
        graded = rows.filter(pl.col("reward").is_not_null()).sort("sample_index", "group_index")
        passed = pl.col("verdict") == Verdict.PASSED
        chosen = pl.concat([graded.filter(kind).head(1) for kind in (passed, ~passed)])
        for row in chosen.collect().iter_rows(named=True):
            facts = f"{row['verdict']}, reward {row['reward']:.2f}, {row['stop_reason']}"
            yield f"Step {row['step']}, {markdown_text(row['problem_id'])}: {markdown_text(facts)}"
            address = ("step", *(str(row[column]) for column in ("step", "group_index", "sample_index")))
            if link := page_link(run.path, *address):
                yield f"[Why this reward]({link})"
            for label, words in labelled_messages(row):
                yield f"{label}:" if label else ""
                # Indented: no fence in the completion, which is the model's, can end this block.
                lines = shorten(words, COMPLETION_CHARS).splitlines() or [""]
                yield "\n".join(f"    {printable(line)}" for line in lines)
