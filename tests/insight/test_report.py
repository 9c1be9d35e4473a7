"""The HTML report, plots and artifacts."""

import base64
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from markupsafe import escape

from coderl_tasks.cli import main
from coderl_tasks.curation.pool import build_pool, write_pool
from coderl_tasks.errors import ConfigError
from coderl_tasks.insight.diagnosis import compare_evals, evaluation_markdown, weak_splits
from coderl_tasks.insight.plots import (
    flat_panels,
    history_pairs,
    history_panels,
    history_plot,
    history_plots,
    pass_at_1_plot,
)
from coderl_tasks.insight.pool_view import (
    difficulty_plot,
    expected_counts,
    funnel,
    funnel_plot,
    make_up,
    pass_rate_plot,
    pool_markdown,
    samples_plot,
    several_answer_suspects,
    spending,
)
from coderl_tasks.insight.query import query
from coderl_tasks.insight.record import MAX_POINTS, load_curation, load_run, thin
from coderl_tasks.insight.report import (
    _render,
    comparison_page,
    faults_table,
    highlighted,
    render_report,
    run_page,
    step_history_markdown,
    verdict_table,
    write_comparison,
    write_report,
)
from coderl_tasks.insight.shown_metrics import CORRECT
from coderl_tasks.insight.tables import shorten
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.problems.loading import LoadResult
from coderl_tasks.problems.problem import Problem, Test, dropped_frame, problems_frame
from coderl_tasks.problems.profile_columns import POSTERIOR_BINS, PROFILE_SCHEMA
from coderl_tasks.settings import HUB_DATASET
from coderl_tasks.stats import mcnemar

HOSTILE = "<script>document.title='owned'</script>"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Checks that elements nest, and collects elements, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def run_html(run_dir: Path) -> str:
    return render_report(run_dir)


@pytest.fixture(scope="module")
def pool_html(pool_dir: Path) -> str:
    return render_report(pool_dir)


def test_run_report_says_what_matters(run_html: str, run_dir: Path) -> None:
    text = " ".join(Page(run_html).text.split())
    final = load_run(run_dir).final
    assert final is not None
    assert f"{final.pass_at_1:.1%}" in text
    for words in (
        "paired difference",
        "weak evidence",
        "Verdicts over time",
        "still fails",
        "groups",
        "infra",
        "Prompt",
    ):
        assert words in text
    assert "Read n, then n integers." in text
    assert f"coderl query {run_dir}" in text


def test_a_report_names_the_lost_problems_their_number_and_the_p_value(run_dir: Path) -> None:
    """Of a run that got worse: its evaluations are exchanged."""
    run = load_run(run_dir)
    assert run.baseline is not None and run.final is not None
    sides = {"baseline": replace(run.final, name="baseline", step=-1)}
    run = replace(run, evals=sides | {"final": replace(run.baseline, name="final", step=run.final.step)})
    text = " ".join(Page(_render("run.html.j2", run_page(run))).text.split())
    comparison = compare_evals(run.baseline, run.final)
    assert comparison is not None
    changed, pairs = comparison.overall.changed, comparison.pairs
    p = mcnemar(changed["gained"], changed["lost"])
    assert f"problems gained / lost, p = {p:.2g} (McNemar, exact)" in text
    lost = pairs.filter(pl.col("before") > pl.col("after"))["problem_id"].to_list()
    shown = re.findall(r" lost (\d+) of (\d+): (\S+)", text)
    assert len(lost) == changed["lost"] > 2 and len(shown) == min(10, len(lost))
    assert [(int(number), int(of)) for number, of, _ in shown] == [(n + 1, len(lost)) for n in range(len(shown))]
    assert {name for *_, name in shown} <= {*lost}
    counts = f"{changed['gained']} problems gained, {changed['lost']} lost, p = {p:.2g} (McNemar, exact)."
    assert run.final is not None and counts in evaluation_markdown(run.final, run.baseline)


