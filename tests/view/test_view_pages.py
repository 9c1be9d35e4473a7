"""The pages of `coderl view` over HTTP: what they say, whom they answer, and that a text stays a text."""

import json
import random
import re
import shlex
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import httpx
import polars as pl
import pytest

from coderl_tasks.grading.scoring import UNGRADED
from coderl_tasks.grading.suspicion import SIGNS
from coderl_tasks.insight.diagnosis import PairedPassAt1, compare_evals
from coderl_tasks.insight.problem_view import NO_VALUE
from coderl_tasks.insight.query import query
from coderl_tasks.insight.record import RunRecord
from coderl_tasks.insight.tables import Estimate
from coderl_tasks.journal.atomic import write_parquet
from coderl_tasks.journal.directory_lock import DirectoryLock
from coderl_tasks.journal.steps import rollout_files
from coderl_tasks.paths import POOL_FILE, POOLS
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.problems.problem import Kind
from coderl_tasks.view.comparison_pages import compare_page, problems_with_half_of_gain
from coderl_tasks.view.completion_pages import clustered, failures_of, problem_page
from coderl_tasks.view.library import Library, NotThereError, address, state_of
from coderl_tasks.view.other_pages import library_page
from coderl_tasks.view.proof import difference_in_words
from coderl_tasks.view.run_data import Place, RunData, pieces, with_intervals
from coderl_tasks.view.run_pages import SORTS, compared_with, run_page, step_page, timeline, visits_of, worse
from coderl_tasks.view.search import MOST_HITS, Wanted, counted, failures, grouped, same_failure, search
from coderl_tasks.view.view_admission import HEADERS
from coderl_tasks.view.view_server import Viewer
from tests.filtering.made_problems import make_text
from tests.insight.recorded_runs import TOKENIZER, byte_tokens, curate, rollout, statement
from tests.view.conftest import N_TESTS, Served, fallen_run, problem, with_pool, without_pool
from tests.view.hostile import HOSTILE_TEXTS, LONG_LINE

OWN_TAGS = {"script": "/static/view.js", "link": "/static/", "img": "/static/icon.svg"}
"""What of a page loads something, and from where it may."""


class Page(HTMLParser):
    """What a page is made of: links, faults (markup that no template of ours has) and the text that people see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.faults, self.text = [], [], ""  # type: ignore[var-annotated]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        source = values.get("src") or (values.get("href") if tag == "link" else None)
        if tag in ("iframe", "object", "embed", "base", "style", "video", "math", "plaintext", "xmp", "template"):
            self.faults.append(tag)
        if tag in OWN_TAGS and not (source or "").startswith(OWN_TAGS[tag]):
            self.faults.append(f"{tag} {source}")
        self.faults += [f"{tag} {name}" for name in values if name.startswith("on") or name in ("style", "srcdoc")]
        if tag == "a":
            self.links.append(values.get("href") or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def read(client: httpx.Client, address: str, status: int = 200) -> Page:
    answer = client.get(address)
    assert answer.status_code == status, (address, answer.text[:500])
    page = Page(answer.text)
    assert page.faults == []
    assert all(link.startswith(("/", "#")) and not link.startswith("//") for link in page.links)
    hidden = [c for c in answer.text if not c.isprintable() and c not in "\n\t"]
    assert hidden == []
    return page


def dip(run: Path) -> int:
    """The step in which the fewest completions passed."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return int(min((row for row in rows if "mean_correct" in row), key=lambda row: row["mean_correct"])["step"])


def test_without_the_key_nothing_is_shown(served: Served) -> None:
    for key in (None, "", "tml-wrong"):
        answer = httpx.get(f"{served.origin}/run/ordinary", params={} if key is None else {"key": key})
        assert answer.status_code == 401
        assert "ordinary" not in answer.text
    answer = httpx.get(f"{served.origin}/static/view.css")
    assert answer.status_code == 401


def test_the_key_leaves_the_address_for_a_cookie(served: Served) -> None:
    answer = httpx.get(f"{served.origin}/run/ordinary", params={"all": 1, "key": served.key})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/run/ordinary?all=1"
    cookie = answer.headers["set-cookie"].lower()
    assert served.key.lower() in cookie and "httponly" in cookie and "samesite=lax" in cookie


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "example.org"}, 400),
        ({"Host": ""}, 400),
        ({"Origin": "https://example.org"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),  # a link that somebody shared
        ({"Host": "localhost:1"}, 200),
    ],
)
def test_whom_it_answers(client: httpx.Client, headers: dict[str, str], status: int) -> None:
    jar = "; ".join(f"{cookie.name}={cookie.value}" for cookie in client.cookies.jar)
    answer = httpx.get(f"{client.base_url}/", headers={"Cookie": jar, **headers})
    assert answer.status_code == status


def test_it_only_shows(client: httpx.Client) -> None:
    assert client.post("/").status_code == 405
    assert client.delete("/run/ordinary").status_code == 405


def test_every_answer_has_the_policy(client: httpx.Client) -> None:
    for page in ("/", "/run/ordinary", "/static/view.js", "/nothing", "/run/ordinary/state"):
        answer = client.get(page)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_a_run_leads_to_its_steps(client: httpx.Client) -> None:
    page = read(client, "/run/ordinary")
    assert {f"/run/ordinary/step/{step}" for step in range(12)} <= set(page.links)
    assert {"/run/ordinary/eval/baseline", "/run/ordinary/eval/final"} <= set(page.links)
    assert set(page.links) >= {"#curves", "#evaluations", "#steps", "#cost", "#checkpoints"}
    assert "Mean reward" in page.text and "There is no cap" in page.text
    assert "learning_rate" in page.text  # differs from the default


@pytest.mark.parametrize(("asked", "steps"), [("", range(12)), ("first=3&last=5", range(3, 6)), ("first=40", ())])
def test_the_steps_that_are_chosen_are_in_the_table(client: httpx.Client, asked: str, steps: Sequence[int]) -> None:
    html = client.get(f"/run/ordinary?{asked}").text
    table = Page(html[html.index('<h2 id="steps">') : html.index('<h2 id="cost">')])
    own = [link for link in table.links if "/step/" in link]
    assert own == [f"/run/ordinary/step/{step}" for step in reversed(steps)]
    assert ("As chosen below the curves" in table.text) is (0 < len(own) < 12)
    assert ("None of these steps has been committed" in table.text) is not bool(own)


def test_a_problem_is_known_by_the_beginning_of_its_statement(client: httpx.Client, served: Served) -> None:
    data = RunData(served.folder / "ordinary")
    statements = dict(pl.read_parquet(data.pool_file()).select("problem_id", "statement").iter_rows())
    titles = data.titles()
    assert titles.keys() == statements.keys() and data.titles() is titles
    for problem_id, title in titles.items():
        assert " ".join(statements[problem_id].split()).startswith(title.removesuffix("…"))
        assert len(title) <= 121 and title.endswith("…") == (len(" ".join(statements[problem_id].split())) > 120)
    step = read(client, "/run/ordinary/step/3").text
    shown = [problem_id for problem_id in titles if f"{problem_id}{titles[problem_id]}" in step]
    assert {*shown} == {*data.groups.filter(step=3)["problem_id"]} & titles.keys() != set()


def test_an_evaluated_problem_is_known_by_the_beginning_of_its_statement(client: httpx.Client, served: Served) -> None:
    data = RunData(served.folder / "moved")  # no data set of evaluated problems is at hand: prompts have the statements
    titles = data.titles("final")
    expected = data.light_rows(Place(evaluation="final"))["problem_id"]
    assert titles.keys() == {*expected} and data.titles("final") is titles != data.titles()
    listed = read(client, "/run/moved/eval/final").text
    assert all(f"{name}{title}" in listed for name, title in titles.items())
    found = read(client, "/run/moved/search?q=filter&eval=final").text
    assert any(f"{name}{title}" in found for name, title in titles.items())
    assert RunData(served.folder / "ordinary").titles("final") == {}, "there its tokenizer is missing"
    for name, title in titles.items():
        assert statement(name).endswith(title) and name in title


def test_titles_follow_the_file_and_leave_out_what_all_prompts_begin_with(served: Served, tmp_path: Path) -> None:
    run = shutil.copytree(served.folder / "moved", tmp_path / "run")
    file = run / "evals" / "final" / "rollouts.parquet"
    data, rows = RunData(run), pl.read_parquet(file)
    before = data.titles("final")

    def rewritten(prompts: list[list[int] | None]) -> dict[str, str]:
        kind = ROLLOUT_SCHEMA["prompt_tokens"]
        write_parquet(file, rows.with_columns(prompt_tokens=pl.Series(prompts, dtype=kind)))
        return data.titles("final")

    asked = ["How many apples?", "How many pears?", "Add 2 and 2."]
    prompts = [byte_tokens(f"A conversation.\n\nUser: {question}") for question in asked]
    after = rewritten([*prompts, *[None] * (len(rows) - 3)])
    assert after == dict(zip(rows["problem_id"], asked, strict=False)) != before
    assert rewritten([[-1, 5]] * len(rows)) == {}, "no tokens of ours"


