"""Arguments of the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EngineArgs:
    model: str
    served_model_name: str = "deepinfer-model"
    seed: int = 0
    max_model_len: int | None = None
    expert_parallel_size: int = 1
    engram_parallel_size: int = 0
    engine_rank: int = 0
    gpu_memory_utilization: float = 0.90
    max_num_batched_tokens: int | None = None
    max_num_seqs: int = 256
    disable_log_stats: bool = False
    stop_preempted_request: bool = True
    chunked_prefill: bool = False
    offline_inference: bool = False
