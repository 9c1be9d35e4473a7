"""The pages beside those of a run: what there is, a pool, a search. Each function returns the variables
of the template of its name."""

import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.grading.scoring import Verdict
from coderl_tasks.insight import pool_view
from coderl_tasks.insight.audit_view import MEANINGS, audit_in_words, findings_table, tone, worst_first
from coderl_tasks.insight.problem_view import pool_file
from coderl_tasks.insight.record import CurationRecord, light_frame, pool_row, run_row
from coderl_tasks.insight.report import AUDIT_REPORT
from coderl_tasks.insight.tables import age
from coderl_tasks.journal.recorded_json import recorded_config
from coderl_tasks.paths import POOLS
from coderl_tasks.view.completion_pages import completion_link
from coderl_tasks.view.library import Library, NotThereError, address
from coderl_tasks.view.run_data import Place, RunData, problem_in_pool
from coderl_tasks.view.run_pages import Page
from coderl_tasks.view.search import OTHER_KINDS, TEXTS, Wanted, grouped, search

MOST_ROWS, MOST_LISTED = 300, 500
_ROW_OF = re.compile(r"row (\d+) of ([^\s,]+)(?![^\s,])(?! test)")  # those of the test side are in no file of the pool
BARS_WIDTH = 560


def library_page(library: Library, now: float) -> Page:
    """The runs and pools there are, the newest first, those pools among them that the runs were trained on."""
    paths, trained = library.runs(), _trained_on(library)
    runs = [{"name": name, "age": age(now - path.stat().st_mtime)} | run_row(path) for name, path in paths.items()]
    pools = [
        {"name": name, "age": age(now - path.stat().st_mtime), "runs": trained.get(name, [])} | pool_row(path)
        for name, path in library.pools().items()
    ]
    return {"title": "Runs and pools", "runs": runs, "pools": pools, "searched": POOLS if library.is_whole else None}


def _trained_on(library: Library) -> dict[str, list[str]]:
    """The runs by the name of the pool that they were trained on."""
    pools, files, trained = library.pools().values(), dict[str, Path](), dict[str, list[str]]()
    for name, path in library.runs().items():
        with suppress(ConfigError, DataError):  # it has no pool any more, or its row says what is damaged
            files[name] = pool_file(recorded_config(path) or {}, pools)
    known = library.names_of_pools(files.values())
    for name, file in files.items():
        if file in known:
            trained.setdefault(known[file], []).append(name)
    return trained


def pool_page(curation: CurationRecord, name: str, library: Library, order: str) -> Page:
    """The page of a pool with its problems in the order `order` (one of ORDERS). A variable is None or empty where the
    pool has nothing for it, as without a profile (sampled pass rates)."""
    page = {
        "title": name, "pool": name, "path": curation.path, "runs": _trained_on(library).get(name, []),
        "n": len(curation.pool), "dropped": len(curation.dropped), "funnel": pool_view.funnel(curation),
        "problems": _listed_problems(curation.pool, order), "hidden": max(0, len(curation.pool) - MOST_LISTED),
        "order": order, "orders": ORDERS, "manifest": pool_view.flatten(curation.manifest),
    }  # fmt: skip
    return page | _profile_of_pool(curation) | _audit_of_pool(curation)


def _profile_of_pool(curation: CurationRecord) -> Page:
    """What the profile (pass rates, from sampled completions) says: the rates with the band that was kept,
    difficulties, costs."""
    profile, band = curation.profile, curation.band
    has_rates = len(profile) and "posterior" in profile.columns  # the histogram adds up these distributions
    has_difficulties = "difficulty_probability" in curation.pool.columns
    splits = pool_view.make_up(curation.pool) if has_difficulties else []  # a row per split, the last one of all splits
    costs = pool_view.spending(profile)
    return {
        "histogram": pool_view.pass_rate_plot(profile, band, BARS_WIDTH) if has_rates else None, "band": band,
        "profiled": len(profile), "rates_note": pool_view.NOTE_ON_RATES,
        "make_up": pool_view.make_up_table(splits) if splits else None,
        "bounds_note": pool_view.NOTE_ON_BOUNDS if splits else "", "labels_note": pool_view.note_on_labels(splits),
        "spending": pool_view.spending_table(costs) if costs else None, "spending_note": pool_view.NOTE_ON_SPENDING,
    }  # fmt: skip


