"""Do 95% intervals of Pass@1 hold the truth 95% of the time? By simulation.

    python benchmarks/intervals.py [--repeats 4000]

Of pass rates as models have them (never or always solved mostly, or all in the middle), evaluations of 30 to 400
problems are drawn: with one completion per problem, whose interval is Wilson's, and with four, whose interval is the
bootstrap's over problems. Shown is the share of the evaluations whose interval holds the true mean. And of two policies
of which the second is better by so much, and loses some problems too, the share of comparisons that say so, on as many
problems as `coderl power` asks for to have 80%.
"""

import argparse

import numpy as np
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from coderl_tasks.stats import clustered_bootstrap, pairs_needed, wilson_interval

RATES = {"Beta(0.4, 0.6)": (0.4, 0.6), "Beta(2, 2)": (2.0, 2.0), "Beta(0.2, 1.8)": (0.2, 1.8)}
SIZES = (30, 50, 100, 200, 400)
SAMPLES = 4
RESAMPLES = 1000


def covered(alpha: float, beta: float, n: int, repeats: int, generator: np.random.Generator) -> tuple[float, float]:
    """The share of intervals that hold the mean pass rate: of one completion per problem, of SAMPLES."""
    truth = alpha / (alpha + beta)
    rates = generator.beta(alpha, beta, (repeats, n))
    passed = generator.binomial(1, rates).sum(axis=1)
    shares = generator.binomial(SAMPLES, rates) / SAMPLES
    singles = [wilson_interval(int(one), n) for one in passed]
    several = [clustered_bootstrap(row.tolist(), resamples=RESAMPLES) for row in shares]
    found = [sum(low <= truth <= high for low, high in intervals) / repeats for intervals in (singles, several)]
    return found[0], found[1]


def seen(
    difference: float, losses: float, samples: int, repeats: int, generator: np.random.Generator
) -> tuple[int, float]:
    """The problems that `pairs_needed` asks for, and how often the difference is seen on so many."""
    rate, noisy = 0.6, 0.5
    within = (1 - difference - 2 * losses) * noisy * rate * (1 - rate)
    n, found = pairs_needed(difference, within, samples, losses), 0
    for _ in range(repeats):
        drawn, rates = generator.random(n), np.where(generator.random(n) < noisy, rate, 0.0)
        gained, lost = drawn < difference + losses, drawn > 1 - losses
        before = generator.binomial(samples, np.where(gained, 0.0, np.where(lost, 1.0, rates))) / samples
        after = generator.binomial(samples, np.where(gained, 1.0, np.where(lost, 0.0, rates))) / samples
        found += clustered_bootstrap((after - before).tolist(), resamples=RESAMPLES).low > 0
    return n, found / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=4000, help="evaluations per number (default: 4000)")
    repeats = parser.parse_args().repeats
    generator = np.random.default_rng(0)
    table = Table("pass rates", "problems", "one completion, Wilson", f"{SAMPLES} completions, bootstrap", box=MARKDOWN)
    for name, (alpha, beta) in RATES.items():
        for n in SIZES:
            table.add_row(name, str(n), *(f"{share:.1%}" for share in covered(alpha, beta, n, repeats, generator)))
    Console(width=120).print(table)
    powers = Table("difference", "truly lost", "completions", "problems asked for", "seen", box=MARKDOWN)
    for difference in (0.03, 0.05, 0.1):
        for losses in (0.0, difference):
            for samples in (1, 4):
                n, share = seen(difference, losses, samples, repeats // 4, generator)
                row = (f"{100 * difference:g} points", f"{losses:.0%}", str(samples), f"{n:,}", f"{share:.1%}")
                powers.add_row(*row)
    Console(width=120).print(powers)


if __name__ == "__main__":
    main()
