"""Estimates a command's tokens and time. Only the probe of the speed samples anything.

| known                                   | completions are estimated                                                 |
|-----------------------------------------|---------------------------------------------------------------------------|
| three steps or more of the run          | by their lengths; with a profile, corrected by how much longer or shorter |
|                                         | the pool's problems are than those of the steps                           |
| a profile of the pool                   | by its lengths                                                            |
| neither                                 | at most max_tokens each                                                   |

The correction removes the largest error: which problems the first steps happened to draw. The intervals assume that
later steps are like the known ones: they do not foresee that a policy learns to write longer completions.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist, mean, stdev
from tempfile import TemporaryDirectory

import polars as pl

from coderl_tasks.curation.find_pool import FoundPool
from coderl_tasks.curation.tasks import filter_problems
from coderl_tasks.disk import states_line
from coderl_tasks.environments import environment_of
from coderl_tasks.errors import ConfigError
from coderl_tasks.insight.record import RunRecord, load_run
from coderl_tasks.insight.tables import Column, Table, duration
from coderl_tasks.journal.ledger import MILLION, Price, Tokens, cost_price, metrics_tokens
from coderl_tasks.journal.run_directory import committed_steps
from coderl_tasks.planning.flow_plans import (
    compared_sides,
    evaluation_problems,
    plan_curation,
    plan_evaluation,
    plan_pipeline,
)
from coderl_tasks.planning.speeds import Speed, known_speed
from coderl_tasks.planning.training_plan import plan_training
from coderl_tasks.policy.update import KL_SAMPLE
from coderl_tasks.problems.loading import evaluation_side
from coderl_tasks.problems.problem import Problem, read_pool
from coderl_tasks.prompts.tokenizer import model_renderer
from coderl_tasks.services import uses_tinker_service
from coderl_tasks.settings import CurateSettings, EvaluateSettings, FlowSettings, PipelineSettings, TrainSettings
from coderl_tasks.stats import student_t

FIRST_STEPS = 3
"""Steps after which a run's own lengths say more than anything else."""
_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens of a use, with an interval; `seconds` it will take yet, by the pace of its own first steps."""

    use: str
    low: Tokens
    expected: Tokens
    high: Tokens
    by: str
    price: Price | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths in tokens, the standard deviation of completions, and the expected share of what is trained on
    (`signal`). `bound`: of completions only the limit is known."""

    prompt: float
    completion: float
    spread: float
    signal: float
    by: str
    bound: bool = False


async def estimates(
    settings: FlowSettings | PipelineSettings, probe: bool | None = None
) -> tuple[list[Estimate], list[str]]:
    """What a command with `settings` will take, a row per use; and what to say of them. Raises as planning does."""
    rows, leading = await _planned_estimates(settings)
    if leading is None:
        return [], []
    speed = await known_speed(leading, probe)
    said = [*notes(rows), time_line(rows, speed)]
    if isinstance(leading, TrainSettings) and not uses_tinker_service() and (states := states_line(leading)):
        said.append(states)
    return rows, said


async def _planned_estimates(settings: FlowSettings | PipelineSettings) -> tuple[list[Estimate], FlowSettings | None]:
    if isinstance(settings, PipelineSettings):
        planned = await plan_pipeline(settings)
        problems = await asyncio.to_thread(_curated, planned.curate)
        train = _training(planned.train, _bounded(planned.train, problems))
        return [_curation(planned.curate, problems), *train, _evaluation(planned.evaluate)], planned.train
    if isinstance(settings, CurateSettings):
        curation, _ = await plan_curation(settings)
        return [_curation(curation, await asyncio.to_thread(_curated, curation))], curation
    if isinstance(settings, EvaluateSettings):
        sides = [what for side in compared_sides(settings) for _, what in side] or [settings]
        # A finished evaluation that is compared with is not made again.
        evaluated = [(await plan_evaluation(side))[0] for side in sides if not isinstance(side, Path)]
        return [_evaluation(side) for side in evaluated], evaluated[0] if evaluated else None
    assert isinstance(settings, TrainSettings)
    training, pool, path = await plan_training(settings)
    if isinstance(pool, CurateSettings):
        return _training(training, _bounded(training, await asyncio.to_thread(_curated, pool))), training
    return training_estimates(training, pool, path), training


