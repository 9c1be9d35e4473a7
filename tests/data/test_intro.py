"""data/intro: its recipe's bytes, two sides without a common variant, right solutions, tests that find slips, and the
choice by measured passes."""

import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from coderl_tasks.curation.solutions import check_solutions
from coderl_tasks.filtering.overlap import Entry, OverlapRules, find_contaminated
from coderl_tasks.filtering.signature import signature_of
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.paths import DATA
from coderl_tasks.problems.loading import LoadResult, load_problems
from coderl_tasks.services import Services
from data.recipes import measure_intro
from data.recipes.intro_kind import Kind, Unusable, draw_problem, variant
from data.recipes.make_intro import (
    CHOICE_FILE,
    KINDS,
    SEED,
    SIDES,
    Candidate,
    candidates,
    held_out_variants,
    write_rows,
)
from data.recipes.measure_intro import (
    MOST_KINDS,
    NEARLY_ALWAYS,
    NEVER,
    SIZES,
    UnusablePasses,
    best_kinds,
    choice,
    differing,
    histogram,
    read_passes,
    solved,
)

FOLDER = DATA / "intro"
CARD = (FOLDER / "README.md").read_text()
EXAMPLE = re.compile(r" (For example,|So `|Example:|Calling `).*$")


@pytest.fixture(scope="module")
def sides() -> dict[str, LoadResult]:
    return {role: load_problems(str(FOLDER), role=role) for role in ("train", "test")}


@pytest.fixture(scope="module")
def all_candidates() -> tuple[Candidate, ...]:
    return candidates()


def test_counts_are_those_of_the_card(sides: dict[str, LoadResult]) -> None:
    said = re.findall(r"^\| intro \| (train|test) \| (\d+) \| (\d+) \|", CARD, re.MULTILINE)
    assert said == [
        (role, str(len(side.problems)), str(sum(problem.tests_total for problem in side.problems)))
        for role, side in sides.items()
    ]
    assert all(side.dropped.is_empty() for side in sides.values())
    assert len(sides["train"].problems) >= 600
    assert len(sides["test"].problems) >= 200
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 2_500_000


def test_problems_are_functions_with_enough_tests(sides: dict[str, LoadResult]) -> None:
    problems = [problem for side in sides.values() for problem in side.problems]
    assert {problem.kind for problem in problems} == {"call"}
    assert all(
        6 <= problem.tests_total <= 12 and len(set(problem.tests)) == problem.tests_total for problem in problems
    )
    assert all(len({test.expected for test in problem.tests}) >= 2 for problem in problems)
    assert all(problem.starter_code.startswith(f"def {problem.entry_point}(") for problem in problems)
    kinds = [Counter(problem.problem_id.split(".")[0] for problem in side.problems) for side in sides.values()]
    assert all(len(of_side) >= 40 for of_side in kinds)


def test_no_variant_and_no_statement_is_on_both_sides(sides: dict[str, LoadResult]) -> None:
    variants, statements = (
        [{of(problem) for problem in side.problems} for side in sides.values()]
        for of in (
            lambda problem: problem.problem_id.rsplit(".", 1)[0],
            lambda problem: EXAMPLE.sub("", problem.statement),
        )
    )
    assert all(map(len, (*variants, *statements)))
    assert not variants[0] & variants[1]
    assert not statements[0] & statements[1]


def test_statements_of_a_side_differ_in_words(sides: dict[str, LoadResult]) -> None:
    for side in sides.values():
        words = {re.sub(r"\d+", "0", EXAMPLE.sub("", problem.statement)) for problem in side.problems}
        assert len(words) >= 0.98 * len(side.problems)


def test_no_train_problem_gives_a_test_problem_away(sides: dict[str, LoadResult]) -> None:
    train, test = (
        [Entry(problem.problem_id, problem.problem_id, signature_of(problem)) for problem in side.problems]
        for side in sides.values()
    )
    assert find_contaminated(train, test, OverlapRules()) == {}
    assert len(find_contaminated(train[:3], train[:3], OverlapRules())) == 3


def test_the_recipe_writes_the_bundled_bytes(all_candidates: tuple[Candidate, ...], tmp_path: Path) -> None:
    # In this process, whose hashes are other ones each time: the order of a set must not matter.
    write_rows(tmp_path, json.loads((FOLDER / CHOICE_FILE).read_text()))
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {f"{side}.jsonl": (FOLDER / f"{side}.jsonl").read_bytes() for side in SIDES}


async def test_solutions_pass_on_the_sandbox(sides: dict[str, LoadResult], embedded: Services) -> None:
    # One of each kind of each side: the recipe has run all of them in its own process.
    by_kind = {(side, problem.problem_id.split(".")[0]): problem for side in sides for problem in sides[side].problems}
    problems = list(by_kind.values())
    assert len(problems) == len(SIDES) * MOST_KINDS
    async with SandboxClient(embedded.sandbox_urls) as client:
        checks = await check_solutions(problems, Judge(client))
    assert Counter(checks["status"].to_list()) == {"good": len(problems)}


def test_each_kind_has_many_ways_to_be_asked_and_slips_to_be_found(all_candidates: tuple[Candidate, ...]) -> None:
    assert len(KINDS) == len({kind.name for kind in KINDS}) >= 80
    assert all(len(kind.wordings) == len(set(kind.wordings)) >= 5 for kind in KINDS)
    assert all(len(kind.variants) >= 4 for kind in KINDS)
    # draw_problem raises where a slip passes all tests
    assert all(each.drawn.failed >= 1 for each in all_candidates)
    slips = sum(each.drawn.failed for each in all_candidates)
    assert f"{len(all_candidates):,} candidates" in CARD
    assert f"{slips:,} wrong programs" in CARD


