"""Completions in several turns: what replies give away, and what the second turn costs.

    python benchmarks/turns.py --taint 5000
    python benchmarks/turns.py --cookbook .venv-compat/bin/python [--problems 20]
    python benchmarks/turns.py --cost [--model data/nano] [--repeats 5]

`--taint` lets so many completions go on, on problems whose hidden tests hold unique markers; once with feedback, and
once with a tool that runs the programs on the statement's sample. Their first answers are programs that look for tests
(files, environment, /proc, frames, arguments, the sandbox's folders), print their input, crash on it, or are wrong on
hidden tests alone; the model answers after the reply. Counted are markers in prompts and replies, and pairs of programs
that differ only on hidden tests and get another reply, in text or in length. Exit code 1 if there are any.

`--cookbook` does some of it beside the Tinker cookbook's code_rl, whose Python it names (`make compat` installs it),
with the same problems, programs and sandbox. Two programs fail the statement's sample, two pass it and fail hidden
tests; the two differ only there. In how many replies is a hidden test, and how many pairs get different replies? Then
right programs while no sandbox answers: what is said of them, and what is their reward?

`--cost` samples 8 groups of 16 completions in two turns of up to `--tokens` tokens each, where every first answer gets
a reply. Beside it two steps of one turn that sample as many tokens: 8 groups of 16 completions of twice as many tokens,
and 8 groups of 32. One after the other, `--repeats` times; then it trains on each. Per 1,000 tokens that were sampled,
medians: seconds, processor time of all processes (on a busy machine it says more), and two turns by one, pair by pair.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import psutil
import tinker
from rich.console import Console
from rich.table import Table

from coderl_tasks.environments.environment import CodeEnvironment, Turns
from coderl_tasks.environments.feedback import Reply
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.grading.scoring import Verdict
from coderl_tasks.paths import NANO_MODEL, PROJECT_ROOT
from coderl_tasks.policy import clients
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.policy.sampling import Completion, group_frame
from coderl_tasks.policy.update import adam_params, update_policy
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.prompts.tokenizer import model_renderer
from coderl_tasks.prompts.tool_calls import CALL_CLOSE, CALL_OPEN, NAME
from coderl_tasks.rollouts.engine import RolloutEngine, RolloutSettings
from coderl_tasks.rollouts.turns import further_turns, with_first_turn
from coderl_tasks.services import embedded_sandbox, embedded_tinker

T = TypeVar("T")
MARK = "7390{:06d}"
LOOKING = (
    "import sys\nprint(sys.stdin.read())\nfor name in ('tests.json', 'results.json', 'solution.py'):\n"
    "    try:\n        print(open(name).read())\n    except OSError as error:\n        print(error)",
    "import os\nfor folder, _, files in os.walk('.'):\n    for file in files:\n"
    "        print(open(os.path.join(folder, file), errors='replace').read())",
    "import os, sys\nprint(dict(os.environ), sys.argv)\nraise ValueError(open('/proc/self/cmdline').read())",
    "import sys\nframe = sys._getframe()\nwhile frame:\n    print(dict(frame.f_globals), dict(frame.f_locals))\n"
    "    frame = frame.f_back",
    "import gc\nprint([each for each in gc.get_objects() if isinstance(each, (str, bytes, dict))][:2000])",
    "import glob\nfor name in glob.glob('/tmp/**', recursive=True)[:500]:\n"
    "    try:\n        print(open(name).read()[:2000])\n    except (OSError, UnicodeDecodeError):\n        pass",
    "import sys\ndata = sys.stdin.read()\nraise RuntimeError(data)",
    "import sys\nsys.exit(sys.stdin.read())",
    "a, b = map(int, input().split())\nprint(a - b)",
    "print(open('/proc/self/mem', 'rb').read(10))",
    "while True: pass",
    "print(undefined)",
    "print('x' * 5_000_000)",
    "def f(:",
)
PAIR = "a, b = map(int, input().split())\nprint({shown} if a < 100 else {hidden})"
"""Wrong on the samples where `shown` is; `hidden` decides on hidden tests alone."""


@dataclass(frozen=True, eq=False)
class Doubting(CodeEnvironment):
    """Gives every answer the same reply, so that all completions have all turns."""

    async def replies(self, judge: Judge, problem: Problem, texts: Sequence[str], turn: int) -> list[Reply]:
        said = "Your program fails example 1 of the problem: wrong answer.\n\nInput:\n2 3\n\nExpected output:\n5"
        return [Reply(Verdict.WRONG_ANSWER, said)] * len(texts)


@dataclass(frozen=True)
class Opened:
    """Embedded servers, and clients of them."""

    service: tinker.ServiceClient
    sampler: tinker.SamplingClient
    judge: Judge
    model: str
    sandbox: str

    def engine(self, environment: CodeEnvironment, **settings: Any) -> RolloutEngine:
        values: dict[str, Any] = {"temperature": 1.0, "max_tokens": 16, "context": 8192, "seed": 0} | settings
        renderer = model_renderer(self.model)
        return RolloutEngine(self.judge, renderer, RolloutSettings("train", self.model, **values), environment)


@contextlib.asynccontextmanager
async def opened(model: str) -> AsyncIterator[Opened]:
    with embedded_sandbox() as sandbox, embedded_tinker(model) as server:
        service = await clients.connect(server.url, server.key)
        sampler = await clients.create_sampling_client(service, base_model=model)
        async with SandboxClient([sandbox.address]) as client:
            yield Opened(service, sampler, Judge(client, timeout_s=1.0), model, sandbox.address)
        await clients.disconnect(service)


def planted(number: int) -> Problem:
    """A problem of adding two numbers, whose hidden tests hold markers that are nowhere else."""
    statement = "Add two numbers.\n\nExample\n\nInput\n2 3\n\nOutput\n5\n"
    marks = [MARK.format(10 * number + place) for place in range(3)]
    tests = tuple(Test(f"{mark} {place}\n", f"{int(mark) + place}\n") for place, mark in enumerate(marks))
    shown = Test("2 3\n", "5\n")
    return Problem(*(f"planted-{number}", "own", statement, ""), "stdin", "", (*tests, shown), 4, 4, None, (), number)


def called(program: str) -> str:
    """An answer that asks for a program to be run on the statement's sample."""
    call = {"name": NAME, "arguments": {"code": program, "stdin": "2 3\n"}}
    return f"{CALL_OPEN}\n{json.dumps(call)}\n{CALL_CLOSE}"


