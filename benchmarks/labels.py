"""What few samples say: difficulty labels, their agreement with 16 fresh samples, and what profile_mode=screen loses.

    python benchmarks/labels.py [--draws benchmarks/nano_draws.csv]
    python benchmarks/labels.py --screen
    python benchmarks/labels.py --record FOLDER

No model runs: outcomes are replayed. Those of nano on data/mini are recorded in nano_draws.csv, 16 and 16 more of
another seed for each train problem, in their order (--record reads them from FOLDER, where adaptive_profiling.py --nano
has sampled them), those on data/skewed likewise in its profile.jsonl. Simulated sets have 5 x 1000 problems: U shapes,
and a skewed set of 55% never solved, 15% always and 30% Beta(1.2, 1.2).

samples     per problem, on average, of at most 16; "+ 2" is label_samples=2
agree       problems, all and those kept by the band of 0.1 to 0.9, whose label is the one that the mean of 16 fresh
            samples has
mean        the same for labels by the samples' mean, as they were before they had a prior
two of 16   what the means of two sets of 16 samples agree on, of the same problems
said        the label's probability, and how often it is the true one: known of simulated problems only. Of nano it is
            the chance that 16 fresh samples have that label, and how often they do.

--screen replays the recorded samples of data/skewed (profile.jsonl) and data/mini (nano_draws.csv), in an order of each
seed, by each profile_mode. A problem is learnable if 2 to 14 of its 16 samples pass, which is what fixed keeps. Means
over seeds, [least, most]; "said" is what the manifest expects of the same number, and "by 16 others" counts those of
which 2 to 14 of 16 samples of another seed pass, which fixed does not all keep either.
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import comb
from pathlib import Path

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

from coderl_tasks.curation.labels import RATES, Prior, learn_prior, rules_for_labels, with_labels
from coderl_tasks.curation.screen import DROP_BELOW, SKIP_BELOW, Screen
from coderl_tasks.curation.stopping_rule import Band, StoppingRule, difficulty
from coderl_tasks.paths import DATA
from coderl_tasks.problems import Problem, load_problems
from coderl_tasks.problems.profile_columns import SHARD_SCHEMA
from coderl_tasks.rollouts.rounds import SamplingPlan

RULE = StoppingRule(Band(0.1, 0.9))
N = 16
PLAN = SamplingPlan(N, 2, RULE)
BUDGETS = (0, 1, 2, 3, 4, 6)
FIXED = (2, 4, 8, 16)
SAID = (0.0, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.001)
REPEATS, SIZE = 5, 1000
DRAWS = Path(__file__).with_name("nano_draws.csv")
ONE_ROUND = SamplingPlan(2, 2)
OTHER_LIMITS = ((0.1, 0.05), (0.2, 0.15))


@dataclass(frozen=True)
class Set:
    """Problems with outcomes (P, 16), those of fresh samples (P, 16), and the true rates (P,) if they are known."""

    problems: pl.DataFrame
    first: np.ndarray
    fresh: np.ndarray
    rates: np.ndarray | None = None


@dataclass(frozen=True)
class Labelled:
    """By problem (P,): samples, whether it is kept, its label, those by means; what is said, and if it is right."""

    samples: np.ndarray
    kept: np.ndarray
    label: np.ndarray
    by_mean: np.ndarray
    first: np.ndarray
    fresh: np.ndarray
    said: np.ndarray
    right: np.ndarray


def by_mean(passes: np.ndarray, samples: np.ndarray | int) -> np.ndarray:
    return np.array([difficulty(rate) for rate in passes / samples])


def simulated(shape: str) -> Iterator[Set]:
    for seed in range(REPEATS):
        generator = np.random.default_rng(seed)
        if shape == "skewed":
            inner = generator.beta(1.2, 1.2, SIZE)
            part = generator.uniform(size=SIZE)
            rates = np.where(part < 0.55, 0.0, np.where(part < 0.7, 1.0, inner))
        else:
            alpha, beta = (float(number) for number in shape.split(","))
            rates = generator.beta(alpha, beta, SIZE)
        lengths = generator.integers(50, 500, SIZE)
        problems = pl.DataFrame(
            {"problem_id": [str(place) for place in range(SIZE)], "split": "all", "prompt_tokens": lengths}
        )
        first, fresh = generator.uniform(size=(2, SIZE, N)) < rates[:, None]
        yield Set(problems, first, fresh, rates)


def nano(file: Path) -> Iterator[Set]:
    """The recorded problems, twice: either 16 are fresh to the other."""
    frame = pl.read_csv(file, schema_overrides={"first": pl.String, "second": pl.String})
    problems = frame.select("problem_id", "split", "prompt_tokens")
    first, second = (np.array([[c == "1" for c in row] for row in frame[name]]) for name in ("first", "second"))
    yield Set(problems, first, second)
    yield Set(problems, second, first)


def skewed() -> Iterator[Set]:
    """The recorded problems of data/skewed, likewise."""
    frame = pl.read_ndjson(DATA / "skewed" / "profile.jsonl")
    problems = frame.select("problem_id", "split", "prompt_tokens")
    first, second = (np.array([[c == "1" for c in row] for row in frame[name]]) for name in ("passed", "again"))
    yield Set(problems, first, second)
    yield Set(problems, second, first)


def profile_of(data: Set, plan: SamplingPlan) -> pl.DataFrame:
    """What `plan` samples of the first outcomes."""
    rows = []
    for problem, outcomes in zip(data.problems.iter_rows(named=True), data.first, strict=True):
        n = k = 0
        for size in plan.round_sizes:
            n += size
            k = int(outcomes[:n].sum())
            if plan.is_enough(k, n, problem["problem_id"]):
                break
        rows.append(problem | {"n_samples": n, "n_correct": k, "infra_errors": 0})
    return pl.DataFrame(rows, schema=SHARD_SCHEMA)


def labelled(data: Set, plan: SamplingPlan, budget: float = 0.0) -> Labelled:
    profile = profile_of(data, plan)
    if budget:
        rules, _ = rules_for_labels(profile, learn_prior(profile), plan, RULE, budget * len(profile))
        profile = profile_of(data, replace(plan, rules=rules))
    prior = learn_prior(profile)
    frame = with_labels(profile, prior)
    passes, samples = frame["n_correct"].to_numpy(), frame["n_samples"].to_numpy()
    label, fresh = frame["difficulty"].to_numpy(), by_mean(data.fresh.sum(axis=1), N)
    if data.rates is None:
        said, right = chance_of_16(frame, prior), label == fresh
    else:
        said, right = frame["difficulty_probability"].to_numpy(), label == np.array([*map(difficulty, data.rates)])
    return Labelled(
        samples,
        np.array([RULE.band.has(k, n) for k, n in zip(passes, samples, strict=True)]),
        label,
        by_mean(passes, samples),
        by_mean(data.first.sum(axis=1), N),
        fresh,
        said,
        right,
    )


def chance_of_16(frame: pl.DataFrame, prior: Prior) -> np.ndarray:
    """The chance (P,) that the mean of 16 fresh samples has the problem's label."""
    has = {
        name: sum(comb(N, k) * RATES**k * (1 - RATES) ** (N - k) for k in range(N + 1) if difficulty(k / N) == name)
        for name in ("hard", "medium", "easy")
    }
    chances = []
    for row in frame.iter_rows(named=True):
        k, n = row["n_correct"], row["n_samples"]
        by_rate = (
            prior.distribution(prior.group(row["split"], row["prompt_tokens"])) * RATES**k * (1 - RATES) ** (n - k)
        )
        chances.append(float(by_rate @ has[row["difficulty"]] / by_rate.sum()))
    return np.array(chances)


