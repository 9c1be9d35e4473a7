"""A curation killed with SIGKILL and started again, by the benchmark that does it ten times."""

import os
from pathlib import Path

from curation_kills import kill_and_compare, parser
from sampling_gateway import Gateway

from tests import warm_start

KILLS = os.environ.get("CURATION_KILLS", "3")


def test_a_killed_curation_ends_in_the_same_pool_and_samples_nothing_recorded_twice(
    flow_environment: dict[str, str], tmp_path: Path
) -> None:
    gateway = Gateway(flow_environment["TINKER_BASE_URL"])
    options = parser().parse_args(["--kills", KILLS, "--problems", "15"])
    with gateway.serving():
        environment = flow_environment | {"TINKER_BASE_URL": gateway.url}
        outcome = kill_and_compare(tmp_path, gateway, environment, options, warm_start.launch)
    assert outcome["kills"] > 0, outcome
    assert outcome["recorded_asked_again"] == 0, outcome
    assert set(outcome["same_files"].values()) == {True}, outcome
    assert outcome["rounds"] == outcome["undisturbed_requests"], outcome
