"""Completions in several turns, of nano on a real server, with a real sandbox."""

import gc
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest
import tinker

from coderl_tasks.environments.environment import CodeEnvironment, Turns
from coderl_tasks.environments.feedback import NO_CALLS_LEFT, Reply
from coderl_tasks.errors import CoderlError, InfraError, SandboxDownError
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.grading.scoring import Verdict
from coderl_tasks.journal.ledger import Budget, frame_tokens
from coderl_tasks.paths import NANO_MODEL
from coderl_tasks.policy import clients
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA, SAMPLED_SCHEMA
from coderl_tasks.policy.sampling import Completion, group_frame
from coderl_tasks.policy.update import sequences
from coderl_tasks.problems import load_problems
from coderl_tasks.problems.problem import Problem, SpilledTests, Test
from coderl_tasks.prompts import get_renderer, load_tokenizer
from coderl_tasks.prompts.renderers import Message, Renderer
from coderl_tasks.rollouts.engine import Purpose, RolloutEngine, RolloutSettings
from coderl_tasks.rollouts.turns import further_turns, is_unfinished, require_replies, with_first_turn
from coderl_tasks.services import Services

CONTEXT = 8192
SAID = "Wrong. Correct the program."


@dataclass(frozen=True, eq=False)
class Doubting(CodeEnvironment):
    """Says that every answer is wrong; the first `faults` calls meet an outage, or another `fault`."""

    faults: int = 0
    fault: Verdict = Verdict.INFRA_ERROR

    async def replies(self, judge: Judge, problem: Problem, texts: Sequence[str], turn: int) -> list[Reply]:
        if self.faults:
            object.__setattr__(self, "faults", self.faults - 1)
            return [Reply(self.fault, None)] * len(texts)
        return [Reply(Verdict.WRONG_ANSWER, f"{SAID} ({turn}, {len(text)})") for text in texts]


@pytest.fixture
async def sampler(embedded: Services) -> AsyncIterator[tinker.SamplingClient]:
    service = await clients.connect(embedded.tinker_url, embedded.tinker_api_key)
    yield await clients.create_sampling_client(service, base_model=NANO_MODEL)
    await clients.disconnect(service)


@pytest.fixture
async def judge(embedded: Services) -> AsyncIterator[Judge]:
    async with SandboxClient(embedded.sandbox_urls) as client:
        yield Judge(client)


PROBLEM = load_problems("data/mini", role="train", limit=1).problems[0]


def engine_of(judge: Judge, environment: CodeEnvironment, purpose: Purpose = "train", **settings: Any) -> RolloutEngine:
    renderer = get_renderer("qwen3_instruct", load_tokenizer(NANO_MODEL))
    values: dict[str, Any] = {"temperature": 1.0, "max_tokens": 24, "context": CONTEXT, "seed": 3} | settings
    return RolloutEngine(judge, renderer, RolloutSettings(purpose, NANO_MODEL, **values), environment)


async def sampled(
    engine: RolloutEngine, sampler: tinker.SamplingClient, n: int = 4
) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
    """A group, and what was recorded on the way."""
    recorded: list[pl.DataFrame] = []
    request = engine.request(PROBLEM, 0, n, seed=5, step=0)
    return await engine.sample(sampler, PROBLEM, request, recorded.append), recorded


async def test_each_answer_goes_on_from_what_was_sampled(sampler: tinker.SamplingClient, judge: Judge) -> None:
    engine = engine_of(judge, Doubting(turns=Turns(3)))
    group, recorded = await sampled(engine, sampler)
    assert group.schema == SAMPLED_SCHEMA and recorded[-1].equals(group)
    for number, row in enumerate(group.to_dicts()):
        turns = row["turns"]
        assert [turn["check"] for turn in turns] == ["wrong_answer", "wrong_answer", None]
        assert [turn["environment_text"] for turn in turns] == [
            "", *(f"{SAID} ({turn}, {len(turns[turn]['text'])})" for turn in (0, 1)),
        ]  # fmt: skip
        assert sum(turn["n_tokens"] for turn in turns) == len(row["completion_tokens"]) == len(row["logprobs"])
        assert row["completion"] == turns[-1]["text"] and row["stop_reason"] == turns[-1]["stop_reason"]
        ((tokens, sequence),) = sequences(group, number)
        assert tokens[sequence.prompt_len :][sequence.sampled].tolist() == row["completion_tokens"]
        text = engine.renderer.tokenizer.decode(tokens.tolist())
        assert text.count("<|im_start|>assistant") == 3 and text.count(SAID) == 2
        # The log-probabilities are of these very tokens behind these very tokens.
        scores = await sampler.compute_logprobs(tinker.ModelInput.from_ints(tokens.tolist()))
        own = [
            score
            for score, is_sampled in zip(scores[sequence.prompt_len :], sequence.sampled, strict=True)
            if is_sampled
        ]
        assert own == pytest.approx(row["logprobs"], abs=1e-4)


