"""Kills a training run at random moments and starts it again until it is done: the run ends as if nothing had been.

    python benchmarks/training_kills.py [--kills 50] [--variant rolling-1] [--variant rolling-4] [--variant overlap]
                                        [--variant queue] [--variant off-policy] [--variant refill]
                                        [--variant adaptive] [--variant first] [--variant capped] [--variant all]
                                        [--variant unprofiled] [--variant assertions] [--variant turns]
                                        [--variant watched] [--variant smollm2]

A real `coderl train` of 12 steps, its Tinker server and its sandbox are killed with SIGKILL, all at
once, at moments drawn from the seed, anywhere from starting up to the last write. Then all three start again, by the
same command. A run that ends before the kills are used up is compared, and another one is begun; but the last kills
come at the latest when a run commits its last step, so that no other run is needed for them. The variants save a
state to resume from after each step, after every fourth, after each with sampling one step ahead, after every second
with sampling four steps ahead, and after every second with several optimizer steps per step (three epochs of mini-
batches, of which the last one is smaller); one more with such updates replaces groups without a signal, in most steps
by several rounds. One chooses problems and the sizes of their groups by what the steps before have shown, samples ahead
and replaces groups. One does so too, and begins groups with a few completions, so that a group is sampled in two parts.
One more does so under a cap on tokens, which is raised by CAP whenever the run has ended at it. One has all of this at
once but the cap, two steps ahead and several optimizer steps per step included, and saves a state after every fourth.
One chooses problems and begins groups in the same way, on a pool without a profile. One lets completions have up to
three answers, two steps ahead: kills come in the middle of completions too. Three more train on assertion tests, on
word problems, and with a user's own reward. One holds tests back and quarantines suspicious programs, one step ahead.
One, which is run only where it is named, trains SmolLM2-135M-Instruct, in bfloat16 where the processor has products
for it.

Compared with a run that nobody disturbed: the final weights and optimizer state, byte for byte, all rollouts, and all
rows of the metrics, without clocks and paths. The server counts the optimizer steps of the surviving lineage. A gateway
in front of it notes each sampling request; its seed names step and group, and so tells whether what is asked for was
recorded before that start. What was in flight at a kill is asked for again. Under a cap the journal is asked after
each end what was spent: `past_cap` is the most tokens beyond the cap, `unused` the most that were left of it where the
run ended at it, and `group` what one group can take, for which that was too little.

Exit code 1 if anything differs, a step was applied twice, a recorded group (or part of one) was asked for again, a cap
was passed or a run ended at it with room for another group, and if with refill or first completions no group was
replaced, or no program ran on the tests held back.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import polars as pl
from rich.console import Console
from rich.table import Table
from sampling_gateway import Gateway
from started_commands import Launch, Process, launch

from coderl_tasks.errors import BudgetReachedError
from coderl_tasks.journal.atomic import make_folder, read_rows
from coderl_tasks.journal.checkpoints import get_last_checkpoint
from coderl_tasks.journal.ledger import run_budget
from coderl_tasks.journal.recorded_json import recorded_config
from coderl_tasks.paths import NANO_MODEL, NANO_WORDS_MODEL, PROJECT_ROOT, SMOLLM2_MODEL, WORDS_DATASET, coderl_home
from coderl_tasks.policy.rollout import VARYING_COLUMNS
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.problems.raw_row import problem_from_row
from coderl_tasks.prompts.renderers import effective_starter_code
from coderl_tasks.runtime.prefect_server import embedded_prefect, found_api_url
from coderl_tasks.services import embedded_sandbox, embedded_tinker
from coderl_tasks.services.supervisor import EmbeddedServer
from coderl_tasks.settings import TrainSettings
from local_servers.tinker.checkpoint_store import CheckpointStore
from local_servers.tinker.records import CheckpointRecord

SETTINGS = (
    "preset=nano",
    "batch_size=24",
    "group_size=3",
    "max_tokens=64",
    "save_every=5",
    "eval_every=4",
    "eval.limit=4",
)
IN_TWO_PARTS = (
    "selection=adaptive",
    "first_completions=3",
    "refill=1.5",
    "batch_size=32",
    "group_size=4",
)
SMOLLM2 = "smollm2"
VARIANTS = {
    "rolling-1": ("rolling_save.every=1",),
    "rolling-4": ("rolling_save.every=4",),
    "overlap": ("rolling_save.every=1", "max_steps_off_policy=1"),
    "queue": ("rolling_save.every=2", "max_steps_off_policy=4"),
    "off-policy": ("rolling_save.every=2", "loss_fn=ppo", "epochs_per_rollout_batch=3", "train_batch_size=7"),
    # Of this pool nano solves few: hardly a step has five groups with a signal among its first five.
    "refill": (
        "refill=2",
        "batch_size=40",
        "group_size=5",
        "loss_fn=ppo",
        "epochs_per_rollout_batch=3",
        "train_batch_size=32",
    ),
    "adaptive": (
        "selection=adaptive",
        "refill=1.5",
        "batch_size=32",
        "group_size=4",
        "max_steps_off_policy=1",
    ),
    "first": (*IN_TWO_PARTS, "max_steps_off_policy=1"),
    "capped": (*IN_TWO_PARTS, "max_steps_off_policy=1"),
    "all": (
        *IN_TWO_PARTS,
        "max_steps_off_policy=2",
        "rolling_save.every=4",
        "loss_fn=ppo",
        "epochs_per_rollout_batch=2",
        "train_batch_size=13",
        "kl.base_every=2",
    ),
    "unprofiled": ("selection=adaptive", "first_completions=4", "batch_size=32", "group_size=4"),
    "assertions": ("rolling_save.every=1", "max_steps_off_policy=1"),
    "watched": ("rolling_save.every=1", "max_steps_off_policy=1", "holdback=0.4", "on_hack=quarantine"),
    "gsm8k": ("environment=gsm8k",),
    "custom": ("environment=custom",),
    "turns": (
        *("max_turns=3", "turn_credit=discounted", "max_steps_off_policy=2", "rolling_save.every=2"),
        *("batch_size=32", "group_size=8"),
    ),
    SMOLLM2: ("preset=smollm2", "rolling_save.every=1"),
}
REWARD = "def compute_reward(completion, ground_truth):\n    return completion.count(ground_truth[-1]) / 10\n"
"""Of the variant custom: something that varies between a nano model's completions."""
POOL_PROBLEMS = 24
PROFILE = ("profile_samples=2", "band_low=0", "band_high=1")
CAP = 2_000
"""Tokens that the variant capped may take, and then so many more each time that it has ended at its cap."""
FINISH_S = 600.0
STARTING = 0.15
"""Share of the kills that are drawn from the first START_S seconds after the servers are up, before it works."""
START_S = 3.0
KILLS_A_RUN = 12
"""About so many kills befall a run before it is done."""
LOOK_EVERY_S = 0.1
"""How often it is looked whether the last step is committed."""


