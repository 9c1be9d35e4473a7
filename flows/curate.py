"""curate: raw problems -> pass rates of the base model -> a mixed-difficulty pool in data/pools/."""

import math
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from prefect import flow
from prefect.concurrency.asyncio import concurrency

import flows  # noqa: F401 - first: Prefect loads this file by its path, without its package
from coderl_tasks.addresses import joined
from coderl_tasks.curation import tasks
from coderl_tasks.curation.find_pool import finished_with
from coderl_tasks.curation.from_run import RunPolicy, base_policy, estimate_from_run, policy_in
from coderl_tasks.curation.labels import learn_prior, rules_for_labels, with_labels
from coderl_tasks.curation.pool import Mix, Pool, build_pool, recorded_pool, require_problems, write_pool
from coderl_tasks.curation.pool_audit import split_by_audit
from coderl_tasks.curation.profile import Prices, drop_long_prompts
from coderl_tasks.curation.screen import Screen, Screened
from coderl_tasks.curation.solutions import Status, inferred_comparators, split_by_solutions
from coderl_tasks.curation.stopping_rule import Band, Further
from coderl_tasks.curation.stronger_tests import counted_again, generated_tests, strengthened_in_words
from coderl_tasks.curation.tasks import ALL_ALIKE, Asked, Shard
from coderl_tasks.errors import ConfigError
from coderl_tasks.filtering.parts import KeptProblems
from coderl_tasks.filtering.stages import BENCHMARKS, FilterResult
from coderl_tasks.insight.audit_view import audit_in_words
from coderl_tasks.insight.pool_view import pool_markdown
from coderl_tasks.insight.record import load_curation
from coderl_tasks.insight.report import write_audit, write_report
from coderl_tasks.journal.atomic import make_folder, read_json, write_json, write_parquet
from coderl_tasks.journal.ledger import cost_line, cost_price, curation_budget, pool_spent
from coderl_tasks.journal.recorded_json import recorded_settings, working_in
from coderl_tasks.paths import BUNDLED_MODELS, MANIFEST_FILE, POOLS, same_model
from coderl_tasks.planning.estimates import priced_forecast
from coderl_tasks.planning.flow_plans import INHERITED, plan_curation
from coderl_tasks.problems.loading import LoadResult, same_source
from coderl_tasks.problems.problem import Drop, Problem
from coderl_tasks.problems.profile_columns import AUDIT_SCHEMA, SHARD_SCHEMA, SOLUTION_SCHEMA, STRENGTH_SCHEMA
from coderl_tasks.rollouts.engine import Session, open_session
from coderl_tasks.rollouts.rounds import Progress
from coderl_tasks.runtime.display import (
    Display,
    command_line,
    exclusive_flow,
    interruptible,
    is_subflow,
    name_flow_run,
    publish_later,
    saying_what_next,
)
from coderl_tasks.runtime.remote_shards import RemoteShards, profile_remotely, recorded_at
from coderl_tasks.services import services
from coderl_tasks.settings import CurateSettings, TrainSettings
from coderl_tasks.settings.setting import words_of
from flows.profile_shard import LIMITS, profile_recorded