async def test_a_completion_goes_on_from_whatever_is_recorded_of_it(
    sampler: tinker.SamplingClient, judge: Judge
) -> None:
    environment = Doubting(turns=Turns(3))
    group, recorded = await sampled(engine_of(judge, environment), sampler)
    assert len(recorded) == 5, "the group, then per turn its replies and its answers, however many these are"
    again = engine_of(judge, environment)
    for before in recorded[:-1]:
        assert is_unfinished(again, before)
        resumed = await further_turns(again, sampler, PROBLEM, before, 1.0)
        assert resumed.equals(group)
    assert not is_unfinished(again, group)


async def test_nothing_recorded_is_sampled_or_asked_again(sampler: tinker.SamplingClient, judge: Judge) -> None:
    class Silent(Doubting):
        async def replies(self, judge: Judge, problem: Problem, texts: Sequence[str], turn: int) -> list[Reply]:
            raise AssertionError("all replies are recorded")

    class Failing:
        """Fails for the second of the answers that follow the group's first ones."""

        def __init__(self) -> None:
            self.asked = 0

        async def sample(self, **request: Any) -> tinker.SampleResponse:
            self.asked += 1
            if self.asked == 3:
                raise InfraError("gone")
            return await sampler.sample(**request)

    whole, _ = await sampled(engine_of(judge, Doubting(turns=Turns(2))), sampler)
    recorded: list[pl.DataFrame] = []
    engine = engine_of(judge, Doubting(turns=Turns(2)))
    with pytest.raises(InfraError, match="1 of 4 answers failed"):
        request = engine.request(PROBLEM, 0, 4, seed=5, step=0)
        await engine.sample(cast("tinker.SamplingClient", Failing()), PROBLEM, request, recorded.append)
    missing = [row for row in recorded[-1].to_dicts() if row["turns"][-1]["stop_reason"] is None]
    assert len(missing) == 1
    added: list[pl.DataFrame] = []
    await further_turns(engine_of(judge, Silent(turns=Turns(2))), sampler, PROBLEM, recorded[-1], 1.0, added.append)
    assert len(added) == 1 and added[0].equals(whole)


async def test_tests_are_in_memory_only_while_replies_are_made(tmp_path: Path) -> None:
    def held() -> int:
        problems = [each for each in gc.get_objects() if type(each) is Problem and each.problem_id == "stored"]
        return sum(isinstance(problem.tests, tuple) for problem in problems)

    held_during: list[int] = []

    class Watching(Doubting):
        async def replies(self, judge: Judge, problem: Problem, texts: Sequence[str], turn: int) -> list[Reply]:
            held_during.append(held())
            return [Reply(Verdict.WRONG_ANSWER, SAID)] * len(texts)

    class Sampler:
        async def sample(self, **request: Any) -> tinker.SampleResponse:
            held_during.append(held())
            answer = tinker.SampledSequence(
                stop_reason="stop", sequence_id="s", _tokens_list=[1], _logprobs_list=[-1.0]
            )
            return tinker.SampleResponse(sequences=[answer])

    problem = SpilledTests(tmp_path).keep(replace(PROBLEM, problem_id="stored"))
    engine = engine_of(Judge(SandboxClient(["http://127.0.0.1:9"])), Watching(turns=Turns(2)))
    request = engine.request(problem, 0, 1, seed=5, step=0)
    await engine.sample(cast("tinker.SamplingClient", Sampler()), problem, request)
    assert held_during == [0, 1, 0]


