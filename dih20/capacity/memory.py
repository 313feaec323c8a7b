"""Bytes on each GPU from the model's shapes, and how many tokens the rest of a card can cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dih20.capacity.engine_defaults import Derived, derive
from dih20.capacity.engram import engram_bytes
from dih20.capacity.index_logits import index_logits_bytes
from dih20.capacity.model_shape import (
    COMPRESSED_RECORD,
    INDEX_RECORD,
    TOKENS_PER_BLOCK,
    V41_FLASH,
    WINDOW_RECORD,
    ModelShape,
)
from dih20.config import EngineConfig

GIB = 1 << 30
#: weights a GPU held after loading in the first port on eight H20, EP 8, Engram tables elsewhere
SEEN_GIB = 78.5


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU by its name and the memory that CUDA reports as total."""

    name: str
    total_gib: float


#: what CUDA reports: H20 with 96 GB; H20-3e and H200 with 141 GB (139 GiB seen on an H200)
CARDS = {"96": Card(name="96 GB", total_gib=95.0), "141": Card(name="141 GB", total_gib=139.0)}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What is where on one GPU, in bytes, and what is left for the cache.

    not_explained: what was seen on eight H20 beyond what shapes explain (CUDA context, libraries,
    rounding of the allocator); taken off here too. working: an estimate, no measurement.
    """

    weights: dict[str, int]
    not_explained: int
    working: int
    states: int
    budget: int
    block_bytes: int
    cache_tokens: int
    least_tokens: int

    @property
    def weight_bytes(self) -> int:
        return sum(self.weights.values())

    @property
    def fits(self) -> bool:
        return self.cache_tokens >= self.least_tokens


def memory_of(
    engine: EngineConfig, model: ModelShape = V41_FLASH, card: Card | None = None
) -> Memory:
    """Give the memory of one GPU; pure."""
    card = card or CARDS["141"]
    derived = derive(engine)
    weights = {**weights_of(engine, model), **engram_bytes(engine, model, derived)}
    explained = sum(weights_of(EngineConfig(), V41_FLASH).values())
    not_explained = max(0, int(SEEN_GIB * GIB) - explained)
    working = working_bytes(engine, model, derived)
    states = 2 * derived.state_slots * state_bytes(model, derived)
    budget = int(card.total_gib * GIB * engine.gpu_memory_utilization)
    block = block_bytes(model)
    left = budget - sum(weights.values()) - not_explained - working - states
    blocks = max(0, left // block) // 2 * 2
    return Memory(
        weights=weights,
        not_explained=not_explained,
        working=working,
        states=states,
        budget=budget,
        block_bytes=block,
        cache_tokens=int(blocks * TOKENS_PER_BLOCK),
        least_tokens=math.ceil(derived.runtime_max_model_len / 0.8),
    )


def weights_of(engine: EngineConfig, model: ModelShape) -> dict[str, int]:
    """Give the bytes of weights on each GPU by kind: experts are divided, the rest is on every GPU.

    Engram's tables are engram_bytes' matter.
    """
    size = engine.expert_parallel_size
    expert = _fp8(2 * model.expert_inner, model.hidden) + _fp8(model.hidden, model.expert_inner)
    layers = model.layers + model.draft_layers
    query = _fp8(model.q_lora, model.hidden) + _fp8(model.heads * model.head_dim, model.q_lora)
    output = _fp8(model.o_groups * model.o_lora, model.heads * model.head_dim // model.o_groups)
    output += _fp8(model.hidden, model.o_groups * model.o_lora)
    attention = query + output + _fp8(model.head_dim, model.hidden)
    mixing = 2 * 24 * model.streams * model.hidden * 4
    gate = 2 * model.experts * model.hidden
    indexer = _fp8(model.index_heads * model.index_dim, model.q_lora)
    indexer += 2 * model.index_heads * model.hidden
    compressor = 2 * (2 * model.ratio_two_sources + model.ratio_one_sources)
    concatenated = model.engram_rows_per_token * model.engram_width
    return {
        "experts": model.layers * (model.experts // size) * expert,
        "draft experts": model.draft_layers * (model.draft_experts // size) * expert,
        "attention": layers * attention + model.index_sources * indexer,
        "shared experts": layers * model.shared_experts * expert,
        "gates and mixing": layers * (mixing + gate),
        "compressors": compressor * model.head_dim * model.hidden,
        "embedding and head": 2 * 2 * model.vocab * model.hidden,
        "engram projection": model.engram_layers
        * _fp8((model.streams + 1) * model.hidden, concatenated),
        "draft projection": _fp8(model.hidden, 3 * model.hidden) if model.draft_layers else 0,
        "vision": 2 * model.vision_parameters,
    }


def block_bytes(model: ModelShape) -> int:
    """Give the bytes of one cache block of 128 tokens over all layers, padded as the engine pads it."""
    entry = COMPRESSED_RECORD + INDEX_RECORD
    whole = model.ratio_two_sources * (TOKENS_PER_BLOCK // 2) * entry
    whole += model.ratio_one_sources * TOKENS_PER_BLOCK * entry
    return _up(whole, math.lcm(128, COMPRESSED_RECORD))


def state_bytes(model: ModelShape, derived: Derived) -> int:
    """Give the bytes of one request's state: window rings of all layers, rings of the compressors."""
    ring = model.window + derived.backtracking
    layers = model.layers + (model.draft_layers if derived.drafts else 0)
    windows = layers * _up(ring * WINDOW_RECORD, 32)
    compressing = (
        model.ratio_two_sources * (2 + max(0, derived.backtracking - 1)) * 2 * model.head_dim * 4
    )
    return _up(windows + compressing, math.lcm(32, WINDOW_RECORD))


def working_bytes(engine: EngineConfig, model: ModelShape, derived: Derived) -> int:
    """Estimate the peak of one prefill batch: streams twice, queries and contexts, expert rows, logits."""
    tokens = derived.batched_tokens
    streams = 2 * 2 * model.streams * model.hidden
    attention = 2 * 2 * model.heads * model.head_dim
    row = model.hidden + 2 * 2 * model.expert_inner + model.expert_inner + 2 * model.hidden
    experts = int(
        1.8 * model.experts_per_token * row
    )  # the profile run makes one rank 1.8 times as busy
    logits = index_logits_bytes(model, derived)
    sampled = 3 * 4 * engine.max_num_seqs * model.vocab
    return tokens * (streams + attention + experts) + logits + sampled


def _fp8(rows: int, columns: int) -> int:
    """Give the bytes of an FP8 weight with fp32 scales over 128x128."""
    return rows * columns + 4 * math.ceil(rows / 128) * math.ceil(columns / 128)


def _up(value: int, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple
