"""What selection=adaptive makes of simulated pass rates, and what it costs per step.

    python benchmarks/adaptive_selection.py [--steps 60] [--problems 400] [--seeds 5]

Of the simulated problems 55% are hardly ever solved, 15% nearly always, 30% between; pass rates drift upwards. The
share of groups of 16 with a signal, over all steps, without a profile and with one of two completions per problem, for
selection=shuffle and for adaptive with several powers of the expected share; and for pass rates that move faster, with
a fixed half age of evidence and with the one that outcomes tell. Then, without a profile, groups that are begun with
some of their completions and get the rest only if these differ (first_completions; with 16 whole groups, none in place
of others), at no more completions per step: groups with a signal per 1,000 completions, as shares of the groups begun
those that had one and that were expected to, and the share of the completions that are in them. Then the milliseconds
(of the processor) of a choice and its forecast with 25,000 profiled problems after 1,000 steps.
"""

import argparse
import time
from statistics import mean, median

import numpy as np
from rich.console import Console
from rich.table import Table

from coderl_tasks.policy import selection as selections
from coderl_tasks.policy.selection import Adaptive, Outcome, shuffle
from coderl_tasks.problems.problem import Problem

PER_STEP, COMPLETIONS = 8, 16
POWERS = (1, 3, 6)
FIRST = (2, 3, 4, 5, 6, 8, COMPLETIONS)
DRIFT, WALK = 0.03, 0.1
"""Of a problem's log-odds per step: the mean, and the standard deviation."""
MOVES = ((0.0, 0.0), (DRIFT, WALK), (0.1, 0.3), (0.3, 0.5))
"""(mean, standard deviation) per step, of policies that learn ever faster."""


def problems(count: int, rng: np.random.Generator) -> list[Problem]:
    lengths = rng.integers(100, 3000, count)
    return [
        Problem(f"p{i}", "own", "x" * int(n), "", "stdin", "", (), 0, 0, None, (), 0) for i, n in enumerate(lengths)
    ]


def log_odds(count: int, rng: np.random.Generator) -> np.ndarray:
    kind = rng.choice(3, count, p=[0.55, 0.15, 0.3])
    between = np.log(1 / rng.uniform(0.1, 0.9, count) - 1)
    return np.choose(kind, [rng.normal(-7, 1, count), rng.normal(6, 1, count), between])


def simulated(
    count: int, profile: int, steps: int, power: int | None, seed: int, move: tuple[float, float] = (DRIFT, WALK)
) -> tuple[float, float]:
    """The share of groups with a signal, and the expected one; `power` None is selection=shuffle."""
    rng = np.random.default_rng(seed)
    pool, odds = problems(count, rng), log_odds(count, rng)
    ids = [problem.problem_id for problem in pool]
    rates = 1 / (1 + np.exp(-odds))
    profiled = {name: (int(rng.binomial(profile, rate)), profile) for name, rate in zip(ids, rates, strict=True)}
    outcomes: list[list[Outcome]] = []
    selection = Adaptive(pool, profiled, lambda: outcomes, completions=COMPLETIONS, lag=0)
    signals, expected = [], []
    for step in range(steps):
        selections.SHARPNESS = power or 0
        select = shuffle if power is None else selection
        names = select(ids, seed=seed, step=step, count=PER_STEP)
        sizes = [COMPLETIONS] * len(names)
        expected.append(selection.forecast(step, names, sizes).signal)
        groups = list(zip(names, sizes, strict=True))
        right = [int(rng.binomial(size, 1 / (1 + np.exp(-odds[int(name[1:])])))) for name, size in groups]
        signals += [0 < one < size for one, size in zip(right, sizes, strict=True)]
        outcomes.append([(name, float(one), size) for (name, size), one in zip(groups, right, strict=True)])
        odds += rng.normal(*move, count)
    return mean(signals), mean(expected)


