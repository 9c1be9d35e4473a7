from pathlib import Path

import pytest

from coderl_tasks import doctor
from coderl_tasks.errors import ConfigError
from coderl_tasks.local.sandbox import interpreter
from coderl_tasks.orchestration import used
from coderl_tasks.services import Services


@pytest.fixture
def service(embedded: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's Tinker server, named as a user would name the service."""
    monkeypatch.setenv("TINKER_BASE_URL", str(embedded.tinker_url))
    monkeypatch.setenv("TINKER_API_KEY", str(embedded.tinker_api_key))


def test_a_service_that_answers_is_asked_for_the_model(service):
    assert doctor.check_key(None).ok
    assert doctor.check_tinker("data/nano").ok
    found = doctor.check_tinker("no/such-model")
    assert not found.ok
    assert "data/nano" in found.detail


@pytest.mark.parametrize("kind", ["silent", "closed"])
def test_a_service_that_does_not_answer_is_given_up(kind, request, monkeypatch: pytest.MonkeyPatch):
    url = request.getfixturevalue(kind)
    monkeypatch.setenv("TINKER_BASE_URL", url)
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    monkeypatch.setattr(doctor, "DEADLINE_S", 0.5)
    found = doctor.check_tinker(None)
    assert not found.ok
    assert f"no answer from {url}" in found.detail


@pytest.mark.parametrize(
    ("version", "newer"), [("0.38.0", False), ("0.38.4", False), ("0.39.0rc1", True), ("1.0", True)]
)
def test_a_newer_sdk_is_named_and_not_refused(version: str, newer: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: version if name == "tinker" else "")
    found = doctor.check_sdk(None)
    assert found.ok and version in found.detail
    assert ("newer than the tested 0.38: " in found.detail) == newer


def test_the_tested_sdk_is_the_pinned_one():
    pinned = (Path(__file__).parent.parent / "constraints.txt").read_text()
    assert f"\ntinker=={'.'.join(map(str, doctor.TESTED_SDK))}." in pinned


def test_a_bad_key_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINKER_API_KEY", "sk-x")
    assert "starts with tml-" in doctor.check_key(None).detail
    assert not doctor.check_key(None).ok
    assert not doctor.check_tinker(None).ok


def test_without_a_service_only_local_models_are_served():
    assert doctor.check_tinker(None).ok
    found = doctor.check_tinker("Qwen/Qwen3-4B-Instruct-2507")
    assert not found.ok
    assert "TINKER_API_KEY" in found.detail


def test_the_sandbox_that_is_named_has_to_answer(embedded: Services, closed, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SANDBOX_URL", ",".join(embedded.sandbox_urls))
    assert doctor.check_sandbox(None).ok
    monkeypatch.setenv("SANDBOX_URL", f"{embedded.sandbox_urls[0]},{closed}")
    found = doctor.check_sandbox(None)
    assert not found.ok
    assert found.detail.startswith(f"no answer from {closed}:")
    monkeypatch.setenv("SANDBOX_URL", "localhost:8080")
    assert "is not an http(s) address" in doctor.check_sandbox(None).detail


def cannot_start() -> tuple[str | None, str]:
    raise ConfigError("the sandbox's Python did not start")


@pytest.mark.parametrize("level", [lambda: (None, "no namespaces"), cannot_start])
def test_isolation_is_needed_by_the_embedded_sandbox_only(level, closed, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(interpreter, "isolation_level", level)
    monkeypatch.setattr(doctor, "configured_sandboxes", lambda: ())
    assert not doctor.check_isolation(None).ok
    monkeypatch.setattr(doctor, "configured_sandboxes", lambda: (closed,))
    assert doctor.check_isolation(None).ok


def test_the_prefect_server_that_is_named_has_to_answer(prefect_api, closed, silent, monkeypatch: pytest.MonkeyPatch):
    assert doctor.check_prefect(None) == doctor.Finding("prefect", True, prefect_api)
    monkeypatch.setattr(doctor, "DEADLINE_S", 0.5)
    for url in (closed, silent):
        with used(f"{url}/api"):
            found = doctor.check_prefect(None)
        assert not found.ok
        assert found.detail.startswith(f"{url}/api: ")
    monkeypatch.setenv("PREFECT_API_URL", "")
    assert doctor.check_prefect(None).ok


def test_the_report_is_a_line_a_check_and_its_exit_code(monkeypatch: pytest.MonkeyPatch, capsys):
    checks = (doctor.check_python, lambda _: doctor.Finding("disk", False, "1 GiB free"))
    monkeypatch.setattr(doctor, "CHECKS", checks[:1])
    assert doctor.report(None) == 0
    monkeypatch.setattr(doctor, "CHECKS", checks)
    assert doctor.report(None) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "MISSING  disk       1 GiB free"
