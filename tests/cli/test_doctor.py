import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coderl_tasks.cli import doctor, main
from coderl_tasks.runtime.prefect_server import used
from coderl_tasks.server_addresses import without_credentials
from coderl_tasks.services import Services
from local_servers.sandbox import interpreter
from local_servers.server_errors import SetupError
from tests.conftest import Serve
from tests.faults.models_proxy import ModelsProxy
from tests.faults.sampling_faults import SamplingFaults


@pytest.fixture
def service(embedded: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's Tinker server, named as a user would name the service."""
    monkeypatch.setenv("TINKER_BASE_URL", str(embedded.tinker_url))
    monkeypatch.setenv("TINKER_API_KEY", str(embedded.tinker_api_key))


def test_a_service_that_answers_is_asked_for_the_model(service: None) -> None:
    assert doctor.check_key(None).ok
    assert doctor.check_tinker("data/nano").ok
    found = doctor.check_tinker("no/such-model")
    assert not found.ok
    assert "data/nano" in found.detail


def test_what_is_offered_is_listed_with_its_renderer(
    embedded: Services, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = ModelsProxy(str(embedded.tinker_url), dict.fromkeys(("Qwen/Qwen3-8B", "some/model"), "data/nano"))
    monkeypatch.setenv("TINKER_BASE_URL", serve(proxy.app()))
    monkeypatch.setenv("TINKER_API_KEY", str(embedded.tinker_api_key))
    found = doctor.check_tinker(None)
    assert found.ok
    assert found.detail.startswith("Qwen/Qwen3-8B is taken where no model is named (the service does not offer")
    assert [line.split()[0] for line in found.listing] == ["offered", "Qwen/Qwen3-8B", "some/model"]
    assert found.listing[1].split()[1:] == ["qwen3", "256", "tokens"]
    proxy.models = {"some/model": "data/nano"}
    found = doctor.check_tinker(None)
    assert not found.ok
    assert "set model_name to one that it offers: some/model" in found.detail
    assert len(found.listing) == 2


@pytest.mark.parametrize("kind", ["silent", "closed"])
def test_a_service_that_does_not_answer_is_given_up(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue(kind)
    monkeypatch.setenv("TINKER_BASE_URL", url)
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    monkeypatch.setattr(doctor, "DEADLINE_S", 0.5)
    found = doctor.check_tinker(None)
    assert not found.ok
    assert f"no answer from Tinker at {url} (TINKER_BASE_URL) in 0.5 s" in found.detail


@pytest.mark.parametrize(
    ("version", "newer"), [("0.38.0", False), ("0.38.4", False), ("0.39.0rc1", True), ("1.0", True)]
)
def test_a_newer_sdk_is_named_and_not_refused(version: str, newer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: version if name == "tinker" else "")
    found = doctor.check_sdk(None)
    assert found.ok and version in found.detail
    assert ("newer than the tested 0.38: " in found.detail) == newer


def test_the_tested_sdk_is_the_pinned_one() -> None:
    pinned = (Path(__file__).parents[2] / "constraints.txt").read_text()
    assert f"\ntinker=={'.'.join(map(str, doctor.TESTED_SDK))}." in pinned


def test_a_bad_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "sk-x")
    assert "starts with tml-" in doctor.check_key(None).detail
    assert not doctor.check_key(None).ok
    assert not doctor.check_tinker(None).ok


def test_without_a_service_only_local_models_are_served() -> None:
    assert doctor.check_tinker(None).ok
    found = doctor.check_tinker("Qwen/Qwen3-4B-Instruct-2507")
    assert not found.ok
    assert "TINKER_API_KEY" in found.detail


def test_the_sandbox_that_is_named_has_to_answer(
    embedded: Services, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (url,) = embedded.sandbox_urls
    monkeypatch.setenv("SANDBOX_URL", f"{url}/run_code")
    assert doctor.check_sandbox(None) == doctor.Finding("sandbox", True, without_credentials(url))
    monkeypatch.setenv("SANDBOX_URL", f"{url},{closed}")
    found = doctor.check_sandbox(None)
    assert not found.ok
    assert found.detail.startswith(f"no answer from {closed}:")
    monkeypatch.setenv("SANDBOX_URL", "localhost:8080")
    assert "is not an http(s) address" in doctor.check_sandbox(None).detail


def test_the_python_that_runs_programs_is_named(
    embedded: Services, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_URL", embedded.sandbox_urls[0])
    found = doctor.check_programs(None)
    assert found.ok
    where = without_credentials(embedded.sandbox_urls[0])
    assert found.detail == f"programs are run by Python {platform.python_version()} at {where}"
    monkeypatch.setenv("SANDBOX_URL", closed)
    found = doctor.check_programs(None)
    assert not found.ok
    assert found.detail.startswith(f"programs at {closed}: not tried: ")


def cannot_start() -> tuple[str | None, str]:
    raise SetupError("the sandbox's Python did not start")


@pytest.mark.parametrize("level", [lambda: (None, "no namespaces"), cannot_start])
def test_isolation_is_needed_by_the_embedded_sandbox_only(
    level: Callable[[], object], closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "isolation_level", level)
    monkeypatch.setattr(doctor, "configured_sandboxes", lambda: ())
    assert not doctor.check_isolation(None).ok
    monkeypatch.setattr(doctor, "configured_sandboxes", lambda: (closed,))
    assert doctor.check_isolation(None).ok


def test_the_prefect_server_that_is_named_has_to_answer(
    prefect_api: str, closed: str, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.check_prefect(None) == doctor.Finding("prefect", True, prefect_api)
    monkeypatch.setattr(doctor, "DEADLINE_S", 0.5)
    for url in (closed, silent):
        with used(f"{url}/api"):
            found = doctor.check_prefect(None)
        assert not found.ok
        assert found.detail.startswith(f"{url}/api: ")
    monkeypatch.setenv("PREFECT_API_URL", "")
    assert doctor.check_prefect(None).ok


def test_the_disk_line_says_what_states_need_and_what_others_can_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CODERL_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    tmp_path.chmod(0o755)
    found = doctor.check_disk("data/nano")
    assert found.listing[0].startswith("states, with the embedded Tinker server: up to ")
    assert found.listing[1:] == (
        f"other users of this machine can read {tmp_path}: chmod 700 {tmp_path}, unless that is meant",
    )
    tmp_path.chmod(0o700)
    assert len(doctor.check_disk("data/nano").listing) == 1
    assert doctor.check_disk("Qwen/Qwen3-8B").listing == ()


def test_locks_are_tried_where_runs_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert doctor.check_locks(None) == doctor.Finding(
        "locks", True, f"runs in {tmp_path} are locked; a host that is gone holds one for 6 s"
    )
    with monkeypatch.context() as patch:
        patch.setattr("fcntl.lockf", lambda *_: None)  # a file system that locks nothing
        found = doctor.check_locks(None)
    assert (found.ok, found.detail.partition(":")[0]) == (False, f"a lock in {tmp_path} is not seen by others")
    assert list(tmp_path.iterdir()) == []


def test_the_model_may_be_named_as_for_a_flow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (lambda name: doctor.Finding("model", True, str(name)),))
    assert main(["doctor", "model_name=data/nano"]) == 0
    assert capsys.readouterr().out == "ok       model      data/nano\n"
    for word in ("model_name=", "seed=1", "nano"):
        assert main(["doctor", word]) == 2
        assert capsys.readouterr().err.endswith(f"{word}: doctor takes model_name=NAME alone\n")


def test_the_report_is_a_line_per_check_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = (doctor.check_python, lambda _: doctor.Finding("disk", False, "1 GiB free"))
    monkeypatch.setattr(doctor, "CHECKS", checks[:1])
    assert main(["doctor"]) == 0
    monkeypatch.setattr(doctor, "CHECKS", checks)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "MISSING  disk       1 GiB free"


def test_the_probe_says_what_the_service_does(
    service: None, serve: Serve, embedded: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *warnings = doctor.probe_findings("data/nano", 1.0)
    assert first.ok and first.detail.startswith("data/nano is served; samples of one request differ; ")
    assert warnings == []
    gateway = SamplingFaults(str(embedded.tinker_url), shift=lambda logprobs, _: logprobs - np.float32(1))
    monkeypatch.setenv("TINKER_BASE_URL", serve(gateway.app()))
    first, warning = doctor.probe_findings("data/nano", 1.0)
    assert not first.ok and "over 0.5 it is another policy" in first.detail
    assert "importance ratios are off by a factor of 2.72" in warning.detail
    monkeypatch.setenv("TINKER_API_KEY", "sk-x")
    (found,) = doctor.probe_findings("data/nano", 1.0)
    assert not found.ok and "starts with tml-" in found.detail


def test_a_compiler_is_looked_for_and_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-compiler")
    found = doctor.check_compiler(None)
    assert found.ok and found.detail.startswith(
        "no-compiler is not there: problems with a checker in C++ cannot be graded"
    )
    monkeypatch.setenv("CXX", "sh")
    assert doctor.check_compiler(None).detail.endswith("/sh")
