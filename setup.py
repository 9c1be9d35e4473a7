"""Builds the wheel: the bundled models, data sets and configurations go along, in the package.

All else is in pyproject.toml, which cannot name files outside of the packages.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
DATA = ("mini", "skewed", "words", "intro", "nano", "nano_words")
BUNDLED = ("prefect.yaml", "sandbox_config", *(f"data/{name}" for name in DATA))


class WithBundledFiles(build_py):
    """Copies `BUNDLED` to coderl_tasks/bundled, where `coderl_tasks.paths.PROJECT_ROOT` is without a checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # then the code is used where it lies
            return
        for name in BUNDLED:
            source, target = ROOT / name, Path(self.build_lib) / "coderl_tasks" / "bundled" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                shutil.copy(source, target)


setup(cmdclass={"build_py": WithBundledFiles})
