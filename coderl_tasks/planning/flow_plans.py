"""What a flow is going to do, settled before anything is started or written: its settings, base model and inputs. The
flow plans too, since a deployment starts it without the command. What the command has decided stays."""

import json
import logging
from dataclasses import replace
from datetime import date, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from coderl_tasks.curation.find_pool import FoundPool, finished_with, recorded_model, require_environment, wanted_pool
from coderl_tasks.curation.from_run import filled_from_run
from coderl_tasks.environments import environment_of, renderer_of
from coderl_tasks.environments.benchmarks import benchmark_settings, benchmark_sources, load_benchmarks
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.evaluation.pass_at_1 import evaluation_subset
from coderl_tasks.evaluation.policy import COMPLETIONS, FoundPolicy, find_policy
from coderl_tasks.insight.record import run_state
from coderl_tasks.journal.atomic import scan_parquet
from coderl_tasks.journal.ledger import require_price
from coderl_tasks.journal.recorded_json import (
    CONFIG_FILE,
    SETTINGS_FILE,
    config_changes,
    find_unfinished,
    recorded_config,
    recorded_settings,
)
from coderl_tasks.journal.run_directory import RunDirectory, allowed_changes, has_ended
from coderl_tasks.journal.run_names import LATEST, did_you_mean, doubt, is_name, near_runs, run_path, runs_root
from coderl_tasks.journal.steps import BASELINE, FINAL, EvalJournal
from coderl_tasks.paths import POOLS, find_local, known_sha256
from coderl_tasks.planning.early_checks import RecordedModel, check_data, check_place, deployed_name, with_decided_model
from coderl_tasks.policy.clients import served_by
from coderl_tasks.problems.loading import (
    NO_EVALUATION,
    SIDES,
    Dates,
    evaluation_side,
    is_held_out,
    require_other_problems,
    same_source,
)
from coderl_tasks.problems.problem import Problem, SpilledTests, check_pool
from coderl_tasks.services import (
    check_environment,
    embedded_tinker_serves,
    for_this_machine,
    tinker_credentials,
    uses_tinker_service,
)
from coderl_tasks.settings import CurateSettings, EvaluateSettings, FlowSettings, PipelineSettings, TrainSettings
from coderl_tasks.settings.flow_settings import COST_SETTINGS
from coderl_tasks.settings.setting import about, all_settings
from coderl_tasks.settings.train_settings import SERVICE_STEPS

logger = logging.getLogger(__name__)
# Settings that an evaluation of a run takes from the run where they are not given, besides its data (SIDES).
INHERITED = tuple(key for key, field in EvaluateSettings.model_fields.items() if about(field).inherited)


async def plan(settings: FlowSettings | PipelineSettings) -> FlowSettings | PipelineSettings:
    """The complete settings to start a flow with: with the base model decided, and completed from a recorded run or
    pool. Raises ConfigError or DataError for mistakes that show before the start, InfraError if Tinker fails."""
    if isinstance(settings, TrainSettings):
        # Checked here, not in the flow: a retry of the flow finds the run that its first attempt began.
        path = run_path(settings.log_path) if settings.resume == "never" and settings.log_path is not None else None
        if path is not None and (path / CONFIG_FILE).is_file():
            raise ConfigError(f"resume=never: there is a run in {path}: choose another log_path, or leave one out")
        return (await plan_training(settings))[0]
    if isinstance(settings, CurateSettings):
        return (await plan_curation(settings))[0]
    if isinstance(settings, PipelineSettings):
        return await plan_pipeline(settings)
    assert isinstance(settings, EvaluateSettings)
    if settings.compare is None:
        return (await plan_evaluation(settings))[0]
    for evaluation in evaluations_to_make(settings):
        await plan_evaluation(evaluation)  # only checks: the evaluation itself completes its settings from its run
    return settings


async def plan_curation(settings: CurateSettings) -> tuple[CurateSettings, Path]:
    """The settings, and the pool's folder, which may be there from an earlier start."""
    folder = _named_pool(settings)
    if settings.from_run is not None:
        settings = filled_from_run(settings.as_meant())
    settings = await with_decided_model(for_this_machine(settings), _model_of_pool(folder))
    check_curation(settings, folder or POOLS)
    if folder is None:
        content = settings.content()
        found = find_unfinished(POOLS.glob("*"), content, lambda folder: finished_with(folder) == content)
        folder = (found or POOLS / f"{datetime.now():%Y_%m_%d-%H_%M_%S}").resolve()
    return settings, folder