def together(parts: list[Labelled]) -> Labelled:
    return Labelled(*(np.concatenate([getattr(part, name) for part in parts]) for name in Labelled.__annotations__))


def tables(name: str, sets: list[Set]) -> Iterator[Table]:
    plans: dict[str, tuple[SamplingPlan, float]] = {str(n): (SamplingPlan(n, n), 0.0) for n in FIXED}
    plans |= {f"adaptive{f' + {budget}' if budget else ''}": (PLAN, budget) for budget in BUDGETS}
    agreement = Table(title=f"{name}: agreement with 16 fresh samples")
    for title in ("samples", "mean number", "agree", "mean", "two of 16", "kept: agree", "mean", "two of 16", "behind"):
        agreement.add_column(title, justify="left" if title == "samples" else "right")
    reliability = Table(title=f"{name}: how often a label is right, by what is said of it")
    reliability.add_column("samples")
    for low, high in pairwise(SAID):
        reliability.add_column(f"{low:g} to {min(high, 1):g}", justify="right")
    for title, (plan, budget) in plans.items():
        of = together([labelled(data, plan, budget) for data in sets])
        cells = [f"{of.samples.mean():.1f}"]
        behind = 0.0
        for part in (np.full(len(of.kept), True), of.kept):
            fresh = of.fresh[part]
            shares = [float((labels[part] == fresh).mean()) for labels in (of.label, of.by_mean, of.first)]
            cells += [f"{share:.1%}" for share in shares]
            behind = shares[2] - shares[0]
        agreement.add_row(title, *cells, f"{100 * behind:.1f}")
        cells = []
        for low, high in pairwise(SAID):
            part = (of.said >= low) & (of.said < high)
            enough = part.sum() >= 20
            cells.append(f"{of.said[part].mean():.2f}: {of.right[part].mean():.2f} ({part.sum()})" if enough else "")
        reliability.add_row(title, *cells)
    yield from (agreement, reliability)


