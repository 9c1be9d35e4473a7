"""The pages of a run: the run, a step, an evaluation, a problem, a completion. Each function returns the variables of
the template of its name."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any

import polars as pl

from coderl_tasks.evaluation.paired import changed_text
from coderl_tasks.grading.verdict import UNGRADED, Verdict
from coderl_tasks.insight.diagnosis import compare_evals, comparison_table
from coderl_tasks.insight.plots import FIRST, PANELS
from coderl_tasks.insight.problem_view import failed_test
from coderl_tasks.insight.record import EvalRecord, RunRecord, thin
from coderl_tasks.insight.report import facts
from coderl_tasks.insight.shown_metrics import CORRECT, REWARD, SECONDS, SHOWN, SIGNAL, line_texts
from coderl_tasks.insight.token_uses import costs, costs_table
from coderl_tasks.insight.warning_signs import acts
from coderl_tasks.journal.recorded_json import config_changes, shown_setting
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA, TRUNCATED
from coderl_tasks.problems.problem import Problem
from coderl_tasks.settings import TrainSettings
from coderl_tasks.view import marked_text, proof
from coderl_tasks.view.library import Library, NotThereError, address
from coderl_tasks.view.run_data import Place, RunData, pieces
from coderl_tasks.view.timeline import Event, Mark, Panel, Series, Timeline

Page = dict[str, Any]
LAST_STEPS, ROWS_ON_PAGE, SIBLINGS, CLUSTERS_OPEN = 25, 400, 200, 24
TOKENS_ON_PAGE = 2000
STEP_METRICS = (
    "mean_reward", "mean_correct", "format_rate", "truncated_rate", "entropy", "kl_sample_train", "time_step_s",
)  # fmt: skip
BEFORE = 5  # steps that a step is compared with
SHADES = {"logprob": "log-probability", "base": "log-probability less the base model's", "advantage": "advantage"}
NATS = 4.0  # of surprise at which a token has the strongest shade


def verdict_tone(verdict: str | None) -> str:
    """The class of a verdict's tag: an ungraded completion is nobody's failure."""
    if verdict == Verdict.PASSED:
        return "good"
    return "warn" if verdict is None or verdict in UNGRADED else "bad"


def run_page(data: RunData, name: str, library: Library, first: int | None, last: int | None, *, every: bool) -> Page:
    """`first` and `last` bound the steps of the curves; `every`: all metrics have curves, and all steps a row."""
    record = data.record
    shown = record.metrics
    if first is not None:
        shown = shown.filter(pl.col("step") >= first)
    if last is not None:
        shown = shown.filter(pl.col("step") <= last)
    comparison = compare_evals(record.baseline, record.latest)
    spent = data.of_state("costs", lambda: costs(record))
    steps = record.metrics.reverse() if every else record.metrics.tail(LAST_STEPS).reverse()
    return {
        "title": name,
        "run": name,
        "record": record,
        "state": data.state,
        "at_work": data.at_work() if data.state == "running" else None,
        "facts": facts(record),
        "comparison": comparison,
        "timeline": timeline(data, name, shown, every=every).svg() if len(shown) or record.evals else None,
        "bounds": (first, last),
        "every": every,
        "warnings": [(episode.begun, episode.over, data.watch.text(episode)) for episode in data.watch.episodes],
        "acts": acts(record),
        "steps": list(steps.iter_rows(named=True)),
        "step_columns": step_columns(record),
        "n_steps": len(record.metrics),
        "evals": list(record.evals.values()),
        "costs": costs_table(spent) if spent else None,
        "caps": caps(record, spent),
        "changes": changed_settings(record.config),
        "pool": library.pool_of(record.config),
        "hardest": hardest(data.groups),
        "worse": worse(data.groups),
        "commands": [f"coderl {words} {shlex.quote(str(record.path))}" for words in ("report", "watch", "shell")],
    }


def step_columns(record: RunRecord) -> list[tuple[str, str, str]]:
    """The columns of a table of steps: metric, heading, format; without faults that never happened."""
    columns = []
    for metric, shown in SHOWN.items():
        if shown.column is None or metric not in record.metrics.columns:
            continue
        values = record.metrics[metric].drop_nulls()
        if len(values) and not (shown.is_fault and not (values != 0).any()):
            columns.append((metric, *shown.column))
    return columns


def caps(record: RunRecord, spent: Sequence[Any]) -> list[tuple[str, float, float]]:
    """The run's caps: setting, what is used and what there is. A pool's profile, which other runs share, is not its."""
    used = [row for row in spent if row.use not in ("profile", "all")]
    tokens = sum(row.tokens.counted for row in used)
    found: list[tuple[str, float, float]] = []
    if (most := record.config.get("max_tokens_total")) is not None:
        found.append(("max_tokens_total", tokens, float(most)))
    if (most := record.config.get("max_usd")) is not None and all(row.usd is not None for row in used):
        found.append(("max_usd", sum(row.usd for row in used), float(most)))
    return found


def changed_settings(config: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The settings that differ from the defaults, of the run's preset where it has one: key, default, the run's."""
    preset = config.get("preset")
    try:
        settings = TrainSettings.model_validate({"preset": preset} if preset else {})
    except ValueError:  # a preset of another version
        settings = TrainSettings()
    usual = settings.model_dump(mode="json")
    known = {key: value for key, value in config.items() if key in usual}
    return [(each.key, shown_setting(each.old), shown_setting(each.new)) for each in config_changes(usual, known)]


