"""Whom the embedded servers answer, and how their keys get to them."""

import base64
import json
import stat
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coderl_tasks.cli import main
from coderl_tasks.services import Services
from local_servers.server_errors import SetupError
from local_servers.server_keys import new_key, read_key

KEY = "KEY"
"""Stands for the server's own key in the tables below."""
SERVERS = {
    "Tinker": ("/api/v1/create_session", {"tags": [], "user_metadata": None, "sdk_version": "0.38.0"}),
    "sandbox": ("/run_code", {"code": "print(1)", "language": "python"}),
}
JSON = {"Content-Type": "application/json"}


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def post(url: str, body: object, headers: Mapping[str, str]) -> tuple[int, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        (JSON | {"X-API-Key": KEY}, 200, ""),
        (JSON | {"X-API-Key": KEY, "Host": "localhost:8765"}, 200, ""),
        (JSON | {"X-API-Key": KEY, "Host": "[::1]"}, 200, ""),
        (JSON, 401, "wants its key"),
        (JSON | {"X-API-Key": "tml-embedded"}, 401, "wants its key"),
        (JSON | {"X-API-Key": f"{KEY}x"}, 401, "wants its key"),
        (JSON | {"X-API-Key": "tml-\u00e9"}, 401, "wants its key"),
        (JSON | {"Authorization": basic("coderl", "tml-embedded")}, 401, "wants its key"),
        (JSON | {"Authorization": "Basic \u00e9"}, 401, "wants its key"),
        (JSON | {"X-API-Key": KEY, "Host": "evil.example"}, 400, "not to the name 'evil.example'"),
        (JSON | {"X-API-Key": KEY, "Host": "127.0.0.1.evil.example:80"}, 400, "not to the name"),
        (JSON | {"X-API-Key": KEY, "Host": "["}, 400, "not to the name '['"),
        (JSON | {"X-API-Key": KEY, "Origin": "http://evil.example"}, 403, "web pages"),
        (JSON | {"X-API-Key": KEY, "Origin": "null"}, 403, "web pages"),
        ({"X-API-Key": KEY, "Content-Type": "text/plain"}, 415, "Content-Type is text/plain; it has to be"),
        ({"X-API-Key": KEY, "Content-Type": "application/x-www-form-urlencoded"}, 415, "application/json"),
    ],
)
def test_a_server_of_a_run_answers_its_run_alone(
    embedded: Services, name: str, headers: dict[str, str], status: int, says: str
) -> None:
    (server,) = [server for server in embedded.embedded if server.name == name]
    path, body = SERVERS[name]
    sent = {header: value.replace(KEY, server.key) for header, value in headers.items()}
    found, answer = post(server.url + path, body, sent)
    assert (found, says in json.dumps(answer)) == (status, True), answer


def test_the_sandbox_takes_its_key_as_an_address_carries_it(embedded: Services) -> None:
    server = embedded.embedded[1]
    path, body = SERVERS["sandbox"]
    for value in (basic("anyone", server.key), f"Bearer {server.key}"):
        assert post(server.url + path, body, JSON | {"Authorization": value})[0] == 200
    assert server.address == server.url.replace("//", f"//coderl:{server.key}@")


def test_a_token_of_the_server_is_as_good_as_its_key(embedded: Services) -> None:
    server = embedded.embedded[0]
    path, body = SERVERS["Tinker"]
    token = post(f"{server.url}/api/v1/auth/token", {}, JSON | {"X-API-Key": server.key})[1]["jwt"]
    assert post(server.url + path, body, JSON | {"X-API-Key": token})[0] == 200
    forged = f"{token.rpartition('.')[0]}.{new_key()}"
    assert post(server.url + path, body, JSON | {"X-API-Key": forged})[0] == 401


def test_keys_are_random_and_neither_in_a_command_line_nor_in_a_log(embedded: Services, coderl_home: Path) -> None:
    tinker, sandbox = embedded.embedded
    assert tinker.key != sandbox.key
    seen = 0
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
        except OSError:  # ended meanwhile
            continue
        seen += b"serve\0tinker\0" in words
        assert tinker.key.encode() not in words and sandbox.key.encode() not in words
    assert seen >= 2  # the server and its guard
    for log in (coderl_home / "logs").glob("*.log"):
        assert "tml-" not in log.read_text()


def test_a_key_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "key"
    key = read_key(str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_key(str(file)) == key
    file.chmod(0o640)
    with pytest.raises(SetupError, match="others may read this file, or own it: chmod 600"):
        read_key(str(file))
    file.chmod(0o600)
    file.write_text("sk-1\n")
    with pytest.raises(SetupError, match=r"holds no key: tml- and 16 to 200 letters"):
        read_key(str(file))
    with pytest.raises(SetupError, match="no key can be written there"):
        read_key(str(tmp_path / "nowhere" / "key"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("tinker", "--host", "0.0.0.0"), "--host 0.0.0.0 lets other machines in"),
        (("sandbox", "--host", "0.0.0.0"), "--host 0.0.0.0 lets other machines in"),
        (("sandbox", "--host", "::"), "--host :: lets other machines in"),
        (("sandbox", "--allow-unisolated"), "--allow-unisolated lets whoever reaches the port run programs as you"),
    ],
)
def test_what_lets_others_in_needs_a_key(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words]) == 2
    said = capsys.readouterr().err
    assert says in said and "add --key FILE" in said and said.count("\n") == 1
