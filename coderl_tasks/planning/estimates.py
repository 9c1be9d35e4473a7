"""Estimates a command's tokens and time. Only the probe of the speed samples anything.

| known                                   | completions are estimated                                                 |
|-----------------------------------------|---------------------------------------------------------------------------|
| three steps or more of the run          | by their lengths; with a profile, corrected by how much longer or shorter |
|                                         | the pool's problems are than those of the steps                           |
| a profile of the pool                   | by its lengths                                                            |
| neither                                 | at most max_tokens each                                                   |

With `max_turns` or `max_tool_calls` every completion is taken to have all its answers, and every reply REPLY_TOKENS: an
upper bound. The intervals assume that later steps are like the known ones: they do not foresee that a policy learns to
write longer completions.

Time comes from how fast the model samples and trains on the Tinker server in use: by the last steps of a run here,
which include grading and all between requests, else by a probe, which is rough: it has fewer requests at a time.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import NormalDist, fmean, mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from coderl_tasks.curation.find_pool import FoundPool
from coderl_tasks.curation.screen import PARTS
from coderl_tasks.curation.tasks import filter_problems
from coderl_tasks.disk import states_line
from coderl_tasks.environments import environment_of, renderer_of
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.insight.record import RunRecord, load_run
from coderl_tasks.insight.tables import Column, Table, duration
from coderl_tasks.journal.atomic import scan_parquet
from coderl_tasks.journal.ledger import MILLION, Price, Tokens, cost_price, metrics_tokens
from coderl_tasks.journal.recorded_json import CONFIG_FILE, recorded_config
from coderl_tasks.journal.run_directory import committed_steps, metrics_rows
from coderl_tasks.journal.run_names import runs_root
from coderl_tasks.paths import same_model
from coderl_tasks.planning import flow_plans
from coderl_tasks.policy import clients
from coderl_tasks.policy.grpo import make_datum, train_step
from coderl_tasks.policy.sampling import sample_group
from coderl_tasks.policy.update import KL_SAMPLE, adam_params
from coderl_tasks.problems.loading import EvaluationSide, RowReader, evaluation_side
from coderl_tasks.problems.problem import Problem, read_pool
from coderl_tasks.services import embedded_tinker, tinker_credentials, uses_tinker_service
from coderl_tasks.settings import CurateSettings, EvaluateSettings, FlowSettings, PipelineSettings, TrainSettings
from coderl_tasks.stats import student_t

FIRST_STEPS = 3  # after so many, a run's own lengths say more than anything else
LAST_STEPS = 20  # of an earlier run: they say how fast it was
PROBED, TRAINED = (32, 16), 4  # completions of a probe and the most tokens of each; completions that it trains on
REPLY_TOKENS = 600  # of a reply between two answers: about what the longest texts have (environments/feedback.py)
SOON_S = 120.0
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
    """Mean lengths in tokens."""

    prompt: float
    completion: float
    spread: float  # the standard deviation of completions
    signal: float  # the expected share of what is trained on
    by: str
    bound: bool = False  # of completions only the limit is known
    answers: int = 1  # of a completion, at most
    replies: float = 0.0  # between the answers of a completion
    kept: float = 0.0  # what the prompts of later answers repeat

    def tokens(self, groups: float, n: float, completion: float, trained: float = 0.0) -> Tokens:
        """Of `groups` prompts with `n` completions each, of `completion` tokens in all; `trained`: share trained on."""
        prompt, replies, count = groups * self.prompt, groups * n * self.replies, groups * n
        training = trained * (n * prompt + completion + replies)
        cached = (n - 1) * prompt + count * self.kept
        return Tokens(round(prompt + replies), max(0, round(cached)), round(completion), round(training))

    @property
    def first_answers(self) -> "Lengths":  # of completions that end with their first answer
        return replace(self, replies=0.0, kept=0.0)

    def in_turns(self, settings: FlowSettings, *, whole: bool = False) -> "Lengths":
        """These lengths, of completions with one answer (`whole`: with all), for all the answers that there may be."""
        n, limit = settings.most_answers, settings.max_trajectory_tokens or math.inf
        if n == 1:
            return self
        answer = self.completion / n if whole else self.completion
        kept = sum(self.prompt + min(limit, (turn + 1) * answer + turn * REPLY_TOKENS) for turn in range(n - 1))
        how = "as profiled" if whole else f"an upper bound of {n} answers each"
        by = f"{self.by}; {how}, with {REPLY_TOKENS} tokens per reply"
        replies, answers = min(limit, (n - 1) * REPLY_TOKENS), 1 if whole else n
        completion, spread = min(limit, n * answer), answers * self.spread
        return replace(self, completion=completion, spread=spread, answers=answers, replies=replies, kept=kept, by=by)


@dataclass(frozen=True, slots=True)
class Speed:
    """Completion tokens sampled, and tokens (with prompts) trained on, per second; `by` says how that is known."""

    sampling: float
    training: float
    by: str

    def seconds(self, tokens: Tokens) -> float:
        return tokens.completion / self.sampling + tokens.training / self.training

    def __str__(self) -> str:
        training = f", {self.training:,.0f} trained on" if math.isfinite(self.training) else ""
        return f"{self.sampling:,.0f} tokens/s sampled{training}, by {self.by}"


async def estimates(
    settings: FlowSettings | PipelineSettings, probe: bool | None = None
) -> tuple[list[Estimate], list[str]]:
    """How many tokens a command with `settings` will take: a row per use (profile, train, evaluate), and notes for
    people, with the time. `probe` asks for a probe of the speed, which samples now, or refuses it; with None one is
    made if no recorded run tells the speed and the server is embedded. Raises as planning does."""
    rows, timed = await _planned_estimates(settings)
    if timed is None:  # nothing is to be sampled
        return [], []
    speed = None if probe else recorded_speed(timed)
    if probe or (probe is None and speed is None and not uses_tinker_service()):
        speed = await probed_speed(timed)
    low, mid, high = (sum((getattr(row, side) for row in rows), Tokens()) for side in ("low", "expected", "high"))
    whole, price = f"{mid.counted:,} tokens [{low.counted:,} to {high.counted:,}]", rows[0].price  # one base model
    notes = [
        *(f"{row.use}: by {row.by}" for row in rows),
        f"prices: {'not known (prices=...)' if price is None else price.source}",
        f"in all, as max_tokens_total counts (prompts and completions): {whole}",
        time_line(rows, speed),
    ]
    if isinstance(timed, TrainSettings) and not uses_tinker_service() and (states := states_line(timed)):
        notes.append(states)
    return rows, notes


async def _planned_estimates(settings: FlowSettings | PipelineSettings) -> tuple[list[Estimate], FlowSettings | None]:
    """Plans the command and estimates its tokens. Returns a row per use (profile, train, evaluate), and the planned
    settings whose model decides the speed. Returns no rows and None if all evaluations to compare are finished."""
    if isinstance(settings, PipelineSettings):
        planned = await flow_plans.plan_pipeline(settings)
        problems = await asyncio.to_thread(_filtered_problems, planned.curate)
        rows = [_profile_row(planned.curate, problems)]
        training = flow_plans.complete_settings(planned.train, flow_plans.training_path(planned.train))
        rows += _training_rows(training, _lengths_at_max_tokens(training, problems))
        return [*rows, _evaluation_row(planned.evaluate)], training
    if isinstance(settings, CurateSettings):
        curation, _ = await flow_plans.plan_curation(settings)
        return [_profile_row(curation, await asyncio.to_thread(_filtered_problems, curation))], curation
    if isinstance(settings, EvaluateSettings):
        # Several if evaluations are compared.
        evaluations = [(await flow_plans.plan_evaluation(each))[0] for each in flow_plans.evaluations_to_make(settings)]
        return [_evaluation_row(each) for each in evaluations], evaluations[0] if evaluations else None
    assert isinstance(settings, TrainSettings)
    training, pool, run_path = await flow_plans.plan_training(settings)
    if isinstance(pool, CurateSettings):  # the curation that makes the missing pool, without a profile of lengths
        problems = await asyncio.to_thread(_filtered_problems, pool)
        return _training_rows(training, _lengths_at_max_tokens(training, problems)), training
    return training_estimates(training, pool, run_path), training


def training_estimates(settings: TrainSettings, pool: FoundPool, path: Path | None) -> list[Estimate]:
    """What a run takes in all, with what it has taken, at `path` where it is begun."""
    lengths = _profiled_lengths(settings, pool) or _lengths_at_max_tokens(settings, read_pool(pool.file))
    if path is None or (done := committed_steps(path)) < FIRST_STEPS:
        return _training_rows(settings, lengths)
    return _training_rows(settings, lengths, by_steps(settings, load_run(path), done, pool))


def _training_rows(settings: TrainSettings, lengths: Lengths, by_its_steps: Estimate | None = None) -> list[Estimate]:
    """Rows of the steps (`by_its_steps`, else by `lengths`) and evaluations. ConfigError for one without an end."""
    if settings.max_steps == -1:
        raise ConfigError("max_steps=-1 trains until it is stopped: an estimate needs max_steps=N")
    price, steps = cost_price(settings), by_its_steps
    if steps is None:
        n, epochs = settings.completions_per_problem, settings.epochs_per_rollout_batch
        groups = settings.max_steps * settings.problems_per_step
        # refill multiplies the groups at most; completions that first_completions saves go to other groups.
        steps = _by_lengths("train", lengths, groups, n, math.floor(settings.refill * groups), epochs)
    base_note = ""
    if settings.kl.base_every and not settings.kl.penalty_coef:
        tokens = settings.max_steps // settings.kl.base_every * KL_SAMPLE * round(lengths.prompt + lengths.completion)
        usd = "" if price is None else f", {tokens * price.prefill / MILLION:,.2f} of the USD"
        base_note = f"; the base model reads about {tokens:,} tokens more (kl.base_every={settings.kl.base_every}{usd})"
        more = Tokens(base=tokens)
        steps = replace(steps, low=steps.low + more, expected=steps.expected + more, high=steps.high + more)
    rows = [replace(steps, price=price, by=f"{steps.by}{base_note}")]
    if evaluations := _evaluations(settings):
        rows.append(_evaluating(settings, evaluations, lengths))
    return rows


def _by_lengths(use: str, lengths: Lengths, groups: int, n: int, most: int, epochs: int = 0) -> Estimate:
    """The tokens of `n` completions for each of `groups` prompts (`most` at most), trained on `epochs` times.
    A group's completions count as one draw, groups as independent."""
    mid = groups * n * lengths.completion
    half = _Z * n * lengths.spread * math.sqrt(groups)  # half the interval of all completion tokens
    # Where only the limit of a completion is known, it may as well take nothing, and nothing be trained on.
    least, share = (0.0, 0.0) if lengths.bound else (max(0.0, mid - half) / lengths.answers, lengths.signal / 2)
    low = lengths.first_answers.tokens(groups, n, least, epochs * share)
    high = lengths.tokens(most, n, mid + half if most == groups else (mid + half) * most / groups, epochs)
    return Estimate(use, low, lengths.tokens(groups, n, mid, epochs * lengths.signal), high, lengths.by)


