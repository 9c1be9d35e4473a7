"""curate: raw problems -> pass rates of the base model -> a mixed-difficulty pool in data/pools/."""

import math
import shlex
import sys
from pathlib import Path

import polars as pl
from prefect import flow

import flows  # noqa: F401 - first: Prefect loads this file by its path, without its package
from coderl_tasks.curation.find_pool import finished_with
from coderl_tasks.curation.from_run import RunPolicy, base_policy, policy_in, told_by
from coderl_tasks.curation.labels import learn_prior, rules_for_labels, with_labels
from coderl_tasks.curation.pool import Mix, Pool, build_pool, require_problems, write_pool
from coderl_tasks.curation.profile import Prices, drop_long_prompts
from coderl_tasks.curation.screen import Screen, Screened
from coderl_tasks.curation.solutions import Status, split_by_solutions
from coderl_tasks.curation.stopping_rule import Band, StoppingRule
from coderl_tasks.curation.tasks import Shard, check_shard, filter_problems, profile, profile_plan
from coderl_tasks.filtering.parts import KeptProblems
from coderl_tasks.insight.pool_view import pool_markdown
from coderl_tasks.insight.record import load_curation
from coderl_tasks.insight.report import write_report
from coderl_tasks.journal.atomic import make_folder, read_json, write_parquet
from coderl_tasks.journal.ledger import cost_line, cost_price, curation_budget, pool_spent
from coderl_tasks.journal.recorded_json import recorded_settings, working_in
from coderl_tasks.paths import BUNDLED_MODELS, MANIFEST_FILE, POOLS, same_model
from coderl_tasks.planning.flow_plans import INHERITED, plan_curation
from coderl_tasks.problems.loading import LoadResult, same_source
from coderl_tasks.problems.problem import Drop
from coderl_tasks.problems.profile_columns import SHARD_SCHEMA, SOLUTION_SCHEMA
from coderl_tasks.rollouts.engine import Session, open_session
from coderl_tasks.rollouts.rounds import RuleOf
from coderl_tasks.runtime.display import (
    Display,
    command_line,
    is_part,
    name_flow_run,
    publish_or_warn,
    saying_what_next,
)
from coderl_tasks.runtime.remote_shards import profile_elsewhere
from coderl_tasks.services import services
from coderl_tasks.settings import CurateSettings, TrainSettings
from coderl_tasks.settings.setting import words_of


@flow(name="curate")
async def curate(settings: CurateSettings) -> str:
    """Profile the base model on a data set's problems; keep those in the pass rate band. Returns the pool's folder."""
    settings, folder = await plan_curation(settings)
    content = settings.content()
    display = Display()
    display.say(f"pool directory: {folder}")
    for key, shares in (("mix", settings.mix), ("mix_splits", settings.mix_splits)):
        if shares and not math.isclose(total := sum(shares.values()), 1):
            scaled = ", ".join(f"{name} {share / total:.0%}" for name, share in shares.items())
            display.say(f"{key} adds up to {total:g}, and is scaled: {scaled}")
    await name_flow_run(folder.name)
    if recorded_settings(folder) == content:
        if finished_with(folder) == content:
            display.say("finished before with these settings: nothing is sampled (name=NAME makes another pool)")
        else:
            display.say("going on where an earlier start with these settings stopped (name=NAME starts another pool)")
    command = command_line("curate", settings, name=pool_name(folder))
    with working_in(folder, content, instead="choose another name"), saying_what_next(display, command):
        pool = await _curate(settings, folder, display)
    bundled_notes = [
        f" ({model} solves only problems like {dataset}'s)"
        for model, dataset in BUNDLED_MODELS.items()
        if same_model(settings.model_name, model) and not same_source(settings.dataset, dataset)
    ]
    require_problems(pool, folder, "".join(bundled_notes))
    dropped = pool.drops_in_words()
    display.say(f"{pool.pool.height} of {pool.read} problems kept{f'; dropped: {dropped}' if dropped else ''}")
    if settings.is_profiled:
        display.say(cost_line(pool_spent(read_json(folder / MANIFEST_FILE)), cost_price(settings)))
    if pool.short:
        display.say(f"the pool does not have the mix asked for: {pool.mix.shortfall(pool.short)}")
    if not is_part():
        display.say(f"to train on it: {training_command(settings, folder)}")
    return str(folder)


