"""Does a second turn pay at equal tokens? A policy that has seen replies, trained with one turn and with two.

    PYTHONPATH=. python benchmarks/repair.py --folder DIR [--seeds 5] [--tokens 120000] [--problems 200] [--table]

The problems are composed like data/mini's, from standard input, each with one of its tests as the example in its
statement; those that policies are evaluated on are of data/mini's test side. nano has never seen a reply, and answers
one with garbage. So it is supervised first (cross_entropy, through the Tinker API) on conversations: a problem, an
answer of nano's own teacher with its habits, the reply of `environment=code` where the answer fails the example, and a
second answer, in which each wrong piece is right with the probability MENDS, and else as wrong as before.

All arms start from that state (`init_from`), with the same problems and settings. Each trains until it has sampled
`--tokens` tokens: an arm without second answers takes more steps.

one turn               max_turns=1
two turns              max_turns=2: an answer that is mended is reinforced with the one that mends it
two turns, per turn    max_turns=2 turn_credit=per_turn: an answer that passes is reinforced more than one before it

Each policy, and the state before, has `--samples` completions of up to two turns per test problem at temperature 1.
From them come Pass@1 of the first answer, and of the last one; and, of the first answers alone, two rivals of a second
turn:

two, the example decides   a second independent answer replaces one that fails the example: no reply is read
Pass@2                     one of two independent answers passes all tests, which nobody knows who submits one

Intervals are 95%, over seeds and problems both (`stats.crossed_interval`), differences paired by both. What DIR holds
already is not done again.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import polars as pl
import tinker
from overlap import coderl, servers
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from coderl_tasks.environments.environment import CodeEnvironment, Turns
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.grading.scoring import Verdict
from coderl_tasks.journal.atomic import make_folder, read_json, read_rows, write_json
from coderl_tasks.paths import NANO_MODEL
from coderl_tasks.policy import clients
from coderl_tasks.policy.update import adam_params
from coderl_tasks.problems.problem import Problem
from coderl_tasks.prompts.renderers import Message, Renderer, problem_messages
from coderl_tasks.prompts.tokenizer import model_renderer
from coderl_tasks.runtime.grpo_session import init_grpo
from coderl_tasks.stats import crossed_interval, pass_at_k
from data.recipes.cases import Case, draw_case, draw_cases, mutants, solves
from data.recipes.compose import Combination, Composed
from data.recipes.layouts import STDIN_LAYOUTS
from data.recipes.make_mini import problems as composed_problems
from data.recipes.make_mini import raw_row, split_combinations
from data.recipes.statement import statement
from data.recipes.teacher import Teacher

TRAIN, TEST = 240, 200
ONE = "one turn"
ARMS: dict[str, dict[str, Any]] = {
    ONE: {},
    "two turns": {"max_turns": 2},
    "two turns, per turn": {"max_turns": 2, "turn_credit": "per_turn"},
}
TWO = CodeEnvironment(turns=Turns(2))
MENDS = 0.4
LORA_RANK = 32
COURSE = [1e-3] * 100 + [3e-4] * 40
"""The learning rate of each batch of conversations."""
BATCH = 32


# --- problems ---


def shown_first(composed: Composed, cases: list[Case]) -> list[Case]:
    """The cases with the most telling one first, which most programs with one slip fail: statements show such ones."""
    wrong = mutants(composed)
    return sorted(cases, key=lambda case: sum(solves(program, composed, case) for program in wrong))


def rows(side: list[Combination], seed: str) -> Iterator[dict[str, Any]]:
    """Problems of one side of data/mini as raw rows, the first test of each in its statement."""
    rng = random.Random(seed)
    for number, composed in enumerate(composed_problems(side, rng, STDIN_LAYOUTS, set())):
        cases = shown_first(composed, draw_cases(composed, rng, 10))
        if len(cases) >= 5:
            yield raw_row("taco", composed, cases, example=True, style=0) | {"problem_id": f"{seed}-{number}"}


def write_data(folder: Path) -> None:
    train, test = split_combinations()
    make_folder(folder)
    for name, side, count in (("train", train, TRAIN), ("test", test, TEST)):
        lines = [json.dumps(row) + "\n" for row in islice(rows(side, name), count)]
        (folder / f"{name}.jsonl").write_text("".join(lines))


# --- the state that both arms start from ---


class RepairTeacher(Teacher):
    """nano's teacher on problems that show an example, who gets a reply to a program that fails it."""

    def answers(self) -> tuple[Problem, str, str]:
        """A problem, an answer, and one after a reply."""
        while True:
            composed = self._draw()
            drawn = [] if composed.layout.functional else [draw_case(composed, self._rng) for _ in range(6)]
            if cases := [case for case in drawn if case is not None]:
                break
        asked = statement(composed, shown_first(composed, cases)[0])
        written = self._written(composed)
        mended = {slot: right for slot, (right, _) in composed.slots().items() if self._rng.random() < MENDS}
        second = f"```python\n{composed.program(written | mended)}```"
        problem = Problem("", "", asked, "", "stdin", "", (), 0, 0, None, (), 0)
        return problem, self._fenced(composed.program(written)), second

    async def conversation(self, judge: Judge) -> list[Message]:
        """A problem, an answer, and where that fails the example, the reply and the second answer."""
        problem, first, second = self.answers()
        messages: list[Message] = [*problem_messages(problem), {"role": "assistant", "content": first}]
        (reply,) = await TWO.replies(judge, problem, [first], 0)
        if reply.text is None:
            return messages
        return [*messages, {"role": "user", "content": reply.text}, {"role": "assistant", "content": second}]


