"""Bytes of the indexer's calls against what the operator itself allocates."""

from __future__ import annotations

import dataclasses

import pytest

from dih20.capacity.engine_defaults import Derived, derive
from dih20.capacity.index_logits import (
    index_logits_bytes,
    rows_of_a_call,
    union_space,
    work_space,
)
from dih20.capacity.memory import working_bytes
from dih20.capacity.model_shape import V41_FLASH
from dih20.config import EngineConfig

ALIGNMENT = 11 * 1024  # each of the operator's parts starts at a multiple of 1024


def derived(**keys: int) -> Derived:
    return dataclasses.replace(derive(EngineConfig()), **keys)  # type: ignore[arg-type]


def test_uniting_2048_candidates_of_8192_rows_takes_a_third_of_a_gigabyte() -> None:
    assert union_space(V41_FLASH, 8192) == 1024 * 16_392 * 20
    assert work_space(8192, 16_384) == pytest.approx(33e6 + 2e6 + 1.5e6, rel=0.03)


@pytest.mark.torch
@pytest.mark.parametrize(("rows", "keys", "united"), [(200, 1000, True), (333, 5000, False)])
def test_the_operator_allocates_what_is_counted(rows: int, keys: int, united: bool) -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    from h20_ops.cuda.mqa_logits_prefill_call import Kind, prepare

    heads, blocks, block = (
        V41_FLASH.index_heads,
        V41_FLASH.candidate_blocks,
        V41_FLASH.candidate_block,
    )
    call = prepare(
        torch.empty(rows, heads, 64, dtype=torch.int8),
        torch.empty(rows, heads, dtype=torch.int32),
        torch.empty(keys, 64, dtype=torch.int8),
        torch.empty(keys, dtype=torch.int32),
        torch.empty(rows, heads, dtype=torch.bfloat16),
        torch.empty(rows, dtype=torch.int32),
        torch.empty(rows, dtype=torch.int32),
        torch.empty(rows, 512, dtype=torch.bfloat16),
        max_kv_len=keys,
        candidate_blocks=torch.empty(rows, blocks, dtype=torch.int32) if united else None,
        candidate_block_size=block if united else 0,
        processors=78,
    )
    assert call.kind == (Kind.UNITED if united else Kind.DENSE)
    counted = work_space(rows, keys) + (union_space(V41_FLASH, rows) if united else 0)
    assert 0 <= call.kept[4].numel() - counted < ALIGNMENT


def test_a_working_batch_has_room_for_the_larger_call() -> None:
    engine = EngineConfig()
    logits = index_logits_bytes(V41_FLASH, derive(engine))
    assert logits > 8192 * 16_384 * 2 + union_space(V41_FLASH, 8192)
    assert working_bytes(engine, V41_FLASH, derive(engine)) > logits
    far = derived(runtime_max_model_len=1 << 19, index_memory_bytes=10 << 30)
    assert index_logits_bytes(V41_FLASH, far) > 8192 * (1 << 19) * 2, "every key of a long request"


def test_a_call_has_as_many_rows_as_the_engine_lets_it() -> None:
    assert rows_of_a_call(derived(batched_tokens=16_384), 16_385) == 8192
    assert rows_of_a_call(derived(batched_tokens=1000), 16_385) == 1000
    assert rows_of_a_call(derived(index_memory_bytes=32_768 * 101), 16_384) == 96
