"""A user's compute_reward in the sandbox: rewards, and everything that can be wrong with one."""

from datetime import date
from pathlib import Path

import pytest

from coderl_tasks.environments.environment import CustomEnvironment, Turns
from coderl_tasks.errors import CoderlError, ConfigError
from coderl_tasks.grading import Judge, SandboxClient, Verdict
from coderl_tasks.grading.reward_function import Reward, RewardFunction
from coderl_tasks.policy.rollout import GRADED_COLUMNS
from coderl_tasks.problems.loading import PROMPT_ROWS
from coderl_tasks.problems.problem import RowDropped

SOURCE = """
import os, signal, socket

seen = []

def compute_reward(completion: str, ground_truth: str) -> float:
    seen.append(completion)
    if completion == "raise":
        return 1 / int(ground_truth)
    if completion == "loop":
        while True:
            pass
    if completion == "exit":
        raise SystemExit(3)
    if completion == "gone":
        os._exit(3)
    if completion == "network":
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    if completion == "kill":
        os.kill(os.getppid(), signal.SIGKILL)
    if completion == "long":
        return 10**400
    found = {"huge": 1e300, "inf": float("-inf")}
    if completion in found:
        return found[completion]
    return {"right": 1, "half": 0.5, "nan": float("nan"), "text": "1.0", "none": None, "calls": len(seen)}[completion]
"""
PROBLEM = PROMPT_ROWS.read({"prompt": "Say it.", "ground_truth": 0}, split="s", source_row=0)


async def test_each_completion_has_its_own_reward_or_its_own_error(embedded_judge: Judge) -> None:
    wrong = ["raise", "loop", "exit", "gone", "network", "nan", "text", "none", "huge", "inf", "long"]
    texts = ["right", *wrong, "half", "right", "calls"]
    function = RewardFunction("mine.py", SOURCE)
    rewards = await function.rewards(embedded_judge.client, "0", texts, 0.5)
    # Each in a process of its own, so none sees what another call left.
    assert [reward for reward in rewards if not reward.error] == [Reward(value) for value in (1.0, 0.5, 1.0, 1.0)]
    errors = {text: reward.error for text, reward in zip(texts, rewards, strict=True) if reward.error}
    assert list(errors) == wrong
    said = [
        "line 9, in compute_reward",
        "0.5 s of CPU",
        "SystemExit",
        "exit status 3",
        "socket.py",
        "nan",
        "'1.0'",
        "None",
        "1e+300: a reward is finite, from -1e+09",
        "-inf",
        "OverflowError",
    ]
    assert [part for part, error in zip(said, errors.values(), strict=True) if part not in error] == []
    assert errors["raise"].startswith("Traceback") and errors["raise"].endswith("ZeroDivisionError: division by zero")
    assert "return 1 / int(ground_truth)" in errors["raise"] and "reward_runner" not in errors["raise"]


async def test_what_kills_the_runner_costs_the_others_nothing(embedded_judge: Judge) -> None:
    function = RewardFunction("mine.py", SOURCE)
    rewards = await function.rewards(embedded_judge.client, "0", ["right", "kill", "half"], 5.0)
    assert [reward.value for reward in rewards] == [1.0, 0.0, 0.5]
    assert rewards[1].error


