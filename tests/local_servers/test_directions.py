"""No run imports a server and no server imports a run: coderl and its servers meet in local_servers/interface.py."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.settings.flow_settings import COLDEST, HOTTEST
from coderl_tasks.settings.train_settings import MAX_LORA_RANK
from local_servers import interface
from local_servers.tinker.engine import adapter, lora_engine

MAY_USE_SERVERS = {
    "coderl_tasks/cli/clean.py",
    "coderl_tasks/cli/doctor.py",
    "coderl_tasks/cli/servers.py",
    "coderl_tasks/services/__init__.py",
    "coderl_tasks/services/supervisor.py",
}
"""Of all of coderl they alone import anything of local_servers, and they the interface alone."""


def sources(*packages: str) -> list[Path]:
    found = [file for package in packages for file in sorted((PROJECT_ROOT / package).rglob("*.py"))]
    assert len(found) > 40
    return found


def imported(file: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of everything that the file imports, wherever in it; the name is "" for a module as a whole."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{file}: a relative import"
            yield from ((node.module, alias.name) for alias in node.names)


def test_no_server_imports_a_run() -> None:
    for file in sources("local_servers"):
        packages = {module.partition(".")[0] for module, _ in imported(file)}
        assert not packages & {"coderl_tasks", "flows", "tests", "benchmarks"}, file
        # Nor by a name in a text: of a subprocess's program, of importlib.
        assert "coderl_tasks" not in file.read_text(), file


def test_no_run_imports_more_of_a_server_than_the_interface() -> None:
    found = {}
    for file in sources("coderl_tasks", "flows"):
        if used := {pair for pair in imported(file) if pair[0].partition(".")[0] == "local_servers"}:
            found[str(file.relative_to(PROJECT_ROOT))] = used
    assert found.keys() == MAY_USE_SERVERS
    offered = {(interface.__name__, name) for name in interface.__all__}
    assert {file: used - offered for file, used in found.items() if used - offered} == {}


def test_the_interface_and_what_serves_are_light_and_help_does_without_them() -> None:
    program = """
import sys
from coderl_tasks.cli import main
main(["--help"])
assert "local_servers" not in sys.modules
import local_servers.interface, coderl_tasks.cli.servers
print([name for name in ("torch", "numpy", "polars", "aiohttp", "pydantic", "asyncio") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=PROJECT_ROOT)
    assert done.stdout.endswith("\n[]\n"), done.stdout + done.stderr


def test_the_tinker_server_takes_all_that_the_settings_allow() -> None:
    assert adapter.MAX_RANK >= MAX_LORA_RANK
    assert lora_engine.COLDEST <= COLDEST < HOTTEST <= lora_engine.HOTTEST
