"""The stages of a curation that need no model: parse, sanity, trim, de-duplicate, decontaminate.

They stream: what is kept lies in parquet parts, and only signatures of the problems stay in memory.
"""

from coderl_tasks.screening.contamination import OverlapRules, find_contaminated
from coderl_tasks.screening.duplicates import DuplicateRules, find_duplicates
from coderl_tasks.screening.kept_problems import KeptProblems
from coderl_tasks.screening.rows import ScreenRules, parse, sanity, screen
from coderl_tasks.screening.run import Screening, ScreeningRequest, screen_dataset
from coderl_tasks.screening.workers import OnRows, RowsProgress

__all__ = [
    "DuplicateRules",
    "KeptProblems",
    "OnRows",
    "OverlapRules",
    "RowsProgress",
    "ScreenRules",
    "Screening",
    "ScreeningRequest",
    "find_contaminated",
    "find_duplicates",
    "parse",
    "sanity",
    "screen",
    "screen_dataset",
]