def training_command(settings: CurateSettings, folder: Path) -> str:
    """The command that trains on the pool in `folder`, with the model and the environment that it was made with."""
    shared = {"preset", *INHERITED} & TrainSettings.model_fields.keys()
    same = {key: value for key, value in settings.changed().items() if key in shared}
    return shlex.join(["coderl", "train", *words_of(same | {"pool": pool_name(folder)})])


def pool_name(folder: Path) -> str:
    """What `name` says to name the pool in `folder`."""
    return folder.name if folder.parent == POOLS.resolve() else str(folder)


async def _curate(settings: CurateSettings, folder: Path, display: Display) -> Pool:
    """Filters and profiles the problems, and writes the pool to `folder`, whose lock this process holds."""
    policy = policy_in(folder, settings) if settings.from_run is not None else None
    with services(settings.model_name, settings.model_reason) as used:
        for line in used.lines:
            display.say(line)
        used.require_hidden(folder)
        # Before the data are read: opening the session checks that all services can be used.
        async with open_session(settings, used, curation_budget(settings, folder)) as session:
            with display.reading(f"reading {settings.dataset}") as on_rows:
                filtered = filter_problems(settings, folder / "screening", on_rows)
            for line in filtered.lines():
                display.say(line)
            filtered.require_problems()
            # Without their tests: later stages read these shard by shard, and once more to write the pool.
            loaded = LoadResult(list(filtered.kept.outlines()), filtered.dropped, filtered.read)
            checks = await _check_solutions(session, settings, filtered.kept, folder, display)
            sound, unsound = split_by_solutions(loaded.problems, checks)
            # Before the profile: no sample is paid for on a prompt that leaves no room for a completion.
            limits = {"max_tokens": settings.max_tokens, "context": session.context}
            fitting, too_long = drop_long_prompts(sound, session.renderer, environment=session.environment, **limits)
            whole = filtered.kept.only([problem.problem_id for problem in fitting])
            screen: Screen | None = None
            unlearnable: list[Drop] = []
            profiled: pl.DataFrame | None = None
            if not settings.is_profiled:
                display.say("profile_mode=none: nothing is sampled, and pass rates are not known")
            elif settings.profile_mode == "screen":
                lengths = [len(session.environment.prompt(problem, session.renderer)) for problem in fitting]
                band = Band(settings.band_low, settings.band_high)
                screen = Screen(fitting, lengths, band, settings.profile_samples, settings.seed)
                profiled, unlearnable = await _screened_profile(session, settings, screen, whole, folder, display)
            elif policy is not None:
                profiled = await _refreshed_profile(session, settings, policy, whole, folder, display)
            else:
                profiled = await _profile(session, settings, whole, folder, display)
            if profiled is not None and (rules := _rules_for_labels(settings, profiled, display)):
                profiled = await _profile(session, settings, whole, folder, display, rules.get)
    prior = screened = None
    if profiled is not None and screen is not None:
        beliefs = screen.beliefs(profiled)
        prior, screened = beliefs.prior, Screened(beliefs.chances, settings.screen_drop)
        profiled = with_labels(profiled, prior, beliefs.distributions)
    elif profiled is not None:
        prior = learn_prior(profiled)
        profiled = with_labels(profiled, prior)
    size = None if settings.pool_size == -1 else settings.pool_size
    pool = build_pool(
        *(loaded, profiled),
        drops=[*unsound, *too_long, *unlearnable],
        band_low=settings.band_low,
        band_high=settings.band_high,
        mix=Mix(dict(settings.mix.items()), settings.mix_splits, size, settings.seed),
        prior=prior,
        screened=screened,
    )
    made_for = None
    if profiled is not None:
        made_for = base_policy(settings.model_name) if policy is None else policy.as_dict()
    write_pool(folder, pool, settings.content(), policy=made_for, inputs=filtered.manifest, whole=filtered.kept)
    await publish_or_warn("pool", folder.name, pool_markdown(load_curation(folder), pool.band))
    display.say(f"report: {write_report(folder)}")
    return pool


async def _check_solutions(
    session: Session, settings: CurateSettings, problems: KeptProblems, folder: Path, display: Display
) -> pl.DataFrame:
    """The checks (SOLUTION_SCHEMA) of all `problems` with their own solutions, shard by shard, written to
    `folder`/solutions.parquet, and recorded in its solutions/ as they end; none if that is off."""
    frames = [pl.DataFrame(schema=SOLUTION_SCHEMA)]
    if not settings.check_solutions:
        return frames[0]
    shards = _shards(session, settings, problems, folder / "solutions")
    for number, shard in enumerate(shards):
        async with display.bar(f"checking solutions, shard {number + 1} of {len(shards)}") as on_progress:
            frames.append(await check_shard(shard, number, on_progress))
    checks = pl.concat(frames)
    write_parquet(make_folder(folder) / "solutions.parquet", checks)
    if undecided := checks.filter(status=Status.UNDECIDED.value).height:
        display.say(f"{undecided} problems stay in unchecked: the sandbox could not run their solutions")
    return checks


