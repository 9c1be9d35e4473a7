"""Pass@1 after training on a pool of profile_mode=screen, against one of 16 samples per problem.

    python benchmarks/screened_pool.py --folder DIR [--data skewed] [--seeds 5] [--steps 15]

Both pools are made of nano's recorded samples, in an order drawn per seed: one keeps the problems of which 2 to 14 of
16 pass, the other what screening keeps, of two samples each or none. nano is trained on each for the same steps of 8
problems x 16 completions, shuffled, and evaluated greedily on 100 test problems that nothing trains on. The difference
is paired by seed; its 95% interval is Student's t over seeds. What DIR holds already is not done again.
"""

import argparse
import statistics
from pathlib import Path

import numpy as np
from curriculum import ARMS, DATA, VALIDATION, Arm, Bench, evaluations, train, write_files
from labels import DROP_BELOW, SKIP_BELOW, in_order_of, recorded_profiles, screening
from overlap import servers
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from coderl_tasks.journal.atomic import write_parquet
from coderl_tasks.problems.problem import problems_frame
from coderl_tasks.stats import student_t

FIXED, SCREENED = "fixed-16 pool", "screened pool"


def write_pools(bench: Bench, data: str, seed: int) -> dict[str, tuple[float, int]]:
    """Both pools of a seed; of each the share of 16 samples per problem that it took, and how many problems it has."""
    [(_, problems, tokens, recorded, _)] = [found for found in recorded_profiles() if found[0] == f"data/{data}"]
    outcomes = in_order_of(seed, recorded)
    passed = outcomes.sum(axis=1)
    is_sampled, chances = screening(problems, tokens, outcomes, seed, SKIP_BELOW)
    kept = {FIXED: (passed >= 2) & (passed <= 14), SCREENED: is_sampled & (chances >= DROP_BELOW)}
    share = {FIXED: 1.0, SCREENED: 2 * float(np.mean(is_sampled)) / outcomes.shape[1]}
    for arm, chosen in kept.items():
        pool = [problem for problem, is_kept in zip(problems, chosen, strict=True) if is_kept]
        write_parquet(bench.pool(data, arm, seed), problems_frame(pool))
    return {arm: (share[arm], int(chosen.sum())) for arm, chosen in kept.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where pools and runs are kept, and looked for")
    parser.add_argument("--data", choices=DATA, default="skewed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    bench, data = Bench(options.folder.resolve(), options.steps), options.data
    rates: dict[str, list[float]] = {FIXED: [], SCREENED: []}
    made: dict[str, list[tuple[float, int]]] = {FIXED: [], SCREENED: []}
    with servers() as environment:
        for seed in range(options.seeds):
            write_files(bench, data, "shuffle", seed)  # the validation problems
            for arm, about in write_pools(bench, data, seed).items():
                made[arm].append(about)
                ARMS[arm] = Arm()
                if options.steps not in (evaluations(bench.run(data, arm, seed)) or {}):
                    train(bench, environment, data, arm, seed, threshold=2)
                rates[arm].append(evaluations(bench.run(data, arm, seed))[options.steps])
                print(f"{arm}, seed {seed}: {rates[arm][-1]:.0%}, of {about[1]} problems", flush=True)
    differences = [100 * (one - other) for one, other in zip(rates[SCREENED], rates[FIXED], strict=True)]
    reach = student_t(len(differences) - 1) / len(differences) ** 0.5
    half, mean = reach * statistics.stdev(differences), statistics.fmean(differences)
    table = Table(
        "pool", "samples of 16 each", "problems", f"Pass@1 of {VALIDATION} after {options.steps} steps", "mean"
    )
    table.box = MARKDOWN
    for arm, values in rates.items():
        shares, sizes = zip(*made[arm], strict=True)
        each = " ".join(f"{100 * value:.0f}" for value in values)
        table.add_row(
            arm,
            f"{statistics.fmean(shares):.1%}",
            f"{statistics.fmean(sizes):.0f}",
            each,
            f"{100 * statistics.fmean(values):.1f}",
        )
    console = Console(width=160)
    console.print(table)
    console.print(f"screened less fixed: {mean:+.1f} points [{mean - half:+.1f}, {mean + half:+.1f}]")


if __name__ == "__main__":
    main()