def _named_pool(settings: CurateSettings) -> Path | None:
    name = settings.name or deployed_name()
    if name is None:
        return None
    given = Path(name).expanduser()
    if ".." in given.parts or not given.parts:
        raise ConfigError(f"name={name}: give a name, for a folder below {POOLS}, or a folder's absolute path")
    return (POOLS / given).resolve()


def _model_of_pool(folder: Path | None) -> RecordedModel | None:
    if folder is None or (model_name := recorded_model(folder)) is None:
        return None
    return RecordedModel(f"the pool {folder}", model_name, "make another one (name=...) with one that it offers")


async def plan_training(settings: TrainSettings) -> tuple[TrainSettings, FoundPool | CurateSettings, Path | None]:
    """Checks what would fail later. Returns the complete settings; the pool, or the settings of the curation that makes
    it first; and the run directory: of log_path, else of an unfinished run with these settings, else None (a new one,
    named by the time). Raises ConfigError or DataError for mistakes, InfraError if the Tinker service does not answer.
    """
    path = training_path(settings)
    settings = complete_settings(settings, path)
    check_environment(settings.model_name)  # raises for bad environment variables
    recorded = recorded_config(path)  # None: the run is new
    is_finished = False
    if path is not None and recorded is not None and uses_tinker_service():
        # Opened with its recorded settings, so that looking changes nothing. Raises if another process trains in it.
        with RunDirectory.open(path, recorded, is_finished=partial(is_finished_run, settings=settings)) as directory:
            is_finished = directory.finished
    if not is_finished:  # else the service may have retired the model by now
        settings = await with_decided_model(settings, _model_of_run(path))
    if settings.thinking is not None:  # raises if the model has no such switch, before the run records the setting
        renderer_of(settings)
    environment_of(settings)  # raises for a reward file that cannot be used
    n_validation = settings.eval.validation_size if settings.eval.on == "validation" else 0  # not trained on
    pool = wanted_pool(settings, at_least=settings.problems_per_step + n_validation)
    if isinstance(pool, CurateSettings):  # there is none: the run makes it, in the folder `name`
        check_place(Path(str(pool.name)), "pool")
        check_training(settings, path)
        return settings, pool, path
    check_pool(pool.file)  # raises for a file that cannot be read, or without problems
    require_environment(pool, settings.environment)  # raises for a pool of another kind of task
    settings = settings.with_changes(pool=str(pool.file))
    if recorded is None:
        settings = _with_data_of_pool(settings, pool)  # what it kept for evaluation
    elif path is not None:
        allowed_changes(path, recorded, run_config(settings))  # raises for a setting that must stay
    check_training(settings, path)
    if settings.test_share is not None:  # what it holds out would be trained and evaluated on
        problem_ids = scan_parquet(pool.file).select("problem_id").collect()["problem_id"]
        if n_held := sum(is_held_out(problem_id, settings.test_share) for problem_id in problem_ids):
            raise ConfigError(
                f"test_share={settings.test_share:g}: the pool {pool.file} has {n_held} of the problems that are held "
                "out: curate with the same test_share (or a larger one)"
            )
    if path is None and settings.resume != "never" and (path := unfinished_run(settings)) is not None:
        of_run = recorded_config(path) or {}  # its cap on cost counts, unless another one is given
        settings = settings.filled_from({key: of_run[key] for key in COST_SETTINGS if key in of_run})
    return settings, pool, path


def _with_data_of_pool(settings: TrainSettings, pool: FoundPool) -> TrainSettings:
    """A new run that names no data takes those of its pool, if the pool says what it kept for evaluation."""
    made_with = pool.manifest.get("settings", {})
    data_of_pool = {key: made_with[key] for key in SIDES if made_with.get(key) not in (None, NO_EVALUATION)}
    # The evaluation side is named by a setting, or is the data set's test splits: then the manifest has their files.
    is_named, files = not data_of_pool.keys() <= {"dataset"}, pool.manifest.get("inputs", {}).get("evaluation")
    takes_data = (is_named or files) and settings.given.isdisjoint(SIDES)
    return settings.with_changes(**data_of_pool) if takes_data else settings


