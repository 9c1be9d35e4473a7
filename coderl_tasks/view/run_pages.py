"""The pages of a run, a step and an evaluation. Each function returns the variables of the template of its name."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import polars as pl

from coderl_tasks.errors import ConfigError
from coderl_tasks.grading.scoring import UNGRADED, Verdict
from coderl_tasks.insight.plots import FIRST, evaluation_marks, evaluation_said, history_panels, most_evaluated
from coderl_tasks.insight.record import EvalRecord, RunRecord, thin
from coderl_tasks.insight.report import facts
from coderl_tasks.insight.shown_metrics import CORRECT, REWARD, SECONDS, SHOWN, line_texts
from coderl_tasks.insight.timeline import Event, Timeline
from coderl_tasks.insight.token_uses import costs, costs_table
from coderl_tasks.insight.viewer_link import query_command
from coderl_tasks.insight.warning_signs import WINDOW, Episode, Watch, acts
from coderl_tasks.journal.recorded_json import config_changes, shown_setting
from coderl_tasks.policy.step_metrics import METRICS
from coderl_tasks.settings import TrainSettings
from coderl_tasks.settings.setting import PROGRAMS
from coderl_tasks.stats import CONFIDENCE, fisher_fall
from coderl_tasks.view.library import Library, NotThereError, address
from coderl_tasks.view.run_data import Place, RunData
from coderl_tasks.view.search import counted, failures, is_of

Page = dict[str, Any]
LAST_STEPS, ROWS_ON_PAGE, WORST = 25, 400, 8
STEP_METRICS = (
    "mean_reward", "mean_correct", "format_rate", "truncated_rate", "entropy", "kl_sample_train", "time_step_s",
)  # fmt: skip
BEFORE = 5  # steps that a step is compared with


def verdict_tone(verdict: str | None) -> str:
    """The class of a verdict's tag: an ungraded completion is nobody's failure."""
    if verdict == Verdict.PASSED:
        return "good"
    return "warn" if verdict is None or verdict in UNGRADED else "bad"


def run_page(data: RunData, name: str, library: Library, first: int | None, last: int | None, *, every: bool) -> Page:
    """The page of the run `name`. `first` and `last` bound the steps that are shown (None: no bound). With `every` all
    metrics have curves, and no list is cut."""
    record, watch = data.record, data.watch
    pool, no_pool = pool_of(data, library)
    spent = data.of_state("costs", lambda: costs(record))  # kept until the run has gone on
    meanings = {key: field.description or "" for key, field in TrainSettings.model_fields.items()}
    shown = record.metrics
    if first is not None:
        shown = shown.filter(pl.col("step") >= first)
    if last is not None:
        shown = shown.filter(pl.col("step") <= last)
    most_rows = LAST_STEPS if (first, last) == (None, None) else ROWS_ON_PAGE  # bounds ask for more of the table
    fallen, n_again = data.of_state("worse", lambda: worse(data.groups))
    by_chance = 1 - CONFIDENCE  # the false discovery rate that is accepted
    return {
        "title": name, "run": name, "record": record, "state": data.state, "at_work": data.at_work(),
        "facts": facts(record), "pool": pool, "no_pool": no_pool, "integrity": _integrity(data, name),
        # A warning has an episode: the steps over which it holds. Acts are changes the run made to its own settings.
        "warnings": [_warning(watch, name, episode) for episode in watch.episodes], "acts": acts(record),
        "evals": [(each, _paired(each, record.baseline)) for each in record.evals.values()],
        "baseline": record.baseline.name if record.baseline else None,
        "comparison": data.comparison(record.baseline, record.latest),
        # Caps are limits on tokens and money, with what is used of them.
        "costs": costs_table(spent) if spent else None, "caps": caps(record, spent),
        "settings": [(key, value, meanings.get(key, "")) for key, value in sorted(record.config.items())],
        "changes": changed_settings(record.config),
        "commands": [f"coderl {words} {shlex.quote(str(record.path))}" for words in ("report", "watch", "shell")],
        # The curves, and the table of steps.
        "timeline": timeline(data, name, shown, every=every).plot() if len(shown) or record.evals else None,
        "bounds": (first, last), "every": every, "n_steps": len(shown), "newest": record.metrics["step"].max(),
        "steps": (shown if every else shown.tail(most_rows)).reverse().to_dicts(),
        "step_columns": step_columns(record), "meanings": {metric.name: metric.meaning for metric in METRICS},
        # The problems without a signal, those solved least, and those solved ever less.
        "signals": without_signal(data.groups), "hardest": hardest(data.groups), "titles": data.titles(),
        "worse": fallen if every else fallen[:WORST], "n_worse": len(fallen), "by_chance": by_chance,
        # More than chance explains: `q` is the false discovery rate among the problems up to this one.
        "n_beyond": sum(row["q"] < by_chance for row in fallen),
        "n_again": n_again,  # problems sampled in two steps or more
    }  # fmt: skip


def _paired(record: EvalRecord, baseline: EvalRecord | None) -> dict[str, float | None] | None:
    """The difference from the baseline that an evaluation has recorded, with its interval, on the `shared` problems
    (None: on all of both); None if it has none."""
    found = record.summary.get("compare") or {}
    difference, low, high, n = (found.get(key) for key in ("difference", "ci_low", "ci_high", "n"))
    if baseline is None or found.get("to") != baseline.name or None in (difference, low, high):
        return None
    shared = None if record.summary["n"] == baseline.summary["n"] == n else n
    return {"difference": difference, "low": low, "high": high, "shared": shared}


INTEGRITY = {
    "suspicious": "suspicious",
    "passed, but failing held-back tests": "fails held-back tests",
    "infra errors": str(Verdict.INFRA_ERROR),
    "with requests sent again": "requests sent again",
    "left out of their groups": "left out of its group",
}
"""What the line of a run's integrity counts, and the search that lists it."""


