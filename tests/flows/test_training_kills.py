"""Training runs killed with SIGKILL, servers and all, and started again, by the benchmark that does it 200 times."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from sampling_gateway import Gateway
from started_commands import Process
from training_kills import Plan, Stack, kill_and_compare

from tests import warm_start

KILLS = int(os.environ.get("TRAINING_KILLS", "4"))


class SessionServers(Stack):
    """The servers of the session, which nobody kills, behind the gateway."""

    def start(self, words: Sequence[str], output: IO[str]) -> Process:
        self.gateway.target = self.environment["TINKER_BASE_URL"]
        return self.launch(self.environment | {"TINKER_BASE_URL": self.gateway.url}, words, output)

    def kill(self) -> None:
        pass


def test_killed_runs_end_bit_for_bit_as_undisturbed_ones(
    flow_environment: dict[str, str], pool: Path, tmp_path: Path
) -> None:
    # One run with everything that a kill could upset; `make soak` has a run of each by itself.
    gateway = Gateway("")
    with gateway.serving():
        undisturbed = SessionServers(gateway, flow_environment, launch=warm_start.launch)
        stack = Stack(gateway, flow_environment | {"TINKER_BASE_URL": gateway.url}, launch=warm_start.launch)
        outcome = kill_and_compare(Plan("all", KILLS, steps=6, seed=0, pool=pool), stack, tmp_path, undisturbed)
    assert outcome["kills"] == KILLS
    assert outcome["different"] == {}
    assert outcome["steps_applied_twice"] == 0
    assert outcome["recorded_asked_again"] == 0
    assert outcome["groups_refilled"] > 0