def test_a_run_counts_the_groups_without_a_signal(client: httpx.Client, served: Served) -> None:
    groups = RunData(served.folder / "fallen").groups
    counts = groups.filter(~pl.col("has_signal")).group_by("why_skipped").len().rows()
    page = read(client, "/run/fallen")
    [said] = re.findall(r"Groups of training: (.*?)\.", " ".join(page.text.split()))
    assert (
        said.startswith(f"{sum(n for _, n in counts)} of {len(groups)} without a signal: ") and "1 none passed" in said
    )
    assert all(f"{n} {why}" in said for why, n in counts)
    [link] = [link for link in page.links if "sort=signal" in link]
    first = read(client, link).text
    assert first.index("skipped: ") < first.index("trained on") if "trained on" in first else "skipped: " in first


def test_a_step_says_whether_its_problems_were_harder(client: httpx.Client) -> None:
    visits = [("a", 0, 8), ("b", 0, 2), ("c", 1, 6), ("a", 2, 4), ("d", 2, 1), ("e", 2, 3), ("d", 3, 9)]
    groups = pl.DataFrame(visits, schema=("problem_id", "step", "passed"), orient="row").with_columns(graded=10)
    found = {said: (n, round(rate, 6), usual) for said, n, rate, usual, _ in visits_of(groups, 2)}
    # Of the new ones before, a, b and c, 16 of 30 passed.
    assert found == {"New problems": (2, 0.2, pytest.approx(16 / 30)), "Problems sampled before": (1, 0.4, 0.8)}
    [(_, n, rate, usual, _)] = visits_of(groups, 0)
    assert (n, rate, usual) == (2, 0.5, None)
    assert visits_of(groups, 4) == []
    text = " ".join(read(client, "/run/fallen/step/2").text.split())
    assert "Problems sampled before (1): 0% passed, 50% at their earlier visits" in text


def test_the_problems_that_got_worse_are_named() -> None:
    visits = [("a", 0, 8), ("b", 0, 2), ("c", 0, 10), ("a", 1, 4), ("b", 1, 6), ("c", 2, 1), ("a", 3, 6)]
    columns = ("problem_id", "step", "passed")
    groups = pl.DataFrame(visits, schema=columns, orient="row").with_columns(graded=10, group_index=0)
    rows, n_again = worse(groups)
    found = [(row["problem_id"], row["first_passed"], row["last_passed"], row["last_step"]) for row in rows]
    assert (found, n_again) == ([("c", 10, 1, 2), ("a", 8, 6, 3)], 3)
    assert [row["between"] for row in rows] == [[], [0.4]]
    assert rows[0]["p"] < 0.001 and rows[1]["p"] == pytest.approx(0.314, abs=1e-3)  # scipy.stats.fisher_exact
    # Of three problems; scipy.stats.false_discovery_control of the two p and of 1, of the one that rose.
    assert rows[0]["q"] == pytest.approx(3 * rows[0]["p"]) and rows[1]["q"] == pytest.approx(1.5 * rows[1]["p"])
    once = pl.DataFrame([("d", 0, 1), ("d", 3, 0)], schema=columns, orient="row").with_columns(graded=1, group_index=1)
    assert [row["problem_id"] for row in worse(pl.concat([groups, once]))[0]] == ["c", "a", "d"]  # 1 of 1 proves little
    twice = groups.with_columns(group_index=1, passed=10 - pl.col("passed"))  # in each step a second group evens it out
    assert worse(pl.concat([groups, twice])) == ([], 3)


