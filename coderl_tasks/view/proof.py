"""Why a reward is what it is: the format decision, the tests one by one, the reward's sum, the advantage in its group.

The program is extracted and the group's advantages are estimated again, by the functions that training used, and
compared with what is recorded. What is not recorded is said to be so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.environments.environment import CodeEnvironment
from coderl_tasks.errors import CoderlError
from coderl_tasks.grading.scoring import FORMAT_COEF, UNGRADED, Verdict, extract_code
from coderl_tasks.insight.problem_view import NO_VALUE
from coderl_tasks.insight.viewer_link import query_command
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA, TRUNCATED
from coderl_tasks.problems.comparators import comparator
from coderl_tasks.problems.problem import Problem
from coderl_tasks.settings.families import Truncation
from coderl_tasks.settings.setting import PROGRAMS

SAME = 1e-9  # how far what is worked out again may lie from what is recorded, which is rounded nowhere
NO_CONTEXT = 1 << 40
"""Taken for the model's context length, which a run does not record: prompts hardly ever reach it."""


@dataclass(frozen=True, slots=True)
class TestLine:
    """A test of a completion's problem: its number, in which place it ran, its outcome, CPU seconds if recorded, and
    its texts."""

    index: int
    place: int | None
    state: str
    seconds: float | None
    input: str
    expected: str


def test_lines(
    row: Mapping[str, Any], problem: Problem, order: Sequence[int], held_back: Sequence[int]
) -> list[TestLine]:
    """The tests in the order in which they ran for the rollout `row`, then those held back from the reward. Grading
    stops at the first failure: the tests before it passed, those after it did not run. Where all were run
    (`reward=fraction`), only how many passed is recorded."""
    rewarded = [index for index in order if index not in set(held_back)]
    n, passed, run, failed = len(rewarded), row["tests_passed"] or 0, row["tests_run"] or 0, row["first_failed"]
    if row["verdict"] == Verdict.PASSED and passed == n:
        states = ["passed"] * n
    elif failed is None or failed not in rewarded:
        states = ["not run"] * n
    else:
        place = rewarded.index(failed)
        before = after = "passed" if passed == n - 1 else "run, outcome not recorded" if run == n else "not recorded"
        if passed == place and run == place + 1:  # it stopped there
            before, after = "passed", "not run"
        states = [before] * place + ["failed"] + [after] * (n - place - 1)
    outcome = {None: "held back", True: "held back: all pass", False: "held back: not all pass"}[
        row["passes_held_back"]
    ]
    lines: list[tuple[int, int | None, str]] = [*zip(rewarded, count(1), states, strict=False)]
    lines += [(index, None, outcome) for index in held_back]
    tests = tuple(problem.tests)
    seconds: dict[int | None, float] = dict(enumerate(row["test_seconds"] or [], 1))
    return [
        TestLine(index, place, state, seconds.get(place), tests[index].input, tests[index].expected)
        for index, place, state in lines
    ]


def rule_in_words(problem: Problem) -> str:
    """How the outcome of a problem's tests is judged, as the end of a sentence about it."""
    if problem.kind == "assert":
        return "judged by its assertion"
    if problem.checker:
        return "judged by the problem's own checker"
    of_output, of_value = comparator(problem.comparator).words
    return f"compared with the expected one {of_value if problem.kind == 'call' else of_output}"


def difference_in_words(problem: Problem, difference: str | None) -> str:
    """What of a wrong answer was compared, by which rule, and where it first differed, in a sentence."""
    what = "returned value" if problem.kind == "call" else "program's output"
    if difference is None or difference == NO_VALUE:
        where = f"and is {difference or 'wrong'}"
    else:
        where = f"and differs {'' if difference.startswith('after ') else 'in '}{difference}"
    return f"The {what} was {rule_in_words(problem)} {where}."


def held_back_tests(problem: Problem, config: Mapping[str, Any]) -> list[int]:
    """The tests of a problem that a run with the settings `config` held back from the reward."""
    share = float(config.get("holdback") or 0.0)
    return CodeEnvironment(holdback=share, seed=int(config.get("seed") or 0)).held_back(problem) if share else []


@dataclass(frozen=True, slots=True)
class Format:
    """How the program was found: in words, the completion's `lines` that it stands in (from 1), and whether extracting
    it again gives what is recorded (None: not a program's environment)."""

    decision: str
    lines: tuple[int, int] | None
    is_same: bool | None


def format_decision(row: Mapping[str, Any], environment: str) -> Format:
    text, code = row["completion"] or "", row["code"]
    if row["verdict"] is None:
        return Format("not looked at, as the completion was not graded", None, None)
    if environment == "custom":
        return Format("the whole answer, which compute_reward reads", None, None)
    if environment not in PROGRAMS:
        return Format("the answer that was extracted" if code else "no answer was found", None, None)
    again = extract_code(text)
    is_same = again == code
    if code is None:
        cut = ": it was cut off at max_tokens" if row["stop_reason"] == TRUNCATED else ""
        return Format(f"no closed block of code in the answer{cut}", None, is_same)
    first = text.rfind(code)
    lines = None if first < 0 else (text.count("\n", 0, first) + 1, text.count("\n", 0, first + len(code)) + 1)
    return Format("the last closed block of code of the answer", lines, is_same)


