"""What DeepInfer 0.1.0 is given: EngineArgs, SamplingParams and the environment of one rank."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from dih20.errors import ConfigError, EngineStartFailed
from dih20.serve.engines import deepinfer_engram as engram
from dih20.serve.engines.interface import EngineContext, EngineRequest
from dih20.serve.settings import Part

_NEXTN, _GPUS, _PORT = "DEEPINFER_USE_NEXTN_DECODE", "CUDA_VISIBLE_DEVICES", "MASTER_PORT"
_NEXTN_UPSTREAM = 5  # draft tokens when the environment does not say
_BLOCK = 128  # tokens of a cache block; a batch holds at least one
_PORT_OFFSET = 50  # upstream's rendezvous listens on MASTER_PORT - 50

# What a server wants and configs/engine.yaml may still change.
_DEFAULTS = {
    "DEEPINFER_ACCELERATOR": "nvidia",
    engram.ON_GPU: "1",  # what a group of one needs
    "DEEPINFER_USE_MULTIMODAL_POOL": "0",  # else 8 GB of pinned memory for pictures
    # Every request passes its worker for pictures; one that is gone must not be waited for 30 min.
    "DEEPINFER_MULTI_MODAL_WORKER_TIMEOUT": "60",
    # Upstream tries a prefill after every 70th decode step, so that a request might wait as long.
    "DEEPINFER_PREFILL_ATTEMPT_INTERVAL": "1",
    "DEEPINFER_PREFILL_ANY_ATTEMPT_INTERVAL": "8",  # with several ranks, when one has a prompt
    # A server's ranks are on one host and meet over NVLink; without this, deep_ep wants a network card
    # with GPU-initiated networking (GDAKI) there as well, and its expert buffer does not start.
    "EP_DISABLE_GIN": "1",
    "MASTER_ADDR": "127.0.0.1",
    "TOKENIZERS_PARALLELISM": "false",
}


class DeepInferOptions(Part):
    """Keys of engine_options for this engine: those of configs/engine.yaml, and the seed."""

    expert_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    max_model_len: Annotated[int, Field(ge=1)] = 16384
    max_num_seqs: Annotated[int, Field(ge=1)] = 256
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    chunked_prefill: bool = False
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.9
    seed: int = 0


def engine_arguments(
    context: EngineContext, options: DeepInferOptions, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Give the keywords of EngineArgs; what upstream would assert later is a ConfigError here."""
    settings = context.settings
    if settings.model is None:
        raise _wrong("no model folder", "model: the folder of a V4.1 checkpoint")
    if options.expert_parallel_size != context.ranks:
        raise _wrong(
            f"expert_parallel_size {options.expert_parallel_size} with {context.ranks} ranks",
            "one rank for each share of the experts",
        )
    if reason := engram.why_not(environment, engram.SERVED_GROUP):
        raise _wrong(reason, f'{engram.ON_GPU}: "1", or left out')
    draft = int(environment.get(_NEXTN, _NEXTN_UPSTREAM))
    batch = options.max_num_batched_tokens
    fewest = max(options.max_num_seqs * (1 + draft), _BLOCK)
    if not options.chunked_prefill:
        fewest = max(fewest, options.max_model_len)
    if batch is not None and batch < fewest:
        raise _wrong(
            f"max_num_batched_tokens {batch}",
            f"at least {fewest}: {options.max_num_seqs} sequences with {draft} draft tokens each, "
            f"and a whole prompt unless chunked_prefill is true",
        )
    return {
        "model": str(settings.model),
        "served_model_name": settings.served_name,
        "max_model_len": options.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": batch,
        "chunked_prefill": options.chunked_prefill,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "expert_parallel_size": options.expert_parallel_size,
        "engram_parallel_size": engram.SERVED_GROUP,
        "engine_rank": context.rank,
        "seed": options.seed,
        "disable_log_stats": True,
        "stop_preempted_request": False,  # one that had to make room is computed again, not cut
        "offline_inference": True,  # as upstream's own entry point says
    }


def _wrong(found: str, expected: str) -> ConfigError:
    return ConfigError(found=found, expected=expected, remedy="correct configs/engine.yaml")


def rank_environment(
    context: EngineContext, given: Mapping[str, str], port: int | None = None
) -> dict[str, str]:
    """Give what to set before deepinfer is imported: it reads some of it once and for all.

    Args:
        given: the process's environment; its values win over ours, but for the GPU of this rank.
        port: a free one that all ranks agreed on; MASTER_PORT in `given` wins.
    """
    wanted = {name: given.get(name, value) for name, value in _DEFAULTS.items()}
    wanted[_GPUS] = _gpu(context, given.get(_GPUS))
    if port is not None:
        wanted[_PORT] = given.get(_PORT, str(port + _PORT_OFFSET))
    return wanted


def _gpu(context: EngineContext, visible: str | None) -> str:
    """Give the number of this rank's GPU; upstream reads it as a whole number."""
    gpus = [str(rank) for rank in range(context.ranks)] if visible is None else visible.split(",")
    gpus = [gpu.strip() for gpu in gpus if gpu.strip()]
    if not all(gpu.isdecimal() for gpu in gpus):
        raise EngineStartFailed(
            found=f"{_GPUS}={visible}",
            expected="numbers: DeepInfer 0.1.0 cannot read names or UUIDs of GPUs",
            remedy=f"set {_GPUS} to numbers as nvidia-smi lists them",
        )
    if len(gpus) < context.ranks:
        raise EngineStartFailed(
            found=f"{_GPUS}={visible} names {len(gpus)} GPUs",
            expected=f"one for each of {context.ranks} ranks",
            remedy="give the container more GPUs, or serve with fewer ranks",
        )
    return gpus[context.rank]


def free_port() -> int:
    """Give a port that was free a moment ago; upstream binds one by number only."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def sampling_arguments(request: EngineRequest) -> dict[str, Any]:
    """Give the keywords of SamplingParams. Stop tokens are not among them: the adapter's job."""
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": -1,
        "ignore_eos": request.ignore_eos,
        "max_tokens": request.max_tokens,
        "top_logprobs": request.logprobs or 0,
        "seq_seed": request.seed,
    }
