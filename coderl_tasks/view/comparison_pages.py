"""The pages of an evaluation and of runs compared. Each function returns the variables of the template of its name."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import polars as pl

from coderl_tasks.grading.scoring import UNGRADED, Verdict
from coderl_tasks.insight.diagnosis import Comparison, comparison_table
from coderl_tasks.insight.plots import FIRST, evaluation_marks, history_panels, most_evaluated, panel_of
from coderl_tasks.insight.record import RunRecord, thin
from coderl_tasks.insight.report import facts
from coderl_tasks.insight.shown_metrics import CORRECT, REWARD
from coderl_tasks.insight.timeline import Mark, Series, Timeline
from coderl_tasks.journal.recorded_json import config_changes, shown_setting
from coderl_tasks.view.completion_pages import completion_link
from coderl_tasks.view.library import address
from coderl_tasks.view.program_changes import Side, program_change
from coderl_tasks.view.run_data import Place, RunData, compared
from coderl_tasks.view.run_pages import ROWS_ON_PAGE, Page, compared_with, evaluation_link, other_evaluations

MOST_FLIPPED = 300
LETTERS = "ABCDEF"
"""What compared runs are called in the curves: their names may be long, or the same but for their ends."""
MARKS_APART, MARKS_WIDTH = 10, 24  # pixels between the evaluations of two runs at one step, and of all of them


def problems_with_half_of_gain(pairs: pl.DataFrame) -> int:
    """On how few of the gained problems half of the gain lies; 0 if each gained as much. `pairs` as in Comparison."""
    gained = pairs.select(gain=pl.col("after") - pl.col("before")).filter(pl.col("gain") > 0)
    gains = gained["gain"].sort(descending=True).to_list()
    if not gains or math.isclose(gains[0], gains[-1]):
        return 0
    return next((n for n in range(len(gains) + 1) if 2 * sum(gains[:n]) >= sum(gains)), 0)


def evaluation_page(data: RunData, name: str, evaluation: str, against: str | None, only: str) -> Page:
    """The page of an evaluation, compared with the evaluation `against` (None: the usual one). `only` is a verdict that
    the listed completions have, or empty for all."""
    record = data.evaluation(evaluation)
    others = other_evaluations(data.record, evaluation)
    other = compared_with(data.record, evaluation, against)
    # Both in the order of the run, so that the earlier one comes first.
    ends = [each for each in data.record.evals.values() if other and each.name in (evaluation, other.name)]
    comparison = data.comparison(*ends) if ends else None
    rows = pl.DataFrame(schema={"row": pl.UInt32, "verdict": pl.String, "split": pl.String})
    if record.rollouts is not None:
        rows = data.light_rows(Place(evaluation=evaluation))
    listed = rows.filter(pl.col("verdict") == only) if only else rows
    listed = listed.sort(pl.col("verdict").eq_missing(str(Verdict.PASSED)), "split", "row")  # failures first

    asked = {"eval": evaluation, "against": other.name if other else None}
    return {
        "title": f"evaluation {evaluation}", "run": name, "record": record, "only": only, "against": against,
        "others": list(others.values()), "other": other, "comparison": comparison,
        "comparison_table": comparison_table(comparison) if comparison else None,
        # In how few of the problems that pass more often half of the gain in Pass@1 lies.
        "half": problems_with_half_of_gain(comparison.pairs) if comparison else 0,
        "flips": _flipped(
            {name: data}, (name, name), comparison,
            lambda problem_id: address("run", name, "problem", id=problem_id, **asked) + "#changed",
        ),
        "titles": data.titles(evaluation),  # how the problems' statements begin
        "rows": listed.head(ROWS_ON_PAGE).to_dicts(), "hidden": max(0, len(listed) - ROWS_ON_PAGE),
        "verdicts": rows["verdict"].value_counts(sort=True).rows(),
    }  # fmt: skip


def compare_page(chosen: dict[str, RunData], problem_id: str | None) -> Page:
    """The page of two or more runs, by name: their curves, the newest evaluation of each compared with the first run's,
    the settings that differ, and what changed in the programs of the problem `problem_id`, if any is opened."""
    records = {name: data.record for name, data in chosen.items()}
    first, *others = records
    facts_of = [facts(record) for record in records.values()]  # of each run by label, as its report lists them
    differing: dict[str, list[str]] = {}  # settings in which a run differs from the first, with the value of each run
    for number, record in enumerate(records.values()):
        for change in config_changes(records[first].config, record.config):
            values = differing.setdefault(change.key, [shown_setting(change.old)] * len(records))
            values[number] = shown_setting(change.new)
    return {
        "title": " and ".join(records), "first": first, "problem_id": problem_id,
        "names": list(records), "letters": LETTERS,  # the letters name the runs in the curves, in this order
        # By label the fact of each run, None for a run without it.
        "facts": [(label, [each.get(label) for each in facts_of]) for label in dict.fromkeys(chain(*facts_of))],
        "timeline": _compared_curves(records).plot(),
        "pairs": [_compared_pair(chosen, other, number, problem_id) for number, other in enumerate(others, 1)],
        "settings": sorted(differing.items()),
    }  # fmt: skip


def _compared_pair(chosen: dict[str, RunData], other: str, number: int, problem_id: str | None) -> dict[str, Any]:
    """The first run's newest evaluation compared with that of the run `other`, number `number` on the page. `why` says
    why there is no comparison; `flips` are the problems gained and lost, `opened` is the problem that is open."""
    first = next(iter(chosen))
    # A run without an evaluation after its first step has only the one before it, the baseline.
    before, after = (run.latest or run.baseline for run in (chosen[first].record, chosen[other].record))
    comparison, why = compared(before, after)
    return {
        "name": other, "comparison": comparison, "why": why,
        "table": comparison_table(comparison, sides=(first, other)) if comparison else None,
        "flips": _flipped(
            chosen, (first, other), comparison,
            lambda problem: address("compare", run=[*chosen], problem=problem) + f"#changed-{number}",
        ),
        "opened": _opened(chosen, (first, other), comparison, problem_id),
        "titles": chosen[other].titles(comparison.after.name) if comparison else {},
    }  # fmt: skip


def _compared_curves(records: dict[str, RunRecord]) -> Timeline:
    """The curves of the runs in one figure, a colour and a letter per run: of the panels that a run's page shows first
    the first curve, and Pass@1 of the evaluations."""
    by_run = [history_panels(thin(record.metrics)) for record in records.values()]
    panels = []
    for title in dict.fromkeys((CORRECT, REWARD, *FIRST)):
        firsts = [of_run[title].series[0] if title in of_run else Series("") for of_run in by_run]
        if any(series.known() for series in firsts):
            # A curve is labelled by its run's letter. The panel CORRECT also has marks, Pass@1 of evaluations: there
            # the label adds the curve's own name (the pass rate in training), so that the two are told apart.
            has_marks = title == CORRECT
            marks = _compared_marks(records) if has_marks else ()
            own_name = f" {firsts[0].label}" if has_marks else ""
            series = [replace(each, label=f"{letter}{own_name}") for letter, each in zip(LETTERS, firsts, strict=False)]
            panels.append(replace(panel_of(title), series=series, marks=marks))
    steps = {name: {*record.metrics["step"]} for name, record in records.items()}

    def owner(step: float) -> str:
        """The first run that has the step, else the first run: of long runs a point is a mean of neighbouring steps."""
        return next((name for name in records if int(step) in steps[name]), next(iter(records)))

    return Timeline(
        panels,
        link=lambda step: address("run", owner(step), "step", int(step)),
        said=lambda step: f"step {step:g}: leads to that step of {owner(step)}",
        name=f"Curves of {', '.join(records)}",
    )


def _compared_marks(records: dict[str, RunRecord]) -> list[Mark]:
    """The evaluations of each run in its colour, side by side where several runs have one at the same step."""
    most = most_evaluated(*records.values())
    by_step: dict[int, list[Mark]] = {}
    for colour, (name, record) in enumerate(records.items()):
        for mark in evaluation_marks(record.own_evals, most, evaluation_link(name)):
            own = replace(mark, said=f"{name}, {mark.said}", label="", colour=colour)
            by_step.setdefault(mark.step, []).append(own)
    return [
        replace(mark, shift=min(MARKS_APART, MARKS_WIDTH / len(marks)) * (place - (len(marks) - 1) / 2))
        for marks in by_step.values()
        for place, mark in enumerate(marks)
    ]


def _flipped(
    chosen: dict[str, RunData], names: tuple[str, str], comparison: Comparison | None, link_of: Callable[[str], str]
) -> dict[str, list[dict[str, Any]]]:
    """The problems of which more (`gained`) or fewer (`lost`) completions passed in the second of two evaluations, at
    most MOST_FLIPPED of each: rows of `comparison.pairs` with a link, and as `sides` an example of each evaluation, of
    a gained problem one that failed, then one that passed. `names` are the runs of the two evaluations."""
    if comparison is None:
        return {}
    before, after = (Place(evaluation=record.name) for record in (comparison.before, comparison.after))
    passed = pl.col("verdict") == Verdict.PASSED
    failed = ~passed & ~pl.col("verdict").is_in([*UNGRADED])
    difference = pl.col("after") - pl.col("before")
    flipped = {}
    for kind, condition, wanted in (
        ("gained", difference > 0, (failed, passed)),
        ("lost", difference < 0, (passed, failed)),
    ):
        pairs = comparison.pairs.filter(condition).head(MOST_FLIPPED)
        sides = [
            _example_completions(chosen[name], name, place, pairs["problem_id"], each)
            for name, place, each in zip(names, (before, after), wanted, strict=True)
        ]
        flipped[kind] = [
            pair | {"sides": [side.get(pair["problem_id"]) for side in sides], "link": link_of(pair["problem_id"])}
            for pair in pairs.iter_rows(named=True)
        ]
    return flipped


def _example_completions(
    data: RunData, name: str, place: Place, problem_ids: pl.Series, wanted: pl.Expr
) -> dict[str, dict[str, Any]]:
    """Returns one completion per problem id, with its link: the first `wanted` one at `place`, else the first one."""
    rows = data.scan(place).filter(pl.col("problem_id").is_in(problem_ids.implode()))
    ordered = rows.sort(wanted.fill_null(value=False), "row", descending=[True, False])
    found = ordered.unique("problem_id", keep="first").select("row", "problem_id", "verdict").collect()
    examples = (row | {"link": completion_link(name, place, row)} for row in found.iter_rows(named=True))
    return {row["problem_id"]: row for row in examples}


def _opened(
    chosen: dict[str, RunData], names: tuple[str, str], comparison: Comparison | None, problem_id: str | None
) -> dict[str, Any] | None:
    """What changed in a problem between two runs, its statement, and its pages; None if as many completions pass in
    both."""
    if comparison is None or problem_id is None:
        return None
    places = [Place(evaluation=record.name) for record in (comparison.before, comparison.after)]
    ends = [*zip(names, places, strict=True)]
    before, after = (Side(name, name, place, chosen[name].problem_rows(place, problem_id)) for name, place in ends)
    problem = chosen[after.run].problem(problem_id, after.place)[0]
    change = program_change(before, after, problem)
    links = [(name, address("run", name, "problem", id=problem_id, eval=place.evaluation)) for name, place in ends]
    return {"change": change, "statement": problem and problem.statement, "links": links} if change else None
