"""Tokens until a validation Pass@1 is reached: problems chosen by their pass rates against problems as they come.

    python benchmarks/curriculum.py --folder DIR [--data skewed mini] [--seeds 5] [--only ARM ...] [--table]
    python benchmarks/curriculum.py --folder DIR --pilot

nano is trained on data/skewed and on data/mini, in steps of 8 problems x 16 completions, by each of:

shuffle             all train problems, in shuffled passes
adaptive            all train problems, selection=adaptive, without a profile
curated pool        those that `coderl curate` keeps (adaptive profile, band 0.1 to 0.9), shuffled
open-r1 band        those of which 0.1 to 0.6 of 8 samples were right, shuffled
dynamic sampling    all train problems, shuffled, groups without a signal replaced (refill=2)
first 4             all train problems, shuffled, groups begun with 4 completions (first_completions=4)
adaptive, first 4   both

Profiles are replayed from recorded samples of nano, 16 per problem, in an order drawn from the seed; what they would
have sampled counts. Every third step the policy is evaluated greedily on the same 100 test problems, which no arm
trains on. A run ends after the first evaluation that reaches the data set's threshold, or after --steps. Thresholds
were fixed before any of these runs, by the pilot's: --pilot trains `shuffle` with a seed of its own to the end.

Counted are completion tokens: of the profile, and of all steps up to that evaluation. Evaluations are not counted, nor
prompts. Ratios to `shuffle` are paired by seed; intervals are 95%, by Student's t of the log ratios. A run that did not
reach the threshold counts with all its tokens, and its row says so. Of an arm that was not run the row has what its
profile alone would cost: the ratio is at least that.

Groups with signal are those that are trained on. Of a problem that is never solved, some of them only tell code from no
code; mixed groups have right completions and wrong ones. Begun are all groups; whole are those with 16 completions,
which with first_completions are fewer. What the others cost shows in the share of all completions that are in mixed
groups.

What DIR holds already is not done again. Seeds are outermost, and a seed's runs come in an order drawn from it. One
embedded Tinker server and one sandbox serve all.
"""

import argparse
import hashlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from adaptive_profiling import EIGHT_RULES, State, adaptive, stop_of
from overlap import servers
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from coderl_tasks.curation.stopping_rule import Band
from coderl_tasks.evaluation.pass_at_1 import evaluation_subset
from coderl_tasks.journal.atomic import make_folder, read_json, read_rows, write_parquet
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.problems import load_problems
from coderl_tasks.problems.problem import Problem, problems_frame
from coderl_tasks.settings import CurateSettings
from coderl_tasks.stats import student_t

WHOLE = 16
SIZES = ("problems_per_step=8", f"completions_per_problem={WHOLE}")
EVAL_EVERY, VALIDATION = 3, 100
PILOT_SEED = 1000
MINI_TOKENS = 45
"""Of a completion on data/mini, where each was not recorded: 206,068 in 4,618 (benchmarks/learning.md)."""


@dataclass(frozen=True)
class Data:
    """A data set, the Pass@1 to reach there, and nano's recorded samples of its train problems."""

    folder: Path
    threshold: float
    draws: Callable[[], "Draws"]


@dataclass(frozen=True)
class Draws:
    """By problem: whether each of 16 samples (16,) was right, and the tokens of each."""

    passed: dict[str, np.ndarray]
    tokens: dict[str, np.ndarray]


@dataclass(frozen=True)
class Arm:
    """How problems are chosen: the settings of the run, and how each problem is profiled before, if it is.

    `profile` takes the outcomes of 16 samples and says how many of them it looks at, and whether the problem is kept.
    """

    settings: tuple[str, ...] = ()
    profile: Callable[[np.ndarray], tuple[int, bool]] | None = None


def as_curated(passed: np.ndarray) -> tuple[int, bool]:
    state: State = stop_of(adaptive(), passed)
    band = Band(CurateSettings().band_low, CurateSettings().band_high)
    return state[1], band.has(*state)


def as_open_r1(passed: np.ndarray) -> tuple[int, bool]:
    return 8, EIGHT_RULES["0.1..0.6 of 8"](int(passed[:8].sum()))


ARMS = {
    "shuffle": Arm(),
    "adaptive": Arm(("selection=adaptive",)),
    "curated pool": Arm(profile=as_curated),
    "open-r1 band": Arm(profile=as_open_r1),
    "dynamic sampling": Arm(("refill=2",)),
    "first 4": Arm(("first_completions=4",)),
    "adaptive, first 4": Arm(("selection=adaptive", "first_completions=4")),
}