@dataclass(frozen=True)
class Screening:
    """What a rule did with the samples of one seed: how many it took of 16 per problem, and counts of problems."""

    share: float
    unsampled: int
    kept: int
    kept_learnable: int
    lost: int
    lost_unsampled: int
    said_lost: float
    lost_by_others: int


def recorded_profiles() -> Iterator[tuple[str, list[Problem], list[int], np.ndarray, np.ndarray]]:
    """Data sets: the train problems, their prompts' tokens, and twice 16 recorded outcomes of each (P, 16)."""
    for name, sets in (("skewed", skewed()), ("mini", nano(DRAWS))):
        data = next(sets)
        by_id = {problem.problem_id: problem for problem in load_problems(str(DATA / name), role="train").problems}
        problems = [by_id[problem_id] for problem_id in data.problems["problem_id"]]
        yield f"data/{name}", problems, data.problems["prompt_tokens"].to_list(), data.first, data.fresh


def in_order_of(seed: int, outcomes: np.ndarray) -> np.ndarray:
    """The recorded outcomes (P, 16), those of each problem in another order: other two come first."""
    return np.random.default_rng(seed).permuted(outcomes, axis=1)


def replayed(problems: list[Problem], tokens: list[int], outcomes: np.ndarray, plan: SamplingPlan) -> pl.DataFrame:
    columns = {"problem_id": [p.problem_id for p in problems], "split": [p.split for p in problems]}
    frame = pl.DataFrame(columns | {"prompt_tokens": tokens})
    return profile_of(Set(frame, outcomes, outcomes), plan)


def screening(
    problems: list[Problem], tokens: list[int], outcomes: np.ndarray, seed: int, skip: float
) -> tuple[np.ndarray, np.ndarray]:
    """What profile_mode=screen does with these outcomes: by problem (P,) whether it is sampled, twice then, and the
    chance that it is learnable."""
    screen = Screen(problems, tokens, RULE.band, N, seed)
    place = {problem.problem_id: number for number, problem in enumerate(problems)}
    wanted: list[int] = []
    profile = pl.DataFrame(schema=SHARD_SCHEMA)
    for part in screen.parts():
        worth, _ = screen.split(part, profile, skip)
        wanted = sorted([*wanted, *(place[problem.problem_id] for problem in worth)])
        chosen = [problems[number] for number in wanted], [tokens[number] for number in wanted], outcomes[wanted]
        profile = replayed(*chosen, SamplingPlan(2, 2))
    return np.isin(np.arange(len(problems)), wanted), np.array(list(screen.beliefs(profile).chances.values()))


def screened(
    problems: list[Problem],
    tokens: list[int],
    outcomes: np.ndarray,
    others: np.ndarray,
    seed: int,
    skip: float,
    drop: float,
) -> Screening:
    """What comes of profile_mode=screen with these outcomes."""
    is_sampled, chances = screening(problems, tokens, outcomes, seed, skip)
    return outcome_of(outcomes, others, 2.0 * is_sampled, is_sampled & (chances >= drop), chances)