def lesson(renderer: Renderer, messages: Sequence[Message]) -> tinker.Datum:
    """A conversation with the loss on its answers."""
    tokens, weights = renderer.build_supervised_example(messages)
    for place, message in enumerate(messages[:-1]):
        if message["role"] == "assistant":
            earlier, answer = renderer.build_supervised_example(messages[: place + 1])
            assert tokens[: len(earlier)] == earlier
            weights = [*answer, *weights[len(answer) :]]
    inputs: dict[str, Any] = {"target_tokens": tokens[1:], "weights": weights[1:]}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


async def teach() -> dict[str, str]:
    """Supervise nano on conversations; the paths of the state and of its sampler."""
    teacher, renderer = RepairTeacher(split_combinations()[0], seed=11), model_renderer(NANO_MODEL)
    service = await clients.connect()
    policy = await clients.create_training_client(service, NANO_MODEL, lora_rank=LORA_RANK, seed=0)
    async with SandboxClient([os.environ["SANDBOX_URL"]]) as client:
        judge = Judge(client)

        async def batch() -> list[tinker.Datum]:
            conversations = await asyncio.gather(*(teacher.conversation(judge) for _ in range(BATCH)))
            return [lesson(renderer, each) for each in conversations]

        datums = await batch()
        for number, rate in enumerate(COURSE):
            passed = policy.forward_backward(datums, "cross_entropy")
            stepped = policy.optim_step(adam_params(rate))
            datums = await batch()
            found, _ = await passed, await stepped
            if number % 20 == 19:
                print(f"batch {number + 1} of {len(COURSE)}: {found.metrics} {time.strftime('%T')}", flush=True)
    paths = await clients.save_weights(policy, "seen-replies")
    await clients.disconnect(service)
    return paths


# --- runs ---


@dataclass(frozen=True)
class Bench:
    folder: Path
    tokens: int
    problems: int
    samples: int

    def run(self, arm: str, seed: int) -> Path:
        return self.folder / arm.replace(", ", "-").replace(" ", "-") / f"seed-{seed}"

    def after(self, arm: str, seed: int) -> Path:
        """The folder of a run's evaluation."""
        return self.run(arm, seed) / "evals" / "two-turns"

    @property
    def before(self) -> Path:
        return self.folder / "before"


