"""What happens to a deployment's run when a service stays away after all retries: it waits to be resumed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from prefect.flow_runs import asuspend_flow_run
from prefect.runtime import flow_run

from coderl_tasks.errors import InfraError
from coderl_tasks.planning.early_checks import is_deployed
from coderl_tasks.runtime.display import Display


@asynccontextmanager
async def suspended_in_outages(hours: float) -> AsyncIterator[None]:
    """Suspend this flow run for at most so many hours when the block ends in InfraError. Resuming starts the flow anew,
    which goes on where its directory ends. A bare run ends with the error."""
    try:
        yield
    except InfraError as error:
        # Only a deployment can start the flow again, and of a flow and its parts only the whole.
        if is_deployed() and flow_run.parent_flow_run_id is None:
            display = Display()
            display.say(str(error))
            # Prefect's command line can retry a flow run, but not resume one.
            code = f"from prefect.flow_runs import resume_flow_run; resume_flow_run('{flow_run.id}')"
            display.say(
                f"suspended for up to {hours:g} hours: put right what is named above, then Resume in the UI, or "
                f'`python -c "{code}"`, goes on where this run stopped'
            )
            # A key of its own: Prefect numbers a process's suspensions, and refuses a number that it has seen before.
            await asuspend_flow_run(timeout=round(hours * 3600), key=uuid4().hex)
        raise
