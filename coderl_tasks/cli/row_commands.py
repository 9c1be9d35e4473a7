"""`coderl validate` and `coderl grade`: a user's own rows, of problems and of completions."""

import sys
from argparse import Namespace

from rich.console import Console

from coderl_tasks.errors import ConfigError
from coderl_tasks.filtering import DuplicateRules, RowRules
from coderl_tasks.grading.table import grade_files
from coderl_tasks.insight.row_report import print_row_report, row_report
from coderl_tasks.services import services
from coderl_tasks.settings import CurateSettings
from coderl_tasks.settings.setting import environment_defaults


def validate(options: Namespace) -> int:
    """1 if curate would drop a row."""
    if options.min_tests is not None and options.environment != "code":
        raise ConfigError("--min-tests is of --environment=code: other rows have no tests")
    # Not settings of that environment, as curate has them: those may need what is not asked for here (reward_file).
    usual = CurateSettings().model_dump() | environment_defaults(CurateSettings, options.environment)
    rows = row_report(
        options.dataset,
        RowRules(min_tests=options.min_tests or usual["min_tests"]),
        DuplicateRules(usual["near_duplicate"]),
        options.limit,
        options.environment,
    )
    print_row_report(rows, Console(), options.format)
    return 0 if rows["kept"].all() else 1


def grade(options: Namespace) -> int:
    with services(None) as used:
        print("\n".join(used.lines), file=sys.stderr)
        grades = grade_files(
            options.problems,
            options.completions,
            options.out,
            used.sandbox_urls,
            options.timeout,
            max_concurrency=used.sandbox_concurrency,
        )
    counts = grades["verdict"].value_counts(sort=True).iter_rows()
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts) or "none"
    print(f"{grades.height} completions graded ({said}): {options.out}")
    return 0
