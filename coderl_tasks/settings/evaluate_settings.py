"""The settings of `coderl evaluate`."""

from datetime import date
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from coderl_tasks.settings.flow_settings import FlowSettings, Limit, Names, Temperature
from coderl_tasks.settings.setting import setting


def _day(given: str | None) -> str | None:
    try:
        return None if given is None else date.fromisoformat(given).isoformat()
    except ValueError:
        raise ValueError(f"{given} is no day: give YYYY-MM-DD, 2024-08-01 say") from None


Day = Annotated[str | None, AfterValidator(_day)]


class EvaluateSettings(FlowSettings):
    """Checkpoint -> Pass@1 on the test splits, with 95% intervals."""

    GROUPS: ClassVar[dict[str, tuple[str, str]]] = {
        **FlowSettings.GROUPS,
        "policy": ("checkpoint", "what is evaluated, and on which problems"),
        "sampling": ("n_samples", "completions per problem, and how they are sampled"),
        "comparison": ("compare_to", "what it is compared with, and where the result goes"),
    }

    checkpoint: str = setting("latest", common=True, decides_content=False, elsewhere=("run",))
    """latest run, a run's name or directory, a tinker:// sampler path, or a model's name"""
    splits: Names = setting(None, common=True)
    """test splits; by default all the data set has"""
    since: Day = setting(None, common=True)
    """problems of this day and later, YYYY-MM-DD, by the rows' date or contest_date"""
    until: Day = setting(None, common=True)
    """problems of this day and earlier, YYYY-MM-DD"""
    eval_limit: Limit = setting(-1, common=True, gsm8k=40)
    """problems, a seeded subset (-1: all)"""
    n_samples: int = setting(1, ge=1, le=1000, common=True, elsewhere=("n", "k", "num_samples", "samples_per_problem"))
    """completions per problem; with several also pass@k, for k = 1, 2, 4, ... up to that many"""
    temperature: Temperature = setting(0.0, ge=0, common=True)
    """sampling temperature; 0 is greedy, for n_samples=1"""
    top_p: float = Field(1.0, gt=0, le=1)
    """sample of the likeliest tokens alone that hold so much of the probability"""
    compare_to: str | None = setting("baseline", common=True, decides_content=False)
    """evaluation to compare with: one of the same run, where there is one, another run (its final one), or a folder"""
    compare: Names = setting(None, common=True, decides_content=False)
    """A,B: evaluate both with these settings (runs, checkpoints, base models; finished evaluations are taken as they
    are), and say how they differ, problem by problem; A1+A2+A3 are seeds of one configuration"""
    log_path: str | None = setting(None, common=True, decides_content=False, elsewhere=("output_dir", "resume", "run"))
    """where the result goes: a folder, or a name under the run's evals/"""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.n_samples > 1 and self.temperature == 0:
            raise ValueError(
                f"n_samples={self.n_samples} with temperature=0: greedy completions of a problem are all the same; add "
                "temperature=0.7, say"
            )
        if self.top_p < 1 and self.temperature == 0:
            raise ValueError(f"top_p={self.top_p:g} with temperature=0: a greedy completion has no other tokens")
        if self.since is not None and self.until is not None and self.since > self.until:
            raise ValueError(f"since={self.since} is after until={self.until}")
        if self.compare is not None and not 1 <= len(self.compare) <= 2:
            raise ValueError(f"compare={','.join(self.compare)}: name two, A,B, or the seeds of one, A1+A2+A3")
        if self.compare is not None and self.log_path is not None:
            raise ValueError("compare evaluates each side in a folder of its own: leave log_path out")
        return self
