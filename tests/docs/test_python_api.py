"""The examples of docs/python-api.md, run as they stand there."""

import re
from typing import Any

import pytest

from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.services import Services

EXAMPLES = re.findall(r"^```python\n(.*?)^```", (PROJECT_ROOT / "docs" / "python-api.md").read_text(), re.M | re.S)


@pytest.fixture(autouse=True)
def named(embedded: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's servers, named as a user would name the services."""
    monkeypatch.setenv("TINKER_BASE_URL", str(embedded.tinker_url))
    monkeypatch.setenv("TINKER_API_KEY", str(embedded.tinker_api_key))
    monkeypatch.setenv("SANDBOX_URL", embedded.sandbox_urls[0])


def test_the_reward_function() -> None:
    names: dict[str, Any] = {}
    exec(EXAMPLES[0], names)
    add = [{"input": "1 2\n", "output": "3\n"}]
    right = "```python\nprint(sum(map(int, input().split())))\n```"
    chat = [{"role": "user", "content": "Add."}]
    answers = [right, [{"role": "assistant", "content": right}], "```python\nprint(4)\n```", "3"]
    rewards = names["code_reward"](
        prompts=["Add.", chat, chat, "Add."], completions=answers, tests=[add] * 4, index=[7] * 4
    )
    assert rewards == [1.0, 1.0, 0.0, -0.1]


def test_the_training_loop(capsys: pytest.CaptureFixture[str]) -> None:
    exec(EXAMPLES[1], {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 0", "step 1"]
    assert all(re.search(r"mean reward -?\d\.\d\d, [1-9]\d* datums", line) for line in lines), lines
