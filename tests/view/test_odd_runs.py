"""Runs and evaluations that are unusual and allowed: every page that a page links to answers, and says what is so."""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from coderl_tasks.evaluation.pass_at_1 import summarize
from coderl_tasks.insight.query import query
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.policy.rollout import GRADED_SCHEMA, ROLLOUT_SCHEMA
from coderl_tasks.view import library
from coderl_tasks.view.completion_pages import CLUSTERS_OPEN, SIBLINGS
from coderl_tasks.view.view_server import Viewer
from tests.insight.recorded_runs import rollout
from tests.view.conftest import graded_step, problem, write_pool

Row = dict[str, Any]
Read = Callable[..., str]
MIXED = ("passed", "wrong_answer", "runtime_error", "format_error")
LONG = "x = 1\n" * 4000
PAGES_PER_KIND = 2


def group(problem_id: str, verdicts: tuple[str, ...], **place: Any) -> list[Row]:
    draw = random.Random(0)
    return [
        rollout(problem_id, verdict, draw, sample_index=number, split="taco", **place)
        for number, verdict in enumerate(verdicts)
    ]


def by_a_function(rows: list[Row], rewards: list[float]) -> list[Row]:
    """The rows as a reward function of one's own leaves them: no program was looked for."""
    about = dict.fromkeys(("code", "format_score", "sandbox", "test_seconds")) | {"tests_total": 1, "tests_run": 1}
    return [
        row
        | about
        | {"completion": f"I say {reward}.", "reward": reward, "correctness_score": reward}
        | {"verdict": "passed" if reward >= 1 else "wrong_answer", "tests_passed": int(reward >= 1)}
        | {"first_failed": None if reward >= 1 else 0, "failed_output": None, "reason": None}
        for row, reward in zip(rows, rewards, strict=True)
    ]


