"""Softmax over selected keys with an attention sink: the arithmetic both twins share."""

from __future__ import annotations

import torch


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    valid: torch.Tensor,
    sm_scale: float,
    attn_sink: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attend each row to its own keys, K and V being the same vectors.

    The sink is one logit per head that only enlarges the denominator: -inf changes nothing, +inf
    gives zeros. max_logits and lse leave it out and are natural logarithms.

    Args:
        q: floating, (rows, heads, d).
        keys: same dtype, (rows, topk, d); keys that are not valid must be finite.
        valid: bool, (rows, topk).
        attn_sink: fp32, (heads,), or None.
    Returns:
        out (rows, heads, d), max_logits (rows, heads), lse (rows, heads), all in q's dtype. A row
        without a valid key gets out 0, max_logits -inf and lse +inf.
    """
    logits = torch.einsum("rhd,rkd->rhk", q, keys) * sm_scale
    logits = logits.masked_fill(~valid.unsqueeze(1), -torch.inf)
    has_key = valid.any(dim=-1, keepdim=True)
    max_logits = logits.amax(dim=-1)
    shift = torch.where(has_key, max_logits, torch.zeros_like(max_logits))
    weights = torch.exp(logits - shift.unsqueeze(-1))
    denominator = weights.sum(dim=-1)
    lse = torch.where(has_key, denominator.log() + shift, torch.inf)
    out = torch.einsum("rhk,rkd->rhd", weights, keys)
    out = out / torch.where(has_key, denominator, torch.ones_like(denominator)).unsqueeze(-1)
    if attn_sink is not None:
        # sigmoid(lse - sink) = 1 / (1 + exp(sink - lse)), and is 0 for a sink of +inf.
        kept = torch.sigmoid(lse - attn_sink.to(lse.dtype))
        kept = torch.where(attn_sink == torch.inf, torch.zeros_like(kept), kept)
        out = out * torch.where(has_key, kept, torch.zeros_like(kept)).unsqueeze(-1)
    return out, max_logits, lse


def rows_per_chunk(topk: int, heads: int, head_dim: int) -> int:
    """Rows to attend at once so that temporary fp32 tensors stay around 256 MiB."""
    floats_per_row = topk * (head_dim + 2 * heads) + heads * head_dim
    return max(1, (1 << 26) // max(1, floats_per_row))
