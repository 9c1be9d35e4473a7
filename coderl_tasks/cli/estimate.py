"""`coderl estimate FLOW key=value ...`: what a command will take in tokens, cost and time."""

import asyncio
from argparse import Namespace

from rich.console import Console

from coderl_tasks.cli.arguments import FLOW_SETTINGS, parse_key_values
from coderl_tasks.insight.tables import rich_table
from coderl_tasks.planning.estimates import estimates, estimates_table
from coderl_tasks.services import load_environment
from coderl_tasks.settings import parse_settings

WIDTH = 150
"""Columns that an estimate in billions of tokens takes."""


def estimate(options: Namespace) -> int:
    load_environment()
    model = FLOW_SETTINGS[options.flow]
    settings = parse_settings(model, parse_key_values(options.settings, model))
    rows, said = asyncio.run(estimates(settings, options.probe))
    if not rows:
        print("nothing is to be sampled: the evaluations are finished")
        return 0
    # Numbers cut off at the edge would be other numbers: a narrow terminal breaks the lines itself.
    console = Console(width=max(Console().width, WIDTH))
    console.print(rich_table(estimates_table(rows), "Tokens by kind, with intervals of 95%"))
    for note in said:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    return 0
