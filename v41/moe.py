"""The feed-forward site: a sqrt-softplus router over FP4 experts, and one shared expert."""

from __future__ import annotations

from collections.abc import Callable

import torch

from v41.numerics import Numerics


def route(
    x: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor, *, topk: int, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts by score + bias and weigh them by score alone.

    Args:
        x: fp32, (tokens, D).    gate: fp32, (experts, D).    bias: fp32, (experts,).
    Returns:
        expert ids int64 and weights fp32, both (tokens, topk); the weights of a token sum to
        `scaling`. Ties go to the lower id.
    """
    scores = torch.nn.functional.softplus(torch.nn.functional.linear(x, gate)).sqrt()
    chosen = (scores + bias).sort(dim=-1, descending=True, stable=True).indices[:, :topk]
    picked = scores.gather(1, chosen)
    return chosen, scaling * picked / (picked.sum(dim=-1, keepdim=True) + 1e-20)


def swiglu_expert(
    x: torch.Tensor,
    w1: torch.Tensor,
    w3: torch.Tensor,
    w2: torch.Tensor,
    limit: float,
    numerics: Numerics,
    row_weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """w2(weight * silu(min(w1 x, limit)) * clamp(w3 x, limit)); the gate is clamped above only.

    Args:
        x: fp32, (tokens, D).    w1, w3: fp32, (inter, D).    w2: fp32, (D, inter).
        row_weight: fp32, (tokens,), the router's; applied before w2.
    """
    gate = numerics.linear(x, w1).clamp_max(limit)
    up = numerics.linear(x, w3).clamp(-limit, limit)
    hidden = torch.nn.functional.silu(gate) * up
    if row_weight is not None:
        hidden = row_weight.unsqueeze(-1) * hidden
    return numerics.linear(hidden, w2)


def experts_sum(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    expert: Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor],
    num_experts: int,
) -> torch.Tensor:
    """Sum each token's experts in fp32, ascending by expert id.

    Args:
        x: fp32, (tokens, D).    chosen, weights: (tokens, topk).
        expert: called with (id, rows of x, their weights), gives (rows, D).
    """
    out = torch.zeros_like(x)
    for index in range(num_experts):
        token, slot = (chosen == index).nonzero(as_tuple=True)
        if len(token):
            out = out.index_add(0, token, expert(index, x[token], weights[token, slot]))
    return out
