"""Training and sampling of LoRA adapters on one local model; on the CPU bit for bit reproducible.

`Engine` is the interface; `SamplingScheduler` batches concurrent sampling requests. No HTTP, no tinker types.
"""

from coderl_tasks.embedded.tinker.engine.adapter import Adapter
from coderl_tasks.embedded.tinker.engine.causal_lm import Weights
from coderl_tasks.embedded.tinker.engine.lora_engine import Engine
from coderl_tasks.embedded.tinker.engine.scheduler import SamplingScheduler

__all__ = ["Adapter", "Engine", "SamplingScheduler", "Weights"]