def test_a_variant_is_a_candidate_of_one_side(all_candidates: tuple[Candidate, ...]) -> None:
    for each in all_candidates:
        assert (each.variant in held_out_variants(each.kind)) == (each.side == "test")
    assert len({each.name for each in all_candidates}) == len(all_candidates)


def doubling(**slots: object) -> Kind:
    return Kind(
        "doubling", "n|x: int -> int", "double|twice", "Return twice $a.", (variant(fn=lambda n: n + n, **slots),),
        lambda rng, _: (rng.randint(-9, 9),), "return 2 * $a",
    )  # fmt: skip


def test_a_kind_whose_tests_let_a_slip_pass_is_refused() -> None:
    rng = random.Random(1)
    fine = doubling(slips=("return $a ** 2",))
    assert draw_problem(fine, fine.variants[0], fine.wordings[0], rng).failed == 1
    passing = doubling(slips=("return $a + $a",))
    with pytest.raises(Unusable, match="no test fails this slip"):
        draw_problem(passing, passing.variants[0], passing.wordings[0], rng)
    wrong = doubling(code="return 3 * $a")
    with pytest.raises(Unusable, match="should give"):
        draw_problem(wrong, wrong.variants[0], wrong.wordings[0], rng)


def made_up(all_candidates: tuple[Candidate, ...]) -> dict[str, tuple[int, int]]:
    rng = random.Random(7)
    return {each.name: (rng.choice((0, 0, 0, 0, 0, 0, 1, 2, 5, 8)), 8) for each in all_candidates}


def test_the_choice_has_the_wanted_shares_of_the_best_kinds(all_candidates: tuple[Candidate, ...]) -> None:
    passes = made_up(all_candidates)
    best = best_kinds(all_candidates, passes, SIZES, MOST_KINDS)
    assert len(best) == MOST_KINDS >= 40
    found = choice(all_candidates, passes, SIZES)
    assert found == choice(all_candidates, dict(reversed(passes.items())), SIZES)
    for side, rows in found.items():
        assert len(rows) == SIZES[side]
        assert all(passes[name] == counts for name, counts in rows.items())
        classes = Counter(solved(*counts) for counts in rows.values())
        assert classes["never"] == round(NEVER * SIZES[side])
        of_side = [each for each in all_candidates if each.side == side and each.kind.name in best]
        mixed = random.Random(f"{SEED} {side}-choice").sample(of_side, len(of_side))
        there_are = sum(solved(*passes[each.name]) == "nearly always" for each in differing(mixed))
        assert classes["nearly always"] == min(there_are, round(NEARLY_ALWAYS * SIZES[side]))
        kinds = Counter(name.split(".")[0] for name in rows)
        assert kinds.keys() == best
        assert max(kinds.values()) <= 3 * SIZES[side] / len(best)


def test_the_best_kinds_are_solved_on_both_sides(all_candidates: tuple[Candidate, ...]) -> None:
    one_side = {each.name: (8 * (each.side == "train"), 8) for each in all_candidates}
    both = {each.name: (1, 8) for each in all_candidates if each.kind.name in ("greeting", "one_step")}
    assert best_kinds(all_candidates, one_side | both, SIZES, 2) == {"greeting", "one_step"}


def test_passes_that_allow_no_choice_are_an_error(all_candidates: tuple[Candidate, ...]) -> None:
    best = best_kinds(all_candidates, {}, SIZES, MOST_KINDS)
    trained = differing(each for each in all_candidates if each.side == "train" and each.kind.name in best)
    with pytest.raises(UnusablePasses, match="40 of the measured candidates are never solved, 620 are wanted"):
        choice(all_candidates, {each.name: (0, 8) for each in trained[:40]}, SIZES)
    with pytest.raises(UnusablePasses, match=r"nothing\.0\.0 is no candidate"):
        choice(all_candidates, {"nothing.0.0": (0, 8)}, SIZES)
    line = json.dumps({"id": "a.0.0", "passes": 1, "samples": 8})
    assert read_passes([line]) == {"a.0.0": (1, 8)}
    with pytest.raises(UnusablePasses, match="comes twice"):
        read_passes([line, line])


def test_measured_passes_become_the_rows_and_the_cards_table(
    all_candidates: tuple[Candidate, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [
        json.dumps({"id": name, "passes": passes, "samples": samples})
        for name, (passes, samples) in made_up(all_candidates).items()
    ]
    measured = tmp_path / "passes.jsonl"
    measured.write_text("\n".join(lines))
    monkeypatch.setattr(measure_intro, "FOLDER", tmp_path / "intro")
    monkeypatch.setattr(sys, "argv", ["measure_intro", str(measured), "--train", "40", "--test", "20"])
    measure_intro.main()
    printed = capsys.readouterr().out
    recorded = json.loads((tmp_path / "intro" / measure_intro.CHOICE_FILE).read_text())
    for side, size in (("train", 40), ("test", 20)):
        rows = [json.loads(line) for line in (tmp_path / "intro" / f"{side}.jsonl").read_text().splitlines()]
        assert [row["problem_id"] for row in rows] == [f"intro/{name}" for name in recorded[side]]
        assert len(rows) == size
        assert histogram((passes, of) for passes, of in recorded[side].values()) in printed