def evaluate(run: RunDirectory, name: str, *groups: list[Row]) -> None:
    rows = [row | {"group_index": number} for number, rows in enumerate(groups) for row in rows]
    frame = pl.DataFrame(rows, schema=ROLLOUT_SCHEMA)
    run.evaluation(name).write(frame, summarize(frame, policy="tinker://x", temperature=0.0, max_tokens=512))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    pool = write_pool(folder / "pools" / "p.parquet", [problem(f"t-{n}", "taco", f"Statement {n}.") for n in range(6)])

    @contextmanager
    def opened(name: str, **settings: Any) -> Iterator[RunDirectory]:
        config = {"model_name": "no/model", "pool": str(pool), "environment": "code", "max_tokens": 512} | settings
        with RunDirectory.open(folder / name, config) as run:
            yield run

    for name, at_end in (("custom", [1.0, 0.25]), ("custom2", [0.5, 1.0])):
        with opened(name, environment="custom") as run:
            judged = [by_a_function(group(f"t-{n}", ("passed",)), [value]) for n, value in enumerate((0.5, 1.0))]
            evaluate(run, "baseline", *judged)
            for step, rewards in enumerate(([1.0, 0.2], [0.3, 0.2])):
                graded_step(run, step, by_a_function(group("t-0", MIXED[:2], step=step), rewards))
            judged = [by_a_function(group(f"t-{n}", ("passed",)), [value]) for n, value in enumerate(at_end)]
            evaluate(run, "final", *judged)
    with opened("words", environment="gsm8k") as run:
        rows = group("t-0", ("passed", "wrong_answer", "format_error"), step=0)
        graded_step(run, 0, [row | {"code": None if row["code"] is None else "42"} for row in rows])
    with opened("programs") as run:
        same = group("t-0", ("passed", "wrong_answer", "infra_error"), step=0)
        same[1] |= {"code": same[0]["code"], "failed_output": " " * 400 + "42\n"}
        long = group("t-1", ("passed", "wrong_answer"), step=0, group_index=1)
        long[0]["code"], long[1]["code"] = f"{LONG}print(1)", f"{LONG}print(2)"
        nothing = dict.fromkeys(GRADED_SCHEMA) | {"logprobs": None, "trained": False}
        ungraded = [row | nothing for row in group("t-2", ("passed", "wrong_answer"), step=0, group_index=2)]
        graded_step(run, 0, same + long + ungraded)
        graded_step(run, 1, group("t-2", MIXED, step=1))
        graded_step(run, 2, group("t-1", MIXED * (SIBLINGS // 2), step=2))
        many = group("t-3", ("passed",) + ("wrong_answer",) * (2 * CLUSTERS_OPEN), step=3)
        graded_step(run, 3, [row | {"code": f"print({number})"} for number, row in enumerate(many)])
    with opened("partial", reward="fraction", format_coef=0.0, holdback=0.25) as run:
        some = group("t-0", ("wrong_answer", "wrong_answer", "passed"), step=0)
        some[0] |= {"tests_passed": 3, "tests_run": 9, "correctness_score": 3 / 9, "reward": 3 / 9}  # 3 are held back
        some[1] |= {"tests_passed": 6, "tests_run": 12, "correctness_score": 0.5, "reward": 0.5}
        graded_step(run, 0, some)
        evaluate(run, "final", group("t-0", ("format_error",)), group("t-1", ("wrong_answer",)))
    with opened("rounds") as run:
        evaluate(run, "final", *(group(f"t-{n}", ("infra_error", *MIXED)) for n in range(3)))
    with opened("once") as run:
        graded_step(run, 0, group("t-0", MIXED, step=0))
        evaluate(run, "final", *(group(f"t-{n}", (verdict,)) for n, verdict in enumerate(MIXED)))
    with opened("removed") as run:
        evaluate(run, "baseline", group("t-0", MIXED))
        graded_step(run, 0, group("t-0", MIXED, step=0))
        evaluate(run, "final", group("t-0", MIXED))
    (folder / "removed" / "evals" / "baseline" / "rollouts.parquet").unlink()
    with opened("old") as run:
        graded_step(run, 0, group("t-0", MIXED, step=0))
    file = folder / "old" / "steps" / "000000" / "scored.parquet"
    pl.read_parquet(file).drop("reason", "failed_output", "suspicion").write_parquet(file)
    # The second one is a pattern for the first; DuckDB takes the third one for a partition of a table.
    for name, verdict in (("k1", "passed"), ("k[1]*?", "wrong_answer"), ("step=7", "passed")):
        with opened(name) as run:
            graded_step(run, 0, group("t-0", (verdict, verdict), step=0))
            evaluate(run, "final", group("t-0", (verdict,)))
    with opened("names") as run:
        for name, n in (("x", 1), ("y and z", 1), ("x and y", 2), ("z", 2)):
            evaluate(run, name, *(group(f"t-{number}", ("passed",)) for number in range(n)))
    with opened("same") as run:
        graded_step(run, 0, group("t-0", MIXED, step=0))
        for name, verdict in (("step-000000", "passed"), ("final", "wrong_answer")):
            evaluate(run, name, group("t-0", (verdict,)))
    with opened("early") as run:
        evaluate(run, "step-000003", group("t-0", ("passed",)))
    with opened("empty"):
        pass
    with opened("damaged"):
        pass
    (folder / "damaged" / "config.json").write_text("{")
    return folder


@pytest.fixture(scope="module")
def read(runs: Path) -> Iterator[Read]:
    """Reads a page as HTML, or `as_text` alone. What fails in the server fails here."""
    shown = library.Library([path for path in runs.iterdir() if path.name != "pools"])
    # In a block of its own a client has one loop and thread, and not one per page.
    with TestClient(Starlette(routes=Viewer(shown).routes())) as client:

        def page(address: str, *, as_text: bool = True) -> str:
            answer = client.get(address)
            assert answer.status_code == 200, address
            return " ".join(unescape(re.sub("<[^>]*>", "", answer.text)).split()) if as_text else answer.text

        yield page


def test_every_page_that_a_page_links_to_answers(read: Read) -> None:
    names = ["custom", "custom2", "words", "programs", "rounds", "once", "removed", "old", "k[1]*?", "same", "empty"]
    pairs = [library.address("compare", run=[*pair]) for pair in pairwise(names)]
    waiting, seen, kinds = ["/", *pairs], {"/", *pairs}, dict[str, int]()
    while waiting:
        html = read(waiting.pop(), as_text=False)
        for link in sorted({unescape(found) for found in re.findall(r'href="(/[^"#]*)', html)}):
            kind = re.sub(r"\d+", "0", link)
            # The pages of a damaged run name the damage, with 500.
            if link not in seen and kinds.get(kind, 0) < PAGES_PER_KIND and "damaged" not in link:
                kinds[kind] = kinds.get(kind, 0) + 1
                seen.add(link)
                waiting.append(link)
    assert len(seen) > 80, seen


def test_a_damaged_run_is_a_row_of_the_list(read: Read) -> None:
    assert "damaged: " in read("/") and "custom2" in read("/")


def test_answers_without_programs_are_compared_whole(read: Read) -> None:
    for address in (
        "/run/custom/problem?id=t-0&step=1",
        "/run/custom/problem?id=t-0&eval=final&against=baseline",
        "/compare?run=custom&run=custom2&problem=t-0",
    ):
        text = read(address)
        assert "From the answer that fails (−, " in text and re.search(r"-I say .*\+I say ", text), address
    assert "Formatthe whole answer, which compute_reward reads" in read("/run/custom/step/0/0/0")
    words = read("/run/words/step/0")
    assert "without an answer" in words and "without a program" not in words


def test_the_same_program_with_another_verdict_is_named_as_such(read: Read) -> None:
    text = read("/run/programs/step/0/0/1")
    assert "Completion 0 has the same program and passes." in text and "From this program" not in text
    assert "which passes" not in read("/run/programs/step/0/0/2"), "nobody's failure is compared"
    assert "42" in text and "(white space alone)" not in text, "only a part of the output is shown"
    assert "(no difference in the first 20,000 characters)" in read("/run/programs/step/0/1/1")


def test_a_completion_that_was_not_graded_is_no_mismatch_and_no_failure(read: Read) -> None:
    text = read("/run/programs/step/0/2/0")
    assert "Formatnot looked at, as the completion was not graded" in text and "extracted again" not in text
    assert re.search(r'<a class="tag warn"[^>]*>2 not graded</a>', read("/run/programs/step/0", as_text=False))
    row = re.search(r"t-2 *Statement 2\..*?passed", read("/run/programs/step/1?sort=group"))
    assert row is not None and "first" not in row[0], "it was sampled in step 0"


def test_the_sum_of_a_reward_adds_up_where_tests_are_held_back_and_in_evaluations(read: Read) -> None:
    """Evaluations grade by the default rule, whatever the run has."""
    for address, rewarded in (
        ("step/0/0/0", "0 × 0 + 0.333333 = 0.333"),
        ("step/0/0/1", "0 × 0 + 6/12 = 0.5"),
        ("step/0/0/2", "0 × 0 + 12/12 = 1"),
        ("eval/final/0", "0.1 × -1 + 0 = -0.1"),
        ("eval/final/1", "0.1 × 0 + 0 = 0"),
    ):
        assert f"format_coef × format score + correct = {rewarded}" in read(f"/run/partial/{address}"), address
    assert "score -1: costs format_coef × 1 = 0.1" in read("/run/partial/eval/final/0")


def test_a_large_group_says_which_completions_it_lists(read: Read) -> None:
    html = read(f"/run/programs/step/2/0/{2 * SIBLINGS - 1}", as_text=False)
    assert f"{SIBLINGS} of the group's {2 * SIBLINGS} completions" in " ".join(html.split())
    assert re.search(rf'aria-current="page">{2 * SIBLINGS - 1}<', html) and f'title="passed">{SIBLINGS}<' in html
    assert "✓ worked out again for the group: the same" in html


def test_of_many_programs_the_first_are_shown_and_compared(read: Read) -> None:
    html = read("/run/programs/problem?id=t-3&step=3", as_text=False)
    html = html[html.index('id="completions"') :]
    programs = re.findall(r"<pre>.*?</pre>", html, re.S)
    assert len(programs) == 2 * CLUSTERS_OPEN == 2 * html.count("which passes"), "each with its difference"
    assert f"{CLUSTERS_OPEN + 1} more programs" in html
    assert len(set(re.findall(r'href="(/run/programs/step/3/0/[0-9]+)"', html))) == 2 * CLUSTERS_OPEN + 1


def test_curves_lead_to_steps_that_there_are(read: Read) -> None:
    html = read("/compare?run=once&run=programs", as_text=False)
    assert {"/run/once/step/0", "/run/programs/step/1", "/run/programs/step/2"} <= {*re.findall(r'href="([^"]*)', html)}


def test_a_side_of_several_completions_has_its_share_and_one_that_makes_the_difference(read: Read) -> None:
    html = read("/compare?run=once&run=rounds", as_text=False)
    lost = " ".join(html[html.index("<h3>Lost") :].split())
    sides = re.findall(r'<td><a [^>]*><span class="tag \w+">(\w+)</span></a>( 25% passed)?</td>', lost)
    assert sides[0] == ("passed", "") and sides[1] == ("wrong_answer", " 25% passed")
    assert 'id="changed-2"' in read("/compare?run=once&run=programs&run=rounds&problem=t-0", as_text=False)


def test_the_name_of_a_run_is_no_pattern(runs: Path, read: Read) -> None:
    for name, passed in (("k1", 2), ("k[1]*?", 0), ("step=7", 2)):
        own = "/run/" + quote(name)
        assert f"{passed} of 2" in read(f"{own}/step/0") and f"{passed} of 2 graded" in read(f"{own}/problem?id=t-0")
        verdict = "passed" if passed else "wrong_answer"
        assert f"1 {verdict}" in read(f"{own}/eval/final")
        assert "2 completions, found" in read(f"{own}/search?verdict={verdict}")
        assert "2 completions, found" in read(f"{own}/search?q=print&within=code&last=0")
        assert "2 completions, found" in read(f"{own}/search?q=print&within=code&verdict={verdict}")
        counts = query(runs / name, "SELECT count(*) FILTER (verdict = 'passed') FROM outcomes").item()
        assert counts == passed


def test_comparisons_of_evaluations_with_like_names_are_not_mixed_up(read: Read) -> None:
    assert "paired over 1 problems" in read("/run/names/eval/y%20and%20z?against=x")
    assert "paired over 2 problems" in read("/run/names/eval/z?against=x%20and%20y")


def test_of_two_evaluations_after_one_step_the_final_one_is_the_later(read: Read) -> None:
    for page in ("/run/same/eval/final?against=step-000000", "/run/same/eval/step-000000?against=final"):
        text = read(page)
        assert "step-000000 to final" in text and "Gained (0)" in text and "Lost (1)" in text
        opened = re.findall(r'href="([^"]*)#changed"', read(page, as_text=False))
        assert "Lost between evaluation step-000000 and evaluation final" in read(unescape(opened[0]))


def test_an_evaluation_without_a_step_is_in_the_chart(read: Read) -> None:
    html = read("/run/early", as_text=False)
    assert "no steps yet" not in html and 'class="whisker"' in html and ">3</text>" in html


def test_a_text_of_a_column_that_the_run_lacks_is_in_no_completion(read: Read) -> None:
    for within in ("reason", "failed_output"):
        assert "0 completions, found" in read(f"/run/old/search?q=Error&within={within}")


def test_a_pool_that_comes_later_is_shown(runs: Path, read: Read) -> None:
    pool = runs / "pools" / "p.parquet"
    away = pool.rename(pool.with_name("away.parquet"))
    text = read("/run/once/step/0/0/1")
    assert "Statement 0." not in text and "is not there" in text
    away.rename(pool)
    assert "Statement 0." in read("/run/once/step/0/0/1")
