"""The pages beside those of a run: what there is, runs compared, a pool, a search. Each function returns the variables
of the template of its name."""

import re
import shlex
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import polars as pl

from coderl_tasks.errors import CoderlError, ConfigError, DataError
from coderl_tasks.grading.verdict import UNGRADED, Verdict
from coderl_tasks.insight.audit_view import MEANINGS, audit_in_words, findings_table, tone, worst_first
from coderl_tasks.insight.diagnosis import Comparison, compare_evals, comparison_table
from coderl_tasks.insight.plots import FIRST, evaluation_marks, history_panels, panel_of
from coderl_tasks.insight.pool_view import (
    NOTE_ON_LABELS,
    NOTE_ON_RATES,
    drops_table,
    flatten,
    funnel,
    make_up,
    make_up_table,
    pass_rate_plot,
    spending,
    spending_table,
)
from coderl_tasks.insight.problem_view import pool_file
from coderl_tasks.insight.record import CurationRecord, EvalRecord, RunRecord, light_frame, pool_row, run_row, thin
from coderl_tasks.insight.report import AUDIT_REPORT, facts
from coderl_tasks.insight.shown_metrics import CORRECT, REWARD
from coderl_tasks.insight.tables import age
from coderl_tasks.insight.timeline import Mark, Series, Timeline
from coderl_tasks.journal.recorded_json import config_changes, recorded_config, shown_setting
from coderl_tasks.paths import POOLS
from coderl_tasks.view.completion_pages import Side, completion_link, linked_change
from coderl_tasks.view.library import Library, NotThereError, address
from coderl_tasks.view.run_data import Place, RunData, problem_in_pool
from coderl_tasks.view.run_pages import Page, own_evaluations
from coderl_tasks.view.search import KINDS, TEXTS, Wanted, grouped, search

MOST_ROWS, MOST_LISTED = 300, 500
LETTERS = "ABCDEF"
"""What compared runs are called in the curves: their names may be long, or the same but for their ends."""
_ROW_OF = re.compile(r"row (\d+) of ([^\s,]+)(?![^\s,])(?! test)")  # those of the test side are in no file of the pool
BARS_WIDTH = 560
MARKS_APART = 10  # pixels between the evaluations of two runs at one step


def library_page(library: Library, now: float) -> Page:
    """The runs and pools there are, the newest first, those pools among them that the runs were trained on."""
    paths = library.runs()
    trained: dict[str | None, list[str]] = {}  # the runs by the name of their pool
    for name, path in paths.items():
        with suppress(ConfigError, DataError):  # it has no pool any more, or its row says what is damaged
            pool = library.pool_of(pool_file({"pool": (recorded_config(path) or {}).get("pool")}))
            trained.setdefault(pool, []).append(name)
    runs = [{"name": name, "age": age(now - path.stat().st_mtime)} | run_row(path) for name, path in paths.items()]
    pools = [
        {"name": name, "age": age(now - path.stat().st_mtime), "runs": trained.get(name, [])} | pool_row(path)
        for name, path in library.pools().items()
    ]
    return {"title": "Runs and pools", "runs": runs, "pools": pools, "searched": POOLS if library.is_whole else None}


def compare_page(chosen: dict[str, RunData], problem_id: str | None) -> Page:
    """Two or more runs beside each other: curves, paired problems of their newest evaluations against the first run's,
    what changed in the programs of one problem, if it is named, and the settings that differ."""
    records = {name: data.record for name, data in chosen.items()}
    first_name, first = next(iter(records.items()))
    facts_of = [facts(record) for record in records.values()]
    pairs: list[tuple[str, Comparison | None, str]] = []
    for name, record in list(records.items())[1:]:
        try:
            pairs.append((name, compare_evals(first.latest or first.baseline, record.latest or record.baseline), ""))
        except CoderlError as error:
            pairs.append((name, None, str(error)))
    differing: dict[str, list[str]] = {}
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
                "why": why or "they share no evaluated problem",
                "table": comparison_table(comparison, sides=(first_name, name)) if comparison else None,
                "gained": _flipped(chosen, (first_name, name), comparison, gained=True),
                "lost": _flipped(chosen, (first_name, name), comparison, gained=False),
                "opened": _opened(chosen, (first_name, name), comparison, problem_id),
                "titles": chosen[name].titles(comparison.after.name) if comparison else {},
            }
            for name, comparison, why in pairs
        ],
        "settings": sorted(differing.items()),
        "problem_id": problem_id,
    }