def begun_with(first: int, kind: str, count: int, steps: int, seed: int) -> tuple[float, float, float, float]:
    """Where groups are begun with `first` completions and problems chosen by the selection `kind`: per completion the
    groups with a signal, of the groups begun the share that had one and the expected share, and the share of the
    completions that are in them."""
    rng = np.random.default_rng(seed)
    pool, odds = problems(count, rng), log_odds(count, rng)
    ids = [problem.problem_id for problem in pool]
    outcomes: list[list[Outcome]] = []
    selection = Adaptive(pool, {}, lambda: outcomes, completions=COMPLETIONS, lag=0)
    select = shuffle if kind == "shuffle" else selection
    expected = []
    for step in range(steps):
        taken: list[str] = []
        groups: list[Outcome] = []
        further = select(ids, seed=seed, step=step, count=PER_STEP)
        while further:
            for name in further:
                rate = 1 / (1 + np.exp(-odds[int(name[1:])]))
                right, size = int(rng.binomial(first, rate)), first
                if 0 < right < first:
                    right, size = right + int(rng.binomial(COMPLETIONS - first, rate)), COMPLETIONS
                groups.append((name, float(right), size))
            taken += further
            missing = PER_STEP - sum(has_signal(group) for group in groups)
            room = (PER_STEP * COMPLETIONS - sum(size for *_, size in groups)) // COMPLETIONS
            more = min(missing, room)
            further = select(ids, seed=seed, step=step, count=more, taken=taken) if more > 0 else []
        expected.append(selection.forecast(step, taken, [first] * len(taken)).signal)
        outcomes.append(groups)
        odds += rng.normal(DRIFT, WALK, count)
    all_groups = [group for groups in outcomes for group in groups]
    completions, signals = sum(size for *_, size in all_groups), sum(map(has_signal, all_groups))
    inside = sum(group[2] for group in all_groups if has_signal(group))
    return signals / completions, signals / len(all_groups), mean(expected), inside / completions


def has_signal(group: Outcome) -> bool:
    _, right, size = group
    return 0 < right < size


def milliseconds(count: int, steps: int) -> list[float]:
    """Of each of some choices, forecast included."""
    rng = np.random.default_rng(0)
    pool = problems(count, rng)
    ids = [problem.problem_id for problem in pool]
    profiled = {name: (int(rng.integers(3)), 2) for name in ids}
    rows = [
        [(f"p{i}", float(rng.integers(17)), 16) for i in rng.integers(count, size=2 * PER_STEP)] for _ in range(steps)
    ]
    outcomes: list[list[Outcome]] = []
    selection = Adaptive(pool, profiled, lambda: outcomes, completions=COMPLETIONS, lag=0)
    selection(ids, seed=0, step=0, count=PER_STEP)
    outcomes += rows[:-20]
    spent = []
    for step in range(steps - 20, steps):
        begun = time.process_time()
        chosen = selection(ids, seed=0, step=step, count=PER_STEP)
        selection.forecast(step, chosen, [COMPLETIONS] * len(chosen))
        spent.append(1000 * (time.process_time() - begun))
        outcomes.append(rows[step])
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--problems", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    spent = milliseconds(25_000, 1_000)
    table = Table(title=f"Groups with a signal: {arguments.problems} problems, {arguments.steps} steps of {PER_STEP}")
    for title in ("profile", "selection", "with a signal", "expected"):
        table.add_column(title, justify="right")
    for profile in (0, 2):
        for power in (None, *POWERS):
            found = [
                simulated(arguments.problems, profile, arguments.steps, power, seed) for seed in range(arguments.seeds)
            ]
            name = "shuffle" if power is None else f"adaptive, power {power}"
            shares = (f"{mean(column):.0%}" for column in zip(*found, strict=True))
            table.add_row(str(profile), name, *shares)
    Console().print(table)
    table = Table(title="Groups with a signal, by how fast log-odds move per step; profile of 2, power 6")
    for title in ("mean", "standard deviation", "half age 50", "as outcomes tell"):
        table.add_column(title, justify="right")
    half_ages = selections.HALF_AGES
    for move in MOVES:
        shares = []
        for selections.HALF_AGES in (half_ages[:1], half_ages):
            size = arguments.problems, 2, arguments.steps, POWERS[-1]
            shares.append(mean(simulated(*size, seed, move)[0] for seed in range(arguments.seeds)))
        table.add_row(*map(str, move), *(f"{share:.0%}" for share in shares))
    Console().print(table)
    table = Table(title="Groups begun with some of their completions, which get the rest only if these differ")
    for title in ("selection", "begun with", "with a signal per 1,000", "of those begun", "expected", "in them"):
        table.add_column(title, justify="right")
    for kind in ("shuffle", "adaptive"):
        selections.SHARPNESS = POWERS[-1]
        for first in FIRST:
            rows = [
                begun_with(first, kind, arguments.problems, arguments.steps, seed) for seed in range(arguments.seeds)
            ]
            rate, *parts = (mean(column) for column in zip(*rows, strict=True))
            table.add_row(kind, str(first), f"{1000 * rate:.1f}", *(f"{part:.0%}" for part in parts))
    Console().print(table)
    print(f"25,000 problems: median {median(spent[1:]):.1f} ms per step, most {max(spent[1:]):.1f} ms")


if __name__ == "__main__":
    main()
