"""evaluate: Pass@1 of a checkpoint on the test splits, with 95% intervals, and against the run's baseline."""

import sys
from pathlib import Path
from typing import Any

import polars as pl
from prefect import flow

import flows  # noqa: F401 - first: Prefect loads this file by its path, without its package
from coderl_tasks.errors import ConfigError
from coderl_tasks.evaluation.completions import grade_completions, read_completions_of
from coderl_tasks.evaluation.paired import changed_text, compared, side_text, unlike
from coderl_tasks.evaluation.pass_at_1 import Evaluation, evaluate_checkpoint
from coderl_tasks.evaluation.policy import FoundPolicy
from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.judge import Judge, require_sandbox
from coderl_tasks.insight.diagnosis import compared_lines, evaluation_markdown
from coderl_tasks.insight.record import EvalRecord
from coderl_tasks.journal.ledger import cost_line, cost_price, evaluation_budget, evaluation_tokens
from coderl_tasks.journal.recorded_json import recorded_config, recorded_settings, working_in
from coderl_tasks.journal.steps import FINAL, EvalJournal
from coderl_tasks.planning import flow_plans
from coderl_tasks.planning.estimates import priced_forecast
from coderl_tasks.problems import Problem
from coderl_tasks.rollouts.engine import open_session
from coderl_tasks.runtime.display import (
    Display,
    command_line,
    exclusive_flow,
    name_flow_run,
    publish_later,
    saying_what_next,
)
from coderl_tasks.services import services
from coderl_tasks.settings import EvaluateSettings, TrainSettings, about, all_settings, flat
from coderl_tasks.settings.flow_settings import REWARD_HASH

MANY_TRUNCATED = 0.1  # share of completions above which max_tokens seems too small


@flow(name="evaluate")
@exclusive_flow
async def evaluate(settings: EvaluateSettings) -> str:
    """Pass@1 of a checkpoint, or of both sides of `compare`. Returns the (last) folder with rollouts and summary."""
    display = Display()
    if settings.compare is not None:
        return await _compare(settings, display)
    settings, policy = await flow_plans.plan_evaluation(settings)
    folder = flow_plans.evaluation_folder(settings, policy)
    content = flow_plans.evaluation_content(settings, policy)  # what decides the result: settings and policy
    display.say(f"evaluating {policy.sampler_path or settings.model_name}")
    display.say(f"evaluation directory: {folder}")
    name_flow_run(folder.name)
    if recorded_settings(folder) == content:
        if (folder / "summary.json").is_file():
            display.say("evaluated before with these settings: nothing is sampled (to evaluate again: log_path=NAME)")
        else:
            display.say("continuing where an earlier start with these settings stopped (to start over: log_path=DIR)")
    pinned = {"checkpoint": str(policy.run)} if policy.run else {}  # `latest` may be another run by then
    command = command_line("evaluate", settings, **pinned, log_path=str(folder))
    with working_in(folder, content, instead="choose another log_path"), saying_what_next(display, command):
        summary = await _evaluate(settings, policy, folder, display)
    _say_result(display, summary)
    if summary.get("taken_from") is None and settings.completions is None:  # else nothing was sampled
        display.say(cost_line(evaluation_tokens(folder), cost_price(settings)))
    return str(folder)


async def _compare(settings: EvaluateSettings, display: Display) -> str:
    """Shows how the two sides of the setting `compare` differ. A side is one or more policies (runs of several seeds,
    say); each is evaluated, unless it has a finished evaluation. Returns the last evaluation's folder."""
    sides: list[list[EvalRecord]] = []
    folder = Path()
    for side in flow_plans.compared_sides(settings):
        sides.append([])
        for name, source in side:  # the folder of a finished evaluation, or settings
            # What was evaluated with these settings before is not sampled again.
            folder = source if isinstance(source, Path) else Path(await evaluate(source))
            sides[-1].append(_eval_record(EvalJournal(folder), name))
    for line in compared_lines(sides):
        display.say(line)
    # The runs of one side are taken for seeds of one configuration: warn of other settings that decide what is trained.
    keys = [key for key, field in all_settings(TrainSettings) if about(field).decides_content and key != "seed"]
    for records in sides:
        # A run's own evaluation is in RUN/evals/NAME/rollouts.parquet; any other one has no config of a run above it.
        recorded = [recorded_config(record.rollouts.parents[2]) for record in records if record.rollouts is not None]
        configs = [flat(TrainSettings, config) for config in recorded if config is not None]
        values = {key: [str(config.get(key)) for config in configs] for key in keys}
        if differing := [f"{key} ({', '.join(each)})" for key, each in values.items() if len(set(each)) > 1]:
            names = ", ".join(record.name for record in records)
            display.say(f"warning: {names} are not seeds of one configuration: {', '.join(differing)}")
    return str(folder)


