"""`prefect worker start`, where a flow run that was suspended may be resumed before its process has ended.

Prefect 3.8's worker holds a slot of its `--limit` for a flow run until its process has ended. If the run is resumed
before that, the worker asks for a second slot for it, is refused with an error, and ends with all its other runs.
"""

import sys
from typing import TYPE_CHECKING

from prefect.cli import app
from prefect.workers.process import ProcessWorker

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import WorkerFlowRunResponse

_submit = ProcessWorker._submit_scheduled_flow_runs


async def _submit_those_that_have_ended(
    worker: ProcessWorker, flow_run_response: "list[WorkerFlowRunResponse]"
) -> "list[FlowRun]":
    holding = () if worker._limiter is None else worker._limiter.statistics().borrowers
    # The others stay scheduled, and come again with the next look.
    return await _submit(worker, [entry for entry in flow_run_response if entry.flow_run.id not in holding])


if __name__ == "__main__":
    ProcessWorker._submit_scheduled_flow_runs = _submit_those_that_have_ended  # type: ignore[method-assign, assignment]
    sys.argv = ["prefect", *sys.argv[1:]]
    app()
