"""Pass@1 of a policy on the test splits, and paired comparisons of two policies."""

from coderl_tasks.evaluation.compare import compared, paired_difference, paired_outcomes, side_text, unlike
from coderl_tasks.evaluation.pass_at_1 import evaluate_policy, summarize
from coderl_tasks.evaluation.subset import evaluation_subset

__all__ = [
    "compared",
    "evaluate_policy",
    "evaluation_subset",
    "paired_difference",
    "paired_outcomes",
    "side_text",
    "summarize",
    "unlike",
]