async def taint(servers: Opened, completions: int, turns: Turns) -> dict[str, int]:
    """Counts of what must not be, over so many completions."""
    engine = servers.engine(CodeEnvironment(turns=turns))
    counts = dict.fromkeys(("completions", "second answers", "markers", "pairs", "pairs that differ"), 0)

    async def group(number: int) -> None:
        problem = planted(number)
        pairs = [PAIR.format(shown="a + b + 1", hidden=each) for each in ("a + b", "0")]
        programs = [*LOOKING, *pairs, *(pair.replace("a + b + 1", "a * b") for pair in pairs)]
        texts = [called(program) if turns.tools else f"```python\n{program}\n```" for program in programs]
        answers = [[*engine.renderer.encode_plain(text), engine.renderer.stop_tokens[0]] for text in texts]
        request = engine.request(problem, number, len(texts), seed=number)
        given = [Completion(tokens, [-1.0] * len(tokens), "stop") for tokens in answers]
        first = with_first_turn(group_frame(request, given, decode=lambda tokens: texts[answers.index(tokens)]))
        rows = (await further_turns(engine, servers.sampler, problem, first, 1.0)).to_dicts()
        replies = [row["turns"][1]["environment_text"] if len(row["turns"]) > 1 else None for row in rows]
        for row, reply in zip(rows, replies, strict=True):
            prompts = [row["prompt_tokens"], *(turn["environment_tokens"] for turn in row["turns"][1:])]
            said = "".join(str(engine.renderer.tokenizer.decode(tokens)) for tokens in prompts) + str(reply)
            counts["markers"] += sum(test.input.split()[0] in said for test in problem.tests[:3])
            counts["markers"] += sum(test.expected.strip() in said for test in problem.tests[:3])
        counts["completions"] += len(rows)
        counts["second answers"] += sum(len(row["turns"]) > 1 for row in rows)
        for one, other in (replies[-4:-2], replies[-2:]):
            counts["pairs"] += 1
            counts["pairs that differ"] += one != other or one is None

    size = len(LOOKING) + 4
    slots = asyncio.Semaphore(4)

    async def bounded(number: int) -> None:
        async with slots:
            await group(number)

    await asyncio.gather(*(bounded(number) for number in range(-(-completions // size))))
    return counts


@dataclass(frozen=True)
class Told:
    """What one side says of programs: its name, a reply (None: none) and a reward (None: left out) per program."""

    name: str
    replies: Sequence[str | None]
    rewards: Sequence[float | None]


def by_cookbook(python: str, cases: Sequence[tuple[Problem, str]], sandbox: str) -> Told:
    """The cookbook's own tool and reward, in a process of its own."""
    written = [
        (
            [{"input": test.input, "output": test.expected, "testtype": "stdin_stdout"} for test in problem.tests],
            program,
        )
        for problem, program in cases
    ]
    script = PROJECT_ROOT / "tests" / "compat" / "tool_and_reward.py"
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "cases.json", Path(folder) / "answers.json"
        asked.write_text(json.dumps(written))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"SANDBOX_URL": f"{sandbox}/run_code"}
        subprocess.run([python, str(script), str(asked), str(answered)], env=environment, check=True)
        answers = json.loads(answered.read_text())
    # Its replies have times, which would tell any two programs apart.
    replies = [re.sub(r'"execution_time": [\d.e-]+', "", reply) for reply, _ in answers]
    return Told("cookbook", replies, [reward for _, reward in answers])


async def by_coderl(name: str, turns: Turns, judge: Judge, cases: Sequence[tuple[Problem, str]]) -> Told:
    """The replies and rewards of `environment`; a tool is asked to run the program on the statement's sample."""
    environment = CodeEnvironment(turns=turns)

    async def told(problem: Problem, program: str) -> tuple[str | None, float | None]:
        answer = f"```python\n{program}\n```"
        (reply,) = await environment.replies(judge, problem, [called(program) if turns.tools else answer], 0)
        (scored,) = await environment.score(judge, problem, [answer])
        return reply.text, scored.reward

    replies, rewards = zip(*await asyncio.gather(*(told(*case) for case in cases)), strict=True)
    return Told(name, list(replies), list(rewards))


async def beside_cookbook(servers: Opened, python: str, problems: int) -> Table:
    """A row per side: see the top."""
    asked = [planted(number) for number in range(problems)]
    fails = [PAIR.format(shown="a * b", hidden=hidden) for hidden in ("a + b", "0")]
    passes = [PAIR.format(shown="a + b", hidden=hidden) for hidden in ("a + b + 1", "0")]
    cases = [(problem, program) for problem in asked for program in (*fails, *passes)]
    right = [(problem, "a, b = map(int, input().split())\nprint(a + b)") for problem in asked]
    ours = (("coderl, max_turns=2", Turns(2)), ("coderl, environment=tool", Turns(3, tool_calls=2)))
    nowhere = "http://127.0.0.1:9"
    sides = [
        (by_cookbook(python, cases, servers.sandbox), by_cookbook(python, right, nowhere)),
    ]
    async with SandboxClient([nowhere], outage_patience_s=0.2) as client:
        for name, turns in ours:
            said = await by_coderl(name, turns, servers.judge, cases)
            sides.append((said, await by_coderl(name, turns, Judge(client), right)))
    table = Table("", "replies", "with a hidden test", "pairs told apart", "replies in an outage", "rewards there")
    for told, outage in sides:
        with_hidden = 0
        for (problem, _), reply in zip(cases, told.replies, strict=True):
            marks = [word for test in problem.tests[:3] for word in (test.input.split()[0], test.expected.strip())]
            with_hidden += any(mark in (reply or "") for mark in marks)
        apart = sum(one != other for one, other in zip(told.replies[::2], told.replies[1::2], strict=True))
        in_outage = [reply for reply in outage.replies if reply is not None]
        rewards = Counter("left out" if reward is None else f"{reward:g}" for reward in outage.rewards)
        table.add_row(
            told.name,
            str(sum(reply is not None for reply in told.replies)),
            str(with_hidden),
            f"{apart} of {len(cases) // 2}",
            f"{len(in_outage)} of {len(right)}" + (f" ({in_outage[0][:26]}...)" if in_outage else ""),
            ", ".join(f"{count} x {reward}" for reward, count in rewards.items()),
        )
    return table


ARMS = {
    "two turns": (Turns(2), 16, 1),
    "one turn, twice as long": (Turns(1), 16, 2),
    "one turn, twice as many": (Turns(1), 32, 1),
}
"""By name: turns, completions per problem, and by how much `--tokens` is multiplied."""


def processor_s() -> float:
    """Processor time of this process and of those that it started."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


@dataclass
class Spent:
    """Seconds per 1,000 sampled tokens by phase, of the clock and of the processor, one per repeat."""

    clock: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    processor: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, phases: Sequence[tuple[str, float, float]], tokens: int) -> None:
        both = ("both", sum(clock for _, clock, _ in phases), sum(processor for *_, processor in phases))
        for phase, clock, processor in (*phases, both):
            self.clock[phase].append(1000 * clock / tokens)
            self.processor[phase].append(1000 * processor / tokens)


async def timed(phase: str, work: Awaitable[T]) -> tuple[T, tuple[str, float, float]]:
    """What it returns; the phase, its seconds, and its processor time."""
    clock, processor = time.monotonic(), processor_s()
    result = await work
    return result, (phase, time.monotonic() - clock, processor_s() - processor)


async def cost(servers: Opened, tokens: int, repeats: int, concurrency: int) -> dict[str, Spent]:
    problems = [planted(number) for number in range(8)]
    spent = {arm: Spent() for arm in ARMS}
    for repeat in range(-1, repeats):  # the first warms up
        for arm, (turns, n, times) in ARMS.items():
            settings = {"max_tokens": times * tokens, "seed": repeat, "concurrency": concurrency}
            engine = servers.engine(Doubting(turns=turns), **settings)
            requests = [engine.request(problem, place, n, seed=repeat) for place, problem in enumerate(problems)]
            pairs = zip(problems, requests, strict=True)
            work = asyncio.gather(*(engine.sample(servers.sampler, *pair) for pair in pairs))
            groups, sampling = await timed("sampling", work)
            frame = pl.concat(groups)
            rows = frame.with_columns(
                *(
                    pl.lit(None, dtype).alias(name)
                    for name, dtype in ROLLOUT_SCHEMA.items()
                    if name not in frame.columns
                )
            ).select(list(ROLLOUT_SCHEMA))
            scored = rows.with_columns(
                advantage=pl.when(pl.col("sample_index") % 2 == 0).then(0.5).otherwise(-0.5), trained=pl.lit(True)
            )
            policy = await clients.create_training_client(servers.service, servers.model, lora_rank=32, seed=0)
            _, training = await timed("training", update_policy(policy, scored, adam_params(1e-5)))
            if repeat >= 0:
                spent[arm].add([sampling, training], int(frame["completion_tokens"].list.len().sum()))
    return spent


def cost_table(spent: dict[str, Spent]) -> Table:
    two, *others = ARMS
    table = Table("", *ARMS, *(f"ratio to {other}" for other in others), title="Per 1,000 sampled tokens, medians")
    for kind in ("clock", "processor"):
        for phase in ("sampling", "training", "both"):
            values = {arm: getattr(each, kind)[phase] for arm, each in spent.items()}
            ratios = [
                statistics.median(a / b for a, b in zip(values[two], values[other], strict=True)) for other in others
            ]
            shown = [*(f"{statistics.median(each):.3f} s" for each in values.values()), *(f"{r:.2f}" for r in ratios)]
            table.add_row(f"{phase}, {kind}", *shown)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--taint", type=int, default=0, metavar="COMPLETIONS")
    parser.add_argument("--cookbook", metavar="PYTHON", help="that has tinker-cookbook")
    parser.add_argument("--problems", type=int, default=20, help="with --cookbook (default: 20)")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--model", default=NANO_MODEL)
    parser.add_argument("--tokens", type=int, default=64, help="per answer (default: 64)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=64, help="requests in flight (default: 64)")
    arguments = parser.parse_args()
    if not (arguments.taint or arguments.cookbook or arguments.cost):
        parser.error("say what to measure: --taint COMPLETIONS, --cookbook PYTHON or --cost")

    async def run() -> int:
        failed = 0
        async with opened(arguments.model) as servers:
            if arguments.taint:
                found = {
                    name: await taint(servers, arguments.taint, turns)
                    for name, turns in (("feedback", Turns(2)), ("tool", Turns(3, tool_calls=2)))
                }
                table = Table("", *found["tool"], title="What replies give away")
                for name, counts in found.items():
                    table.add_row(name, *map(str, counts.values()))
                    failed += counts["markers"] + counts["pairs that differ"]
                Console().print(table)
            if arguments.cookbook:
                Console().print(await beside_cookbook(servers, arguments.cookbook, arguments.problems))
            if arguments.cost:
                spent = await cost(servers, arguments.tokens, arguments.repeats, arguments.concurrency)
                Console(width=160).print(cost_table(spent))
        return failed

    sys.exit(1 if asyncio.run(run()) else 0)


if __name__ == "__main__":
    main()
