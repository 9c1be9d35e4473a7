"""What each method does to nano: estimators, losses, epochs over a step, rules for truncated completions, environments.

    python benchmarks/methods.py --folder DIR [--seeds 3] [--steps 16] [--problems 200] [--only NAME ...]
                                 [--table] [--list]

Each configuration is trained with each seed for so many steps of 8 problems x 16 completions, all from one base model
on one pool, and evaluated greedily on the same test problems of its environment; so is the base model, once. One
embedded Tinker server and one sandbox serve all runs on a base model. The runs of a seed come in an order drawn from
it, so that what else the machine does meets all configurations alike.

What DIR holds already is not done again: a start that was stopped goes on, and a configuration added here is trained
beside the others. --table only prints what is there; --list names the configurations.

Printed is a table (markdown) per group of configurations, which differ from their first one in one thing. Intervals are
95%, over seeds and problems both (`stats.crossed_interval`); differences are paired, by seed and by problem. Exit code
1 if a run failed: its output is printed, and the others go on.
"""

import argparse
import hashlib
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from overlap import coderl, servers
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from coderl_tasks.journal.atomic import make_folder, read_rows
from coderl_tasks.paths import MINI_DATASET, PROJECT_ROOT
from coderl_tasks.prompts.renderers import question_text
from coderl_tasks.settings import EvaluateSettings
from coderl_tasks.stats import crossed_interval, wilson_interval

OFF_POLICY = ("epochs_per_rollout_batch=2", "train_batch_size=64")
"""Four optimizer steps per step. With a single one the policy that is updated is the one that sampled, all importance
ratios are 1, and the losses have one gradient."""
SHORT = "max_tokens=56"
"""A limit that cuts a fifth of nano's completions off."""
WORDS = ("environment=gsm8k", "loss_fn=ppo", "advantage=std_normalised")
"""The GRPO notebook's loss and advantages."""
REWARD = '''"""1 for the reference program as it is, up to a half for one that resembles it."""

import difflib


def compute_reward(completion: str, ground_truth: str) -> float:
    program = completion.partition("```python\\n")[2].partition("```")[0].split()
    wanted = ground_truth.split()
    if program == wanted:
        return 1.0
    return 0.5 * difflib.SequenceMatcher(None, program, wanted).ratio()
'''
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "Advantages": {
        "mean_centred": (),
        "std_normalised": ("advantage=std_normalised",),
        "leave_one_out": ("advantage=leave_one_out",),
    },
    "MaxRL": {
        "mean_centred-no-format": ("format_coef=0",),
        "maxrl": ("advantage=maxrl", "format_coef=0"),
    },
    "Losses off-policy": {
        "importance_sampling-4": OFF_POLICY,
        "ppo-4": ("loss_fn=ppo", *OFF_POLICY),
        "cispo-4": ("loss_fn=cispo", *OFF_POLICY),
        "cispo-4-upper": ("loss_fn=cispo", "loss.clip_low=0", *OFF_POLICY),
        "gspo-4": ("loss_fn=gspo", *OFF_POLICY),
        "dro-4": ("loss_fn=dro", *OFF_POLICY),
    },
    "Staleness": {
        "lag-0": (),
        "lag-1": ("max_steps_off_policy=1",),
        "lag-2": ("max_steps_off_policy=2",),
        "lag-4": ("max_steps_off_policy=4",),
        "lag-4-cispo": ("max_steps_off_policy=4", "loss_fn=cispo"),
        "lag-4-importance_sampling": ("max_steps_off_policy=4", "loss_fn=importance_sampling"),
    },
    "Epochs": {
        "ppo-2": ("loss_fn=ppo", "train_batch_size=64"),
        "ppo-4": ("loss_fn=ppo", *OFF_POLICY),
        "ppo-8": ("loss_fn=ppo", "epochs_per_rollout_batch=4", "train_batch_size=64"),
    },
    "More steps, or longer ones": {
        "mean_centred": (),
        "rate-2e-3": ("learning_rate=2e-3",),
        "ppo-2": ("loss_fn=ppo", "train_batch_size=64"),
    },
    "Truncated completions": {
        "graded": (SHORT,),
        "masked": (SHORT, "truncation=masked"),
        "penalised": (SHORT, "truncation=penalised"),
    },
    "Refill": {
        "mean_centred": (),
        "refill": ("refill=2.0",),
    },
    "Losses on-policy": {
        "mean_centred": (),
        "ppo": ("loss_fn=ppo",),
        "cispo": ("loss_fn=cispo",),
        "gspo": ("loss_fn=gspo",),
        "dro": ("loss_fn=dro",),
    },
    "Word problems": {
        "words-on-policy": WORDS,
        "words-off-policy": (*WORDS, "epochs_per_rollout_batch=4", "train_batch_size=64"),
        "words-off-policy-slow": (*WORDS, "epochs_per_rollout_batch=4", "train_batch_size=64", "learning_rate=2.5e-4"),
    },
    "A reward of one's own": {
        "own-reward": ("environment=custom",),
    },
}
"""By group, configurations and their settings; the others are compared with the first. One that is in two groups is
trained once. A number at the end of a name is the optimizer steps per step."""
CONFIGURATIONS = {name: words for group in GROUPS.values() for name, words in group.items()}


