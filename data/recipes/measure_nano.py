"""Measures a nano base model the way the pipeline sees it: the numbers of its model card.

    python -m data.recipes.measure_nano [folder]                        data/nano, on data/mini
    python -m data.recipes.measure_nano --environment gsm8k [folder]    data/nano_words, on data/words

Pass rates of the train problems over 8 samples at temperature 1.0, and greedy Pass@1 on the test problems, sampled and
graded by the services that `coderl` would use.
"""

import argparse
import asyncio
import statistics
import time
from collections import Counter
from pathlib import Path

from coderl_tasks.curation.profile import profile_shard
from coderl_tasks.environments import environment_of
from coderl_tasks.evaluation.pass_at_1 import evaluate_policy
from coderl_tasks.policy.clients import create_sampling_client
from coderl_tasks.problems import load_problems
from coderl_tasks.rollouts.engine import Purpose, RolloutEngine, RolloutSettings, open_session
from coderl_tasks.rollouts.rounds import SamplingPlan
from coderl_tasks.services import Services, services
from coderl_tasks.settings import EvaluateSettings, parse_settings
from data.recipes.make_nano import COURSES

SAMPLES = 8


async def measure(settings: EvaluateSettings, used: Services) -> None:
    """Prints the histogram and Pass@1 of `settings.model_name`."""
    started = time.monotonic()
    environment = environment_of(settings)
    train, test = (
        load_problems(settings.dataset, role=role, rows=environment.rows).problems for role in ("train", "test")
    )
    async with open_session(settings, used) as session:
        sampler = await create_sampling_client(await session.service(), base_model=settings.model_name)

        def engine(purpose: Purpose, temperature: float) -> RolloutEngine:
            sizes = {"max_tokens": settings.max_tokens, "context": session.context, "seed": settings.seed}
            rollouts = RolloutSettings(purpose, settings.model_name, temperature, **sizes)
            return RolloutEngine(session.judge, session.renderer, rollouts, environment=environment)

        profile = await profile_shard(train, sampler, engine("profile", 1.0), SamplingPlan(SAMPLES))
        _, summary = await evaluate_policy(test, sampler, engine("evaluate", 0.0))
    solved = Counter(profile["n_correct"].to_list())
    print(f"\n| of {SAMPLES} samples right | train problems | share |\n|---|---|---|")
    for right in range(SAMPLES + 1):
        print(f"| {right} | {solved[right]} | {solved[right] / len(train):.1%} |")
    rate, format_rate, tokens, prompt = (
        statistics.fmean(profile[name].to_list())
        for name in ("pass_rate", "format_rate", "mean_completion_tokens", "prompt_tokens")
    )
    mixed = 1 - (solved[0] + solved[SAMPLES]) / len(train)
    print(f"\nstrictly between: {mixed:.1%}; mean pass rate {rate:.3f}, format {format_rate:.3f}", end="; ")
    print(f"tokens: prompt {prompt:.1f}, completion {tokens:.1f}")
    print(f"greedy Pass@1 {summary['pass_at_1']:.3f} [{summary['ci_low']:.3f}, {summary['ci_high']:.3f}]", end=" ")
    print(f"of {summary['n']}, {summary['by_split']}; {time.monotonic() - started:.0f} s")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--environment", choices=COURSES, default="code")
    arguments = parser.parse_args()
    model = {} if arguments.folder is None else {"model_name": str(arguments.folder)}
    settings = parse_settings(EvaluateSettings, {"preset": "nano", "environment": arguments.environment} | model)
    with services(settings.model_name) as used:
        asyncio.run(measure(settings, used))


if __name__ == "__main__":
    main()
