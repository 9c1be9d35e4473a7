"""What adaptive profiling saves against 16 samples per problem, and what it costs in decisions.

    python benchmarks/adaptive_profiling.py
    python benchmarks/adaptive_profiling.py --nano FOLDER [--reference 16]

Without arguments: simulated pass rates. Nothing is drawn, all sequences of outcomes are summed over, so the numbers are
exact for the distribution of rates. "DeepCoder-like" is an assumption: 30% never solved, 10% always, the others
Beta(0.8, 0.8).

With --nano the train problems of data/mini are profiled with the nano model at 16 samples each, recorded in FOLDER
(an interrupted profile is continued), and the rules are replayed on the recorded draws, in their order. How many of the
problems are learnable is told by --reference further samples of another seed.

samples     of the 16 of a fixed plan, the mean share
agree       problems whose decision, in or out of the band of 0.1 to 0.9, is that of 16 samples
label       of those that both keep, the share with the same difficulty label
learnable   problems with a pass rate in the band that are kept, for each rule
bound       the least share of samples at which any rule in rounds of 2 can agree on 97%, knowing the distribution of
            the rates and flipping coins where it likes
"""

import argparse
import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import comb
from pathlib import Path

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table
from scipy.special import betaincinv

from coderl_tasks.curation.profile import profile_shard
from coderl_tasks.curation.stopping_rule import RISK_DROP, RISK_KEEP, Band, StoppingRule, difficulty
from coderl_tasks.policy.clients import create_sampling_client
from coderl_tasks.problems import load_problems
from coderl_tasks.rollouts.engine import RolloutEngine, RolloutSettings, open_session
from coderl_tasks.rollouts.rounds import ROUND_SIZE, SamplingPlan
from coderl_tasks.services import Services, services
from coderl_tasks.settings import CurateSettings
from coderl_tasks.stats import jeffreys_interval

BAND = Band(0.1, 0.9)
N = 16
POINTS = 400
AGREEMENT = 0.97
FIXED = SamplingPlan(N)
State = tuple[int, int]
"""(passes, samples)"""
EightRule = Callable[[int], bool]
EIGHT_RULES: dict[str, EightRule] = {
    "0.1..0.6 of 8": lambda correct: 0.1 <= correct / 8 <= 0.6,
    "1..7 of 8": lambda correct: 1 <= correct <= 7,
}
SETTINGS = [(4, 0.0, 0.0), (4, 0.05, 0.05), (4, 0.12, 0.01), (4, 0.12, 0.05), (4, 0.12, 0.12)]
SETTINGS += [(2, 0.0, 0.0), (2, 0.05, 0.05), (2, 0.1, 0.05), (2, 0.1, 0.1), (2, 0.12, 0.12)]


def adaptive(round_size: int = ROUND_SIZE, risk_keep: float = RISK_KEEP, risk_drop: float = RISK_DROP) -> SamplingPlan:
    return SamplingPlan(N, round_size, StoppingRule(BAND, risk_keep, risk_drop))


def plan_name(plan: SamplingPlan) -> str:
    if not isinstance(plan.rule, StoppingRule):
        return f"fixed {plan.max_samples}"
    mark = " (default)" if plan == adaptive() else ""
    return f"{plan.round_size}s: {plan.rule.risk_keep:g} keep, {plan.rule.risk_drop:g} drop{mark}"


# --- simulated: all sequences, summed ---


def beta_rates(alpha: float, beta: float, points: int = POINTS) -> np.ndarray:
    """Equally likely rates (P,) that stand for a Beta distribution: its quantiles."""
    return betaincinv(alpha, beta, (np.arange(points) + 0.5) / points)


def populations() -> dict[str, np.ndarray]:
    return {
        "middle, Beta(2, 2)": beta_rates(2, 2),
        "uniform": beta_rates(1, 1),
        "U, Beta(0.5, 0.5)": beta_rates(0.5, 0.5),
        "steep U, Beta(0.3, 0.3)": beta_rates(0.3, 0.3),
        "mostly hard, Beta(0.3, 1.5)": beta_rates(0.3, 1.5),
        "DeepCoder-like": np.concatenate([np.zeros(120), np.ones(40), beta_rates(0.8, 0.8, 240)]),
        "95% never solved": np.concatenate([np.zeros(380), beta_rates(1, 1, 20)]),
    }


def chances(correct: int, n: int, rates: np.ndarray) -> np.ndarray:
    """P(`correct` of `n`) at each rate (P,)."""
    return comb(n, correct) * rates**correct * (1 - rates) ** (n - correct)


def stops(plan: SamplingPlan, rates: np.ndarray) -> dict[State, np.ndarray]:
    """Where the plan ends: by state, the probability (P,) at each rate."""
    going: dict[int, np.ndarray] = {0: np.ones_like(rates)}
    ended: dict[State, np.ndarray] = {}
    n = 0
    for size in plan.round_sizes:
        reached: dict[int, np.ndarray] = {}
        for correct, weight in going.items():
            for more in range(size + 1):
                reached[correct + more] = reached.get(correct + more, 0.0) + weight * chances(more, size, rates)
        n += size
        going = {}
        for correct, weight in reached.items():
            if plan.is_enough(correct, n):
                ended[correct, n] = weight
            else:
                going[correct] = weight
    return ended


