"""The least work of a call, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
pytestmark = pytest.mark.torch

from dih20.layer_times.recording import Call  # noqa: E402
from dih20.layer_times.works import Batch, work_of  # noqa: E402

BATCH = Batch(
    rows=64,
    keys=1000.0,
    longest=1000,
    experts_per_token=6,
    index_topk=512,
    ratios=(0, 2, 1),
)


def call(
    operator: str, *arguments: Any, layer: int = 0, result: Any = None, **keywords: Any
) -> Call:
    return Call(
        layer=layer,
        where="",
        operator=operator,
        function=lambda: None,
        arguments=arguments,
        keywords=keywords,
        result=result,
    )


def e4m3(*shape: int) -> Any:
    return torch.empty(shape, dtype=torch.float8_e4m3fn)


def bf16(*shape: int) -> Any:
    return torch.empty(shape, dtype=torch.bfloat16)


def test_a_product_reads_both_operands_and_writes_its_result() -> None:
    a, b = (e4m3(64, 256), torch.empty(64, 2)), (e4m3(512, 256), torch.empty(4, 2))
    work = work_of(call("fp8_gemm_nt", a, b, bf16(64, 512)), BATCH)
    assert work.flops == 2 * 64 * 512 * 256
    assert work.bytes_moved == 64 * 256 + 64 * 2 * 4 + 512 * 256 + 4 * 2 * 4 + 64 * 512 * 2
    assert work.mma_speed == 2


def test_only_experts_with_a_token_and_rows_with_one_count() -> None:
    a, b = (e4m3(512, 256), None), (e4m3(4, 512, 256), torch.empty(4, 4, 2))
    ends = torch.tensor(
        [100, 128 + 0, 128 + 130, 384 + 1], dtype=torch.int32
    )  # 100, 0, 130, 1 rows
    work = work_of(call("m_grouped_fp8_gemm_nt_contiguous", a, b, bf16(512, 512), ends), BATCH)
    assert work.flops == 2 * 231 * 512 * 256
    weights = 3 * (512 * 256 + 4 * 2 * 4)
    assert work.bytes_moved == weights + 231 * (256 + 2 * 512)


@pytest.mark.parametrize(("layer", "keys"), [(0, 128), (1, 128 + 500), (2, 128 + 512)])
def test_attention_sees_the_window_and_at_most_the_chosen_keys(layer: int, keys: int) -> None:
    made = call("flash_mla_with_kvcache", layer=layer, q=bf16(64, 1, 64, 512))
    work = work_of(made, BATCH)
    assert work.flops == 64 * 64 * keys * 4 * 512
    records = 64 * (128 * 528 + (keys - 128) * 288)
    assert work.bytes_moved == records + 2 * 64 * 64 * 512 * 2


@pytest.mark.parametrize(("blocks", "keys"), [(None, 1000), (50, 400), (500, 1000)])
def test_logits_of_candidates_are_those_of_their_blocks(blocks: int | None, keys: int) -> None:
    q, scales = torch.empty(64, 32, 64, dtype=torch.int8), torch.empty(64, 32, dtype=torch.int32)
    chosen = None if blocks is None else torch.empty(64, blocks, dtype=torch.int32)
    made = call(
        "mqa_logits_paged", q, scales, layer=2, candidate_blocks=chosen, candidate_block_size=8
    )
    work = work_of(made, BATCH)
    assert work.flops == 2 * 64 * keys * 32 * 128
    assert work.bytes_moved == 64 * keys * (68 + 2) + 64 * 32 * 68


def test_other_operators_move_what_they_see_but_not_whole_caches() -> None:
    cache = torch.empty(100, 64, 1, 288, dtype=torch.uint8)
    made = call("some_store", bf16(64, 512), cache, layer=1)
    assert work_of(made, BATCH).bytes_moved == 64 * 512 * 2 + 64 * 288
    norm = call("norm", bf16(64, 512), bf16(512), result=bf16(64, 512))
    assert work_of(norm, BATCH).bytes_moved == 2 * 64 * 512 * 2 + 512 * 2