@dataclass
class Stack:
    """The servers a run needs. Tinker, which serves `model`, and the sandbox are killed with it; the gateway keeps one
    address for Tinker."""

    gateway: Gateway
    environment: dict[str, str]
    model: str = NANO_MODEL
    launch: Launch = launch
    servers: list[EmbeddedServer] = field(default_factory=list)

    def start(self, words: Sequence[str], output: IO[str]) -> Process:
        """New servers and `coderl WORDS`, which uses them, all at once; its process, when the servers are up."""
        tinker, sandbox = self.servers = [embedded_tinker(self.model), embedded_sandbox()]
        self.gateway.target = tinker.url
        environment = {**self.environment, "TINKER_API_KEY": tinker.key, "SANDBOX_URL": sandbox.address}
        process = self.launch(environment, words, output)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda server: server.__enter__(), self.servers))
        return process

    def kill(self) -> None:
        """SIGKILL to both: to their guards, which take them along."""

        def end(server: EmbeddedServer) -> None:
            os.kill(server.pid, signal.SIGKILL)
            server.__exit__(None, None, None)  # so that it is not started again

        with ThreadPoolExecutor() as pool:
            list(pool.map(end, self.servers))
        self.servers = []


@dataclass(frozen=True)
class Start:
    """One start of a run: groups recorded before it, those of them asked for again, steps committed at its end."""

    recorded: int
    again: int
    committed: int
    killed: bool
    capped: bool


@dataclass(frozen=True)
class Plan:
    """What is run, and how often it is killed."""

    variant: str
    kills: int
    steps: int
    seed: int
    pool: Path