def training_path(settings: TrainSettings) -> Path | None:
    """The run directory; None for a new one, named by the time. If there is no run in `log_path`, raises ConfigError if
    `resume` requires one or the name may be a typo. A deployment's run, which nobody watches, starts with a warning."""
    name = deployed_name()
    if settings.log_path is not None:
        path = run_path(settings.log_path)
    elif name is not None:
        path = runs_root() / name
    elif settings.resume == "must":
        raise ConfigError("resume=must needs log_path=RUN (coderl runs lists them)")
    else:
        return None
    if settings.resume == "must" and not (path / "config.json").is_file():
        raise ConfigError(f"resume=must: there is no run in {path}{did_you_mean(near_runs(path))}")
    if name is None and (why := doubt_of(settings)) is not None:
        end = "" if why.endswith("?") else ";"  # a question needs no other mark
        raise ConfigError(f"log_path={settings.log_path}: {why}{end} resume=never starts one")
    return path


def doubt_of(settings: TrainSettings) -> str | None:
    """Why the new run that `log_path` would start may not be meant; None where there is a run or a folder."""
    if settings.log_path is None or settings.resume == "never" or (path := run_path(settings.log_path)).exists():
        return None
    return doubt(path)


def unfinished_run(settings: TrainSettings) -> Path | None:
    """The newest run below the default root that was started with these settings and is at rest, with steps left.
    Settings that do not decide what comes out, such as a cap on cost, may have changed."""
    config = run_config(settings)
    ignored = {key for key, field in all_settings(TrainSettings) if not about(field).decides_content}
    files = [(file.stat().st_mtime_ns, file.parent) for file in runs_root().glob(f"*/{CONFIG_FILE}")]
    for _, folder in sorted(files, reverse=True):
        try:
            recorded = recorded_config(folder) or {}
            is_same = ignored.issuperset(change.key for change in config_changes(recorded, config))
            if is_same and run_state(folder, recorded) not in ("running", "finished"):
                return folder
        except DataError:  # a damaged run: naming it says what is wrong
            continue
    return None


def complete_settings(settings: TrainSettings, path: Path | None) -> TrainSettings:
    """A run's settings: what was not given is as its directory's config.json says, else as fits this machine."""
    if (config := recorded_config(path)) is not None:
        settings = settings.as_meant().filled_from(config)
        is_older_pool_meant = settings.pool == LATEST and config.get("pool") is not None
        # The newest pool may be another one by now, which a run that has begun cannot take.
        return settings.with_changes(pool=config["pool"]) if is_older_pool_meant else settings
    settings = for_this_machine(settings)
    if settings.max_steps == -1 and "max_steps" not in settings.given and uses_tinker_service():
        return settings.model_copy(update={"max_steps": SERVICE_STEPS})  # which does not make it one that was given
    return settings


def run_config(settings: TrainSettings) -> dict[str, Any]:
    """What config.json records: the settings, and the hash of the pool's file, so that a changed pool is noticed."""
    return {**settings.content(), "pool_sha256": known_sha256(Path(settings.pool))}


def is_finished_run(directory: RunDirectory, settings: TrainSettings) -> bool:
    """Whether the run has done all that `settings` ask for, its final evaluation included."""
    last, most, every = directory.last_committed_step, settings.max_steps, settings.eval.every
    return has_ended(directory.path, last, max_steps=most, eval_every=every, steer=settings.steer)


def _model_of_run(path: Path | None) -> RecordedModel | None:
    if (config := recorded_config(path)) is None:
        return None
    advice = "start a new run (another log_path) with one that it offers"
    return RecordedModel(f"the run {path}", config["model_name"], advice)


def start_note(directory: RunDirectory) -> str:
    return f"resuming at step {directory.next_step}" if directory.resumed else "new run"