def reward_in_words(row: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The sum that gives the reward, with its numbers. `config` has the settings that the completion was graded by."""
    format_score, correctness, environment = row["format_score"], row["correctness_score"], config.get("environment")
    if row["verdict"] is None:
        return "not graded: there are no log-probabilities to train on"
    if row["verdict"] in UNGRADED:
        return "no reward: the fault is not the program's, and nothing is learned from this completion"
    if row["reward"] is None:
        return "no reward: the program is suspected to have taken it from the tests (on_hack=quarantine)"
    if format_score is None or correctness is None or environment == "custom":
        return f"what compute_reward returned: {row['reward']:g}"
    if environment == "gsm8k":
        return f"0.2 × (format score + 1) + 0.8 × correct = 0.2 × {format_score + 1:g} + 0.8 × {correctness:g}"
    coefficient = float(config.get("format_coef", FORMAT_COEF))
    correct, passed, total = f"{correctness:g}", row["tests_passed"], row["tests_total"]
    # With `holdback`, correctness is a share of fewer tests than `tests_total`: then the ratio would be another number.
    if config.get("reward") == "fraction" and total and passed is not None and abs(passed / total - correctness) < SAME:
        correct = f"{passed}/{total}"
    return f"format_coef × format score + correct = {coefficient:g} × {format_score:g} + {correct}"


def format_in_words(row: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """What the format score means for the reward; empty if there is none."""
    score, environment = row["format_score"], config.get("environment")
    if score is None:
        return ""
    if environment == "custom":
        return f"format score {score:g}"
    cost, name = float(config.get("format_coef", FORMAT_COEF)), "format_coef"
    if environment == "gsm8k":
        cost, name = 0.2, "0.2"
    if score < 0:
        return f"format violated, score {score:g}: costs {name} × {-score:g} = {cost * -score:g}"
    return f"format ok, score 0; a violation scores −1, which costs {cost:g}"


@dataclass(frozen=True, slots=True)
class Advantage:
    """The advantage's `rule` and its `numbers` for this completion, as text, and what the rule gives for each
    completion of the group. `is_same`: all are what is recorded; None if they were not recomputed, and `why` not."""

    rule: str
    numbers: str
    recomputed: list[float | None]
    is_same: bool | None
    why: str = ""


def advantage_of(group: pl.DataFrame, place: int, config: Mapping[str, Any]) -> Advantage:
    """The advantage of row `place` of its `group` (ROLLOUT_SCHEMA): the group's advantages, recomputed from its rewards
    by the run's settings `config`, are compared with the recorded ones."""
    from coderl_tasks.policy.grpo import EPS, ESTIMATORS, counted_rewards, estimator, with_advantages  # takes seconds

    name, eps = str(config.get("advantage", "mean_centred")), config.get("advantage_eps", EPS)
    rule = ESTIMATORS[name].in_words if name in ESTIMATORS else name
    truncation = config.get("truncation") or {}
    if truncation.get("kind", "graded") != "graded":
        rule += f", truncation={truncation['kind']}"
    not_recomputed = partial(Advantage, rule, numbers="", recomputed=[None] * len(group), is_same=None)
    recorded = group["advantage"].to_list()
    if not any(value is not None for value in recorded):
        return not_recomputed(why="nothing is trained on here, or nothing was graded")
    try:
        # The rule by which rewards count: truncated completions may be left out, or penalised by their length. A run
        # does not record the model's context length, so NO_CONTEXT stands for one that no prompt reaches.
        max_tokens, of_trajectory = int(config.get("max_tokens") or 0), config.get("max_trajectory_tokens")
        count_rewards = counted_rewards(Truncation(**truncation), max_tokens, NO_CONTEXT, of_trajectory)
        rows = group.select(*ROLLOUT_SCHEMA)
        recomputed = with_advantages(rows, estimator(name, eps), count_rewards)["advantage"].to_list()
        rewards = count_rewards(rows)
    except (CoderlError, ValueError, KeyError, TypeError) as error:  # settings of another version, or damaged ones
        return not_recomputed(why=f"it cannot be worked out: {error}")
    is_same = all(
        old == new or (old is not None and new is not None and abs(old - new) < SAME)
        for old, new in zip(recorded, recomputed, strict=True)
    )
    own, counted = rewards[place], [value for value in rewards if value is not None]
    if own is None:
        numbers = "this completion does not count"
    elif max(counted) == min(counted):
        numbers = f"all {len(counted)} rewards that count are {own:g}: no signal, and the update skips the group"
    else:
        numbers = ESTIMATORS[name].with_numbers(own, counted, eps=eps)
    return Advantage(rule, numbers, recomputed, is_same)


def group_sql(run: Path, row: Mapping[str, Any], evaluation: str | None, config: Mapping[str, Any]) -> str:
    """A command that shows the group of a completion, with the advantage worked out in SQL."""

    def text(value: str) -> str:
        return "'" + value.replace("'", "''") + "'"

    columns = "sample_index, verdict, tests_passed, tests_total, format_score, correctness_score, reward"
    if evaluation is not None:
        of = f"eval = {text(evaluation)} AND problem_id = {text(row['problem_id'])}"
        sql = f"SELECT {columns} FROM eval_rollouts WHERE {of} ORDER BY attempt, sample_index"
    else:
        from coderl_tasks.policy.grpo import EPS, ESTIMATORS

        rule = ESTIMATORS.get(str(config.get("advantage", "mean_centred")))
        worked = rule.as_sql(config.get("advantage_eps", EPS)) if rule else "NULL"
        of = f"step = {row['step']} AND group_index = {row['group_index']}"
        sql = f"SELECT {columns}, {worked} AS worked_out, advantage, trained FROM outcomes WHERE {of} ORDER BY 1"
    return query_command(run, sql)