def training_estimates(settings: TrainSettings, pool: FoundPool, path: Path | None) -> list[Estimate]:
    """What a run takes in all, with what it has taken, at `path` where it is begun."""
    lengths = _profiled(settings, pool) or _bounded(settings, read_pool(pool.file))
    if path is None or (done := committed_steps(path)) < FIRST_STEPS:
        return _training(settings, lengths)
    return _training(settings, lengths, by_steps(settings, load_run(path), done, pool))


def _training(settings: TrainSettings, lengths: Lengths, by_its_steps: Estimate | None = None) -> list[Estimate]:
    if settings.max_steps == -1:
        raise ConfigError("max_steps=-1 trains until it is stopped: an estimate needs max_steps=N")
    price = cost_price(settings)
    steps = by_its_steps or _by_lengths(settings, lengths)
    read = ""
    if settings.kl.base_every and not settings.kl.penalty_coef:
        tokens = settings.max_steps // settings.kl.base_every * KL_SAMPLE * round(lengths.prompt + lengths.completion)
        usd = "" if price is None else f", {tokens * price.prefill / MILLION:,.2f} USD"
        read = f"; the base model reads about {tokens:,} tokens more (kl.base_every={settings.kl.base_every}{usd})"
    rows = [replace(steps, price=price, by=f"{steps.by}{read}")]
    if evaluated := _evaluated(settings):
        rows.append(_of_problems("evaluate", evaluated, lengths, price))
    return rows


def _by_lengths(settings: TrainSettings, lengths: Lengths) -> Estimate:
    """The tokens of a whole training with `lengths`. A group's completions count as one draw, groups as independent."""
    groups, n = settings.max_steps * settings.problems_per_step, settings.completions_per_problem
    # refill multiplies the groups at most; completions that first_completions saves go to other groups.
    most = math.floor(settings.refill * groups)
    half = _Z * n * lengths.spread * math.sqrt(groups)  # half the interval of all completion tokens
    epochs = settings.epochs_per_rollout_batch

    def tokens(count: int, completion: float, signal: float) -> Tokens:
        prompt = round(count * lengths.prompt)
        training = epochs * signal * (n * prompt + completion)
        return Tokens(prompt, (n - 1) * prompt, round(completion), round(training))

    mid = groups * n * lengths.completion
    return Estimate(
        "train",
        tokens(groups, 0 if lengths.bound else max(0.0, mid - half), 0.0 if lengths.bound else lengths.signal / 2),
        tokens(groups, mid, lengths.signal),
        tokens(most, (mid + half) * most / groups, 1.0),
        lengths.by,
    )


def by_steps(settings: TrainSettings, run: RunRecord, done: int, pool: FoundPool | None) -> Estimate:
    """The tokens of the whole run: those spent in its first `done` steps, and the rest at their mean per step, which
    `pool`'s profile corrects for the problems that they drew."""
    per_step = [metrics_tokens(row) for row in run.metrics.head(done).iter_rows(named=True)]
    done = len(per_step)  # a crash may have come between the last commit and its row
    left = max(0, settings.max_steps - done)
    spent, ahead, half = {}, {}, {}
    ratio = None if pool is None else _against_profile(run, pool, done)
    for kind in ("prompt", "cached", "completion", "training"):
        values = [float(getattr(tokens, kind)) for tokens in per_step]
        spent[kind] = sum(values)
        ahead[kind] = left * mean(values) * (1.0 if ratio is None else ratio[kind])
        # Prediction interval: the `left` steps vary, and the mean of the first `done` is uncertain.
        half[kind] = student_t(done - 1) * stdev(values) * math.sqrt(left + left**2 / done)

    def tokens(side: int) -> Tokens:
        parts = {kind: max(0.0, ahead[kind] + side * half[kind]) + spent[kind] for kind in spent}
        return Tokens(**{kind: round(number) for kind, number in parts.items()})

    seconds = list(run.metrics["time_step_s"].drop_nulls()) if "time_step_s" in run.metrics else []
    by = f"the run's first {done} steps{'' if ratio is None else ', against the profile of their problems'}"
    return Estimate("train", tokens(-1), tokens(0), tokens(1), by, seconds=left * mean(seconds) if seconds else None)


