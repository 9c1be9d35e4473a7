"""Raw rows to normalised problems: every shape of the data set, each row kept or dropped with a reason."""

from coderl_tasks.problems.drops import DROPPED_SCHEMA, Drop, RowDropped, dropped_frame
from coderl_tasks.problems.loading import LoadResult, load_problems, load_rows
from coderl_tasks.problems.problem import PROBLEM_SCHEMA, Problem, Test, problems_frame, read_problem_rows
from coderl_tasks.problems.profile_columns import PROFILE_COLUMNS, PROFILE_SCHEMA, SHARD_SCHEMA, SOLUTION_SCHEMA, TOLD
from coderl_tasks.problems.raw_row import problem_from_row
from coderl_tasks.problems.raw_tests import normalize_tests

__all__ = [
    "DROPPED_SCHEMA",
    "PROBLEM_SCHEMA",
    "PROFILE_COLUMNS",
    "PROFILE_SCHEMA",
    "SHARD_SCHEMA",
    "SOLUTION_SCHEMA",
    "TOLD",
    "Drop",
    "LoadResult",
    "Problem",
    "RowDropped",
    "Test",
    "dropped_frame",
    "load_problems",
    "load_rows",
    "normalize_tests",
    "problem_from_row",
    "problems_frame",
    "read_problem_rows",
]
