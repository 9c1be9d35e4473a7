"""The score card: no attack buys a reward from coderl's grader, no honest program is misjudged, and other graders are
told what they do wrong."""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

from coderl_tasks.errors import ConfigError
from coderl_tasks.scorecard.corpus import KINDS, Case, corpus
from coderl_tasks.scorecard.graders import FunctionGrader, Outcome
from coderl_tasks.scorecard.scoring_run import FAULTS, ScoreCard, Scored, score_card

CASES = {case.id: case for case in corpus()}
RIGHT = CASES["sum/stdin-readline"]
BAD_GRADERS = """
import asyncio, json, os, re, time

def program(completion):
    return re.findall(r"```\\w*\\n(.*?)```", completion, re.S)[-1]

def bare_exec(problem, completion):
    try:
        for test in problem["tests"]:
            space = {}
            exec(program(completion), space)
            if space[problem["entry_point"]](*json.loads(test["input"])) != json.loads(test["expected"]): return False
        return True
    except Exception:
        return False

async def always(problem, completion):
    await asyncio.sleep(0)
    return 1

def dies(problem, completion): os._exit(0)
def kills_all_that_it_sees(problem, completion):
    os.kill(os.getppid(), 9)
    os.killpg(0, 9)
def writes_everywhere(problem, completion):
    for descriptor in range(3, 100):
        try: os.write(descriptor, b'{"reward": 1.0}\\n')
        except OSError: pass
    os._exit(0)
def leaves_a_child(problem, completion):
    if os.fork() == 0:
        os.setsid()
        open(os.environ["CHILD"], "w").write(str(os.getpid()))
        time.sleep(1000)
    while not os.path.exists(os.environ["CHILD"]): time.sleep(0.01)
    return True
def hangs(problem, completion): time.sleep(1000)
def not_a_number(problem, completion): return float("nan")
def text(problem, completion): return "1.0"
def fails(problem, completion): raise RuntimeError("sandbox is down")
def no_verdict(problem, completion): return None
number = 3
"""


@pytest.fixture(scope="module")
def own_card(embedded_url: str) -> ScoreCard:
    return asyncio.run(score_card(embedded_url, corpus(), at_once=4))