def check_training(settings: TrainSettings, path: Path | None) -> None:
    """Raises ConfigError or DataError for what a training at `path` (None: a new run) would find missing or impossible.
    Data are not asked for where a run is there: it may have nothing left to do that needs them."""
    require_price(settings)
    check_place(path or runs_root(), "log_path")
    # Not in the settings: how many steps there are is decided after them, by the preset or by what a service bills.
    total = settings.schedule.total
    if total is not None and not 0 < settings.max_steps <= total:
        raise ConfigError(
            f"max_steps={settings.max_steps} goes beyond schedule.total={total}, from where on the learning rate is "
            f"0: use max_steps={total} or less, or a larger schedule.total"
        )
    if settings.eval.every != -1 and recorded_config(path) is None:
        require_other_problems(settings, settings.dataset, "eval_every=-1 evaluates nothing")
        side = evaluation_side(settings)
        check_data(side.source, None, side.role)


async def plan_evaluation(settings: EvaluateSettings) -> tuple[EvaluateSettings, FoundPolicy]:
    """Returns the complete settings and the policy to evaluate: with `completions` the completions in that file, which
    are graded without a model. Raises ConfigError or DataError for mistakes, InfraError if Tinker fails."""
    if (file := settings.completions) is not None:
        settings = settings.as_meant()
        if settings.names_model:
            raise ConfigError(
                f"completions={file}: completions are graded in place of a model's, so leave model_name and preset out"
            )
        if not Path(file).is_file():
            raise ConfigError(f"completions={file}: there is no such file")
        policy = FoundPolicy(sampler_path=f"{COMPLETIONS}{file}", run=None, config={}, step=-1)
        settings = _with_benchmark_defaults(settings)
    else:
        settings, policy = await _plan_sampling(settings)
    check_evaluation(settings, policy.run)
    folder = _folder_of_log_path(settings, policy.run)
    is_finished = folder is not None and (folder / "summary.json").is_file()
    if folder is not None and is_finished and recorded_settings(folder) != evaluation_content(settings, policy):
        raise ConfigError(f"log_path={folder} holds an evaluation with other settings: choose another log_path")
    return settings, policy


async def _plan_sampling(settings: EvaluateSettings) -> tuple[EvaluateSettings, FoundPolicy]:
    """`plan_evaluation` of the policy that `checkpoint` names, which is sampled from."""
    wanted_model = settings.model_name if settings.names_model else None
    policy = _policy_begun(settings) or find_policy(settings.checkpoint, wanted_model)
    is_tinker_path = policy.sampler_path is not None and policy.run is None
    if is_tinker_path and wanted_model is None:
        raise ConfigError(f"checkpoint={settings.checkpoint}: say which model it is of, with model_name or preset")
    meant = settings.as_meant()
    # Of such a path the settings alone, by default too, say which model it is of.
    settings = meant.with_changes(model_name=settings.model_name) if is_tinker_path else meant
    settings = _with_benchmark_defaults(await _completed_from_run(settings, policy))
    # A recorded evaluation is reused only if the same server would answer. The embedded one is not started yet.
    if uses_tinker_service():
        answering = await served_by(*tinker_credentials(), settings.model_name)
    else:
        answering = embedded_tinker_serves(settings.model_name)
    if settings.benchmark is None:
        # Raises if the evaluation would be of all the problems that were trained on, unless that is asked for.
        trained_on = policy.config.get("dataset")
        require_other_problems(settings, trained_on, otherwise="dataset= names another data set altogether")
    return settings, replace(policy, served_by=answering)


def _policy_begun(settings: EvaluateSettings) -> FoundPolicy | None:
    """The policy that an earlier attempt of a deployment's flow run began to evaluate as the latest, if any."""
    if settings.checkpoint != LATEST or (name := deployed_name()) is None:
        return None
    for file in runs_root().glob(f"*/evals/evaluate-{name}-{LATEST}-*/{SETTINGS_FILE}"):
        run = file.parents[2]
        recorded, config = recorded_settings(file.parent), recorded_config(run)
        if recorded is not None and config is not None:
            return FoundPolicy(recorded["policy"], run, config, recorded["step"])
    return None


