"""Pass@1 of a policy on the test splits, and paired comparisons of two policies."""

from coderl_tasks.evaluation.paired import compared, paired_difference, paired_outcomes, side_text, unlike
from coderl_tasks.evaluation.pass_at_1 import (
    Evaluation,
    evaluate_checkpoint,
    evaluate_policy,
    evaluation_subset,
    summarize,
)

__all__ = [
    "Evaluation",
    "compared",
    "evaluate_checkpoint",
    "evaluate_policy",
    "evaluation_subset",
    "paired_difference",
    "paired_outcomes",
    "side_text",
    "summarize",
    "unlike",
]