def _integrity(data: RunData, name: str) -> list[tuple[str, str, str | None]]:
    """The parts of the line of a run's integrity: a number, what it counts, and where these completions are."""
    counts = data.of_state("integrity", lambda: counted(data, [*INTEGRITY.values()]))
    parts: list[tuple[str, str, str | None]] = []
    for said, kind in INTEGRITY.items():
        n = counts[kind]
        if kind == "fails held-back tests" and not data.record.config.get("holdback"):
            parts.append(("", "held-back tests off: holdback=0", None))
        elif n is None:
            parts.append(("–", f"{said} (not recorded)", None))
        else:
            parts.append((f"{n:,}", said, address("run", name, "search", verdict=kind)))
    return parts


def pool_of(data: RunData, library: Library) -> tuple[str | None, str]:
    """The name of the pool that the run was trained on, None if it has no page; and why it is not found, if so."""
    try:
        file = data.pool_file()
        return library.names_of_pools([file]).get(file), ""
    except ConfigError as error:
        return None, str(error)


def _warning(watch: Watch, name: str, episode: Episode) -> tuple[Episode, str, str | None]:
    """A warning, its text, and where the completions are that it is about, if they are of one kind."""
    kinds = {"suspicious": "suspicious", "holdback_gap": "fails held-back tests", "truncation": "truncated"}
    kind = kinds.get(episode.rule.name)
    link = address("run", name, "search", verdict=kind, first=max(0, episode.begun - WINDOW + 1)) if kind else None
    return episode, watch.text(episode), link


def step_columns(record: RunRecord) -> list[tuple[str, str, str]]:
    """The columns of a table of steps: metric, heading, format; without faults that never happened."""
    columns = []
    for metric, shown in SHOWN.items():
        if shown.column is not None and metric in record.metrics.columns:
            values = record.metrics[metric].drop_nulls()
            if len(values) and ((values != 0).any() or not shown.is_fault):
                columns.append((metric, *shown.column))
    return columns


def caps(record: RunRecord, spent: Sequence[Any]) -> list[tuple[str, float, float]]:
    """The run's caps: setting, what is used and what there is. A pool's profile, which other runs share, is not its."""
    used = [row for row in spent if row.use not in ("profile", "all")]
    amounts = {"max_tokens_total": [row.tokens.counted for row in used], "max_usd": [row.usd for row in used]}
    caps = ((key, known, record.config.get(key)) for key, known in amounts.items())
    return [(key, sum(known), float(most)) for key, known, most in caps if most is not None and None not in known]


