"""From a completion to a reward: extract the code, run it in a sandbox, compare the outputs on our side."""

from coderl_tasks.grading.client import RunRequest, RunResult, SandboxClient
from coderl_tasks.grading.grader import CodeEnv, Grader, StepResult, sandbox_check_correctness
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.scoring import (
    FORMAT_COEF,
    Grade,
    ScoredCompletion,
    Verdict,
    extract_code,
    score,
    score_completion,
    score_group,
)

__all__ = [
    "FORMAT_COEF", "CodeEnv", "Grade", "Grader", "Judge", "RunRequest", "RunResult", "SandboxClient",
    "ScoredCompletion", "StepResult", "Verdict", "extract_code", "sandbox_check_correctness", "score",
    "score_completion", "score_group",
]  # fmt: skip