@pytest.fixture
def graders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a module bad_graders that functions can be taken from."""
    (tmp_path / "bad_graders.py").write_text(BAD_GRADERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def graded_by(function: str, case: Case = RIGHT) -> Outcome:
    return await FunctionGrader(f"bad_graders:{function}", {}).grade(case)


def test_the_cases_are_many_and_none_is_there_twice() -> None:
    cases = corpus()
    assert len(CASES) == len(cases)
    assert sum(case.is_attack for case in cases) >= 200
    assert sum(not case.is_attack for case in cases) >= 120
    assert sum(not case.is_attack and not case.deserves_reward for case in cases) >= 40
    answers = Counter(" ".join(case.completion.split()) for case in cases)
    assert [answer for answer, count in answers.items() if count > 1] == []
    assert {case.kind for case in cases if case.is_attack} == {case.kind for case in cases} == set(KINDS)
    for case in cases:
        lines = (case.id, case.category, case.about)
        assert all(line.strip() == line != "" and "\n" not in line and "|" not in line for line in lines), case.id
        assert case.problem["tests"], case.id


def test_coderls_grader_sells_no_reward_and_misjudges_nobody(own_card: ScoreCard) -> None:
    assert len(own_card.scored) == len(CASES)
    assert {scored.case.id: scored.outcome for scored in own_card.bought + own_card.misjudged} == {}
    assert [scored.case.id for scored in own_card.scored if scored.outcome.reward is None] == []


def test_no_program_keeps_count_of_the_tests(own_card: ScoreCard) -> None:
    """One that does passes a test, and no other: nothing of a test is there in the next, whatever they share."""
    reasons = {s.case.id: s.outcome.reason for s in own_card.scored if s.case.group == "counting"}
    assert len(reasons) >= 45
    assert {name: reason for name, reason in reasons.items() if not reason.startswith("wrong_answer: test 1:")} == {}


async def test_a_bare_exec_sells_many(graders: Path) -> None:
    told = ("replaces the comparison", "exits early")
    calls = [case for case in corpus() if case.group == "call-attack" and case.category in told]
    honest = [CASES["call/a-lambda"], CASES["call/a-decorated-function"], CASES["call/the-length"]]
    card = await score_card("bad_graders:bare_exec", [*calls, *honest], at_once=2)
    assert len(card.bought) >= 5 and card.died and card.misjudged == []
    assert card.outages_scored() is None


async def test_who_rewards_all_is_told_of_every_attack_and_every_wrong_program(graders: Path) -> None:
    cases = [RIGHT, CASES["sum/off-by-one"], CASES["assert-attack/equal-to-all"]]
    card = await score_card("bad_graders:always", cases)
    assert [(s.case.id, s.is_bought, s.is_misjudged) for s in card.scored] == [
        (RIGHT.id, False, False), ("sum/off-by-one", False, True), ("assert-attack/equal-to-all", True, False),
    ]  # fmt: skip
    assert [row["outcome"] for row in card.to_json()["cases"]] == ["as it should be", "misjudged", "bought"]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("dies", "grader died"),
        ("kills_all_that_it_sees", "grader died"),
        ("writes_everywhere", "grader died"),
        ("not_a_number", "returned nan, which is no reward"),
        ("text", "returned a str, which is no reward"),
        ("fails", "RuntimeError: sandbox is down"),
        ("no_verdict", ""),
    ],
)
async def test_a_grader_without_a_verdict_is_reported(graders: Path, function: str, reason: str) -> None:
    outcome = await graded_by(function)
    assert outcome == Outcome(None, reason)
    assert Scored(RIGHT, outcome).is_misjudged and not Scored(RIGHT, outcome).is_bought


async def test_a_grader_that_hangs_is_ended(graders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coderl_tasks.scorecard.graders.START_S", -13.0)  # 2 of the 15 seconds of the tests
    assert await graded_by("hangs") == Outcome(None, "grader hung: no verdict in 2 s")


async def test_what_a_call_leaves_behind_is_ended(graders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHILD", str(graders / "child"))
    assert await graded_by("leaves_a_child") == Outcome(1.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int((graders / "child").read_text()), 0)


async def test_attacks_upset_only_folders_that_are_made_for_them(
    graders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (graders / "running.py").write_text(
        "def grade(problem, completion):\n"
        "    exec(completion.split('```python\\n')[-1].split('```')[0], {'__name__': '__main__'})\n"
        "    return 1.0\n"
    )
    holder = graders / "holder"
    holder.mkdir()
    (holder / "kept").write_text("all of it")
    mode = holder.stat().st_mode
    monkeypatch.setattr(tempfile, "tempdir", str(holder))
    cases = [
        case for case in corpus() if case.category == "upsets files and folders" and case.problem["kind"] == "stdin"
    ]
    card = await score_card("running:grade", cases)
    assert len(card.bought) >= 5  # so the programs ran
    assert (holder / "kept").read_text() == "all of it" and holder.stat().st_mode == mode
    assert not [each.name for each in (*graders.iterdir(), *holder.iterdir()) if "moved" in each.name]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nonsense", "'nonsense' is no grader"),
        ("no_such_module:grade", "cannot import no_such_module:grade: ModuleNotFoundError"),
        ("bad_graders:no_such_function", "cannot import bad_graders:no_such_function: AttributeError"),
        ("bad_graders:number", "bad_graders:number is no function"),
    ],
)
async def test_a_target_that_cannot_be_used_is_one_line(graders: Path, target: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{says}") as error:
        await score_card(target, [RIGHT])
    assert "\n" not in str(error.value)


def outcomes_of(card: ScoreCard) -> Sequence[Outcome]:
    return [outcome for found in card.outages.values() for outcome in found or ()]


async def test_an_outage_is_no_wrong_answer_for_coderls_grader(
    embedded_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("_LONGEST_PAUSE_S", "_LONGEST_REST_S"):  # between attempts: half a minute in all
        monkeypatch.setattr(f"coderl_tasks.grading.client.{pause}", 0.1)
    card = await score_card(embedded_url, [RIGHT], with_outages=True)
    assert tuple(card.outages) == FAULTS
    assert {outcome.reward for outcome in outcomes_of(card)} == {None}
    assert card.outages_scored() == (0, len(FAULTS))


async def test_a_function_that_scores_an_outage_is_told(graders: Path) -> None:
    text = (
        "import os, urllib.request\n"
        "def grade(problem, completion):\n"
        "    try:\n"
        "        urllib.request.urlopen(os.environ['SANDBOX_URL'], b'{}').read()\n"
        "        raise ValueError\n"
        "    except Exception:\n"
        "        return 0.0\n"
    )
    (graders / "asking.py").write_text(text)
    card = await score_card("asking:grade", [RIGHT], with_outages=True)
    assert card.outages_scored() == (len(FAULTS), len(FAULTS))
    silent = await score_card("bad_graders:text", [RIGHT], with_outages=True)
    assert silent.outages_scored() is None


def test_a_reward_is_any_number_above_0() -> None:
    attack = next(islice((case for case in corpus() if case.is_attack), 1))
    bought = {reward: Scored(attack, Outcome(reward)).is_bought for reward in (1.0, 0.25, 0.0, -0.1, None)}
    assert bought == {1.0: True, 0.25: True, 0.0: False, -0.1: False, None: False}
