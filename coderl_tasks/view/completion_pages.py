"""The pages of a problem and of a completion. Each function returns the variables of the template of its name."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import polars as pl
from markupsafe import Markup

from coderl_tasks.grading.scoring import Verdict
from coderl_tasks.insight.drawing import Plot
from coderl_tasks.insight.problem_view import failed_test, statement_in
from coderl_tasks.insight.timeline import Event, Panel, Series, Timeline
from coderl_tasks.policy.rollout import TRUNCATED
from coderl_tasks.problems.problem import Problem
from coderl_tasks.settings.setting import PROGRAMS
from coderl_tasks.view import marked_text, proof
from coderl_tasks.view.library import NotThereError, address
from coderl_tasks.view.program_changes import Change, Side, has_failed, most_similar, program_change, text_of
from coderl_tasks.view.run_data import Place, RunData, pieces
from coderl_tasks.view.run_pages import Page, compared_with
from coderl_tasks.view.search import same_failure

SIBLINGS, CLUSTERS_OPEN, MOST_FAILURES, MOST_EARLIER = 200, 24, 3, 12
TOKENS_ON_PAGE = 2000
SHADES = {
    "logprob": "log-probability",
    "base": "log-probability less the base model's",
    "ratio": "trainer's log-probability less the sampler's",
    "advantage": "advantage",
}
DARKEST_SURPRISE = 4.0  # in nats: a token with this negative log-probability, or a larger one, has the strongest shade


def problem_page(
    data: RunData,
    name: str,
    problem_id: str,
    place: Place | None,
    group: int | None,
    against: str | None,
    pool: str | None,
) -> Page:
    """The page of a problem of the run `name`, with its completions at `place` (a step, or one `group` of it, or an
    evaluation; None: the last step with the problem) and what changed in them since the step or evaluation `against`
    (None: the last step that solved it, if this one does not). `pool` names the pool's page."""
    visits = data.groups.filter(pl.col("problem_id") == problem_id).sort("step", "group_index")
    evaluated = _evaluated(data, problem_id)
    if not len(visits) and not evaluated:
        raise NotThereError(f"the run has sampled no problem {problem_id}")
    if place is None:
        place = Place(int(visits["step"][-1])) if len(visits) else Place(evaluation=evaluated[-1]["eval"])
    rows = data.problem_rows(place, problem_id)
    if not rows:
        raise NotThereError(f"{place.name} has no completion of problem {problem_id}")
    rows = [row for row in rows if row["group_index"] == group] or rows  # all of the place if the group is not there
    problem, why_no_tests = data.problem(problem_id, place)
    if problem is not None and {row["tests_total"] for row in rows} - {None, len(problem.tests)}:  # None: not graded
        why_no_tests = "the problem has other tests by now"
    # Of one completion alone: prompts are long, and all of a problem have the same.
    tokens = data.scan(place).filter(pl.col("row") == rows[0]["row"]).select("prompt_tokens").collect()
    prompt = _prompt(data, tokens.row(0, named=True)) or ""
    side, clusters = Side(called=place.name, run=name, place=place, rows=rows), clustered(rows, problem)
    # The graded visits before a step; none before an evaluation.
    earlier = visits.filter(pl.col("step") < (-1 if place.step is None else place.step), pl.col("graded") > 0)
    other = _other_place(data, place, against, earlier, side.passed)
    return {
        "title": problem_id, "run": name, "problem_id": problem_id, "place": place, "group": group, "pool": pool,
        "problem": problem, "missing": why_no_tests, "prompt": prompt,
        "statement": problem.statement if problem else statement_in(prompt),
        "other": other, "change": _changed(data, side, other, problem),
        # Over the whole run, in the pool's profile, and the steps before this one that programs can be compared with.
        "visits": visits.to_dicts(), "timeline": _visits_timeline(name, problem_id, visits, evaluated),
        "evaluated": evaluated, "profiled": data.profiled(problem_id),
        "earlier": earlier["step"].unique().sort().to_list()[-MOST_EARLIER:],
        # The completions at this place, counted and in clusters.
        "n": len(rows), "graded": side.graded, "passed": side.passed, "trained": any(row["trained"] for row in rows),
        "n_groups": len({row["group_index"] for row in rows}) if place.evaluation is None else 1,
        "clusters": clusters, "most_open": CLUSTERS_OPEN, "failures": failures_of(clusters),
        "most_failures": MOST_FAILURES, "split": rows[0]["split"],
    }  # fmt: skip