def _compared_curves(records: dict[str, RunRecord]) -> Timeline:
    """The first curve of each panel that a run's page shows first, a colour per run."""
    compared = [history_panels(thin(record.metrics)) for record in records.values()]
    panels = []
    for title in dict.fromkeys((CORRECT, REWARD, *FIRST)):
        firsts = [
            panels_of_run[title].series[0] if title in panels_of_run else Series("") for panels_of_run in compared
        ]
        if any(series.known() for series in firsts):
            series = [replace(each, label=letter) for letter, each in zip(LETTERS, firsts, strict=False)]
            marks = _compared_marks(records) if title == CORRECT else ()
            panels.append(replace(panel_of(title), series=series, marks=marks))
    steps = {name: {*record.metrics["step"]} for name, record in records.items()}

    def owner(step: float) -> str:
        """The first run that has the step. Of long runs a point is the mean of neighbouring steps."""
        return next((name for name in records if int(step) in steps[name]), next(iter(records)))

    return Timeline(
        panels,
        link=lambda step: address("run", owner(step), "step", str(int(step))),
        said=lambda step: f"step {step:g}: leads to that step of {owner(step)}",
        name=f"Curves of {', '.join(records)}",
    )


def _compared_marks(records: dict[str, RunRecord]) -> list[Mark]:
    """The evaluations of each run in its colour, side by side where two runs have one at the same step."""
    marks = []
    for colour, (name, record) in enumerate(records.items()):
        shift = MARKS_APART * (colour - (len(records) - 1) / 2)
        for mark in evaluation_marks(own_evaluations(record), partial(_evaluation_address, name)):
            marks.append(replace(mark, said=f"{name}, {mark.said}", label="", colour=colour, shift=shift))
    return marks


def _evaluation_address(name: str, record: EvalRecord) -> str:
    return address("run", name, "eval", record.name)


def _flipped(
    chosen: dict[str, RunData], names: tuple[str, str], comparison: Comparison | None, *, gained: bool
) -> list[dict[str, Any]]:
    """The problems that only the second run solves (or only the first), with links to both completions."""
    if comparison is None:
        return []
    better = pl.col("after") > pl.col("before") if gained else pl.col("after") < pl.col("before")
    pairs = comparison.pairs.filter(better).head(MOST_ROWS)
    is_passed = pl.col("verdict") == Verdict.PASSED
    is_failed = ~is_passed & ~pl.col("verdict").is_in([*UNGRADED])
    sides: list[dict[str, dict[str, Any]]] = []
    for name, record, is_better in ((names[0], comparison.before, not gained), (names[1], comparison.after, gained)):
        place = Place(evaluation=record.name)
        rows = chosen[name].scan(place).filter(pl.col("problem_id").is_in(pairs["problem_id"].implode()))
        # Of several completions the first of those that make the difference: the last one in this order stays.
        makes_it = (is_passed if is_better else is_failed).fill_null(value=False)
        found = rows.sort(makes_it, "row", descending=[False, True]).select("row", "problem_id", "verdict").collect()
        sides.append(
            {
                row["problem_id"]: row | {"link": completion_link(name, place, row)}
                for row in found.iter_rows(named=True)
            }
        )
    return [pair | {"sides": [side.get(pair["problem_id"]) for side in sides]} for pair in pairs.iter_rows(named=True)]


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
    change = linked_change(before, after, problem)
    links = [
        (side.run, address("run", side.run, "problem", id=problem_id, eval=side.place.evaluation))
        for side in (before, after)
    ]
    return {"change": change, "statement": problem and problem.statement, "links": links} if change else None


def pool_page(curation: CurationRecord, name: str, order: str) -> Page:
    """A pool: what each stage dropped and left, difficulty, the problems, audit flags."""
    rows, profile = funnel(curation), curation.profile
    parts, spent = (
        make_up(curation.pool) if "difficulty_probability" in curation.pool.columns else [],
        spending(profile),
    )
    audit = light_frame(curation.path / "audit.parquet")
    return {
        "title": name,
        "pool": name,
        "path": curation.path,
        "n": len(curation.pool),
        "dropped": len(curation.dropped),
        "funnel": rows,
        "drops": drops_table(rows),
        "band": curation.band,
        "histogram": pass_rate_plot(profile, curation.band, BARS_WIDTH)
        if len(profile) and "posterior" in profile.columns
        else None,
        "profiled": len(profile),
        "rates_note": NOTE_ON_RATES,
        "labels_note": NOTE_ON_LABELS if parts and sum(parts[-1].few) else "",
        "make_up": make_up_table(parts) if parts else None,
        "spending": spending_table(spent) if spent else None,
        "problems": _listed_problems(curation.pool, order),
        "order": order,
        "hidden": max(0, len(curation.pool) - MOST_LISTED),
        "findings": [
            row | {"tones": {finding: tone(finding) for finding in row["audit"]}}
            for row in worst_first(audit)[:MOST_ROWS]
        ]
        if len(audit)
        else [],
        "meanings": MEANINGS,
        "audited": len(audit),
        "audit_words": audit_in_words(audit) if len(audit) else "",
        "audit_findings": findings_table(audit) if len(audit) else None,
        "audit_page": page if (page := curation.path / AUDIT_REPORT).is_file() else None,
        "audit_command": f"coderl audit {shlex.quote(str(curation.path))}",
        "manifest": flatten(curation.manifest),
    }


