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
    """The variables of the page of one problem of the run `name`: its statement and tests, how often it was solved in
    each group that sampled it (`visits`), and its completions at `place`, clustered by verdict and program. A place is
    a step or an evaluation, by default the last step with the problem; `group` limits it to one group of a step. The
    page also shows what changed in the programs since `against`, a step or an evaluation; by default since the last
    step in which a completion passed, if none passes now. `pool` is the name of the pool's page."""
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
    totals = {row["tests_total"] for row in rows} - {None}  # None: not graded
    if problem is not None and totals - {len(problem.tests)}:
        why_no_tests = "the problem has other tests by now"
    # Of one completion alone: prompts are long, and all of a problem have the same.
    tokens = data.scan(place).filter(pl.col("row") == rows[0]["row"]).select("prompt_tokens").collect()
    prompt = _prompt(data, tokens.row(0, named=True)) or ""
    statement = problem.statement if problem else statement_in(prompt)
    side, clusters = Side(called=place.name, run=name, place=place, rows=rows), clustered(rows, problem)
    compared_place = _other_place(data, place, against, visits, side.passed)
    return {
        "title": problem_id, "run": name, "problem_id": problem_id, "place": place, "group": group, "pool": pool,
        "problem": problem, "missing": why_no_tests, "statement": statement, "prompt": prompt,
        "other": compared_place, "change": _changed(data, side, compared_place, problem),
        # Over the whole run, in the pool's profile, and the steps before this one that programs can be compared with.
        "visits": visits.to_dicts(), "timeline": _visits_timeline(name, problem_id, visits, evaluated),
        "evaluated": evaluated, "profiled": data.profiled(problem_id),
        "earlier": _earlier(visits, place)["step"].unique().sort().to_list()[-MOST_EARLIER:],
        # The completions at this place, counted and in clusters.
        "n": len(rows), "graded": side.graded, "passed": side.passed, "trained": any(row["trained"] for row in rows),
        "n_groups": len({row["group_index"] for row in rows}) if place.evaluation is None else 1,
        "clusters": clusters, "most_open": CLUSTERS_OPEN, "failures": failures_of(clusters),
        "most_failures": MOST_FAILURES, "split": rows[0]["split"],
    }  # fmt: skip


def _other_place(data: RunData, place: Place, against: str | None, visits: pl.DataFrame, passed: int) -> Place | None:
    """The place that a problem's completions are compared with: for an evaluation the evaluation `against`, else the
    one that its page compares it with; for a step the earlier step `against`, else, if none passes in it, the last one
    before it in which one did."""
    if place.evaluation is not None:
        other = compared_with(data.record, place.evaluation, against)
        return None if other is None else Place(evaluation=other.name)
    earlier = _earlier(visits, place)
    if against is not None and against in map(str, earlier["step"]):
        return Place(int(against))
    passing = earlier.filter(pl.col("passed") > 0)
    return Place(int(passing["step"][-1])) if len(passing) and not passed else None


def _earlier(visits: pl.DataFrame, place: Place) -> pl.DataFrame:
    """The graded visits before the step of a place; none before an evaluation."""
    return visits.filter(pl.col("step") < (-1 if place.step is None else place.step), pl.col("graded") > 0)


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
            for row in rows.select("row", "verdict").collect().iter_rows(named=True):
                found.append({"eval": record.name, "step": record.step} | row)
    return found


def _visits_timeline(
    name: str, problem_id: str, visits: pl.DataFrame, evaluated: Sequence[Mapping[str, Any]]
) -> Plot | None:
    """A problem's pass rate over the steps of the run `name` that sampled it, with its completions in evaluations as
    events; None for fewer than two steps. `visits` has a row per group, with the step and how many of its completions
    `passed` and were `graded`; `evaluated` has eval, step, row and verdict of each completion in an evaluation."""
    by_step = visits.group_by("step", maintain_order=True).agg(pl.col("passed", "graded").sum())
    steps = by_step["step"].to_list()
    rates = [passed / graded if graded else None for passed, graded in by_step.select("passed", "graded").iter_rows()]
    counts = {step: (passed, graded) for step, passed, graded in by_step.iter_rows()}
    events = []
    for each in evaluated:
        link = address("run", name, "eval", each["eval"], each["row"])
        events.append(Event("evaluations", each["step"], f"{each['eval']}: {each['verdict']}", link))
    drawn = Timeline(
        panels=[Panel("Pass rate", [Series("", steps, rates)], number_format=".0%", limits=(0.0, 1.0), tall=True)],
        events=events,
        link=lambda step: address("run", name, "problem", id=problem_id, step=int(step)),
        said=lambda step: f"step {step:g} · {counts[step][0]} of {counts[step][1]} passed",
        name=f"Pass rate of {problem_id} over the steps that sampled it",
        small=True,
    )
    return drawn.plot() if len(steps) > 1 else None