@flow(name="curate")
@exclusive_flow
async def curate(settings: CurateSettings) -> str:
    """Makes a pool of problems to train on: estimates the base model's pass rate on each problem of a data set from
    samples (the profile), and keeps the problems whose pass rate is in a band. Returns the pool's folder."""
    settings, folder = await plan_curation(settings)
    content = settings.content()  # what decides the pool: two starts with equal ones are one curation
    display = Display()
    display.say(f"pool directory: {folder}")
    for key, shares in (("mix", settings.mix), ("mix_splits", settings.mix_splits)):
        if shares and not math.isclose(total := sum(shares.values()), 1):  # shares are weights
            scaled = ", ".join(f"{name} {share / total:.0%}" for name, share in shares.items())
            display.say(f"{key} adds up to {total:g}, and is scaled: {scaled}")
    name_flow_run(folder.name)
    if recorded_settings(folder) == content:
        if finished_with(folder) == content and settings.replace:
            display.say("finished before with these settings: made again, from the samples that are recorded")
        elif finished_with(folder) == content:
            # `_curate` then returns what is recorded.
            display.say(
                "finished before with these settings: nothing is sampled (name=NAME makes another pool; replace=true "
                "makes this one again, and grades what could not be graded)"
            )
        else:
            display.say("continuing where an earlier start with these settings stopped (name=NAME starts another pool)")
    command = command_line("curate", settings, name=pool_name(folder))
    with working_in(folder, content, instead="choose another name"), saying_what_next(display, command):
        pool = await _curate(settings, folder, display)
    bundled_notes = [  # advice for an empty pool: the small models that come with coderl know one data set each
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
    if not is_subflow():  # a pipeline trains on it itself
        # With the model and the environment that the pool was made with, where they were given.
        shared = {"preset", *INHERITED} & TrainSettings.model_fields.keys()
        same = {key: value for key, value in settings.changed().items() if key in shared}
        command = shlex.join(["coderl", "train", *words_of(same | {"pool": pool_name(folder)})])
        display.say(f"to train on it: {command}")
    return str(folder)


def pool_name(folder: Path) -> str:
    """What `name` says to name the pool in `folder`."""
    return folder.name if folder.parent == POOLS.resolve() else str(folder)


# Works on a shard, by its number; returns a row per problem.
ShardTask = Callable[[Shard, int, Progress], Awaitable[pl.DataFrame]]


class Profiled(NamedTuple):
    """What was sampled."""

    frame: pl.DataFrame | None = None  # a row of SHARD_SCHEMA per problem
    screen: Screen | None = None  # profile_mode=screen: the model of pass rates that decided what to sample
    drops: Sequence[Drop] = ()  # of the problems that it left out


@dataclass(frozen=True, slots=True)
class Curation:
    """The work on problems of a curation in `folder`, which this process holds: done and recorded shard by shard."""

    settings: CurateSettings
    folder: Path
    display: Display
    session: Session

    def shards(self, problems: KeptProblems, kind: str, asked: Asked = ALL_ALIKE) -> list[Shard]:
        """`problems` in shards, each recorded in a folder below `kind` of the curation's folder."""
        return [
            Shard(self.session, self.settings, part, self.folder / kind / f"{number:04d}", asked.of(part))
            for number, part in enumerate(problems.shards(self.settings.shard_size))
        ]

    async def shard_by_shard(
        self, what: str, shards: Sequence[Shard], work: ShardTask, schema: Mapping[str, pl.DataType]
    ) -> pl.DataFrame:
        """What a task makes of each shard (`schema`), with a bar that says `what` it does."""
        frames = [pl.DataFrame(schema=schema)]
        for number, shard in enumerate(shards):
            async with self.display.bar(f"{what}, shard {number + 1} of {len(shards)}") as on_progress:
                frames.append(await work(shard, number, on_progress))
        return pl.concat(frames)

    async def check_solutions(self, problems: KeptProblems) -> pl.DataFrame:
        """The checks (SOLUTION_SCHEMA) of all `problems` with their own solutions, also written; no rows if off."""
        if not self.settings.check_solutions:
            return pl.DataFrame(schema=SOLUTION_SCHEMA)
        shards = self.shards(problems, "solutions")
        checks = await self.shard_by_shard("checking solutions", shards, tasks.check_shard, SOLUTION_SCHEMA)
        write_parquet(make_folder(self.folder) / "solutions.parquet", checks)
        if undecided := checks.filter(status=Status.UNDECIDED.value).height:
            self.display.say(f"{undecided} problems are kept unchecked: the sandbox could not run their solutions")
        if self.settings.checkers == "infer":
            suspects = f"{sum(checks['multi_answer_suspect'])} other problems may have several right answers"
            self.display.say(f"{checks['inferred_comparator'].count()} comparators inferred; {suspects}")
        return checks

    async def drop_untrainable(
        self, problems: KeptProblems, outlines: list[Problem], checks: pl.DataFrame
    ) -> tuple[list[Problem], pl.DataFrame | None, list[Drop]]:
        """Drops problems whose own solutions fail (`checks`), whose prompt is too long, or that the audit finds faulty,
        before samples cost anything. Returns the others of `outlines` (`problems` without tests), audit and drops."""
        settings, session = self.settings, self.session
        sound, unsound = split_by_solutions(outlines, checks, drop_suspects=settings.multi_answer == "drop")
        limits = {"max_tokens": settings.max_tokens, "context": session.context}
        fitting, too_long = drop_long_prompts(sound, session.renderer, environment=session.environment, **limits)
        audits = await self.audit(problems.only([problem.problem_id for problem in fitting]), checks)
        if audits is None or settings.audit != "drop":
            return fitting, audits, [*unsound, *too_long]
        repairable = ["weak"] if settings.strengthen else []  # weak tests are no fault if others will be generated
        faultless, faulty = split_by_audit(fitting, audits, keep=repairable)
        return faultless, audits, [*unsound, *too_long, *faulty]

    async def audit(self, problems: KeptProblems, checks: pl.DataFrame) -> pl.DataFrame | None:
        """The audit (AUDIT_SCHEMA) of all `problems`, also written as table and page; None if off."""
        if self.settings.audit == "off":
            return None
        shards, work = self.shards(problems, "audit"), partial(tasks.audit_shard, checks=checks)
        audits = await self.shard_by_shard("auditing", shards, work, AUDIT_SCHEMA)
        self.display.say(f"{audit_in_words(audits)}: {write_audit(self.folder, audits, pool_name(self.folder))}")
        return audits

    async def profile_problems(self, problems: KeptProblems, asked: Asked = ALL_ALIKE) -> pl.DataFrame:
        """Profiles those of `problems` that are asked for, and returns the profiles (SHARD_SCHEMA)."""
        shards = self.shards(problems, "shards", asked)
        if self.settings.shards == "here":
            what = "sampling for labels" if asked.rules and asked.policy is None else "profiling"
            return await self.shard_by_shard(what, shards, tasks.profile, SHARD_SCHEMA)
        parts = {
            number: (shard.problems, shard.asked.to_json())
            for number, shard in enumerate(shards)
            if shard.asked.sampled is None or shard.asked.sampled
        }

        async def profile_here(number: int, address: str, result: str, caps: Mapping[str, float]) -> None:
            async with concurrency(LIMITS), recorded_at(address) as (folder, send_changes):
                shard = replace(shards[number], folder=folder, settings=self.settings.with_changes(**caps))
                await profile_recorded(shard, number, result, send_changes)

        remote = RemoteShards(self.settings, self.display, self.session.budget, profile_here)
        return await profile_remotely(remote, parts, self.folder)

    async def strengthen(self, problems: KeptProblems, profile: pl.DataFrame | None) -> pl.DataFrame | None:
        """The generated tests (STRENGTH_SCHEMA) of all `problems`, by the completions that passed in their `profile`
        (SHARD_SCHEMA; None: there is none); also written to strengthened.parquet. None if off."""
        if not self.settings.strengthen:
            return None
        profiles = joined(self.settings.record_address(self.folder), "shards")
        counted = pl.DataFrame(schema=SHARD_SCHEMA) if profile is None else profile
        work = partial(tasks.strengthen_shard, profiles=profiles, profile=counted)
        shards = self.shards(problems, "strengthened")
        table = await self.shard_by_shard("strengthening tests", shards, work, STRENGTH_SCHEMA)
        write_parquet(make_folder(self.folder) / "strengthened.parquet", table)
        self.display.say(strengthened_in_words(table))
        return table

    async def profile_all(self, problems: KeptProblems, outlines: list[Problem], policy: RunPolicy | None) -> Profiled:
        """Profiles `policy` (None: the base model) on `problems` as profile_mode says; `outlines` have no tests."""
        settings, session = self.settings, self.session
        if not settings.is_profiled:
            self.display.say("profile_mode=none: nothing is sampled, and pass rates are not known")
            return Profiled()
        # Only a service bills; of a run's policy most of what is needed may be recorded already.
        if policy is None and session.service_address is not None and (line := priced_forecast(settings, outlines)):
            self.display.say(line)
        if settings.profile_mode == "screen":
            prompt_tokens = [len(session.environment.prompt(problem, session.renderer)) for problem in outlines]
            band = Band(settings.band_low, settings.band_high)
            screen = Screen(outlines, prompt_tokens, band, settings.profile_samples, settings.seed)
            profiled = await self.profile_learnable(problems, screen)
        elif policy is not None:
            return Profiled(await self.profile_run_policy(problems, policy))
        else:
            profiled = Profiled(await self.profile_problems(problems))
        # A second pass: the problems whose difficulty is in doubt get further samples.
        if policy is None and profiled.frame is not None and (rules := self.label_rules(profiled.frame)):
            profiled = profiled._replace(frame=await self.profile_problems(problems, Asked(rules)))
        return profiled

    async def profile_learnable(self, problems: KeptProblems, screen: Screen) -> Profiled:
        """Profiles the problems worth sampling, and drops the others. The profiles so far decide what is sampled of
        each next part: only recorded samples count, so a resume decides the same."""
        wanted: set[str] = set()
        drops: list[Drop] = []
        profiles = pl.DataFrame(schema=SHARD_SCHEMA)
        for part in screen.parts():
            worth_sampling, unlearnable = screen.split(part, profiles, self.settings.screen_skip)
            wanted |= {problem.problem_id for problem in worth_sampling}
            drops += unlearnable
            profiles = await self.profile_problems(problems, Asked(sampled=frozenset(wanted)))
        if drops:
            screened = f"{len(drops):,} of {len(problems):,} problems are hardly learnable, and not sampled"
            self.display.say(f"screened: {screened}")
        return Profiled(profiles, screen, drops)

    async def profile_run_policy(self, problems: KeptProblems, policy: RunPolicy) -> pl.DataFrame:
        """The profiles (SHARD_SCHEMA) for a run's policy, by its rollouts, and samples where these do not suffice."""
        told = estimate_from_run(policy, problems, Prices(self.settings.price_prompt, self.settings.price_completion))
        names, rule = problems.table["problem_id"].to_list(), tasks.stopping_rule(self.settings)
        rules = {name: Further(rule, k, n) for name, (k, n) in told.counts.items()}
        plan = replace(tasks.profile_plan(self.settings), rules=rules)
        unsettled = frozenset(name for name in names if name not in rules or not plan.is_enough(0, 0, name))
        self.display.say(
            f"policy: {policy.run} after step {policy.step}; its rollouts tell of {len(told.counts):,} of "
            f"{len(names):,} problems and settle {len(names) - len(unsettled):,}, the others are sampled"
        )
        return told.with_samples(names, await self.profile_problems(problems, Asked(rules, unsettled, policy)))

    def label_rules(self, profiles: pl.DataFrame) -> dict[str, Further]:
        """The rules, by problem id, of the problems worth further samples of the `label_samples` per problem."""
        plan, rule = tasks.profile_plan(self.settings), tasks.stopping_rule(self.settings)
        if not self.settings.label_budget or rule is None:
            return {}
        budget = self.settings.label_budget * len(profiles)
        rules, expected = rules_for_labels(profiles, learn_prior(profiles), plan, rule, budget)
        self.display.say(f"labels in doubt: about {expected:,.0f} further samples of {len(rules):,} problems")
        return {name: Further(rule) for name, rule in rules.items()}


def _require_same_data(folder: Path, inputs: Mapping[str, Any]) -> None:
    """Raises ConfigError if the finished pool in `folder` is of other data than `inputs` (of filtering) names."""

    def content(inputs: Mapping[str, Any], side: str) -> list[tuple[str, str]]:
        """The split and the hash of each file of a side, as far as these decide its rows."""
        files = inputs.get(side, [])
        # A single file is named by `dataset`, and its split by the file: of problem packages by when they were written.
        is_named_by_file = len(files) == 1 and files[0]["file"].startswith(f"{files[0]['split']}.")
        return [("" if is_named_by_file else each["split"], each["sha256"]) for each in files]

    before = read_json(folder / MANIFEST_FILE).get("inputs")
    if before and any(content(before, side) != content(inputs, side) for side in ("train", "evaluation", BENCHMARKS)):
        raise ConfigError(
            f"the data have changed since the pool {folder} was finished: name=ANOTHER makes another pool, "
            "replace=true makes it again (runs trained on it can then not be resumed)"
        )


def _with_recorded_shard_size(settings: CurateSettings, folder: Path, display: Display) -> CurateSettings:
    """`settings` with the shard size of an earlier start in `folder`, recorded now if there was none: shards of another
    size would hold other problems, and no record would be used."""
    file = folder / "shard_size.json"
    is_elsewhere = settings.record_address(folder) != str(folder.resolve())
    stages = ("solutions", "audit", "shards", "strengthened")
    has_records = is_elsewhere or any((folder / stage).is_dir() for stage in stages)
    if not file.is_file() or not has_records:
        write_json(file, {"shard_size": settings.shard_size})
    recorded = read_json(file)["shard_size"]
    if recorded != settings.shard_size:
        display.say(f"shard_size={settings.shard_size} is ignored: this curation began with {recorded}")
    return settings.with_changes(shard_size=recorded)


async def _filter(settings: CurateSettings, folder: Path, display: Display) -> FilterResult:
    async with interruptible():
        with display.reading(f"reading {settings.dataset}") as on_rows:
            return tasks.filter_problems(settings, folder / "screening", on_rows)


async def _curate(settings: CurateSettings, folder: Path, display: Display) -> Pool:
    """Makes the pool in `folder`, whose lock this process holds: filters the problems, drops those that cannot be
    trained on, profiles the rest, selects by pass rate, and writes the pool. Each stage records its work: a resume
    repeats none. A pool that is finished with these settings is returned as recorded, unless `replace` asks for it
    again. Raises ConfigError if its data have changed, which cannot be seen if the records of the work are gone (coderl
    clean --parts)."""
    if finished_with(folder) == settings.content() and not settings.replace:
        if (folder / "screening").is_dir():
            filtered = await _filter(settings, folder, display)
            _require_same_data(folder, filtered.manifest)
            display.say(f"report: {write_report(folder)}")  # a kill behind the manifest may have left none
        return recorded_pool(folder)
    policy = policy_in(folder, settings) if settings.from_run is not None else None
    with services(settings.model_name, settings.model_reason) as used:
        for line in used.lines:
            display.say(line)
        used.require_hidden(folder)
        # Before the data are read: opening the session checks that all services can be used.
        async with open_session(settings, used, curation_budget(settings, folder)) as session:
            filtered = await _filter(settings, folder, display)
            for line in filtered.lines():
                display.say(line)
            filtered.require_problems()
            # Not before something is recorded: a folder with settings alone counts as never started.
            settings = _with_recorded_shard_size(settings, folder, display)
            curation = Curation(settings, folder, display, session)
            checks = await curation.check_solutions(filtered.kept)
            # Solutions that do not print what the tests expect may show that answers have to be compared in another
            # way (in any order, say). The profile and the training both grade by these inferred comparators.
            gradable = replace(filtered.kept, comparators=inferred_comparators(checks))
            # The problems without their tests: later stages read tests shard by shard, and once more for the pool.
            loaded = LoadResult(list(gradable.outlines()), filtered.dropped, filtered.read)
            trainable, audits, drops = await curation.drop_untrainable(gradable, loaded.problems, checks)
            problems = gradable.only([problem.problem_id for problem in trainable])  # the same ones, with their tests
            profiled = await curation.profile_all(problems, trainable, policy)
            profile = profiled.frame
            # After all samples: the completions that passed show which tests are missing, and are counted again.
            if (strengthened := await curation.strengthen(problems, profile)) is not None:
                gradable = replace(gradable, generated=generated_tests(strengthened))
                profile = None if profile is None else counted_again(profile, strengthened)
    # The prior, learnt from all profiles, is what to believe of a problem's pass rate before its own samples; with both
    # a problem gets its labels, how likely it is of which difficulty.
    prior = screened = None
    if profile is not None and profiled.screen is not None:
        beliefs = profiled.screen.beliefs(profile)
        prior, screened = beliefs.prior, Screened(beliefs.chances, settings.screen_drop)
        profile = with_labels(profile, prior, beliefs.distributions)
    elif profile is not None:
        prior = learn_prior(profile)
        profile = with_labels(profile, prior)
    size = None if settings.pool_size == -1 else settings.pool_size  # None: as many as the shares allow
    pool = build_pool(
        loaded,
        profile,
        drops=[*drops, *profiled.drops],
        checks=checks,
        audits=audits,
        band_low=settings.band_low,
        band_high=settings.band_high,
        mix=Mix(dict(settings.mix.items()), settings.mix_splits, size, settings.seed),
        prior=prior,
        screened=screened,
    )
    measured_policy = None  # whose pass rates the pool has
    if profile is not None:
        measured_policy = base_policy(settings.model_name) if policy is None else policy.as_dict()
    async with interruptible():
        write_pool(folder, pool, settings.content(), policy=measured_policy, inputs=filtered.manifest, whole=gradable)
    publish_later("pool", folder.name, pool_markdown(load_curation(folder)))
    display.say(f"report: {write_report(folder)}")
    return pool


if __name__ == "__main__":
    from coderl_tasks.cli import command

    command(["curate", *sys.argv[1:]])