def by_steps(settings: TrainSettings, run: RunRecord, done: int, pool: FoundPool | None) -> Estimate:
    """Estimates the tokens of the whole run: those spent in its first `done` steps, and for the steps left their mean
    per step. The profile of `pool`, if any, corrects the largest error: which problems these steps happened to draw."""
    per_step = [metrics_tokens(row) for row in run.metrics.head(done).iter_rows(named=True)]
    done = len(per_step)  # a crash may have come between the last commit and its row
    left = max(0, settings.max_steps - done)
    spent, ahead, half = {}, {}, {}  # by kind of token: so far, in the steps left, half the interval of the latter
    ratio = None if pool is None else _profile_ratio(run, pool, done)  # None: no profile, so no correction
    for kind in ("prompt", "cached", "completion", "training"):
        values = [float(getattr(tokens, kind)) for tokens in per_step]
        spent[kind] = sum(values)
        ahead[kind] = left * mean(values) * (1.0 if ratio is None else ratio[kind])
        # Prediction interval: the `left` steps vary, and the mean of the first `done` is uncertain.
        half[kind] = student_t(done - 1) * stdev(values) * math.sqrt(left + left**2 / done)

    def tokens(side: int) -> Tokens:
        """All tokens at the low end (-1), the middle (0) or the high end (1) of the interval."""
        parts = {kind: max(0.0, ahead[kind] + side * half[kind]) + spent[kind] for kind in spent}
        return Tokens(**{kind: round(number) for kind, number in parts.items()})

    step_s = list(run.metrics["time_step_s"].drop_nulls()) if "time_step_s" in run.metrics else []
    by = f"the run's first {done} steps{'' if ratio is None else ', against the profile of their problems'}"
    return Estimate("train", tokens(-1), tokens(0), tokens(1), by, seconds=left * mean(step_s) if step_s else None)


