"""Sparse attention key by key in fp64 Python floats: slow, and sharing nothing with the twins."""

from __future__ import annotations

import math

import torch


def attend_naively(
    q: torch.Tensor, keys: list[list[torch.Tensor]], sm_scale: float, sink: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q (rows, heads, d); keys[row] the list of that row's key vectors, repeated ones repeated."""
    rows, heads, width = q.shape
    out = torch.zeros((rows, heads, width), dtype=torch.float64)
    max_logits = torch.full((rows, heads), -math.inf, dtype=torch.float64)
    lse = torch.full((rows, heads), math.inf, dtype=torch.float64)
    for row in range(rows):
        if not keys[row]:
            continue
        vectors = [key.double() for key in keys[row]]
        for head in range(heads):
            logits = [sm_scale * float(q[row, head].double() @ key) for key in vectors]
            top = max(logits)
            total = sum(math.exp(x - top) for x in logits)
            max_logits[row, head] = top
            lse[row, head] = top + math.log(total)
            extra = -math.inf if sink is None else float(sink[head]) - top
            denominator = math.inf if extra == math.inf else total + math.exp(extra)
            for logit, key in zip(logits, vectors, strict=True):
                out[row, head] += math.exp(logit - top) / denominator * key
    return out, max_logits, lse
