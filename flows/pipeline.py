"""pipeline: curate, train and evaluate in a row, as subflows on one set of services; ends with a table."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from coderl_tasks.runtime.display import Display, command_line, exclusive_flow, saying_what_next, suspended_in_outages
from coderl_tasks.services import services
from coderl_tasks.settings import PipelineSettings
from flows.curate import curate
from flows.evaluate import evaluate
from flows.train import train

SUMMARY_FILE, POOL_FILE = "summary.json", "pool.json"


@flow(name="pipeline")
@exclusive_flow
async def pipeline(settings: PipelineSettings) -> str:
    """Curate a pool, train on it, evaluate the result. Returns the run directory. Pool, run and evaluation get the name
    of the pipeline's folder unless named. The next start with these settings goes on with an unfinished one, also one
    that ended at a spending cap (BudgetReachedError)."""
    display = Display()
    async with suspended_in_outages(settings.train.suspend_hours):
        settings = await plan_pipeline(settings)
        content = settings.content()  # what decides the results: two starts with equal ones are one pipeline
        folder = _folder_for(content)
        if recorded_settings(folder) == content:
            display.say(f"continuing the pipeline {folder.name}, which an earlier start with these settings left")
        with (
            working_in(folder, content, instead="give names: curate.name, train.log_path"),
            services(settings.train.model_name, settings.train.model_reason),
            saying_what_next(display, command_line("pipeline", settings)),
        ):
            recorded = folder / POOL_FILE
            if recorded.is_file() and Path(pool := read_json(recorded)["pool"]).is_dir():
                display.say(f"the pool {pool} is finished")
            else:
                # Noted once it is made: a start after a crash trains on this very pool, and does not curate again.
                curation = settings.curate
                if curation.name is None:
                    curation = curation.with_changes(name=str(POOLS / folder.name))
                pool = await curate(curation)
                write_json(recorded, {"pool": pool})
            of_run = {"pool": pool}
            if settings.train.log_path is None:  # train refuses one that does not exist, so the default one is made
                of_run["log_path"] = str(make_folder(runs_root() / folder.name, private=True))
            run = await train(settings.train.with_changes(**of_run))
            of_evaluation = {"checkpoint": run}
            if settings.evaluate.log_path is None:
                of_evaluation["log_path"] = f"evaluate-{folder.name}"
            await evaluate(settings.evaluate.with_changes(**of_evaluation))
            write_json(folder / SUMMARY_FILE, {"pool": pool, "run": run})
    print_summary(Console(), Path(run), Path(pool))
    return run


def _folder_for(content: Mapping[str, Any]) -> Path:
    """The folder of a deployment's run (its retry gets it too), of an unfinished one with `content`, or a new one."""
    root = runs_root() / "pipelines"
    if (name := deployed_name()) is not None:
        return root / name
    unfinished = find_unfinished(root.glob("*"), content, lambda folder: (folder / SUMMARY_FILE).is_file())
    return unfinished or new_run_path(root)


if __name__ == "__main__":
    from coderl_tasks.cli import command

    command(["pipeline", *sys.argv[1:]])