def _profile_ratio(run: RunRecord, pool: FoundPool, done: int) -> dict[str, float] | None:
    """By kind of token, how many times longer the profile's problems are than those of the first `done` steps."""
    profile = pool_profile(pool)
    if profile is None:
        return None
    rollouts = run.rollouts(["step", "problem_id"]).filter(pl.col("step") < done).collect()
    drawn = rollouts.join(profile, on="problem_id", how="left")
    if drawn["completion"].null_count():
        return None

    frames = (profile, drawn)

    def factor(*names: str) -> float:
        of_pool, of_steps = (sum(fmean(frame[name]) for name in names) for frame in frames)
        return of_pool / of_steps if of_steps else 1.0

    prompt, completion = factor("prompt"), factor("completion")
    training = factor("prompt", "completion")
    return {"prompt": prompt, "cached": prompt, "completion": completion, "training": training}


def pool_profile(pool: FoundPool) -> pl.DataFrame | None:
    """All the pool's problems: problem_id, prompt and mean completion (tokens), pass_rate. None if not profiled."""
    file = pool.file.with_name("profile.parquet")
    if not file.is_file():
        return None
    kept = scan_parquet(pool.file).select("problem_id").collect()
    names = {"prompt": "prompt_tokens", "completion": "mean_completion_tokens", "pass_rate": "pass_rate"}
    profile = scan_parquet(file).select("problem_id", **{name: pl.col(column) for name, column in names.items()})
    found = kept.join(profile.collect(), on="problem_id").drop_nulls()
    return found if found.height == kept.height else None


