"""Sparse paged MLA decode in plain torch: the twin of h20_ops.sparse_mla_decode."""

from __future__ import annotations

import torch

from h20_ops.arguments import check_sparse_mla_decode
from h20_ops.kv_cache.layouts import KvLayout
from h20_ops.kv_cache.records import read_kv
from h20_ops.torch_ref.attention import attend, rows_per_chunk


def sparse_mla_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    sm_scale: float,
    layout: KvLayout,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_layout: KvLayout | None = None,
    extra_indices: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to listed slots of one or two paged caches under one softmax.

    A slot is page * page_size + position in the page; -1 marks no slot and may stand anywhere.
    Position k of an index row counts if it is not -1 and k < topk_length of its batch row.

    Args:
        q: bf16, (b, s_q, h_q, 512).
        k_cache: uint8, (pages, page_size, 1, layout.bytes_per_token); stride(0) free.
        indices: int32, (b, s_q, topk).
        sm_scale: factor of the logits.
        layout: how k_cache's bytes are arranged; head_dim 512.
        attn_sink: fp32, (h_q,); a logit that only enlarges the denominator.
        topk_length, extra_topk_length: int32, (b,).
        extra_k_cache, extra_layout, extra_indices: the second scope, given together.
        batch_invariant: accepted for the signature; the twin has only one order of summation.
    Returns:
        out: bf16, (b, s_q, h_q, 512), contiguous.
        lse: fp32, (b, h_q, s_q), a transposed view of (b, s_q, h_q); natural log, without the sink.
        A row with nothing valid gets out 0 and lse +inf.
    """
    b, s_q, h_q, topk, extra_topk = check_sparse_mla_decode(
        q,
        k_cache,
        indices,
        layout,
        attn_sink,
        topk_length,
        extra_k_cache,
        extra_layout,
        extra_indices,
        extra_topk_length,
    )
    scopes = [(k_cache, _valid_slots(indices, topk_length), layout)]
    if extra_k_cache is not None and extra_layout is not None and extra_indices is not None:
        slots = _valid_slots(extra_indices, extra_topk_length)
        scopes.append((extra_k_cache, slots, extra_layout))
    q_rows = q.reshape(b * s_q, h_q, -1)
    out = torch.empty_like(q_rows, memory_format=torch.contiguous_format)
    lse = torch.empty((b * s_q, h_q), dtype=torch.float32, device=q.device)
    step = rows_per_chunk(topk + extra_topk, h_q, q.shape[-1])
    for start in range(0, b * s_q, step):
        rows = slice(start, start + step)
        keys = torch.cat([read_kv(cache, slots[rows], kind) for cache, slots, kind in scopes], 1)
        valid = torch.cat([slots[rows] >= 0 for _, slots, _ in scopes], dim=1)
        out[rows], _, lse[rows] = attend(q_rows[rows].float(), keys, valid, sm_scale, attn_sink)
    return out.view(b, s_q, h_q, -1), lse.view(b, s_q, h_q).transpose(1, 2)


def _valid_slots(indices: torch.Tensor, topk_length: torch.Tensor | None) -> torch.Tensor:
    """Flatten index rows to (b * s_q, topk) and turn positions past the length into -1."""
    slots = indices
    if topk_length is not None:
        rank = torch.arange(indices.shape[2], device=indices.device)
        slots = torch.where(rank < topk_length[:, None, None], indices, -1)
    return slots.reshape(-1, indices.shape[2])
