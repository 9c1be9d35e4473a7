"""A wrong address is found soon, and named."""

import pytest

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.policy.reachable import require_answer
from coderl_tasks.services import Services


@pytest.mark.parametrize("kind", ["silent", "closed"])
async def test_no_answer_names_the_address_and_the_variable(kind: str, request, monkeypatch, caplog) -> None:
    url = request.getfixturevalue(kind)
    monkeypatch.setenv("TINKER_BASE_URL", url)
    with pytest.raises(InfraError, match="coderl doctor") as caught:
        await require_answer(url, patience_s=0.3, notice_s=0.05)
    assert str(caught.value).startswith(f"no answer from Tinker at {url} (TINKER_BASE_URL) in 0.3 s")
    assert [record.message.rpartition(" ")[0] for record in caplog.records] == [
        f"no answer yet from {url} (TINKER_BASE_URL); still trying until"
    ]


async def test_any_answer_will_do(embedded: Services, caplog) -> None:
    await require_answer(embedded.tinker_url)
    await require_answer(embedded.sandbox_urls[0])  # answers 404
    assert not caplog.records


async def test_what_is_no_address_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        await require_answer("http://127.0.0.1:port")
