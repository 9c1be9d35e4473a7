import asyncio
import json
import os
import resource
import socket
import sqlite3
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from aiohttp import web
from prefect import flow, get_client
from prefect.deployments import run_deployment
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from coderl_tasks.cli.arguments import FLOW_SETTINGS
from coderl_tasks.cli.doctor import check_prefect
from coderl_tasks.errors import ConfigError, DataError, InfraError
from coderl_tasks.journal import atomic
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.runtime import prefect_server as servers
from coderl_tasks.runtime.prefect_server import (
    DEFAULT_API_URL,
    auth_string,
    configured_api_url,
    database_damage,
    embedded_prefect,
    exports,
    faults_explained,
    found_api_url,
    is_open,
    is_up,
    notice_of_unusable_server,
    prefect_server,
    secret_file,
    shared_prefect_server,
    ui_address,
    used,
)
from coderl_tasks.runtime.worker import WORK_POOL, closed_template, deploy_all
from coderl_tasks.services.supervisor import free_port
from coderl_tasks.settings import CurateSettings
from tests.conftest import Serve

DEPLOYMENTS = yaml.safe_load((PROJECT_ROOT / "prefect.yaml").read_text())["deployments"]


def test_an_embedded_server_leaves_the_default_port_to_others(prefect_api: str) -> None:
    assert is_up(prefect_api)
    assert prefect_api != DEFAULT_API_URL