def changed_settings(config: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The settings that differ from the defaults, of the run's preset where it has one: key, default, the run's."""
    usual = _usual_settings(str(config.get("preset") or ""))
    known = {key: value for key, value in config.items() if key in usual}
    return [(each.key, shown_setting(each.old), shown_setting(each.new)) for each in config_changes(usual, known)]


@cache
def _usual_settings(preset: str) -> dict[str, Any]:
    try:
        settings = TrainSettings.model_validate({"preset": preset} if preset else {})
    except ValueError:  # a preset of another version
        settings = TrainSettings()
    return settings.model_dump(mode="json")


def without_signal(groups: pl.DataFrame) -> dict[str, Any]:
    """How many `groups` there are, how many are `without` a signal, by reason, and the `step` with most of these:
    `in_step`, `of_step` of its groups."""
    lacking = groups.filter(~pl.col("has_signal"))
    by_step = groups.group_by("step").agg(in_step=(~pl.col("has_signal")).sum(), of_step=pl.len())
    most = by_step.sort("in_step", "step", descending=True).head(1).to_dicts()
    reasons = lacking["why_skipped"].value_counts(sort=True).rows()
    return {"groups": len(groups), "without": len(lacking), "reasons": reasons} | (most[0] if most else {})


def hardest(groups: pl.DataFrame) -> list[dict[str, Any]]:
    """The problems with the lowest pass rates: id, passed, graded."""
    by_problem = groups.group_by("problem_id").agg(pl.col("passed", "graded").sum()).filter(pl.col("graded") > 0)
    rate = pl.col("passed") / pl.col("graded")
    return by_problem.sort(rate, "graded", "problem_id", descending=[False, True, False]).head(WORST).to_dicts()


def worse(groups: pl.DataFrame) -> tuple[list[dict[str, Any]], int]:
    """The problems whose pass rate fell from the first step that sampled them to the last, and how many were sampled in
    two steps or more. Of both ends each has step and counts, and the pass rates of the steps `between`; `p` is of the
    fall (Fisher's exact test), `q` the false discovery rate among problems with this p or less (Benjamini and Hochberg,
    1995). The smallest p comes first: with few completions a large fall is often chance."""
    visits = groups.filter(pl.col("graded") > 0).group_by("problem_id", "step").agg(pl.col("passed", "graded").sum())
    columns = pl.col("step", "passed", "graded")
    by_problem = visits.sort("step").group_by("problem_id", maintain_order=True)
    # All steps but the first and the last. For a problem of a single step this is -1, hence the signed type; polars
    # takes it for a slice, and `seen_again` below leaves such problems out.
    n_between = pl.len().cast(pl.Int64) - 2
    between = (pl.col("passed") / pl.col("graded")).slice(1, n_between).alias("between")
    ends = by_problem.agg(columns.first().name.prefix("first_"), columns.last().name.prefix("last_"), between)
    seen_again = ends.filter(pl.col("last_step") > pl.col("first_step"))
    counts = ("first_passed", "first_graded", "last_passed", "last_graded")
    has_fallen = pl.col("last_passed") / pl.col("last_graded") < pl.col("first_passed") / pl.col("first_graded")
    fallen = seen_again.filter(has_fallen).to_dicts()
    for row in fallen:
        row["p"] = fisher_fall(*(row[name] for name in counts))
    fallen.sort(key=lambda row: (row["p"], row["problem_id"]))
    q = 1.0  # from the largest p down: q is the least of the values at this p and at larger ones
    for rank, row in reversed([*enumerate(fallen, 1)]):
        row["q"] = q = min(q, row["p"] * len(seen_again) / rank)
    return fallen, len(seen_again)


def timeline(data: RunData, name: str, metrics: pl.DataFrame, *, every: bool) -> Timeline:
    """The curves and events of the run `name` over the steps in `metrics`; with `every` a panel per metric. Of a long
    run a point is the mean of neighbouring steps, and a link to the one in which the fewest completions passed."""
    record, steps = data.record, metrics["step"].to_list()
    thinned = thin(metrics)
    points = thinned["step"].cast(pl.Float64).to_list()  # positions on the axis: means of steps are no whole numbers
    lowest = _lowest_steps(metrics, len(points))
    linked_step = dict(zip(points, lowest, strict=True))
    linked_row = {row["step"]: row for row in metrics.filter(pl.col("step").is_in(lowest)).iter_rows(named=True)}
    first, last = min(steps, default=-1), max(steps, default=-1)
    # The baseline's step is -1: it belongs to the first step, 0.
    within = range(-1 if first <= 0 else first, last + 1)
    evals = [each for each in record.own_evals if not steps or each.step in within]
    first_event = min([first, *(each.step for each in evals)])
    # An evaluation of clearly fewer problems than the largest one is marked as such.
    panels = history_panels(thinned, evaluation_marks(evals, most_evaluated(record), evaluation_link(name)))
    rates = data.rates().filter(pl.col("step").is_in(steps))
    # An interval is of one step: none are shown where a point stands for several. `rates` may lack steps.
    if len(rates) <= len(points):
        for title, rate in ((REWARD, "mean_reward"), (CORRECT, "rate")):
            own, *others = panels[title].series
            band = rates.select("step", f"{rate}_low", f"{rate}_high").drop_nulls().rows()
            panels[title] = replace(panels[title], series=[replace(own, band=band), *others])
    titles = dict.fromkeys((CORRECT, REWARD, *FIRST, *(panels if every else (SECONDS,))))
    return Timeline(
        panels=[panels[title] for title in titles if title in panels and panels[title].ends()],
        events=[event for event in events(data, name) if first_event <= event.step <= last],
        link=lambda point: address("run", name, "step", linked_step[point]),
        said=lambda point: f"step {linked_step[point]} · " + " · ".join(line_texts(linked_row[linked_step[point]])),
        name=f"Curves of {name} over its steps; the table of steps below has the numbers",
    )


def _lowest_steps(metrics: pl.DataFrame, n_points: int) -> list[int]:
    """Of the steps behind each point the one with the lowest `mean_correct`."""
    if len(metrics) == n_points:
        return metrics["step"].to_list()
    width = -(-len(metrics) // max(1, n_points))
    name = "mean_correct" if "mean_correct" in metrics.columns else "mean_reward"
    bucket = (pl.int_range(pl.len()) // width).alias("bucket")
    rows = metrics.group_by(bucket, maintain_order=True).agg(pl.col("step").sort_by(name, nulls_last=True).first())
    return rows["step"].to_list()


def evaluation_link(name: str) -> Callable[[EvalRecord], str]:
    return lambda record: address("run", name, "eval", record.name)


def events(data: RunData, name: str) -> list[Event]:
    """What happened in a run, lane by lane."""
    record, watch, link = data.record, data.watch, evaluation_link(name)
    saved = [row for row in record.checkpoints if isinstance(row.get("step"), int)]
    by_lane: dict[str, Iterable[tuple[int, str, str]]] = {
        "evaluations": ((each.step, evaluation_said(each), link(each)) for each in record.evals.values()),
        "warnings": ((each.begun, f"step {each.begun}: {watch.text(each)}", "#warnings") for each in watch.episodes),
        "acts": ((step, f"step {step}: {act}", "#acts") for step, act in acts(record)),
        "checkpoints": (
            (row["step"], f"checkpoint {row.get('name')} after step {row['step']}", "#checkpoints") for row in saved
        ),
        "resumes": ((step, f"resumed at step {step}", address("run", name, "step", step)) for step in data.resumes()),
    }
    return [Event(lane, *event) for lane, found in by_lane.items() for event in found]


SORTS: dict[str, tuple[str, list[str | pl.Expr]]] = {
    "rate": ("pass rate, lowest first", ["rate", "group_index"]),
    "change": ("change since earlier visits", ["change", "group_index"]),
    "group": ("as sampled", ["group_index"]),
    "signal": ("without a signal first", ["has_signal", "why_skipped", "group_index"]),
    "tokens": ("most tokens first", [-pl.col("tokens"), "group_index"]),
}
"""The orders of a step's groups by the name that addresses have: in words, and the columns that decide."""


def step_page(data: RunData, name: str, step: int, sort: str) -> Page:
    """The page of a step of the run `name`: its metrics beside those of the BEFORE steps before it, and its groups (the
    completions of one problem each), sorted by `sort`, a key of SORTS. NotThereError if nothing of it is recorded."""
    groups, row, metrics = data.groups.filter(pl.col("step") == step), data.metrics_of(step), data.record.metrics
    if not len(groups) and row is None:
        planned, n = data.record.planned_steps, len(metrics)
        if planned is not None and step >= planned:
            raise NotThereError(f"there is no step {step}: {planned:,} steps are planned, 0 to {planned - 1}")
        yet = " yet" * (step >= n)
        raise NotThereError(f"step {step} has not been scored{yet}: the run has {n:,} step{'s' * (n != 1)}")
    earlier, steps = metrics.filter(pl.col("step") < step).tail(BEFORE), metrics["step"]
    sort = sort if sort in SORTS else "rate"  # an address may say anything
    completions = None
    if len(groups):
        with suppress(NotThereError):  # people remove the rollouts of old steps, whose groups the index has
            completions = data.light_rows(Place(step))  # without tokens and texts
    listed = _step_groups(data.groups, groups, completions, step).sort(*SORTS[sort][1], nulls_last=True)
    skipped = groups.filter(~pl.col("has_signal"))
    failed = failures(completions) if completions is not None else []
    values = []
    for metric in STEP_METRICS:
        if row is not None and row.get(metric) is not None:
            before = earlier[metric].mean() if metric in earlier.columns and len(earlier) else None
            heading, form = SHOWN[metric].column or (metric, ".3g")
            values.append({"heading": heading, "form": form, "value": row[metric], "before": before})
    sql = (
        "SELECT group_index, problem_id, count(*) AS n, count(*) FILTER (verdict = 'passed') AS passed, "
        f"min(reward), max(reward), bool_or(trained) AS trained FROM outcomes WHERE step = {step} "
        "GROUP BY ALL ORDER BY passed / n"
    )
    return {
        "title": f"step {step}", "run": name, "step": step, "steps_before": len(earlier),
        "metrics": values,  # each beside its mean over the steps before
        "before": steps.filter(steps < step).max(), "after": steps.filter(steps > step).min(), "newest": steps.max(),
        # Visits are the pass rates of the step's problems: of those sampled for the first time, and of the others.
        "visits": visits_of(data.groups, step), "titles": data.titles(), "sql": query_command(data.path, sql),
        "commit": (data.path / "steps" / f"{step:06d}" / "commit.json").is_file(),
        "groups": listed.head(ROWS_ON_PAGE).to_dicts(), "hidden": max(0, len(listed) - ROWS_ON_PAGE),
        "n_groups": len(listed), "sort": sort, "sorts": {key: words for key, (words, _) in SORTS.items()},
        "are_removed": completions is None and len(groups) > 0,  # the completions
        "skipped": skipped["why_skipped"].value_counts(sort=True).rows(),
        "skipped_tokens": int(skipped["tokens"].sum()), "tokens": int(groups["tokens"].sum()),
        "kinds": _kinds_worth_a_look(name, step, completions, data.record.config) if completions is not None else [],
        "failures": [(failure, failure.link(name, Place(step))) for failure in failed],
    }  # fmt: skip


Visits = tuple[str, int, float, float | None, str]


def visits_of(groups: pl.DataFrame, step: int) -> list[Visits]:
    """Whether a step's problems were harder or are solved less often: how many are new or were sampled before, their
    mean pass rate, and that of new ones in the steps before, or of their earlier visits."""
    rated = groups.filter(pl.col("graded") > 0, pl.col("step") <= step).with_columns(
        rate=pl.col("passed") / pl.col("graded"), is_new=pl.col("step") == pl.col("step").min().over("problem_id")
    )
    now, earlier = rated.filter(pl.col("step") == step), rated.filter(pl.col("step") < step)
    new, again = now.filter("is_new"), now.filter(~pl.col("is_new"))
    new_before = earlier.filter("is_new", pl.col("step") >= step - BEFORE)
    visited = earlier.filter(pl.col("problem_id").is_in(again["problem_id"].implode()))
    by_problem = visited.group_by("problem_id").agg(pl.col("rate").mean())
    parts = (
        ("New problems", new, new_before, f"of new ones in the {BEFORE} steps before"),
        ("Problems sampled before", again, by_problem, "at their earlier visits"),
    )
    return [(said, len(part), _mean(part) or 0.0, _mean(usual), of) for said, part, usual, of in parts if len(part)]


def _mean(rated: pl.DataFrame) -> float | None:
    return float(rated["rate"].to_numpy().mean()) if len(rated) else None


def _kinds_worth_a_look(
    name: str, step: int, rows: pl.DataFrame, config: Mapping[str, Any]
) -> list[tuple[str, int, int, str]]:
    """The kinds of completions of a step that are worth a look: what they are, how many, their tokens, a search."""
    what = "program" if config.get("environment", "code") in PROGRAMS else "answer"
    kinds = {
        "truncated": "truncated",
        f"without a{'n' * (what == 'answer')} {what}": str(Verdict.FORMAT_ERROR),
        "suspicious": "suspicious",
        "pass, but fail the tests held back": "fails held-back tests",
    }
    some = [(said, kind, rows.filter(is_of(kind))["n_completion_tokens"]) for said, kind in kinds.items()]
    return [
        (said, len(tokens), int(tokens.sum()), address("run", name, "search", verdict=kind, first=step, last=step))
        for said, kind, tokens in some
    ]


def _step_groups(groups: pl.DataFrame, own: pl.DataFrame, completions: pl.DataFrame | None, step: int) -> pl.DataFrame:
    """The step's `own` groups, of all `groups`, as their table has them; `change` is from the problem's earlier
    visits."""
    rate = pl.when(pl.col("graded") > 0).then(pl.col("passed") / pl.col("graded"))
    visits = groups.filter(pl.col("step") < step).group_by("problem_id").agg(pl.col("passed", "graded").sum())
    past = visits.select("problem_id", before=rate, is_new=pl.lit(value=False))
    listed = own.with_columns(rate=rate).join(past, on="problem_id", how="left", maintain_order="left")
    listed = listed.with_columns(pl.col("is_new").fill_null(value=True), change=pl.col("rate") - pl.col("before"))
    if completions is None:
        return listed.with_columns(verdicts=pl.lit(None), spread=pl.lit(None))
    # Each verdict with the first completion that has it.
    counts = completions.group_by("group_index", "verdict").agg(n=pl.len(), first=pl.col("sample_index").min())
    is_passed = pl.col("verdict").eq_missing(str(Verdict.PASSED))
    ordered = counts.sort(is_passed, "n", "first", descending=[True, True, False])
    verdicts = ordered.group_by("group_index").agg(verdicts=pl.struct("verdict", "n", "first"))
    spread = completions.group_by("group_index").agg(spread=pl.col("reward").std())
    return listed.join(verdicts, on="group_index", how="left").join(spread, on="group_index", how="left")


def other_evaluations(record: RunRecord, evaluation: str) -> dict[str, EvalRecord]:
    """The evaluations that `evaluation` can be compared with."""
    return {each.name: each for each in record.evals.values() if each.name != evaluation and each.rollouts is not None}


def compared_with(record: RunRecord, evaluation: str, against: str | None) -> EvalRecord | None:
    """The evaluation that `evaluation` is compared with: `against`, else the baseline, else the newest other one."""
    others = other_evaluations(record, evaluation)
    baseline = record.baseline.name if record.baseline else None
    # The baseline itself is compared with where the run ended: others may be on other problems.
    newest = [*(each.name for each in reversed(record.own_evals)), *reversed(others)]
    return next((others[name] for name in (against, baseline, *newest) if name in others), None)