def committed(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run's steps."""
    file = run / "metrics.jsonl"
    return [row for row in read_rows(file) if "mean_reward" in row] if file.is_file() else []


def sampled(steps: Sequence[dict[str, Any]]) -> int:
    return sum(row["tokens_completion"] for row in steps)


def read(steps: Sequence[dict[str, Any]]) -> int:
    """The tokens of prompts, each group's once, and of replies."""
    return sum(row["tokens_prompt"] for row in steps)


def train(bench: Bench, arm: str, seed: int, state: str) -> None:
    """Train a run, or what is left of it, until it has sampled enough."""
    sizes = {"problems_per_step": 8, "completions_per_problem": 8, "save_every": 0, "seed": seed}
    problems = list(read_rows(bench.folder / "train.jsonl"))
    begin = {"preset": "nano", "log_path": str(bench.run(arm, seed)), "init_from": state}
    given: dict[str, Any] = {**begin, **sizes, **ARMS[arm]}
    with init_grpo(NANO_MODEL, problems=problems, say=lambda line: None, **given) as grpo:
        while sampled(committed(bench.run(arm, seed))) < bench.tokens:
            grpo.train_grpo_step()
        grpo.finish()


def evaluate(bench: Bench, checkpoint: str, folder: Path) -> None:
    data = (f"evaluation_dataset={bench.folder / 'test.jsonl'}", f"eval_limit={bench.problems}")
    sampling = ("max_turns=2", f"n_samples={bench.samples}", "temperature=1", "max_tokens=128", "seed=0")
    words = ("preset=nano", *data, *sampling, f"checkpoint={checkpoint}", f"log_path={folder}")
    coderl(dict(os.environ), "evaluate", *words)


def run_all(bench: Bench, seeds: int) -> None:
    """Train and evaluate what is missing."""
    missing = [(arm, s) for s in range(seeds) for arm in ARMS if not (bench.after(arm, s) / "summary.json").is_file()]
    if not missing:
        return
    if not (bench.folder / "test.jsonl").is_file():
        write_data(bench.folder)
    with servers() as environment:
        os.environ.update(environment)
        taught = bench.folder / "taught.json"
        if not taught.is_file():
            write_json(taught, asyncio.run(teach()))
        paths = read_json(taught)
        if not (bench.before / "summary.json").is_file():
            evaluate(bench, paths["sampler_path"], bench.before)
        for arm, seed in missing:
            begun = time.monotonic()
            train(bench, arm, seed, paths["state_path"])
            evaluate(bench, str(bench.run(arm, seed)), bench.after(arm, seed))
            rates = [turn["pass_at_1"] for turn in read_json(bench.after(arm, seed) / "summary.json")["by_turn"]]
            print(f"{arm}, seed {seed}: Pass@1 by turn {rates}, {time.monotonic() - begun:.0f} s", flush=True)


# --- what came of them ---

FIRST, LAST, CHOSEN, TWO_TRIES = "first answer", "last of two turns", "two, the example decides", "Pass@2"
DIFFERENCES = ((LAST, FIRST), (LAST, CHOSEN), (LAST, TWO_TRIES), (LAST, LAST), (FIRST, FIRST))
"""Of an arm with two turns, less of the arm with one."""


def measured(evaluation: Path) -> pl.DataFrame:
    """A row per problem, in order: how often each way of answering is right, the tokens that it samples (`tokens` and
    its name), how often a first answer gets a reply, and how often such a completion is right in the end."""
    names = ["problem_id", "turns", "turn_verdicts", "completion_tokens"]
    found = []
    for (problem,), group in pl.read_parquet(evaluation / "rollouts.parquet", columns=names).group_by("problem_id"):
        turns, verdicts = group["turns"].to_list(), group["turn_verdicts"].to_list()
        right = [each[0] == Verdict.PASSED for each in verdicts]
        tokens = [each[0]["n_tokens"] for each in turns]
        replied = [len(each) > 1 for each in turns]  # to an answer that fails the example
        pairs = list(permutations(range(len(turns)), 2))
        one = {
            "problem": problem,
            FIRST: statistics.fmean(right),
            LAST: statistics.fmean(each[-1] == Verdict.PASSED for each in verdicts),
            CHOSEN: statistics.fmean(right[j if replied[i] else i] for i, j in pairs),
            TWO_TRIES: pass_at_k(len(right), sum(right), 2),
            "replied": statistics.fmean(replied),
            "mended": statistics.fmean(len(each) > 1 and each[-1] == Verdict.PASSED for each in verdicts),
            f"tokens {FIRST}": statistics.fmean(tokens),
            f"tokens {LAST}": statistics.fmean(map(len, group["completion_tokens"])),
            f"tokens {CHOSEN}": statistics.fmean(tokens[i] + replied[i] * tokens[j] for i, j in pairs),
            f"tokens {TWO_TRIES}": 2 * statistics.fmean(tokens),
        }
        found.append(one)
    return pl.DataFrame(found).sort("problem")


def by_check(evaluations: Sequence[Path]) -> str:
    """Of the completions with a reply, by what it says of the first answer: how many are right in the end."""
    names = ["turns", "turn_verdicts"]
    frame = pl.concat(pl.read_parquet(each / "rollouts.parquet", columns=names) for each in evaluations)
    replied = frame.filter(pl.col("turns").list.len() > 1).select(
        check=pl.col("turns").list.first().struct.field("check"),
        mended=pl.col("turn_verdicts").list.last() == Verdict.PASSED.value,
    )
    found = replied.group_by("check").agg(pl.col("mended").sum(), pl.len()).sort("len", descending=True)
    return ", ".join(f"{check} {mended} of {n} ({mended / n:.0%})" for check, mended, n in found.iter_rows())


def shown_rate(frames: Sequence[pl.DataFrame], way: str) -> str:
    """Pass@1 of a way of answering, with its interval over seeds and problems, and its tokens per problem."""
    tokens = statistics.fmean(frame[f"tokens {way}"].mean() for frame in frames)  # type: ignore[misc]
    scores = [frame[way].to_list() for frame in frames]
    if len(scores) == 1:
        return f"{100 * statistics.fmean(scores[0]):.1f}%, {tokens:.0f} tokens"
    rate = crossed_interval(scores)
    return f"{100 * rate.estimate:.1f}% [{100 * rate.low:.1f}, {100 * rate.high:.1f}], {tokens:.0f} tokens"


def mended_by_step(runs: Sequence[Sequence[dict[str, Any]]], parts: int = 5) -> str:
    """Of the first answers that got a reply, the share whose last answer is right, in each fifth of a run's steps."""
    shares = []
    for part in range(parts):
        rows = [row for run in runs for row in run[len(run) * part // parts : len(run) * (part + 1) // parts]]
        replied = statistics.fmean(row["mean_turns"] - 1 for row in rows)
        shares.append(f"{statistics.fmean(row['mended_rate'] for row in rows) / replied:.0%}")
    return " ".join(shares)


Found = dict[str, list[pl.DataFrame]]
"""By arm, what is `measured` of each seed."""


def rates_table(found: Found, runs: dict[str, list[list[dict[str, Any]]]]) -> Table:
    """A row for the state before and for each arm."""
    ways = (FIRST, LAST, CHOSEN, TWO_TRIES)
    sums = ("steps", "tokens sampled", "prompts and replies")
    table = Table("trained with", *sums, *ways, "replied to", "of these mended", box=MARKDOWN)
    for arm, frames in found.items():
        both, of_runs = pl.concat(frames), runs.get(arm, [])
        replied, mended = float(both["replied"].sum()), float(both["mended"].sum())
        totals = [f"{statistics.fmean(map(of, of_runs)):,.0f}" if of_runs else "" for of in (len, sampled, read)]
        rates = [shown_rate(frames, way) for way in ways]
        table.add_row(arm, *totals, *rates, f"{replied / both.height:.1%}", f"{mended / replied:.0%}")
    return table


def gains_table(found: Found) -> Table:
    """The arms with two turns less the one with one, paired by seed and by problem."""
    table = Table("arm", "its", f"less {ONE}'s", "difference in points", "by seed", box=MARKDOWN)
    for arm in [arm for arm in ARMS if arm != ONE]:
        for way, other in DIFFERENCES:
            pairs = zip(found[arm], found[ONE], strict=False)  # an arm may lack the last seeds
            deltas = [(one[way] - another[other]).to_list() for one, another in pairs]
            if len(deltas) > 1:
                gain = crossed_interval(deltas)
                shown = f"{100 * gain.estimate:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
                by_seed = " ".join(f"{100 * statistics.fmean(row):+.1f}" for row in deltas)
                table.add_row(arm, way, other, shown, by_seed)
    return table


def show(bench: Bench, seeds: int) -> None:
    """Prints what is there."""
    there = {arm: [s for s in range(seeds) if (bench.after(arm, s) / "summary.json").is_file()] for arm in ARMS}
    runs = {arm: [committed(bench.run(arm, seed)) for seed in its] for arm, its in there.items() if its}
    folders = {arm: [bench.after(arm, seed) for seed in there[arm]] for arm in runs}
    folders = {"before": [bench.before]} | folders
    found: Found = {arm: [measured(each) for each in its] for arm, its in folders.items()}
    console = Console(width=320)
    console.print(rates_table(found, runs))
    if runs.keys() == ARMS.keys():
        console.print(gains_table(found))
    for arm, its in folders.items():
        console.print(f"{arm}, mended by the check of the first answer: {by_check(its)}")
    for arm in [arm for arm in runs if arm != ONE]:
        console.print(f"{arm}, mended of those replied to, by fifths of the steps: {mended_by_step(runs[arm])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where runs are kept, and looked for")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=120_000, help="sampled in a run's training (default: 120,000)")
    parser.add_argument("--problems", type=int, default=TEST, help=f"of each evaluation (default: {TEST})")
    parser.add_argument("--samples", type=int, default=4, help="completions per problem of an evaluation (default: 4)")
    parser.add_argument("--table", action="store_true", help="train nothing, print what is there")
    options = parser.parse_args()
    bench = Bench(options.folder.resolve(), options.tokens, options.problems, options.samples)
    if not options.table:
        run_all(bench, options.seeds)
    show(bench, options.seeds)


if __name__ == "__main__":
    main()
