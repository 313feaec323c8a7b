"""What the engine takes where configs/engine.yaml sets nothing, and what follows from its settings."""

from __future__ import annotations

from dataclasses import dataclass

from dih20.config import EngineConfig
from dih20.serve.engines.deepinfer_engram import tables_on_gpu

NEXTN = "DEEPINFER_USE_NEXTN_DECODE"
ZERO_OVERHEAD = "DEEPINFER_ZERO_OVERHEAD_SCHEDULING"
BACKTRACKING = "DEEPINFER_MAX_BACKTRACKING_TOKENS"
STATE_RATIO = "DEEPINFER_NUM_STATE_SLOTS_RATIO"
INDEX_MEMORY = "DEEPINFER_INDEX_ATTN_MEMORY_LIMIT"
IMAGE_POOL = "DEEPINFER_USE_MULTIMODAL_POOL"
IMAGE_POOL_GB = "DEEPINFER_MULTIMODAL_POOL_SIZE_GB"


@dataclass(frozen=True, kw_only=True)
class Derived:
    """The engine's own numbers: drafts a step, longest position, batch, and slots of state."""

    drafts: int
    zero_overhead: bool
    runtime_max_model_len: int
    batched_tokens: int
    backtracking: int
    state_slots: int
    index_memory_bytes: int
    image_pool: bool
    image_pool_gb: int
    engram_on_gpu: bool


def derive(engine: EngineConfig) -> Derived:
    """Give what a NORMAL engine of 0.1.0 makes of its settings; ValueError names a value that is no number."""
    drafts = _number(engine, NEXTN, 5)
    zero_overhead = _switch(engine, ZERO_OVERHEAD, on=True)
    length = engine.max_model_len + 2 * drafts + (drafts + 1 if zero_overhead else 0)
    decoding = engine.max_num_seqs * (1 + drafts)
    batched = engine.max_num_batched_tokens or max(engine.max_model_len, 4096, decoding)
    ratio = float(engine.environment.get(STATE_RATIO, "1.2"))
    return Derived(
        drafts=drafts,
        zero_overhead=zero_overhead,
        runtime_max_model_len=length,
        batched_tokens=batched,
        backtracking=max(_number(engine, BACKTRACKING, 0), drafts + 1),
        state_slots=int(engine.max_num_seqs * ratio) + 1,
        index_memory_bytes=_number(engine, INDEX_MEMORY, 10 * 2**30),
        image_pool=_switch(engine, IMAGE_POOL, on=True),
        image_pool_gb=_number(engine, IMAGE_POOL_GB, 8),
        engram_on_gpu=tables_on_gpu(engine.environment, engine.expert_parallel_size),
    )


def _number(engine: EngineConfig, name: str, default: int) -> int:
    text = engine.environment.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"environment: {name}: {text!r} is not a whole number") from None


def _switch(engine: EngineConfig, name: str, *, on: bool) -> bool:
    text = engine.environment.get(name)
    return on if text is None else text not in ("0", "", "false", "False")
