"""Problems in parquet files that any machine may read, a range of rows at a time."""

from collections.abc import Sequence

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from coderl_tasks.addresses import explained, filesystem
from coderl_tasks.errors import DataError
from coderl_tasks.problems.problem import PROBLEM_SCHEMA, Problem, problems_from_frame


def read_problem_rows(addresses: Sequence[str], start: int = 0, count: int = -1) -> list[Problem]:
    """Problems `start` to `start + count` (-1: to the end) of the files at `addresses`, counted over all, in order.

    The files have the columns of PROBLEM_SCHEMA, further ones are ignored; only row groups in the range are read.
    Raises DataError for a file that is missing or is none of problems, ConfigError for an address that will not do.
    """
    problems: list[Problem] = []
    place = 0
    for address in addresses:
        fs, path = filesystem(address)
        with explained(address), fs.open(path, "rb") as file:
            try:
                table = pq.ParquetFile(file)
                missing = PROBLEM_SCHEMA.keys() - set(table.schema_arrow.names)
            except pa.ArrowInvalid as error:
                raise DataError(f"{address} cannot be read as parquet ({str(error).partition(chr(10))[0]})") from error
            if missing:
                raise DataError(f"{address} holds no problems: it has no column {', '.join(sorted(missing))}")
            for group in range(table.num_row_groups):
                rows = table.metadata.row_group(group).num_rows
                low = max(0, start - place)
                high = rows if count < 0 else min(rows, start + count - place)
                place += rows
                if low < high:
                    frame = pl.DataFrame(table.read_row_group(group, columns=list(PROBLEM_SCHEMA)))
                    problems += problems_from_frame(frame.slice(low, high - low))
    return problems