@pytest.mark.parametrize(
    ("dataset", "weak"),
    [(HUB_DATASET, True), ("/data/DeepCoder-Preview-Dataset/", True), ("data/mini", False), ("", False)],
)
def test_the_public_samples_of_codeforces_are_those_of_one_data_set(dataset: str, weak: bool) -> None:
    assert (list(weak_splits(["codeforces", "lcbv5"], dataset)) == ["codeforces"]) is weak


def test_posteriors_are_shown_as_expected_numbers(pool_html: str, pool_dir: Path) -> None:
    curation = load_curation(pool_dir)
    counts = expected_counts(curation.profile)
    assert len(counts) == POSTERIOR_BINS and counts.sum() == pytest.approx(len(curation.profile), abs=0.1)
    hard = curation.profile["hard_probability"].sum()
    assert counts[:7].sum() == pytest.approx(hard, abs=0.1), "seven of twenty parts lie below 0.35"
    whole = make_up(curation.pool)[-1]
    wrong = [1 - part for part in curation.pool["difficulty_probability"]]
    assert sum(whole.wrong_labels) == pytest.approx(sum(wrong), abs=2) and sum(whole.wrong_labels) > 0
    for page in (Page(pool_html).text, pool_markdown(curation)):
        assert "expected to be wrong" in page and "number of problems expected at each pass rate" in page
        assert "samples or fewer" not in page
    rates = query(pool_dir, name="pass_rates")
    assert rates["expected_hard"].sum() == pytest.approx(hard, abs=0.5)


@pytest.mark.parametrize("n_steps", [1, 3, 7, 8])
def test_verdicts_are_counted_in_the_spans_that_are_shown(run_dir: Path, n_steps: int) -> None:
    """Also where the steps cannot be divided into five equal spans."""
    run = load_run(run_dir)
    run = replace(run, scored_files=run.scored_files[:n_steps])
    table, graded = verdict_table(run), run.rollouts(["step", "verdict"]).drop_nulls().collect()
    assert [step for first, last in table["spans"] for step in range(first, last + 1)] == [*range(n_steps)]
    assert len(table["spans"]) == min(5, n_steps) and len(table["rows"]) > 1
    for row in table["rows"]:
        for (first, last), share in zip(table["spans"], row["shares"], strict=True):
            in_span = graded.filter(pl.col("step").is_between(first, last))
            assert share == pytest.approx(in_span.filter(verdict=row["verdict"]).height / in_span.height)


def test_untrusted_text_stays_text(run_html: str) -> None:
    page = Page(run_html)
    assert HOSTILE in page.text
    assert "<b>not bold</b>" in page.text
    assert not {"script", "img", "b", "iframe", "object", "link"} & page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_page_loads_nothing(run_html: str, pool_html: str) -> None:
    for html in (run_html, pool_html):
        assert "default-src 'none'" in html
        sources = [value for name, value in Page(html).attributes if name in ("src", "href", "xlink:href", "data")]
        assert all(value == "." or (value is not None and value.startswith("#")) for value in sources)  # "." is a link
        assert not re.findall(r"url\((?!#)", html)


def test_report_is_written_into_the_directory(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path / "new", {"model_name": "no/such-model"}).close()
    report = write_report(tmp_path / "new")
    assert report == tmp_path / "new" / "report.html"
    assert "No step has been committed yet" in report.read_text()


def test_report_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a run directory nor a curation"):
        render_report(tmp_path)


