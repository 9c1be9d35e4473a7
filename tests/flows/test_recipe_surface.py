"""A training step written with the names of the recipe, on the embedded servers."""

import asyncio
import inspect
from pathlib import Path

import tinker

from coderl_tasks.grading import CodeEnv, Judge, SandboxClient, extract_code
from coderl_tasks.paths import NANO_MODEL
from coderl_tasks.policy import grpo
from coderl_tasks.policy.clients import connect, disconnect
from coderl_tasks.problems import load_problems
from coderl_tasks.prompts import (
    LCB_SYSTEM_MESSAGE_GENERIC,
    Qwen3InstructRenderer,
    build_question,
    get_renderer,
    load_tokenizer,
    problem_messages,
)
from coderl_tasks.services import Services
from flows import train as train_module
from flows.train import compute_advantages, make_datum, should_skip, train_step

MINI = Path(__file__).resolve().parents[2] / "data/mini"


def test_the_four_functions_are_those_of_the_policy() -> None:
    for function in (should_skip, compute_advantages, make_datum, train_step):
        assert function is getattr(grpo, function.__name__)
        assert function.__name__ in train_module.__all__
    assert list(inspect.signature(make_datum).parameters)[:4] == ["tokens", "logprobs", "ob_len", "advantage"]
    assert list(inspect.signature(train_step).parameters)[:3] == ["training_client", "datums", "adam_params"]
    assert train_module.train.name == "train"  # the flow


def test_the_renderers_of_the_recipe() -> None:
    renderer = get_renderer("qwen3_instruct", load_tokenizer(NANO_MODEL))
    assert type(renderer) is Qwen3InstructRenderer
    assert type(get_renderer("qwen3", load_tokenizer(NANO_MODEL))) is not Qwen3InstructRenderer
    question = build_question({"problem": "Print 1."})
    assert question is not None
    assert question.startswith(f"{LCB_SYSTEM_MESSAGE_GENERIC}\n\n### Question:\nPrint 1.\n")
    prompt = renderer.build_generation_prompt([{"role": "user", "content": question}])
    assert isinstance(prompt, tinker.ModelInput)
    assert prompt.to_ints() == renderer.prompt_tokens([{"role": "user", "content": question}])


async def test_a_step_by_the_recipe(embedded: Services) -> None:
    service = await connect(embedded.tinker_url, embedded.tinker_api_key)
    training_client = await service.create_lora_training_client(NANO_MODEL, rank=4)
    renderer = Qwen3InstructRenderer(load_tokenizer(NANO_MODEL))
    sampler = await training_client.save_weights_and_get_sampling_client()
    problems = load_problems(str(MINI), ("taco",), role="train").problems[:6]
    prompts = [renderer.build_generation_prompt(problem_messages(problem)) for problem in problems]
    params = tinker.SamplingParams(max_tokens=96, temperature=1.0, seed=7, stop=renderer.stop_tokens)
    answers = await asyncio.gather(*(sampler.sample(prompt, 8, params) for prompt in prompts))

    datums: list[tinker.types.Datum] = []
    correct: set[float] = set()
    async with SandboxClient(embedded.sandbox_urls) as client:
        for problem, prompt, answer in zip(problems, prompts, answers, strict=True):
            env = CodeEnv(problem, renderer, Judge(client))
            results = await asyncio.gather(*(env.step(sequence.tokens) for sequence in answer.sequences))
            for sequence, result in zip(answer.sequences, results, strict=True):
                found = extract_code(renderer.parse_response(sequence.tokens)[0]) is not None
                assert result.metrics["format"] == float(found)
            correct |= {result.metrics["correct"] for result in results}
            advantages = compute_advantages([result.reward for result in results])
            if should_skip(advantages):
                continue
            datums += [
                make_datum(prompt.to_ints() + sequence.tokens, sequence.logprobs or (), prompt.length, advantage)
                for sequence, advantage in zip(answer.sequences, advantages, strict=True)
            ]
    assert correct == {0.0, 1.0}
    assert 0 < len(datums) <= 48 and len(datums) % 8 == 0

    output = await asyncio.to_thread(train_step, training_client, datums, tinker.AdamParams(learning_rate=1e-3))
    assert output is not None
    assert len(output.forward_backward.loss_fn_outputs) == len(datums)
    await disconnect(service)
