"""Raw rows to normalised problems: every shape of the data set, each row kept or dropped with a reason."""

from coderl_tasks.problems.loading import load_problems, load_rows
from coderl_tasks.problems.problem import Problem, RowDropped, Test
from coderl_tasks.problems.raw_row import problem_from_row
from coderl_tasks.problems.raw_tests import normalize_tests

__all__ = ["Problem", "RowDropped", "Test", "load_problems", "load_rows", "normalize_tests", "problem_from_row"]
