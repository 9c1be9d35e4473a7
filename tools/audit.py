"""`make audit`: known vulnerabilities and licences of the locked packages, and secrets in the tracked files.

Run with the Python of .venv; its argument is the one that has pip-audit. Exit code: 0 nothing was found, 1 something
was, 3 nothing was found but not all could be looked at. pip-audit itself says that there are no known vulnerabilities
where its database is not reachable: what it skipped is counted here.
"""

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
FOUND, INCOMPLETE = 1, 3
SHOWN = 8
REVIEWED = {"text-unidecode": "under the Artistic License too, which asks nothing of who only uses it"}
"""Packages whose licence looks like one that would bind this project, and why it does not."""
_BINDING = re.compile(r"(?<!L)(?<!lesser )\bA?GPL|(?<!lesser )(?<!library )general public|affero|proprietary", re.I)
_SECRETS = {
    "a private key": ("PRIVATE KEY", r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"),
    "a Tinker key": ("tml-", r"\btml-[A-Za-z0-9_-]{24,}"),
    "an AWS key": ("IA", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a GitHub token": ("_", r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{40,})"),
    "a Hugging Face token": ("hf_", r"\bhf_[A-Za-z0-9]{30,}"),
    "a model service's key": ("sk-", r"\bsk-[A-Za-z0-9_-]{32,}"),
    "a Slack token": ("xox", r"\bxox[abprs]-[0-9A-Za-z-]{20,}"),
    "a Google key": ("AIza", r"\bAIza[0-9A-Za-z_-]{35}"),
    "a Weights & Biases key": ("WANDB_API_KEY", r"WANDB_API_KEY\W{1,4}[0-9a-f]{40}"),
}
"""A part that each secret has and most texts lack, as looking for it takes a tenth of the time, and the whole form."""


def locked_packages() -> list[str]:
    """The names in constraints.txt."""
    return [line.partition("==")[0].strip() for line in CONSTRAINTS.read_text().splitlines() if "==" in line]


def run_pip_audit(python: str) -> dict[str, Any] | str:
    """pip-audit's report of the locked packages, or why there is none."""
    command = [python, "-m", "pip_audit", "-r", str(CONSTRAINTS), "--no-deps", "--disable-pip", "--format", "json"]
    done = subprocess.run([*command, "--progress-spinner", "off"], capture_output=True, text=True, check=False)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        words = [line for line in done.stderr.splitlines() if line.strip()]
        return words[-1] if words else f"pip-audit ended with {done.returncode}"
    return report


def vulnerabilities(report: dict[str, Any]) -> tuple[list[str], list[str]]:
    """A line per known vulnerability in a report of pip-audit, and the names of the packages it could not look up."""
    found = [
        f"{package['name']} {package['version']}: {item['id']}, {_fixed(item['fix_versions'])}"
        for package in report["dependencies"]
        for item in package.get("vulns", ())
    ]
    return found, [package["name"] for package in report["dependencies"] if "skip_reason" in package]


def _fixed(versions: list[str]) -> str:
    return f"fixed in {', '.join(versions)}" if versions else "no fixed version"


def licence(package: str) -> str | None:
    """What an installed package says its licence is ("" if nothing), None if it is not installed."""
    try:
        about = importlib.metadata.metadata(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    named = [name.rpartition(" :: ")[2] for name in about.get_all("Classifier") or [] if name.startswith("License")]
    expression, text = ("".join(about.get_all(key) or []) for key in ("License-Expression", "License"))
    return expression or "; ".join(named) or text.partition("\n")[0]


def doubtful_licences(licences: dict[str, str]) -> list[str]:
    """A line per package whose licence is not stated, or may bind what is made with it."""
    return [
        f"{name}: {text or 'no licence stated'}"
        for name, text in sorted(licences.items())
        if name not in REVIEWED and (not text or _BINDING.search(text))
    ]


def secrets(files: Iterable[Path]) -> list[str]:
    """A line per place that looks like a secret; not the secret."""
    found = []
    for file in files:
        text = file.read_bytes().decode(errors="replace")
        for name, (part, pattern) in _SECRETS.items():
            hits = re.finditer(pattern, text) if part in text else ()
            found += [f"{file}:{text.count(chr(10), 0, hit.start()) + 1}: {name}" for hit in hits]
    return found


def tracked_files(root: Path) -> list[Path]:
    """The files that git knows of, as they are in the working tree; links are left out."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=True).stdout
    paths = (root / name for name in listed.decode(errors="surrogateescape").split("\0") if name)
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def main(pip_audit_python: str) -> int:
    """Print what was found; the exit code."""
    names = locked_packages()
    found: list[str] = []
    unseen: list[str] = []
    report = run_pip_audit(pip_audit_python)
    if isinstance(report, str):
        unseen.append(f"known vulnerabilities, as pip-audit failed ({report})")
    else:
        known, skipped = vulnerabilities(report)
        found += known
        looked_up = len(report["dependencies"]) - len(skipped)
        print(f"vulnerabilities: {len(known)} known in {looked_up} of {len(names)} locked packages")
        if skipped:
            listed = f"{', '.join(skipped[:SHOWN])}{', ...' if len(skipped) > SHOWN else ''}"
            unseen.append(
                f"known vulnerabilities of {len(skipped)} packages ({listed}), which the database (pypi.org's) does "
                "not have, or is not reachable for"
            )
    licences = {name: licence(name) for name in names}
    doubtful = doubtful_licences({name: text for name, text in licences.items() if text is not None})
    found += doubtful
    missing = [name for name, text in licences.items() if text is None]
    print(
        f"licences: {len(doubtful)} doubtful in {len(names) - len(missing)} packages; reviewed: {', '.join(REVIEWED)}"
    )
    if missing:  # those of other Pythons or systems
        unseen.append(f"the licences of {', '.join(missing)}, not installed here")
    files = tracked_files(ROOT)
    leaked = secrets(files)
    found += leaked
    print(f"secrets: {len(leaked)} in {len(files)} files")
    for line in found:
        print(f"FOUND: {line}")
    for what in unseen:
        print(f"NOT CHECKED: {what}")
    if found:
        return FOUND
    if unseen:
        print("nothing was found, but not all was checked: run it again where https://pypi.org is reachable")
        return INCOMPLETE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
