"""Every setting: one model per flow, which the UI shows as a form. What is wrong with one is a `ConfigError`."""

from coderl_tasks.settings.curate_settings import CurateSettings
from coderl_tasks.settings.evaluate_settings import EvaluateSettings
from coderl_tasks.settings.flow_settings import DEFAULT_MODEL, HUB_DATASET, FlowSettings
from coderl_tasks.settings.pipeline_settings import PipelineSettings
from coderl_tasks.settings.setting import Setting, about, all_settings, flat, parse_settings
from coderl_tasks.settings.train_settings import SERVICE_STEPS, TrainSettings

__all__ = [
    "DEFAULT_MODEL", "HUB_DATASET", "SERVICE_STEPS", "CurateSettings", "EvaluateSettings", "FlowSettings",
    "PipelineSettings", "Setting", "TrainSettings", "about", "all_settings", "flat", "parse_settings",
]  # fmt: skip
