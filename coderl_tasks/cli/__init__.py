"""The `coderl` command."""

from coderl_tasks.cli.entry import command, main

__all__ = ["command", "main"]
