"""The attention site: window keys and selected compressed keys under one softmax with a sink."""

from __future__ import annotations

import torch

from v41.numerics import Numerics


def window_mask(positions: torch.Tensor, key_positions: torch.Tensor, window: int) -> torch.Tensor:
    """Mask of keys at or before a query and less than `window` back; (rows, keys)."""
    back = positions.unsqueeze(-1) - key_positions
    return (back >= 0) & (back < window)


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    mask: torch.Tensor,
    sink: torch.Tensor,
    numerics: Numerics,
) -> torch.Tensor:
    """softmax over the masked-in keys and one sink logit per head; keys are also the values.

    Args:
        q: fp32, (batch, rows, heads, 512).    keys: fp32, (batch, keys, 512).
        mask: bool, (batch, rows, keys); every row has at least one key.
        sink: fp32, (heads,), natural units; it only enlarges the denominator.
    Returns:
        fp32, (batch, rows, heads, 512).
    """
    logits = torch.einsum("bthd,bkd->bthk", q, keys) * q.shape[-1] ** -0.5
    logits = logits.masked_fill(~mask.unsqueeze(2), -torch.inf)
    peak = torch.maximum(logits.amax(dim=-1), sink).unsqueeze(-1)
    weights = torch.exp(logits - peak)
    denominator = weights.sum(dim=-1, keepdim=True) + torch.exp(sink.unsqueeze(-1) - peak)
    mixed = torch.einsum("bthk,bkd->bthd", numerics.bf16(weights), keys)
    return numerics.bf16(mixed / denominator)


def grouped_output(
    context: torch.Tensor, wo_a: torch.Tensor, wo_b: torch.Tensor, groups: int, numerics: Numerics
) -> torch.Tensor:
    """Project heads in groups to a low rank, then all groups together to the hidden size.

    Args:
        context: fp32, (batch, rows, heads, 512), rotated back.
        wo_a: fp32, (groups * rank, heads / groups * 512).    wo_b: fp32, (D, groups * rank).
    """
    grouped = context.flatten(2).unflatten(-1, (groups, -1))
    if numerics.wo_a_rounds_activation:
        grouped = numerics.activation(grouped)
    low = torch.einsum("btgk,grk->btgr", grouped, wo_a.unflatten(0, (groups, -1)))
    return numerics.linear(numerics.bf16(low).flatten(2), wo_b)
