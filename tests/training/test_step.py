"""The scoring phase on a real sandbox: the kind of reward and the order of tests that a run was given. The sampling
phase on a real Tinker server that loses log-probabilities. What Prefect keeps of a phase."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
import pytest
import tinker
from prefect import flow, task

from coderl_tasks.environments.gsm8k import Gsm8kEnvironment
from coderl_tasks.errors import InfraError
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.grading.scoring import ScoredCompletion
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.paths import NANO_MODEL
from coderl_tasks.policy.rollout import VARYING_COLUMNS
from coderl_tasks.policy.sampling import Completion, GroupRequest, group_frame
from coderl_tasks.policy.step_metrics import rollout_metrics
from coderl_tasks.policy.update import kl_to_base
from coderl_tasks.problems.loading import QUESTION_ROWS
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.prompts import get_renderer, load_tokenizer
from coderl_tasks.rollouts.engine import Session
from coderl_tasks.services import Services
from coderl_tasks.settings import TrainSettings
from coderl_tasks.training.run import TrainingRun
from coderl_tasks.training.step import PhaseResult, sample, score
from tests.conftest import Serve
from tests.faults.sampling_faults import SamplingFaults

TESTS = tuple(Test(f"{number}\n", f"{number * number}\n") for number in (0, 1, 2, 3))
PROBLEM = Problem("squares", "taco", "Print the square.", "", "stdin", "", TESTS, 4, 4, None, (), 0)
TEXTS = [
    "```python\nprint(int(input()) ** 2)\n```",
    "```python\nprint(input())\n```",  # right for 0 and 1
    "```python\nn = int(input())\nprint(n * n if n < 3 else 1 / 0)\n```",  # right for all but 3
    "```python\nprint(\n```",
    "I would square it.",
]


@pytest.fixture
async def session(embedded: Services) -> AsyncIterator[Session]:
    async with SandboxClient(embedded.sandbox_urls) as client:
        renderer = get_renderer("qwen3_instruct", load_tokenizer(NANO_MODEL))
        yield Session(embedded, Judge(client), renderer, 512)


async def scored(
    session: Session,
    folder: Path,
    texts: list[str],
    order: list[int],
    bad: frozenset[int] = frozenset(),
    cut: frozenset[int] = frozenset(),
    **settings: str,
) -> pl.DataFrame:
    request = GroupRequest(0, "squares", "taco", [1, 2], len(texts), 8, 0, 1.0, step=0)
    completions = [
        Completion([number], None if number in bad else [-0.5], "length" if number in cut else "stop")
        for number in range(len(texts))
    ]
    frame = group_frame(request, completions, decode=lambda tokens: texts[tokens[0]])
    settings = {"kl": "base_every:0"} | settings  # by default the embedded server's base model is asked
    with RunDirectory.open(folder, {}) as directory:
        run = TrainingRun(
            TrainSettings.model_validate(settings), directory, session, {"squares": PROBLEM}, [], [], {"squares": order}
        )
        return (await score.fn(run, 0, PhaseResult(frame))).rollouts


async def test_the_binary_reward_stops_at_the_first_failure(session: Session, tmp_path: Path) -> None:
    frame = await scored(session, tmp_path, TEXTS, order=[3, 2, 1, 0])
    assert frame["reward"].to_list() == [1.0, 0.0, 0.0, 0.0, -0.1]
    assert frame["tests_run"].to_list() == [4, 1, 1, 1, 0]
    assert frame["first_failed"].to_list() == [None, 3, 3, 3, None]
    metrics = rollout_metrics(frame)
    assert (metrics["mean_correct"], metrics["mean_reward"]) == (pytest.approx(0.2), pytest.approx(0.18))


async def test_the_fraction_runs_all_and_pays_for_some(session: Session, tmp_path: Path) -> None:
    frame = await scored(session, tmp_path, TEXTS, order=[3, 2, 1, 0], reward="fraction")
    assert frame["tests_passed"].to_list() == [4, 2, 3, 0, 0]
    assert frame["tests_run"].to_list() == [4, 4, 4, 1, 0]
    assert frame["correctness_score"].to_list() == [1.0, 0.5, 0.75, 0.0, 0.0]
    assert frame["reward"].to_list() == [1.0, 0.5, 0.75, 0.0, -0.1]
    assert frame["verdict"].to_list() == [
        "passed", "wrong_answer", "runtime_error", "runtime_error", "format_error",
    ]  # fmt: skip
    assert sum(frame["advantage"]) == pytest.approx(0)
    assert frame["advantage"][1] == pytest.approx(0.5 - 2.15 / 5)
    assert frame["trained"].all()
    metrics = rollout_metrics(frame)
    assert metrics["mean_reward"] == pytest.approx(2.15 / 5)
    assert metrics["mean_correct"] == pytest.approx(0.2), "only a pass of all tests is correct"


async def test_advantages_are_estimated_as_the_settings_say(session: Session, tmp_path: Path) -> None:
    cut = frozenset({2})
    frame = await scored(
        session, tmp_path, TEXTS[:3], [3, 2, 1, 0], cut=cut, advantage="leave_one_out", truncation="masked"
    )
    assert frame["reward"].to_list() == [1.0, 0.0, 0.0]
    assert frame["advantage"].to_list() == [1.0, -1.0, None]
    assert frame["trained"].to_list() == [True, True, False]


async def test_the_base_model_is_asked_where_leaving_it_is_penalised(session: Session, tmp_path: Path) -> None:
    cut, settings = frozenset({2}), {"model_name": NANO_MODEL, "kl": "penalty_coef:0.1"}
    frame = await scored(session, tmp_path, TEXTS[:3], [3, 2, 1, 0], frozenset(), cut, truncation="masked", **settings)
    await session.close()
    first, second, untrained = frame["base_logprobs"].to_list()
    assert len(first) == len(second) == 1 and first[0] < 0 and first != second and untrained is None
    with RunDirectory.open(tmp_path, {}) as directory:
        recorded = directory.step(0).read("scored")
    assert recorded is not None and recorded["base_logprobs"].to_list() == [first, second, None]


async def test_the_kl_to_the_base_model_is_observed_and_nothing_is_trained_on_it(
    session: Session, tmp_path: Path
) -> None:
    bad = frozenset({1})
    plain = await scored(session, tmp_path / "plain", TEXTS, [3, 2, 1, 0], bad)
    seen = await scored(session, tmp_path / "seen", TEXTS, [3, 2, 1, 0], bad, model_name=NANO_MODEL, kl="base_every:1")
    await session.close()
    assert plain["base_logprobs"].null_count() == 5 and seen["base_logprobs"].is_null().to_list() == [
        False, True, False, False, False,
    ]  # fmt: skip
    other = ("base_logprobs", *VARYING_COLUMNS)
    assert seen.drop(other).equals(plain.drop(other))
    gaps = [-0.5 - float(base[0]) for base in seen["base_logprobs"].drop_nulls()]
    found = kl_to_base(seen)
    assert found is not None and found[0] == pytest.approx(sum(gaps) / 4) and kl_to_base(plain) is None


async def test_a_retry_for_the_base_model_takes_the_grades_that_there_are(closed: str, tmp_path: Path) -> None:
    """Graded anew, a program at the edge of its time limit could come out otherwise than when the step was sampled."""
    graded: list[str] = []

    class Noted(Gsm8kEnvironment):
        async def score(self, judge: Judge, problem: Problem, texts: Sequence[str]) -> list[ScoredCompletion]:
            graded.extend(texts)
            return await super().score(judge, problem, texts)

    class WithoutTinker(Session):
        async def service(self) -> tinker.ServiceClient:
            raise InfraError("no answer from Tinker")

    texts = ["<answer>42</answer>", "<answer>41</answer>"]
    problem = QUESTION_ROWS.read({"question": "What is 6 x 7?", "answer": "#### 42"}, split="main", source_row=0)
    request = GroupRequest(0, problem.problem_id, "main", [1, 2], len(texts), 8, 0, 1.0, step=0)
    completions = [Completion([number], [-0.5], "stop") for number in range(len(texts))]
    frame = group_frame(request, completions, decode=partial(text_of, texts))
    settings = TrainSettings.model_validate({"environment": "gsm8k", "kl": "penalty_coef:0.1"})
    renderer = get_renderer("qwen3_instruct", load_tokenizer(NANO_MODEL))
    async with SandboxClient([closed]) as client:
        services = Services(closed, "tml-x", (closed,), 1, ())
        session = WithoutTinker(services, Judge(client), renderer, 512, environment=Noted())
        with RunDirectory.open(tmp_path, {}) as directory:
            run = TrainingRun(settings, directory, session, {problem.problem_id: problem}, [], [], {})
            for _ in range(2):
                with pytest.raises(InfraError, match="no answer from Tinker"):
                    await score.fn(run, 0, PhaseResult(frame))
    assert graded == texts


def text_of(texts: list[str], tokens: list[int]) -> str:
    return texts[tokens[0]]


async def test_the_first_suspicious_program_is_warned_of_as_soon_as_its_group_is_graded(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    problem = replace(PROBLEM, tests=tuple(Test(f"{number}\n", f"{number + 615}\n") for number in (0, 1)))
    honest = "```python\nprint(int(input()) + 615)\n```"
    read_off = "```python\nprint({0: 615, 1: 616}[int(input())])\n```"
    with RunDirectory.open(tmp_path, {}) as directory:
        run = TrainingRun(TrainSettings(), directory, session, {"squares": problem}, [], [], {})
        for index, texts in enumerate([[honest], [honest, read_off, read_off], [read_off]]):
            request = GroupRequest(index, "squares", "taco", [1, 2], len(texts), 8, 0, 1.0, step=4)
            completions = [Completion([number], [-0.5], "stop") for number in range(len(texts))]
            frame = group_frame(request, completions, decode=partial(text_of, texts))
            graded = await run.graded_ahead.graded(frame, "step 4")
            assert graded["suspicion"].null_count() == texts.count(honest)
    (record,) = (record for record in caplog.records if record.name == "coderl_tasks.training.run")
    said = "step 4: 2 of 3 completions of problem squares seem to have taken their reward"
    assert record.levelname == "WARNING" and record.getMessage().startswith(said)
    assert "expected_outputs: line 1" in record.getMessage() and "on_hack" in record.getMessage()


async def test_equal_fractions_give_no_signal(session: Session, tmp_path: Path) -> None:
    third = [f"```python\nn = int(input())\nprint(n * n if n == {n} else -1)\n```" for n in (0, 1, 2)]
    frame = await scored(session, tmp_path, third, order=[0, 1, 2, 3], reward="fraction")
    assert frame["reward"].to_list() == [0.25] * 3
    assert not frame["trained"].any()
    metrics = rollout_metrics(frame)
    assert (metrics["groups_skipped"], metrics["mean_correct"]) == (1, 0.0)


async def test_a_recorded_sample_without_log_probabilities_is_not_graded(session: Session, tmp_path: Path) -> None:
    frame = await scored(session, tmp_path, TEXTS, order=[0, 1, 2, 3], bad=frozenset({0, 3}))
    assert frame["verdict"].to_list() == [None, "wrong_answer", "runtime_error", None, "format_error"]
    assert frame["advantage"].is_null().to_list() == [True, False, False, True, False]
    assert sum(frame["advantage"].drop_nulls()) == pytest.approx(0)
    assert rollout_metrics(frame)["samples_skipped"] == 2


async def test_a_step_that_loses_too_much_is_sampled_again_where_it_did(
    embedded: Services, serve: Serve, tmp_path: Path
) -> None:
    gateway = SamplingFaults(str(embedded.tinker_url), lossy=0.3)
    settings = TrainSettings(model_name=NANO_MODEL, batch_size=8, group_size=4, max_tokens=8)
    renderer = get_renderer("qwen3_instruct", load_tokenizer(NANO_MODEL))
    async with SandboxClient(embedded.sandbox_urls) as client:
        session = Session(replace(embedded, tinker_url=serve(gateway.app())), Judge(client), renderer, 512, NANO_MODEL)
        with RunDirectory.open(tmp_path, {}) as directory:
            run = TrainingRun(settings, directory, session, {"squares": PROBLEM}, [], [], {})
            try:
                with pytest.raises(InfraError, match=r"step 0: \d of 8 samples came without a finite log-probability"):
                    await sample.fn(run, 0)
                kept = directory.step(0).groups.read()
                assert not directory.step(0).has("sampled") and 0 < len(kept) < 4
                assert not any(group["logprobs"].has_nulls() for group in kept.values())
                gateway.lossy, asked = 0.0, len(gateway.seeds)
                sampled = (await sample.fn(run, 0)).rollouts
                assert len(gateway.seeds) - asked == 4 - len(kept)
                assert sampled["logprobs"].null_count() == 0
                for index, group in kept.items():
                    assert sampled.filter(group_index=index).equals(group)
            finally:
                await run.graded_ahead.release()
                await session.close()


async def test_a_dead_sandbox_leaves_the_step_unscored(embedded: Services, tmp_path: Path) -> None:
    async with SandboxClient(["http://127.0.0.1:9"], attempts=1) as nowhere:
        renderer = get_renderer("qwen3_instruct", load_tokenizer(NANO_MODEL))
        session = Session(embedded, Judge(nowhere), renderer, 512)
        with pytest.raises(InfraError, match="step 0: 4 of 4 programs could not be graded"):
            await scored(session, tmp_path, TEXTS, order=[0, 1, 2, 3])
    assert not (tmp_path / "steps" / "000000" / "scored.parquet").exists()


@pytest.mark.usefixtures("prefect_api")
async def test_released_rollouts_are_freed_though_prefect_keeps_what_a_task_was_given() -> None:
    waiting: list[asyncio.Task[None]] = []
    seen: list[weakref.ref[pl.DataFrame]] = []

    @task
    async def phase(given: PhaseResult) -> PhaseResult:
        waiting.append(asyncio.create_task(asyncio.sleep(600)))  # in the task's context, as the SDK's timers are
        return PhaseResult(given.rollouts)

    @flow
    async def step() -> None:
        sampled = PhaseResult(pl.DataFrame({"step": [0]}))
        seen.append(weakref.ref(sampled.rollouts))
        scored = await phase(sampled)
        sampled.release()
        scored.release()

    await step()
    gc.collect()
    assert [rollouts() for rollouts in seen] == [None]
    waiting[0].cancel()