async def _evaluate(settings: EvaluateSettings, policy: FoundPolicy, folder: Path, display: Display) -> dict[str, Any]:
    """The summary of the evaluation in `folder`, whose lock this process holds, made now or recorded, and compared
    anew. Raises ConfigError if its problems are not those recorded, or none of those of `compare_to`."""
    journal = EvalJournal(folder)
    summary, rollouts = journal.read_summary(), journal.read_rollouts()
    problems = flow_plans.evaluation_problems(settings, folder)
    problem_ids = [problem.problem_id for problem in problems]
    # Before anything is sampled: an evaluation that cannot be compared as asked would be paid for in vain.
    other = flow_plans.compared_with(settings, policy.run)  # the evaluation that compare_to means
    # If the user named none it is the run's baseline: without problems in common, the comparison is left out.
    if other is not None and "compare_to" in settings.given:
        other_rollouts = other.read_rollouts()
        if other_rollouts is None or set(other_rollouts["problem_id"]).isdisjoint(problem_ids):
            raise ConfigError(
                f"compare_to={settings.compare_to}: {other.folder} has none of these {len(problems)} problems: there "
                "is nothing to compare; evaluate on the same data (dataset, evaluation_dataset, test_share, splits)"
            )
    if summary is None or rollouts is None:
        rollouts, summary = await _take_or_sample(settings, policy, problems, folder, display)
        summary["step"] = policy.step
    elif rollouts["problem_id"].unique(maintain_order=True).to_list() != problem_ids:
        raise ConfigError(
            f"{flow_plans.evaluated_on(settings)} has other problems than when {folder} was evaluated: to evaluate "
            "again, set log_path=NAME"
        )
    before: EvalRecord | None = None
    comparison: dict[str, Any] = {}
    if other is not None:
        before = _eval_record(other, flow_plans.compared_name(other, policy.run))
        comparison = compared(other.read_rollouts(), rollouts, to=before.name, sides=(before.summary, summary))
        if not comparison:
            display.say(f"not compared with {other.folder}: no problem was graded in both")
    # Even if it was recorded: this comparison may be a new one. Without one, an earlier start's stays on record.
    journal.write(rollouts, summary | comparison)
    dataset = ",".join(settings.benchmark or [settings.dataset])
    markdown = evaluation_markdown(_eval_record(journal, folder.name), before, dataset=dataset)
    publish_later("evaluation", folder.name, markdown)
    return {key: value for key, value in summary.items() if key != "compare"} | comparison


