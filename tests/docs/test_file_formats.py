"""docs/file-formats.md names what is written, column by column."""

import re

import polars as pl
import pytest

from coderl_tasks.insight.record import STAGES
from coderl_tasks.insight.view_schemas import METRICS_SCHEMA
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.policy.rollout_frames import rollout_metrics
from coderl_tasks.problems import DROPPED_SCHEMA, PROBLEM_SCHEMA, PROFILE_COLUMNS, PROFILE_SCHEMA

TEXT = (PROJECT_ROOT / "docs" / "file-formats.md").read_text()
SECTIONS = dict(part.split("\n", 1) for part in TEXT.split("\n## ")[1:])
OWN = {name: kind for name, kind in PROFILE_SCHEMA.items() if name not in {"problem_id", "split", *PROFILE_COLUMNS}}


def cells(section: str) -> list[list[str]]:
    """The rows of a section's table, without its head."""
    rows = [line.strip("| ").split(" | ") for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def in_words(kind: pl.DataType) -> str:
    """A type as the document says it."""
    if isinstance(kind, pl.List):
        return f"list<{in_words(kind.inner)}>"  # type: ignore[arg-type]
    if isinstance(kind, pl.Struct):
        return f"struct<{', '.join(field.name for field in kind.fields)}>"
    return {"String": "text", "Boolean": "bool"}.get(str(kind), str(kind).lower())


@pytest.mark.parametrize(
    ("section", "schema"),
    [
        ("Rollout columns", ROLLOUT_SCHEMA),
        ("Problem columns", PROBLEM_SCHEMA),
        ("Profile columns", PROFILE_COLUMNS),
        ("The profile", OWN),
        ("Dropped rows", DROPPED_SCHEMA),
    ],
)
def test_the_columns_are_those_of_the_files(section: str, schema: dict[str, pl.DataType]) -> None:
    assert {row[0]: row[1] for row in cells(section)} == {name: in_words(kind) for name, kind in schema.items()}


def test_the_stages_are_those_of_a_curation() -> None:
    assert tuple(cells("Dropped rows")[0][2].split(", ")) == STAGES


def test_the_metrics_are_those_of_a_step() -> None:
    named = {name for row in cells("Metrics") for name in row[0].split(", ")}
    named |= set(re.findall(r"`(eval/\w+)`", SECTIONS["Metrics"]))
    assert named >= set(METRICS_SCHEMA) | set(rollout_metrics(pl.DataFrame(schema=ROLLOUT_SCHEMA)))
