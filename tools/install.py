"""Installs what `pip install ARGUMENT...` would into this Python's environment, by uv where that can be had.

    .venv/bin/python tools/install.py -c constraints.txt -e '.[local]'

uv takes a tenth of pip's time. It is taken from the PATH, else put into the environment by pip. It learns from pip's
configuration where packages are (index, further indexes, folders), and chooses among them as pip does, so that it finds
the same versions. Where it fails, pip installs. Nothing is compiled beforehand: Python does that when it first imports
a module.
"""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
UV = "uv==0.13.9"
OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
"""uv's options by the keys of pip's configuration that say where packages are."""


def pip_configuration(listed: str) -> dict[str, list[str]]:
    """What `pip config list` printed, by key: the values of each. Environment variables come before files, and those of
    a file's [install] before those of [global]."""
    found: dict[str, tuple[int, list[str]]] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        place, _, key = name.rpartition(".")
        rank = {":env:": 2, "install": 1, "global": 0}.get(place)
        if rank is not None and rank >= found.get(key, (0, []))[0]:
            found[key] = (rank, str(ast.literal_eval(value)).split())
    return {key: values for key, (_, values) in found.items()}


def uv_arguments(configuration: dict[str, list[str]], arguments: Sequence[str]) -> list[str]:
    """The arguments for `uv` that do what `pip install ARGUMENTS` does with this configuration."""
    named = {"index-url"} if "--index-url" in arguments else set()
    places = [
        word
        for key, option in OPTIONS.items()
        if key not in named
        for value in configuration.get(key, ())
        for word in (option, value)
    ]
    no_index = configuration.get("no-index", ["false"])[0].lower() in ("1", "true", "yes", "on")
    return [
        *("pip", "install", "--quiet", "--python", sys.executable, "--index-strategy", "unsafe-best-match"),
        *places,
        *(["--no-index"] if no_index else []),
        *arguments,
    ]


def find_uv() -> str | None:
    """The uv on the PATH, or in this environment, where pip puts it if it can; None if there is none."""
    own = Path(sys.executable).parent / "uv"
    if (found := shutil.which("uv")) is not None:
        return found
    if not own.is_file():
        subprocess.run([*PIP, "install", "--quiet", UV], capture_output=True, check=False)
    return str(own) if own.is_file() else None


def main(arguments: Sequence[str]) -> int:
    """Install; the exit code of what did."""
    uv = find_uv()
    if uv is not None:
        listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout
        configuration = pip_configuration(listed)
        environment = dict(os.environ)
        if certificates := configuration.get("cert"):
            environment.setdefault("SSL_CERT_FILE", certificates[0])
        done = subprocess.run([uv, *uv_arguments(configuration, arguments)], env=environment, check=False)
        if done.returncode == 0:
            return 0
        print("uv could not install this: pip does", file=sys.stderr)
    quiet = [] if sys.stdout.isatty() else ["--quiet"]  # a terminal sees it at work
    return subprocess.run([*PIP, "install", *quiet, "--no-compile", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
