"""Manifold-constrained hyper-connections (mHC): four residual streams, mixed at every site.

The mix that collapses the streams into a site's input ("pre") was computed at the site before it:
the model is trained with this delay, and using a site's own pre is a fault that only numbers show.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from v41.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Mixes:
    """What a site computes from the streams it receives.

    next_pre: (batch, rows, streams), collapses the streams at the NEXT site.
    post: (batch, rows, streams), how much of this site's output each stream takes.
    comb: (batch, rows, streams, streams), comb[j, k]: how much of old stream j new stream k keeps.
    """

    next_pre: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor


def first_pre(streams: torch.Tensor) -> torch.Tensor:
    """Give the pre mix of the first site: stream 0 only. streams: (batch, rows, streams, D)."""
    pre = torch.zeros(streams.shape[:-1], dtype=streams.dtype, device=streams.device)
    pre[..., 0] = 1.0
    return pre


def mixes(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    config: ModelConfig,
) -> Mixes:
    """Compute a site's mixes.

    Args:
        streams: fp32, (batch, rows, n, D).
        fn: fp32, (2n + n*n, n*D); its norm weight is folded in.
        base: fp32, (2n + n*n,).    scale: fp32, (3,) for pre, post and comb.
    """
    n, eps = config.hc_mult, config.hc_eps
    flat = streams.flatten(-2)
    norm = torch.rsqrt(flat.square().mean(dim=-1, keepdim=True) + config.rms_norm_eps)
    raw = torch.nn.functional.linear(flat, fn) * norm
    pre = torch.sigmoid(raw[..., :n] * scale[0] + base[:n]) + eps
    post = 2.0 * torch.sigmoid(raw[..., n : 2 * n] * scale[1] + base[n : 2 * n])
    logits = raw[..., 2 * n :] * scale[2] + base[2 * n :]
    comb = torch.softmax(logits.unflatten(-1, (n, n)), dim=-1) + eps
    comb = comb / (comb.sum(dim=-2, keepdim=True) + eps)
    for _ in range(config.hc_sinkhorn_iters - 1):
        comb = comb / (comb.sum(dim=-1, keepdim=True) + eps)
        comb = comb / (comb.sum(dim=-2, keepdim=True) + eps)
    return Mixes(next_pre=pre, post=post, comb=comb)


def collapse(streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """Sum the streams weighted by pre: (batch, rows, n, D), (batch, rows, n) -> (batch, rows, D)."""
    return torch.einsum("btn,btnd->btd", pre, streams)


def expand(streams: torch.Tensor, output: torch.Tensor, mix: Mixes) -> torch.Tensor:
    """Give the new streams: h_k = post_k * output + sum over j of comb[j, k] * h_j."""
    kept = torch.einsum("btjk,btjd->btkd", mix.comb, streams)
    return mix.post.unsqueeze(-1) * output.unsqueeze(-2) + kept
