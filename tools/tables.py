"""Writes the tables of docs/ that list what the code defines: metrics, rollout columns, settings that may change on
resume, estimators, benchmarks, the embedded server's losses, and how many cases the score card has. `make docs` runs
it."""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import polars as pl

sys.path.insert(0, str(Path(__file__).parent.parent))  # the checkout that the document is in, whatever is installed
from coderl_tasks.environments.benchmarks import BENCHMARKS
from coderl_tasks.policy.rollout import GRADED_COLUMNS, SAMPLED_COLUMNS
from coderl_tasks.policy.step_metrics import METRICS
from coderl_tasks.scorecard.corpus import corpus
from coderl_tasks.settings import TrainSettings, about, all_settings
from coderl_tasks.settings.setting import words_of
from local_servers.tinker.engine.losses import LOSSES

DOCS = Path(__file__).parent.parent / "docs"


def in_words(kind: pl.DataType) -> str:
    """A column's type as the document says it."""
    if isinstance(kind, pl.List):
        return f"list<{in_words(kind.inner)}>"  # type: ignore[arg-type]
    if isinstance(kind, pl.Struct):
        return f"struct<{', '.join(field.name for field in kind.fields)}>"
    return {"String": "text", "Boolean": "bool"}.get(str(kind), str(kind).lower())


def of_kind(name: str, *, is_attack: bool) -> tuple[str, ...]:
    """How many cases of the score card are attacks or honest programs, in all and by category."""
    counts = Counter(case.category for case in corpus() if case.is_attack == is_attack)
    return name, str(counts.total()), "; ".join(f"{category}: {count}" for category, count in counts.most_common())


def of_loss(name: str) -> tuple[str, ...]:
    """A loss of the embedded server: its formula, and what it can be told with the defaults."""
    config = ", ".join(f"`{key}` {value:g}" for key, value in LOSSES[name].config.items()) or "none"
    return f"`{name}`", LOSSES[name].formula.replace("|", "\\|"), config


def benchmark_rows() -> list[tuple[str, ...]]:
    """The published benchmarks, those alike in one row: their harness's settings and time limit."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, one in BENCHMARKS.items():
        said = " ".join(words_of({key: f"{value:g}" for key, value in one.settings.items()}))
        alike.setdefault((f"`{said}`", f"{one.time_limit_s:g} s"), []).append(f"`{name}`")
    return [(", ".join(names), *row) for row, names in alike.items()]


def tables() -> dict[str, dict[str, list[tuple[str, ...]]]]:
    """The rows of each table as the code has them now: {document: {section: rows}}."""
    columns = SAMPLED_COLUMNS | GRADED_COLUMNS
    settings = list(all_settings(TrainSettings))
    may_change: list[tuple[str, ...]] = [
        (change, ", ".join(f"`{key}`" for key, field in settings if about(field).on_resume == kind))
        for kind, change in (("allowed", "allowed"), ("warned", "allowed with a warning"))
    ]
    # "mean_centred: what it is; std_normalised: ..."
    said = str(TrainSettings.model_fields["advantage"].description).split("; ")
    advantages: list[tuple[str, ...]] = [
        (f"`{name}`", meaning) for name, _, meaning in (each.partition(": ") for each in said)
    ]
    return {
        "file-formats.md": {
            "Rollout columns": [(name, in_words(c.dtype), c.meaning) for name, c in columns.items()],
            "Metrics": [("step", "from 0"), *((metric.name, metric.meaning) for metric in METRICS)],
        },
        "evaluation.md": {"Published benchmarks": benchmark_rows()},
        "training.md": {"Advantages": advantages},
        "local-servers.md": {"Losses": [of_loss(name) for name in LOSSES]},
        "recovery.md": {"What may change on resume": may_change},
        "scorecard.md": {
            "Cases": [of_kind("attacks", is_attack=True), of_kind("honest programs", is_attack=False)],
        },
    }


def with_rows(text: str, section: str, rows: Iterable[tuple[str, ...]]) -> str:
    """`text` of a document with the rows of the first table in `section` replaced."""
    lines = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    table = re.compile(rf"(?ms)(^## {section}\n.*?^\|[-|]+\|\n)((?:^\|[^\n]*\n)*)")
    return table.sub(lambda found: found[1] + lines, text, count=1)


if __name__ == "__main__":
    for name, sections in tables().items():
        text = (DOCS / name).read_text()
        for section, rows in sections.items():
            text = with_rows(text, section, rows)
        (DOCS / name).write_text(text)
