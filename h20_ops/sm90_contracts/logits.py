"""DeepGEMM's own FP8 indexer logits on SM90: pages of 64, no packed scales, fp32 weights.

The engine's indexer does not use these (its cache is FP4 with pages of 128 or 64, which
h20_ops.mqa_logits_prefill and mqa_logits_paged read directly); they are for callers whose index cache has the
132-byte FP8 form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from h20_ops.sm90_contracts.refusal import (
    deep_gemm_on,
    refuse,
    want_dtype,
    want_rows,
    want_shape,
)

if TYPE_CHECKING:
    import torch

PAGE = 64
RECORD_BYTES = 132
HEADS = (32, 64)
HEAD_DIMS = (32, 64, 128)
_OURS = "keep FP4 tensors and call h20_ops.{}, which takes any page size and varlen rows"


def fp8_mqa_logits(
    q: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    weights: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    *,
    max_kv_len: int,
    q_sf: torch.Tensor | None = None,
) -> torch.Tensor:
    """Give logits of rows against ranges of keys; column c of row i is key starts[i] + c.

    Args:
        q: e4m3 (rows, heads, dim), its scale folded into weights.
        kv: e4m3 (keys, dim) and fp32 (keys,).
        weights: fp32 (rows, heads). starts, ends: int32 (rows,), ends exclusive.
        max_kv_len: columns of the result, positive.
        q_sf: None.
    Returns:
        fp32 (rows, max_kv_len), row stride a multiple of 1024 bytes; columns past the end are undefined.
    """
    import torch

    call = "fp8_mqa_logits"
    rows, heads, dim = _want_query(call, q, q_sf, "mqa_logits_prefill")
    want_dtype(call, "kv[0]", kv[0], torch.float8_e4m3fn)
    want_shape(call, "kv[0]", kv[0], (kv[0].shape[0], dim))
    want_dtype(call, "kv[1]", kv[1], torch.float32)
    want_shape(call, "kv[1]", kv[1], (kv[0].shape[0],))
    _want_weights(call, weights, rows, heads)
    for name, bounds in (("starts", starts), ("ends", ends)):
        want_dtype(call, name, bounds, torch.int32)
        want_shape(call, name, bounds, (rows,))
        _want_contiguous(call, name, bounds)
    if max_kv_len <= 0:
        refuse(call, "max_kv_len", max_kv_len, "a positive number", "skip the call")
    if rows == 0 or kv[0].shape[0] == 0:
        return _empty(q, rows, max_kv_len)
    gemm = deep_gemm_on(call, q)
    logits: torch.Tensor = gemm.fp8_fp4_mqa_logits(
        (q, None), kv, weights, starts, ends, max_seqlen_k=max_kv_len
    )
    return logits


def fp8_paged_mqa_logits(
    q: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    *,
    max_kv_len: int,
    q_sf: torch.Tensor | None = None,
    row_requests: torch.Tensor | None = None,
) -> torch.Tensor:
    """Give logits of decode rows against their pages.

    A row of length 0 is computed as one of length 1, because the kernel that makes the schedule
    leaves its arrays when all lengths are 0; none of that row's columns is defined either way.

    Args:
        q: e4m3 (batch, next_n, heads, dim), next_n 1 or 2.
        cache: uint8 (pages, 64, 1, 132), a page's values before its fp32 scales.
        weights: fp32 (batch * next_n, heads).
        context_lens: int32 (batch, next_n), contiguous. block_tables: int32 (batch, max_pages).
        max_kv_len: columns of the result, positive.
        q_sf, row_requests: None; varlen batches give each row a batch row of its own.
    Returns:
        fp32 (batch * next_n, max_kv_len); columns from the length on are undefined.
    """
    import torch

    call = "fp8_paged_mqa_logits"
    if q.dim() != 4:
        refuse(call, "q.shape", tuple(q.shape), "(batch, next_n, heads, dim)", "unsqueeze it")
    batch, next_n = q.shape[:2]
    if next_n not in (1, 2):
        advice = "give each query row a batch row of its own, with its length and block table"
        refuse(call, "q.shape[1] (next_n)", next_n, "1 or 2", advice)
    if row_requests is not None:
        advice = "repeat the block table per row; or " + _OURS.format("mqa_logits_paged")
        refuse(call, "row_requests (varlen)", tuple(row_requests.shape), "None", advice)
    _, heads, _ = _want_query(call, q.flatten(0, 1), q_sf, "mqa_logits_paged")
    want_dtype(call, "cache", cache, torch.uint8)
    if cache.dim() != 4 or cache.shape[1] != PAGE:
        found = tuple(cache.shape)
        wanted = f"(pages, {PAGE}, 1, {RECORD_BYTES}): {PAGE} entries a page exactly"
        refuse(call, "cache.shape", found, wanted, _OURS.format("mqa_logits_paged"))
    want_shape(call, "cache", cache, (cache.shape[0], PAGE, 1, RECORD_BYTES))
    _want_weights(call, weights, batch * next_n, heads)
    want_dtype(call, "context_lens", context_lens, torch.int32)
    want_shape(call, "context_lens", context_lens, (batch, next_n))
    _want_contiguous(call, "context_lens", context_lens)
    want_dtype(call, "block_tables", block_tables, torch.int32)
    if block_tables.dim() != 2 or block_tables.shape[0] != batch:
        wanted = f"({batch}, max_pages)"
        refuse(call, "block_tables.shape", tuple(block_tables.shape), wanted, "one row per batch")
    if max_kv_len <= 0:
        refuse(call, "max_kv_len", max_kv_len, "a positive number", "skip the call")
    if batch == 0:
        return _empty(q, 0, max_kv_len)
    gemm = deep_gemm_on(call, q)
    lens = context_lens.clamp_min(1)
    schedule = gemm.get_paged_mqa_logits_metadata(lens, PAGE, gemm.get_num_sms())
    logits: torch.Tensor = gemm.fp8_fp4_paged_mqa_logits(
        (q, None), cache, weights, lens, block_tables, schedule, max_kv_len
    )
    return logits


def _want_query(
    call: str, q: torch.Tensor, q_sf: torch.Tensor | None, ours: str
) -> tuple[int, int, int]:
    import torch

    if q_sf is not None:
        advice = "multiply it into weights; or " + _OURS.format(ours)
        refuse(call, "q_sf", f"a tensor {tuple(q_sf.shape)}", "None", advice)
    want_dtype(call, "q", q, torch.float8_e4m3fn)
    if q.dim() != 3:
        refuse(call, "q.shape", tuple(q.shape), "(rows, heads, dim)", "reshape it")
    rows, heads, dim = q.shape
    if heads not in HEADS:
        refuse(call, "heads of q", heads, f"one of {HEADS}", _OURS.format(ours))
    if dim not in HEAD_DIMS:
        refuse(call, "head dimension of q", dim, f"one of {HEAD_DIMS}", _OURS.format(ours))
    _want_contiguous(call, "q", q)
    return rows, heads, dim


def _want_weights(call: str, weights: torch.Tensor, rows: int, heads: int) -> None:
    import torch

    want_dtype(call, "weights", weights, torch.float32)
    want_shape(call, "weights", weights, (rows, heads))
    want_rows(call, "weights", weights, multiple_of_bytes=16)


def _want_contiguous(call: str, argument: str, tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():
        refuse(call, f"{argument}.stride()", tensor.stride(), "contiguous", f"copy {argument}")


def _empty(q: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    import torch

    padded = -(-columns // 256) * 256
    return torch.empty((rows, padded), dtype=torch.float32, device=q.device)[:, :columns]