def test_a_configured_server_is_used_and_not_started(prefect_api: str) -> None:
    for server in (prefect_server, shared_prefect_server):
        with server() as api_url:
            assert api_url == prefect_api == PREFECT_API_URL.value() == os.environ["PREFECT_API_URL"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_server_without_room_for_its_database_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setenv("CODERL_HOME", str(tmp_path))
    monkeypatch.setattr(atomic, "LEAST_FREE", 2**60)
    server = shared_prefect_server(free_port()) if shared else embedded_prefect()
    with pytest.raises(InfraError, match=r"MiB are free at .*free some space"), server:
        pass
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["starting.lock"]


def test_a_secret_that_cannot_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODERL_HOME", str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught, embedded_prefect():
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "secret-" in str(caught.value.filename) and not list(tmp_path.rglob("secret-*"))


def test_a_server_is_started_at_the_configured_address_of_loopback_where_nothing_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODERL_HOME", str(tmp_path))
    port = free_port()
    in_its_way = tmp_path / "prefect" / f"secret-{port}"  # so that the start fails, and shows the port
    in_its_way.mkdir(parents=True)
    with used(f"http://localhost:{port}/api"), pytest.raises(OSError) as caught, shared_prefect_server():
        pass
    assert caught.value.filename == str(in_its_way)
    elsewhere = "http://127.0.0.2:9/api"  # as another machine's, whose server is not ours to start
    with used(elsewhere), shared_prefect_server() as api_url:
        assert api_url == elsewhere


@flow
def of_nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("work", "root", "status", "error", "says"),
    [
        (of_nothing, "/api", 401, ConfigError, "refuses this command .HTTP 401.: set PREFECT_API_AUTH_STRING"),
        (deploy_all, "/api", 401, ConfigError, "refuses this command .HTTP 401.: set PREFECT_API_AUTH_STRING"),
        (of_nothing, "/api", 403, ConfigError, "refuses this command .HTTP 403.: .*prefect cloud login"),
        (of_nothing, "/api", 500, InfraError, "failed .HTTP 500."),
        (of_nothing, "/api", 200, ConfigError, "Found incompatible versions: client: .*, server: 99.1.0"),
        (of_nothing, "", 404, ConfigError, "lacks /api"),
        (deploy_all, "", 404, ConfigError, "lacks /api"),
    ],
)
def test_a_server_that_does_not_fit_is_one_line(
    work: Callable[[], None], root: str, status: int, error: type[Exception], says: str, serve: Serve
) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/api/health":
            return web.json_response(True)
        return web.json_response("99.1.0", status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    address = f"{serve(app)}{root}"
    with used(address), pytest.raises(error, match=says) as caught, faults_explained(address):
        work()
    assert "\n" not in str(caught.value)


def test_an_error_that_is_not_the_servers_stays_as_it_is(prefect_api: str) -> None:
    for error in (RuntimeError("the flow's own"), ConfigError("a setting")):
        with pytest.raises(type(error)) as caught, faults_explained(prefect_api):
            raise error
        assert caught.value is error
    nobody = "http://127.0.0.1:9/api"
    with pytest.raises(InfraError, match=f"no answer from .* at {nobody}: start it"), faults_explained(nobody):
        raise httpx.ConnectError("refused")


def test_an_empty_address_says_that_there_is_none() -> None:
    with used("http://127.0.0.1:9/api"):
        assert configured_api_url() == "http://127.0.0.1:9/api"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PREFECT_API_URL", "")
            assert configured_api_url() is None


@pytest.fixture
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither the environment nor a profile names a Prefect server or a secret."""
    for setting in (PREFECT_API_URL, PREFECT_API_AUTH_STRING):
        monkeypatch.delenv(setting.name, raising=False)
    with temporary_settings(restore_defaults={PREFECT_API_URL, PREFECT_API_AUTH_STRING}):
        yield


def test_a_server_on_the_default_port_is_taken_unless_the_address_is_empty(
    prefect_api: str, nothing_named: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "DEFAULT_API_URL", prefect_api)
    assert found_api_url() == prefect_api
    assert notice_of_unusable_server() is None
    with prefect_server() as api_url:  # as `coderl train` beside `coderl up`: it finds the secret by itself
        assert api_url == prefect_api
        assert os.environ["PREFECT_API_AUTH_STRING"] == PREFECT_API_AUTH_STRING.value() == auth_string(prefect_api)
        assert check_prefect(None).ok
    monkeypatch.setenv("PREFECT_API_URL", "")
    assert found_api_url() is None
    assert check_prefect(None).detail == "embedded (PREFECT_API_URL is empty)"


def test_another_users_server_on_the_default_port_is_not_asked_anything(
    serve: Serve, nothing_named: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response(True)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    theirs = f"{serve(app)}/api"
    monkeypatch.setattr(servers, "DEFAULT_API_URL", theirs)
    secret_file(urlsplit(theirs).port or 0).write_text("coderl:left-by-a-killed-server")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # to be another user than the listener's
    assert found_api_url() is None
    assert auth_string(theirs) is None
    assert "is another user's, and so not joined" in str(notice_of_unusable_server())
    assert "is another user's, and so not joined" in check_prefect(None).detail
    assert asked == []


def test_what_is_ours_but_no_server_that_lets_us_in_is_not_joined(
    prefect_api: str, nothing_named: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "DEFAULT_API_URL", prefect_api)
    monkeypatch.setenv("CODERL_HOME", str(tmp_path))  # where its secret is not
    assert found_api_url() is None
    assert "lets this command in" in str(notice_of_unusable_server())
    with used(prefect_api):
        found = check_prefect(None)
    assert not found.ok
    assert "401" in found.detail


def test_the_secret_is_in_a_file_for_this_user_alone_and_in_what_a_user_is_told(prefect_api: str) -> None:
    file = secret_file(urlsplit(prefect_api).port or 0)
    assert file.stat().st_mode & 0o777 == 0o600
    secret = file.read_text()
    assert ui_address(prefect_api) == f"{prefect_api.removesuffix('/api')}/coderl-login#{secret}"
    assert secret not in exports(prefect_api)
    said = subprocess.run(
        ["sh", "-c", f'{exports(prefect_api)}; echo "$PREFECT_API_URL $PREFECT_API_AUTH_STRING"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"{prefect_api} {secret}\n"


EVIL = {"Origin": "http://evil.example"}
ATTACKS: dict[str, tuple[str, dict[str, str], int]] = {
    "a page": ("POST", EVIL, 403),
    "a page's preflight": ("OPTIONS", EVIL | {"Access-Control-Request-Method": "POST"}, 403),
    "a page that has the secret": ("POST", EVIL | {"Authorization": "SECRET"}, 403),
    "a page on another port": ("POST", {"Origin": "http://127.0.0.1:1", "Authorization": "SECRET"}, 403),
    "a sandboxed page": ("POST", {"Origin": "null", "Authorization": "SECRET"}, 403),
    "a rebound name": ("POST", {"Host": "evil.example:4200", "Authorization": "SECRET"}, 403),
    "no CSRF token": ("POST", {"Authorization": "SECRET"}, 403),
    "no secret": ("GET", {}, 401),
    "a wrong secret": ("GET", {"Authorization": f"Basic {b64encode(b'coderl:guess').decode()}"}, 401),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_prefect_api_refuses(prefect_api: str, attack: str) -> None:
    method, headers, status = ATTACKS[attack]
    secret = f"Basic {b64encode(str(auth_string(prefect_api)).encode()).decode()}"
    headers = {name: secret if value == "SECRET" else value for name, value in headers.items()}
    path = "/flows/count" if method == "POST" else "/admin/version"
    answer = httpx.request(method, f"{prefect_api}{path}", headers=headers, json={} if method == "POST" else None)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers
    assert not is_open(prefect_api)
    assert not is_open(prefect_api.replace("//", f"//{auth_string(prefect_api)}@")), "its secret in the address is one"
    taken = httpx.get(f"{prefect_api}/admin/version", headers={"Authorization": secret})  # by whom it is meant for
    assert taken.status_code == 200


@pytest.mark.parametrize(("headers", "status"), [(EVIL, 403), ({"Host": "evil.example"}, 403), ({}, 101)])
def test_a_websocket_of_another_page_is_refused(prefect_api: str, headers: dict[str, str], status: int) -> None:
    asks = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    asks |= {"Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==", "Sec-WebSocket-Protocol": "prefect"}
    with httpx.stream("GET", f"{prefect_api}/events/out", headers=asks | headers) as answer:
        assert answer.status_code == status


SOCKETS = ("events/in", "events/out", "logs/out", "task_runs/subscriptions/scheduled", "work_pools/x/workers/connect")
FIRST_MESSAGES = {
    "no secret": '{"type": "auth"}',
    "a wrong secret": '{"type": "auth", "token": "coderl:guess"}',
    "no login": '{"type": "subscribe", "keys": ["x"], "filter": {}}',
    "no JSON": "x",
    "a nested one": '{"a":' * 100_000,
    "a large one": json.dumps({"type": "auth", "token": "x" * 2**20}),
}


@pytest.mark.parametrize("socket", SOCKETS)
def test_no_websocket_answers_without_the_secret(prefect_api: str, socket: str) -> None:
    address = f"{prefect_api.replace('http', 'ws', 1)}/{socket}"
    with pytest.raises(InvalidStatus, match="403"):  # an older client's way, which has no login
        connect(address).close()
    for name, message in FIRST_MESSAGES.items():
        with connect(address, subprotocols=[Subprotocol("prefect")]) as link:
            link.send(message)
            with pytest.raises(ConnectionClosed):
                answer = link.recv(timeout=60)
                assert not answer, (name, answer)
    assert httpx.get(f"{prefect_api}/health").status_code == 200


def test_the_ui_is_served_to_its_own_pages_with_a_page_that_logs_in_and_to_no_frame(prefect_api: str) -> None:
    address = prefect_api.removesuffix("/api")
    for path, says in (("/", "<html"), ("/coderl-login", 'localStorage.setItem("prefect-password"')):
        for origin in ({}, {"Origin": address}):
            page = httpx.get(address + path, headers=origin, follow_redirects=True)
            assert (page.status_code, page.headers["x-frame-options"]) == (200, "DENY")
            assert says in page.text


def test_what_was_used_before_is_used_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:8/api")
    with used("http://127.0.0.1:9/api"):
        assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:9/api"
    assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:8/api"


def test_coderl_ups_damaged_database_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODERL_HOME", str(tmp_path))
    (tmp_path / "prefect").mkdir(mode=0o700)
    (tmp_path / "prefect" / "prefect.db").write_bytes(b"no database" * 1000)
    with pytest.raises(DataError, match=r"prefect\.db is damaged"), shared_prefect_server(free_port()):
        pass


@pytest.mark.parametrize("damage", ["head", "page"])
def test_a_damaged_database_is_named_with_what_to_do(tmp_path: Path, damage: str) -> None:
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
    with pytest.raises(DataError, match=says), servers._damage_named(file):
        raise InfraError("the embedded Prefect server did not start")


def test_a_server_that_fails_with_a_sound_database_says_its_own(tmp_path: Path) -> None:
    with pytest.raises(InfraError, match="did not start"), servers._damage_named(tmp_path / "prefect.db"):
        raise InfraError("the embedded Prefect server did not start")


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is taken"), shared_prefect_server(port):
            pass


def test_deploying_keeps_a_work_pool_that_was_edited(deployed: None) -> None:
    limit, parameters, template = asyncio.run(pool_and_deployments())
    assert limit == 3
    assert parameters == {flow_of(deployment): deployment["parameters"] for deployment in DEPLOYMENTS}
    assert template["job_configuration"]["env"] == {"KEPT": "1"}
    assert "labels" in template["variables"]["properties"]
    assert closed_template(template) == template
    for variables in ({"command": "touch /tmp/x"}, {"env": {"PYTHONPATH": "/tmp"}}, {"env.LD_PRELOAD": "/tmp/x"}):
        with pytest.raises(PrefectHTTPStatusError) as refused:
            run_deployment("curate/local", job_variables=variables, timeout=0)
        assert 400 <= refused.value.response.status_code < 500
        assert "job variable" in refused.value.response.text.lower() or "ddition" in refused.value.response.text


async def pool_and_deployments() -> tuple[int | None, dict[str, dict[str, Any]], dict[str, Any]]:
    """The pool's limit, each deployment's parameters, and the pool's base job template."""
    async with get_client() as client:
        pool = await client.read_work_pool(WORK_POOL)
        found = [item for item in await client.read_deployments() if item.work_pool_name == WORK_POOL]
        parameters = {flow_of({"entrypoint": item.entrypoint}): item.parameters for item in found}
        return pool.concurrency_limit, parameters, pool.base_job_template


async def test_a_worker_takes_no_command_from_a_run_even_if_the_server_let_it_through() -> None:
    values = {"command": "touch /tmp/x", "env": {"PYTHONPATH": "/tmp"}, "working_dir": "/tmp", "stream_output": False}
    template = closed_template(ProcessWorker.get_default_base_job_template())
    taken: Any = await ProcessJobConfiguration.from_template_and_values(template, values)
    assert (taken.command, taken.env, taken.working_dir, taken.stream_output) == (None, {}, None, False)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["entrypoint"])
def test_a_deployment_and_the_form_of_the_ui_send_what_the_preset_means(deployment: dict[str, Any]) -> None:
    model = {**FLOW_SETTINGS, "profile_shard": CurateSettings}[flow_of(deployment)]
    parameters = deployment["parameters"]["settings"]  # all that a run started without the form gets
    for sent in (parameters, merged(model().model_dump(), parameters)):  # the form sends every field
        assert model.model_validate(sent).model_dump() == model.model_validate({"preset": "nano"}).model_dump()


def flow_of(deployment: dict[str, Any]) -> str:
    return Path(deployment["entrypoint"].partition(":")[0]).stem


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    parts = {key: merged(base[key], part) if isinstance(part, dict) else part for key, part in over.items()}
    return {**base, **parts}