def _other_place(data: RunData, place: Place, against: str | None, earlier: pl.DataFrame, passed: int) -> Place | None:
    """What a problem's completions are compared with. An evaluation: `against`, else as on its page. A step: `against`
    of the `earlier` visits, else, if none passes now, the last one in which one did."""
    if place.evaluation is not None:
        other = compared_with(data.record, place.evaluation, against)
        return None if other is None else Place(evaluation=other.name)
    if against is not None and against in map(str, earlier["step"]):
        return Place(int(against))
    passing = earlier.filter(pl.col("passed") > 0)
    return Place(int(passing["step"][-1])) if len(passing) and not passed else None


def _changed(data: RunData, side: Side, other: Place | None, problem: Problem | None) -> Change | None:
    """What changed in a problem from `other` to the place of `side`, earlier first; None if as many pass in both."""
    if other is None:
        return None
    sides = [Side(other.name, side.run, other, data.problem_rows(other, side.rows[0]["problem_id"])), side]
    if None not in (other.evaluation, side.place.evaluation):
        sides.sort(key=lambda each: [*data.record.evals].index(each.place.evaluation or ""))
    return program_change(sides[0], sides[1], problem)


def _evaluated(data: RunData, problem_id: str) -> list[dict[str, Any]]:
    """The problem's completions in the evaluations: eval, step, row, verdict."""
    found = []
    for record in data.record.evals.values():
        if record.rollouts is not None:
            rows = data.scan(Place(evaluation=record.name)).filter(pl.col("problem_id") == problem_id)
            own = rows.select("row", "verdict").collect().iter_rows(named=True)
            found += [{"eval": record.name, "step": record.step} | row for row in own]
    return found


def _visits_timeline(
    name: str, problem_id: str, visits: pl.DataFrame, evaluated: Sequence[Mapping[str, Any]]
) -> Plot | None:
    """A problem's pass rate over the steps that sampled it, with its completions in evaluations as events; None for
    fewer than two steps."""
    by_step = visits.group_by("step", maintain_order=True).agg(pl.col("passed", "graded").sum())
    counts = {step: (passed, graded) for step, passed, graded in by_step.iter_rows()}
    rates = [passed / graded if graded else None for passed, graded in counts.values()]
    events = []
    for each in evaluated:
        link = address("run", name, "eval", each["eval"], each["row"])
        events.append(Event("evaluations", each["step"], f"{each['eval']}: {each['verdict']}", link))
    drawn = Timeline(
        panels=[Panel("Pass rate", [Series("", [*counts], rates)], number_format=".0%", limits=(0.0, 1.0), tall=True)],
        events=events,
        link=lambda step: address("run", name, "problem", id=problem_id, step=int(step)),
        said=lambda step: f"step {step:g} · {counts[step][0]} of {counts[step][1]} passed",
        name=f"Pass rate of {problem_id} over the steps that sampled it",
        small=True,
    )
    return drawn.plot() if len(counts) > 1 else None


def clustered(rows: Sequence[dict[str, Any]], problem: Problem | None) -> list[dict[str, Any]]:
    """The completions of a problem in clusters of one verdict, program (without one: answer) and first failed test:
    failures first, the most frequent verdict first. A cluster has in words `why` it failed, as far as `problem` is
    known, and as `diff` the way to the most similar program that passes."""
    by_program: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        by_program.setdefault((row["verdict"], text_of(row), row["first_failed"]), []).append(row)
    passing = [members[0] for (verdict, *_), members in by_program.items() if verdict == Verdict.PASSED]
    counts = Counter(row["verdict"] for row in rows)
    order = sorted(
        by_program.items(),
        key=lambda each: (each[0][0] == Verdict.PASSED, -counts[each[0][0]], str(each[0][0]), -len(each[1])),
    )
    clusters: list[dict[str, Any]] = []
    for number, ((verdict, program, _), members) in enumerate(order):
        first = members[0]
        failed = failed_test(first, problem)
        why = (failed["error"] or failed["difference"] if failed else first["reason"]) or ""
        # Clusters that the page folds away are not compared: with many programs that takes seconds.
        sibling, diff = passing_sibling(first, passing) if number < CLUSTERS_OPEN else (None, None)
        clusters.append(
            {"verdict": verdict, "rows": members, "first": first, "program": program, "failed": failed, "why": why}
            | {"is_code": first["code"] is not None, "sibling": sibling, "diff": diff}
        )
    return clusters


def passing_sibling(
    row: Mapping[str, Any], passing: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any] | None, Markup | None]:
    """The completion of `passing` that is most like that of `row`, and what it takes to it; None if none passes, or
    this one does, was not graded or has no program."""
    code = row["code"] if has_failed(row) else None
    sibling = most_similar(code, passing) if code else None
    return sibling, marked_text.difference(code, sibling["code"]) if sibling else None