def hardest(groups: pl.DataFrame, most: int = 8) -> list[dict[str, Any]]:
    """The problems with the lowest pass rates: id, passed, graded, the last step and group with it."""
    by_problem = groups.group_by("problem_id").agg(pl.col("passed", "graded").sum(), pl.col("step").max())
    rate = (pl.col("passed") / pl.col("graded")).alias("rate")
    rows = by_problem.filter(pl.col("graded") > 0).with_columns(rate)
    return rows.sort("rate", "graded", "problem_id", descending=[False, True, False]).head(most).to_dicts()


def worse(groups: pl.DataFrame, most: int = 8) -> list[dict[str, Any]]:
    """The problems whose pass rate fell most from their first visit to their last: id, both rates, the last step."""
    rated = groups.filter(pl.col("graded") > 0).with_columns(rate=pl.col("passed") / pl.col("graded"))
    by_problem = rated.sort("step", "group_index").group_by("problem_id", maintain_order=True)
    moved = by_problem.agg(first=pl.col("rate").first(), last=pl.col("rate").last(), step=pl.col("step").last())
    fallen = moved.filter(pl.col("last") < pl.col("first"))
    return fallen.sort(pl.col("last") - pl.col("first"), pl.col("problem_id")).head(most).to_dicts()


def timeline(data: RunData, name: str, metrics: pl.DataFrame, *, every: bool) -> Timeline:
    """The curves and events of the steps in `metrics`. Of a long run each point is the mean of neighbouring steps, and
    leads to the one of them in which the fewest completions passed."""
    record, steps = data.record, metrics["step"].to_list()
    first, last = (min(steps), max(steps)) if steps else (-1, -1)
    thinned = thin(metrics)
    drawn = thinned["step"].cast(pl.Float64).to_list()
    lowest = _lowest_steps(metrics, len(drawn))
    rates = data.rates().filter(pl.col("step").is_in(steps))
    bands = {REWARD: _band(rates, "mean_reward"), CORRECT: _band(rates, "rate")} if len(rates) <= len(drawn) else {}
    with_baseline = first <= min(0, *(record.metrics["step"].to_list() or [0]))
    own = own_evaluations(record)
    evals = [each for each in own if first <= each.step <= last or (with_baseline and each.step < 0)]
    by_step = {row["step"]: row for row in metrics.filter(pl.col("step").is_in(lowest)).iter_rows(named=True)}
    to_step = dict(zip(drawn, lowest, strict=True))
    return Timeline(
        panels=_panels(thinned, drawn, bands, evals, name, every=every),
        events=[event for event in events(data, name) if event.step < 0 or first <= event.step <= last],
        link=lambda step: address("run", name, "step", str(to_step[step])),
        said=lambda step: f"step {to_step[step]} · " + " · ".join(line_texts(by_step[to_step[step]])),
        name=f"Curves of {name} over its steps; the table of steps below has the numbers",
        steps=drawn,
    )


