"""Training and sampling of LoRA adapters on one local model; on the CPU bit for bit reproducible.

`Engine` is the interface; `sampling_scheduler` batches concurrent sampling requests. No HTTP, no tinker types.
"""

from local_servers.tinker.engine.adapter import Adapter, Snapshot, SnapshotWeights
from local_servers.tinker.engine.causal_lm import Weights
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine.sampling_processes import SamplingProcesses, Scheduler, sampling_scheduler
from local_servers.tinker.engine.scheduler import SamplingScheduler

__all__ = [
    "Adapter",
    "Engine",
    "SamplingProcesses",
    "SamplingScheduler",
    "Scheduler",
    "Snapshot",
    "SnapshotWeights",
    "Weights",
    "sampling_scheduler",
]
