"""Which service is used is decided from the environment, and an embedded one ends with whoever started it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coderl_tasks import services as module
from coderl_tasks.errors import ConfigError
from coderl_tasks.paths import coderl_home
from coderl_tasks.policy.clients import named_address, service_address
from coderl_tasks.services import (
    Services,
    check_environment,
    configured_sandboxes,
    for_this_machine,
    sandbox_concurrency,
    services,
    why_no_sandbox,
)
from coderl_tasks.services.supervisor import EmbeddedServer
from coderl_tasks.settings import CurateSettings, TrainSettings, parse_settings

HUB_MODEL = "Qwen/Qwen3-4B-Instruct-2507"


def test_the_environment_names_the_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("SANDBOX_URL", "http://127.0.0.1:7/run_code, http://127.0.0.1:8")
    monkeypatch.setenv("SANDBOX_MAX_CONCURRENCY", "5")
    with services(HUB_MODEL) as used:
        assert (used.tinker_url, used.tinker_api_key) == ("http://127.0.0.1:9", "tml-x")
        assert used.sandbox_urls == ("http://127.0.0.1:7", "http://127.0.0.1:8")
        assert used.sandbox_concurrency == 5
        assert any("http://127.0.0.1:9" in line for line in used.lines)


def test_the_tinker_address_is_said_without_its_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", "https://user:secret@tinker.example/api")
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    monkeypatch.setenv("SANDBOX_URL", "http://user:secret@127.0.0.1:7")
    with services("Qwen/Qwen3-8B") as used:
        assert used.lines[1:] == ("Tinker: https://tinker.example/api (TINKER_API_KEY)", "Sandbox: http://127.0.0.1:7")
        assert used.tinker_url == "https://user:secret@tinker.example/api"
    assert named_address(None) == "https://tinker.example/api (TINKER_BASE_URL)"
    assert service_address("http://user:secret@a:1/") == "http://a:1"


def test_blocks_nest_on_the_same_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    monkeypatch.setenv("SANDBOX_URL", "http://127.0.0.1:7")
    with services(HUB_MODEL) as outer, services("data/nano") as inner:
        assert inner is outer


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "set TINKER_API_KEY to use the Tinker service, or model_name=data/nano"),
        ({"TINKER_BASE_URL": "http://127.0.0.1:9"}, "TINKER_API_KEY is not"),
        ({"TINKER_API_KEY": "tml-x", "TINKER_BASE_URL": "foo"}, "TINKER_BASE_URL: 'foo' is not an http(s) address"),
        ({"TINKER_API_KEY": "sk-1"}, "starts with tml-"),
        ({"TINKER_API_KEY": "tml-x\r\nX-Other: 1"}, "TINKER_API_KEY holds a space, a line break"),
        ({"TINKER_API_KEY": "tml-é"}, "another character that no key has"),
        ({"PREFECT_API_KEY": "pnu\udcff"}, "PREFECT_API_KEY holds a space"),
        ({"TINKER_API_KEY": "tml-x", "SANDBOX_URL": "localhost:8080"}, "is not an http(s) address"),
        ({"TINKER_API_KEY": "tml-x", "SANDBOX_URL": "http://a", "SANDBOX_MAX_CONCURRENCY": "0"}, "positive number"),
    ],
)
def test_a_bad_environment_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], says: str
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError) as caught, services(HUB_MODEL):
        pass
    assert says in str(caught.value)
    with pytest.raises(ConfigError) as early:
        check_environment(HUB_MODEL)
    assert str(early.value) == str(caught.value)


def test_concurrency_is_34_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDBOX_MAX_CONCURRENCY", raising=False)
    assert sandbox_concurrency() == 34
    monkeypatch.setenv("SANDBOX_MAX_CONCURRENCY", "")
    assert sandbox_concurrency() == 34
    assert (sandbox_concurrency(slots=3), sandbox_concurrency(slots=65)) == (34, 65)
    monkeypatch.setenv("SANDBOX_MAX_CONCURRENCY", "5")
    assert sandbox_concurrency(slots=65) == 5


def test_an_embedded_sandbox_gets_a_request_per_slot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SANDBOX_MAX_CONCURRENCY", raising=False)
    monkeypatch.setattr(module, "DEFAULT_SANDBOX_URL", "http://127.0.0.1:1")  # no developer's own
    command = [sys.executable, "-m", "coderl_tasks.cli", "serve", "sandbox", "--concurrency", "40"]
    server = EmbeddedServer("sandbox", command, "/v1/ping", tmp_path / "sandbox.log", closed=True)
    monkeypatch.setattr(module, "embedded_sandbox", lambda: server)  # as on a machine with 39 cores
    with services(None) as used:
        assert used.sandbox_concurrency == 40


@pytest.mark.parametrize(
    ("user", "used", "says"),
    [
        (None, True, "no SANDBOX_URL set"),
        (4_000_000, False, f"is {'root' if os.getuid() == 0 else 'another user'}'s"),
        (4_000_000, False, "if it is your sandbox, only SANDBOX_URL=http://"),
    ],
)
def test_a_sandbox_on_the_default_port_is_used_if_it_is_ours(
    embedded: Services, monkeypatch: pytest.MonkeyPatch, user: int | None, used: bool, says: str
) -> None:
    url = embedded.sandbox_urls[0]
    monkeypatch.setattr(module, "DEFAULT_SANDBOX_URL", url)
    if user is not None:  # to be another user than the listener's
        monkeypatch.setattr(os, "getuid", lambda: user)
    assert configured_sandboxes() == ((url,) if used else ())
    assert says in why_no_sandbox()


def test_an_empty_home_is_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODERL_HOME", "")
    assert coderl_home() == Path.home() / ".cache" / "coderl"


def test_a_bare_command_takes_the_nano_preset_where_nothing_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = for_this_machine(parse_settings(CurateSettings, {"limit": "3"}))
    assert (bare.model_name, bare.dataset, bare.limit) == ("data/nano", "data/mini", 3)
    named = parse_settings(TrainSettings, {"model_name": HUB_MODEL})
    assert for_this_machine(named) is named
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    assert for_this_machine(TrainSettings()).model_name == HUB_MODEL


def test_killing_a_command_leaves_no_embedded_server(tmp_path: Path) -> None:
    starter = (
        "import signal\n"
        "from coderl_tasks.services import services\n"
        "with services('data/nano') as used:\n"
        "    print(used.tinker_url, *used.sandbox_urls, flush=True)\n"
        "    signal.pause()\n"
    )
    environment = {**os.environ, "CODERL_HOME": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert len(process.stdout.readline().split()) == 2
    mine = processes_with(str(tmp_path))
    assert len(mine) >= 3  # itself, the Tinker server, its guard; more with an embedded sandbox
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 60
    while processes_with(str(tmp_path)):
        assert time.monotonic() < deadline, f"still there: {processes_with(str(tmp_path))}"
        time.sleep(0.05)


def processes_with(home: str) -> list[int]:
    """Ids of the live processes that were started with this CODERL_HOME."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if f"CODERL_HOME={home}".encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:  # ended meanwhile
                continue
    return found


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("LD_PRELOAD=./evil.so\n", "sets LD_PRELOAD, which changes what code runs"),
        ("export PYTHONPATH=.\n", "sets PYTHONPATH"),
        ("CXX=./evil\n", "sets CXX"),
        ("prefect_logging_settings_path=evil.yml\n", "sets PREFECT_LOGGING_SETTINGS_PATH"),
        ("PREFECT_LOGGING_CONFIG_PATH=evil.yml\n", "sets PREFECT_LOGGING_CONFIG_PATH"),
        ("PREFECT_HOME=.\n", "sets PREFECT_HOME"),
        ('PREFECT_LOGGING=\'{"config_path": "evil.yml"}\'\n', "sets PREFECT_LOGGING"),
        ('PREFECT_API=\'{"url": "http://evil.example/api"}\'\n', "sets PREFECT_API"),
        ("TINKER_BASE_URL=http://evil.example\n", "your key would go to that address"),
        ("SANDBOX_MAX_CONCURRENCY=3\nTINKER_BASE_URL=http://a.example\nTINKER_API_KEY=tml-own\n", "your key would go"),
        (
            "SANDBOX_URL=http://x:${TINKER_API_KEY}@evil.example\n",
            "puts TINKER_API_KEY of the environment into SANDBOX_URL",
        ),
        ("HF_ENDPOINT=https://evil.example\n", "your key would go to that address"),
    ],
)
def test_a_file_of_variables_changes_no_code_and_sends_no_key_elsewhere(
    content: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    for name in ("TINKER_BASE_URL", "SANDBOX_URL", "PYTHONPATH", "HF_ENDPOINT", "CXX", "PREFECT_HOME", "PREFECT_API"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".env").write_text(content)
    before = dict(os.environ)
    with pytest.raises(ConfigError, match=says):
        module.load_environment()
    assert dict(os.environ) == before
    # An address that the shell has too is the user's own choice, and wins.
    monkeypatch.setenv("TINKER_BASE_URL", "http://mine.example")
    (tmp_path / ".env").write_text("TINKER_BASE_URL=http://evil.example\n")
    module.load_environment()
    assert os.environ["TINKER_BASE_URL"] == "http://mine.example"


@pytest.mark.parametrize(
    ("stored", "key", "address"),
    [
        (".cache/huggingface/token", "hf_x", "HF_ENDPOINT"),
        (
            ".prefect/profiles.toml",
            'active = "own"\n[profiles.own]\nPREFECT_API_KEY = "pnu_x"\n[profiles.other]\n',
            "PREFECT_API_URL",
        ),
    ],
)
def test_a_file_of_variables_sends_no_stored_key_elsewhere(
    stored: str, key: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _, name in module.KEYS_OF_ADDRESSES:
        monkeypatch.delenv(name, raising=False)
    for name in (
        "HF_HOME",
        "HF_TOKEN_PATH",
        "XDG_CACHE_HOME",
        "PREFECT_HOME",
        "PREFECT_PROFILES_PATH",
        "PREFECT_PROFILE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(address, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(f"{address}=https://evil.example\n")
    file = tmp_path / stored
    file.parent.mkdir(parents=True)
    file.write_text(key)
    before = dict(os.environ)
    with pytest.raises(ConfigError, match=f"sets {address} while .* is stored on this machine .*your key would go"):
        module.load_environment()
    assert dict(os.environ) == before
    monkeypatch.setenv("PREFECT_PROFILE", "other")
    file.write_text(key if address == "PREFECT_API_URL" else "\n")  # no key that would be sent
    monkeypatch.setattr(os, "environ", os.environ.copy())
    module.load_environment()
    assert os.environ[address] == "https://evil.example"


def test_a_sandbox_whose_programs_could_read_the_home_is_refused() -> None:
    library = str(Path(json.__file__).parent)
    command = [sys.executable, "-m", "coderl_tasks.cli", "serve", "sandbox"]
    environment = os.environ | {"CODERL_HOME": library}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"CODERL_HOME ({library}) lies below " in done.stderr and "Traceback" not in done.stderr


def test_a_run_that_programs_in_the_sandbox_could_read_is_refused(embedded: Services, tmp_path: Path) -> None:
    embedded.require_hidden(tmp_path, tmp_path / "pool.parquet")
    with pytest.raises(ConfigError, match=r"runs lies below .*, which programs in the sandbox may read"):
        embedded.require_hidden(tmp_path, Path(json.__file__).parent / "runs")
