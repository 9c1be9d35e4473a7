"""`python -m coderl_tasks.cli`: the command where it is not installed, and for what runs it as a child."""

import os

from coderl_tasks.cli import command

os.environ.setdefault("PYTHONUNBUFFERED", "1")
command()
