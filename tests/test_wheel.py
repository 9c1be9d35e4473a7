"""The wheel, built and installed, from an empty folder: everything that docs/tutorial.md says, as it stands there."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.services import Services

BLOCK = re.compile(r"^```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.M | re.S)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a wheel was installed into, with bin/coderl in it."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files"], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.split("\n")[:-1]:  # a build leaves files beside its sources
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT_ROOT / name, target)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "source")]
    subprocess.run(build, check=True)
    [wheel] = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True)
    return folder / "site"


def test_the_tutorial_does_what_it_says(
    installed: Path, tmp_path: Path, prefect_api: str, embedded: Services, with_database: Callable[[Path], None]
) -> None:
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    path = f"{installed / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    services = dict.fromkeys(("TINKER_BASE_URL", "TINKER_API_KEY", "SANDBOX_URL", "PREFECT_API_URL"), "")
    environment = {**os.environ, **services, "PYTHONPATH": str(installed), "PATH": path, "HOME": str(home)}
    environment["CODERL_HOME"] = str(home / "cache")
    with_database(home / "cache")
    session = {"TINKER_BASE_URL": str(embedded.tinker_url), "TINKER_API_KEY": str(embedded.tinker_api_key)}
    session["SANDBOX_URL"] = ",".join(embedded.sandbox_urls)
    said: dict[str, str] = {}
    for block in BLOCK.finditer((PROJECT_ROOT / "docs" / "tutorial.md").read_text()):
        if block["title"]:
            (work / block["title"]).write_text(block["text"])
        elif block["kind"] == "sh":
            for command in block["text"].splitlines():
                # What trains and evaluates the first run starts the wheel's own servers. All else takes the session's.
                named = environment if "first-run" in command else environment | session
                done = subprocess.run(
                    ["sh", "-c", command], cwd=work, env=named, capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
                said[command] = done.stdout
                if command.startswith("coderl curate"):  # the first one started the wheel's own Prefect server
                    environment["PREFECT_API_URL"] = prefect_api

    def of(beginning: str) -> str:
        [found] = [text for command, text in said.items() if command.startswith(beginning)]
        return found

    assert "48 rows, numbered from 0: 48 kept" in of("coderl validate problems.jsonl")
    assert (home / "code-rl-pools" / "lists" / "pool.parquet").is_file()
    assert "against baseline: +" in of("coderl evaluate")
    rewards = [float(line.split()[-1]) for line in of("coderl query style-run").splitlines()[1:] if line.strip()]
    assert len(rewards) == 5 and rewards[-1] > rewards[0]
    assert (home / "code-rl-logs" / "first-run" / "report.html").is_file()
    # All of it was the wheel's: what it wrote into its own folder would be lost with the next version.
    assert not (installed / "coderl_tasks" / "bundled" / "data" / "pools").exists()