ORDERS = {"source": "as they came", "rate": "pass rate, lowest first", "tests": "fewest tests first"}


def _listed_problems(pool: pl.DataFrame, order: str) -> list[dict[str, Any]]:
    if not len(pool):
        return []
    columns = (
        "problem_id", "split", "kind", "tests_total", "difficulty", "pass_rate", "n_samples", "n_correct", "ci_low",
        "ci_high", "statement",
    )  # fmt: skip
    keys = {"rate": "pass_rate", "tests": "tests_total"}
    rows = pool.select([name for name in columns if name in pool.columns])
    if keys.get(order) in rows.columns:
        rows = rows.sort(keys[order], "problem_id", nulls_last=True)
    return rows.head(MOST_LISTED).with_columns(pl.col("statement").str.slice(0, 160)).to_dicts()


def pool_problem_page(curation: CurationRecord, name: str, problem_id: str) -> Page:
    """A problem of a pool with its tests, what its profile says, and what an audit found."""
    try:
        problem = problem_in_pool(curation.path / "pool.parquet", problem_id)
    except DataError as error:
        raise NotThereError(str(error)) from error
    if problem is None:
        raise NotThereError(f"the pool has no problem {problem_id}")
    row = curation.pool.filter(pl.col("problem_id") == problem_id).row(0, named=True)
    audit = light_frame(curation.path / "audit.parquet")
    found = audit.filter(pl.col("problem_id") == problem_id).to_dicts() if len(audit) else []
    return {"title": problem_id, "pool": name, "problem": problem, "row": row, "audit": found[0] if found else None}


def drops_page(curation: CurationRecord, name: str, stage: str, reason: str) -> Page:
    """The rows that a stage dropped for a reason; a near duplicate beside the problem that it is near to."""
    dropped = curation.dropped
    rows = dropped.filter(pl.col("stage") == stage, pl.col("reason") == reason) if len(dropped) else dropped
    if not len(rows):
        raise NotThereError(f"nothing was dropped at {stage} for {reason}")
    shown = rows.head(MOST_ROWS).iter_rows(named=True)
    pairs = [row | {"other": _other_row(curation, row["detail"] or "")} for row in shown]
    return {
        "title": f"{stage}: {reason}",
        "pool": name,
        "stage": stage,
        "reason": reason,
        "rows": pairs,
        "hidden": max(0, len(rows) - MOST_ROWS),
        "n": len(rows),
    }


def _other_row(curation: CurationRecord, detail: str) -> dict[str, Any] | None:
    """The row that a drop's detail names ("row 3 of taco"), from the pool or from what was dropped."""
    named = _ROW_OF.search(detail)
    if named is None:
        return None
    columns = ["problem_id", "split", "source_row", "statement"]
    for frame in (curation.pool, curation.dropped):
        if len(frame):
            rows = frame.filter(pl.col("source_row") == int(named[1]), pl.col("split") == named[2]).select(columns)
            if len(rows):
                return rows.row(0, named=True)
    return None


def search_page(data: RunData, name: str, wanted: Wanted) -> Page:
    """The form, and the completions found if anything is asked for."""
    asked = any((wanted.text, wanted.verdict, wanted.problem))
    hits = search(data, wanted) if asked else None
    place = Place(evaluation=wanted.evaluation) if wanted.evaluation else None
    rows = [
        row
        | {"link": completion_link(name, place or Place(row["step"]), row), "found": _around(row["found"], wanted.text)}
        for row in (hits.rows if hits else [])
    ]
    rest = None
    if hits is not None and (left := hits.rest) is not None:
        after = f"{left.after[0]}.{left.after[1]}" if left.after else None
        rest = address(
            "run", name, "search", q=left.text or None, within=left.within, verdict=left.verdict or None,
            problem=left.problem or None, first=left.first, last=left.last, eval=left.evaluation or None, after=after,
        )  # fmt: skip
    return {
        "title": "search",
        "run": name,
        "wanted": wanted,
        "within": TEXTS,
        "verdicts": [*map(str, Verdict), *KINDS],
        "evals": [record.name for record in data.record.evals.values() if record.rollouts is not None],
        "hits": hits,
        "rows": rows,
        "groups": grouped(data, rows, wanted.evaluation),
        "titles": data.titles(wanted.evaluation or None) if rows else {},
        "rest": rest,
    }


def _around(found: str | None, text: str) -> tuple[str, str, str] | None:
    """What stands before a hit, the hit, and what follows."""
    if found is None or text not in found:
        return None
    before, hit, after = found.partition(text) if text else (found, "", "")
    return before.lstrip("\n"), hit, after.rstrip("\n")
