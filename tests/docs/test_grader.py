"""The examples of docs/grader.md, run as they stand there, and in TRL, verl and verifiers where these are installed.

None of the three is a dependency. Last run in TRL 1.16.0, verl 0.9.1 and verifiers 0.4.0.
"""

import asyncio
import inspect
import json
import multiprocessing
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from coderl_tasks.errors import ConfigError, DataError, InfraError
from coderl_tasks.grading import Grader
from coderl_tasks.paths import NANO_MODEL, PROJECT_ROOT
from coderl_tasks.services import Services, services
from tests.conftest import Serve

EXAMPLES = re.findall(r"^```python\n(.*?)^```\n", (PROJECT_ROOT / "docs" / "grader.md").read_text(), re.M | re.S)
USE, IN_A_LOOP, TRL, VERL, VERIFIERS = EXAMPLES
TESTS = [{"input": "1 2\n", "output": "3\n"}]
RIGHT = "```python\nprint(sum(map(int, input().split())))\n```"
WRONG = "```python\nprint(4)\n```"


@pytest.fixture(autouse=True)
def named(embedded: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's sandbox, named as a user would name it."""
    monkeypatch.setenv("SANDBOX_URL", embedded.sandbox_urls[0])


@pytest.fixture
def refusing(serve: Serve) -> str:
    """A sandbox that refuses what it is asked, so that nothing can be graded."""
    return serve(web.Application())


def run(example: str) -> dict[str, Any]:
    """The names that an example defines."""
    names: dict[str, Any] = {}
    exec(example, names)
    return names


def test_the_use_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    exec(USE + IN_A_LOOP, {})
    right, wrong, *rewards = capsys.readouterr().out.splitlines()
    assert right.split() == ["1.0", "passed"]
    assert wrong.startswith("0.0 wrong_answer test 1: ")
    assert rewards == ["[1.0, -0.1]", "[1.0, 0.0]"]


def test_an_outage_is_never_a_number(refusing: str) -> None:
    row = {"tests": TESTS}
    with Grader(refusing) as grader:
        (lost, formless) = grader.grade([row, row], [RIGHT, "no code"])
        assert (lost.reward, lost.grade.verdict, formless.reward) == (None, "infra_error", -0.1)
        assert grader.rewards([row], [WRONG], ungraded="none") == [None]
        with pytest.raises(InfraError, match="1 of 2 completions could not be graded"):
            grader.rewards([row, row], ["no code", RIGHT], ungraded="raise")
        with pytest.raises(ValueError, match="use 'raise' or 'none'"):
            grader.rewards([row], [RIGHT], ungraded="zero")  # type: ignore[arg-type]
    parameter = inspect.signature(Grader.rewards).parameters["ungraded"]
    assert parameter.default is parameter.empty


def test_what_cannot_be_graded_on_is_said() -> None:
    grader = Grader()
    for problems, completions, error, why in (
        ([{"tests": TESTS}], [], ValueError, "1 problems and 0 completions"),
        ({"tests": TESTS}, [RIGHT], ValueError, "give lists"),
        ([{"tests": TESTS}, {"tests": []}], [RIGHT, RIGHT], DataError, "problem 1 cannot be graded on: no_tests"),
        ([{"tests": TESTS}], [[{"role": "assistant"}]], DataError, "completion 0 is neither a text nor a chat"),
    ):
        with pytest.raises(error, match=why):
            grader.grade(problems, completions)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="sandbox names no server"):
        Grader([])
    grader.close()


