"""Bytes of one call of the indexer's prefill logits: what comes out, and the operator's work space."""

from __future__ import annotations

import math

from dih20.capacity.engine_defaults import Derived
from dih20.capacity.model_shape import ModelShape
from h20_ops.cuda.mqa_logits_prefill_call import (
    DENSE_META_BYTES,
    KEY_TILE_BYTES,
    MATH_WARPGROUPS,
    PIECE_KEYS,
    Q_TILE_BYTES,
    Q_TILES,
    STEP_KEYS,
    STEP_PIECES,
    TILE_KEYS,
    TOKENS,
)

_LOGIT = 2  # bytes: bf16
_ROW_BYTES = 1024  # rows of logits start at multiples of this
_ROWS_AT_MOST = 8192  # of a call, by the engine
_PIECE_BYTES = 4 + 16  # of a union: its first key, and its place in the lists of 8 tokens


def index_logits_bytes(model: ModelShape, derived: Derived) -> int:
    """Give those of the larger call: over every key, or by candidates in the layers that select so.

    The keys are those of one whole request or of a batch of prompts, whichever are more.
    """
    every = derived.runtime_max_model_len
    candidates = model.candidate_blocks * model.candidate_block
    keys = max(every, derived.batched_tokens)
    dense, selecting = rows_of_a_call(derived, every), rows_of_a_call(derived, candidates)
    return max(
        _logits(dense, every) + work_space(dense, keys),
        _logits(selecting, candidates)
        + work_space(selecting, keys)
        + union_space(model, selecting),
    )


def rows_of_a_call(derived: Derived, columns: int) -> int:
    """Give the rows of a call, as the engine's MQA divides a batch by its memory limit."""
    fitting = derived.index_memory_bytes // (columns * _LOGIT) // 8 * 8
    return min(_ROWS_AT_MOST, fitting, derived.batched_tokens)


def work_space(rows: int, keys: int) -> int:
    """Give the bytes of expanded queries and keys, of up to 32 heads: prepare() of the operator."""
    tiles = _row_blocks(rows) * Q_TILES
    key_tiles = math.ceil(keys / STEP_KEYS) * MATH_WARPGROUPS
    queries = tiles * (Q_TILE_BYTES + DENSE_META_BYTES)
    return queries + key_tiles * (KEY_TILE_BYTES + 4 * TILE_KEYS)


def union_space(model: ModelShape, rows: int) -> int:
    """Give the bytes in which blocks of rows unite their candidates: prepare() of the operator."""
    pieces = model.candidate_blocks * (model.candidate_block // PIECE_KEYS) * Q_TILES * TOKENS
    capacity = math.ceil(pieces / STEP_PIECES) * STEP_PIECES
    return _row_blocks(rows) * capacity * _PIECE_BYTES


def _row_blocks(rows: int) -> int:
    return math.ceil(rows / (Q_TILES * TOKENS))


def _logits(rows: int, columns: int) -> int:
    return rows * math.ceil(columns * _LOGIT / _ROW_BYTES) * _ROW_BYTES