async def test_scores_and_an_outage(embedded_judge: Judge, closed: str) -> None:
    environment = CustomEnvironment(RewardFunction("mine.py", SOURCE))
    await environment.require_usable(embedded_judge)
    scored = await environment.score(embedded_judge, PROBLEM, ["right", "half", "raise"])
    assert [one.grade.verdict for one in scored] == [Verdict.PASSED, Verdict.WRONG_ANSWER, Verdict.REWARD_ERROR]
    assert [(one.format_score, one.correctness, one.reward) for one in scored] == [(0, 1, 1), (0, 0.5, 0.5), (0, 0, 0)]
    value = GRADED_COLUMNS["reward_error"].value
    assert value is not None
    shown = [value(one) for one in scored]
    assert shown[:2] == [None, None] and "ZeroDivisionError" in shown[2]
    async with SandboxClient([closed], attempts=1, outage_patience_s=0.0) as client:
        scored = await environment.score(Judge(client), PROBLEM, ["right"])
    assert [(one.grade.verdict, one.reward) for one in scored] == [(Verdict.INFRA_ERROR, None)]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def compute_reward(completion, ground_truth)\n", "line 1: expected ':'"),
        ("\ndef reward(completion, ground_truth): ...\n", "defines no function compute_reward"),
        ("\ndef compute_reward(completion): ...\n", "line 2: compute_reward has to take two arguments"),
        ("async def compute_reward(completion, ground_truth): ...\n", "must not be async"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_unrun(tmp_path: Path, source: str, says: str) -> None:
    file = tmp_path / "reward.py"
    file.write_text(source)
    with pytest.raises(ConfigError, match=says) as refusal:
        RewardFunction.read(str(file))
    assert str(file) in str(refusal.value) and "\n" not in str(refusal.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        RewardFunction.read(str(tmp_path / "missing.py"))


def test_a_file_may_begin_with_a_mark(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_bytes(b"\xef\xbb\xbfdef compute_reward(completion, ground_truth): ...\n")
    assert RewardFunction.read(str(file)).source.startswith("def ")


def test_a_method_of_that_name_is_not_the_function(tmp_path: Path) -> None:
    method = "class Base:\n    def compute_reward(self, completion, ground_truth): ...\n"
    (tmp_path / "reward.py").write_text(f"{method}def compute_reward(completion, ground_truth): ...\n")
    assert RewardFunction.read(str(tmp_path / "reward.py")).source.startswith(method)


async def test_a_file_that_cannot_be_loaded_is_refused_with_its_traceback(embedded_judge: Judge) -> None:
    function = RewardFunction("mine.py", "import not_there\ndef compute_reward(completion, ground_truth): ...\n")
    with pytest.raises(CoderlError, match=r"mine.py cannot be used in the sandbox:\n[^$]*No module named 'not_there'"):
        await function.require_usable(embedded_judge.client)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "Say it."}, "no_ground_truth"),
        ({"prompt": "Say it.", "ground_truth": date(2025, 1, 1)}, "no_ground_truth"),
        ({"prompt": "Say it.", "ground_truth": b"1"}, "no_ground_truth"),
        ({"text": "Say it.", "ground_truth": "1"}, "no_prompt"),
        ({"prompt": "Say \ud800", "ground_truth": "1"}, "not_utf8"),
        ("Say it.", "row_not_object"),
    ],
)
def test_a_row_that_lacks_something_says_what(row: object, reason: str) -> None:
    with pytest.raises(RowDropped) as drop:
        PROMPT_ROWS.read(row, split="s", source_row=3)
    assert drop.value.reason == reason


REPLIES = """
def compute_reward(completion, ground_truth):
    return float(completion == ground_truth)

def respond(completion, ground_truth, turn):
    if completion == "raise":
        raise KeyError(turn)
    if completion == "number":
        return 3
    if completion == "cut":
        completion = "\\ud83d"
    return None if completion == ground_truth else f"Not {completion} ({turn})."
"""


async def test_a_function_replies_between_turns(embedded_judge: Judge) -> None:
    environment = CustomEnvironment(RewardFunction("mine.py", REPLIES), Turns(3))
    await environment.require_usable(embedded_judge)
    replies = await environment.replies(embedded_judge, PROBLEM, ["0", "1", "raise", "number", "1", "cut"], 2)
    assert [(reply.check, reply.text) for reply in replies] == [
        (Verdict.PASSED, None),
        (Verdict.WRONG_ANSWER, "Not 1 (2)."),
        (Verdict.CHECKER_ERROR, None),
        (Verdict.CHECKER_ERROR, None),
        (Verdict.WRONG_ANSWER, "Not 1 (2)."),
        (Verdict.WRONG_ANSWER, r"Not \ud83d (2)."),
    ]


async def test_a_file_without_replies_is_refused_where_they_are_needed(embedded_judge: Judge) -> None:
    function = RewardFunction("mine.py", SOURCE)
    await CustomEnvironment(function).require_usable(embedded_judge)
    with pytest.raises(ConfigError, match=r"(?s)max_turns.*no function respond"):
        await CustomEnvironment(function, Turns(2)).require_usable(embedded_judge)
    function = RewardFunction("mine.py", f"{SOURCE}\ndef respond(completion, ground_truth):\n    return None\n")
    with pytest.raises(ConfigError, match=r"respond has to take \(completion, ground_truth, turn\): too many"):
        await CustomEnvironment(function, Turns(2)).require_usable(embedded_judge)
