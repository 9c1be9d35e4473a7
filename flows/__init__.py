"""The Prefect flows: what happens, in order."""

import os

from coderl_tasks.runtime.lean_start import LEAN_VARIABLE, WORKER_VARIABLE, collect_less_often, leave_out_pytorch
from coderl_tasks.services.supervisor import end_with_parent

if LEAN_VARIABLE in os.environ:  # before any flow imports the Tinker SDK
    collect_less_often()
    leave_out_pytorch()

if WORKER_VARIABLE in os.environ and "PREFECT__FLOW_RUN_ID" in os.environ:
    # A flow run of `coderl up`: Prefect's worker leaves its runs running when it is killed, and nobody watches them.
    end_with_parent(WORKER_VARIABLE)