def _with_benchmark_defaults(settings: EvaluateSettings) -> EvaluateSettings:
    """Fills in what is not given with the values of the benchmarks' own harnesses, if `settings` name benchmarks; a
    run's values do not count then. Raises ConfigError if all completions of a problem would be the same."""
    if settings.benchmark is not None:
        settings = settings.filled_from(benchmark_settings(settings.benchmark, settings.given))
    try:
        settings.require_possible_sampling()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return settings


async def _completed_from_run(settings: EvaluateSettings, policy: FoundPolicy) -> EvaluateSettings:
    """Fills in what `settings` leave open, by the configuration of the policy's run, and decides the base model."""
    inherited = {key: policy.config[key] for key in _inherited_keys(settings, policy) if key in policy.config}
    if "model_name" not in inherited:  # there is no run, or its configuration is not known
        return await with_decided_model(for_this_machine(settings))
    settings = settings.filled_from(inherited)
    if policy.run is None:  # `checkpoint` is the name of a base model: the same as naming it by model_name
        return await with_decided_model(settings.with_changes(model_name=settings.model_name))
    advice = "evaluate it on a service that offers it"
    return await with_decided_model(settings, RecordedModel(f"the run {policy.run}", inherited["model_name"], advice))


def _inherited_keys(settings: EvaluateSettings, policy: FoundPolicy) -> set[str]:
    """The settings that an evaluation takes from the policy's run where they are not given."""
    has_benchmark = settings.benchmark is not None  # it has data and a kind of task (environment) of its own
    run_dataset = str(policy.config.get("dataset"))
    if has_benchmark or ("dataset" in settings.given and not same_source(settings.dataset, run_dataset)):
        data_keys: set[str] = set()  # what the run says of its data does not fit other data
    elif settings.given & {"evaluation_dataset", "test_share"}:
        data_keys = {"dataset"}  # the evaluation names the part of the run's data that it is on
    else:
        data_keys = {*SIDES}  # the data set, and which part of it is for evaluation
    keys = {*INHERITED, *data_keys}
    both_environments = {settings.environment, str(policy.config.get("environment", "code"))}
    is_other_task = len(both_environments) > 1 and (has_benchmark or "environment" in settings.given)
    if is_other_task:  # only settings that both kinds of task have
        keys = {key for key in keys if both_environments <= {*about(EvaluateSettings.model_fields[key]).environments}}
    if is_other_task or has_benchmark:  # these two are decided by the evaluation's own kind of task
        keys -= {"environment", "stop_after_code"}
    if has_benchmark:  # its figures are of one answer
        keys -= {"max_turns", "feedback", "max_tool_calls", "max_trajectory_tokens"}
    return keys


def evaluation_content(settings: EvaluateSettings, policy: FoundPolicy) -> dict[str, Any]:
    name = policy.sampler_path or settings.model_name
    return settings.content() | {"policy": name, "step": policy.step, "served_by": policy.served_by}


def evaluation_folder(settings: EvaluateSettings, policy: FoundPolicy) -> Path:
    """Where the record goes: `log_path`, else under the run's (or the default root's) evals/ the folder of an earlier
    start with these settings, finished or not, or a new one."""
    if (folder := _folder_of_log_path(settings, policy.run)) is not None:
        return folder
    root = (policy.run or runs_root()) / "evals"
    content = evaluation_content(settings, policy)
    if name := deployed_name():
        # One flow run makes several evaluations for `compare`. A retry of it has the same contents. The name says which
        # one is of the latest policy, so that a retry evaluates this policy again.
        number = sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
        is_of_latest = settings.checkpoint == LATEST and policy.run is not None
        return root / f"evaluate-{name}-{f'{LATEST}-' if is_of_latest else ''}{number}"
    # A finished one is used again, for another comparison, unless it lacks grades: a new one may have them all.
    earlier = find_unfinished(
        root.glob("*"), content, lambda folder: bool((EvalJournal(folder).read_summary() or {}).get("infra_errors"))
    )
    return earlier or root / f"evaluate-{datetime.now():%Y_%m_%d-%H_%M_%S}"


def _folder_of_log_path(settings: EvaluateSettings, run: Path | None) -> Path | None:
    """The folder that `log_path` means, None without one: a path, or a name below the evals/ of the run or the root."""
    name = settings.log_path
    if name is None:
        return None
    if not is_name(name):
        return Path(name).expanduser().resolve()
    if name in (BASELINE, FINAL) or name.startswith("step-"):
        raise ConfigError(f"log_path={name} is the name of an evaluation that training makes: choose another one")
    return (run or runs_root()) / "evals" / name