def test_two_runs_are_shown_beside_each_other(
    runs_dir: Path,
    pool_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = (runs_dir / f"run-{seed}" for seed in range(2))
    out = tmp_path / "both.html"
    assert write_comparison(first, second, out) == out
    html = out.read_text()
    page = Page(html)
    text = " ".join(page.text.split())
    one, other = load_run(first).latest, load_run(second).latest
    assert one is not None and other is not None
    assert f"A {one.pass_at_1:.1%}, B {other.pass_at_1:.1%}" in text
    assert '<td>seed</td><td class="wrap"><code>0</code></td><td class="wrap"><code>1</code></td>' in html
    for words in ("A: Mean reward", "B: Mean reward", "B less A, paired", "Answers of A and of B"):
        assert words in text
    assert "script" not in page.tags
    with pytest.raises(ConfigError, match="demo is not a run directory"):
        write_comparison(first, pool_dir)
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(first), str(second)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/report-run-0-run-1.html\n"


def test_two_runs_that_have_no_evaluations_say_so_and_settings_are_short(runs_dir: Path) -> None:
    first, second = (load_run(runs_dir / f"run-{seed}") for seed in range(2))
    other = {"pool": "/a/long/way/mine/pool.parquet", "pool_sha256": "0123456789abcdef", "test_share": 0.2}
    page = comparison_page(replace(first, evals={}), replace(second, config=second.config | other))
    html = " ".join(Page(_render("compare.html.j2", page)).text.split())
    assert "No Pass@1 to compare: A has no evaluation after training." in html
    changes = {key: sides for key, *sides in page["changes"]}
    assert changes["pool"] == ["demo", "mine"] and changes["pool_sha256"] == ["not set", "0123456789ab"]
    assert changes["test_share"] == ["not set", "0.2"]


def test_plots_that_say_nothing_are_named_and_not_drawn(run_dir: Path, tmp_path: Path) -> None:
    run = load_run(run_dir)
    level = {"time_limit_rate": 0.0, "truncated_rate": 0.25, "format_rate": 1.0, "groups_skipped": 0, "groups_total": 8}
    known = run.metrics.with_columns(*(pl.lit(value).alias(name) for name, value in level.items()))
    run = replace(run, metrics=known.with_columns(ratio_mean=1.0 + 1e-7 * pl.col("step"), signal_expected=pl.lit(None)))
    run = replace(run, metrics=run.metrics.with_columns(kl_sample_train=5e-9 * pl.col("step")))
    flat, drawn = flat_panels(run), history_plots(run)
    assert flat["Programs that run out of time"] == "Out of time (0%)"
    assert "KL, sampler to trainer (0)" in flat.values() and "Groups with a signal (found 100%)" in flat.values()
    assert flat["Format and truncation"] == "Format (format ok 100%, truncated 25%)"
    assert {"Importance ratio", "Groups with a signal"} <= flat.keys() and "Mean reward" not in flat
    assert drawn and not flat.keys() & drawn.keys() and {*flat, *drawn} == history_panels(run.metrics).keys()
    changed = replace(run, metrics=known.with_columns(time_limit_rate=pl.col("step") / 100))
    assert "Programs that run out of time" not in flat_panels(changed)
    page = run_page(run)
    assert "Out of time (0%)" in page["level_panels"] and len(page["history"]) + len(page["more_history"]) == len(drawn)
    assert len(page["history"]) % 2 == 0 and page["history"], "two in each row"
    assert not flat_panels(replace(run, metrics=run.metrics.head(1))), "of one step nothing is level"


def test_curves_have_the_evaluations_of_the_run_alone(run_dir: Path, tmp_path: Path) -> None:
    """`coderl evaluate` records its settings beside its results."""
    run = replace(load_run(run_dir), path=tmp_path)
    assert history_plots(run)[CORRECT].svg().count('"whisker"') == len(run.evals) > 2
    for name in ("step-000009", "final"):
        (tmp_path / "evals" / name).mkdir(parents=True)
        (tmp_path / "evals" / name / "settings.json").write_text("{}")
    assert history_plots(replace(run))[CORRECT].svg().count('"whisker"') == len(run.evals) - 2


def test_axes_name_their_numbers_without_an_offset(run_dir: Path) -> None:
    run = load_run(run_dir)
    near_one = run.metrics.with_columns(ratio_mean=1.001 + 1e-3 * pl.col("step") / len(run.metrics))
    plot = history_plots(replace(run, metrics=near_one))["Importance ratio"]
    texts = re.findall(r">([^<>\n]+)</text>", plot.svg())
    assert "1.0014" in texts and not [text for text in texts if "+" in text]


def test_answers_have_the_test_that_failed_first(run_html: str, run_dir: Path, tmp_path: Path) -> None:
    """The data set of the evaluations is not on this machine, and then it is."""
    text = " ".join(Page(run_html).text.split())
    assert "Inputs and expected outputs are not shown: agentica-org/DeepCoder" in text
    run = load_run(run_dir)
    comparison = compare_evals(run.baseline, run.final)
    assert comparison is not None
    named = comparison.pairs.select("problem_id", "split").rows()
    tests = (Test(f"4 {HOSTILE}\n", "5\n"),) * 12
    known = [Problem(name, split, "s", "", "stdin", "", tests, 12, 12, None, (), 0) for name, split in named]
    problems_frame(known).write_parquet(tmp_path / "tests.parquet")
    page = run_page(replace(run, config=run.config | {"evaluation_dataset": str(tmp_path / "tests.parquet")}))
    assert page["why_no_tests"] is None
    failed = [side["failed"] for sample in page["examples"] for _, side in sample["sides"] if side["failed"]]
    wrong = [test for test in failed if test["difference"]]
    assert wrong and wrong[0]["difference"] == "line 1, token 1: expected 5, got 3"
    assert all(test["input"] == f"4 {HOSTILE}\n" and test["expected"] == "5\n" for test in failed)
    html = _render("run.html.j2", page)
    assert f"4 {HOSTILE}" in Page(html).text and "script" not in Page(html).tags


def test_samples_are_shown_turn_by_turn(run_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run_dir, tmp_path / "run")
    turn = {"environment_text": "", "environment_tokens": [], "kept": 0, "is_split": False, "n_tokens": 1}
    first = turn | {"text": f"a call {HOSTILE}", "stop_reason": "stop", "check": "called"}
    second = first | {"environment_text": f"Output: {HOSTILE}", "text": "unseen text", "check": None}
    for file in (*copy.glob("evals/*/rollouts.parquet"), *copy.glob("steps/*/scored.parquet")):
        rows = pl.read_parquet(file)
        turns = pl.Series("turns", [[first, second]] * rows.height, dtype=ROLLOUT_SCHEMA["turns"])
        rows.with_columns(turns).write_parquet(file)
    html = render_report(copy)
    text = " ".join(Page(html).text.split())
    assert f"answer 1a call {HOSTILE} replyOutput: {HOSTILE} answer 2" in text and "unseen text" not in text
    assert "script" not in Page(html).tags
    samples = step_history_markdown(load_run(copy)).split("## Samples")[1]
    assert f"answer 1:\n\n    a call {HOSTILE}\n\nreply:\n\n    Output: {HOSTILE}\n\nanswer 2:\n\n    " in samples


def test_values_of_two_runs_are_over_one_range(runs_dir: Path) -> None:
    runs = [load_run(runs_dir / f"run-{seed}") for seed in range(2)]
    pairs = history_pairs(runs, "AB")
    assert len(pairs) > 5
    for plot in pairs:
        sides = plot.svg().split("<g transform=")[1:]
        at_ticks = [re.findall(r'class="tick end"[^>]* y="([^"]+)">([^<]+)<', side) for side in sides]
        assert at_ticks[0] == at_ticks[1] and len(at_ticks[0]) > 1, plot.alt


@pytest.mark.parametrize("end", ["\n```\nDone.", "", "\n"])
def test_code_is_coloured_and_stays_what_it_was(end: str) -> None:
    text = f"So & so:\n```python\n\nif x < 1:\n    print('{HOSTILE}')  # </pre>{end}"
    page = Page(f"<pre>{highlighted(text)}</pre>")
    assert page.text == text
    assert ("class", "k") in page.attributes and page.tags == {"pre", "span"}


def test_only_python_is_coloured() -> None:
    assert highlighted("```c++\nif (a < b)\n```") == "```c++\nif (a &lt; b)\n```"


def test_curation_report_counts_every_problem(pool_html: str) -> None:
    text = " ".join(Page(pool_html).text.split())
    assert "128 of 240" in text
    assert "own_solution_fails" in text and "too_hard" in text
    for words in ("Samples spent", "Reference solutions", "no_solution", "may have several right answers"):
        assert words in text


def test_curation_report_keeps_untrusted_text_as_text(pool_html: str, pool_dir: Path) -> None:
    page = Page(pool_html)
    assert HOSTILE in page.text and "<script>alert(1)</script>" in page.text
    assert not {"script", "img", "iframe", "object", "link"} & page.tags
    assert HOSTILE not in pool_markdown(load_curation(pool_dir))


def test_funnel_ends_at_the_pool_and_shows_ten_of_each_reason(pool_dir: Path) -> None:
    curation = load_curation(pool_dir)
    rows = funnel(curation)
    assert [row.stage for row in rows] == ["read", "parse", "sanity", "dedup", "solution", "band"]
    assert [(row.dropped, row.left) for row in rows] == [(0, 240), (11, 229), (10, 219), (3, 216), (9, 207), (79, 128)]
    assert len(curation.pool) == 128
    shown = [(reason.reason, reason.dropped, len(reason.examples)) for row in rows for reason in row.reasons]
    assert shown == [
        ("malformed_json", 11, 10),
        ("too_few_tests", 10, 10),
        ("same_identity", 3, 3),
        ("own_solution_fails", 9, 9),
        ("too_hard", 50, 10),
        ("too_easy", 29, 10),
    ]
    malformed = rows[1].reasons[0].examples[0]
    assert malformed.name.startswith("row ") and malformed.statement == ""


def test_spending_adds_up(pool_dir: Path) -> None:
    profile = load_curation(pool_dir).profile
    *splits, everything = spending(profile)
    assert everything.split == "all" and everything.samples == profile["n_samples"].sum()
    assert sum(row.samples for row in splits) == everything.samples
    assert everything.problems == len(profile) and everything.share == everything.samples / (16 * len(profile))
    priced = spending(profile.with_columns(cost=pl.lit(0.5), completion_tokens_spent=pl.lit(100)))
    assert priced[-1].cost == 0.5 * len(profile) and priced[-1].tokens == 100 * len(profile)
    assert spending(profile.with_columns(cost=pl.lit(None, pl.Float64)))[-1].cost is None


def test_suspects_name_those_in_the_pool(pool_dir: Path) -> None:
    curation = load_curation(pool_dir)
    suspected = several_answer_suspects(curation)
    assert len(suspected) == curation.solutions["multi_answer_suspect"].sum() > 10
    assert 0 < suspected["in_pool"].sum() < len(suspected)
    assert suspected.filter("in_pool")["problem_id"].is_in(curation.pool["problem_id"].to_list()).all()


def test_an_empty_curation_has_a_report(tmp_path: Path) -> None:
    nothing = LoadResult([], dropped_frame([]), 0)
    pool = build_pool(nothing, pl.DataFrame(schema=PROFILE_SCHEMA))
    write_pool(tmp_path, pool, {"model_name": "data/nano"})
    text = Page(render_report(tmp_path)).text
    assert "The pool is empty" in text and "No problem was profiled" in text
    assert "--name funnel" in text and "--name samples" not in text and "--name pass_rates" not in text
    assert "0 problems kept" in pool_markdown(load_curation(tmp_path))


def test_long_answers_keep_their_ends() -> None:
    short = shorten("a" * 5000 + "b" * 5000, limit=300)
    assert short.startswith("a" * 100) and short.endswith("b" * 200) and "9,700 characters left out" in short


def test_figures_are_small_valid_and_named(run_dir: Path, pool_dir: Path) -> None:
    run, curation = load_run(run_dir), load_curation(pool_dir)
    comparison = compare_evals(run.baseline, run.final)
    assert comparison is not None
    for plot in (
        history_plot(run),
        pass_at_1_plot(comparison.rates),
        pass_rate_plot(curation.profile, (0.1, 0.9)),
        difficulty_plot(curation.pool),
        funnel_plot(funnel(curation)),
        samples_plot(curation.profile),
    ):
        svg, inline = plot.svg(), plot.__html__()
        assert Page(svg).tags >= {"svg", "style", "text"} and "--ink: " in svg and len(svg) < 100_000
        assert not re.findall(r" (?:style|id|on\w+)=|url\(|href", svg)
        assert "<style" not in inline and inline.removeprefix("<svg").partition(">")[2] in svg
        assert plot.alt.endswith(".") and escape(plot.alt) in inline


def test_the_same_data_draws_the_same_bytes(run_dir: Path) -> None:
    assert history_plot(load_run(run_dir)).svg() == history_plot(load_run(run_dir)).svg()


def test_data_in_figures_is_text() -> None:
    posterior = [1.0, *[0.0] * (POSTERIOR_BINS - 1)]
    profile = pl.DataFrame({"split": ["<script>$x$"] * 2, "posterior": [posterior] * 2})
    svg = pass_rate_plot(profile).svg()
    assert "<script>" not in svg and "&lt;script&gt;$x$" in svg


def test_what_only_shows_imports_no_sdk() -> None:
    modules = ", ".join(f"coderl_tasks.insight.{name}" for name in ("record", "report", "query"))
    program = f"import sys, {modules}; print(*{{'tinker', 'torch'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == "\n"


def test_long_runs_are_thinned() -> None:
    thinned = thin(pl.DataFrame({"step": range(10_000), "mean_reward": [0.5] * 10_000}))
    assert len(thinned) == MAX_POINTS and thinned["mean_reward"].unique().to_list() == [0.5]


def test_step_history_artifact_has_its_plot_as_an_image(run_dir: Path) -> None:
    markdown = step_history_markdown(load_run(run_dir))
    image = re.search(r"!\[[^\]]+\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", markdown)
    assert image is not None and base64.b64decode(image[1]).startswith(b"<svg")
    assert "<svg" not in markdown
    rows = [line for line in markdown.splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(rows) == 10 and rows[0].startswith("| 29 |")
    samples = markdown.split("## Samples")[1].splitlines()
    heads = [line for line in samples if line.startswith("Step ")]
    assert [int(line.split()[1][:-1]) for line in heads] == [29, 29, 14, 14, 0, 0]
    assert [": passed, reward 1.00" in line for line in heads] == [True, False] * 3
    text = [line for line in samples[3:] if line and line not in heads]
    assert text and all(line.startswith("    ") for line in text), "nothing of a completion is markdown"


def test_faults_of_sandboxes_are_counted_by_server(run_dir: Path) -> None:
    run = load_run(run_dir)
    assert faults_table(run) is None
    often = [3 * (step > 9) for step in run.metrics["step"]]
    faulty = run.metrics.with_columns(
        pl.Series("sandbox_faults/one:8080", often), pl.lit(None, pl.Int64).alias("sandbox_faults/two:8080")
    )
    markdown = step_history_markdown(replace(run, metrics=faulty))
    steps = sum(step > 9 for step in run.metrics["step"])
    assert [line for line in markdown.splitlines() if ":8080" in line] == [
        f"| one:8080 | {3 * steps} | {steps} |",
        "| two:8080 | 0 | 0 |",
    ]


def test_pool_and_evaluation_artifacts(run_dir: Path, pool_dir: Path) -> None:
    run = load_run(run_dir)
    assert run.final is not None
    pool = pool_markdown(load_curation(pool_dir))
    assert "240 read" in pool and r"too\_hard" in pool
    for words in ("Samples spent", "Dropped at dedup", "- **taco-", "Suspects of several right answers"):
        assert words in pool
    evaluation = evaluation_markdown(run.final, run.baseline, dataset=HUB_DATASET)
    assert "Against baseline" in evaluation and "weak evidence" in evaluation
    assert "weak evidence" not in evaluation_markdown(run.final, run.baseline, dataset="data/mini")