def skewed_draws() -> Draws:
    rows = list(read_rows(PROJECT_ROOT / "data/skewed/profile.jsonl"))
    return Draws(
        {row["problem_id"]: np.array([digit == "1" for digit in row["passed"]]) for row in rows},
        {row["problem_id"]: np.array(row["completion_tokens"]) for row in rows},
    )


def mini_draws() -> Draws:
    frame = pl.read_csv(Path(__file__).with_name("nano_draws.csv"), schema_overrides={"first": pl.String})
    passed = {
        name: np.array([digit == "1" for digit in text]) for name, text in frame["problem_id", "first"].iter_rows()
    }
    return Draws(passed, {name: np.full(len(row), MINI_TOKENS) for name, row in passed.items()})


DATA = {
    "skewed": Data(PROJECT_ROOT / "data/skewed", 0.80, skewed_draws),
    "mini": Data(PROJECT_ROOT / "data/mini", 0.80, mini_draws),
}


@dataclass(frozen=True)
class Bench:
    """Where everything is kept, and the most steps of a run."""

    folder: Path
    steps: int

    def seed(self, data: str, seed: int) -> Path:
        return self.folder / data / f"seed-{seed}"

    def run(self, data: str, arm: str, seed: int) -> Path:
        return self.seed(data, seed) / arm.replace(", ", "-").replace(" ", "-")

    def pool(self, data: str, arm: str, seed: int) -> Path:
        return self.run(data, arm, seed).with_suffix(".parquet")

    def validation(self, data: str) -> Path:
        return self.folder / data / "validation.parquet"


def profiled(data: str, arm: str, seed: int) -> tuple[set[str] | None, int]:
    """The problems that an arm's profile keeps (None: all, it has none), and its tokens."""
    rule = ARMS[arm].profile
    if rule is None:
        return None, 0
    draws, rng = DATA[data].draws(), np.random.default_rng(seed)
    kept, tokens = set(), 0
    for problem_id, passed in draws.passed.items():
        order = rng.permutation(len(passed))
        looked_at, keeps = rule(passed[order])
        tokens += int(draws.tokens[problem_id][order][:looked_at].sum())
        if keeps:
            kept.add(problem_id)
    return kept, tokens


def write_files(bench: Bench, data: str, arm: str, seed: int) -> None:
    """The validation problems, and an arm's pool."""
    make_folder(bench.seed(data, seed))
    source = str(DATA[data].folder)
    if not bench.validation(data).is_file():
        chosen = evaluation_subset(load_problems(source, role="test").problems, VALIDATION, seed=0)
        write_parquet(bench.validation(data), problems_frame(chosen))
    if not bench.pool(data, arm, seed).is_file():
        settings = CurateSettings(preset="nano")
        problems: list[Problem] = load_problems(source, role="train", max_tests=settings.max_tests).problems
        kept, _ = profiled(data, arm, seed)
        pool = [problem for problem in problems if kept is None or problem.problem_id in kept]
        write_parquet(bench.pool(data, arm, seed), problems_frame(pool))


def evaluations(run: Path) -> dict[int, float]:
    """Pass@1 by the number of steps before it."""
    summaries = [read_json(path) for path in run.glob("evals/*/summary.json")]
    for summary in summaries:
        if summary["infra_errors"]:
            raise ValueError(f"{run}: an evaluation lacks verdicts; remove the run and start again")
    return {summary["step"] + 1: summary["pass_at_1"] for summary in sorted(summaries, key=lambda one: one["step"])}


def end_of(run: Path, threshold: float, steps: int) -> int | None:
    """The steps after which a run has reached the threshold, or ended without; None if it has more to do."""
    found = evaluations(run)
    reached = [step for step, rate in found.items() if rate >= threshold]
    return min(reached) if reached else steps if steps in found else None