def failures_of(clusters: Sequence[Mapping[str, Any]]) -> list[tuple[int, str, int | None, str]]:
    """Why the graded completions failed, the most frequent first: number, verdict, first failed test, and why in
    words."""
    counts: Counter[tuple[str, int | None, str]] = Counter()
    for cluster in clusters:
        if has_failed(first := cluster["first"]):
            counts[first["verdict"], first["first_failed"], cluster["why"]] += len(cluster["rows"])
    return [(n, *kind) for kind, n in counts.most_common()]


def completion_page(data: RunData, name: str, place: Place, group: int | None, sample: int, shade: str) -> Page:
    """The page of a completion: number `sample` of `group` in a step, row `sample` of an evaluation, where `group` is
    None. `shade`: by what tokens are shaded."""
    members, position = data.group(place, group, sample)  # the siblings with all columns, and its index among these
    row = members.row(position, named=True)
    row["trainer_logprobs"] = data.trainer_logprobs(place, group, sample)
    config = data.config_of(place)
    problem, missing = data.problem(row["problem_id"], place)
    if problem is not None and row["tests_total"] not in (None, len(problem.tests)):
        problem, missing = None, "the problem has other tests by now"  # those could not explain the reward
    page = {
        "title": f"{place.name}, completion {sample}", "run": name, "place": place, "group": group, "sample": sample,
        "row": row, "is_program": _has_programs(config), "problem": problem, "missing": missing,
        "n_tokens": len(row["completion_tokens"] or []), "truncated": row["stop_reason"] == TRUNCATED,
        "limit_s": (problem.time_limit_s if problem else None) or config.get("reward_timeout"),
        "turns": _turns(row), "prompt": _prompt(data, row), "tokens": _tokens(data, row, shade),
        "sql": proof.group_sql(data.path, row, place.evaluation, config),
    }  # fmt: skip
    page |= _siblings_of(data, name, place, members, position, config)
    page |= _failure_of(data, name, place, row, config, problem)
    return page | _reward_of(data, place, row, config, problem)


def _has_programs(config: Mapping[str, Any]) -> bool:
    return str(config.get("environment", "code")) in PROGRAMS


def _failure_of(
    data: RunData, name: str, place: Place, row: Mapping[str, Any], config: Mapping[str, Any], problem: Problem | None
) -> Page:
    """The test that the completion failed first, how its output differs from the expected one, in words and as both
    texts with the first difference marked, and the search for all completions of its place that fail in the same
    way."""
    failed = failed_test(row, problem)
    difference, differing = None, None
    if failed is not None:
        difference = failed["difference"]
        if problem and _has_programs(config) and row["verdict"] == Verdict.WRONG_ANSWER:
            difference = proof.difference_in_words(problem, difference)
        if failed["got"] is not None and failed["expected"] is not None:
            differing = marked_text.differing(failed["expected"], failed["got"])
    alike = same_failure(data.scan(place).select("verdict", "reason").collect(), row["row"])
    search_for_alike = (alike, alike.link(name, place)) if alike else None
    return {"failed": failed, "difference": difference, "differing": differing, "failure": search_for_alike}


def _reward_of(
    data: RunData, place: Place, row: Mapping[str, Any], config: Mapping[str, Any], problem: Problem | None
) -> Page:
    """How the completion got its reward: the tests in the order in which they ran, what the format and the tests gave,
    and the faults of the sandbox in its step."""
    environment, is_training = str(config.get("environment", "code")), place.step is not None
    tests: list[proof.TestLine] = []
    if problem and environment in PROGRAMS:
        order, held_back = [*range(len(problem.tests))], list[int]()
        if is_training:  # an evaluation runs all tests, as they come
            order, held_back = data.test_order(problem), proof.held_back_tests(problem, config)
        tests = proof.test_lines(row, problem, order, held_back)
    step_metrics = (data.metrics_of(place.step) if place.step is not None else None) or {}
    # The settings that decide rewards are of training alone: evaluations, also a run's own, grade by the defaults.
    rule = config if is_training else {"environment": environment}
    return {
        "tests": tests, "format": proof.format_decision(row, environment),
        "format_words": proof.format_in_words(row, rule), "reward_words": proof.reward_in_words(row, rule),
        "faults": {key: n for key, n in step_metrics.items() if key.startswith("sandbox_faults") and n},
    }  # fmt: skip


