"""Writes the tables of metrics and rollout columns into docs/file-formats.md, from their entries: `make docs`."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import polars as pl

sys.path.insert(0, str(Path(__file__).parent.parent))  # the checkout that the document is in, whatever is installed
from coderl_tasks.policy.rollout import GRADED_COLUMNS, SAMPLED_COLUMNS
from coderl_tasks.policy.step_metrics import METRICS

FILE = Path(__file__).parent.parent / "docs" / "file-formats.md"


def in_words(kind: pl.DataType) -> str:
    """A column's type as the document says it."""
    if isinstance(kind, pl.List):
        return f"list<{in_words(kind.inner)}>"  # type: ignore[arg-type]
    if isinstance(kind, pl.Struct):
        return f"struct<{', '.join(field.name for field in kind.fields)}>"
    return {"String": "text", "Boolean": "bool"}.get(str(kind), str(kind).lower())


def written(text: str) -> str:
    """`text` of the document with the tables as the code has them now."""
    columns = SAMPLED_COLUMNS | GRADED_COLUMNS
    text = _with_rows(text, "Rollout columns", ((name, in_words(c.dtype), c.meaning) for name, c in columns.items()))
    return _with_rows(text, "Metrics", [("step", "from 0"), *((metric.name, metric.meaning) for metric in METRICS)])


def _with_rows(text: str, section: str, rows: Iterable[tuple[str, ...]]) -> str:
    """`text` with the rows of the first table in `section` replaced."""
    lines = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    table = re.compile(rf"(?ms)(^## {section}\n.*?^\|[-|]+\|\n)((?:^\|[^\n]*\n)*)")
    return table.sub(lambda found: found[1] + lines, text, count=1)


if __name__ == "__main__":
    FILE.write_text(written(FILE.read_text()))
