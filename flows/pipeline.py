"""pipeline: curate, train and evaluate in a row, as subflows on one set of services; ends with a table."""

import sys
from pathlib import Path

from prefect import flow
from rich.console import Console

from coderl_tasks.insight.summary import print_summary
from coderl_tasks.journal.run_directory import new_run_path
from coderl_tasks.journal.run_names import runs_root
from coderl_tasks.services import services
from coderl_tasks.settings import PipelineSettings
from flows.curate import curate
from flows.display import Display
from flows.evaluate import evaluate
from flows.naming import pool_name, training_path
from flows.planning import plan_curation, plan_pipeline
from flows.stopping import command_line, saying_what_next
from flows.suspension import suspended_in_outages
from flows.train import train


@flow(name="pipeline")
async def pipeline(settings: PipelineSettings) -> str:
    """Curate a pool, train on it, evaluate the result. Returns the run directory.

    Pool and run get their names here, so that the command that goes on after a stop can name them.
    """
    display = Display()
    async with suspended_in_outages(settings.train.suspend_hours):
        settings = await plan_pipeline(settings)
        _, folder = await plan_curation(settings.curate)
        names = {"curate.name": pool_name(folder)}
        with services(settings.train.model_name, settings.train.model_reason):
            with saying_what_next(display, command_line("pipeline", settings, **names)):
                pool = await curate(settings.curate.with_changes(name=str(folder)))
            named = training_path(settings.train)
            path = named or new_run_path(runs_root())
            training = settings.train.with_changes(pool=pool, **({} if named else {"log_path": str(path)}))
            names["train.log_path"] = str(path)
            with saying_what_next(display, command_line("pipeline", settings, **names)):
                run = await train(training)
                await evaluate(settings.evaluate.with_changes(checkpoint=run))
    print_summary(Console(), Path(run), Path(pool))
    return run


if __name__ == "__main__":
    from coderl_tasks.cli import command

    command(["pipeline", *sys.argv[1:]])
