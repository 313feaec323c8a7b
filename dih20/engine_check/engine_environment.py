"""What the engine's process is given: environment and arguments, by kind of worker."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dih20.engine_check.cases import MODEL_LENGTH

_PORT_OFFSET = 50  # upstream's rendezvous listens on MASTER_PORT - 50
SEQUENCES = {"eager": 16}  # at once; the other workers, which capture graphs, take 4
_ALWAYS = {
    "DEEPINFER_ACCELERATOR": "nvidia",
    "DEEPINFER_USE_NEXTN_DECODE": "0",
    "DEEPINFER_ENGRAM_FORCE_GPU_STORAGE": "1",
    "DEEPINFER_USE_MULTIMODAL_POOL": "0",
    "DEEPINFER_MULTI_MODAL_WORKER_TIMEOUT": "60",
    "DEEPINFER_PREFILL_ATTEMPT_INTERVAL": "1",
    "DEEPINFER_DISABLE_SYNC_GUARD": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MASTER_ADDR": "127.0.0.1",
}
_BY_WORKER = {
    "eager": {"DEEPINFER_ENFORCE_EAGER": "1", "DEEPINFER_ZERO_OVERHEAD_SCHEDULING": "0"},
    "graphs": {"DEEPINFER_ENFORCE_EAGER": "0", "DEEPINFER_ZERO_OVERHEAD_SCHEDULING": "0"},
    "overlapped": {"DEEPINFER_ENFORCE_EAGER": "0", "DEEPINFER_ZERO_OVERHEAD_SCHEDULING": "1"},
}


def environment(worker: str, given: Mapping[str, str]) -> dict[str, str]:
    """Give the whole environment of a worker; what decides the check wins over what is there."""
    whole = dict(given)
    whole |= _ALWAYS | _BY_WORKER.get(worker, {})
    whole["DEEPINFER_DFLASH_ENFORCE_EAGER"] = "1"
    whole["MASTER_PORT"] = str(_free_port() + _PORT_OFFSET)
    visible = [gpu.strip() for gpu in given.get("CUDA_VISIBLE_DEVICES", "0").split(",")]
    whole["CUDA_VISIBLE_DEVICES"] = next((gpu for gpu in visible if gpu.isdecimal()), "0")
    return whole


def arguments(worker: str, checkpoint: Path, memory: float) -> dict[str, Any]:
    """Give the keywords of EngineArgs."""
    return {
        "model": str(checkpoint),
        "max_model_len": MODEL_LENGTH,
        "max_num_seqs": SEQUENCES.get(worker, 4),
        "max_num_batched_tokens": MODEL_LENGTH,
        "gpu_memory_utilization": memory,
        "expert_parallel_size": 1,
        "disable_log_stats": True,
        "stop_preempted_request": False,
        "offline_inference": True,
        "seed": 0,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def set_environment(worker: str) -> None:
    """Put it in force in this process; deepinfer must not be imported yet."""
    os.environ.update(environment(worker, os.environ))
