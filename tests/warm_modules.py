"""The libraries that `coderl` imports for a flow, preloaded once by the fork server of tests/warm_start.py.

Left out are those that start threads when they are imported, which a forked process would lack: polars and Tinker's
SDK, and so whatever of coderl imports them."""

from importlib import import_module

from coderl_tasks.runtime.lean_start import collect_less_often, leave_out_pytorch

collect_less_often()
leave_out_pytorch()
for name in (
    *("prefect.main", "datasets", "transformers.models.auto.tokenization_auto", "aiohttp"),
    "matplotlib.backends.backend_svg",
):
    import_module(name)
