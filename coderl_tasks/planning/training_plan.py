"""What a training run is going to do, and what to know of that, before anything is started or written."""

from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.curation.find_pool import FoundPool, require_environment, wanted_pool
from coderl_tasks.environments import environment_of
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.insight.record import run_state
from coderl_tasks.journal.ledger import require_price
from coderl_tasks.journal.recorded_json import CONFIG_FILE, config_changes, recorded_config
from coderl_tasks.journal.run_directory import RunDirectory, allowed_changes, has_ended
from coderl_tasks.journal.run_names import did_you_mean, doubt, near_runs, run_path, runs_root
from coderl_tasks.paths import known_sha256, same_model
from coderl_tasks.planning.early_checks import MadeWith, check_data, check_place, deployed_name, with_decided_model
from coderl_tasks.problems.loading import (
    NO_EVALUATION,
    SIDES,
    evaluation_side,
    is_held_out,
    require_other_problems,
    same_side,
)
from coderl_tasks.problems.problem import check_pool
from coderl_tasks.problems.sources import is_file
from coderl_tasks.prompts.tokenizer import model_renderer
from coderl_tasks.services import check_environment, for_this_machine, uses_tinker_service
from coderl_tasks.settings import SERVICE_STEPS, CurateSettings, TrainSettings


async def plan_training(settings: TrainSettings) -> tuple[TrainSettings, FoundPool | CurateSettings, Path | None]:
    """The complete settings, the pool (or the settings of the curation that makes it), and the run directory. Without
    log_path that is an unfinished run with these settings, else None: the run gets a new one, named by the time."""
    path = training_path(settings)
    settings, pool = await planned(settings, path)
    if isinstance(pool, CurateSettings):
        check_place(Path(str(pool.name)), "pool")
        check_training(settings, path)
        return settings, pool, path
    recorded = recorded_config(path)
    if recorded is None:
        settings = with_side_of(pool, settings)
    elif path is not None:
        allowed_changes(path, recorded, run_config(settings))
    check_training(settings, path)
    if settings.test_share is not None:
        problem_ids = pl.scan_parquet(pool.file).select("problem_id").collect()["problem_id"]
        if both := sum(is_held_out(problem_id, settings.test_share) for problem_id in problem_ids):
            raise ConfigError(
                f"test_share={settings.test_share:g}: the pool {pool.file} has {both} of the problems that are held "
                "out: curate with the same test_share (or a larger one)"
            )
    if path is None and settings.resume != "never":
        path = unfinished_run(settings)
    return settings, pool, path


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
        end = "" if why.endswith("?") else ";"
        raise ConfigError(f"log_path={settings.log_path}: {why}{end} resume=never starts one")
    return path


def doubt_of(settings: TrainSettings) -> str | None:
    """Why the new run that `log_path` would start may not be meant; None where there is a run or a folder."""
    if settings.log_path is None or settings.resume == "never" or (path := run_path(settings.log_path)).exists():
        return None
    return doubt(path)


def unfinished_run(settings: TrainSettings) -> Path | None:
    """The newest run below the default root that was started with these settings and is at rest, with steps left."""
    config = run_config(settings)
    files = [(file.stat().st_mtime_ns, file.parent) for file in runs_root().glob(f"*/{CONFIG_FILE}")]
    for _, folder in sorted(files, reverse=True):
        try:
            recorded = recorded_config(folder) or {}
            if not config_changes(recorded, config) and run_state(folder, recorded) not in ("running", "finished"):
                return folder
        except DataError:  # a damaged one: naming it says what is wrong with it
            continue
    return None


def with_side_of(pool: FoundPool, settings: TrainSettings) -> TrainSettings:
    """`settings` with the data that the pool was made of and kept away from, where they name none and it does."""
    made_with = pool.manifest.get("settings", {})
    named = {key: made_with[key] for key in SIDES if made_with.get(key) not in (None, NO_EVALUATION)}
    if not settings.given.isdisjoint(SIDES) or set(named) <= {"dataset"}:
        return settings
    return settings.with_changes(**named)


async def planned(settings: TrainSettings, path: Path | None) -> tuple[TrainSettings, FoundPool | CurateSettings]:
    """The complete settings of the run at `path` (None: a new one), `pool` being a file, and that pool, or the curation
    that makes it. Raises as `plan` does; a run with nothing left to do needs no service."""
    settings = complete_settings(settings, path)
    check_environment(settings.model_name)
    # A run that is finished is shown again also when its model has been retired by then.
    if not (uses_tinker_service() and path is not None and nothing_is_left(settings, path)):
        settings = await with_decided_model(settings, run_record(path))
    if settings.thinking is not None:  # a directory that records a switch which the model lacks could not be resumed
        model_renderer(settings.model_name, settings.renderer_name, settings.thinking)
    held_out = settings.eval.validation_size if settings.eval.on == "validation" else 0
    environment_of(settings)  # which reads a reward file
    pool = wanted_pool(settings, settings.problems_per_step + held_out)
    if isinstance(pool, CurateSettings):
        return settings, pool
    check_pool(pool.file)
    require_environment(pool, settings.environment)
    return settings.with_changes(pool=str(pool.file)), pool