def _shards(
    session: Session,
    settings: CurateSettings,
    problems: KeptProblems,
    folder: Path,
    policy: RunPolicy | None = None,
) -> list[Shard]:
    parts = enumerate(problems.shards(settings.shard_size))
    return [Shard(session, settings, part, folder / f"{number:04d}", policy) for number, part in parts]


async def _profile(
    session: Session,
    settings: CurateSettings,
    problems: KeptProblems,
    folder: Path,
    display: Display,
    rule_of: RuleOf | None = None,
    sampled: frozenset[str] | None = None,
    policy: RunPolicy | None = None,
) -> pl.DataFrame:
    """Profiles `problems`, or only those with ids in `sampled`, shard by shard, and returns the profiles
    (SHARD_SCHEMA). `rule_of` gives a problem the stopping rule for further rounds, or None."""
    shards = _shards(session, settings, problems, folder / "shards", policy)
    if settings.shards == "deployment":
        return await profile_elsewhere(settings, [shard.problems for shard in shards], folder, display)
    frames = []
    for number, shard in enumerate(shards):
        what = "sampling for labels" if rule_of and policy is None else "profiling"
        async with display.bar(f"{what}, shard {number + 1} of {len(shards)}") as on_progress:
            frames.append(await profile(shard, number, on_progress, rule_of, sampled))
    return pl.concat([pl.DataFrame(schema=SHARD_SCHEMA), *frames])


async def _screened_profile(
    session: Session,
    settings: CurateSettings,
    screen: Screen,
    problems: KeptProblems,
    folder: Path,
    display: Display,
) -> tuple[pl.DataFrame, list[Drop]]:
    """Returns the profiles (SHARD_SCHEMA) of the problems worth sampling, and the drops of the others. The profiles so
    far decide what is sampled of each next part: only recorded samples count, so a resume decides the same."""
    wanted: set[str] = set()
    drops: list[Drop] = []
    profile = pl.DataFrame(schema=SHARD_SCHEMA)
    for part in screen.parts():
        worth_sampling, unlearnable = screen.split(part, profile, settings.screen_skip)
        wanted |= {problem.problem_id for problem in worth_sampling}
        drops += unlearnable
        profile = await _profile(session, settings, problems, folder, display, sampled=frozenset(wanted))
    if drops:
        display.say(f"screened: {len(drops):,} of {len(problems):,} problems are hardly learnable, and not sampled")
    return profile, drops


async def _refreshed_profile(
    session: Session,
    settings: CurateSettings,
    policy: RunPolicy,
    problems: KeptProblems,
    folder: Path,
    display: Display,
) -> pl.DataFrame:
    """The profile (SHARD_SCHEMA) of the problems for a run's policy, by its rollouts and what they leave open."""
    told = told_by(policy, problems, Prices(settings.price_prompt, settings.price_completion))
    plan = profile_plan(settings)
    names = problems.table["problem_id"].to_list()
    unsettled = told.unsettled(names, plan)
    display.say(
        f"policy: {policy.run} after step {policy.step}; its rollouts tell of {len(told.counts):,} of {len(names):,} "
        f"problems and settle {len(names) - len(unsettled):,}, the others are sampled"
    )
    rule_of = told.rule_of(plan)
    sampled = await _profile(session, settings, problems, folder, display, rule_of, unsettled, policy)
    return told.with_samples(names, sampled)


def _rules_for_labels(settings: CurateSettings, profile: pl.DataFrame, display: Display) -> dict[str, StoppingRule]:
    """The rules of the problems that are worth further samples, of the `label_samples` per problem of this profile."""
    plan = profile_plan(settings)
    if not settings.label_budget or not isinstance(plan.rule, StoppingRule) or settings.from_run is not None:
        return {}
    budget = settings.label_budget * len(profile)
    rules, expected = rules_for_labels(profile, learn_prior(profile), plan, plan.rule, budget)
    display.say(f"labels in doubt: about {expected:,.0f} further samples of {len(rules):,} problems")
    return rules


if __name__ == "__main__":
    from coderl_tasks.cli import command

    command(["curate", *sys.argv[1:]])