@dataclass(frozen=True)
class Bench:
    """Where everything is kept, and the size of each run."""

    folder: Path
    steps: int
    problems: int

    def run(self, name: str, seed: int) -> Path:
        return self.folder / name / f"seed-{seed}"

    def after(self, name: str, seed: int) -> Path:
        """The folder of a run's evaluation after its steps."""
        return self.run(name, seed) / "evals" / f"greedy-after-{self.steps}"

    def environment(self, name: str) -> Path:
        """The folder of what configurations of one environment share: their pool, and their base model's evaluation."""
        return self.folder / f"environment-{environment_of(name)}"

    def common(self, name: str) -> tuple[str, ...]:
        """The settings that every command of a configuration has, evaluations and curations too."""
        kind = environment_of(name)
        custom = (f"reward_file={self.environment(name)}/reward.py",) if kind == "custom" else ()
        return ("preset=nano", f"environment={kind}", *custom)

    def data(self, name: str) -> tuple[str, ...]:
        """The settings that say what a pool is made of and a base model evaluated on, where it is not the preset's."""
        folder = self.environment(name)
        return (f"dataset={folder}/prompts.jsonl", "test_share=0.3") if environment_of(name) == "custom" else ()


def environment_of(name: str) -> str:
    words = dict(word.split("=", 1) for word in CONFIGURATIONS[name])
    return words.get("environment", "code")


def measured_with(name: str) -> EvaluateSettings:
    """The preset's settings for an evaluation: all of one environment are measured alike, however they were trained."""
    kind = environment_of(name)
    # A custom environment takes the same model and limit as programs do, and needs a file to be one.
    return EvaluateSettings.model_validate({"preset": "nano", "environment": "code" if kind == "custom" else kind})


def write_custom_files(folder: Path) -> None:
    """Prompts for the programs of data/mini, each with one right program as its ground truth, and the reward."""
    make_folder(folder)
    files = sorted((PROJECT_ROOT / MINI_DATASET).glob("*-train.jsonl"))
    rows = [row for file in files for row in read_rows(file) if row.get("solutions")]
    prompts = [{"prompt": question_text(row["problem"], ""), "ground_truth": row["solutions"][0]} for row in rows]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    (folder / "reward.py").write_text(REWARD)


@dataclass(frozen=True)
class Result:
    """One run: whether each test problem was solved, by problem; tokens sampled, optimizer steps and seconds of its
    steps, and of its completions the share that was right, of its groups the share that were trained on."""

    solved: dict[str, bool]
    tokens: int
    updates: int
    seconds: float
    right: float
    with_signal: float


def solved(evaluation: Path) -> dict[str, bool]:
    """Whether each problem of a finished evaluation was solved. Raises ValueError if one could not be graded."""
    rollouts = pl.read_parquet(evaluation / "rollouts.parquet", columns=["split", "problem_id", "correctness_score"])
    if rollouts["correctness_score"].null_count():
        raise ValueError(f"{evaluation}: not every completion was graded; remove it and start again")
    return {f"{split}/{problem}": score == 1.0 for split, problem, score in rollouts.iter_rows()}


def result(bench: Bench, name: str, seed: int) -> Result:
    run, steps = bench.run(name, seed), range(bench.steps)
    rows = [row for row in read_rows(run / "metrics.jsonl") if "groups_total" in row and row["step"] in steps]
    files = [run / "steps" / f"{step:06d}" / "scored.parquet" for step in steps]
    groups = sum(row["groups_total"] for row in rows)
    return Result(
        solved(bench.after(name, seed)),
        pl.scan_parquet(files).select(pl.col("completion_tokens").list.len().sum()).collect().item(),
        sum(row["n_updates"] for row in rows),
        sum(row["time_step_s"] for row in rows),
        statistics.fmean(row["mean_correct"] for row in rows),
        1 - sum(row["groups_skipped"] for row in rows) / groups,
    )


def evaluate(bench: Bench, environment: dict[str, str], name: str, checkpoint: str, folder: Path) -> None:
    same = (f"max_tokens={measured_with(name).max_tokens}", f"eval_limit={bench.problems}", "seed=0")
    settings = (*bench.common(name), *bench.data(name), *same)
    coderl(environment, "evaluate", *settings, f"checkpoint={checkpoint}", f"log_path={folder}")


def prepare(bench: Bench, environment: dict[str, str], name: str) -> None:
    """The pool of a configuration's environment, and the evaluation of its base model."""
    folder = bench.environment(name)
    if environment_of(name) == "custom" and not (folder / "reward.py").is_file():
        write_custom_files(folder)
    if not (folder / "pool" / "manifest.json").is_file():
        coderl(environment, "curate", *bench.common(name), *bench.data(name), f"name={folder / 'pool'}")
    if not (folder / "before" / "summary.json").is_file():
        evaluate(bench, environment, name, measured_with(name).model_name, folder / "before")