@dataclass(frozen=True)
class Outcome:
    """Shares, `learnable` of the learnable problems."""

    samples: float
    agree: float
    label: float
    learnable: float


def simulated(plan: SamplingPlan, rates: np.ndarray) -> Outcome:
    samples = agree = both = same_label = kept = 0.0
    learnable = (rates >= BAND.low) & (rates <= BAND.high)
    for (correct, n), weight in stops(plan, rates).items():
        samples += float((weight * n).mean())
        in_band = BAND.has(correct, n)
        kept += float((weight * learnable).mean()) if in_band else 0.0
        for more in range(N - n + 1):
            chance = float((weight * chances(more, N - n, rates)).mean())
            at_end = BAND.has(correct + more, N)
            agree += chance if at_end == in_band else 0.0
            if at_end and in_band:
                both += chance
                same_label += chance if difficulty(correct / n) == difficulty((correct + more) / N) else 0.0
    return Outcome(samples / N, agree, same_label / both, kept / float(learnable.mean()))


def kept_of_8(rule: EightRule, rates: np.ndarray) -> float:
    learnable = (rates >= BAND.low) & (rates <= BAND.high)
    kept = sum(chances(correct, 8, rates) for correct in range(9) if rule(correct))
    return float((kept * learnable).mean() / learnable.mean())


def least_samples(rates: np.ndarray, size: int = ROUND_SIZE) -> float:
    """The least share of samples at which a rule that knows `rates` agrees with 16 samples on 97%.

    For each price of a sample in disagreements the best rule is found by working back from 16; what mixtures of such
    rules reach is the convex hull of their points.
    """
    weights = {(k, n): rates**k * (1 - rates) ** (n - k) for n in range(0, N + 1, size) for k in range(n + 1)}

    def predicted(state: State, more: int, ahead: int) -> float:
        weight = weights[state]
        return float((chances(more, ahead, rates) * weight).sum() / max(weight.sum(), 1e-300))

    def points() -> Iterator[tuple[float, float]]:
        change = {
            (k, n): sum(predicted((k, n), m, N - n) for m in range(N - n + 1) if BAND.has(k + m, N) != BAND.has(k, n))
            for k, n in weights
            if n
        }
        step = {(k, n): [predicted((k, n), m, size) for m in range(size + 1)] for k, n in weights if n < N}
        for price in np.geomspace(1e-4, 0.1, 60):
            best: dict[State, tuple[float, float, float]] = {}  # loss, samples, disagreements
            for k, n in sorted(weights, key=lambda state: -state[1]):
                options = [(change[k, n], 0.0, change[k, n])] if n else []
                if n < N:
                    ahead = [(p, best[k + m, n + size]) for m, p in enumerate(step[k, n])]
                    samples, wrong = size + sum(p * b[1] for p, b in ahead), sum(p * b[2] for p, b in ahead)
                    options.append((price * samples + wrong, samples, wrong))
                best[k, n] = min(options)
            yield best[0, 0][1] / N, 1 - best[0, 0][2]

    found = list(points())
    good, bad = [p for p in found if p[1] >= AGREEMENT], [p for p in found if p[1] < AGREEMENT]
    mixed = [b + (AGREEMENT - y) / (g_y - y) * (g - b) for b, y in bad for g, g_y in good]
    return min([share for share, _ in good] + mixed)


def simulated_tables() -> Iterator[Table]:
    of = populations()
    table = Table(title=f"default: {plan_name(adaptive())}, at most {N}")
    titles = ["pass rates", "samples", "bound", "agree", "label", "learnable: adaptive", "fixed 16", *EIGHT_RULES]
    for title in titles:
        table.add_column(title, justify="left" if title == "pass rates" else "right")
    for name, rates in of.items():
        found, fixed = simulated(adaptive(), rates), simulated(FIXED, rates)
        numbers = [found.samples, least_samples(rates), found.agree, found.label, found.learnable, fixed.learnable]
        numbers += [kept_of_8(rule, rates) for rule in EIGHT_RULES.values()]
        table.add_row(name, *(f"{number:.1%}" for number in numbers))
    yield table
    table = Table(title="samples / agree / label by rule")
    table.add_column("rounds of, risk to", no_wrap=True)
    for name in of:
        table.add_column(name, justify="right")
    for setting in SETTINGS:
        plan = adaptive(*setting)
        cells = [simulated(plan, rates) for rates in of.values()]
        table.add_row(plan_name(plan), *(f"{c.samples:.0%} / {c.agree:.1%} / {c.label:.0%}" for c in cells))
    yield table
    yield bias_table()


