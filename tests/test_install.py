"""`make install` by uv: it looks where pip is told to look, and pip installs where it cannot."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "tools" / "install.py"
spec = importlib.util.spec_from_file_location("install", SCRIPT)
assert spec is not None and spec.loader is not None
install = importlib.util.module_from_spec(spec)
spec.loader.exec_module(install)

LISTED = """\
:env:.default-timeout='180'
:env:.find-links='/wheels'
global.extra-index-url='\\nhttps://a/simple\\nhttps://b/simple'
global.find-links='/elsewhere'
global.index-url='https://general/simple'
install.index-url='https://install/simple'
"""


def test_uv_looks_where_pip_is_told_to_and_chooses_as_pip_does() -> None:
    words = install.uv_arguments(install.pip_configuration(LISTED), ["-e", "."])
    assert words == [
        *("pip", "install", "--quiet", "--python", sys.executable, "--index-strategy", "unsafe-best-match"),
        *("--default-index", "https://install/simple", "--index", "https://a/simple", "--index", "https://b/simple"),
        *("--find-links", "/wheels", "-e", "."),
    ]
    named = install.uv_arguments(install.pip_configuration(LISTED), ["--index-url", "https://named", "torch"])
    assert "--default-index" not in named and named[-3:] == ["--index-url", "https://named", "torch"]
    assert "--no-index" in install.uv_arguments(install.pip_configuration(":env:.no-index='1'\n"), ["torch"])


@pytest.mark.parametrize("works", [True, False])
def test_pip_installs_what_uv_cannot(works: bool, tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nexit {0 if works else 1}\n')
    uv.chmod(0o755)
    done = subprocess.run(
        [sys.executable, SCRIPT, "--dry-run", "--no-index", "numpy" if not works else "no-such-package"],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("pip does" in done.stderr) is not works
    assert "--no-index" in (tmp_path / "asked").read_text()