async def plan_pipeline(settings: PipelineSettings) -> PipelineSettings:
    """Prepares a pipeline (curate, train, evaluate): checks its three parts and returns its settings, with one base
    model for all parts. Raises ConfigError or DataError for mistakes, InfraError if Tinker fails."""
    parts = settings.parts
    # A model that one part names is that of all: otherwise a preset would fill in another one in the others.
    named = {f"{key}.model_name": part.model_name for key, part in parts.items() if "model_name" in part.given}
    if len(set(named.values())) > 1:
        listed = ", ".join(f"{key}={name}" for key, name in named.items())
        raise ConfigError(f"a pipeline takes one base model, not several ({listed})")
    for key, part in parts.items():
        one = part.with_changes(model_name=next(iter(named.values()))) if named else part
        parts[key] = for_this_machine(one)  # with the nano preset if neither a Tinker service nor a model is named
    run, pool = training_path(settings.train), _named_pool(settings.curate)  # None: a new one
    recorded = _model_of_run(run) or _model_of_pool(pool)  # a run, or a pool, that was begun keeps its model
    # Decided once, for training: all parts use one model, and the service is asked once.
    training = await with_decided_model(parts["train"], recorded)
    pipeline = settings.model_copy(
        update={key: part.with_model(training.model_name, training.model_reason or "") for key, part in parts.items()}
    )
    check_curation(pipeline.curate, pool or POOLS)
    # Completed only for the check: the training completes its settings itself, and what a pipeline records stays.
    check_training(complete_settings(pipeline.train, run), run)
    check_evaluation(pipeline.evaluate, run=None, is_planned=True)
    return pipeline


def check_curation(settings: CurateSettings, folder: Path) -> None:
    """Checks before a curation into `folder` what would fail later: raises ConfigError or DataError for missing prices,
    files or data, a folder that cannot be written to, or another finished pool in it."""
    require_price(settings)
    environment_of(settings)  # raises for a reward file that cannot be used
    check_place(folder, "name")
    # If a finished pool changed, runs that were trained on it could not be resumed.
    wanted, finished = settings.content(), None if settings.replace else finished_with(folder)
    # A start with replace=true that was interrupted has recorded `wanted`: it is continued without replace=true too.
    if finished is not None and recorded_settings(folder) != wanted:
        changed = [key for key in wanted if finished.get(key, wanted[key]) != wanted[key]]
        if changed:
            changes = "; ".join(f"{key}: {finished[key]!r} -> {wanted[key]!r}" for key in changed)
            raise ConfigError(
                f"the pool {folder} is finished, with other settings ({changes}): name=ANOTHER makes another pool, "
                "replace=true makes it again, and samples again what depends on them (runs trained on it can then not "
                "be resumed)"
            )
    check_data(settings.dataset, settings.splits, "train")
    benchmark_sources(settings.benchmark or (), download=False)
    side = evaluation_side(settings)
    if settings.evaluation_dataset not in (None, NO_EVALUATION):
        check_data(side.source, None, side.role)


def check_evaluation(settings: EvaluateSettings, run: Path | None, *, is_planned: bool = False) -> None:
    """Raises ConfigError or DataError for what an evaluation of `run` (None: its policy has none) would find missing.
    With `is_planned` the run is still to be trained, so that a name in `compare_to` may be one of its evaluations."""
    require_price(settings)
    check_place(_folder_of_log_path(settings, run) or run or runs_root(), "log_path")
    environment_of(settings)
    if settings.benchmark is not None:
        benchmark_settings(settings.benchmark, settings.given)  # raises for a name that there is not
        benchmark_sources(settings.benchmark, download=False)
    else:
        side = evaluation_side(settings)
        check_data(side.source, settings.splits, side.role)
    if is_planned and settings.completions is not None:
        raise ConfigError("completions are graded in place of a model's: coderl evaluate takes them, no pipeline")
    if not is_planned or "/" in (settings.compare_to or ""):
        compared_with(settings, run)


