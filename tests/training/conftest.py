"""Runs on a gateway in front of the session's Tinker server, which notes the seeds that it is asked with."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from coderl_tasks.grading import SandboxClient
from coderl_tasks.services import Services
from tests.conftest import Serve
from tests.faults.sampling_faults import SamplingFaults
from tests.training.refilled_runs import Refilled


@pytest.fixture
async def refilled(embedded: Services, serve: Serve) -> AsyncIterator[Refilled]:
    gateway = SamplingFaults(str(embedded.tinker_url))
    services = replace(embedded, tinker_url=serve(gateway.app()))
    async with SandboxClient(embedded.sandbox_urls) as client:
        yield Refilled(services, gateway, client)