async def _take_or_sample(
    settings: EvaluateSettings, policy: FoundPolicy, problems: list[Problem], folder: Path, display: Display
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Returns rollouts (ROLLOUT_SCHEMA) and summary on `problems`: those of the run's own final evaluation if that is
    the same; else of the graded completions of a file (the setting `completions`) or of the policy. What an earlier
    start recorded in `folder` is not done again."""
    if (of_run := taken_from_the_run(settings, policy, [problem.problem_id for problem in problems])) is not None:
        display.say(
            f"the run's evaluation {FINAL} has these problems, with these settings: nothing is sampled (set another "
            "seed or temperature to sample)"
        )
        return of_run
    journal = EvalJournal(folder)
    given = None if settings.completions is None else read_completions_of(settings, problems)
    with services(None if given else settings.model_name, settings.model_reason) as used:
        for line in used.lines:
            display.say(line)
        used.require_hidden(folder)  # from programs in the sandbox: it holds the tests
        if given is not None:
            async with SandboxClient(used.sandbox_urls, used.sandbox_concurrency) as client:
                await require_sandbox(client)
                judge = Judge(client, settings.reward_timeout, isolation_per_test=settings.isolation_per_test)
                async with display.bar("grading") as on_progress:
                    return await grade_completions(given, problems, judge, journal.groups, on_progress)
        async with open_session(settings, used, evaluation_budget(settings, folder)) as session:
            # Only a service bills.
            if session.service_address is not None and (line := priced_forecast(settings, problems)):
                display.say(line)
            evaluation = Evaluation(session, settings, policy, problems, journal.groups)
            async with display.bar("evaluation") as on_progress:
                return await evaluate_checkpoint(evaluation, on_progress)


def taken_from_the_run(
    settings: EvaluateSettings, policy: FoundPolicy, problem_ids: list[str]
) -> tuple[pl.DataFrame, dict[str, Any]] | None:
    """Returns rollouts and summary of the run's own final evaluation if its policy, problems and settings are these:
    sampling would repeat the same draws. Returns None if not, or if some completions could not be graded."""
    # A run's own evaluation has one sample per problem, at top_p 1, and no benchmark's prompts.
    if policy.run is None or settings.n_samples > 1 or settings.top_p < 1 or settings.benchmark is not None:
        return None
    final = EvalJournal(policy.run / "evals" / FINAL)
    summary, rollouts = final.read_summary(), final.read_rollouts()
    # With infra errors it is not reused: a new evaluation can grade these completions too.
    if summary is None or rollouts is None or summary.get("infra_errors"):
        return None
    # Settings that decide a completion or its grade: what an evaluation inherits, and the seed. Those of sampling are
    # in the evaluation's summary, the model is that of the policy, and a reward file counts by its content.
    of_run = {"seed", REWARD_HASH, *settings.inherited_content()} - {"model_name", "max_tokens", "reward_file"}
    of_summary, content = ("temperature", "max_tokens"), settings.content()
    same_settings = all(policy.config.get(key) == content.get(key) for key in of_run)
    same_settings &= all(summary.get(key) == content.get(key) for key in of_summary)
    same_policy = summary.get("policy") == policy.sampler_path
    same_policy &= summary.get("served_by", policy.served_by) == policy.served_by  # older summaries have no such key
    if not (same_settings and same_policy and rollouts["problem_id"].to_list() == problem_ids):
        return None
    summary.pop("compare", None)  # this evaluation has a comparison of its own, or none
    return rollouts, summary | {"taken_from": FINAL}


def _eval_record(journal: EvalJournal, name: str) -> EvalRecord:
    summary = journal.read_summary() or {}
    return EvalRecord(name, int(summary.get("step", -1)), summary, journal.folder / "rollouts.parquet")


def _say_result(display: Display, summary: dict[str, Any]) -> None:
    """Says Pass@k with intervals, mean reward, shares in the format, truncated and not graded, and how it compares."""

    def say_estimate(name: str, k: str, estimate: float, result: dict[str, Any]) -> None:
        interval = f"[{result['ci_low']:.1%}, {result['ci_high']:.1%}]"
        display.say(f"{name:<12} Pass@{k} {estimate:.1%} {interval}  n={result['n']}")

    for split, result in {"all": summary, **summary["by_split"]}.items():
        # Pass@1 has fields of its own, Pass@k is there only with several samples; the line of Pass@1 names the split.
        for k, of_k in (result.get("pass_at_k", {}) | {"1": result | {"estimate": result["pass_at_1"]}}).items():
            if of_k["n"]:  # else no problem of the split was graded
                say_estimate(split if k == "1" else "", k, of_k["estimate"], of_k)
    for turn, result in enumerate(summary.get("by_turn", ()), start=1):
        say_estimate(f"answer {turn}", "1", result["pass_at_1"], result)
    if summary.get("mean_reward") is not None:
        has_partial_rewards_only = summary["mean_reward"] > 0 and summary["pass_at_1"] == 0
        note = " (none reached 1, which Pass@1 counts)" if has_partial_rewards_only else ""
        display.say(f"mean reward  {summary['mean_reward']:.3f}{note}")
    if summary.get("format_rate") is not None:
        # Both are faults where there are any, and then explain a low Pass@1.
        truncated, ungraded = summary.get("truncated_rate"), summary.get("infra_errors")
        faults = f"  truncated {truncated:.1%}" if truncated else ""
        faults += f"  infra errors {ungraded}" if ungraded else ""
        display.say(f"format rate  {summary['format_rate']:.1%}{faults}")
        if truncated and truncated > MANY_TRUNCATED:
            limit = f"max_tokens={summary.get('max_tokens')}"
            display.say(f"warning: {truncated:.0%} of the completions are truncated ({limit}): set a larger max_tokens")
    if "compare" in summary:
        paired = summary["compare"]
        interval = f"[{paired['ci_low'] * 100:+.1f}, {paired['ci_high'] * 100:+.1f}]"
        difference = f"{paired['difference'] * 100:+.1f} points {interval}"
        display.say(f"against {paired['to']}: {difference} on the {paired['n']} problems of both{changed_text(paired)}")
        display.say(f"  {paired['to']}: {side_text(paired['before'])}")
        display.say(f"  this one: {side_text(paired['after'])}")
        if warning := unlike(paired["before"], paired["after"], paired["n"]):
            display.say(f"warning: {warning}")


if __name__ == "__main__":
    from coderl_tasks.cli import command

    command(["evaluate", *sys.argv[1:]])
