"""Bytes of Engram on each GPU, by where its tables lie."""

from __future__ import annotations

from dih20.capacity.engine_defaults import Derived
from dih20.capacity.model_shape import ModelShape
from dih20.config import EngineConfig


def engram_bytes(engine: EngineConfig, model: ModelShape, derived: Derived) -> dict[str, int]:
    """Give them by kind. Scales are on the GPU in any case, and rows of others need room to arrive."""
    ranks = engine.expert_parallel_size
    scales = model.engram_width // 32  # one byte each
    found = {"engram scales": model.engram_rows * scales // ranks}
    if derived.engram_on_gpu:
        found["engram tables"] = table_bytes(engine, model)
    if ranks > 1:
        rows = model.engram_layers * derived.batched_tokens * model.engram_rows_per_token
        found["engram rows that arrive"] = rows * model.engram_width
    return found


def table_bytes(engine: EngineConfig, model: ModelShape) -> int:
    """Give the bytes of one rank's rows, without scales."""
    return model.engram_rows * model.engram_width // engine.expert_parallel_size