def outcome_of(
    outcomes: np.ndarray, others: np.ndarray, samples: np.ndarray, kept: np.ndarray, chances: np.ndarray | None = None
) -> Screening:
    learnable, by_others = (
        np.array([RULE.band.has(int(passes), N) for passes in draws.sum(axis=1)]) for draws in (outcomes, others)
    )
    unsampled = samples == 0
    return Screening(
        float(samples.sum() / outcomes.size),
        int(unsampled.sum()),
        int(kept.sum()),
        int((kept & learnable).sum()),
        int((learnable & ~kept).sum()),
        int((learnable & unsampled).sum()),
        float("nan") if chances is None else float(chances[~kept].sum()),
        int((by_others & ~kept).sum()),
    )


def screen_tables(seeds: int) -> Iterator[Table]:
    for name, problems, tokens, recorded, others in recorded_profiles():
        columns = ("mode", "samples", "unsampled", "kept", "of them learnable", "learnable lost", "of them unsampled")
        table = Table(title=f"{name}: {len(problems)} problems, {seeds} seeds")
        for title in (*columns, "lost, said", "lost, by 16 others"):
            table.add_column(title, justify="left" if title == "mode" else "right")
        found: dict[str, list[Screening]] = {}
        for seed in range(seeds):
            outcomes = in_order_of(seed, recorded)
            for mode, plan in (("fixed", SamplingPlan(N, N)), ("adaptive", PLAN), ("2 of each, 1 passes", ONE_ROUND)):
                profile = replayed(problems, tokens, outcomes, plan)
                counts = profile["n_correct"].to_numpy(), profile["n_samples"].to_numpy()
                kept = np.array([RULE.band.has(k, n) for k, n in zip(*counts, strict=True)])
                found.setdefault(mode, []).append(outcome_of(outcomes, others, counts[1].astype(float), kept))
            for skip, drop in ((0.0, DROP_BELOW), (SKIP_BELOW, DROP_BELOW), *OTHER_LIMITS):
                mode = f"screen, skip {skip:g}, drop {drop:g}"
                found.setdefault(mode, []).append(screened(problems, tokens, outcomes, others, seed, skip, drop))
        for mode, parts in found.items():
            cells = []
            for field in Screening.__annotations__:
                values = [getattr(part, field) for part in parts]
                form = ".1%" if field == "share" else ".1f"
                mean = f"{np.mean(values):{form}}"
                span = f" [{min(values)}, {max(values)}]" if field in ("kept", "lost", "lost_by_others") else ""
                cells.append("" if mean == "nan" else mean + span)
            table.add_row(mode, *cells)
        yield table


def record(folder: Path, file: Path) -> None:
    """Write the draws that adaptive_profiling.py left in `folder` to `file`."""
    columns = ["problem_id", "split", "group_index", "sample_index", "correctness_score", "prompt_tokens"]
    found = []
    for part in ("fixed", "reference"):
        rollouts = pl.read_parquet(folder / part / "rollouts.parquet", columns=columns).sort(*columns[2:4])
        found.append(
            rollouts.group_by("problem_id", maintain_order=True).agg(
                pl.col("split").first(),
                pl.col("prompt_tokens").first().list.len(),
                passed=(pl.col("correctness_score") == 1.0).cast(pl.Int8).cast(pl.String).str.join(""),
            )
        )
    with file.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["problem_id", "split", "prompt_tokens", "first", "second"])
        for row, other in zip(found[0].iter_rows(), found[1].iter_rows(), strict=True):
            if row[0] != other[0]:
                raise ValueError(f"{row[0]} and {other[0]} are not the same problem")
            writer.writerow([*row, other[-1]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=Path, default=DRAWS, help="recorded outcomes of nano")
    parser.add_argument("--screen", action="store_true", help="what profile_mode=screen takes, keeps and loses")
    parser.add_argument("--seeds", type=int, default=10, help="of --screen")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="write them from there")
    arguments = parser.parse_args()
    if arguments.record is not None:
        record(arguments.record, arguments.draws)
        return
    console = Console(width=190)
    if arguments.screen:
        for table in screen_tables(arguments.seeds):
            console.print(table)
        return
    sets = {
        "nano on data/mini": nano(arguments.draws),
        "nano on data/skewed": skewed(),
        "skewed, simulated": simulated("skewed"),
        "U, Beta(0.5, 0.5)": simulated("0.5,0.5"),
        "steep U, Beta(0.3, 0.3)": simulated("0.3,0.3"),
        "mostly hard, Beta(0.3, 1.5)": simulated("0.3,1.5"),
    }
    for name, parts in sets.items():
        for table in tables(name, list(parts)):
            console.print(table)


if __name__ == "__main__":
    main()