def _against_profile(run: RunRecord, pool: FoundPool, done: int) -> dict[str, float] | None:
    """How many times longer, by kind of token, the profile's problems are than those of the first `done` steps."""
    profile = pool_profile(pool)
    if profile is None:
        return None
    columns = ["step", "problem_id"]
    taken = run.rollouts(columns).filter(pl.col("step") < done).collect().join(profile, on="problem_id", how="left")
    if taken["completion"].null_count():
        return None

    def factor(*names: str) -> float:
        whole, there = (sum(_mean(frame[name]) for name in names) for frame in (profile, taken))
        return whole / there if there else 1.0

    kinds = {"prompt": ["prompt"], "cached": ["prompt"], "completion": ["completion"]}
    return {kind: factor(*names) for kind, names in kinds.items()} | {"training": factor("prompt", "completion")}


def _mean(values: pl.Series) -> float:
    return math.fsum(values) / len(values)


def pool_profile(pool: FoundPool) -> pl.DataFrame | None:
    """The profile of all the pool's problems: problem_id, prompt and mean completion (tokens), pass_rate."""
    file = pool.file.with_name("profile.parquet")
    if not file.is_file():
        return None
    kept = pl.scan_parquet(pool.file).select("problem_id").collect()
    names = {"prompt": "prompt_tokens", "completion": "mean_completion_tokens", "pass_rate": "pass_rate"}
    profile = pl.scan_parquet(file).select("problem_id", **{name: pl.col(column) for name, column in names.items()})
    found = kept.join(profile.collect(), on="problem_id").drop_nulls()
    return found if found.height == kept.height else None


def _profiled(settings: TrainSettings, pool: FoundPool) -> Lengths | None:
    profile = pool_profile(pool)
    if profile is None or not profile.height:
        return None
    n, rate = settings.completions_per_problem, pl.col("pass_rate")
    # Of n completions neither all right nor all wrong; what the format gives a signal to comes on top.
    signal = profile.select((1 - rate**n - (1 - rate) ** n).mean()).item()
    lengths: list[float] = profile["completion"].to_list()
    spread = stdev(lengths) if len(lengths) > 1 else 0.0
    by = f"the profile of {profile.height:,} problems"
    return Lengths(_mean(profile["prompt"]), mean(lengths), spread, signal, by)


def _bounded(settings: FlowSettings, problems: Sequence[Problem]) -> Lengths:
    """Prompts as they are, completions at most as long as they may be."""
    renderer = model_renderer(settings.model_name, settings.renderer_name, settings.thinking)
    prompts = [len(environment_of(settings).prompt(problem, renderer)) for problem in problems]
    if not prompts:
        raise ConfigError("there are no problems to estimate by")
    by = f"max_tokens={settings.max_tokens} for each completion: at most, as nothing is profiled"
    return Lengths(mean(prompts), settings.max_tokens, 0.0, 1.0, by, bound=True)


def _curated(settings: CurateSettings) -> list[Problem]:
    with TemporaryDirectory() as folder:  # the check of solutions aside
        return list(filter_problems.fn(settings, Path(folder), lambda rows: None).kept.outlines())


def _curation(settings: CurateSettings, problems: Sequence[Problem]) -> Estimate:
    if not settings.is_profiled:
        return Estimate("profile", Tokens(), Tokens(), Tokens(), "profile_mode=none, which samples nothing")
    lengths, count = _bounded(settings, problems), len(problems)
    price = cost_price(settings)

    def tokens(samples: float, completion: float) -> Tokens:
        rounds = math.ceil(samples / settings.profile_round)
        prompt = round(count * rounds * lengths.prompt)
        cached = round(count * (samples - rounds) * lengths.prompt)
        return Tokens(prompt, max(0, cached), round(count * samples * completion))

    fewest, most = min(settings.profile_round, settings.profile_samples), settings.profile_samples
    by = f"{count:,} problems, {fewest} to {most} completions each; {lengths.by}"
    if settings.profile_mode == "fixed":
        fewest = most
    high = tokens(most, lengths.completion)
    return Estimate("profile", tokens(fewest, 0), high, high, by, price)


def _evaluation(settings: EvaluateSettings) -> Estimate:
    with TemporaryDirectory() as folder:
        problems = evaluation_problems(settings, Path(folder))
        lengths = _bounded(settings, problems)
    return _of_problems("evaluate", [len(problems)], lengths, cost_price(settings), settings.n_samples)