def test_a_run_counts_all_problems_that_got_worse_and_marks_what_may_be_chance(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coderl_tasks.view.run_pages.WORST", 3)
    viewer = Viewer(Library([served.folder / "ordinary"]))
    data = viewer.data("ordinary")
    rows, n_again = worse(data.groups)
    queried = query(served.folder / "ordinary", name="worse")
    columns = ("problem_id", *(f"{end}_{what}" for end in ("first", "last") for what in ("step", "passed", "graded")))
    assert {*queried.select(columns).rows()} == {tuple(row[name] for name in columns) for row in rows}

    def shown(*, every: bool) -> Page:
        page = run_page(data, "ordinary", viewer.library, None, None, every=every)
        html = bytes(viewer.render("run_page", others=[], **page).body).decode()
        return Page(html[html.index('<h2 id="worse">') : html.index('<h2 id="steps">')])

    first, everything = shown(every=False), shown(every=True)
    text = " ".join(first.text.split())
    assert len(rows) > 3 and f"The 3 of {len(rows)} with the smallest p; all." in text
    assert f"{n_again} problems were seen in several steps, " in text
    by_luck = n_again * rows[0]["p"]
    assert f"so chance alone makes at most about {by_luck:.2g} falls with p ≤ {rows[0]['p']:.2g}." in text
    n_beyond = sum(row["q"] < 0.05 for row in rows)
    assert f"{n_beyond} of the {len(rows)} falls is beyond chance" in text and n_beyond == 1
    assert text.index("beyond chance") < text.index("first seen")
    for row, link in zip(rows[:3], first.links[:3], strict=True):
        asked = f"id={row['problem_id']}&step={row['last_step']}&against={row['first_step']}"
        assert link == f"/run/ordinary/problem?{asked}#changed"
        assert f"{row['last_passed']} of {row['last_graded']}step {row['last_step']}{row['p']:.2g}" in text
    assert text.count("may be chance") == sum(row["q"] >= 0.05 for row in rows[:3]) > 0
    assert first.links[3:] == ["/run/ordinary?all=1#worse"]
    assert len(everything.links) == len(rows) and "smallest p" not in everything.text


def test_from_a_dip_to_the_failing_test(client: httpx.Client, served: Served) -> None:
    step = dip(served.folder / "ordinary")
    groups = [link for link in read(client, f"/run/ordinary/step/{step}").links if "/problem?" in link]
    completions = [link for link in read(client, groups[0]).links if link.startswith(f"/run/ordinary/step/{step}/")]
    page = read(client, completions[0])
    assert re.search(r"Test \d+ failed|no closed block of code", page.text)
    assert "✓ extracted again: the same" in page.text
    assert "✓ worked out again for the group: the same" in page.text


def test_the_proof_has_each_test_in_its_state(client: httpx.Client, served: Served) -> None:
    rows = pl.read_parquet(served.folder / "ordinary" / "steps" / "000003" / "scored.parquet")
    row = rows.filter(pl.col("verdict") == "wrong_answer", pl.col("first_failed") > 1).row(0, named=True)
    text = read(client, f"/run/ordinary/step/3/{row['group_index']}/{row['sample_index']}").text
    failed = row["first_failed"]
    assert f"Test {failed} failed" in text
    assert f"Test {failed} ran as number {failed + 1}, and grading stops" in text
    assert "format ok, score 0; a violation scores −1, which costs 0.1" in text
    assert "format_coef × format score + correct = 0.1 × 0 + 0 = 0" in " ".join(text.split())
    violated = rows.filter(pl.col("verdict") == "format_error").row(0, named=True)
    no_code = read(client, f"/run/ordinary/step/3/{violated['group_index']}/{violated['sample_index']}").text
    assert "format violated, score -1: costs format_coef × 1 = 0.1" in no_code
    assert text.count("20 ms") == failed + 1  # of each test that ran
    assert "http://sandbox.example:8080; no request had to be sent again" in " ".join(text.split())
    assert f"expected {failed}" in text
    assert text.count("as expected") == failed  # those before it
    assert len(re.findall("not run", text)) >= 12 - failed - 1
    [command] = re.findall(r"coderl query .*ORDER BY 1\"", text)
    again = query(served.folder / "ordinary", shlex.split(command)[3])
    differences = again.select(pl.col("worked_out") - pl.col("advantage")).to_series().drop_nulls()
    assert len(differences) > 10 and differences.abs().max() < 1e-9  # type: ignore[operator]


def test_a_wrong_answer_is_explained_in_a_sentence(client: httpx.Client, served: Served) -> None:
    rows = RunData(served.folder / "ordinary").light_rows(Place(3)).filter(pl.col("verdict") == "wrong_answer")
    row = rows.row(0, named=True)
    text = " ".join(read(client, f"/run/ordinary/step/3/{row['group_index']}/{row['sample_index']}").text.split())
    assert (
        "The program's output was compared with the expected one line by line and token by token (white space "
        "separates tokens; a decimal may be off by 0.000001) and differs in line 1, token 1: expected expected, got 3."
        in text
    )
    tested = " ".join(read(client, f"/run/ordinary/problem?id={row['problem_id']}&step=3").text.split())
    assert (
        "12 tests (stdin) The outcome of each test is compared with the expected one line by line and token by token"
        in tested
    )


@pytest.mark.parametrize(
    ("kind", "comparator", "checker", "difference", "sentence"),
    [
        ("stdin", "exact", "", "number of lines: expected 2, got 1", "The program's output was compared with the "
         "expected one byte by byte (but for a line feed at the end) and differs in number of lines: expected 2, "
         "got 1."),
        ("call", "float:0.1,0", "", "value[1]: expected 1, got 2", "The returned value was compared with the expected "
         "one item by item (numbers may be off by 0.1, or by 0 times the expected one) and differs in value[1]: "),
        ("call", "tokens", "", NO_VALUE, "(a decimal may be off by 0.000001) and is no JSON value."),
        ("stdin", "set", "", None, "ignoring order and repetition (white space separates tokens; a decimal may be off"),
        ("stdin", "tokens", "a checker", None, "output was judged by the problem's own checker and is wrong."),
    ],
)  # fmt: skip
def test_each_rule_of_comparison_has_words(
    kind: Kind, comparator: str, checker: str, difference: str | None, sentence: str
) -> None:
    judged = replace(problem("a", "taco", "text"), kind=kind, comparator=comparator, checker=checker)
    assert sentence in difference_in_words(judged, difference)


def test_a_failing_completion_is_beside_the_most_similar_one_that_passes(client: httpx.Client, served: Served) -> None:
    rows = pl.read_parquet(served.folder / "ordinary" / "steps" / "000003" / "scored.parquet")
    seen = set()
    for row in rows.iter_rows(named=True):
        group, code = rows.filter(group_index=row["group_index"], verdict="passed"), row["code"]
        has_sibling = row["verdict"] != "passed" and code is not None and len(group) > 0
        if (row["verdict"], has_sibling) in seen:
            continue
        seen.add((row["verdict"], has_sibling))
        text = read(client, f"/run/ordinary/step/3/{row['group_index']}/{row['sample_index']}").text
        found = re.search(r"From this program \(−\) to that of completion (\d+), which passes \(\+\)", text)
        assert (found is not None) is has_sibling
        if found:
            [passing] = group.filter(sample_index=int(found[1]))["code"]
            assert all(f"-{line}" in text for line in code.splitlines() if line not in passing.splitlines())
            assert all(f"+{line}" in text for line in passing.splitlines() if line not in code.splitlines())
    assert {has_sibling for _, has_sibling in seen} == {True, False}


def test_a_step_says_what_it_paid_for_nothing(client: httpx.Client, served: Served) -> None:
    groups = RunData(served.folder / "ordinary").groups
    skipped = groups.filter(~pl.col("has_signal"))
    assert len(skipped)
    step = skipped["step"][0]
    own = groups.filter(pl.col("step") == step)
    share = int(own.filter(~pl.col("has_signal"))["tokens"].sum()) / int(own["tokens"].sum())
    page = read(client, f"/run/ordinary/step/{step}")
    text = " ".join(page.text.split())
    n = len(own.filter(~pl.col("has_signal")))
    assert f"{n} of {len(own)}groups without a signal: " in text and f"{share:.0%}of the tokens were sampled" in text
    assert "skipped:" in text
    rows = RunData(served.folder / "ordinary").light_rows(Place(step))
    without = len(rows.filter(pl.col("verdict") == "format_error"))
    assert without and f"{without} without a program" in text
    [link] = {link for link in page.links if "verdict=format_error" in link}
    assert f"{without} completions, found" in " ".join(read(client, link).text.split())


def test_a_problem_says_first_why_its_completions_failed(client: httpx.Client, served: Served) -> None:
    data = RunData(served.folder / "fallen")
    for problem_id, step in data.groups.select("problem_id", "step").iter_rows():
        rows = data.problem_rows(Place(step), problem_id)
        failed = [row for row in rows if row["verdict"] not in ("passed", None, *UNGRADED)]
        text = " ".join(read(client, f"/run/fallen/problem?id={problem_id}&step={step}").text.split())
        assert ("Failures: " in text) is bool(failed)
        if failed:
            [said] = re.findall(r"Failures: (.*?)\.? Their programs", text)
            kinds = [
                (int(n), verdict, test) for n, verdict, test in re.findall(r"(\d+) × (\w+)(?: at test (\d+))?", said)
            ]
            counts = Counter(
                (row["verdict"], "" if row["first_failed"] is None else str(row["first_failed"])) for row in failed
            )
            assert [kind for kind in kinds if kind[0] > counts[kind[1:]]] == [], (said, counts)
            hidden = re.search(r"; (\d+) more kind(s?)$", said)
            assert (sum(n for n, _, _ in kinds) < len(failed)) is (hidden is not None)
            assert hidden is None or (int(hidden[1]) > 1) is bool(hidden[2])


def test_a_program_that_fails_another_test_each_time_has_a_failure_of_each() -> None:
    draw, judged = random.Random(0), problem("a", "taco", "text")
    wrong = [
        rollout("a", "wrong_answer", draw, step=0, sample_index=n, first_failed=failed)
        | {"code": "print(7)", "failed_output": "7", "tests_total": N_TESTS}
        for n, failed in enumerate((2, 3, 2))
    ]
    violated = rollout("a", "format_error", draw, step=0, sample_index=3) | {"reason": "no closed block of code"}
    refused = rollout("a", "infra_error", draw, step=0, sample_index=4)
    found = failures_of(clustered([*wrong, violated, refused], judged))
    assert found == [
        (2, "wrong_answer", 2, "line 1, token 1: expected expected, got 7"),
        (1, "wrong_answer", 3, "line 1, token 1: expected expected, got 7"),
        (1, "format_error", None, "no closed block of code"),
    ]


def test_failures_of_a_kind_are_joined_across_problems(client: httpx.Client, served: Served) -> None:
    page, data = read(client, "/run/ordinary/step/3"), RunData(served.folder / "ordinary")
    text = " ".join(page.text.split())
    kinds = failures(data.light_rows(Place(3)))
    assert {kind.verdict for kind in kinds} >= {"wrong_answer", "runtime_error"}
    for kind in kinds:
        assert f"{kind.n} {kind.verdict}" in text and kind.link("ordinary", Place(3)) in page.links
        hits = search(data, Wanted(kind.error, "reason", kind.verdict, first=3, last=3))
        assert min(kind.n, MOST_HITS) == len(hits.rows)
    assert len({row["problem_id"] for row in search(data, Wanted(verdict="wrong_answer", first=3, last=3)).rows}) > 1
    row = data.light_rows(Place(3)).filter(pl.col("verdict") == "runtime_error").row(0, named=True)
    completion = read(client, f"/run/ordinary/step/3/{row['group_index']}/{row['sample_index']}")
    [kind] = [kind for kind in kinds if kind.link("ordinary", Place(3)) in completion.links]
    assert kind.verdict == "runtime_error" and f"All {kind.n} completions of step 3 with runtime_error" in (
        " ".join(completion.text.split())
    )
    listed = " ".join(read(client, kind.link("ordinary", Place(3))).text.split())
    assert f"{min(kind.n, MOST_HITS)} completions, found" in listed


def test_the_kind_of_a_failure_is_its_verdict_and_the_error() -> None:
    reasons = [
        ("passed", None),
        (None, None),
        ("wrong_answer", None),
        ("format_error", "no closed code block in the answer"),
        ("runtime_error", "test 0: IndexError: list index out of range (line 4)"),
        ("runtime_error", "test 12: IndexError (line 2)"),
        ("runtime_error", "test 3: ended by SIGSEGV"),
        ("runtime_error", "test 1: KeyError: 'IndexError'"),
        ("time_limit", "test 1: more than 6 s of CPU time, the problem's own limit"),
        ("runtime_error", "test 0: the program ended before the call returned"),
    ]
    rows = pl.DataFrame(reasons, schema={"verdict": pl.String, "reason": pl.String}, orient="row")
    found = [(kind.n, kind.verdict, kind.error) for kind in failures(rows)]
    assert found == [
        (5, "runtime_error", ""),  # as a search without words finds them
        (3, "runtime_error", "IndexError"),
        (1, "format_error", ""),
        (1, "runtime_error", "KeyError"),
        (1, "runtime_error", "ended by SIGSEGV"),
        (1, "time_limit", ""),
        (1, "wrong_answer", ""),
    ]
    assert same_failure(rows, 5) == failures(rows)[1]
    assert same_failure(rows, 0) is same_failure(rows, 1) is None


def test_a_run_says_what_evaluations_of_fewer_problems_gained(client: httpx.Client, served: Served) -> None:
    html = client.get("/run/ordinary").text
    rows = Page(html[html.index('<h2 id="evaluations">') : html.index("<h2>Hardest")]).text.split()
    shared = json.loads((served.folder / "ordinary/evals/step-000009/summary.json").read_text())["compare"]
    assert f"{100 * shared['difference']:+.1f}" in rows and " ".join(rows).count("on the 8 shared") == 1
    final = json.loads((served.folder / "ordinary/evals/final/summary.json").read_text())["compare"]
    assert f"{100 * final['difference']:+.1f}" in rows  # on all problems of both
    for shown in (html, client.get("/run/ordinary?first=5&last=10").text):  # also where no larger one is drawn
        assert shown.count('<circle class="open"') == 1
    beside = client.get("/compare?run=ordinary&run=moved").text
    assert beside.count('<circle class="open"') == 3, "the second run has 3 problems, the first 24"


@pytest.mark.parametrize(
    ("compare", "said"),
    [
        ({"to": "baseline", "difference": 0.1, "ci_low": 0.05, "ci_high": 0.15, "n": 8}, "+10.0 +5.0 to +15.0on the 8"),
        ({"to": "baseline", "difference": 0.1, "ci_low": 0.05, "ci_high": 0.15}, "+10.0 +5.0 to +15.0 "),
        ({"to": "baseline", "difference": 0.1}, "–"),
        ({"to": "another", "difference": 0.1, "ci_low": 0.05, "ci_high": 0.15, "n": 8}, "–"),
        (None, "–"),
    ],
)
def test_a_gain_is_shown_that_an_evaluation_has_recorded_to_the_baseline(
    served: Served, tmp_path: Path, compare: dict[str, object] | None, said: str
) -> None:
    run = shutil.copytree(served.folder / "ordinary", tmp_path / "run")
    file = run / "evals" / "step-000009" / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"compare": compare}))
    viewer = Viewer(Library([run]))
    page = run_page(viewer.data("run"), "run", viewer.library, None, None, every=False)
    html = bytes(viewer.render("run_page", others=[], **page).body).decode()
    row = html[html.index(">step-000009</a>") :]
    cells = [" ".join(Page(cell).text.split()) for cell in row[: row.index("</tr>")].split("<td")]
    assert said.strip() in cells[4] and ("on the" in cells[4]) is ("on the" in said)