def train(bench: Bench, environment: dict[str, str], data: str, arm: str, seed: int, threshold: float) -> None:
    """Train until the threshold is reached, or to the last step. Raises RuntimeError if the command fails."""
    run = bench.run(data, arm, seed)
    words = (
        *("preset=nano", f"dataset={DATA[data].folder}", f"pool={bench.pool(data, arm, seed)}", f"log_path={run}"),
        *(f"evaluation_dataset={bench.validation(data)}", f"eval_every={EVAL_EVERY}", "eval.limit=-1"),
        *(*SIZES, f"seed={seed}", f"max_steps={bench.steps}", "save_every=0", *ARMS[arm].settings),
    )
    log = run.with_suffix(".log")
    with log.open("a") as output:
        command = [sys.executable, "-m", "coderl_tasks.cli", "train", *words]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and end_of(run, threshold, bench.steps) is None:
                time.sleep(0.5)
        finally:
            # What is recorded is all that is needed. A finished run may still write its report.
            if process.poll() is None:
                process.kill()
            process.wait()
    if end_of(run, threshold, bench.steps) is None:
        raise RuntimeError(f"ended with {process.returncode}: {log.read_text()[-2000:]}")


@dataclass(frozen=True)
class Result:
    """Of one run: steps and tokens until it reached the threshold (or ended), tokens of the profile, per step the share
    of groups with a signal, the share of mixed ones, that among whole groups and that of the completions in mixed ones,
    and the last evaluation."""

    steps: int
    reached: bool
    tokens: int
    profile_tokens: int
    signal: tuple[float, ...]
    mixed: tuple[float, ...]
    mixed_of_whole: tuple[float, ...]
    completions_mixed: tuple[float, ...]
    pass_at_1: float

    @property
    def total(self) -> int:
        return self.tokens + self.profile_tokens


def result(bench: Bench, data: str, arm: str, seed: int) -> Result | None:
    """None if the run is not done."""
    run, threshold = bench.run(data, arm, seed), DATA[data].threshold
    steps = end_of(run, threshold, bench.steps)
    if steps is None:
        return None
    rows = {row["step"]: row for row in read_rows(run / "metrics.jsonl") if "groups_total" in row}
    files = [run / "steps" / f"{step:06d}" / "scored.parquet" for step in range(steps)]
    last = evaluations(run)[steps]
    right = pl.col("correctness_score") == 1.0
    rollouts = pl.scan_parquet(files)
    groups = rollouts.group_by("step", "group_index").agg(mixed=right.any() & ~right.all(), size=pl.len())

    def by_step(groups: pl.LazyFrame, share: pl.Expr) -> tuple[float, ...]:
        return tuple(groups.group_by("step").agg(share.alias("share")).sort("step").collect()["share"])

    mixed, size = pl.col("mixed"), pl.col("size")

    return Result(
        steps,
        last >= threshold,
        rollouts.select(pl.col("completion_tokens").list.len().sum()).collect().item(),
        profiled(data, arm, seed)[1],
        tuple(1 - rows[step]["groups_skipped"] / rows[step]["groups_total"] for step in range(steps)),
        by_step(groups, mixed.mean()),
        by_step(groups.filter(size == WHOLE), mixed.mean()),
        by_step(groups, size.filter(mixed).sum() / size.sum()),
        last,
    )


def run_all(bench: Bench, data: Sequence[str], arms: Sequence[str], seeds: int) -> int:
    """Train what is missing; how many runs failed."""
    failed = 0
    with servers() as environment:
        for seed in range(seeds):
            for name in data:
                for arm in sorted(arms, key=lambda arm: hashlib.sha256(f"{seed} {arm}".encode()).digest()):
                    if result(bench, name, arm, seed) is not None:
                        continue
                    begun = time.monotonic()
                    write_files(bench, name, arm, seed)
                    try:
                        train(bench, environment, name, arm, seed, DATA[name].threshold)
                    except RuntimeError as error:
                        failed += 1
                        print(f"{name}, {arm}, seed {seed}: {error}", flush=True)
                        continue
                    found = result(bench, name, arm, seed)
                    assert found is not None
                    print(
                        f"{name}, {arm}, seed {seed}: {found.pass_at_1:.0%} after {found.steps} steps, "
                        f"{found.total:,} tokens, {statistics.fmean(found.signal):.0%} of the groups with signal, "
                        f"{time.monotonic() - begun:.0f} s",
                        flush=True,
                    )
    return failed