def train(bench: Bench, environment: dict[str, str], name: str, seed: int) -> None:
    run = bench.run(name, seed)
    settings = (*CONFIGURATIONS[name], f"pool={bench.environment(name) / 'pool'}", f"seed={seed}")
    words = {word.partition("=")[0]: word for word in (*bench.common(name), *settings)}
    length = (f"max_steps={bench.steps}", "eval_every=-1")
    coderl(environment, "train", *words.values(), *length, f"log_path={run}")
    evaluate(bench, environment, name, str(run), bench.after(name, seed))


def run_all(bench: Bench, names: Sequence[str], seeds: int) -> int:
    """Train and evaluate what is missing; how many runs failed."""
    failed = 0
    for model in dict.fromkeys(measured_with(name).model_name for name in names):
        of_model = [name for name in names if measured_with(name).model_name == model]
        missing = [
            (name, seed)
            for seed in range(seeds)
            for name in sorted(of_model, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
            if not (bench.after(name, seed) / "summary.json").is_file()
        ]
        if not missing:
            continue
        with servers(model) as environment:
            for name, seed in missing:
                try:
                    prepare(bench, environment, name)
                    train(bench, environment, name, seed)
                except RuntimeError as error:
                    failed += 1
                    print(f"{name}, seed {seed}: {error}", flush=True)
                    continue
                found = result(bench, name, seed)
                share = statistics.fmean(found.solved.values())
                print(f"{name}, seed {seed}: {share:.1%} after {found.seconds:.0f} s of training", flush=True)
    return failed


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def compared_row(results: Sequence[Result], first: Sequence[Result]) -> list[str]:
    """The cells of a configuration, beside those of the one that it is compared with. Seeds pair in their order."""
    problems = sorted(results[0].solved)
    scores = [[float(one.solved[problem]) for problem in problems] for one in results]
    cells = [" ".join(f"{100 * statistics.fmean(row):.1f}" for row in scores)]
    if len(results) < 2:
        return [percent(statistics.fmean(scores[0])), *cells, ""]
    after = crossed_interval(scores)
    cells = [f"{percent(after.estimate)} [{100 * after.low:.1f}, {min(100 * after.high, 100):.1f}]", *cells]
    pairs = list(zip(results, first, strict=False))
    if results is first or len(pairs) < 2:
        return [*cells, ""]
    deltas = [[float(one.solved[p]) - float(other.solved[p]) for p in problems] for one, other in pairs]
    gain = crossed_interval(deltas)
    return [*cells, f"{100 * gain.estimate:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"]


def group_table(bench: Bench, group: str, seeds: int) -> Table | None:
    """What is there of a group of configurations; None without its first one."""
    found: dict[str, list[Result]] = {}
    for name in GROUPS[group]:
        there = [seed for seed in range(seeds) if (bench.after(name, seed) / "summary.json").is_file()]
        if there and there == list(range(len(there))):
            found[name] = [result(bench, name, seed) for seed in there]
    first_name = next(iter(GROUPS[group]))
    if first_name not in found:
        return None
    before = solved(bench.environment(first_name) / "before")
    interval = wilson_interval(sum(before.values()), len(before))
    table = Table(
        title=f"{group}: {bench.steps} steps; Pass@1 of {len(before)} problems before: "
        f"{percent(statistics.fmean(before.values()))} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]",
        box=MARKDOWN,
        title_justify="left",
    )
    means: dict[str, Callable[[Result], float]] = {
        "right in training": lambda one: one.right,
        "groups with signal": lambda one: one.with_signal,
    }
    totals: dict[str, Callable[[Result], float]] = {
        "tokens sampled": lambda one: one.tokens,
        "optimizer steps": lambda one: one.updates,
        "seconds": lambda one: one.seconds,
    }
    for heading in ("configuration", "settings", "Pass@1 after", "by seed", "difference", *means, *totals):
        table.add_column(heading, no_wrap=True)
    for name, results in found.items():
        table.add_row(
            name,
            " ".join(f"`{word}`" for word in GROUPS[group][name]),
            *compared_row(results, found[first_name]),
            *(percent(statistics.fmean(map(of, results))) for of in means.values()),
            *(f"{statistics.fmean(map(of, results)):,.0f}" for of in totals.values()),
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where pools and runs are kept, and looked for")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16, help="of each run (default: 16)")
    parser.add_argument("--problems", type=int, default=200, help="of each evaluation, -1: all (default: 200)")
    parser.add_argument("--only", nargs="+", choices=CONFIGURATIONS, metavar="NAME", help="default: all configurations")
    parser.add_argument("--table", action="store_true", help="train nothing, print what is there")
    parser.add_argument("--list", action="store_true", help="print the configurations and their settings")
    options = parser.parse_args()
    if options.list:
        print(json.dumps(GROUPS, indent=2))
        return
    if options.folder is None:
        parser.error("--folder is needed")
    bench = Bench(options.folder.resolve(), options.steps, options.problems)
    failed = 0 if options.table else run_all(bench, options.only or list(CONFIGURATIONS), options.seeds)
    for group in GROUPS:
        table = group_table(bench, group, options.seeds)
        if table is not None:
            Console(width=400).print(table)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
