"""The stages of a curation that need no model: parse, sanity, trim, de-duplicate, decontaminate.

They stream: what is kept lies in parquet parts, and only signatures of the problems stay in memory.
"""

from coderl_tasks.filtering.overlap import DuplicateRules
from coderl_tasks.filtering.parts import KeptProblems
from coderl_tasks.filtering.rows import RowRules
from coderl_tasks.filtering.stages import FilterRequest, filter_dataset
from coderl_tasks.filtering.workers import OnRows, RowsProgress

__all__ = ["DuplicateRules", "FilterRequest", "KeptProblems", "OnRows", "RowRules", "RowsProgress", "filter_dataset"]
