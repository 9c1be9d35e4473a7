"""Training and sampling of LoRA adapters on one local model; on the CPU bit for bit reproducible.

`lora_engine.Engine` is the interface; `sampling_processes.sampling_scheduler` batches concurrent sampling requests. No
HTTP, no tinker types.
"""
