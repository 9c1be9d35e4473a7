"""A run behind faulty connections: it ends as if nothing had been."""

import subprocess
from pathlib import Path

import polars as pl

from coderl_tasks.services import Services
from tests.conftest import Serve
from tests.faults.fault_proxy import FAULTS, FaultProxy
from tests.flows.run_records import ENDS, TINY, final_weights, rollouts, step_rows
from tests.warm_start import Command

RATE = 0.3
STALL_S = 1.0
"""Long enough to be out of order; the SDK itself waits about a minute for what never comes."""


def test_faults_on_a_third_of_all_calls_change_nothing(
    flow_environment: dict[str, str],
    embedded: Services,
    serve: Serve,
    run: Path,
    pool: Path,
    tmp_path: Path,
) -> None:
    assert embedded.tinker_url is not None
    rates = dict.fromkeys(FAULTS, RATE / len(FAULTS))
    tinker = FaultProxy(embedded.tinker_url, seed=1, rates=rates, delay_s=0.1, stall_s=STALL_S)
    sandbox = FaultProxy(embedded.sandbox_urls[0], seed=2, rates=rates, delay_s=0.1, stall_s=STALL_S)
    addresses = {"TINKER_BASE_URL": serve(tinker.app()), "SANDBOX_URL": serve(sandbox.app())}
    path = tmp_path / "run"
    words = ("train", "preset=nano", f"pool={pool}", f"log_path={path}", "max_steps=3", *TINY, ENDS)
    process = Command({**flow_environment, **addresses}, *words, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    # Of both together: each kind befalls one request in 23 by chance, and there are about 150.
    met = tinker.met + sandbox.met
    assert tinker.met and sandbox.met and met.total() > 0.15 * (tinker.requests + sandbox.requests)
    assert len(met) >= len(FAULTS) - 1
    assert step_rows(path) == step_rows(run)
    assert rollouts(path).equals(rollouts(run))
    assert final_weights(path) == final_weights(run)
    assert rollouts(path).filter(pl.col("verdict") == "infra_error").is_empty()
