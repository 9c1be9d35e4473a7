"""`prefect worker start` without two ways in which Prefect 3.8 ends its worker, and flow runs with it; and without the
second interpreter that doubles the seconds until a flow begins."""

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import prefect.workers.base as workers
from prefect.cli import app
from prefect.utilities.processutils import command_to_string
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import WorkerFlowRunResponse

_submit = ProcessWorker._submit_scheduled_flow_runs
_loop = workers.critical_service_loop


async def _submit_those_that_have_ended(
    worker: ProcessWorker, flow_run_response: "list[WorkerFlowRunResponse]"
) -> "list[FlowRun]":
    """Leaves out runs that still hold a slot of the worker's `--limit`, as their process has not ended. If a suspended
    run is resumed before that, the worker would ask for a second slot, be refused with an error, and end."""
    holding = () if worker._limiter is None else worker._limiter.statistics().borrowers
    # The others stay scheduled, and come again with the next look.
    return await _submit(worker, [entry for entry in flow_run_response if entry.flow_run.id not in holding])


async def _loop_through_outages(workload: Callable[..., Awaitable[Any]], interval: float, **options: Any) -> None:
    """Prefect's own loop ends after a minute or two in which the server, or its database, does not answer."""
    while True:
        try:
            await _loop(workload, interval, **options)  # type: ignore[arg-type]
            return
        except RuntimeError as error:
            if "error threshold" not in str(error):
                raise


class _OneInterpreter(ProcessJobConfiguration):
    """The process of a flow run: Prefect's engine, which finds the flow's code and runs it. Prefect itself would start
    one interpreter to find the code and another to run it, each of which imports Prefect anew."""

    def prepare_for_flow_run(self, *arguments: Any, **named: Any) -> None:
        self.command = self.command or command_to_string([sys.executable, "-m", "prefect.engine"])
        super().prepare_for_flow_run(*arguments, **named)


if __name__ == "__main__":
    ProcessWorker.job_configuration = _OneInterpreter
    ProcessWorker._submit_scheduled_flow_runs = _submit_those_that_have_ended  # type: ignore[method-assign, assignment]
    workers.critical_service_loop = _loop_through_outages  # type: ignore[assignment]
    sys.argv = ["prefect", *sys.argv[1:]]
    app()
