"""What a sandbox's Python cannot judge is found by trying."""

import platform

import pytest

from coderl_tasks.grading.trial import try_programs
from coderl_tasks.server_addresses import without_credentials
from tests.conftest import Serve
from tests.grading.stock_sandbox import stock_app


@pytest.mark.parametrize("kind", ["embedded", "stock"])
async def test_this_python_judges_all(kind: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    [trial] = await try_programs([url])
    assert str(trial) == f"programs are run by Python {platform.python_version()} at {without_credentials(url)}"


async def test_what_a_server_cannot_judge_is_named(serve: Serve, closed: str) -> None:
    without_packages = serve(stock_app("-S"))
    trials = await try_programs([without_packages, closed])
    assert str(trials[0]).endswith(
        f"{without_packages}, which cannot judge numpy: right programs that use it fail there"
    )
    assert str(trials[1]).startswith(f"programs at {closed}: not tried: ")
