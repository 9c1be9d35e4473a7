"""Training runs killed with SIGKILL, servers and all, and started again, by the benchmark that does it 200 times."""

import json
import os
import subprocess
import sys
from pathlib import Path

from coderl_tasks.paths import PROJECT_ROOT

KILLS = int(os.environ.get("TRAINING_KILLS", "4"))


def test_killed_runs_end_bit_for_bit_as_undisturbed_ones(flow_environment: dict[str, str], pool: Path) -> None:
    # One run with everything that a kill could upset; `make soak` has a run of each by itself.
    script = PROJECT_ROOT / "benchmarks" / "training_kills.py"
    options = ("--json", "--kills", str(KILLS), "--steps", "6", "--variant", "all", "--pool", str(pool))
    done = subprocess.run(
        [sys.executable, str(script), *options], env=flow_environment, capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["kills"] == KILLS
    assert outcome["different"] == {}
    assert outcome["steps_applied_twice"] == 0
    assert outcome["recorded_asked_again"] == 0
    assert done.returncode == 0
