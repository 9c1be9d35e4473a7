"""The clients' environment: the newest tinker-cookbook and what it needs, beside the project's packages.

It lies in .venv-compat. A .pth file lets it see the project's packages, so that PyTorch is not installed twice; what is
installed here comes before them. The cookbook is installed without its needs, and then those that are missing, one by
one: a need that the package index does not have must not make pip choose an older cookbook.
"""

import subprocess
import sys
import sysconfig
import tarfile
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from coderl_tasks.errors import InfraError
from coderl_tasks.paths import PROJECT_ROOT

FOLDER = PROJECT_ROOT / ".venv-compat"
PYTHON = FOLDER / "bin" / "python"
EXTRA = "math-rl"
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_PACKAGES = FOLDER / "lib" / _VERSION / "site-packages"
_PROJECT_PACKAGES = sysconfig.get_paths()["purelib"]


def install() -> list[str]:
    """Bring the environment up to date; lines that say what is installed, and what is not as the cookbook wants it.

    Raises InfraError if there is no cookbook, neither installed before nor to be had now.
    """
    link = _PACKAGES / "project.pth"
    if not PYTHON.exists() or not link.exists() or link.read_text() != _PROJECT_PACKAGES:
        venv.create(FOLDER, clear=True, symlinks=True)
        link.write_text(_PROJECT_PACKAGES)
    remarks = []
    # Asked first, because `--upgrade` without an index is content with what is installed.
    fault = _pip("install", "--dry-run", "--ignore-installed", "--no-deps", "tinker-cookbook")
    fault = fault or _pip("install", "--upgrade", "--no-deps", "tinker-cookbook")
    if fault and _installed("tinker-cookbook") is None:
        raise InfraError(f"cannot install tinker-cookbook: {fault}")
    if fault:
        remarks.append(f"whether there is a newer one is not known: {fault}")
    for need in _unmet():
        if _pip("install", str(need)) and _installed(need.name) is None and (fault := _pip("install", need.name)):
            raise InfraError(f"cannot install {need.name}, which tinker-cookbook needs: {fault}")
    for need in _unmet():
        remarks.append(f"it asks for {need}, {_installed(need.name)} is what there is")
    return [
        f"tinker-cookbook {version()} with tinker {_installed('tinker')}, Python {sys.version.split()[0]}",
        *remarks,
    ]


def version() -> str:
    """The version of the cookbook that is installed."""
    found = _installed("tinker-cookbook")
    assert found is not None
    return found


def script(path: str) -> Path:
    """A file of the cookbook's source archive that its wheel lacks. Raises InfraError if it cannot be downloaded."""
    folder = FOLDER / "sources" / version()
    archive = f"tinker_cookbook-{version()}"
    file = folder / archive / path
    if not file.exists():
        options = ("--no-deps", "--no-binary", ":all:", "--dest", str(folder))
        if fault := _pip("download", *options, f"tinker-cookbook=={version()}"):
            raise InfraError(f"cannot download the sources of tinker-cookbook {version()}: {fault}")
        with tarfile.open(folder / f"{archive}.tar.gz") as sources:
            if f"{archive}/{path}" not in sources.getnames():
                raise InfraError(f"the sources of tinker-cookbook {version()} have no {path}")
            sources.extract(f"{archive}/{path}", folder, filter="data")
    return file


def _installed(name: str) -> str | None:
    """The version of a package that the clients see."""
    found = metadata.distributions(name=name, path=[str(_PACKAGES), _PROJECT_PACKAGES])
    return next((distribution.version for distribution in found), None)


def _unmet() -> list[Requirement]:
    """What the cookbook needs and the clients do not see in a version that fits."""
    cookbook = next(iter(metadata.distributions(name="tinker-cookbook", path=[str(_PACKAGES)])))
    needs = [Requirement(text) for text in cookbook.requires or []]
    wanted = [need for need in needs if need.marker is None or need.marker.evaluate({"extra": EXTRA})]
    return [
        Requirement(f"{need.name}{need.specifier}")
        for need in wanted
        if (found := _installed(need.name)) is None or not need.specifier.contains(found, prereleases=True)
    ]


def _pip(*arguments: str) -> str:
    """Run pip for the environment; the last line of its complaint, empty if it worked."""
    command = [sys.executable, "-m", "pip", "--python", str(PYTHON), "--disable-pip-version-check", "--quiet"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "" if done.returncode == 0 else (lines or [f"pip ended with {done.returncode}"])[-1]
