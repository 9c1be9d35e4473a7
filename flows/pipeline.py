"""pipeline: curate, train and evaluate in a row, as subflows on one set of services; ends with a table."""

import sys
from pathlib import Path

from prefect import flow
from rich.console import Console

from coderl_tasks.insight.summary import print_summary
from coderl_tasks.services import services
from coderl_tasks.settings import PipelineSettings
from flows.curate import curate
from flows.evaluate import evaluate
from flows.planning import plan_pipeline
from flows.suspension import suspended_in_outages
from flows.train import train


@flow(name="pipeline")
async def pipeline(settings: PipelineSettings) -> str:
    """Curate a pool, train on it, evaluate the result. Returns the run directory."""
    async with suspended_in_outages(settings.train.suspend_hours):
        settings = await plan_pipeline(settings)
        with services(settings.train.model_name, settings.train.model_reason):
            pool = await curate(settings.curate)
            run = await train(settings.train.with_changes(pool=pool))
            await evaluate(settings.evaluate.with_changes(checkpoint=run))
    print_summary(Console(), Path(run), Path(pool))
    return run


if __name__ == "__main__":
    from coderl_tasks.cli import command

    command(["pipeline", *sys.argv[1:]])
