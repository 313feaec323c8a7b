"""Sparse MLA prefill in plain torch: the twin of h20_ops.sparse_mla_prefill."""

from __future__ import annotations

import torch

from h20_ops.arguments import check_sparse_mla_prefill
from h20_ops.torch_ref.attention import attend, rows_per_chunk


def sparse_mla_prefill(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    *,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attend each query row to the kv rows its index row lists; no causal rule is applied.

    Position k of an index row counts if 0 <= index < s_kv and k < topk_length of that row. Invalid
    indices may stand anywhere; a repeated index counts as often as it is listed.

    Args:
        q: bf16, (s_q, h_q, 512).
        kv: bf16, (s_kv, 1, 512); keys and values at once.
        indices: int32, (s_q, 1, topk), row stride free.
        sm_scale: factor of the logits.
        d_v: 512, the width of the values.
        attn_sink: fp32, (h_q,); a logit that only enlarges the denominator.
        topk_length: int32, (s_q,).
    Returns:
        out: bf16, (s_q, h_q, 512), contiguous.
        max_logits, lse: fp32, (s_q, h_q), natural logarithm, without the sink.
        A row with nothing valid gets out 0, max_logits -inf, lse +inf.
    """
    s_q, h_q, s_kv, topk = check_sparse_mla_prefill(q, kv, indices, d_v, attn_sink, topk_length)
    out = torch.empty((s_q, h_q, d_v), dtype=torch.bfloat16, device=q.device)
    max_logits = torch.empty((s_q, h_q), dtype=torch.float32, device=q.device)
    lse = torch.empty_like(max_logits)
    if s_kv == 0 or topk == 0:
        return out.zero_(), max_logits.fill_(-torch.inf), lse.fill_(torch.inf)
    rank = torch.arange(topk, device=q.device)
    step = rows_per_chunk(topk, h_q, d_v)
    for start in range(0, s_q, step):
        rows = slice(start, start + step)
        index = indices[rows, 0].long()
        valid = (index >= 0) & (index < s_kv)
        if topk_length is not None:
            valid &= rank < topk_length[rows, None]
        keys = kv[torch.where(valid, index, torch.zeros_like(index)), 0].float()
        keys = torch.where(valid.unsqueeze(-1), keys, torch.zeros((), device=q.device))
        chunk = attend(q[rows].float(), keys, valid, sm_scale, attn_sink)
        out[rows], max_logits[rows], lse[rows] = chunk
    return out, max_logits, lse