def test_threads_and_loops_share_one_grader_which_starts_again() -> None:
    grader = Grader(fraction=True)
    two = [*TESTS, {"input": "2 2\n", "output": "4\n"}]
    found: list[list[float | None]] = []

    async def of_a_loop() -> None:
        rewards = await asyncio.gather(
            *(grader.arewards([{"tests": two}], [text], ungraded="raise") for text in (RIGHT, WRONG))
        )
        found.append([reward for (reward,) in rewards])

    threads = [threading.Thread(target=asyncio.run, args=(of_a_loop(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1.0, 0.5]] * 2
    grader.close()
    chat = [{"role": "user", "content": "Add."}, {"role": "assistant", "content": RIGHT}]
    with grader:
        assert grader.rewards([{"tests": json.dumps(two)}], [chat], ungraded="raise") == [1.0]


def interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_an_interrupted_grading_is_cancelled(serve: Serve) -> None:
    left = threading.Event()

    async def hold(request: web.Request) -> web.Response:
        interrupt()
        try:
            await asyncio.Event().wait()
        finally:  # the client has left
            left.set()
        return web.Response()

    async def ping(request: web.Request) -> web.Response:
        return web.Response(text="pong")

    holding = web.Application()
    holding.add_routes([web.get("/v1/ping", ping), web.post("/{path:.*}", hold)])
    with Grader(serve(holding), timeout_s=600) as grader:
        with pytest.raises(KeyboardInterrupt):
            grader.grade([{"tests": TESTS}], [RIGHT])
        assert left.wait(60)


def test_an_interrupted_start_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted, ended = threading.Event(), threading.Event()

    @contextmanager
    def slow_services(model_name: str | None) -> Iterator[Services]:
        interrupt()
        assert interrupted.wait(60)
        try:
            with services(model_name) as found:
                yield found
        finally:
            ended.set()

    grader = Grader()
    with monkeypatch.context() as patched:
        patched.setattr("coderl_tasks.grading.grader.services", slow_services)
        with pytest.raises(KeyboardInterrupt):
            grader.start()
    interrupted.set()
    assert ended.wait(60)
    with grader:
        assert grader.rewards([{"tests": TESTS}], [RIGHT], ungraded="raise") == [1.0]


def test_a_forked_process_starts_its_own() -> None:
    context = multiprocessing.get_context("fork")
    received, sent = context.Pipe(duplex=False)
    with Grader() as grader:

        def rewards() -> list[float | None]:
            return grader.rewards([{"tests": TESTS}], [RIGHT], ungraded="raise")

        def of_a_child() -> None:
            sent.send(rewards())
            grader.close()

        assert rewards() == [1.0]
        child = context.Process(target=of_a_child)
        child.start()
        try:
            assert received.poll(60), "the child waits for a thread that it does not have"
            assert received.recv() == [1.0]
            child.join()
        finally:
            child.kill()
        assert rewards() == [1.0]


def test_trl(monkeypatch: pytest.MonkeyPatch, refusing: str) -> None:
    names = run(TRL)
    answers = [RIGHT, [{"role": "assistant", "content": WRONG}], "3"]
    arguments = {"prompts": ["Add."] * 3, "tests": [TESTS] * 3, "completion_ids": [[1]] * 3, "trainer_state": None}
    assert names["code_reward"](completions=answers, **arguments) == [1.0, 0.0, -0.1]
    names["grader"].close()
    monkeypatch.setenv("SANDBOX_URL", refusing)
    assert names["code_reward"](completions=answers, **arguments) == [None, None, -0.1]
    names["grader"].close()


def test_in_trl(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed; its call of the example is tested without it")
    from datasets import Dataset

    names = run(TRL)
    rows = [{"prompt": [{"role": "user", "content": "Add."}], "tests": json.dumps(TESTS)}] * 2
    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, per_device_train_batch_size=2, num_generations=2,
        max_completion_length=4, max_steps=1, logging_steps=1, report_to=[], save_strategy="no",
    )  # fmt: skip
    trainer = trl.GRPOTrainer(NANO_MODEL, names["code_reward"], args=arguments, train_dataset=Dataset.from_list(rows))
    trainer.train()
    (logged,) = (row["rewards/code_reward/mean"] for row in trainer.state.log_history if "reward" in row)
    assert logged == pytest.approx(-0.1)  # four tokens hold no code block
    names["grader"].close()


def verl_calls(names: dict[str, Any], answer: str) -> float:
    """What verl's reward loop gets, which calls it in this way."""
    return asyncio.run(
        names["compute_score"](
            data_source="made", solution_str=answer, ground_truth=json.dumps(TESTS), extra_info={"num_turns": None}
        )
    )


def test_verl(monkeypatch: pytest.MonkeyPatch, refusing: str) -> None:
    names = run(VERL)
    assert [verl_calls(names, answer) for answer in (RIGHT, WRONG, "3")] == [1.0, 0.0, -0.1]
    names["grader"].close()
    monkeypatch.setenv("SANDBOX_URL", refusing)
    with pytest.raises(InfraError, match="1 of 1 completions"):
        verl_calls(names, RIGHT)
    names["grader"].close()


def test_in_verl(tmp_path: Path) -> None:
    reward = pytest.importorskip(
        "verl.trainer.ppo.reward", reason="verl is not installed; its call of the example is tested without it"
    )
    from omegaconf import OmegaConf

    file = tmp_path / "code_reward.py"
    file.write_text(VERL)
    setting, name = re.findall(r"`reward\.(custom_reward_function)\.path=code_reward\.py reward\.\w+\.name=(\w+)`",
                               (PROJECT_ROOT / "docs" / "grader.md").read_text())[0]  # fmt: skip
    config = OmegaConf.create({"reward": {setting: {"path": str(file), "name": name}}})
    score = reward.get_custom_reward_fn(config)
    assert verl_calls({"compute_score": score}, RIGHT) == 1.0


def test_in_verifiers(monkeypatch: pytest.MonkeyPatch, refusing: str) -> None:
    vf = pytest.importorskip("verifiers.v1", reason="verifiers is not installed")
    names = run(VERIFIERS)
    task = names["CodeTask"](names["CodeData"](prompt="Add.", tests=json.dumps(TESTS)))

    def rewards(answer: str) -> dict[str, Any]:
        trace = vf.Trace.model_construct(task=task.data, root_reply=answer, rewards={}, metrics={})
        try:
            asyncio.run(task.score(trace))
        finally:
            rewarded.update(trace.rewards)
        return {name: found and found.value for name, found in trace.rewards.items()}

    rewarded: dict[str, Any] = {}
    assert [rewards(answer) for answer in (RIGHT, WRONG, "3")] == [{"solved": one} for one in (1.0, 0.0, -0.1)]
    names["grader"].close()
    monkeypatch.setenv("SANDBOX_URL", refusing)
    with pytest.raises(Exception, match="InfraError: 1 of 1 completions"):
        rewards(RIGHT)
    assert rewarded == {"solved": None}
    names["grader"].close()
