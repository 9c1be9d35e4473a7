"""What `coderl` imports for a flow, imported once by the fork server of tests/warm_start.py.

Forking is safe although polars starts threads when it is imported: they return memory and remove spilled files, and the
pool that computes starts with the first frame that is collected, in the forked process."""

import gc
from importlib import import_module

from coderl_tasks.runtime.lean_start import collect_less_often, leave_out_pytorch

collect_less_often()
leave_out_pytorch()
for name in (
    *("prefect.main", "fastapi", "datasets", "transformers.models.auto.tokenization_auto", "aiohttp"),
    *("coderl_tasks.cli.launch", "flows.pipeline"),
    *("scipy.special", "datasketch"),  # which a flow imports where it first needs them
):
    import_module(name)
gc.freeze()  # no forked process looks for garbage in what is here, which would copy its pages too