async def test_limits_of_a_turn_and_of_a_completion(sampler: tinker.SamplingClient, judge: Judge) -> None:
    short, _ = await sampled(engine_of(judge, Doubting(turns=Turns(4, tokens=70))), sampler)
    for row in short.to_dicts():
        said = sum(len(turn["environment_tokens"]) for turn in row["turns"])
        assert len(row["completion_tokens"]) + said <= 70 and len(row["turns"]) < 4
        assert all(turn["n_tokens"] <= 24 for turn in row["turns"]) and row["turns"][-1]["n_tokens"] > 0
    tight, _ = await sampled(engine_of(judge, Doubting(turns=Turns(4, tokens=10))), sampler)
    assert max(map(len, tight["completion_tokens"])) == 10 and {len(turns) for turns in tight["turns"]} == {1}
    prompt = len(short["prompt_tokens"][0])
    narrow, _ = await sampled(engine_of(judge, Doubting(turns=Turns(2)), context=prompt + 30), sampler)
    assert {len(turns) for turns in narrow["turns"]} == {1}, "a reply leaves no room for an answer"


@pytest.mark.parametrize(
    ("fault", "error"), [(Verdict.INFRA_ERROR, SandboxDownError), (Verdict.CHECKER_ERROR, CoderlError)]
)
async def test_a_fault_leaves_a_completion_out_until_it_is_mended(
    sampler: tinker.SamplingClient, judge: Judge, fault: Verdict, error: type[CoderlError]
) -> None:
    environment = Doubting(turns=Turns(2), faults=1, fault=fault)
    engine = engine_of(judge, environment)
    group, _ = await sampled(engine, sampler)
    assert [turns[-1]["check"] for turns in group["turns"]] == [fault] * 4
    with pytest.raises(error, match="4 of 4"):
        require_replies(group, "step 0")
    graded = await engine.grade(PROBLEM, group)
    assert set(graded["verdict"]) == {fault} and graded["reward"].null_count() == 4
    assert is_unfinished(engine, group)
    resumed = await further_turns(engine, sampler, PROBLEM, group, 1.0)
    undisturbed, _ = await sampled(engine_of(judge, Doubting(turns=Turns(2))), sampler)
    assert resumed.equals(undisturbed)
    require_replies(resumed, "step 0")


async def test_a_policy_calls_a_tool_and_its_last_answer_counts(sampler: tinker.SamplingClient, judge: Judge) -> None:
    engine = engine_of(judge, CodeEnvironment(turns=Turns(3, tool_calls=2)), max_tokens=8)
    add = replace(PROBLEM, kind="stdin", checker="", comparator="tokens", tests=(Test("70001 1\n", "70002\n"),))
    request = engine.request(add, 0, 4, seed=5, step=0)
    right = "print(sum(map(int, input().split())))"
    call = json.dumps({"name": "run_python", "arguments": {"code": right, "stdin": "2 3\n"}})
    texts = [f"<tool_call>\n{call}\n</tool_call>", "<tool_call>\n{}\n</tool_call>", f"```python\n{right}\n```", "?"]
    answers = [[*engine.renderer.encode_plain(text), engine.renderer.stop_tokens[0]] for text in texts]
    given = [Completion(tokens, [-1.0] * len(tokens), "stop") for tokens in answers]
    first = with_first_turn(group_frame(request, given, decode=lambda tokens: texts[answers.index(tokens)]))
    recorded: list[pl.DataFrame] = []
    group = await further_turns(engine, sampler, add, first, 1.0, recorded.append)
    called, broken, final, lost = group.to_dicts()
    checks = [[turn["check"] for turn in row["turns"]] for row in (called, broken, final, lost)]
    assert checks == [["called", "answered"], ["format_error", "answered"], ["answered"], ["answered"]]
    assert [turn["environment_text"] for turn in called["turns"]] == ["", "Output:\n5\n\nEnded: exit status 0."]
    decode = engine.renderer.tokenizer.decode
    assert "at most 2 in all" in (prompt := str(decode(called["prompt_tokens"]))) and "# Tools" in prompt
    for number, row in enumerate((called, broken)):
        ((tokens, sequence),) = sequences(group, number)
        assert tokens[sequence.prompt_len :][sequence.sampled].tolist() == row["completion_tokens"]
        written = str(decode(tokens.tolist()))
        assert f"{texts[number]}<|im_end|>\n<|im_start|>user\n<tool_response>\n" in written
        assert "</tool_response><|im_end|>\n<|im_start|>assistant\n" in written and "70001" not in written
    graded = await engine.grade(add, group)
    assert graded["verdict"].to_list() == ["format_error", "format_error", "passed", "format_error"]
    for before in recorded[:-1]:
        assert is_unfinished(engine, before)
        assert (await further_turns(engine, sampler, add, before, 1.0)).equals(group)


