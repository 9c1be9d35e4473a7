"""`coderl runs`, `pools`, `query` and `report`: what runs and curations recorded."""

from argparse import Namespace
from pathlib import Path
from typing import Literal

import polars as pl
from rich.console import Console

from coderl_tasks.insight.console import render_frame, write_frame
from coderl_tasks.insight.listing import pools_table, runs_table
from coderl_tasks.insight.named_queries import CURATION, NAMED_QUERIES
from coderl_tasks.journal.run_names import record_path, runs_root
from coderl_tasks.paths import POOLS


def runs(options: Namespace) -> int:
    folder = options.folder or runs_root()
    return _listed(runs_table(folder), folder, options.format)


def pools(options: Namespace) -> int:
    folder = options.folder or POOLS
    return _listed(pools_table(folder), folder, options.format)


def _listed(frame: pl.DataFrame, folder: Path, output: Literal["table", "csv", "json"]) -> int:
    if output != "table":
        write_frame(frame, Console(), output)
    elif frame.is_empty():
        print(f"none in {folder}")
    else:
        render_frame(frame, Console(), f"in {folder}")
    return 0


def query(options: Namespace) -> int:
    # A pool and a run of one name, as a pipeline makes them: the query says which is meant.
    named = NAMED_QUERIES.get(options.name)
    pools_first = named is not None and named.over == CURATION
    run = record_path(options.run, pools_first=pools_first) if options.run is not None else None
    from coderl_tasks.insight.query import print_query  # which takes seconds to import

    print_query(run, options.sql, options.name, list_names=options.list, output=options.format)
    return 0


def report(options: Namespace) -> int:
    record = record_path(options.run)
    from coderl_tasks.insight.report import write_report  # which takes seconds to import

    print(write_report(record))
    return 0
