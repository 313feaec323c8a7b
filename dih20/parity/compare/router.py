"""How close a router was to taking another expert."""

from __future__ import annotations

import torch


def router_margins(
    x: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor, topk: int
) -> torch.Tensor:
    """Give by how much the last expert taken leads the first one left out, (rows,), fp32.

    Args:
        x: fp32, (rows, D), normed.    gate: fp32, (experts, D).    bias: fp32, (experts,).
    """
    scores = torch.nn.functional.softplus(torch.nn.functional.linear(x, gate)).sqrt() + bias
    best = scores.topk(topk + 1, dim=-1).values
    return best[:, topk - 1] - best[:, topk]
