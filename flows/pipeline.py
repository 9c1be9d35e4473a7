"""pipeline: curate, train and evaluate in a row, as subflows on one set of services; ends with a table."""

import sys
from pathlib import Path
from typing import TypeVar

from prefect import flow
from rich.console import Console

import flows  # noqa: F401 - first: Prefect loads this file by its path, without its package
from coderl_tasks.insight.terminal import print_summary
from coderl_tasks.journal.atomic import make_folder, read_json, write_json
from coderl_tasks.journal.recorded_json import find_unfinished, recorded_settings, working_in
from coderl_tasks.journal.run_directory import new_run_path
from coderl_tasks.journal.run_names import runs_root
from coderl_tasks.paths import POOLS
from coderl_tasks.planning.early_checks import deployed_name
from coderl_tasks.planning.flow_plans import plan_pipeline
from coderl_tasks.runtime.display import Display, command_line, saying_what_next, shown_and_alone, suspended_in_outages
from coderl_tasks.services import services
from coderl_tasks.settings import FlowSettings, PipelineSettings
from flows.curate import curate
from flows.evaluate import evaluate
from flows.train import train

SUMMARY_FILE, POOL_FILE = "summary.json", "pool.json"
SettingsT = TypeVar("SettingsT", bound=FlowSettings)


@flow(name="pipeline")
@shown_and_alone
async def pipeline(settings: PipelineSettings) -> str:
    """Curate a pool, train on it, evaluate the result. Returns the run directory. Pool, run and evaluation get the name
    of the pipeline's folder unless named. The next start with these settings goes on with an unfinished one, also one
    that ended at a spending cap (BudgetReachedError)."""
    display = Display()
    async with suspended_in_outages(settings.train.suspend_hours):
        settings = await plan_pipeline(settings)
        content = settings.content()
        root, name = runs_root() / "pipelines", deployed_name()
        if name is not None:  # a deployment's run keeps its name, so that its retry gets the same folder
            folder = root / name
        else:
            unfinished = find_unfinished(root.glob("*"), content, lambda folder: (folder / SUMMARY_FILE).is_file())
            folder = unfinished or new_run_path(root)
        if recorded_settings(folder) == content:
            display.say(f"continuing the pipeline {folder.name}, which an earlier start with these settings left")
        command = command_line("pipeline", settings)
        with (
            working_in(folder, content, instead="give names: curate.name, train.log_path"),
            services(settings.train.model_name, settings.train.model_reason),
            saying_what_next(display, command),
        ):
            recorded = folder / POOL_FILE
            if recorded.is_file() and Path(pool := read_json(recorded)["pool"]).is_dir():
                display.say(f"the pool {pool} is finished")
            else:
                # Noted once it is made: a start after a crash trains on this very pool, and does not curate again.
                pool = await curate(_with_default_name(settings.curate, name=str(POOLS / folder.name)))
                write_json(recorded, {"pool": pool})
            # train takes a log_path that does not exist for a mistake, so the default one is made first.
            make_folder(path := runs_root() / folder.name, private=True)
            run = await train(_with_default_name(settings.train, log_path=str(path)).with_changes(pool=pool))
            evaluate_settings = _with_default_name(settings.evaluate, log_path=f"evaluate-{folder.name}")
            await evaluate(evaluate_settings.with_changes(checkpoint=run))
            write_json(folder / SUMMARY_FILE, {"pool": pool, "run": run})
    print_summary(Console(), Path(run), Path(pool))
    return run


def _with_default_name(settings: SettingsT, **name: str) -> SettingsT:
    """`settings` with a name where they have none."""
    (key,) = name
    return settings if getattr(settings, key) is not None else settings.with_changes(**name)


if __name__ == "__main__":
    from coderl_tasks.cli import command

    command(["pipeline", *sys.argv[1:]])