def _profiled_lengths(settings: TrainSettings, pool: FoundPool) -> Lengths | None:
    profile = pool_profile(pool)
    if profile is None or not profile.height:
        return None
    n, rate = settings.completions_per_problem, pl.col("pass_rate")
    # Of n completions neither all right nor all wrong; what the format gives a signal to comes on top.
    signal = profile.select((1 - rate**n - (1 - rate) ** n).mean()).item()
    lengths: list[float] = profile["completion"].to_list()
    spread = stdev(lengths) if len(lengths) > 1 else 0.0
    by = f"the profile of {profile.height:,} problems"
    found, made = Lengths(fmean(profile["prompt"]), mean(lengths), spread, signal, by), pool.made_with
    # A profile with as many answers has the lengths of those that were needed.
    return found.in_turns(settings, whole=made is not None and made.most_answers == settings.most_answers)


def _lengths_at_max_tokens(settings: FlowSettings, problems: Sequence[Problem]) -> Lengths:
    """Lengths without a profile: the prompts' own, and `max_tokens` for each completion."""
    renderer = renderer_of(settings)
    prompts = [len(environment_of(settings).prompt(problem, renderer)) for problem in problems]
    if not prompts:
        raise ConfigError("there are no problems to estimate by")
    by = f"max_tokens={settings.max_tokens} for each completion: at most, as nothing is profiled"
    return Lengths(mean(prompts), settings.max_tokens, 0.0, 1.0, by, bound=True).in_turns(settings)


