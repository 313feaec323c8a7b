"""Argument checks of the indexer operators; shared by kernels and twins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MAX_CANDIDATES = 4096
_WEIGHT_ROW_BYTES = 16


def check_mqa_logits_prefill(
    q: torch.Tensor,
    q_sf: torch.Tensor,
    k: torch.Tensor,
    k_sf: torch.Tensor,
    weights: torch.Tensor,
    ks: torch.Tensor,
    ke: torch.Tensor,
    max_kv_len: int,
    candidate_blocks: torch.Tensor | None,
    candidate_block_size: int,
) -> tuple[int, int, int]:
    """Assert the contract and return rows, heads, keys."""
    rows, heads = _check_query(q, q_sf, weights)
    _vectors("k", k, (k.shape[0], 64))
    _int32("k_sf", k_sf, (k.shape[0],))
    _int32("ks", ks, (rows,))
    _int32("ke", ke, (rows,))
    _check_rest(max_kv_len, candidate_blocks, candidate_block_size, rows)
    return rows, heads, k.shape[0]


def check_mqa_logits_paged(
    q: torch.Tensor,
    q_sf: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    klen: torch.Tensor,
    block_tables: torch.Tensor,
    max_kv_len: int,
    candidate_blocks: torch.Tensor | None,
    candidate_block_size: int,
) -> tuple[int, int]:
    """Assert the contract and return rows, heads."""
    from h20_ops.kv_cache import INDEX_MXFP4
    from h20_ops.kv_cache.records import check_cache

    rows, heads = _check_query(q, q_sf, weights)
    check_cache(cache, INDEX_MXFP4)
    stride = cache.stride(0)
    assert cache.shape[0] <= 1 or stride % 4 == 0, f"cache: page stride {stride}, want 4 | stride"
    _int32("klen", klen, (rows,))
    assert block_tables.dim() == 2, f"block_tables: {tuple(block_tables.shape)}, want (rows, pages)"
    _int32("block_tables", block_tables, (rows, block_tables.shape[1]))
    _check_rest(max_kv_len, candidate_blocks, candidate_block_size, rows)
    if candidate_blocks is not None:
        page_size = cache.shape[1]
        assert page_size % candidate_block_size == 0, (
            f"a candidate block of {candidate_block_size} would cross pages of {page_size}"
        )
    return rows, heads


def _check_query(q: torch.Tensor, q_sf: torch.Tensor, weights: torch.Tensor) -> tuple[int, int]:
    import torch

    assert q.dim() == 3, f"q: {tuple(q.shape)}, want (rows, heads, 64)"
    rows, heads = q.shape[:2]
    _vectors("q", q, (rows, heads, 64))
    _int32("q_sf", q_sf, (rows, heads))
    assert weights.dtype == torch.bfloat16, f"weights: {weights.dtype}, want bfloat16"
    assert tuple(weights.shape) == (rows, heads), (tuple(weights.shape), (rows, heads))
    stride = weights.stride()
    assert heads <= 1 or stride[1] == 1, f"weights: strides {stride}, last not 1"
    assert rows <= 1 or stride[0] * 2 % _WEIGHT_ROW_BYTES == 0, (
        f"weights: row stride {stride[0]} elements, want a multiple of {_WEIGHT_ROW_BYTES} bytes"
    )
    return rows, heads


def _vectors(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    import torch

    assert tensor.dtype in (torch.int8, torch.uint8), f"{name}: {tensor.dtype}, want packed bytes"
    assert tuple(tensor.shape) == shape, f"{name}: {tuple(tensor.shape)}, want {shape}"
    assert tensor.stride(-1) == 1, f"{name}: strides {tensor.stride()}, last not 1"


def _int32(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    import torch

    assert tensor.dtype == torch.int32, f"{name}: {tensor.dtype}, want int32"
    assert tuple(tensor.shape) == shape, f"{name}: {tuple(tensor.shape)}, want {shape}"


def _check_rest(
    max_kv_len: int, candidate_blocks: torch.Tensor | None, block: int, rows: int
) -> None:
    assert max_kv_len > 0, f"max_kv_len: {max_kv_len}, want a positive number"
    if candidate_blocks is None:
        return
    assert block in (8, 16), f"candidate_block_size: {block}, want 8 or 16"
    assert candidate_blocks.dim() == 2, f"candidate_blocks: {tuple(candidate_blocks.shape)}"
    count = candidate_blocks.shape[1]
    assert 0 < count <= MAX_CANDIDATES, f"candidate_blocks: {count}, want 1..{MAX_CANDIDATES}"
    _int32("candidate_blocks", candidate_blocks, (rows, count))
