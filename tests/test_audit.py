"""`make audit`: what it counts as found, and that what could not be looked up is not called clean."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from coderl_tasks.paths import PROJECT_ROOT

specification = importlib.util.spec_from_file_location("audit", PROJECT_ROOT / "tools" / "audit.py")
assert specification is not None and specification.loader is not None
audit = importlib.util.module_from_spec(specification)
specification.loader.exec_module(audit)

SKIPPED = {"name": "b", "skip_reason": "Dependency not found on PyPI and could not be audited: b (1)"}
REPORT = {
    "dependencies": [
        {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"], "aliases": []}]},
        {"name": "c", "version": "1", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]},
        {"name": "d", "version": "1", "vulns": []},
        SKIPPED,
    ],
    "fixes": [],
}


def test_what_pip_audit_skips_is_not_called_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.vulnerabilities(REPORT) == (["a 1: PYSEC-1, fixed in 2", "c 1: PYSEC-2, no fixed version"], ["b"])
    monkeypatch.setattr(audit, "run_pip_audit", lambda _: {"dependencies": [SKIPPED], "fixes": []})
    assert audit.main("") == audit.INCOMPLETE
    said = capsys.readouterr().out
    assert (
        "vulnerabilities: 0 known in 0 of " in said and "NOT CHECKED: known vulnerabilities of 1 packages (b)" in said
    )
    monkeypatch.setattr(audit, "run_pip_audit", lambda _: REPORT)
    monkeypatch.setattr(audit, "tracked_files", lambda _: [])  # which takes seconds, and was asked for above
    assert audit.main("") == audit.FOUND
    assert "FOUND: a 1: PYSEC-1, fixed in 2" in capsys.readouterr().out


def test_a_pip_audit_that_is_not_there_is_said() -> None:
    assert "No module named" in str(audit.run_pip_audit(sys.executable))


def test_licences_that_bind_or_are_missing_are_doubtful() -> None:
    texts = ["MIT", "MPL-2.0", "GPL-3.0-only", "LGPL-2.1-or-later", "GNU Lesser General Public License v3 (LGPLv3)"]
    texts += ["GNU Affero General Public License v3", "AGPL-3.0", "", "Proprietary", "GNU General Public License (GPL)"]
    found = audit.doubtful_licences({text or "none": text for text in texts})
    fine = {"MIT", "MPL-2.0", "LGPL-2.1-or-later", "GNU Lesser General Public License v3 (LGPLv3)"}
    assert {line.partition(":")[0] for line in found} == {text or "none" for text in texts} - fine


def test_a_secret_in_a_tracked_file_is_named_by_its_place(tmp_path: Path) -> None:
    planted = {
        "key.pem": "\n-----BEGIN RSA PRIVATE" + " KEY-----\n",
        "a.env": "A=1\nTINKER_API_KEY=tml-" + "x" * 40,
        "b.yaml": "aws: AKIA" + "Q" * 16,
        "c.py": "token = 'hf_" + "a" * 34 + "'",
        "clean.md": "TINKER_API_KEY=tml-... and sk-123 and http://user:pass@host",
    }
    for name, text in planted.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "untracked.env").write_text(planted["a.env"])
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", *planted], check=True)
    found = audit.secrets(audit.tracked_files(tmp_path))
    assert [line.removeprefix(f"{tmp_path}/") for line in found] == [
        "a.env:2: a Tinker key",
        "b.yaml:1: an AWS key",
        "c.py:1: a Hugging Face token",
        "key.pem:2: a private key",
    ]