def _siblings_of(
    data: RunData, name: str, place: Place, members: pl.DataFrame, position: int, config: Mapping[str, Any]
) -> Page:
    """The group of the completion in row `position`, its neighbours, and the most similar sibling that passes."""
    columns = ("row", "group_index", "sample_index", "verdict", "reward", "advantage", "code")
    siblings = [row | {"link": completion_link(name, place, row)} for row in members.select(columns).to_dicts()]
    row = siblings[position]
    passing = [each for each in siblings if each["verdict"] == Verdict.PASSED and each["code"] is not None]
    similar, diff = passing_sibling(row, passing) if _has_programs(config) else (None, None)
    # At most SIBLINGS of a large group are listed, with this completion in the middle.
    first = max(0, min(position - SIBLINGS // 2, len(siblings) - SIBLINGS))
    listed = slice(first, first + SIBLINGS)
    advantage = None
    if place.evaluation is None:
        advantage = proof.advantage_of(members, position, config)
        links = {number: each["link"] for number, each in enumerate(siblings)}
    else:  # evaluations have no advantages, and the completions before and after are those of the file
        position_in_file, n = row["row"], data.scan(place).select(pl.len()).collect().item()
        near = {position + by: position_in_file + by for by in (-1, 1) if 0 <= position_in_file + by < n}
        links = {number: completion_link(name, place, {"row": other}) for number, other in near.items()}
    return {
        "siblings": siblings[listed], "n_siblings": len(siblings), "position": position - first,
        "neighbours": [links.get(position - 1), links.get(position + 1)],
        "passing": (similar["sample_index"], similar["link"], diff) if similar else None,
        "advantage": advantage, "again": advantage.recomputed[listed] if advantage else [],
    }  # fmt: skip


def completion_link(name: str, place: Place, row: Mapping[str, Any]) -> str:
    numbers = ("group_index", "sample_index") if place.evaluation is None else ("row",)
    return address("run", name, *place.parts, *(row[number] for number in numbers))


def _turns(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The turns of a completion: each answer, the reply to it (None for the last), and its verdict and advantage if
    recorded."""
    turns = row["turns"] or []
    about = zip_longest(turns, turns[1:], row["turn_advantages"] or [], row["turn_verdicts"] or [])
    return [
        turn | {"reply": after and after["environment_text"], "advantage": advantage, "verdict": verdict}
        for turn, after, advantage, verdict in about
    ]


def _prompt(data: RunData, row: Mapping[str, Any]) -> str | None:
    """The prompt of a completion; None if there is none, or the model's tokenizer is not on this machine."""
    decode = data.decode()
    return decode(list(row["prompt_tokens"])) if decode is not None and row["prompt_tokens"] else None


def _tokens(data: RunData, row: Mapping[str, Any], shade: str) -> dict[str, Any] | None:
    """The completion's tokens as HTML, shaded by their value of `shade` (a key of SHADES) if it is recorded, else by
    another one; None without any. `mean` and `least` are over all tokens."""
    tokens, available = row["completion_tokens"] or [], _token_values(row)
    if not tokens or not available:
        return None
    by = shade if shade in available else next(iter(available))
    values, decode, shown = available[by], data.decode(), tokens[:TOKENS_ON_PAGE]
    texts = pieces(decode, shown) if decode is not None else [str(token) for token in shown]
    numbers = [value for value in values if value is not None]
    if by == "logprob":  # the less likely a token was, the darker: surprise is what a reader looks for
        darkest, sign = DARKEST_SURPRISE, -1
    else:  # in proportion to the largest value of this completion
        darkest, sign = max((abs(value) for value in numbers), default=1.0) or 1.0, 1
    return {
        "html": marked_text.shaded(texts, values[: len(shown)], darkest, sign), "is_text": decode is not None,
        "by": by, "shades": {key: text for key, text in SHADES.items() if key in available},
        "most": darkest, "hidden": len(tokens) - len(shown),
        "mean": sum(numbers) / len(numbers) if numbers else None, "least": min(numbers) if numbers else None,
    }  # fmt: skip


def _token_values(row: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """A value per token, by each of SHADES that is recorded."""
    n, logprobs = len(row["completion_tokens"] or []), row["logprobs"]
    found: dict[str, list[float | None]] = {} if logprobs is None else {"logprob": logprobs}
    for key, own, other in (("base", logprobs, row["base_logprobs"]), ("ratio", row["trainer_logprobs"], logprobs)):
        if own is not None and other is not None and len(own) == len(other):
            found[key] = [value - less for value, less in zip(own, other, strict=True)]
    if row["advantage"] is not None:
        found["advantage"] = [row["advantage"]] * n
        if row["turn_advantages"] and row["turns"]:
            turns = zip(row["turns"], row["turn_advantages"], strict=True)
            found["advantage"] = [advantage for turn, advantage in turns for _ in range(turn["n_tokens"])][:n]
    return found


TEXT_COLUMNS = ("completion", "code", "failed_output", "reason", "reward_error", "suspicion")


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
        text = row[part] if part in TEXT_COLUMNS else None
    if text is None:
        raise NotThereError(f"this completion has no {part}")
    return text