async def test_calls_that_are_used_up(sampler: tinker.SamplingClient, judge: Judge) -> None:
    @dataclass(frozen=True, eq=False)
    class Calling(CodeEnvironment):
        """Every answer is a call."""

        def text(self, tokens: Sequence[int], renderer: Renderer) -> str:
            call = {"name": "run_python", "arguments": {"code": f"print({sum(tokens)})"}}
            return f"<tool_call>{json.dumps(call)}</tool_call>"

    engine = engine_of(judge, Calling(turns=Turns(3, tool_calls=2)), max_tokens=8)
    group, _ = await sampled(engine, sampler, 2)
    for turns in group["turns"].to_list():
        assert [turn["check"] for turn in turns] == ["called", "called", None]
        assert [NO_CALLS_LEFT in turn["environment_text"] for turn in turns] == [False, False, True]
    assert set((await engine.grade(PROBLEM, group))["verdict"]) == {"format_error"}


async def test_outside_training_each_answer_is_graded(sampler: tinker.SamplingClient, judge: Judge) -> None:
    engine = engine_of(judge, Doubting(turns=Turns(2)), "evaluate", max_tokens=128)
    group, _ = await sampled(engine, sampler)
    graded = await engine.grade(PROBLEM, group)
    assert graded.schema == ROLLOUT_SCHEMA
    for row in graded.to_dicts():
        firsts = await engine.environment.score(judge, PROBLEM, [turn["text"] for turn in row["turns"]])
        assert row["turn_verdicts"] == [each.grade.verdict.value for each in firsts]
        assert row["verdict"] == row["turn_verdicts"][-1]
    trained = await engine_of(judge, Doubting(turns=Turns(2))).grade(PROBLEM, group)
    assert trained["turn_verdicts"].null_count() == 4
    assert trained["verdict"].equals(graded["verdict"])


async def test_without_log_probabilities_a_completion_goes_on_outside_training(
    sampler: tinker.SamplingClient, judge: Judge
) -> None:
    environment = Doubting(turns=Turns(2))
    _, recorded = await sampled(engine_of(judge, environment), sampler, n=1)
    first = recorded[0].with_columns(logprobs=pl.lit(None, SAMPLED_SCHEMA["logprobs"]))
    for purpose, turns in (("train", 1), ("evaluate", 2)):
        engine = engine_of(judge, environment, cast("Purpose", purpose))
        assert is_unfinished(engine, first) is (turns > 1)
        (row,) = (await further_turns(engine, sampler, PROBLEM, first, 1.0)).to_dicts()
        assert len(row["turns"]) == turns and row["logprobs"] is None


async def test_a_completion_that_never_came_is_an_outage_of_an_evaluation(judge: Judge) -> None:
    engine = engine_of(judge, Doubting(turns=Turns(2)), "evaluate")
    first = pl.DataFrame(
        [{
            "step": 0, "attempt": 0, "problem_id": "p", "split": "", "group_index": 0, "sample_index": 0,
            "sampler_step": -1, "prompt_tokens": [1, 2], "completion_tokens": [3], "logprobs": [-1.0],
            "completion": "a", "stop_reason": "stop", "turns": [
                {"environment_text": "", "environment_tokens": [], "kept": 2, "is_split": False, "n_tokens": 1,
                 "text": "a", "stop_reason": "stop", "check": None},
            ],
        }], schema=SAMPLED_SCHEMA,
    )  # fmt: skip

    class Empty:
        async def sample(self, *args: Any, **kwargs: Any) -> Any:
            return tinker.SampleResponse(sequences=[])

    with pytest.raises(InfraError, match="none came"):
        await further_turns(engine, cast("tinker.SamplingClient", Empty()), PROBLEM, first, 1.0)


