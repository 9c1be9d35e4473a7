"""The settings of `coderl pipeline`: those of its three parts."""

from typing import Any

from pydantic import Field, model_validator

from coderl_tasks.settings.curate_settings import CurateSettings
from coderl_tasks.settings.evaluate_settings import EvaluateSettings
from coderl_tasks.settings.flow_settings import COST_SETTINGS, FlowSettings, Preset
from coderl_tasks.settings.setting import Environment, SettingsModel, setting
from coderl_tasks.settings.train_settings import TrainSettings

PARTS = ("curate", "train", "evaluate")
SHARED = ("preset", "environment", "reward_file")


class PipelineSettings(SettingsModel):
    """Curate, train and evaluate. A preset, an environment or a reward file given here is used by all three."""

    preset: Preset = setting(None, common=True)
    """nano, smollm2: model, data and sizes for the embedded servers; gsm8k: the GRPO notebook's; smoke; or none"""
    environment: Environment | None = setting(None, common=True)
    """the task, as in the parts"""
    reward_file: str | None = setting(None, common=True)
    """custom: the Python file with compute_reward"""
    curate: CurateSettings = Field(default_factory=CurateSettings)
    train: TrainSettings = Field(default_factory=TrainSettings)
    evaluate: EvaluateSettings = Field(default_factory=EvaluateSettings)

    # Into the parts, each of which fills in its own sizes; one that names a preset keeps it.
    @model_validator(mode="before")
    @classmethod
    def _hand_down(cls, values: Any) -> Any:
        shared = {key: values[key] for key in SHARED if values.get(key) is not None} if isinstance(values, dict) else {}
        if shared:
            parts = {name: {**shared, **part} for name in PARTS if isinstance(part := values.get(name, {}), dict)}
            return {**values, **parts}
        return values

    @property
    def parts(self) -> dict[str, FlowSettings]:
        """The settings of the three flows, by name."""
        return {name: getattr(self, name) for name in PARTS}

    def content(self) -> dict[str, Any]:
        """All settings, for the record: those of where it goes too, as a pipeline goes on with all three parts; not
        what bounds its cost, which one that is gone on with may have raised."""
        return self.model_dump(mode="json", exclude={name: set(COST_SETTINGS) for name in PARTS})

    def changed(self) -> dict[str, Any]:
        """What `FlowSettings.changed` says of the parts, by dotted key; a preset of all three as one."""
        parts = self.parts
        words = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.changed().items()}
        if self.train.preset is None or any(part.preset != self.train.preset for part in parts.values()):
            return words
        return {"preset": self.train.preset} | {key: value for key, value in words.items() if ".preset" not in key}
