"""The pages of an evaluation and of runs compared. Each function returns the variables of the template of its name."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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


def half_of(pairs: pl.DataFrame) -> int:
    """On how few of the gained problems half of the gain lies; 0 if each gained as much. `pairs` as in Comparison."""
    gained = pairs.select(gain=pl.col("after") - pl.col("before")).filter(pl.col("gain") > 0)
    gains = gained["gain"].sort(descending=True).to_list()
    if not gains or math.isclose(gains[0], gains[-1]):
        return 0
    return next((n for n in range(len(gains) + 1) if 2 * sum(gains[:n]) >= sum(gains)), 0)


def evaluation_page(data: RunData, name: str, evaluation: str, against: str | None, only: str) -> Page:
    """The variables of the page of one evaluation of the run `name`: Pass@1 by split, the problems that are solved in
    it but not in another evaluation or the reverse, and a list of all problems. `against` names the other evaluation
    (None: the usual one); `only` is a verdict that the listed completions have, or empty for all."""
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

    def changed(problem_id: str) -> str:
        """The address that shows what changed in the programs of a problem."""
        named = other.name if other else None
        return address("run", name, "problem", id=problem_id, eval=evaluation, against=named) + "#changed"

    return {
        "title": f"evaluation {evaluation}",
        "run": name,
        "record": record,
        "others": list(others.values()),
        "other": other,
        "comparison": comparison,
        "comparison_table": comparison_table(comparison) if comparison else None,
        "half": half_of(comparison.pairs) if comparison else 0,  # so many problems are half of the gain
        "titles": data.titles(evaluation),  # how the problems' statements begin
        "flips": _flipped({name: data}, (name, name), comparison, changed),
        "rows": listed.head(ROWS_ON_PAGE).to_dicts(),
        "hidden": max(0, len(listed) - ROWS_ON_PAGE),
        "verdicts": rows["verdict"].value_counts(sort=True).rows(),
        "only": only,
        "against": against,
    }


def compare_page(chosen: dict[str, RunData], problem_id: str | None) -> Page:
    """The variables of the page of two or more runs beside each other, by name: their curves, the newest evaluation of
    each compared with the first run's, the settings that differ, and what changed in the programs of the problem
    `problem_id` (None: no problem is opened)."""
    records = {name: data.record for name, data in chosen.items()}
    first_name, first = next(iter(records.items()))
    facts_of = [facts(record) for record in records.values()]
    # For each further run its name, and the comparison, or None and why there is none.
    pairs = [
        (name, *compared(first.latest or first.baseline, record.latest or record.baseline))
        for name, record in list(records.items())[1:]
    ]
    differing: dict[str, list[str]] = {}  # by setting its value in each run; the first run's, unless it differs
    for number, record in enumerate(records.values()):
        for change in config_changes(first.config, record.config):
            values = differing.setdefault(change.key, [shown_setting(change.old)] * len(records))
            values[number] = shown_setting(change.new)
    return {
        "title": " and ".join(records),
        "names": list(records),
        "letters": LETTERS,
        "first": first_name,
        "facts": [(label, [each.get(label) for each in facts_of]) for label in dict.fromkeys(chain(*facts_of))],
        "timeline": _compared_curves(records).plot(),
        "pairs": [
            {
                "name": name,
                "comparison": comparison,
                "why": why,
                "table": comparison_table(comparison, sides=(first_name, name)) if comparison else None,
                "flips": _flipped(chosen, (first_name, name), comparison, partial(_opening, [*records], number)),
                "opened": _opened(chosen, (first_name, name), comparison, problem_id),
                "titles": chosen[name].titles(comparison.after.name) if comparison else {},
            }
            for number, (name, comparison, why) in enumerate(pairs, 1)
        ],
        "settings": sorted(differing.items()),
        "problem_id": problem_id,
    }


def _compared_curves(records: dict[str, RunRecord]) -> Timeline:
    """The curves of two or more runs in one figure, a colour and a letter per run: of each panel that a run's page
    shows first (Pass rate, reward and so on) the first curve, and Pass@1 of the evaluations. Each step is a link."""
    by_run = [history_panels(thin(record.metrics)) for record in records.values()]
    panels = []
    for title in dict.fromkeys((CORRECT, REWARD, *FIRST)):
        firsts = [of_run[title].series[0] if title in of_run else Series("") for of_run in by_run]
        if any(series.known() for series in firsts):
            # In the panel of Pass@1 the label says what the curve is: evaluations are drawn beside it.
            what = f" {firsts[0].label}" if title == CORRECT else ""
            series = [replace(each, label=f"{letter}{what}") for letter, each in zip(LETTERS, firsts, strict=False)]
            marks = _compared_marks(records) if title == CORRECT else ()
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


def _opening(names: list[str], number: int, problem_id: str) -> str:
    """The address at which a problem of the comparison `number` is opened."""
    return address("compare", run=names, problem=problem_id) + f"#changed-{number}"


def _flipped(
    chosen: dict[str, RunData],
    names: tuple[str, str],
    comparison: Comparison | None,
    changed: Callable[[str], str],
) -> dict[str, list[dict[str, Any]]]:
    """The problems of which more (`gained`) or fewer (`lost`) completions passed in the second of two evaluations than
    in the first, at most MOST_FLIPPED of each. `names` are the runs of both evaluations, read from `chosen`. Each
    problem has its row of `comparison.pairs`, as `link` what `changed` returns for its id, and as `sides` for each
    evaluation a completion that makes the difference: of a gained problem one that failed, then one that passed."""
    if comparison is None:
        return {}
    is_passed = pl.col("verdict") == Verdict.PASSED
    is_failed = ~is_passed & ~pl.col("verdict").is_in([*UNGRADED])
    ends = zip(names, (comparison.before, comparison.after), strict=True)
    places = [(name, Place(evaluation=record.name)) for name, record in ends]
    difference, flipped = pl.col("after") - pl.col("before"), {}
    for kind, condition, made_by in (
        ("gained", difference > 0, (is_failed, is_passed)),
        ("lost", difference < 0, (is_passed, is_failed)),
    ):
        pairs, sides = comparison.pairs.filter(condition).head(MOST_FLIPPED), list[dict[str, dict[str, Any]]]()
        for (name, place), makes_it in zip(places, made_by, strict=True):
            rows = chosen[name].scan(place).filter(pl.col("problem_id").is_in(pairs["problem_id"].implode()))
            # Of a problem's completions the first of those that make the difference, else the first.
            ordered = rows.sort(makes_it.fill_null(value=False), "row", descending=[True, False])
            found = ordered.unique("problem_id", keep="first").select("row", "problem_id", "verdict").collect()
            links = (row | {"link": completion_link(name, place, row)} for row in found.iter_rows(named=True))
            sides.append({row["problem_id"]: row for row in links})
        flipped[kind] = [
            pair | {"sides": [side.get(pair["problem_id"]) for side in sides], "link": changed(pair["problem_id"])}
            for pair in pairs.iter_rows(named=True)
        ]
    return flipped


def _opened(
    chosen: dict[str, RunData], names: tuple[str, str], comparison: Comparison | None, problem_id: str | None
) -> dict[str, Any] | None:
    """What changed in a problem between two runs, its statement, and its page in both; None if as many completions pass
    in both, or one of the runs does not have it."""
    if comparison is None or problem_id is None:
        return None
    places = [Place(evaluation=record.name) for record in (comparison.before, comparison.after)]
    before, after = (
        Side(name, name, place, chosen[name].problem_rows(place, problem_id))
        for name, place in zip(names, places, strict=True)
    )
    problem = chosen[after.run].problem(problem_id, after.place)[0]
    change = program_change(before, after, problem)
    links = [
        (side.run, address("run", side.run, "problem", id=problem_id, eval=side.place.evaluation))
        for side in (before, after)
    ]
    return {"change": change, "statement": problem and problem.statement, "links": links} if change else None
