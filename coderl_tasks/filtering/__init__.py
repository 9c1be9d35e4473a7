"""The stages of a curation that need no model: parse, sanity, trim, de-duplicate, decontaminate.

They stream: what is kept lies in parquet parts, and only signatures of the problems stay in memory.
"""

from coderl_tasks.filtering.contamination import OverlapRules, find_contaminated
from coderl_tasks.filtering.duplicates import DuplicateRules, find_duplicates
from coderl_tasks.filtering.parts import KeptProblems
from coderl_tasks.filtering.rows import RowRules, filter_problem, parse, sanity
from coderl_tasks.filtering.stages import FilterRequest, FilterResult, filter_dataset
from coderl_tasks.filtering.workers import OnRows, RowsProgress

__all__ = [
    "DuplicateRules",
    "FilterRequest",
    "FilterResult",
    "KeptProblems",
    "OnRows",
    "OverlapRules",
    "RowRules",
    "RowsProgress",
    "filter_dataset",
    "filter_problem",
    "find_contaminated",
    "find_duplicates",
    "parse",
    "sanity",
]
