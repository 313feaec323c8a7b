"""The scores that a router chooses experts by, and how close it was to taking another one."""

from __future__ import annotations

import torch


def router_scores(x: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Give sqrt(softplus(x gate)) + bias, fp32, (rows, experts); the highest are taken.

    Args:
        x: fp32, (rows, D), normed.    gate: fp32, (experts, D).    bias: fp32, (experts,).
    """
    return torch.nn.functional.softplus(torch.nn.functional.linear(x, gate)).sqrt() + bias


def router_margins(
    x: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor, topk: int
) -> torch.Tensor:
    """Give by how much the last expert taken leads the first one left out, fp32, (rows,)."""
    best = router_scores(x, gate, bias).topk(topk + 1, dim=-1).values
    return best[:, topk - 1] - best[:, topk]
