"""The settings of `coderl evaluate`."""

from datetime import date
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from coderl_tasks.settings.flow_settings import ABSOLUTE, FlowSettings, Limit, Names, Temperature, content_sha256
from coderl_tasks.settings.setting import PROGRAMS, setting


def _day(given: str | None) -> str | None:
    try:
        return None if given is None else date.fromisoformat(given).isoformat()
    except ValueError:
        raise ValueError(f"{given} is not a date: give YYYY-MM-DD, such as 2024-08-01") from None


Day = Annotated[str | None, AfterValidator(_day)]


class EvaluateSettings(FlowSettings):
    """Checkpoint -> Pass@1 on the test splits, with 95% intervals."""

    GROUPS: ClassVar[dict[str, tuple[str, str]]] = {
        **FlowSettings.GROUPS,
        "policy": ("checkpoint", "the policy and the problems"),
        "sampling": ("n_samples", "completions per problem, and their sampling"),
        "comparison": ("compare_to", "comparisons, and the place of the result"),
    }

    checkpoint: str = setting(
        "latest",
        common=True,
        decides_content=False,
        elsewhere=("run", "resume_from_checkpoint", "load_checkpoint_path"),
    )
    """the policy: latest (the newest run), a run's name or directory, a tinker:// sampler path, or a model's name"""
    benchmark: Names = setting(None, common=True, environments=PROGRAMS, elsewhere=("task", "tasks", "benchmarks"))
    """published benchmarks instead of the test splits, with prompts and limits of their harnesses: humaneval, mbpp,
    humaneval_plus, mbpp_plus, livecodebench (or livecodebench_v1 to _v6), each also NAME:FILE or NAME:FOLDER"""
    completions: Annotated[str | None, ABSOLUTE] = setting(None, decides_content=False)
    """with benchmark: grade the completions of this file instead of sampling. JSONL with task_id, and completion,
    solution or a list samples"""
    splits: Names = setting(None, common=True)
    """test splits; by default all of the data set"""
    since: Day = setting(None, common=True)
    """only problems of this day and later, YYYY-MM-DD, by the rows' date or contest_date"""
    until: Day = None
    """only problems of this day and earlier, YYYY-MM-DD"""
    eval_limit: Limit = setting(-1, common=True, gsm8k=40)
    """number of problems, a seeded subset (-1: all)"""
    n_samples: int = setting(1, ge=1, le=1000, common=True, elsewhere=("n", "k", "num_samples", "samples_per_problem"))
    """completions per problem; with several also pass@k for k = 1, 2, 4, ... up to n_samples"""
    temperature: Temperature = setting(0.0, ge=0, common=True)
    """sampling temperature; 0 is greedy (only with n_samples=1)"""
    top_p: float = Field(1.0, gt=0, le=1)
    """sample only from the likeliest tokens that together have this probability"""
    compare_to: str | None = setting("baseline", common=True, decides_content=False)
    """evaluation to compare with: the name of one of the same run, another run (its final one), or a folder"""
    compare: Names = setting(None, common=True, decides_content=False)
    """A,B: evaluate both with these settings and compare them problem by problem. A and B are runs, checkpoints, base
    models, or finished evaluations, which are used as they are; A1+A2+A3 are seeds of one configuration"""
    log_path: str | None = setting(None, common=True, decides_content=False, elsewhere=("output_dir", "resume", "run"))
    """place of the result: a folder, or a name under the run's evals/"""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.benchmark is None:  # else its harness fills in what is not given, before this is checked
            self.require_possible_sampling()
        if self.since is not None and self.until is not None and self.since > self.until:
            raise ValueError(f"since={self.since} is after until={self.until}")
        if self.compare is not None:
            seeds = {side.count("+") + 1 for side in self.compare}
            if len(self.compare) > 2 or (len(self.compare) < 2 and seeds <= {0, 1}):
                raise ValueError(f"compare={','.join(self.compare)}: name two, A,B, or the seeds of one, A1+A2+A3")
            # Before anything is evaluated, which would be in vain.
            if len(seeds) > 1 and 1 not in seeds:
                raise ValueError("compare: name as many seeds of A as of B, in the same order, or one evaluation")
        if self.compare is not None and self.log_path is not None:
            raise ValueError("compare evaluates each side in a folder of its own: leave log_path out")
        return self

    @model_validator(mode="after")
    def _says_once_what_is_evaluated(self) -> Self:
        if self.benchmark is not None:
            others = ("splits", "evaluation_dataset", "test_share")
            if other := next((key for key in others if getattr(self, key) is not None), None):
                raise ValueError(f"benchmark and {other} both say what is evaluated on: give one of them")
        if self.completions is not None:
            if self.benchmark is None:
                raise ValueError("completions=FILE needs benchmark=NAME (for other problems use coderl grade)")
            if self.checkpoint != "latest" or self.compare is not None:
                other = "compare" if self.compare is not None else f"checkpoint={self.checkpoint}"
                raise ValueError(f"completions are graded in place of a model's: leave {other} out")
        return self

    def require_possible_sampling(self) -> None:
        """Raise ValueError for settings with which a problem's completions would all be the same."""
        if self.n_samples > 1 and self.temperature == 0:
            raise ValueError(
                f"n_samples={self.n_samples} with temperature=0: greedy completions of a problem are all the same; add "
                "temperature=0.7, say"
            )
        if self.top_p < 1 and self.temperature == 0:
            raise ValueError(f"top_p={self.top_p:g} with temperature=0: a greedy completion has no other tokens")

    def content(self) -> dict[str, Any]:
        recorded = super().content()
        if self.completions is not None:
            recorded["completions_sha256"] = content_sha256(self.completions)
        return recorded