def bias_table() -> Table:
    """Of the estimates at one true rate, under the default rule and the fixed plan."""
    table = Table(title="estimates at a true pass rate p: mean error of k/n and of the posterior's mean, 95% coverage")
    for title in ("p", "k/n", "k/n, fixed", "posterior", "posterior, fixed", "coverage", "coverage, fixed"):
        table.add_column(title, justify="right")
    for p in (0.01, 0.05, 0.1, 0.2, 0.3, 0.5):
        columns = []
        for plan in (adaptive(), FIXED):
            ended = {state: float(weight[0]) for state, weight in stops(plan, np.array([p])).items()}
            rate = sum(w * k / n for (k, n), w in ended.items()) - p
            mean = sum(w * (k + 0.5) / (n + 1) for (k, n), w in ended.items()) - p
            covered = sum(w for (k, n), w in ended.items() if covers(k, n, p))
            columns.append((f"{rate:+.3f}", f"{mean:+.3f}", f"{covered:.1%}"))
        table.add_row(f"{p:g}", *(cell for pair in zip(*columns, strict=True) for cell in pair))
    return table


def covers(correct: int, n: int, p: float) -> bool:
    low, high = jeffreys_interval(correct, n)
    return low <= p <= high


# --- nano: recorded draws, replayed ---


async def draws(settings: CurateSettings, used: Services, plan: SamplingPlan, seed: int, folder: Path) -> np.ndarray:
    """Passes (P, samples) of the train problems, in order."""
    problems = load_problems(settings.dataset, role="train", max_tests=settings.max_tests).problems
    async with open_session(settings, used) as session:
        sampler = await create_sampling_client(await session.service(), base_model=settings.model_name)
        sampled = RolloutSettings(
            "profile", settings.model_name, settings.temperature, settings.max_tokens, session.context, seed=seed
        )
        engine = RolloutEngine(session.judge, session.renderer, sampled)
        await profile_shard(problems, sampler, engine, plan, folder=folder)
    rollouts = pl.read_parquet(
        folder / "rollouts.parquet", columns=["group_index", "sample_index", "correctness_score"]
    )
    passed = rollouts.sort("group_index", "sample_index")["correctness_score"].to_numpy() == 1.0
    return passed.reshape(len(problems), plan.max_samples)


def stop_of(plan: SamplingPlan, passed: np.ndarray) -> State:
    """Where the plan ends on the outcomes (samples,) of one problem."""
    n = 0
    for size in plan.round_sizes:
        n += size
        if plan.is_enough(int(passed[:n].sum()), n):
            break
    return int(passed[:n].sum()), n


def nano_tables(passed: np.ndarray, reference: np.ndarray) -> Iterator[Table]:
    at_end = [int(row.sum()) for row in passed]
    learnable = [BAND.has(int(row.sum()), len(row)) for row in reference]
    table = Table(
        title=f"nano on {len(passed)} problems; {sum(learnable)} learnable by {reference.shape[1]} other samples"
    )
    for title in ("rule", "samples", "share", "agree", "label", "kept", "learnable kept", "lost", "not learnable kept"):
        table.add_column(title, justify="left" if title == "rule" else "right")

    def row(name: str, ended: list[State], kept: list[bool]) -> None:
        samples = sum(n for _, n in ended)
        same = [BAND.has(k, N) == keeps for k, keeps in zip(at_end, kept, strict=True)]
        labels = [
            difficulty(k / n) == difficulty(end / N)
            for (k, n), end, keeps in zip(ended, at_end, kept, strict=True)
            if keeps and BAND.has(end, N)
        ]
        hits = sum(keeps and good for keeps, good in zip(kept, learnable, strict=True))
        table.add_row(
            name,
            f"{samples:,}",
            f"{samples / N / len(passed):.1%}",
            f"{np.mean(same):.1%}",
            f"{np.mean(labels):.1%}",
            str(sum(kept)),
            str(hits),
            str(sum(learnable) - hits),
            str(sum(kept) - hits),
        )

    for plan in (FIXED, *(adaptive(*setting) for setting in SETTINGS)):
        ended = [stop_of(plan, outcomes) for outcomes in passed]
        row(plan_name(plan), ended, [BAND.has(k, n) for k, n in ended])
    for name, rule in EIGHT_RULES.items():
        ended = [(int(outcomes[:8].sum()), 8) for outcomes in passed]
        row(name, ended, [rule(k) for k, _ in ended])
    yield table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nano", type=Path, metavar="FOLDER", help="profile the nano model, recorded in FOLDER")
    parser.add_argument("--reference", type=int, default=16, help="further samples that tell which are learnable")
    arguments = parser.parse_args()
    console = Console(width=170)
    if arguments.nano is None:
        tables = simulated_tables()
    else:
        settings = CurateSettings(preset="nano")
        plans: Mapping[str, tuple[SamplingPlan, int]] = {
            "fixed": (SamplingPlan(N, N), settings.seed),  # one request a problem: the draws are exchangeable
            "reference": (SamplingPlan(arguments.reference, arguments.reference), settings.seed + 1),
        }
        with services(settings.model_name) as used:
            passed, reference = (
                asyncio.run(draws(settings, used, plan, seed, arguments.nano / name))
                for name, (plan, seed) in plans.items()
            )
        tables = nano_tables(passed, reference)
    for table in tables:
        console.print(table)


if __name__ == "__main__":
    main()