def complete_settings(settings: TrainSettings, path: Path | None) -> TrainSettings:
    """A run's settings: what was not given is as its directory's config.json says, else as fits this machine."""
    if (config := recorded_config(path)) is not None:
        return settings.filled_from(config)
    settings = for_this_machine(settings)
    if settings.max_steps == -1 and "max_steps" not in settings.given and uses_tinker_service():
        return settings.model_copy(update={"max_steps": SERVICE_STEPS})  # which does not make it one that was given
    return settings


def run_config(settings: TrainSettings) -> dict[str, Any]:
    """What config.json records: the settings, and the hash of the pool's file, so that a changed pool is noticed."""
    return {**settings.content(), "pool_sha256": known_sha256(Path(settings.pool))}


def is_finished(directory: RunDirectory, settings: TrainSettings) -> bool:
    last, wanted = directory.last_committed_step, settings.max_steps
    return has_ended(directory.path, last, max_steps=wanted, eval_every=settings.eval.every, steer=settings.steer)


def nothing_is_left(settings: TrainSettings, path: Path) -> bool:
    """Whether a run at `path` has done all that `settings` ask for; ConfigError if it is at work."""
    if (config := recorded_config(path)) is None:
        return False
    # With what it has recorded, so that looking changes nothing.
    with RunDirectory.open(path, config, is_finished=partial(is_finished, settings=settings)) as directory:
        return directory.finished


def run_record(path: Path | None) -> MadeWith | None:
    if (config := recorded_config(path)) is None:
        return None
    instead = "start a new run (another log_path) with one that it offers"
    return MadeWith(f"the run {path}", config["model_name"], instead)


def check_training(settings: TrainSettings, path: Path | None) -> None:
    """The same for a run at `path` (None: a new one); one that is there may have nothing left to do that needs data."""
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


def start_note(directory: RunDirectory) -> str:
    return f"resuming at step {directory.next_step}" if directory.resumed else "new run"


def steps_note(settings: TrainSettings, *, resumed: bool) -> str:
    if settings.max_steps == -1:
        return "until it is stopped (max_steps=N ends it)"
    if resumed or "max_steps" in settings.given:
        return str(settings.max_steps)
    if settings.preset is not None:
        return f"{settings.max_steps} (preset {settings.preset})"
    return f"{settings.max_steps}, as max_steps was not given and a service bills (max_steps=-1: until it is stopped)"


def temperature_note(temperature: float) -> str | None:
    """What the importance ratio means on the embedded server at a sampling temperature T other than 1; None at 1. With
    P the trainer's probabilities and Z the sum of P^(1/T), a token that was sampled at T from the same weights has the
    ratio P(token)^(1 - 1/T) Z."""
    if temperature == 1:
        return None
    above, below = ("likely", "unlikely") if temperature > 1 else ("unlikely", "likely")
    return (
        f"temperature {temperature:g}: the importance ratio is the trainer's probability at temperature 1 over the "
        f"sampler's at {temperature:g}: not 1 even for equal weights, above 1 for {above} tokens, below for {below} "
        "ones. It corrects each token's own draw towards temperature 1, not the tokens before and after it; "
        "kl_sample_train holds the same gap"
    )


def pool_warning(pool: FoundPool, model_name: str) -> str | None:
    if (other := pool.profiled_with()) is None or same_model(other, model_name):
        return None
    return (
        f"warning: the pool was profiled with {other}, and {model_name} is trained: its pass rates may be others "
        "(coderl curate makes a pool for it)"
    )


def size_warning(problems: int, settings: TrainSettings) -> str | None:
    if problems >= settings.problems_per_step:
        return None
    return (
        f"warning: a step trains on {settings.problems_per_step} groups (problems_per_step, the recipe's group_size), "
        f"but the pool's problems to train on are only {problems}: each step takes the same problem several times"
    )


def side_warning(pool: FoundPool, settings: TrainSettings) -> str | None:
    """None also where nothing is evaluated, or nothing says what the pool was made of."""
    made_with = pool.made_with
    if settings.eval.every == -1 or made_with is None:
        return None
    kept_from, side = evaluation_side(made_with), evaluation_side(settings)
    if same_side(kept_from, side):
        return None
    no_side = made_with.evaluation_dataset is None and kept_from.share is None and is_file(kept_from.source)
    apart = "nothing" if no_side or made_with.evaluation_dataset == NO_EVALUATION else str(kept_from)
    return (
        f"warning: the pool's problems, of {made_with.dataset}, were not compared with those evaluated on: it was kept "
        f"apart from {apart} (curate with the same dataset, evaluation_dataset or test_share; eval_every=-1 evaluates "
        "nothing)"
    )