def clustered(rows: Sequence[dict[str, Any]], problem: Problem | None) -> list[dict[str, Any]]:
    """Puts completions of one problem (`rows`) with the same verdict, program (without one: answer) and first failed
    test into one cluster. Failures come first, the most frequent verdict first. Each cluster has in words `why` its
    first completion failed, and as `diff` how its program differs from the most similar one that passes. `problem` has
    the tests; without it (None) fewer reasons are known."""
    by_program: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        by_program.setdefault((row["verdict"], text_of(row), row["first_failed"]), []).append(row)
    passing = [members[0] for (verdict, *_), members in by_program.items() if verdict == Verdict.PASSED]
    clusters: list[dict[str, Any]] = []
    for (verdict, program, _), members in by_program.items():
        first = members[0]
        failed = failed_test(first, problem)
        clusters.append(
            {
                "verdict": verdict,
                "rows": members,
                "first": first,
                "program": program,
                "is_code": first["code"] is not None,
                "failed": failed,
                "why": (failed["error"] or failed["difference"] if failed else first["reason"]) or "",
            }
        )
    counts = Counter(row["verdict"] for row in rows)

    def rank(cluster: Mapping[str, Any]) -> tuple[bool, int, str, int]:
        verdict = cluster["verdict"]
        return verdict == Verdict.PASSED, -counts[verdict], str(verdict), -len(cluster["rows"])

    clusters.sort(key=rank)
    for number, cluster in enumerate(clusters):
        # Clusters that the page folds away are not compared: with many programs that takes seconds.
        is_open = number < CLUSTERS_OPEN
        cluster["sibling"], cluster["diff"] = passing_sibling(cluster["first"], passing) if is_open else (None, None)
    return clusters


def passing_sibling(
    row: Mapping[str, Any], passing: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any] | None, Markup | None]:
    """Of the completions that pass the one whose program is most like that of `row`, which fails, and what it takes to
    it; None if none passes, or this one does, was not graded or has no program."""
    code = row["code"] if has_failed(row) else None
    sibling = most_similar(code, passing) if code else None
    return sibling, marked_text.difference(code, sibling["code"]) if sibling else None


def failures_of(clusters: Sequence[Mapping[str, Any]]) -> list[tuple[int, str, int | None, str]]:
    """Why the graded completions of `clustered` failed, the most frequent first: how many of them had the verdict,
    failed the test first, and why, in words."""
    counts: Counter[tuple[str, int | None, str]] = Counter()
    for cluster in clusters:
        if has_failed(first := cluster["first"]):
            counts[first["verdict"], first["first_failed"], cluster["why"]] += len(cluster["rows"])
    return [(n, *kind) for kind, n in counts.most_common()]


def completion_page(data: RunData, name: str, place: Place, group: int | None, sample: int, shade: str) -> Page:
    """The variables of the page of a completion of the run `name`: why it got its reward, the test that it failed, its
    text, its tokens, and its siblings (the other completions of its group). In a step (`place`) it is number `sample`
    of `group`; in an evaluation `group` is None, and `sample` its row. `shade`: by what tokens are shaded."""
    members, position = data.group(place, group, sample)  # all columns of the siblings, and its index among these
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
    """Whether the completions of a run with these settings are programs."""
    return str(config.get("environment", "code")) in PROGRAMS