class Training:
    """`coderl train` in `folder`, as often as it takes."""

    def __init__(self, folder: Path, plan: Plan, stack: Stack) -> None:
        self.folder = folder
        self.steps = plan.steps
        self.stack = stack
        words = [*SETTINGS, *VARIANTS[plan.variant], f"max_steps={plan.steps}", f"pool={plan.pool}"]
        if plan.variant == "custom":
            words.append(f"reward_file={plan.pool}/reward.py")
        given = dict(word.split("=", 1) for word in words)  # a variant's own come last
        self.first = int(given.get("first_completions", 0))
        self.words = ["train", *(f"{key}={value}" for key, value in given.items()), f"log_path={folder}"]
        self.cap: int | None = None

    def spent(self) -> int:
        """The tokens that the journal has, as a cap counts them."""
        return run_budget(TrainSettings(max_tokens_total=1), self.folder, []).spent.counted

    def group_most(self) -> int:
        """The tokens that a group can take at most: of the longest prompt sampled so far."""
        files = [*self.folder.glob("steps/*/sampled.parquet"), *self.folder.glob("steps/*/groups/*.parquet")]
        settings = recorded_config(self.folder) or {}
        longest = max(max(pl.read_parquet(file)["prompt_tokens"].list.len().to_list()) for file in files)
        return longest + settings["batch_size"] // settings["group_size"] * settings["max_tokens"]

    def recorded(self) -> set[int]:
        """The seeds of the groups recorded so far, with two of one that has more than its first completions."""
        files = [*self.folder.glob("steps/*/sampled.parquet"), *self.folder.glob("steps/*/groups/*.parquet")]
        names = ["step", "group_index", "problem_id"]
        groups = [
            group for file in files for group in pl.read_parquet(file, columns=names).group_by(names).len().rows()
        ]
        begun = {seed_for(0, "train", *group) for *group, _ in groups} | self.later_answers(files)
        if not self.first:
            return begun
        return begun | {seed_for(0, "train", *group, self.first) for *group, size in groups if size > self.first}

    @staticmethod
    def later_answers(files: list[Path]) -> set[int]:
        """The seeds of the recorded answers after the first ones."""
        place = ["step", "attempt", "group_index", "problem_id"]
        rows = [
            row for file in files for row in pl.read_parquet(file, columns=[*place, "sample_index", "turns"]).rows()
        ]
        return {
            seed_for(0, "train", *group, "turn", number, sample)
            for *group, sample, turns in rows
            for number, turn in enumerate(turns or ())
            if number and turn["stop_reason"] is not None
        }

    def committed(self) -> int:
        return len(list(self.folder.glob("steps/*/commit.json")))

    def start(
        self, kill_after_s: float | None, *, from_first_request: bool = True, until_last_commit: bool = False
    ) -> tuple[Start, float]:
        """Start everything and let the run end, or kill all so many seconds after its first request (or its start),
        with `until_last_commit` at the latest when its last step is committed.

        Returns also the seconds from the first request on.
        """

        def is_late() -> bool:
            return until_last_commit and self.committed() == self.steps

        before, gateway = self.recorded(), self.stack.gateway
        first = len(gateway.seeds)
        with tempfile.TemporaryFile("w+") as output:
            begun = time.monotonic()
            cap = [] if self.cap is None else [f"max_tokens_total={self.cap}"]
            process = self.stack.start([*self.words, *cap], output)
            killed = False
            try:
                if from_first_request:
                    gateway.wait_for(first + 1, process, is_late)
                    begun = time.monotonic()
                wait(process, FINISH_S if kill_after_s is None else kill_after_s, is_late)
            except subprocess.TimeoutExpired:
                if kill_after_s is None:
                    raise
                killed = True
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                self.stack.kill()
                code = process.wait()
            capped = not killed and self.cap is not None and code == BudgetReachedError.exit_code
            if not killed and not capped and code != 0:
                output.seek(0)
                raise RuntimeError(f"coderl {' '.join(self.words)} ended with {code}: {output.read()}")
        again = sum(seed in before for seed in gateway.seeds[first:])
        return Start(len(before), again, self.committed(), killed, capped), time.monotonic() - begun

    def final_checkpoint(self) -> CheckpointRecord:
        row = get_last_checkpoint(self.folder)
        assert row is not None
        assert row["step"] == self.steps - 1
        return CheckpointStore(coderl_home() / "tinker").find(row["state_path"])

    def outcome(self) -> dict[str, Any]:
        """What the run came to, without clocks, attempts, paths and what programs said, which may hold addresses."""
        varying = (*VARYING_COLUMNS, "attempt", "failed_output", "reason")
        rows = [
            {key: value for key, value in row.items() if not key.startswith(("time_", "sandbox_faults"))}
            for row in read_rows(self.folder / "metrics.jsonl")
        ]
        files = sorted(self.folder.glob("steps/*/scored.parquet"))
        evaluations = sorted(self.folder.glob("evals/*/rollouts.parquet"))
        return {
            "weights": {name: file.sha256 for name, file in self.final_checkpoint().files.items()},
            "metrics": rows,
            "rollouts": pl.read_parquet(files).drop(varying).to_dicts(),
            "evaluations": [pl.read_parquet(file).drop(varying).to_dicts() for file in evaluations],
        }

    def steps_applied(self) -> tuple[int, int]:
        """Optimizer steps in the lineage of the final weights, and those that the steps' updates count."""
        metrics = read_rows(self.folder / "metrics.jsonl")
        return self.final_checkpoint().optimizer_steps, sum(row.get("n_updates", 0) for row in metrics)


