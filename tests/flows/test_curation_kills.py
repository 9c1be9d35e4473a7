"""A curation killed with SIGKILL and started again, by the benchmark that does it ten times."""

import json
import os
import subprocess
import sys

from coderl_tasks.paths import PROJECT_ROOT

KILLS = int(os.environ.get("CURATION_KILLS", "3"))


def test_a_killed_curation_ends_in_the_same_pool_and_samples_nothing_recorded_twice(
    flow_environment: dict[str, str],
) -> None:
    script = PROJECT_ROOT / "benchmarks" / "curation_kills.py"
    command = [sys.executable, str(script), "--json", "--kills", str(KILLS), "--problems", "15"]
    done = subprocess.run(command, env=flow_environment, capture_output=True, text=True, check=False, timeout=900)
    assert done.stdout, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["kills"] > 0, outcome
    assert outcome["recorded_asked_again"] == 0, outcome
    assert set(outcome["same_files"].values()) == {True}, outcome
    assert outcome["rounds"] == outcome["undisturbed_requests"], outcome
    assert done.returncode == 0
