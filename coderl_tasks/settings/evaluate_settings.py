"""The settings of `coderl evaluate`."""

from typing import Annotated

from pydantic import Field

from coderl_tasks.settings.flow_settings import FlowSettings, Limit, Names, Setting, Temperature


class EvaluateSettings(FlowSettings):
    """Checkpoint -> Pass@1 on the test splits, with 95% intervals."""

    checkpoint: Annotated[str, Setting(decides_content=False, elsewhere=("run",))] = Field(
        "latest", description="latest run, a run's name or directory, a tinker:// sampler path, or a model's name"
    )
    splits: Names = Field(None, description="test splits; by default all the data set has")
    eval_limit: Annotated[Limit, Setting(gsm8k=40)] = Field(-1, description="problems, a seeded subset (-1: all)")
    temperature: Temperature = Field(0.0, ge=0, description="sampling temperature; 0 is greedy")
    compare_to: Annotated[str | None, Setting(decides_content=False)] = Field(
        "baseline",
        description="evaluation to compare with: one of the same run, where there is one, another run (its final one), "
        "or a folder",
    )
    log_path: Annotated[str | None, Setting(decides_content=False, elsewhere=("output_dir", "resume", "run"))] = Field(
        None, description="where the result goes: a folder, or a name under the run's evals/"
    )
