"""The score card of a grader: which attacks get a reward from it, and which honest programs it misjudges."""

from coderl_tasks.scorecard.corpus import KINDS, Case, corpus

__all__ = ["KINDS", "Case", "corpus"]