def evaluation_problems(settings: EvaluateSettings, folder: Path) -> list[Problem]:
    """The test problems, their tests spilled to `folder`. ConfigError if there are none, DataError if unreadable."""
    since, until = (None if day is None else date.fromisoformat(day) for day in (settings.since, settings.until))
    dates = None if since is None and until is None else Dates(since, until)
    keep = SpilledTests(folder).keep
    if settings.benchmark is not None:
        loaded = load_benchmarks(settings.benchmark, dates, keep)
    else:
        loaded = evaluation_side(settings).load(settings.splits, environment_of(settings).rows, dates, keep)
    problems = evaluation_subset(loaded.problems, settings.eval_limit, seed=settings.seed)
    if not problems:
        why = loaded.unusable or ("there are no rows" if dates is None else f"no row is of {dates}")
        raise ConfigError(f"{evaluated_on(settings)} has no test problems in splits={settings.splits}: {why}")
    if loaded.unusable:
        logger.warning("%s: %s", evaluated_on(settings), loaded.unusable)
    if settings.benchmark is not None and "reward_timeout" in settings.given:  # over the harness's limit
        problems = [replace(problem, time_limit_s=None) for problem in problems]
    return problems


def evaluated_on(settings: EvaluateSettings) -> str:
    return str(evaluation_side(settings)) if settings.benchmark is None else f"benchmark={','.join(settings.benchmark)}"


def compared_sides(settings: EvaluateSettings) -> list[list[tuple[str, Path | EvaluateSettings]]]:
    """The sides of `compare`. A side has, per seed, the name that the user gave, and the evaluation of that name: the
    folder of a finished one, or the settings of one to make."""

    def source(name: str) -> Path | EvaluateSettings:
        folder = find_local(name)
        if folder is not None and EvalJournal(folder).read_summary() is not None:
            return folder
        return settings.with_changes(checkpoint=name, compare=None, compare_to=None)

    return [[(name, source(name)) for name in side.split("+")] for side in settings.compare or ()]


def evaluations_to_make(settings: EvaluateSettings) -> list[EvaluateSettings]:
    """The evaluations that `coderl evaluate` makes: `settings`, or with `compare` those that are not finished."""
    if settings.compare is None:
        return [settings]
    compared = [evaluation for side in compared_sides(settings) for _, evaluation in side]
    return [evaluation for evaluation in compared if isinstance(evaluation, EvaluateSettings)]


def compared_with(settings: EvaluateSettings, run: Path | None) -> EvalJournal | None:
    """The recorded evaluation that the setting `compare_to` means: one of `run` by its name, else the final one of
    another run, else a folder. `run` is the run of the policy that is evaluated. None if unset, or if it is the
    baseline and `run` has none. ConfigError if there is no such finished evaluation."""
    wanted = settings.compare_to
    # By default a benchmark is compared with nothing: a run's baseline is of its own data.
    if wanted is None or (settings.benchmark is not None and "compare_to" not in settings.given):
        return None
    own = None if run is None else EvalJournal(run / "evals" / wanted)
    if own is not None and own.read_summary() is not None:
        evaluation = own
    elif wanted == BASELINE:  # the default: a run without one is no error
        return None
    elif (run_path(wanted) / "config.json").is_file():
        evaluation = EvalJournal(run_path(wanted) / "evals" / FINAL)
    elif (path := find_local(wanted)) is not None and path.is_dir():
        evaluation = EvalJournal(path)
    else:
        lacking = f"{run} has no such evaluation, and there is no such folder or run" if run else ""
        raise ConfigError(f"compare_to={wanted}: {lacking or 'there is no such evaluation, folder or run'}")
    if evaluation.read_summary() is None or evaluation.read_rollouts() is None:
        raise ConfigError(f"compare_to={wanted}: there is no finished evaluation in {evaluation.folder}")
    return evaluation


def compared_name(found: EvalJournal, run: Path | None) -> str:
    """The name of an evaluation that one of `run` is compared with: of another run, by that run's name too."""
    home = found.folder.parent
    if home.name != "evals" or (run is not None and home.parent == run):
        return found.name
    return f"{home.parent.name}/{found.name}"