def _filtered_problems(settings: CurateSettings) -> list[Problem]:
    with TemporaryDirectory() as folder:  # the check of solutions aside
        return list(filter_problems.fn(settings, Path(folder), lambda rows: None).kept.outlines())


def _profile_row(settings: CurateSettings, problems: Sequence[Problem]) -> Estimate:
    """The tokens of a profile of `problems`: at least one round of each, and at most, and expected, all samples. With
    profile_mode=screen one round of each at most, and at least of the part that is sampled whole."""
    if not settings.is_profiled:
        return Estimate("profile", Tokens(), Tokens(), Tokens(), "profile_mode=none, which samples nothing")
    lengths, count = _lengths_at_max_tokens(settings, problems), len(problems)
    price = cost_price(settings)

    def tokens(of: Lengths, sampled: int, samples: float, completion: float) -> Tokens:
        rounds = math.ceil(samples / settings.profile_round)
        return of.tokens(sampled * rounds, samples / rounds, sampled * samples * completion)

    fewest, most, sampled = min(settings.profile_round, settings.profile_samples), settings.profile_samples, count
    if settings.profile_mode == "screen":
        most, sampled = fewest, max(1, count // PARTS)
    each = f"{fewest} to {most}" if fewest < most else f"{most}"
    by = f"{count:,} problems, {each} completions each; {lengths.by}"
    if settings.profile_mode == "fixed":
        fewest = most
    high = tokens(lengths, count, most, lengths.completion)
    return Estimate("profile", tokens(lengths.first_answers, sampled, fewest, 0), high, high, by, price)


def _evaluation_row(settings: EvaluateSettings) -> Estimate:
    if settings.completions is not None:
        raise ConfigError("completions are graded without a model: there are no tokens to estimate")
    with TemporaryDirectory() as folder:
        problems = flow_plans.evaluation_problems(settings, Path(folder))
        return _evaluating(settings, [len(problems)], _lengths_at_max_tokens(settings, problems), settings.n_samples)


def _evaluations(settings: TrainSettings) -> list[int]:
    """The evaluations of a whole training, each as its number of problems."""
    if settings.eval.every == -1:
        return []
    test = _count_problems(evaluation_side(settings), environment_of(settings).rows)
    ends = test if settings.eval.ends_limit == -1 else min(test, settings.eval.ends_limit)
    often = test if settings.eval.limit == -1 else min(test, settings.eval.limit)
    periodic = settings.eval.validation_size if settings.eval.on == "validation" else often
    last = settings.max_steps % settings.eval.every == 0 and settings.eval.on == "test"
    return [ends, ends, *[periodic] * (settings.max_steps // settings.eval.every - last)]


@cache  # as a run asks again after its first steps: a data set can take minutes to read
def _count_problems(side: EvaluationSide, rows: RowReader) -> int:
    return len(side.load(rows=rows).problems)


def _evaluating(settings: FlowSettings, evaluations: Sequence[int], lengths: Lengths, n_samples: int = 1) -> Estimate:
    """The tokens of evaluations of so many problems each, with `n_samples` completions per problem."""
    count = sum(evaluations)
    evaluated = f"{len(evaluations)} evaluation{'s' * (len(evaluations) != 1)}, {count * n_samples:,} completions"
    estimate = _by_lengths("evaluate", lengths, count, n_samples, most=count)
    return replace(estimate, by=f"{evaluated}; {lengths.by}", price=cost_price(settings))


def estimates_table(rows: Sequence[Estimate]) -> Table[Estimate]:
    """A column per kind of token, each number with its interval, and the price."""

    def text(row: Estimate, kind: str) -> str:
        low, mid, high = (getattr(side, kind) for side in (row.low, row.expected, row.high))
        return f"{mid:,}" if low == mid == high else f"{mid:,} [{low:,} to {high:,}]"

    kinds = ("prompt", "cached", "completion", "training")
    numbers = [Column(kind, partial(text, kind=kind), style="num") for kind in kinds]
    use: Column[Estimate] = Column("tokens for", lambda row: row.use, style="name")
    return Table([use, *numbers, Column("USD", usd_text, style="num")], rows, "dense")


def usd_text(row: Estimate) -> str:
    low, mid, high = (row.price and row.price.usd(side) for side in (row.low, row.expected, row.high))
    return "not known" if low is None or mid is None or high is None else f"{mid:,.2f} [{low:,.2f} to {high:,.2f}]"


def time_line(rows: Sequence[Estimate], speed: Speed | None) -> str:
    """How long it will take yet: by the pace of a run's own steps, else by `speed`."""
    known = {row.use: row.seconds for row in rows if row.seconds is not None}
    parts = [f"time left for steps: about {duration(seconds)}" for seconds in known.values()]
    others = []
    for row in rows:
        if speed is not None and row.use not in known and row.high.counted:
            expected, most = duration(speed.seconds(row.expected)), duration(speed.seconds(row.high))
            # Where nothing is known but max_tokens, what is expected is the most.
            bound = row.low.completion == 0
            said = f"{most} if every completion takes max_tokens" if bound else f"{expected} (up to about {most})"
            others.append(f"{row.use} about {said}")
    if others:
        parts.append(f"time: {', '.join(others)} ({speed})")
    return "; ".join(parts) or "time: not known before three steps of a run, or by a probe (coderl estimate --probe)"


def forecast_line(settings: TrainSettings, pool: FoundPool, path: Path | None) -> str | None:
    """What the run will take in all; None for one without an end."""
    return None if settings.max_steps == -1 else _forecast(training_estimates(settings, pool, path))


def priced_forecast(settings: CurateSettings | EvaluateSettings, problems: Sequence[Problem]) -> str | None:
    """What the profile or the evaluation of `problems` will take, and what caps it; None without prices or problems."""
    if cost_price(settings) is None or not problems:
        return None
    if isinstance(settings, CurateSettings):
        row = _profile_row(settings, problems)
    else:
        row = _evaluating(settings, [len(problems)], _lengths_at_max_tokens(settings, problems), settings.n_samples)
    cap = "N" if settings.max_usd is None else f"{settings.max_usd:g}"
    return f"{_forecast([row])}; max_usd={cap} caps it"


def _forecast(rows: Sequence[Estimate]) -> str:
    form = "{} {:,} tokens (at most about {:,}), {} USD"
    parts = [form.format(row.use, row.expected.counted, row.high.counted, usd_text(row)) for row in rows]
    return f"estimate: {'; '.join(parts)}; by {rows[0].by}"


def minutes_line(settings: TrainSettings, pool: FoundPool, path: Path | None) -> str | None:
    """How long the run will take by an earlier run of the model; None where none tells, or it takes under SOON_S."""
    speed = None if settings.max_steps == -1 else recorded_speed(settings)
    if speed is None or pool_profile(pool) is None:
        return None
    rows = training_estimates(settings, pool, path)
    return time_line(rows, speed) if sum(speed.seconds(row.expected) for row in rows) >= SOON_S else None


def recorded_speed(settings: FlowSettings) -> Speed | None:
    """The speed of this model on this server in the newest run here, one of the same max_tokens first; None if none."""
    address = clients.service_address(tinker_credentials()[0]) if uses_tinker_service() else None
    files = [(file.stat().st_mtime_ns, file.parent) for file in runs_root().glob(f"*/{CONFIG_FILE}")]
    other_lengths = None
    for _, folder in sorted(files, reverse=True):
        try:
            config = recorded_config(folder) or {}
            server = (config.get("probe") or {}).get("service")
            if server != address or not same_model(str(config.get("model_name")), settings.model_name):
                continue
            speed = _speed_of(metrics_rows(folder / "metrics.jsonl"), f"run {folder.name!r}")
        except DataError:  # a damaged run: naming it says what is wrong
            continue
        if speed is not None and config.get("max_tokens") == settings.max_tokens:
            return speed
        other_lengths = other_lengths or speed
    return other_lengths


def _speed_of(rows: list[dict[str, Any]], by: str) -> Speed | None:
    """The speed that the last of a run's rows of metrics show, those with times; None where no such step trained."""
    # Not of steps that an earlier process had sampled in part.
    steps = [row for row in rows if row.get("tokens_completion") and row.get("time_sample_s")][-LAST_STEPS:]
    trained = [row for row in steps if row.get("tokens_training") and row.get("time_train_s")]
    if not trained:
        return None
    sampled = sum(row["tokens_completion"] for row in steps)
    phases = ("sample", "train", "step")
    sample_s, train_s, step_s = (math.fsum(row[f"time_{phase}_s"] for row in steps) for phase in phases)
    if sample_s + train_s > step_s:  # steps were sampled while others were trained: only both together have a pace
        return Speed(sampled / step_s, math.inf, f"{by}, which trained meanwhile")
    sampling_s = math.fsum(max(row["time_sample_s"], row["time_step_s"] - row["time_train_s"]) for row in steps)
    training = sum(row["tokens_training"] for row in trained) / math.fsum(row["time_train_s"] for row in trained)
    return Speed(sampled / sampling_s, training, by)


async def probed_speed(settings: FlowSettings) -> Speed:
    """Measures tokens per second now, on the service or a server started for this: samples a few hundred tokens and, if
    `settings` are of a training, updates once on some. Raises as sampling does."""
    renderer = renderer_of(settings)
    prompt = renderer.prompt_tokens([{"role": "user", "content": "Write a Python program that sorts its input. " * 8}])
    stop, (count, max_tokens) = environment_of(settings).stop(renderer), PROBED
    with nullcontext() if uses_tinker_service() else embedded_tinker(settings.model_name) as server:
        service = await clients.connect(*(tinker_credentials() if server is None else (server.url, server.key)))
        try:
            sampler = await clients.create_sampling_client(service, base_model=settings.model_name)
            sample = partial(sample_group, sampler, prompt, temperature=1.0, stop=stop)
            await sample(num_samples=2, max_tokens=2, seed=0)  # the first request loads and compiles
            started = time.monotonic()
            completions = await sample(num_samples=count, max_tokens=max_tokens, seed=1)
            n_sampled = sum(len(completion.tokens) for completion in completions)
            sampling_speed = n_sampled / (time.monotonic() - started)
            training_speed = math.inf  # where no update is timed: it adds no seconds
            usable = [completion for completion in completions if completion.logprobs]
            if isinstance(settings, TrainSettings) and usable:
                model, rank = settings.model_name, settings.lora_rank
                trainer = await clients.create_training_client(service, model, lora_rank=rank, seed=settings.seed)
                datums = [
                    make_datum([*prompt, *each.tokens], pl.Series(each.logprobs).to_numpy(), len(prompt), advantage=1.0)
                    for each in usable[:TRAINED]
                ]
                started = time.monotonic()
                await asyncio.to_thread(train_step, trainer, datums, adam_params(settings.learning_rate))
                tokens = sum(datum.model_input.length for datum in datums)
                training_speed = tokens / (time.monotonic() - started)
        finally:
            await clients.disconnect(service)
    return Speed(sampling_speed, training_speed, by=f"a probe of {n_sampled} tokens")