@pytest.mark.parametrize(
    ("n", "difference", "low", "high", "p", "outcome"),
    [
        (9, 0.2, 0.1, 0.3, 0.01, "The interval excludes 0: B solves more of these problems than A."),
        (9, -0.2, -0.3, -0.1, 0.01, "The interval excludes 0: B solves fewer of these problems than A."),
        (90, 0.2, 0.1, 0.3, None, "The interval excludes 0: B passes more often on these problems than A."),
        (90, -0.2, -0.3, -0.1, None, "The interval excludes 0: B passes less often on these problems than A."),
        (9, 0.5, 0.5, 0.5, None, "9 problems in common are too few to tell which of A and B is better."),
        (90, 0.1, 0.01, 0.3, 0.06, "The interval excludes 0 narrowly, p does not: A and B may be equally good."),
        (90, 0.1, -0.1, 0.3, 0.2, "The interval includes 0: these problems do not show which of A and B is better."),
        (90, 0.0, 0.0, 0.0, 1.0, "The interval includes 0: these problems do not show which of A and B is better."),
    ],
)
def test_a_comparison_has_an_outcome_in_words(
    n: int, difference: float, low: float, high: float, p: float | None, outcome: str
) -> None:
    share, found = Estimate(0.5, 0.4, 0.6), {} if p is None else {"mcnemar_p": p}
    assert PairedPassAt1(n, share, share, difference, low, high, found).outcome("A", "B") == outcome


def test_the_outcome_names_the_sides_in_their_order(client: httpx.Client, served: Served) -> None:
    def record(run: str) -> RunRecord:
        return RunData(served.folder / run).record

    ordinary, fallen = record("ordinary"), record("fallen")
    for page, names, sides in (
        ("/run/ordinary", ("baseline", "final"), (ordinary.baseline, ordinary.final)),
        ("/run/ordinary/eval/baseline", ("baseline", "final"), (ordinary.baseline, ordinary.final)),
        ("/compare?run=ordinary&run=fallen", ("ordinary", "fallen"), (ordinary.final, fallen.baseline)),
        ("/compare?run=fallen&run=ordinary", ("fallen", "ordinary"), (fallen.baseline, ordinary.final)),
    ):
        comparison = compare_evals(*sides)
        assert comparison is not None
        changed = comparison.overall.changed
        text = " ".join(read(client, page).text.split())
        assert comparison.overall.outcome(*names) in text
        n = changed["gained"] + changed["lost"]
        assert f"p is the chance that the {n} problems which changed would divide at least as unevenly" in text


def test_a_difference_that_another_run_recorded_is_not_taken_for_this_one(served: Served, tmp_path: Path) -> None:
    """Baselines have one name in all runs, and a final evaluation records what it gained on its own run's."""
    run = shutil.copytree(served.folder / "ordinary", tmp_path / "run")
    shutil.rmtree(run / "evals" / "baseline")
    (run / "evals" / "final").rename(run / "evals" / "baseline")
    (run / "evals" / "baseline" / "summary.json").write_text(
        (served.folder / "ordinary" / "evals" / "baseline" / "summary.json").read_text()
    )
    final = RunData(served.folder / "ordinary").record.final
    comparison = compare_evals(RunData(run).record.baseline, final)
    assert comparison is not None and comparison.overall.difference == 0.0, "both have the same completions"
    assert final is not None and final.summary["compare"]["difference"] > 0


def test_a_baseline_is_compared_with_the_newest_evaluation(served: Served, tmp_path: Path) -> None:
    record = RunData(served.folder / "ordinary").record
    found = [compared_with(record, name, against) for name, against in (("baseline", None), ("final", None))]
    assert [each and each.name for each in found] == ["final", "baseline"]
    against = compared_with(record, "baseline", "step-000009")
    assert against is not None and against.name == "step-000009"
    other = replace(record.evals["step-000009"], name="aime", step=11)  # of `coderl evaluate`: it has settings
    evals = {name: each for name, each in record.evals.items() if name != "final"} | {"aime": other}
    beside = replace(record, evals=evals, path=tmp_path)
    (tmp_path / "evals" / "aime").mkdir(parents=True)
    (tmp_path / "evals" / "aime" / "settings.json").write_text("{}")
    found = [compared_with(beside, "baseline", None), beside.latest]
    assert [each and each.name for each in found] == ["step-000009", "step-000009"]


def test_half_of_a_gain_lies_on_few_problems_only_where_they_gain_unequally() -> None:
    def gained(*gains: float) -> pl.DataFrame:
        return pl.DataFrame({"before": 0.5, "after": [0.5 + gain for gain in gains]})

    assert problems_with_half_of_gain(gained(0.5, 0.125, 0.125, 0.125, -0.5)) == 1
    assert problems_with_half_of_gain(gained(0.25, 0.25, 0.125, 0.125)) == 2
    assert problems_with_half_of_gain(gained(0.5, 0.5, 0.5)) == problems_with_half_of_gain(gained(-0.5)) == 0
    thirds = pl.DataFrame({"before": [2 / 3, 0.0, 1 / 3, 0.0], "after": [1.0, 1 / 3, 2 / 3, 1 / 3]})
    assert problems_with_half_of_gain(thirds) == 0


def test_a_step_leads_to_a_completion_of_each_verdict(client: httpx.Client, served: Served) -> None:
    rows = RunData(served.folder / "ordinary").light_rows(Place(3)).sort("sample_index")
    firsts = rows.group_by("group_index", "verdict").first()
    links = {link for link in read(client, "/run/ordinary/step/3").links if re.fullmatch(r"/run/.*/3/\d+/\d+", link)}
    assert links == {
        f"/run/ordinary/step/3/{group}/{sample}"
        for group, sample in firsts.select("group_index", "sample_index").iter_rows()
    }


def test_an_evaluation_shows_its_flips(client: httpx.Client, served: Served) -> None:
    page = read(client, "/run/ordinary/eval/final")
    gained, lost = (int(number) for number in re.findall(r"(?:Lost|Gained) \((\d+)\)", page.text))
    assert gained > lost
    text = " ".join(read(client, "/run/ordinary/eval/step-000009").text.split())
    assert "On the 8 problems that both evaluations have." in text
    assert re.search(r"baselinetinker://.* n=24, Pass@1 on all of these \d+\.\d%", text)
    link = next(link for link in page.links if re.fullmatch(r"/run/ordinary/eval/final/\d+", link))
    text = read(client, link).text
    assert "Why this reward" in text and lost >= 0
    rows = RunData(served.folder / "ordinary").light_rows(Place(evaluation="final"))
    stopped = rows.filter(pl.col("tests_run") < pl.col("tests_total")).select(
        "tests_passed", "tests_run", "tests_total"
    )
    said = {f"{passed} of {run} run, {total} in all" for passed, run, total in stopped.iter_rows()}
    assert said and all(each in page.text for each in said)


def test_a_completion_of_an_evaluation_is_found_by_its_row(served: Served) -> None:
    data, place = RunData(served.folder / "ordinary"), Place(evaluation="final")
    expected = data.light_rows(place)["problem_id"][7]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # polars warns of comparisons with None
        members, position = data.group(place, None, 7)
        with pytest.raises(NotThereError, match="no such completion"):
            data.group(place, None, 10_000)
    assert members.row(position, named=True)["row"] == 7 and set(members["problem_id"]) == {expected}


def test_an_evaluated_problem_says_why_its_tests_are_not_shown(client: httpx.Client) -> None:
    page = read(client, "/run/ordinary/eval/final?verdict=wrong_answer")
    link = [link for link in page.links if re.fullmatch(r"/run/ordinary/eval/final/\d+", link)][-1]
    assert "Input and expected output are not shown" in read(client, link).text


