"""From a completion to a reward: extract the code, run it in a sandbox, compare the outputs on our side."""

from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.env import CodeEnv, StepResult, sandbox_check_correctness
from coderl_tasks.grading.extract import extract_code
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.reward import FORMAT_COEF, Score, score
from coderl_tasks.grading.run_code import RunRequest, RunResult
from coderl_tasks.grading.scoring import ScoredCompletion, score_completion, score_group
from coderl_tasks.grading.verdict import Grade, Verdict

__all__ = [
    "FORMAT_COEF",
    "CodeEnv",
    "Grade",
    "Judge",
    "RunRequest",
    "RunResult",
    "SandboxClient",
    "Score",
    "ScoredCompletion",
    "StepResult",
    "Verdict",
    "extract_code",
    "sandbox_check_correctness",
    "score",
    "score_completion",
    "score_group",
]
