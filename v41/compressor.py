"""Turn hidden vectors into compressed latents: one per token (ratio 1) or per two (ratio 2)."""

from __future__ import annotations

import torch

from v41.cache import LayerCache, append
from v41.numerics import Numerics, rms_norm


def compress(
    x: torch.Tensor,
    wkv: torch.Tensor,
    wgate: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    state: LayerCache,
    numerics: Numerics,
) -> torch.Tensor:
    """Give the latents of the groups that are complete now; keep the rest in state.pending.

    Ratio 1: RMSNorm(Wkv x). Ratio 2: per channel, the two tokens of a group are weighted by a
    softmax over their gates. Linears here are bf16: no activation rounding.

    Args:
        x: fp32, (batch, rows, D), normed hidden of the new tokens.
        wkv, wgate: fp32, (512, D); wgate is None for ratio 1.
    Returns:
        fp32, (batch, new entries, 512), not rotated yet.
    """
    value = torch.nn.functional.linear(x, wkv)
    if wgate is None:
        return rms_norm(numerics.bf16(value), norm_weight, eps, numerics)
    gate = torch.nn.functional.linear(x, wgate)
    pairs = append(state.pending, torch.stack((value, gate), dim=2))
    whole = pairs.shape[1] // 2 * 2
    state.pending = pairs[:, whole:]
    grouped = pairs[:, :whole].unflatten(1, (whole // 2, 2))
    weights = torch.softmax(grouped[:, :, :, 1], dim=2)
    pooled = (weights * grouped[:, :, :, 0]).sum(dim=2)
    return rms_norm(numerics.bf16(pooled), norm_weight, eps, numerics)
