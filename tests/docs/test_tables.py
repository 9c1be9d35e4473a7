"""The tables of docs/ list what the code defines, column by column and setting by setting."""

import importlib.util
import re

import polars as pl
import pytest

from coderl_tasks.insight.query import METRICS_SCHEMA
from coderl_tasks.insight.record import STAGES
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.policy.step_metrics import rollout_metrics
from coderl_tasks.problems.problem import DROPPED_SCHEMA, PROBLEM_SCHEMA
from coderl_tasks.problems.profile_columns import AUDIT_SCHEMA, PROFILE_COLUMNS, PROFILE_SCHEMA

TEXT = (PROJECT_ROOT / "docs" / "file-formats.md").read_text()
SECTIONS = dict(part.split("\n", 1) for part in TEXT.split("\n## ")[1:])
specification = importlib.util.spec_from_file_location("tables", PROJECT_ROOT / "tools" / "tables.py")
assert specification is not None and specification.loader is not None
tables = importlib.util.module_from_spec(specification)
specification.loader.exec_module(tables)

OWN = {name: kind for name, kind in PROFILE_SCHEMA.items() if name not in {"problem_id", "split", *PROFILE_COLUMNS}}


def cells(section: str) -> list[list[str]]:
    """The rows of a section's table, without its head."""
    rows = [line.strip("| ").split(" | ") for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


@pytest.mark.parametrize(
    ("section", "schema"),
    [
        ("Rollout columns", ROLLOUT_SCHEMA),
        ("Problem columns", PROBLEM_SCHEMA),
        ("Profile columns", PROFILE_COLUMNS),
        ("The profile", OWN),
        ("Dropped rows", DROPPED_SCHEMA),
        ("Audit columns", AUDIT_SCHEMA),
    ],
)
def test_the_columns_are_those_of_the_files(section: str, schema: dict[str, pl.DataType]) -> None:
    assert {row[0]: row[1] for row in cells(section)} == {name: tables.in_words(kind) for name, kind in schema.items()}


def test_the_stages_are_those_of_a_curation() -> None:
    assert tuple(cells("Dropped rows")[0][2].split(", ")) == STAGES


def test_the_metrics_are_those_of_a_step() -> None:
    named = {row[0] for row in cells("Metrics")} | set(re.findall(r"`(eval/\w+|act)`", SECTIONS["Metrics"]))
    assert named >= set(METRICS_SCHEMA) | set(rollout_metrics(pl.DataFrame(schema=ROLLOUT_SCHEMA)))


@pytest.mark.parametrize(
    ("document", "section"), [(document, section) for document, held in tables.tables().items() for section in held]
)
def test_a_table_says_what_the_code_says(document: str, section: str) -> None:
    text = (PROJECT_ROOT / "docs" / document).read_text()
    rows = tables.tables()[document][section]
    assert tables.with_rows(text, section, rows) == text, "run make docs"
    assert tables.with_rows(text, section, [("nothing", "of it")]) != text