def _lowest_steps(metrics: pl.DataFrame, n_points: int) -> list[int]:
    """Of the steps behind each point the one with the lowest `mean_correct`."""
    if len(metrics) == n_points:
        return metrics["step"].to_list()
    width = -(-len(metrics) // max(1, n_points))
    name = "mean_correct" if "mean_correct" in metrics.columns else "mean_reward"
    bucket = (pl.int_range(pl.len()) // width).alias("bucket")
    rows = metrics.group_by(bucket, maintain_order=True).agg(pl.col("step").sort_by(name).first())
    return rows["step"].to_list()


def _band(rates: pl.DataFrame, name: str) -> list[tuple[int, float, float]]:
    return rates.select("step", f"{name}_low", f"{name}_high").drop_nulls().rows()


def _panels(
    metrics: pl.DataFrame,
    steps: Sequence[float],
    bands: Mapping[str, Sequence[tuple[int, float, float]]],
    evals: Sequence[EvalRecord],
    name: str,
    *,
    every: bool,
) -> list[Panel]:
    recorded = {metric: each for metric, each in SHOWN.items() if each.panel and _is_recorded(metrics, metric)}
    titles = [CORRECT, *dict.fromkeys([REWARD, *FIRST, *(each.panel for each in recorded.values())])]
    panels = []
    for title in dict.fromkeys(titles):
        if not every and title not in (*FIRST, SECONDS):
            continue
        about = PANELS.get(title)
        values = {
            each.curve: metrics[metric].cast(pl.Float64).to_list()
            for metric, each in recorded.items()
            if each.panel == title
        }
        if title == SIGNAL:
            values = signal(metrics)
        series = [Series(label, steps, curve) for label, curve in values.items()]
        if series and bands.get(title):
            series[0] = Series(series[0].label, steps, series[0].values, bands[title])
        marks = [_mark(each, name) for each in evals] if title == CORRECT else []
        if series or marks:
            form = (about.number if about else "") or ".3g"
            limits = (0.0, 1.0) if title in (CORRECT, SIGNAL) else about.limits if about else (None, None)
            form = ".0%" if title == SIGNAL else form
            panels.append(Panel(about.heading if about else title, series, marks, form, limits, title == CORRECT))
    return panels


def _is_recorded(metrics: pl.DataFrame, name: str) -> bool:
    return name in metrics.columns and metrics[name].null_count() < len(metrics)


def signal(metrics: pl.DataFrame) -> dict[str, list[float | None]]:
    if not {"groups_total", "groups_skipped"} <= set(metrics.columns):
        return {}
    found = metrics.select(1 - pl.col("groups_skipped") / pl.col("groups_total")).to_series().to_list()
    values: dict[str, list[float | None]] = {"found": found}
    if _is_recorded(metrics, "signal_expected"):
        values["expected"] = metrics["signal_expected"].to_list()
    return values


def _mark(record: EvalRecord, name: str) -> Mark:
    low, high = record.interval
    said = (
        f"evaluation {record.name}: Pass@1 {record.pass_at_1:.1%}, {low:.1%} to {high:.1%}, n = {record.summary['n']}"
    )
    return Mark(record.step, record.pass_at_1, low, high, address("run", name, "eval", record.name), said)


def own_evaluations(record: RunRecord) -> list[EvalRecord]:
    """The evaluations that the run made: those of `coderl evaluate` have settings, perhaps problems, of their own."""
    folder = record.path / "evals"
    return [each for each in record.evals.values() if not (folder / each.name / "settings.json").is_file()]


def events(data: RunData, name: str) -> list[Event]:
    """What happened in a run, lane by lane."""
    record = data.record
    found = [
        Event("evaluations", mark.step, mark.said, mark.link)
        for mark in (_mark(each, name) for each in record.evals.values())
    ]
    found += [
        Event("warnings", each.begun, f"step {each.begun}: {data.watch.text(each)}", "#warnings")
        for each in data.watch.episodes
    ]
    found += [Event("acts", step, f"step {step}: {act}", "#acts") for step, act in acts(record)]
    found += [
        Event("checkpoints", row["step"], f"checkpoint {row.get('name')} after step {row['step']}", "#checkpoints")
        for row in record.checkpoints
        if isinstance(row.get("step"), int)
    ]
    found += [
        Event("resumes", step, f"resumed at step {step}", address("run", name, "step", str(step)))
        for step in data.resumes()
    ]
    return found


SORTS = {
    "rate": "pass rate, lowest first",
    "change": "change since earlier visits",
    "group": "as sampled",
    "tokens": "most tokens first",
}


def step_page(data: RunData, name: str, step: int, sort: str) -> Page:
    """A step: its metrics beside those of the steps before, and its groups."""
    groups = data.groups.filter(pl.col("step") == step)
    row = data.metrics_of(step)
    if not len(groups) and row is None:
        raise NotThereError(f"step {step} has not been scored" + (" yet" if step >= len(data.record.metrics) else ""))
    earlier = data.record.metrics.filter(pl.col("step") < step).tail(BEFORE)
    steps = data.record.metrics["step"].to_list()
    place = Place(step)
    rows = data.light_rows(place) if len(groups) else None
    listed = _step_groups(data, groups, rows, step)
    keys: dict[str, Any] = {
        "rate": lambda each: (each["rate"] is None, each["rate"] or 0.0, each["group_index"]),
        "change": lambda each: (each["change"] is None, each["change"] or 0.0),
        "tokens": lambda each: -each["tokens"],
        "group": lambda each: each["group_index"],
    }
    listed.sort(key=keys.get(sort, keys["rate"]))
    skipped = [each for each in listed if not each["has_signal"]]
    return {
        "title": f"step {step}",
        "run": name,
        "step": step,
        "metrics": [_metric(metric, row, earlier) for metric in STEP_METRICS if row and row.get(metric) is not None],
        "row": row,
        "before": max((each for each in steps if each < step), default=None),
        "after": min((each for each in steps if each > step), default=None),
        "groups": listed[:ROWS_ON_PAGE],
        "hidden": max(0, len(listed) - ROWS_ON_PAGE),
        "n_groups": len(listed),
        "skipped": len(skipped),
        "skipped_tokens": sum(each["tokens"] for each in skipped),
        "tokens": sum(each["tokens"] for each in listed),
        "sort": sort if sort in SORTS else "rate",
        "sorts": SORTS,
        "commit": (data.path / "steps" / f"{step:06d}" / "commit.json").is_file(),
        "sql": proof.query_command(
            data.path,
            "SELECT group_index, problem_id, count(*) AS n, count(*) FILTER (verdict = 'passed') AS passed, "
            f"min(reward), max(reward), bool_or(trained) AS trained FROM outcomes WHERE step = {step} "
            "GROUP BY ALL ORDER BY passed / n",
        ),
    }


def _metric(metric: str, row: Mapping[str, Any], earlier: pl.DataFrame) -> dict[str, Any]:
    """A metric of a step beside its mean over the steps before."""
    before = earlier[metric].mean() if metric in earlier.columns and len(earlier) else None
    shown = SHOWN[metric].column
    heading, form = shown if shown else (metric, ".3g")
    return {"heading": heading, "form": form, "value": row[metric], "before": before}


def _step_groups(data: RunData, groups: pl.DataFrame, rows: pl.DataFrame | None, step: int) -> list[dict[str, Any]]:
    """The step's groups with what each row of their table shows; `change` is the pass rate less that of the problem's
    earlier visits."""
    earlier = data.groups.filter(pl.col("step") < step, pl.col("problem_id").is_in(groups["problem_id"].implode()))
    past = {
        problem: (passed / graded if graded else None)
        for problem, passed, graded in earlier.group_by("problem_id")
        .agg(pl.col("passed").sum(), pl.col("graded").sum())
        .iter_rows()
    }
    verdicts: dict[int, list[tuple[str, int]]] = {}
    spread: dict[int, float | None] = {}
    if rows is not None:
        counted = (
            rows.group_by("group_index", pl.col("verdict").fill_null("not graded")).len().sort("len", descending=True)
        )
        for group, verdict, n in counted.iter_rows():
            verdicts.setdefault(group, []).append((verdict, n))
        spread = dict(rows.group_by("group_index").agg(pl.col("reward").std()).iter_rows())
    listed = []
    for group in groups.iter_rows(named=True):
        rate = group["passed"] / group["graded"] if group["graded"] else None
        before = past.get(group["problem_id"])
        listed.append(
            group
            | {
                "rate": rate,
                "before": before,
                "change": None if rate is None or before is None else rate - before,
                "verdicts": sorted(verdicts.get(group["group_index"], []), key=lambda each: each[0] != "passed"),
                "spread": spread.get(group["group_index"]),
                "why": why_skipped(group),
            }
        )
    return listed


def why_skipped(group: Mapping[str, Any]) -> str | None:
    """Why the update learned nothing from a group; None if it did."""
    if group["has_signal"]:
        return None
    if group["graded"] < 2:
        return "fewer than two graded"
    if group["passed"] == group["graded"]:
        return "all right"
    return "none in format" if group["highest"] < 0 else "all wrong" if group["passed"] == 0 else "equal rewards"


def problem_page(data: RunData, name: str, problem_id: str, place: Place | None, group: int | None) -> Page:
    """A problem: its statement and tests, how often it was solved in each visit, its completions at a place (by default
    in the last step that has it) by verdict and program."""
    visits = data.groups.filter(pl.col("problem_id") == problem_id).sort("step", "group_index")
    evaluated = _evaluated(data, problem_id)
    if not len(visits) and not evaluated:
        raise NotThereError(f"the run has sampled no problem {problem_id}")
    if place is None:
        place = Place(int(visits["step"][-1])) if len(visits) else Place(evaluation=evaluated[-1]["eval"])
    rows = data.problem_rows(place, problem_id)
    if group is not None and any(row["group_index"] == group for row in rows):
        rows = [row for row in rows if row["group_index"] == group]
    if not rows:
        raise NotThereError(f"{place.name} has no completion of problem {problem_id}")
    problem, missing = data.problem(problem_id, place)
    if problem is not None and {row["tests_total"] for row in rows} - {None, len(problem.tests)}:
        missing = "the problem has other tests by now"
    clusters = clustered(rows, problem)
    graded = [row for row in rows if row["verdict"] is not None and row["verdict"] not in UNGRADED]
    return {
        "title": problem_id,
        "run": name,
        "problem_id": problem_id,
        "split": rows[0]["split"],
        "place": place,
        "group": group,
        "problem": problem,
        "missing": missing,
        "statement": problem.statement if problem else _prompt_statement(data, place, rows[0]),
        "visits": [
            visit | {"rate": visit["passed"] / visit["graded"] if visit["graded"] else None, "why": why_skipped(visit)}
            for visit in visits.iter_rows(named=True)
        ],
        "timeline": _visits_timeline(name, problem_id, visits, evaluated),
        "evaluated": evaluated,
        "clusters": clusters,
        "most_open": CLUSTERS_OPEN,
        "n": len(rows),
        "graded": len(graded),
        "passed": sum(row["verdict"] == Verdict.PASSED for row in graded),
        "trained": any(row["trained"] for row in rows),
    }


def _prompt_statement(data: RunData, place: Place, row: Mapping[str, Any]) -> str:
    """The prompt, which holds the statement where the pool is not at hand."""
    decode = data.decode()
    if decode is None:
        return ""
    tokens = data.scan(place).filter(pl.col("row") == row["row"]).select("prompt_tokens").collect().item()
    return decode(list(tokens)) if tokens is not None else ""


def _evaluated(data: RunData, problem_id: str) -> list[dict[str, Any]]:
    """The problem's completions in the evaluations: eval, step, row, verdict."""
    found = []
    for record in data.record.evals.values():
        if record.rollouts is not None:
            rows = data.scan(Place(evaluation=record.name)).filter(pl.col("problem_id") == problem_id)
            for row in rows.select("row", "verdict").collect().iter_rows(named=True):
                found.append({"eval": record.name, "step": record.step} | row)
    return found


def _visits_timeline(name: str, problem_id: str, visits: pl.DataFrame, evaluated: Sequence[Mapping[str, Any]]) -> Any:
    by_step = visits.group_by("step", maintain_order=True).agg(pl.col("passed", "graded").sum())
    steps = by_step["step"].to_list()
    rates = [passed / graded if graded else None for passed, graded in by_step.select("passed", "graded").iter_rows()]
    counts = {step: (passed, graded) for step, passed, graded in by_step.iter_rows()}
    drawn = Timeline(
        panels=[Panel("Pass rate", [Series("", steps, rates)], form=".0%", limits=(0.0, 1.0), tall=True)],
        events=[
            Event(
                "evaluations",
                each["step"],
                f"{each['eval']}: {each['verdict']}",
                address("run", name, "eval", each["eval"], str(each["row"])),
            )
            for each in evaluated
        ],
        link=lambda step: address("run", name, "problem", id=problem_id, step=int(step)),
        said=lambda step: f"step {step:g} · {counts[step][0]} of {counts[step][1]} passed",
        name=f"Pass rate of {problem_id} over the steps that sampled it",
        steps=steps,
        small=True,
    )
    return drawn.svg() if len(steps) > 1 else None


def clustered(rows: Sequence[dict[str, Any]], problem: Problem | None) -> list[dict[str, Any]]:
    """Completions with one verdict and one program (or, without one, one answer) together; failures first, the largest
    first. A failing one has as `diff` what it takes to a program of the group that passes, the most similar one."""
    by_program: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        by_program.setdefault((row["verdict"], row["code"] or row["completion"]), []).append(row)
    passing = [members[0] for (verdict, _), members in by_program.items() if verdict == Verdict.PASSED]
    clusters = []
    for (verdict, program), members in by_program.items():
        first = members[0]
        sibling = _most_similar(program, passing) if verdict != Verdict.PASSED and first["code"] else None
        clusters.append(
            {
                "verdict": verdict,
                "rows": members,
                "first": first,
                "program": program,
                "is_code": first["code"] is not None,
                "failed": failed_test(first, problem),
                "sibling": sibling,
                "diff": marked_text.difference(program, sibling["code"], ("this one", "one that passes"))
                if sibling
                else None,
            }
        )
    counts = Counter(row["verdict"] for row in rows)
    return sorted(
        clusters,
        key=lambda each: (
            each["verdict"] == Verdict.PASSED,
            -counts[each["verdict"]],
            str(each["verdict"]),
            -len(each["rows"]),
        ),
    )


def _most_similar(program: str, passing: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    def ratio(row: dict[str, Any]) -> float:
        return SequenceMatcher(None, program[:4000], row["code"][:4000], autojunk=False).quick_ratio()

    return max(passing, key=ratio, default=None)


def completion_page(data: RunData, name: str, place: Place, group: int | None, sample: int, shade: str) -> Page:
    """A completion: the proof of its reward, the test that it failed, its text, its tokens."""
    members, position = data.group(place, group, sample)
    row = members.row(position, named=True)
    config = data.config_of(place)
    environment = str(config.get("environment", "code"))
    problem, missing = data.problem(row["problem_id"], place)
    if problem is not None and row["tests_total"] not in (None, len(problem.tests)):
        problem, missing = None, "the problem has other tests by now"
    held_back = proof.held_back_tests(problem, config) if problem and place.evaluation is None else []
    order = (
        (data.test_order(problem) if place.evaluation is None else list(range(len(problem.tests)))) if problem else []
    )
    failed = failed_test(row, problem)
    step_row = data.metrics_of(place.step) if place.step is not None else None
    siblings = members.select("row", "attempt", "sample_index", "verdict", "reward", "advantage", "code").to_dicts()
    return {
        "title": f"{place.name}, completion {sample}",
        "run": name,
        "place": place,
        "row": row,
        "group": group,
        "sample": sample,
        "environment": environment,
        "limit_s": (problem.time_limit_s if problem else None) or config.get("reward_timeout"),
        "tone": verdict_tone(row["verdict"]),
        "n_tokens": len(row["completion_tokens"] or []),
        "truncated": row["stop_reason"] == TRUNCATED,
        "siblings": [each | {"link": completion_link(name, place, each, row)} for each in siblings[:SIBLINGS]],
        "position": position,
        "neighbours": _neighbours(data, name, place, row, siblings, position),
        "problem": problem,
        "missing": missing,
        "failed": failed,
        "differing": marked_text.differing(failed["expected"], failed["got"])
        if failed and failed["got"] is not None and failed["expected"] is not None
        else None,
        "tests": proof.test_lines(row, problem, order, held_back) if problem and environment == "code" else [],
        "format": proof.format_decision(row, environment),
        "reward_words": proof.reward_in_words(row, config),
        "advantage": proof.advantage_of(members, position, config) if place.evaluation is None else None,
        "members": siblings[:SIBLINGS],
        "faults": {key: value for key, value in (step_row or {}).items() if key.startswith("sandbox_faults") and value},
        "sql": proof.group_sql(data.path, row, place.evaluation, config),
        "turns": _turns(row),
        "prompt": _prompt(data, row),
        "tokens": _tokens(data, row, shade),
        "shade": shade,
        "shades": _shades(row),
    }


def _neighbours(
    data: RunData,
    name: str,
    place: Place,
    row: Mapping[str, Any],
    siblings: Sequence[Mapping[str, Any]],
    position: int,
) -> tuple[str | None, str | None]:
    """The addresses of the completions before and after: in its group, or in an evaluation in its file."""
    if place.evaluation is not None:
        n = data.scan(place).select(pl.len()).collect().item()
        rows = [{"row": number} if 0 <= number < n else None for number in (row["row"] - 1, row["row"] + 1)]
    else:
        numbers = (position - 1, position + 1)
        rows = [dict(siblings[number]) if 0 <= number < len(siblings) else None for number in numbers]
    before, after = (None if each is None else completion_link(name, place, each, row) for each in rows)
    return before, after


def completion_link(name: str, place: Place, row: Mapping[str, Any], of: Mapping[str, Any] | None = None) -> str:
    """The address of a completion at a place; `of` has its group, if `row` does not."""
    if place.evaluation is not None:
        return address("run", name, *place.parts, str(row["row"]))
    group = (of or row)["group_index"]
    return address("run", name, *place.parts, str(group), str(row["sample_index"]))


def _turns(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The turns of a completion: each answer, what it was answered (None for the last), and its verdicts and advantage
    where recorded."""
    turns = row["turns"] or []
    replies = [following["environment_text"] for _, following in pairwise(turns)]
    advantages, verdicts = row["turn_advantages"] or [], row["turn_verdicts"] or []
    return [
        {
            "text": turn["text"],
            "check": turn["check"],
            "n_tokens": turn["n_tokens"],
            "stop_reason": turn["stop_reason"],
            "reply": replies[number] if number < len(replies) else None,
            "advantage": advantages[number] if number < len(advantages) else None,
            "verdict": verdicts[number] if number < len(verdicts) else None,
        }
        for number, turn in enumerate(turns)
    ]


def _prompt(data: RunData, row: Mapping[str, Any]) -> str | None:
    decode = data.decode()
    return decode(list(row["prompt_tokens"])) if decode is not None and row["prompt_tokens"] else None


def _shades(row: Mapping[str, Any]) -> dict[str, str]:
    """What tokens can be shaded by."""
    lacking = {"logprob": row["logprobs"] is None, "base": row["base_logprobs"] is None or row["logprobs"] is None}
    lacking["advantage"] = row["advantage"] is None
    return {key: text for key, text in SHADES.items() if not lacking[key]}


def _tokens(data: RunData, row: Mapping[str, Any], shade: str) -> dict[str, Any] | None:
    """The completion's tokens, shaded; None if there is nothing to shade them by."""
    tokens, available = row["completion_tokens"] or [], _shades(row)
    if not tokens or not available:
        return None
    by = shade if shade in available else next(iter(available))
    values = _token_values(row, by)
    decode = data.decode()
    shown = tokens[:TOKENS_ON_PAGE]
    texts = pieces(decode, shown) if decode is not None else [str(token) for token in shown]
    numbers = [value for value in values if value is not None]
    most = NATS if by == "logprob" else max((abs(value) for value in numbers), default=1.0) or 1.0
    # The less likely a token was, the darker: surprise is what a reader looks for.
    levels = [marked_text.level(-value if by == "logprob" and value is not None else value, most) for value in values]
    return {
        "html": marked_text.shaded(texts, values[: len(shown)], levels[: len(shown)]),
        "by": by,
        "most": most,
        "hidden": len(tokens) - len(shown),
        "is_text": decode is not None,
        "mean": sum(numbers) / len(numbers) if numbers else None,
        "least": min(numbers) if numbers else None,
    }


def _token_values(row: Mapping[str, Any], by: str) -> list[float | None]:
    n = len(row["completion_tokens"])
    if by == "logprob":
        return list(row["logprobs"])
    if by == "base":
        return [own - base for own, base in zip(row["logprobs"], row["base_logprobs"], strict=True)]
    if row["turn_advantages"] and row["turns"]:
        return [
            advantage
            for turn, advantage in zip(row["turns"], row["turn_advantages"], strict=True)
            for _ in range(turn["n_tokens"])
        ][:n]
    return [row["advantage"]] * n


TEXT_PARTS = (
    "completion",
    "code",
    "failed_output",
    "reason",
    "reward_error",
    "suspicion",
    "prompt",
    "input",
    "expected",
)


def whole_text(data: RunData, place: Place, group: int | None, sample: int, part: str) -> str:
    """A text of a completion, uncut; NotThereError if it has none of this name."""
    members, position = data.group(place, group, sample)
    row = members.row(position, named=True)
    if part == "prompt":
        text = _prompt(data, row)
    elif part in ("input", "expected"):
        failed = failed_test(row, data.problem(row["problem_id"], place)[0])
        text = failed[part] if failed else None
    else:
        text = row[part] if part in TEXT_PARTS and part in ROLLOUT_SCHEMA else None
    if text is None:
        raise NotThereError(f"this completion has no {part}")
    return text


def evaluation_page(data: RunData, name: str, evaluation: str, against: str | None, only: str) -> Page:
    """An evaluation: Pass@1 by split, what flipped against another one, and all problems."""
    record = data.evaluation(evaluation)
    others = [other for other in data.record.evals.values() if other.name != evaluation and other.rollouts is not None]
    other = next((each for each in others if each.name == against), None)
    if other is None:
        other = next((each for each in others if each is data.record.baseline), others[0] if others else None)
    before, after = (other, record) if other is None or other.step <= record.step else (record, other)
    comparison = compare_evals(before, after) if record.rollouts is not None else None
    rows = data.light_rows(Place(evaluation=evaluation)) if record.rollouts is not None else pl.DataFrame()
    by_problem = {}
    if len(rows):
        by_problem = {
            row["problem_id"]: row for row in rows.sort("sample_index", descending=True).iter_rows(named=True)
        }
    flips = {"gained": [], "lost": []}  # type: dict[str, list[dict[str, Any]]]
    if comparison is not None:
        for pair in comparison.pairs.iter_rows(named=True):
            if pair["before"] != pair["after"]:
                kind = "gained" if pair["after"] > pair["before"] else "lost"
                flips[kind].append(pair | {"row": by_problem.get(pair["problem_id"])})
    listed = list(rows.iter_rows(named=True)) if len(rows) else []
    verdicts = rows.group_by("verdict").len().sort("len", descending=True).rows() if len(rows) else []
    if only:
        listed = [row for row in listed if row["verdict"] == only]
    listed.sort(key=lambda row: (row["verdict"] == Verdict.PASSED, row["split"], row["row"]))
    return {
        "title": f"evaluation {evaluation}",
        "run": name,
        "record": record,
        "others": others,
        "other": other,
        "comparison": comparison,
        "comparison_table": comparison_table(comparison) if comparison else None,
        "changed": changed_text(comparison.overall.changed) if comparison else "",
        "flips": flips,
        "rows": listed[:ROWS_ON_PAGE],
        "hidden": max(0, len(listed) - ROWS_ON_PAGE),
        "verdicts": verdicts,
        "only": only,
        "place": Place(evaluation=evaluation),
    }