def _failure_of(
    data: RunData, name: str, place: Place, row: Mapping[str, Any], config: Mapping[str, Any], problem: Problem | None
) -> Page:
    """Why the completion `row` failed, as variables of `completion_page`: the test that it failed first (`failed`), how
    its output differs from the expected one, in words (`difference`) and as both texts with the first difference marked
    (`differing`), and the search for all completions at its place that fail in the same way (`failure`)."""
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
    """How the completion `row` got its reward, as variables of `completion_page`: the tests, in the order in which they
    ran, what the format and the tests gave, and the faults of the sandbox in its step."""
    environment = str(config.get("environment", "code"))
    tests: list[proof.TestLine] = []
    if problem and environment in PROGRAMS:
        order, held_back = [*range(len(problem.tests))], list[int]()
        if place.evaluation is None:  # an evaluation runs all tests, as they come
            order, held_back = data.test_order(problem), proof.held_back_tests(problem, config)
        tests = proof.test_lines(row, problem, order, held_back)
    step_metrics = (data.metrics_of(place.step) if place.step is not None else None) or {}
    faults = {key: value for key, value in step_metrics.items() if key.startswith("sandbox_faults") and value}
    # The settings that decide rewards are of training alone: evaluations, also a run's own, grade by the defaults.
    rule = config if place.evaluation is None else {"environment": environment}
    in_words = {"format_words": proof.format_in_words(row, rule), "reward_words": proof.reward_in_words(row, rule)}
    return {"tests": tests, "format": proof.format_decision(row, environment), "faults": faults} | in_words


def _siblings_of(
    data: RunData, name: str, place: Place, members: pl.DataFrame, position: int, config: Mapping[str, Any]
) -> Page:
    """The variables of `completion_page` about the group `members` of the completion in row `position`, of the run
    `name` at `place`: its siblings with links and advantages, and of those that pass the one with the most similar
    program."""
    columns = ("row", "group_index", "sample_index", "verdict", "reward", "advantage", "code")
    siblings = members.select(columns).to_dicts()
    row = siblings[position]
    passing = [each for each in siblings if each["verdict"] == Verdict.PASSED and each["code"] is not None]
    similar, diff = passing_sibling(row, passing) if _has_programs(config) else (None, None)
    # At most SIBLINGS of a large group are listed, with this completion in the middle.
    first = max(0, min(position - SIBLINGS // 2, len(siblings) - SIBLINGS))
    listed = slice(first, first + SIBLINGS)
    is_training = place.evaluation is None  # evaluations have no advantages
    advantage = proof.advantage_of(members, position, config) if is_training else None
    return {
        "siblings": [each | {"link": completion_link(name, place, each)} for each in siblings[listed]],
        "n_siblings": len(siblings), "position": position - first,
        "neighbours": _neighbours(data, name, place, row, siblings, position),
        "passing": (similar["sample_index"], completion_link(name, place, similar), diff) if similar else None,
        "advantage": advantage, "again": advantage.recomputed[listed] if advantage else [],
    }  # fmt: skip


def _neighbours(
    data: RunData, name: str, place: Place, row: Mapping[str, Any], siblings: Sequence[Mapping[str, Any]], position: int
) -> list[str | None]:
    """The addresses of the completions before and after: in its group, or in an evaluation in its file."""
    if place.evaluation is not None:
        position, n = row["row"], data.scan(place).select(pl.len()).collect().item()
    else:
        n = len(siblings)
    return [
        completion_link(name, place, {"row": number} if place.evaluation is not None else siblings[number])
        if 0 <= number < n
        else None
        for number in (position - 1, position + 1)
    ]


def completion_link(name: str, place: Place, row: Mapping[str, Any]) -> str:
    numbers = ("group_index", "sample_index") if place.evaluation is None else ("row",)
    return address("run", name, *place.parts, *(row[number] for number in numbers))


def _turns(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The turns of a completion: each answer, what it was answered (None for the last), and its verdicts and advantage
    where recorded."""
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
    """The completion's tokens as HTML, shaded by a value of each: by `shade` ("logprob" or another key of SHADES) if
    the row has it, else by another value that it has. None if it has none. `mean` and `least` are over all tokens."""
    tokens, available = row["completion_tokens"] or [], _token_values(row)
    if not tokens or not available:
        return None
    by = shade if shade in available else next(iter(available))
    values = available[by]
    decode = data.decode()
    shown = tokens[:TOKENS_ON_PAGE]
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