def _evaluated(settings: TrainSettings) -> list[int]:
    if settings.eval.every == -1:
        return []
    test = len(evaluation_side(settings).load(rows=environment_of(settings).rows).problems)
    ends = test if settings.eval.ends_limit == -1 else min(test, settings.eval.ends_limit)
    often = test if settings.eval.limit == -1 else min(test, settings.eval.limit)
    periodic = settings.eval.validation_size if settings.eval.on == "validation" else often
    last = settings.max_steps % settings.eval.every == 0 and settings.eval.on == "test"
    return [ends, ends, *[periodic] * (settings.max_steps // settings.eval.every - last)]


def _of_problems(
    use: str, evaluations: Sequence[int], lengths: Lengths, price: Price | None, n_samples: int = 1
) -> Estimate:
    count = sum(evaluations)
    mid, prompt = count * n_samples * lengths.completion, round(count * lengths.prompt)
    half = _Z * n_samples * lengths.spread * math.sqrt(count)
    low, high = (0.0, mid) if lengths.bound else (max(0.0, mid - half), mid + half)
    evaluated = f"{len(evaluations)} evaluation{'s' * (len(evaluations) != 1)}, {count * n_samples:,} completions"
    sides = [Tokens(prompt, (n_samples - 1) * prompt, round(side)) for side in (low, mid, high)]
    return Estimate(use, sides[0], sides[1], sides[2], f"{evaluated}; {lengths.by}", price)


def estimates_table(rows: Sequence[Estimate]) -> Table[Estimate]:
    def text(row: Estimate, kind: str) -> str:
        low, mid, high = (getattr(side, kind) for side in (row.low, row.expected, row.high))
        return f"{mid:,}" if low == mid == high else f"{mid:,} [{low:,} to {high:,}]"

    columns: list[Column[Estimate]] = [Column("tokens for", lambda row: row.use, style="name")]
    for kind in ("prompt", "cached", "completion", "training"):
        columns.append(Column(kind, partial(text, kind=kind), style="num"))
    return Table([*columns, Column("USD", usd_text, style="num")], rows, "dense")


def usd_text(row: Estimate) -> str:
    low, mid, high = (row.price and row.price.usd(side) for side in (row.low, row.expected, row.high))
    return "not known" if low is None or mid is None or high is None else f"{mid:,.2f} [{low:,.2f} to {high:,.2f}]"


def notes(rows: Sequence[Estimate]) -> list[str]:
    said = [f"{row.use}: by {row.by}" for row in rows]
    price = rows[0].price
    said.append(f"prices: {'not known (prices=...)' if price is None else price.known.removesuffix('=')}")
    low, mid, high = (sum((getattr(row, side) for row in rows), Tokens()) for side in ("low", "expected", "high"))
    whole = f"{mid.counted:,} tokens [{low.counted:,} to {high.counted:,}]"
    return [*said, f"in all, as max_tokens_total counts (prompts and completions): {whole}"]


def time_line(rows: Sequence[Estimate], speed: Speed | None) -> str:
    """How long it will take yet: by the pace of a run's own steps, else by `speed`."""
    known = {row.use: row.seconds for row in rows if row.seconds is not None}
    parts = [f"time left for steps: about {duration(seconds)}" for seconds in known.values()]
    if speed is not None:
        others = []
        for row in rows:
            if row.use not in known and row.high.counted:
                expected, most = duration(speed.seconds(row.expected)), duration(speed.seconds(row.high))
                # Where nothing is known but max_tokens, what is expected is the most.
                bound = row.low.completion == 0
                said = f"{most} if every completion takes max_tokens" if bound else f"{expected} (up to about {most})"
                others.append(f"{row.use} about {said}")
        parts += [f"time: {', '.join(others)} ({speed})"] if others else []
    return "; ".join(parts) or "time: not known before three steps of a run, or by a probe (coderl estimate --probe)"


def estimate_line(rows: Sequence[Estimate]) -> str:
    form = "{} {:,} tokens (at most about {:,}), {} USD"
    parts = [form.format(row.use, row.expected.counted, row.high.counted, usd_text(row)) for row in rows]
    return f"estimate: {'; '.join(parts)}; by {rows[0].by}"
