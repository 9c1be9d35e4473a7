import asyncio
import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.settings import PREFECT_API_URL, temporary_settings

from coderl_tasks import orchestration
from coderl_tasks.cli import FLOWS
from coderl_tasks.doctor import check_prefect
from coderl_tasks.errors import ConfigError, DataError, InfraError
from coderl_tasks.orchestration import (
    DEFAULT_API_URL,
    WORK_POOL,
    configured_api_url,
    database_damage,
    deploy_all,
    found_api_url,
    is_up,
    prefect_server,
    shared_prefect_server,
    used,
)
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.settings import CurateSettings

DEPLOYMENTS = yaml.safe_load((PROJECT_ROOT / "prefect.yaml").read_text())["deployments"]


def test_an_embedded_server_leaves_the_default_port_to_others(prefect_api: str):
    assert is_up(prefect_api)
    assert prefect_api != DEFAULT_API_URL


def test_a_configured_server_is_used_and_not_started(prefect_api: str):
    for server in (prefect_server, shared_prefect_server):
        with server() as api_url:
            assert api_url == prefect_api == PREFECT_API_URL.value() == os.environ["PREFECT_API_URL"]


def test_an_empty_address_says_that_there_is_none():
    with used("http://127.0.0.1:9/api"):
        assert configured_api_url() == "http://127.0.0.1:9/api"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PREFECT_API_URL", "")
            assert configured_api_url() is None


def test_a_server_on_the_default_port_is_taken_unless_the_address_is_empty(prefect_api: str, monkeypatch):
    monkeypatch.setattr(orchestration, "DEFAULT_API_URL", prefect_api)
    monkeypatch.delenv("PREFECT_API_URL")
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert found_api_url() == prefect_api
        monkeypatch.setenv("PREFECT_API_URL", "")
        assert found_api_url() is None
        assert check_prefect(None).detail == "embedded (PREFECT_API_URL is empty)"


def test_what_was_used_before_is_used_after(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:8/api")
    with used("http://127.0.0.1:9/api"):
        assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:9/api"
    assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:8/api"


@pytest.mark.parametrize("damage", ["head", "page"])
def test_a_damaged_database_is_named_with_what_to_do(tmp_path: Path, damage: str):
    file = tmp_path / "prefect.db"
    with closing(sqlite3.connect(file)) as database:
        database.executescript("CREATE TABLE a (b); CREATE INDEX c ON a (b);")
        database.executemany("INSERT INTO a VALUES (?)", [(f"{number:0100}",) for number in range(1000)])
        database.commit()
    assert database_damage(file) is None and database_damage(tmp_path / "none") is None
    with file.open("r+b") as opened:
        opened.seek(0 if damage == "head" else 4096 * 5)
        opened.write(b"\xff" * 4096)
    says = rf"^Prefect's database {file} is damaged \(.+\): move it, .* run the same command"
    with pytest.raises(DataError, match=says), orchestration._damage_named(file):
        raise InfraError("the embedded Prefect server did not start")


def test_a_server_that_fails_with_a_sound_database_says_its_own(tmp_path: Path):
    with pytest.raises(InfraError, match="did not start"), orchestration._damage_named(tmp_path / "prefect.db"):
        raise InfraError("the embedded Prefect server did not start")


def test_a_port_that_is_taken_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is taken"), shared_prefect_server(port):
            pass


def test_deploying_keeps_a_work_pool_that_was_edited(prefect_api: str):
    asyncio.run(edit_work_pool())
    deploy_all()
    limit, parameters = asyncio.run(deployed())
    assert limit == 3
    assert parameters == {flow_of(deployment): deployment["parameters"] for deployment in DEPLOYMENTS}


async def edit_work_pool() -> None:
    async with get_client() as client:
        await client.create_work_pool(WorkPoolCreate(name=WORK_POOL, type="process"), overwrite=True)
        await client.update_work_pool(WORK_POOL, WorkPoolUpdate(concurrency_limit=3))


async def deployed() -> tuple[int | None, dict[str, dict[str, Any]]]:
    """The pool's limit, and each deployment's parameters."""
    async with get_client() as client:
        pool = await client.read_work_pool(WORK_POOL)
        found = [item for item in await client.read_deployments() if item.work_pool_name == WORK_POOL]
        return pool.concurrency_limit, {flow_of({"entrypoint": item.entrypoint}): item.parameters for item in found}


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["entrypoint"])
def test_the_form_of_the_ui_sends_what_the_preset_means(deployment: dict[str, Any]):
    model = {**FLOWS, "profile_shard": CurateSettings}[flow_of(deployment)]
    sent = merged(model().model_dump(), deployment["parameters"]["settings"])  # the form sends every field
    assert model.model_validate(sent).model_dump() == model.model_validate({"preset": "nano"}).model_dump()


def flow_of(deployment: dict[str, Any]) -> str:
    return Path(deployment["entrypoint"].partition(":")[0]).stem


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    parts = {key: merged(base[key], part) if isinstance(part, dict) else part for key, part in over.items()}
    return {**base, **parts}