def ratio_cell(tokens: Sequence[int], first: Sequence[int]) -> str:
    """Tokens over those of the first arm: the median, and the geometric mean with its interval."""
    logs = [math.log(one / other) for one, other in zip(tokens, first, strict=True)]
    median = math.exp(statistics.median(logs))
    if len(logs) < 2:
        return f"{median:.2f}"
    mean = statistics.fmean(logs)
    half = student_t(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{median:.2f}; {math.exp(mean):.2f} [{math.exp(mean - half):.2f}, {math.exp(mean + half):.2f}]"


def table(bench: Bench, data: str, seeds: int) -> Table | None:
    """What is there of a data set, of the seeds that both an arm and `shuffle` have; None without any."""
    found = {arm: {seed: result(bench, data, arm, seed) for seed in range(seeds)} for arm in ARMS}
    done = {arm: {seed: one for seed, one in rows.items() if one is not None} for arm, rows in found.items()}
    if not done["shuffle"]:
        return None
    shown = Table(
        title=f"{data}: tokens to a Pass@1 of {DATA[data].threshold:.0%} on {VALIDATION} problems, at most "
        f"{bench.steps} steps",
        box=MARKDOWN,
        title_justify="left",
    )
    headings = ("arm", "reached", "steps", "thousand tokens", "profile", "ratio to shuffle", "groups with signal")
    mixed = (
        "mixed of those begun",
        "in the first, last third of the steps",
        "mixed of those whole",
        "completions in mixed groups",
    )
    for heading in (*headings, *mixed, "Pass@1 at the end"):
        shown.add_column(heading, no_wrap=True)
    for arm in ARMS:
        seeds_of = [seed for seed in done[arm] if seed in done["shuffle"]]
        results = [done[arm][seed] for seed in seeds_of]
        if results:
            ratio = ratio_cell([one.total for one in results], [done["shuffle"][seed].total for seed in seeds_of])
            shown.add_row(arm, *cells(results, "" if arm == "shuffle" else ratio))
        elif ARMS[arm].profile is not None:
            costs = [profiled(data, arm, seed)[1] for seed in done["shuffle"]]
            ratio = ratio_cell(costs, [one.total for one in done["shuffle"].values()])
            shown.add_row(arm, "not run", "", "", f"{statistics.fmean(costs) / 1000:.0f}", f"at least {ratio}")
    return shown


def cells(results: Sequence[Result], ratio: str) -> list[str]:
    """Of the runs of an arm: where there is a number per seed, in the order of the seeds."""
    thirds = [max(1, len(one.mixed) // 3) for one in results]
    first = statistics.fmean(statistics.fmean(one.mixed[:third]) for one, third in zip(results, thirds, strict=True))
    last = statistics.fmean(statistics.fmean(one.mixed[-third:]) for one, third in zip(results, thirds, strict=True))
    return [
        f"{sum(one.reached for one in results)} of {len(results)}",
        " ".join(str(one.steps) for one in results),
        " ".join(f"{one.total / 1000:.0f}" for one in results),
        f"{statistics.fmean(one.profile_tokens for one in results) / 1000:.0f}",
        ratio,
        f"{statistics.fmean(statistics.fmean(one.signal) for one in results):.0%}",
        f"{statistics.fmean(statistics.fmean(one.mixed) for one in results):.0%}",
        f"{first:.0%}, {last:.0%}",
        f"{statistics.fmean(statistics.fmean(one.mixed_of_whole) for one in results):.0%}",
        f"{statistics.fmean(statistics.fmean(one.completions_mixed) for one in results):.0%}",
        " ".join(f"{100 * one.pass_at_1:.0f}" for one in results),
    ]


def pilot(bench: Bench, data: Sequence[str]) -> None:
    with servers() as environment:
        for name in data:
            write_files(bench, name, "shuffle", PILOT_SEED)
            run = bench.run(name, "shuffle", PILOT_SEED)
            train(bench, environment, name, "shuffle", PILOT_SEED, threshold=2)
            print(name, json.dumps(evaluations(run)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where pools and runs are kept, and looked for")
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=24, help="of a run, at most (default: 24)")
    parser.add_argument("--only", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM")
    parser.add_argument("--table", action="store_true", help="train nothing, print what is there")
    parser.add_argument("--pilot", action="store_true", help="the run that the thresholds were chosen by")
    options = parser.parse_args()
    bench = Bench(options.folder.resolve(), options.steps)
    if options.pilot:
        pilot(bench, options.data)
        return
    failed = 0 if options.table else run_all(bench, options.data, options.only, options.seeds)
    for data in options.data:
        shown = table(bench, data, options.seeds)
        if shown is not None:
            Console(width=400).print(shown)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