def test_runs_are_compared(client: httpx.Client) -> None:
    page = read(client, "/compare?run=ordinary&run=live")
    assert "Settings that differ" in page.text and "max_steps" in page.text
    text = " ".join(page.text.split())
    assert re.search(r"\+\d+ / -\d+problems gained / lost by B, p = 1 \(McNemar, exact\)", text)
    assert re.search(r"[+-]\d+\.\d pointsPass@1 of B \([a-z0-9-]+\) less that of A \(final\), paired", text)
    assert text.index("B compared with A") < text.index("Curves") < text.index("gained and lost by B, live")
    assert re.search(r"\d+ settings differ: the difference is that of all of them together", page.text)
    html = client.get("/compare?run=ordinary&run=live").text
    places = re.findall(
        r'aria-label="(ordinary|live), evaluation baseline[^"]*"[^>]*><g [^>]*><path class="whisker" d="M([\d.]+)', html
    )
    assert [name for name, _ in places] == ["ordinary", "live"] and places[0][1] != places[1][1]
    assert "Tick two runs or more" in read(client, "/compare?run=ordinary", 400).text


def test_a_comparison_says_how_many_problems_it_does_not_list_and_what_the_opened_one_asks(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coderl_tasks.view.comparison_pages.MOST_FLIPPED", 1)
    known = problem("a", "taco", "Print <b>the</b> sum.")  # this machine has the evaluated problems of no made run
    monkeypatch.setattr(RunData, "problem", lambda *_: (known, ""))
    paths = [served.folder / "ordinary", served.folder / "fallen"]
    viewer = Viewer(Library(paths))

    def shown(problem_id: str | None) -> Page:
        page = compare_page({path.name: viewer.data(path.name) for path in paths}, problem_id)
        return Page(bytes(viewer.render("compare_page", **page).body).decode())

    listed = shown(None)
    text = " ".join(listed.text.split())
    lost = int(re.findall(r"Lost \((\d+)\)", text)[0])
    assert lost > 1 and f"The first 1 of {lost}." in text
    problems = [link for link in listed.links if link.endswith("#changed-1")]
    assert len(problems) == len(re.findall("The first 1 of", text)) and known.statement not in listed.text
    [name] = re.findall("problem=([a-z0-9-]+)", problems[-1])
    assert known.statement in shown(name).text


def outcomes(run: Path, evaluation: str) -> dict[str, tuple[str, str | None]]:
    """The verdict and the program of each evaluated problem, by its name."""
    rows = pl.read_parquet(run / "evals" / evaluation / "rollouts.parquet")
    return {name: (verdict, code) for name, verdict, code in rows.select("problem_id", "verdict", "code").iter_rows()}


@pytest.mark.parametrize(
    ("page", "sides"),
    [
        ("/run/ordinary/eval/final", [("ordinary", "baseline"), ("ordinary", "final")]),
        ("/run/ordinary/eval/baseline?against=final", [("ordinary", "baseline"), ("ordinary", "final")]),
        ("/compare?run=fallen&run=ordinary", [("fallen", "baseline"), ("ordinary", "final")]),
        ("/compare?run=ordinary&run=fallen", [("ordinary", "final"), ("fallen", "baseline")]),
    ],
)
def test_gained_and_lost_problems_lead_to_what_changed(
    client: httpx.Client, served: Served, page: str, sides: list[tuple[str, str]]
) -> None:
    links = [link for link in read(client, page).links if "#changed" in link]
    before, after = (outcomes(served.folder / run, evaluation) for run, evaluation in sides)
    shared = before.keys() & after.keys()
    flipped = {name for name in shared if (before[name][0] == "passed") != (after[name][0] == "passed")}
    names = {link: found for link in links for found in re.findall("(?:problem|id)=([a-z0-9-]+)", link)}
    assert {*names.values()} == flipped != set()
    for link, name in names.items():
        opened = read(client, link)
        text = opened.text
        if "/compare?" in page:
            pages = {address("run", run, "problem", id=name, eval=evaluation) for run, evaluation in sides}
            assert pages <= {*opened.links}
        (verdict, failing), (_, passing) = before[name], after[name]
        if verdict == "passed":
            passing, failing = failing, passing
        if failing is None or passing is None:
            assert "The failing completion has no program" in text
            continue
        assert all(f"-{line}" in text for line in failing.splitlines() if line not in passing.splitlines())
        assert all(f"+{line}" in text for line in passing.splitlines() if line not in failing.splitlines())
        assert re.search(r"The completion of .* passes all tests; that of .* fails test \d+", text)


def test_a_problem_that_nothing_solves_any_more_is_compared_with_the_last_step_that_did(client: httpx.Client) -> None:
    page = read(client, "/run/fallen/problem?id=taco-0002")  # at its last visit
    text = " ".join(page.text.split())
    assert (
        "The pass rate fell between step 1 and step 2 since step 1 step 1 1 of 2 passed → step 2 0 of 2 passed" in text
    )
    assert (
        "a change as large by chance alone: p = 0.5 (Fisher, one-sided; for this problem alone, among all problems)"
        in text
    )
    assert (
        "Compared: a completion of step 1 that passes all tests, and one of step 2, which fails test 4" in text
        and "Input4 Expectedexpected 4 Got3" in text
    )
    assert "-print(sum(values)) # < & > +print(sum(v for v in values if v % 2 == 0))" in text
    assert {"/run/fallen/step/1/0/0", "/run/fallen/step/2/0/0"} <= set(page.links)
    assert " between " not in read(client, "/run/fallen/problem?id=taco-0002&step=1").text


def test_a_problem_is_compared_with_any_earlier_visit(client: httpx.Client, served: Served) -> None:
    groups = RunData(served.folder / "ordinary").groups.filter(pl.col("graded") > 0)
    visits = groups.group_by("problem_id", "step").agg(pl.col("passed", "graded").sum()).sort("step")
    several = visits.filter(pl.len().over("problem_id") > 2)
    problem_id = several["problem_id"][0]
    own = several.filter(problem_id=problem_id)
    *earlier, last = own["step"].to_list()
    rates = dict(own.select("step", pl.col("passed") / pl.col("graded")).iter_rows())
    page = read(client, f"/run/ordinary/problem?id={problem_id}&step={last}")
    links = [link for link in page.links if "against=" in link]
    expected = [f"id={problem_id}&step={last}&against={step}#changed" for step in reversed(earlier)]
    assert links == [f"/run/ordinary/problem?{asked}" for asked in expected]
    for step, link in zip(reversed(earlier), links, strict=True):
        text = " ".join(read(client, link).text.split())
        change = "fell" if rates[last] < rates[step] else "rose"
        said = f"The pass rate {change} between step {step} and step {last}"
        assert (said if rates[last] != rates[step] else f"As large a share of the completions of step {step}") in text
    later = read(client, f"/run/ordinary/problem?id={problem_id}&step={earlier[0]}&against={last}")
    assert "against=" not in "".join(later.links), "only what was before"


def test_a_problem_has_its_profile_among_the_visits(client: httpx.Client, served: Served, tmp_path: Path) -> None:
    pool = curate(tmp_path / "pools" / "own", size=30)
    name, right, n = pl.read_parquet(pool / POOL_FILE).select("problem_id", "n_correct", "n_samples").row(0)
    run = fallen_run(tmp_path / "run", name)
    viewer = Viewer(Library([with_pool(run, pool / POOL_FILE), pool]))
    page = problem_page(viewer.data("run"), "run", name, None, None, None, "own")
    shown = Page(bytes(viewer.render("problem_page", **page).body).decode())
    assert page["profiled"] == (right, n) and f"{right} of {n}profile" in shown.text
    assert f"/pool/own/problem?id={name}" in shown.links
    assert "base model" not in read(client, "/run/lost/problem?id=items").text


def test_the_filters_of_an_evaluation_keep_what_it_is_compared_with(client: httpx.Client) -> None:
    page = read(client, "/run/ordinary/eval/step-000009?against=final")
    filters = [link for link in page.links if "verdict=" in link]
    assert filters and all("against=final" in link for link in filters)
    filtered = read(client, filters[0])
    assert "step-000009 to final" in " ".join(filtered.text.split())
    others = [link for link in filtered.links if "against=baseline" in link]
    assert len(others) == 1 and "verdict=" in others[0]


def test_a_pool_has_its_drops_and_problems(client: httpx.Client) -> None:
    page = read(client, "/pool/curated")
    drops = {link for link in page.links if "/drops?" in link}
    text = "".join(read(client, link).text for link in drops)
    assert "3 tests" in text and "test 4 <script>alert(1)</script>" in text
    said = " ".join(page.text.split())
    assert re.search(r"All \d+ profiled problems are counted; shaded is the band that was kept", said)
    assert "In brackets: how many of these labels are expected to be wrong" in said
    problem = next(link for link in page.links if "/pool/curated/problem?" in link)
    assert "Read n, then n integers" in read(client, problem).text


def test_a_pool_has_the_totals_of_its_audit(client: httpx.Client, served: Served) -> None:
    text = " ".join(read(client, "/pool/near").text.split())
    assert "3 problems audited" in text and "6 of 24 mutants pass all tests (25%)" in text
    assert "weak 1 33.3%" in " ".join(Page(client.get("/pool/near").text.replace("<td", " <td")).text.split())
    assert f"All evidence: {served.folder / 'pools' / 'near' / 'audit.html'}" in text
    command = f"coderl audit {served.folder / 'pools' / 'curated'}"
    assert f"The pool was not audited: {command}" in " ".join(read(client, "/pool/curated").text.split())


def test_a_near_duplicate_stands_beside_what_it_repeats(client: httpx.Client) -> None:
    [link] = [link for link in read(client, "/pool/near").links if link.endswith("reason=near_duplicate")]
    page = read(client, link)
    text = " ".join(page.text.split())
    for dropped, seed, added in (("taco-0003", 0, "Print the answer."), ("taco-0004", 2, "Print it.")):
        kept = f"taco-{seed:04d}"
        place, beside = text.index(dropped), text.index(f"near to {kept}")
        assert place < text.index(make_text(seed)[:80], place) < text.index(added) < beside
        assert make_text(seed)[:80] in text[beside:]
        assert f"/pool/near/problem?id={kept}" in page.links
    of_test_side = read(client, "/pool/near/drops?stage=decontaminate&reason=near_duplicate_statement").text
    assert "row 1 of taco test" in of_test_side and "near to" not in of_test_side


def test_suspicious_completions_are_found(client: httpx.Client, served: Served) -> None:
    """In the run of hostile texts each wrong answer has a sign of a hack."""
    page = read(client, f"{HOSTILE_RUN}/step/0")
    [link] = [link for link in page.links if "verdict=suspicious" in link]
    hits = search(RunData(served.folder / "hostile<b>&'run"), Wanted(verdict="suspicious", first=0, last=0))
    assert {row["verdict"] for row in hits.rows} == {"wrong_answer", "runtime_error"}
    found = read(client, link)
    assert f"{len(hits.rows)} completions, found" in " ".join(found.text.split())
    assert all(f"{sign}{meaning}" in found.text for sign, meaning in SIGNS.items())
    completion = next(link for link in found.links if "/step/0/" in link)
    assert f"{HOSTILE_RUN}/search?verdict=suspicious" in read(client, completion).links
    assert ", ".join(SIGNS) in client.get(completion).text and ", ".join(SIGNS) in client.get(HOSTILE_RUN).text
    assert not search(RunData(served.folder / "ordinary"), Wanted(verdict="suspicious")).rows


def test_the_search_finds_what_is_asked_for(client: httpx.Client, served: Served) -> None:
    page = read(client, "/run/ordinary/search?q=values%5Bn%5D&within=code&verdict=runtime_error")
    links = [link for link in page.links if re.fullmatch(r"/run/ordinary/step/\d+/\d+/\d+", link)]
    assert links
    assert "runtime_error" in read(client, links[0]).text
    data = RunData(served.folder / "ordinary")
    columns = ["step", "verdict", "problem_id"]
    rows = pl.read_parquet(served.folder / "ordinary" / "steps" / "*" / "scored.parquet", columns=columns)
    early = search(data, Wanted(verdict="time_limit", last=4))
    expected = rows.filter(pl.col("verdict") == "time_limit", pl.col("step") <= 4)
    assert 0 < len(early.rows) == min(MOST_HITS, len(expected)) and early.searched == (0, 4)
    name = rows["problem_id"][0]
    hits = search(data, Wanted(problem=f"({name})"))  # words of its statement
    assert [row["problem_id"] for row in hits.rows] == [name] * rows.filter(problem_id=name).height
    found = search(data, Wanted(text="First I filter.", evaluation="final"))
    assert found.rows and all("First I filter." in row["found"] for row in found.rows)


@pytest.mark.parametrize(
    ("asked", "heading"),
    [("q=n&last=0", "step, group/completion"), ("q=n&eval=final", "problem/completion")],
)
def test_the_numbers_of_a_hit_are_named(client: httpx.Client, served: Served, asked: str, heading: str) -> None:
    """A group of an evaluation is a problem; of training it is a visit to one."""
    place, called = (Place(evaluation="final"), "final") if "eval=" in asked else (Place(0), "step 0")
    rows = RunData(served.folder / "ordinary").light_rows(place).select("group_index", "sample_index").rows()
    html = client.get(f"/run/ordinary/search?{asked}").text
    assert f"<th>{heading}</th>" in html
    found = {*re.findall(rf"{called}, [0-9]+/[0-9]+", html)}
    assert found <= {f"{called}, {group}/{sample}" for group, sample in rows} and found


def test_words_of_a_statement_find_its_completions(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool of this run was moved: its statements are read from the prompts."""
    data = RunData(served.folder / "moved")
    problem_id = data.groups["problem_id"][-1]
    expected = int(data.groups.filter(pl.col("problem_id") == problem_id)["sampled"].sum())
    found = search(data, Wanted(problem=f"elements  of THE list. ({problem_id})"))
    assert len(found.rows) == expected > 0 and {row["problem_id"] for row in found.rows} == {problem_id}
    assert found.missing == ""
    with monkeypatch.context() as patch:
        patch.delattr("coderl_tasks.view.run_data.prompts_in")  # each prompt has been read
        evaluated = search(data, Wanted(problem="list. (lcbv5-0001)", evaluation="final"))
    assert [row["problem_id"] for row in evaluated.rows] == ["lcbv5-0001"]
    copy = shutil.copytree(data.path, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"model_name": "no/such-model"}))
    blind_data = RunData(copy)
    blind = search(blind_data, Wanted(problem="elements of the list"))
    assert blind.rows == [] and "its pool as /nowhere/pool.parquet, which is not there" in blind.missing
    assert "tokenizer is not on this machine" in blind.missing
    n = blind_data.groups["problem_id"].n_unique()
    assert f"Only the ids of {n} problems were searched: " in blind.missing


def test_prompts_are_read_a_few_steps_at_a_time(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coderl_tasks.view.search.PROMPTS_SECONDS", -1.0)
    run = without_pool(shutil.copytree(served.folder / "moved", tmp_path / "run"), "0" * 64)
    data = RunData(run)
    said = search(data, Wanted(problem="elements of the list")).missing
    n = data.groups["problem_id"].n_unique()
    assert said == f"The statements of {n} problems have not been read yet: search again for these"
    monkeypatch.setattr("coderl_tasks.view.search.PROMPTS_SECONDS", 60.0)
    (run / "steps" / "000000" / "scored.parquet").unlink()
    found = search(data, Wanted(problem="elements of the list"))
    assert found.missing == "" and len(found.rows) > 0  # without those that only the removed step has asked


def test_a_pool_that_was_moved_is_known_by_its_content(client: httpx.Client, served: Served, tmp_path: Path) -> None:
    assert "/pool/tests" in read(client, "/run/moved").links
    assert {"/run/ordinary", "/run/moved"} <= {*read(client, "/pool/tests").links}
    data = RunData(served.folder / "moved")
    row = data.light_rows(Place(1)).filter(pl.col("verdict") == "wrong_answer").row(0, named=True)
    completion = read(client, f"/run/moved/step/1/{row['group_index']}/{row['sample_index']}")
    assert f"expected {row['first_failed']}" in completion.text
    assert "Inputs and expected" not in read(client, f"/run/moved/problem?id={row['problem_id']}").text


def test_the_first_page_lists_the_pools_that_its_runs_were_trained_on(served: Served, tmp_path: Path) -> None:
    pool = curate(tmp_path / "elsewhere")
    run = shutil.copytree(served.folder / "ordinary", tmp_path / "run")
    file = run / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pool": str(pool / POOL_FILE)}))
    viewer = Viewer(Library([run, served.folder / "lost"]))
    page = Page(bytes(viewer.render("library_page", **library_page(viewer.library, time.time())).body).decode())
    assert {"/run/run", "/run/lost", "/pool/elsewhere"} <= set(page.links)
    assert page.links.count("/run/run") == 2 and page.links.count("/run/lost") == 1, "the pool names its run"
    assert page.text.count("0.0004") == 2  # the learning rates
    n = RunData(run).record.evals["final"].summary["n"]
    assert re.search(rf"[0-9.]+% n = {n}\s+[0-9.]+% n = {n}\s", page.text), "the baseline and the newest evaluation"


def test_a_run_without_its_pool_names_problems_by_their_ids_alone(client: httpx.Client) -> None:
    for page in ("/run/lost", "/run/lost/step/2", "/run/lost/problem?id=items"):
        assert any("problem?id=items" in link for link in read(client, page).links), page


def test_a_run_without_its_pool_says_where_it_was_looked_for(client: httpx.Client, served: Served) -> None:
    said = " ".join(read(client, "/run/lost").text.split())
    assert "The run recorded its pool as /nowhere/pool.parquet, which is not there" in said
    assert str(served.folder / "pools" / "curated") in said and f"the pools of {POOLS}" in said
    command = f"coderl view {served.folder / 'lost'} POOL"
    assert command in said and "Without it" not in read(client, "/run/ordinary").text
    row = RunData(served.folder / "lost").light_rows(Place(0)).filter(pl.col("verdict") == "wrong_answer").to_dicts()[0]
    assert command in read(client, f"/run/lost/step/0/{row['group_index']}/{row['sample_index']}").text


@pytest.mark.parametrize("asked", ["q=print&within=code", "verdict=passed", "q=n&verdict=passed&last=6"])
def test_the_links_of_a_search_lead_to_each_hit_once(client: httpx.Client, served: Served, asked: str) -> None:
    rows = pl.read_parquet(served.folder / "ordinary" / "steps" / "*" / "scored.parquet")
    if "q=" in asked:
        rows = rows.filter(pl.col("code").str.contains("print", literal=True))  # which has an n
    if "verdict=" in asked:
        rows = rows.filter(pl.col("verdict") == "passed")
    if "last=" in asked:
        rows = rows.filter(pl.col("step") <= 6)
    order = rows.sort("step", "group_index", "sample_index", descending=[True, False, False])
    expected = [f"/run/ordinary/step/{s}/{g}/{n}" for s, g, n in order["step", "group_index", "sample_index"].rows()]
    places = {address: number for number, address in enumerate(expected)}
    found, link = list[str](), f"/run/ordinary/search?{asked}"
    while link:
        page = read(client, link)
        listed = [link for link in page.links if re.fullmatch(r"/run/ordinary/step/\d+/\d+/\d+", link)]
        listed.sort(key=places.__getitem__)  # those with the same program stand together
        [(lowest, highest)] = re.findall(r"found in [\d.]+ s, steps? (?:(\d+) to )?(\d+)", page.text)
        lowest = lowest or highest
        steps = [int(each.split("/")[4]) for each in listed]
        is_cut = "There are more" in page.text
        assert int(highest) >= steps[0] and (steps[-1] == int(lowest) if is_cut else steps[-1] >= int(lowest))
        assert is_cut == (len(listed) == MOST_HITS and len(found) + MOST_HITS < len(expected))
        found += listed
        link = next((link for link in page.links if "/search?" in link and "last=" in link), "")
    assert len(expected) > 2 * MOST_HITS and found == expected


@pytest.mark.parametrize("verdict", ["wrong_answer", "runtime_error"])
def test_what_is_found_by_its_verdict_says_why_it_failed(client: httpx.Client, served: Served, verdict: str) -> None:
    page = " ".join(read(client, f"/run/ordinary/search?verdict={verdict}&first=0&last=0").text.split())
    rows = RunData(served.folder / "ordinary").scan(Place(0)).filter(pl.col("verdict") == verdict).collect()
    for row in rows.iter_rows(named=True):
        failure = row["reason"] or f"test {row['first_failed']}: got {row['failed_output']}"
        assert " ".join(failure.split()) in page
    assert len(rows) > 0


def test_printing_nothing_is_told_from_printing_white_space(served: Served, tmp_path: Path) -> None:
    run = shutil.copytree(served.folder / "fallen", tmp_path / "run")
    file = run / "steps" / "000002" / "scored.parquet"
    outputs = {"failed_output": ["", " \n"], "reason": [None, None], "first_failed": [4, 4]}
    kinds = {name: ROLLOUT_SCHEMA[name] for name in outputs}
    changed = pl.read_parquet(file).with_columns(pl.DataFrame(outputs, schema=kinds))
    write_parquet(file, changed)
    found = RunData(run).programs(Place(2), changed.select("group_index", "sample_index").to_dicts())
    assert [failure for _, failure in found] == ["test 4: no output", "test 4: white space alone"]


@pytest.mark.parametrize(
    "wanted", [Wanted(text="print", within="code"), Wanted(verdict="passed"), Wanted(text="print", evaluation="final")]
)
def test_found_completions_with_the_same_program_stand_together(served: Served, wanted: Wanted) -> None:
    data = RunData(served.folder / "ordinary")
    rows = search(data, wanted).rows
    groups = grouped(data, rows, wanted.evaluation)
    assert len(groups) < len(rows) if not wanted.evaluation else len(groups) == len(rows)  # there a problem occurs once
    listed = sorted(row["row"] if wanted.evaluation else rows.index(row) for group in groups for row in group)
    assert listed == (sorted(row["row"] for row in rows) if wanted.evaluation else [*range(len(rows))])
    programs: dict[tuple[object, ...], int] = {}
    for number, group in enumerate(groups):
        for row in group:
            place = Place(evaluation=wanted.evaluation) if wanted.evaluation else Place(row["step"])
            members, position = data.group(
                place,
                None if wanted.evaluation else row["group_index"],
                row["row" if wanted.evaluation else "sample_index"],
            )
            program = members["code"][position]
            result = row["problem_id"], row["verdict"], row["reward"], row["found"], row["failure"], program
            assert programs.setdefault(result, number) == number
    assert len(programs) == len(groups)


def test_a_search_in_the_index_lists_each_completion_of_a_step_without_its_file(served: Served, tmp_path: Path) -> None:
    copy = shutil.copytree(served.folder / "fallen", tmp_path / "copy")
    shutil.rmtree(copy / "steps" / "000002")
    data = RunData(copy)
    rows = search(data, Wanted(verdict="wrong_answer", first=1)).rows
    assert [row["step"] for row in rows] == [2, 1]
    assert grouped(data, rows, "") == [[row] for row in rows]


def test_a_search_unfolds_the_completions_with_one_program(client: httpx.Client) -> None:
    page = read(client, "/run/ordinary/search?verdict=passed")
    n_rows = int(re.findall(r"share a row: (\d+) rows", page.text)[0])
    times = [int(n) for n in re.findall(r"the same program (\d+) times on this page", page.text)]
    assert sum(times) + n_rows - len(times) == MOST_HITS and min(times) > 1


def test_the_links_of_a_search_in_an_evaluation_lead_to_each_hit_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coderl_tasks.view.search.MOST_HITS", 5)
    data, found = RunData(served.folder / "ordinary"), []
    wanted: Wanted | None = Wanted(text="print", within="code", evaluation="final")
    while wanted is not None:
        hits = search(data, wanted)
        found += [row["row"] for row in hits.rows]
        wanted = hits.rest
    code = data.scan(Place(evaluation="final")).select("code").collect()["code"]
    expected = [row for row, text in enumerate(code) if text is not None and "print" in text]
    assert len(expected) > 10 and found == expected


@pytest.mark.parametrize(
    "asked", ["q=a&first=x", "q=a&last=-1", "verdict=foo", "q=a&within=error", "q=a&after=1", "q=a&after=1.2"]
)
def test_a_search_says_what_it_cannot_look_for(client: httpx.Client, asked: str) -> None:
    page = read(client, f"/run/ordinary/search?{asked}", 400)
    value = asked.rpartition("=")[2]
    assert "The address has a value that the page does not take" in page.text and value in page.text


def test_a_search_that_runs_out_of_time_says_where_to_go_on(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coderl_tasks.view.search.MOST_SECONDS", 0.0)
    data, seen, wanted = RunData(served.folder / "ordinary"), [], Wanted(text="there is no such text")
    for _ in range(12):
        hits = search(data, wanted)
        assert hits.searched is not None
        seen.append(hits.searched)
        if hits.rest is None:
            break
        wanted = hits.rest
    assert [first for first, _ in seen] == list(range(11, -1, -1))


@pytest.mark.parametrize("address", ["/run/nobody", "/run/ordinary/step/99", "/run/ordinary/step/1/0/99", "/nothing",
    "/run/ordinary/eval/none", "/run/ordinary/problem?id=none", "/pool/none", "/run/ordinary/step/1/0/0/text/config",
    "/run/ordinary/step/99999999999999999999", "/static/..%2fview_server.py", "/run/..%2f..%2fetc/step/1"])  # fmt: skip
def test_what_is_not_there_is_said(client: httpx.Client, address: str) -> None:
    page = read(client, address, 404)
    why = re.findall(r"There is no such page\s+(\S.*)", page.text)[-1]
    assert why[0].isupper() or not why[0].isalpha()
    known = address.startswith("/run/ordinary")
    assert known == ("/run/ordinary" in page.links) and known == ("Search completions" in client.get(address).text)


def test_a_step_whose_rollouts_were_removed_has_its_groups(served: Served, tmp_path: Path) -> None:
    run = shutil.copytree(served.folder / "fallen", tmp_path / "run")
    (run / "steps" / "000002" / "scored.parquet").unlink()
    viewer = Viewer(Library([run]))
    for sort in SORTS:
        page = step_page(viewer.data("run"), "run", 2, sort)
        shown = Page(bytes(viewer.render("step_page", others=[], **page).body).decode())
        text = " ".join(shown.text.split())
        assert "0 of 2" in text and "The rollouts of this step were removed" in text
        assert "/run/run/problem?id=taco-0002" in shown.links
        assert not [link for link in shown.links if link.startswith("/run/run/step/2/")]


def test_a_point_of_several_steps_leads_to_one_in_which_completions_were_graded(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    rows = [{"step": step, "mean_reward": 0.5, "mean_correct": 0.5 if step % 2 else None} for step in range(300)]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = RunData(tmp_path / "run")
    link = timeline(data, "run", data.record.metrics, every=False).link
    assert link is not None
    points = [step + 0.5 for step in range(0, 300, 2)]  # the mean of two steps each
    assert [link(point) for point in points] == [f"/run/run/step/{step}" for step in range(1, 300, 2)]


def test_a_missing_step_or_page_says_what_there_is(client: httpx.Client) -> None:
    assert "There is no step 99: 12 steps are planned, 0 to 11" in read(client, "/run/ordinary/step/99", 404).text
    assert "No page has the address /nosuch: start from" in read(client, "/nosuch", 404).text
    assert "/pool/near" in read(client, "/pool/near/problem?id=none", 404).links


@pytest.mark.parametrize("run", ["ordinary", "hostile<b>&'run"])
def test_a_run_counts_what_is_suspect_and_leads_to_it(client: httpx.Client, served: Served, run: str) -> None:
    rows = pl.read_parquet(served.folder / run / "steps" / "*" / "scored.parquet")
    expected = {
        "suspicious": rows["suspicion"].count(),
        "infra errors": (rows["verdict"] == "infra_error").sum(),
        "with requests sent again": (rows["sandbox"].struct.field("retries") > 0).sum(),
        "left out of their groups": rows["reward"].null_count(),
    }
    page = read(client, f"/run/{quote(run)}")
    text = " ".join(page.text.split())
    assert "held-back tests off: holdback=0" in text and sum(expected.values()) > 0
    for said, n in expected.items():
        assert f" {n} {said}" in text
    links = [link for link in page.links if "/search?verdict=" in link]
    assert len(links) >= len(expected)
    for link, n in zip(links, expected.values(), strict=False):
        listed = f"{min(n, MOST_HITS)} completions, found"
        assert listed in " ".join(read(client, link).text.split())


def test_counts_follow_the_files_of_a_run(served: Served, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(served.folder / "hostile<b>&'run", run)
    data, kinds = RunData(run), ["suspicious", "left out of its group"]
    before, files = counted(data, kinds), rollout_files(run)
    per_file = [pl.read_parquet(file)["suspicion"].count() for file in files]
    assert before["suspicious"] == sum(per_file) > 0
    for number, file in enumerate(files, 1):  # as of a version that did not look for suspicious completions
        pl.read_parquet(file).drop("suspicion").write_parquet(file)
        left = sum(per_file[number:]) if number < len(files) else None
        assert counted(data, kinds) == {**before, "suspicious": left}


def test_a_damaged_file_is_named(client: httpx.Client, served: Served, tmp_path: Path) -> None:
    file = served.folder / "live" / "steps" / "000001" / "scored.parquet"
    whole = file.read_bytes()
    file.write_bytes(b"PAR1 no more")
    try:
        assert "000001/scored.parquet" in read(client, "/run/live/step/1", 500).text
    finally:
        file.write_bytes(whole)


HOSTILE_RUN = "/run/" + quote("hostile<b>&'run")


def test_hostile_texts_are_texts(client: httpx.Client, served: Served) -> None:
    run = read(client, HOSTILE_RUN)
    assert "hostile<b>&'run" in run.text
    read(client, f"{HOSTILE_RUN}/step/0")
    for number, text in enumerate(HOSTILE_TEXTS):
        problem_id = quote(f"{number}-{text[:200]}", safe="")
        page = read(client, f"{HOSTILE_RUN}/problem?id={problem_id}")
        completion = read(client, f"{HOSTILE_RUN}/step/0/{number}/{number % 2 * 2}")  # a wrong answer, or an error
        words = re.findall(r"[\w(){}$]{3,12}", text)[:1]  # of those that have any, something is to be read
        assert all(word in each.text for word in words for each in (page, completion))
        if number % 4 == 0:
            read(client, f"/pool/hostile/problem?id={problem_id}")
    read(client, "/pool/hostile")


def test_a_long_line_is_cut_and_leads_to_all_of_it(client: httpx.Client) -> None:
    answer = client.get(f"{HOSTILE_RUN}/step/1/0/0")
    assert len(answer.content) < 1_000_000
    assert "characters. " in answer.text and f"{len(LONG_LINE):,}" in answer.text
    whole = client.get(f"{HOSTILE_RUN}/step/1/0/0/text/completion")
    assert whole.text == LONG_LINE
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"


def test_turns_are_shown_one_by_one(client: httpx.Client) -> None:
    text = read(client, f"{HOSTILE_RUN}/step/1/0/1?shade=advantage").text
    answers = text[text.index("Answer 1") :]
    places = [answers.index(part) for part in (HOSTILE_TEXTS[0], "Reply of", HOSTILE_TEXTS[2], "Answer 2")]
    assert places == sorted(places)
    assert "advantage -0.250" in text and "on the samples: wrong_answer" in text
    shaded = client.get(f"{HOSTILE_RUN}/step/1/0/1?shade=advantage").text
    assert shaded.count("token 3: -0.25") == 1 and shaded.count("token 4: 0.5") == 1  # the first of the second turn


def test_tokens_are_shaded_by_the_importance_ratio_where_it_is_recorded(client: httpx.Client) -> None:
    recorded, other = (client.get(f"{HOSTILE_RUN}/step/1/0/{sample}?shade=ratio").text for sample in (1, 0))
    assert recorded.count("token 9: -0.75") == 1 and recorded.count("token 8: 0") == 1
    assert "log of each token's importance ratio" in recorded
    assert "shade=ratio" not in other and "importance ratio" not in other


def test_the_state_changes_with_a_commit_alone(served: Served) -> None:
    run = served.folder / "ordinary"
    before = state_of(run)
    (run / "report.html").write_text("a report")
    assert state_of(run) == before
    with (run / "metrics.jsonl").open("a") as file:
        file.write("")
    assert state_of(run) == before
    (run / "evals" / "a-later-one").mkdir()
    begun = state_of(run)
    assert begun != before
    (run / "evals" / "a-later-one" / "summary.json").touch()  # of an evaluation beside the run, which adds no metrics
    assert state_of(run) not in (before, begun)
    shutil.rmtree(run / "evals" / "a-later-one")


def test_a_phase_of_a_step_changes_one_line_of_the_runs_page(served: Served, client: httpx.Client) -> None:
    run = served.folder / "ordinary"
    whole, committed = state_of(run), state_of(run, commits=True)
    asked = re.search(r'data-watched="([^"]+)" data-state="([^"]+)"', client.get("/run/ordinary").text)
    assert asked is not None and asked[2] == committed
    assert client.get(asked[1]).json() == {"state": committed, "at_work": ["#", "", ""]}
    (run / "steps" / "000900").mkdir()
    assert state_of(run) != whole
    assert client.get(asked[1]).json() == {"state": committed, "at_work": ["#", "", ""]}  # nobody works at it
    with DirectoryLock(run):
        at_work = ["/run/ordinary/step/900", 900, "being sampled, 0 groups so far"]
        held = client.get(asked[1]).json()
    assert held["at_work"] == at_work and held["state"] != committed  # the run has begun again
    (run / "steps" / "000900").rmdir()


def test_two_directories_of_one_name_have_two_names(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place / "run" / "steps").mkdir(parents=True)
    library = Library([tmp_path / "a" / "run", tmp_path / "b" / "run"])
    assert sorted(library.runs()) == ["run", "run~2"]
    assert {path.parent.name for path in library.runs().values()} == {"a", "b"}


def test_intervals_are_over_problems() -> None:
    """Four groups of ten, all alike within: the interval is that of four observations, not of forty."""
    groups = pl.DataFrame(
        {
            "step": [0] * 4 + [1],
            "graded": [10] * 5,
            "passed": [0, 10, 0, 10, 5],
            "mean_reward": [0.0, 1.0, 0.0, 1.0, 0.5],
            "lowest": [-0.1] * 5,
            "highest": [1.3] * 5,
        }
    )
    rates = with_intervals(groups).to_dicts()
    half = 3.182 * (1 / 3 / 4) ** 0.5  # t of three degrees of freedom, standard deviation sqrt(1/3)
    assert rates[0]["rate"] == 0.5
    assert rates[0]["mean_reward_low"] == -0.1  # no reward was less
    groups = groups.with_columns(highest=2.0)
    assert with_intervals(groups).to_dicts()[0]["mean_reward_high"] == pytest.approx(0.5 + half, abs=1e-3)
    assert rates[0]["mean_reward_high"] == 1.3
    assert (rates[0]["rate_low"], rates[0]["rate_high"]) == (0.0, 1.0)  # cut at what a share can be
    assert rates[1]["rate_low"] is None  # of one group nothing is known


def test_pieces_of_tokens_make_up_the_text() -> None:
    text = "def ƒ(λ): # 日本語 🎉\n    return 'ü'\n"
    tokens = TOKENIZER.encode(text).ids
    parts = pieces(lambda some: TOKENIZER.decode(list(some)), tokens)
    assert len(parts) == len(tokens)
    assert "".join(parts) == text