def wait(process: Process, seconds: float, is_late: Callable[[], bool]) -> None:
    """Returns when the process ends; `subprocess.TimeoutExpired` if it has not after so many seconds, or `is_late`."""
    deadline = time.monotonic() + seconds
    while True:
        left = max(0.0, deadline - time.monotonic())
        try:
            process.wait(min(LOOK_EVERY_S, left))
            return
        except subprocess.TimeoutExpired:
            if left == 0 or is_late():
                raise


def kill_and_compare(plan: Plan, stack: Stack, folder: Path, undisturbed: Stack | None = None) -> dict[str, Any]:
    """A run undisturbed (on servers of its own, or those of `undisturbed`), then runs that are killed until all kills
    are made; what was found."""
    draw = random.Random(f"{plan.seed} {plan.variant}")
    quiet = Training(folder / "quiet", plan, undisturbed or stack)
    _, seconds = quiet.start(None)
    wanted = quiet.outcome()
    kills = starts = runs = again = twice = 0
    past_cap = unused = group = 0
    different: Counter[str] = Counter()
    while kills < plan.kills or not runs:
        harmed = Training(folder / f"harmed-{runs}", plan, stack)
        harmed.cap = CAP if plan.variant == "capped" else None
        ended, harmed_kills = False, 0
        while not ended:
            left = seconds * (1 - harmed.committed() / plan.steps) + 1
            to_come = min(plan.kills - kills, max(1, KILLS_A_RUN - harmed_kills))
            # Else a run that is faster than the undisturbed one, on a machine that others share, would end before them.
            are_last = plan.kills - kills == to_come and harmed.committed() < plan.steps
            if kills == plan.kills:
                start, _ = harmed.start(None)
            elif draw.random() < STARTING:
                seconds_up = draw.uniform(0, START_S)
                start, _ = harmed.start(seconds_up, from_first_request=False, until_last_commit=are_last)
            else:  # spread over what is left of the run, so that few of them find it at its end
                start, _ = harmed.start(draw.uniform(0, 2 * left / (to_come + 1)), until_last_commit=are_last)
            ended = not start.killed and not start.capped
            harmed_kills += start.killed
            starts, kills, again = starts + 1, kills + start.killed, again + start.again
            if harmed.cap is not None and recorded_config(harmed.folder) is not None:
                left = harmed.cap - harmed.spent()
                past_cap = max(past_cap, -left)
                if start.capped:
                    group, unused = harmed.group_most(), max(unused, left)
                    harmed.cap += CAP
        runs += 1
        found = harmed.outcome()
        different.update(part for part in wanted if found[part] != wanted[part])
        applied, trained = harmed.steps_applied()
        twice += applied != trained
    return {
        "variant": plan.variant,
        "kills": kills,
        "starts": starts,
        "runs": runs,
        "different": dict(different),
        "steps_applied_twice": twice,
        "recorded_asked_again": again,
        "past_cap": past_cap,
        "unused": unused,
        "group": group,
        "held_back": sum(row.get("holdback_checked") or 0 for row in wanted["metrics"]),
        "groups_refilled": sum(row.get("groups_refilled") or 0 for row in wanted["metrics"]),
    }


@contextmanager
def running() -> Iterator[Stack]:
    """The gateway and a Prefect server, which are not killed, and the environment that makes a command use them."""
    with ExitStack() as stack:
        prefect = found_api_url() or stack.enter_context(embedded_prefect())
        gateway = Gateway("")
        stack.enter_context(gateway.serving())
        names = {"TINKER_BASE_URL": gateway.url, "PREFECT_API_URL": prefect}
        yield Stack(gateway, {**os.environ, **names})