def _audit_of_pool(curation: CurationRecord) -> Page:
    """What an audit of the pool's tests found, the worst first, and the command that audits the pool."""
    audit = light_frame(curation.path / "audit.parquet")
    worst = worst_first(audit)[:MOST_ROWS] if len(audit) else []
    return {
        "findings": [row | {"tones": {finding: tone(finding) for finding in row["audit"]}} for row in worst],
        "meanings": MEANINGS, "audited": len(audit), "audit_words": audit_in_words(audit) if len(audit) else "",
        "audit_findings": findings_table(audit) if len(audit) else None,
        "audit_page": page if (page := curation.path / AUDIT_REPORT).is_file() else None,
        "audit_command": f"coderl audit {shlex.quote(str(curation.path))}",
    }  # fmt: skip


ORDERS = {"source": "as they came", "rate": "pass rate, lowest first", "tests": "fewest tests first"}


def _listed_problems(pool: pl.DataFrame, order: str) -> list[dict[str, Any]]:
    if not len(pool):
        return []
    columns = (
        "problem_id", "split", "kind", "tests_total", "difficulty", "difficulty_probability", "pass_rate", "n_samples",
        "n_correct", "ci_low", "ci_high", "statement",
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
        "title": f"{stage}: {reason}", "pool": name, "stage": stage, "reason": reason,
        "rows": pairs, "hidden": max(0, len(rows) - MOST_ROWS), "n": len(rows),
    }  # fmt: skip


def _other_row(curation: CurationRecord, detail: str) -> dict[str, Any] | None:
    """The row that a drop's detail names ("row 3 of taco"), from the pool or from what was dropped."""
    named = _ROW_OF.search(detail)
    if named is None:
        return None
    of_row = pl.col("source_row") == int(named[1]), pl.col("split") == named[2]
    found = (frame.filter(*of_row) for frame in (curation.pool, curation.dropped) if len(frame))
    columns = ("problem_id", "split", "source_row", "statement")
    return next((rows.select(columns).row(0, named=True) for rows in found if len(rows)), None)


def search_page(data: RunData, name: str, wanted: Wanted) -> Page:
    """The page that searches the completions of a run: the form, filled in with `wanted`, and what was found, if
    anything is asked for. `rest` is the address that searches on."""
    hits = search(data, wanted) if any((wanted.text, wanted.verdict, wanted.problem)) else None
    place = Place(evaluation=wanted.evaluation) if wanted.evaluation else None
    rows = []
    for row in hits.rows if hits else ():
        found = row["found"]
        if found is not None:  # as what stands before the text, the text, and what follows
            before, hit, after = found.partition(wanted.text) if wanted.text else (found, "", "")
            found = before.lstrip("\n"), hit, after.rstrip("\n")
        rows.append(row | {"link": completion_link(name, place or Place(row["step"]), row), "found": found})
    left = hits.rest if hits else None  # `wanted`, from where this search stopped
    return {
        "title": "search", "run": name, "wanted": wanted, "hits": hits, "rows": rows,
        "within": TEXTS, "verdicts": [*map(str, Verdict), *OTHER_KINDS],
        "evals": [record.name for record in data.record.evals.values() if record.rollouts is not None],
        "groups": grouped(data, rows, wanted.evaluation),  # of `rows`, with equal programs and results as one
        "titles": data.titles(wanted.evaluation or None) if rows else {},
        "rest": address("run", name, "search", **left.query()) if left else None,
    }  # fmt: skip