async def test_one_turn_is_recorded_as_ever(sampler: tinker.SamplingClient, judge: Judge) -> None:
    group, recorded = await sampled(engine_of(judge, CodeEnvironment()), sampler)
    assert len(recorded) == 1 and group["turns"].null_count() == 4
    several, _ = await sampled(engine_of(judge, Doubting(turns=Turns(2))), sampler)
    firsts = [tokens[: turns[0]["n_tokens"]] for tokens, turns in several.select("completion_tokens", "turns").rows()]
    assert firsts == group["completion_tokens"].to_list()


async def test_what_turns_cost(sampler: tinker.SamplingClient, judge: Judge) -> None:
    engine = engine_of(judge, Doubting(turns=Turns(2)))
    engine = replace(engine, budget=Budget())
    group, _ = await sampled(engine, sampler)
    prompt, rows = len(group["prompt_tokens"][0]), group.to_dicts()
    said = sum(len(row["turns"][1]["environment_tokens"]) for row in rows)
    first = sum(row["turns"][0]["n_tokens"] for row in rows)
    spent = frame_tokens(group, epochs=2)
    assert spent.prompt == prompt + said
    assert spent.cached == 3 * prompt + 4 * prompt + first
    assert spent.completion == sum(map(len, group["completion_tokens"]))
    assert spent.training == 2 * (4 * prompt + said + spent.completion)
    charged = engine.budget.spent
    assert (charged.prompt, charged.cached, charged.completion) == (spent.prompt, spent.cached, spent.completion)


@pytest.mark.parametrize("name", ["qwen3_instruct", "chat_template"])
def test_most_formats_go_on_from_what_was_sampled(name: str) -> None:
    renderer = get_renderer(name, load_tokenizer(NANO_MODEL))
    first: list[Message] = [{"role": "user", "content": "Add."}]
    for text in ("```python\nprint(1)\n```", "\n\n  x", "", "a<|im_end|>b"):
        conversation: list[Message] = [*first, {"role": "assistant", "content": text}]
        prompt = renderer.prompt_tokens(first)
        # As no encoder would write it: one token per character.
        completion = [token for letter in text for token in renderer.encode_plain(letter)]
        for end in ([renderer.stop_tokens[0]], []):
            reply: Message = {"role": "user", "content": "Again."}
            tokens, goes_on = renderer.continued_prompt(prompt, [*completion, *end], conversation, reply)
            assert goes_on and tokens[: len(prompt) + len(completion)] == [*prompt, *completion]
            written = renderer.tokenizer.decode(renderer.prompt_tokens([*conversation, reply]))
            assert renderer.tokenizer.decode(tokens) == written


def test_a_format_that_opens_and_keeps_thoughts_goes_on() -> None:
    tokenizer = load_tokenizer(NANO_MODEL)
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}{# closed by </think> #}"
    )
    renderer = get_renderer("chat_template", tokenizer)
    first: list[Message] = [{"role": "user", "content": "Add."}]
    prompt, reply = renderer.prompt_tokens(first), Message(role="user", content="Again.")
    # As a policy samples it, whose end of thinking is a token of its own.
    answer = Message(role="assistant", content="<think>\nhm\n</think>\n\nprint(1)")
    written = renderer.prompt_tokens([*first, answer, reply])
    completion = written[len(prompt) : written.index(renderer.stop_tokens[0], len(prompt)) + 1]
    text, complete = renderer.parse_response(completion)
    conversation: list[Message] = [*first, {"role": "assistant", "content": text}]
    tokens, goes_on = renderer.continued_prompt(prompt, completion, conversation, reply)
    assert complete and text == answer["content"] and goes_on and tokens == written


@pytest.mark.parametrize(
    ("name", "text"), [("qwen3", "<think>\nhm\n</think>\n\nprint(1)"), ("qwen3_disable_thinking", "x")]
)
def test_a_format_that_drops_thoughts_splits_the_completion(name: str, text: str) -> None:
    renderer: Renderer = get_renderer(name, load_tokenizer(NANO_MODEL))
    conversation: list[Message] = [{"role": "user", "content": "Add."}, {"role": "assistant", "content": text}]
    prompt, reply = renderer.prompt_tokens(conversation[:1]), Message(role="user", content="Again.")
    completion = [*renderer.encode_plain(text), renderer.stop_tokens[0]]
    tokens, goes_on = renderer.continued_prompt(prompt, completion, conversation, reply)
    assert not goes_on and tokens == renderer.prompt_tokens([*conversation, reply])
