"""Which Python `make` takes: the newest that works, asked as tools/pythons.sh asks it."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORKS = "#!/bin/sh\necho {path}\n"
BROKEN = "#!/bin/sh\nexit 127\n"


def asked(folder: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The script's answer where the Pythons in `folder` are the only ones."""
    path = f"{folder}{os.pathsep}{folder / 'tools'}"
    return subprocess.run(
        ["/bin/sh", str(ROOT / "tools" / "pythons.sh"), *arguments],
        cwd=ROOT,
        env={"PATH": path, **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for the search path, with what the script itself needs."""
    (tmp_path / "tools").mkdir()
    for name in ("head", "wc", "mktemp", "mkdir", "touch", "rm", "grep"):
        found = next(path for path in (Path("/usr/bin"), Path("/bin")) if (path / name).exists()) / name
        (tmp_path / "tools" / name).symlink_to(found)
    return tmp_path


def install(folder: Path, version: str, text: str) -> str:
    path = folder / f"python{version}"
    path.write_text(text.format(path=path))
    path.chmod(0o755)
    return str(path)


def test_those_that_work_are_listed_the_newest_first(folder: Path) -> None:
    old, new = install(folder, "3.11", WORKS), install(folder, "3.13", WORKS)
    install(folder, "3.12", BROKEN)  # as a shim that is set to another version
    install(folder, "3.10", WORKS)
    assert asked(folder, "list").stdout.split() == [new, old]


def test_the_newest_is_taken_unless_pip_finds_a_small_pytorch_for_another_one(folder: Path) -> None:
    """Stand-ins that answer as Python and pip do: pip finds the CPU-only build for one version."""
    text = """#!/bin/sh
case "$*" in
    *ensurepip*) echo {path} ;;
    *version_info*) echo VERSION ;;
    *"pip install"*"--python-version 3.11 "*) found=2.13.0+cpu ;;
    *"pip install"*) found=2.13.0 ;;
esac
test -z "$found" || while [ $# -gt 0 ]; do
    test "$1" != --report || echo '{{"version": "'$found'"}}' > "$2"
    shift
done
"""
    newest = install(folder, "3.13", text.replace("VERSION", "3.13"))
    assert asked(folder, "choose").stdout.split() == [newest]
    install(folder, "3.12", text.replace("VERSION", "3.12"))
    assert asked(folder, "choose").stdout.split() == [newest]
    oldest = install(folder, "3.11", text.replace("VERSION", "3.11"))
    assert asked(folder, "choose").stdout.split() == [oldest]
    assert asked(folder, "others", oldest).stdout.split() == [newest, str(folder / "python3.12")]


def test_without_any_it_says_what_to_install(folder: Path) -> None:
    done = asked(folder, "choose")
    assert done.returncode == 2
    assert done.stderr == (
        "make: no Python that works: install one of 3.14 3.13 3.12 3.11 with its venv module, or say make PYTHON=...\n"
    )


def test_a_python_that_was_asked_for_is_checked(folder: Path) -> None:
    asked_for = {
        install(folder, "3.9", "#!/bin/sh\necho 3.9\n"): "is Python 3.9, and coderl needs one of 3.14 3.13 3.12 3.11",
        install(folder, "3.10", BROKEN): "does not run: name one of",
        install(
            folder, "3.11", '#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; *) echo 3.11 ;; esac\n'
        ): "python3.11-venv",
        "python3.77": "PYTHON=python3.77 does not run",
    }
    for python, says in asked_for.items():
        answer = asked(folder, "check", python)
        assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
        assert says in answer.stderr
    works = install(folder, "3.12", '#!/bin/sh\ncase "$*" in *ensurepip*) echo {path} ;; *) echo 3.12 ;; esac\n')
    answer = asked(folder, "check", works)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