def make_pool(folder: Path, stack: Stack, variant: str) -> Path:
    """A small pool of data/mini, or of word problems, as the variant trains on."""
    words = VARIANTS[variant] if variant in ("gsm8k", "custom") else ("max_tests=3",)
    words += ("profile_mode=none",) if variant == "unprofiled" else PROFILE
    if variant == "custom":
        make_folder(folder)
        rows = read_rows(PROJECT_ROOT / WORDS_DATASET / "train.jsonl")
        lines = [json.dumps({"prompt": row["question"], "ground_truth": row["answer"]}) for row in rows]
        (folder / "prompts.jsonl").write_text("\n".join(lines))
        (folder / "reward.py").write_text(REWARD)
        words = (*words, f"dataset={folder}/prompts.jsonl", f"reward_file={folder}/reward.py", "test_share=0.2")
    if variant == "assertions":
        make_folder(folder)
        rows = assertion_rows()
        (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
        words = (*words, f"dataset={folder}/rows.jsonl", "test_share=0.2")
    preset = SMOLLM2 if variant == SMOLLM2 else "nano"
    words = (f"preset={preset}", f"limit={POOL_PROBLEMS}", *words)
    words = ("curate", *words, f"name={folder}")
    with tempfile.TemporaryFile("w+") as output:
        try:
            code = stack.start(words, output).wait()
        finally:
            stack.kill()
        if code != 0:
            output.seek(0)
            raise RuntimeError(f"coderl {' '.join(words)} ended with {code}: {output.read()}")
    return folder


def assertion_rows() -> list[dict[str, Any]]:
    """data/mini's problems with a function, their tests as assert statements."""
    rows = []
    for file in sorted((PROJECT_ROOT / "data" / "mini").glob("*-train.jsonl")):
        for number, raw in enumerate(read_rows(file)):
            problem = problem_from_row(raw, split=file.stem.removesuffix("-train"), source_row=number)
            if problem.kind != "call":
                continue
            tests = [
                f"assert {problem.entry_point}({', '.join(map(repr, json.loads(test.input)))}) == "
                f"{json.loads(test.expected)!r}"
                for test in problem.tests
            ]
            starter_code = effective_starter_code(problem)
            rows.append({"problem": problem.statement, "tests": tests, "starter_code": starter_code})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="per variant (default: 50)")
    parser.add_argument("--steps", type=int, default=12, help="of a run (default: 12)")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="default: all but smollm2")
    parser.add_argument("--pool", type=Path, help="train on this one (default: one of 24 problems is made)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print a JSON line per variant instead of a table")
    arguments = parser.parse_args()
    outcomes = []
    with running() as stack, tempfile.TemporaryDirectory(prefix="training-kills-") as temporary:
        pools: dict[str, Path] = {}
        for name in arguments.variant or [name for name in VARIANTS if name != SMOLLM2]:
            data = name if name in ("assertions", "gsm8k", "custom", "unprofiled", SMOLLM2) else "code"
            stack.model = {"gsm8k": NANO_WORDS_MODEL, SMOLLM2: SMOLLM2_MODEL}.get(name, NANO_MODEL)
            pool = arguments.pool or pools.get(data) or make_pool(Path(temporary) / f"pool-{data}", stack, name)
            pools[data] = pool
            plan = Plan(name, arguments.kills, arguments.steps, arguments.seed, pool)
            outcomes.append(kill_and_compare(plan, stack, Path(temporary) / name))
            if arguments.json:
                print(json.dumps(outcomes[-1]), flush=True)
    if not arguments.json:
        show(outcomes, arguments.steps)
    failures = ("different", "steps_applied_twice", "recorded_asked_again", "past_cap")
    wasteful = any(outcome["unused"] > outcome["group"] for outcome in outcomes)
    idle = any(outcome["variant"] == "watched" and not outcome["held_back"] for outcome in outcomes) or any(
        outcome["variant"] in ("refill", "first", "all", "unprofiled") and not outcome["groups_refilled"]
        for outcome in outcomes
    )
    sys.exit(1 if idle or wasteful or any(outcome[name] for outcome in outcomes for name in failures) else 0)


def show(outcomes: list[dict[str, Any]], steps: int) -> None:
    table = Table(title=f"SIGKILL of run, Tinker server and sandbox; runs of {steps} steps")
    for title in outcomes[0]:
        table.add_column(title.replace("_", " "), justify="right")
    for outcome in outcomes:
        table.add_row(*(str(value or 0) for value in outcome.values()))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
