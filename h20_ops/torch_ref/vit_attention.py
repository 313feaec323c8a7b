"""Twin of varlen attention: a mask of equal segments, a strip of query rows at a time."""

from __future__ import annotations

import torch

from h20_ops.arguments_vit import check_vit_attention

_STRIP = 1024


def vit_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size_left: int | None = -1,
    window_size_right: int | None = -1,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    return_lse: bool = False,
) -> tuple[torch.Tensor]:
    """Return attention within segments; the contract is h20_ops.vit_attention's.

    The softmax is fp32. A row whose segment has no key gets zeros.
    """
    windows = (window_size_left, window_size_right)
    check_vit_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, windows, return_lse)
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    rows = torch.arange(q.shape[0], device=q.device)
    keys = torch.arange(k.shape[0], device=q.device)
    segment_of_row = torch.searchsorted(cu_seqlens_q[1:].contiguous(), rows, right=True)
    segment_of_key = torch.searchsorted(cu_seqlens_k[1:].contiguous(), keys, right=True)
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    by_head, values = k.float().permute(1, 2, 0), v.float().transpose(0, 1)
    for start in range(0, q.shape[0], _STRIP):
        at = slice(start, start + _STRIP)
        logits = q[at].float().transpose(0, 1) @ by_head * scale
        other = segment_of_row[at, None] != segment_of_key
        probabilities = logits.masked_fill(other, -torch.inf).softmax(dim=-1).nan_to_num(0.0)
        out[at] = (probabilities @ values).transpose(0, 1).to(q.dtype)
    return (out,)
