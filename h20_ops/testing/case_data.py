"""Random tensors for the attention cases: values, index rows and sinks."""

from __future__ import annotations

import torch

MIXED_INFINITE_SHARE = 0.1


def make_sinks(heads: int, generator: torch.Generator) -> torch.Tensor:
    """fp32 (heads,): normal sinks, about a tenth of them -inf and a tenth +inf."""
    device = generator.device
    sinks = torch.randn(heads, generator=generator, device=device)
    draw = torch.rand(heads, generator=generator, device=device)
    sinks[draw < MIXED_INFINITE_SHARE] = -torch.inf
    sinks[draw > 1 - MIXED_INFINITE_SHARE] = torch.inf
    return sinks


def distinct_indices(
    num_rows: int,
    topk: int,
    num_keys: torch.Tensor,
    generator: torch.Generator,
    *,
    scatter: bool = True,
) -> torch.Tensor:
    """int32 (num_rows, topk): distinct indices below num_keys[row]; what is missing is -1.

    Args:
        num_keys: int64, (num_rows,), may be 0 or below topk.
        scatter: mix the -1 among the indices instead of leaving them at the end.
    """
    device = generator.device
    width = max(int(num_keys.max()) if num_rows else 0, 1)
    picked = torch.full((num_rows, topk), -1, dtype=torch.int32, device=device)
    step = max(1, (1 << 27) // max(width, topk))
    for start in range(0, num_rows, step):
        limits = num_keys[start : start + step, None]
        rank = torch.rand((limits.shape[0], width), generator=generator, device=device)
        rank.masked_fill_(torch.arange(width, device=device) >= limits, 2.0)
        values, order = rank.sort(dim=1)
        count = min(width, topk)
        row = torch.where(values[:, :count] < 2.0, order[:, :count], -1).to(torch.int32)
        picked[start : start + step, :count] = row
        if scatter:
            shuffle = torch.rand((limits.shape[0], topk), generator=generator, device=device)
            chunk = picked[start : start + step]
            chunk.copy_(chunk.gather(1, shuffle.argsort(dim=1)))
    return picked


def neighbour_indices(num_rows: int, topk: int, num_keys: int, keep: float = 0.8) -> torch.Tensor:
    """int32 (num_rows, topk) on the CPU: successive rows share about `keep` of their indices.

    Row r lists a window of keys that slides, as the indexer's choices for neighbouring tokens do;
    each row is spread over the whole range by a fixed stride so that it is no contiguous block.
    """
    assert 0 < topk <= num_keys, f"topk {topk} must be within 1..{num_keys}"
    shift = max(1, round(topk * (1 - keep)))
    start = torch.arange(num_rows).unsqueeze(1) * shift
    position = (start + torch.arange(topk)) % num_keys
    stride = next(s for s in range(max(1, num_keys // 7), 0, -1) if _coprime(s, num_keys))
    return (position * stride % num_keys).to(torch.int32)


def pad_row_stride(indices: torch.Tensor, multiple: int) -> torch.Tensor:
    """Copy (..., rows, topk) so that its row stride is the next multiple above topk."""
    topk = indices.shape[-1]
    stride = (topk // multiple + 1) * multiple
    wide = torch.full((*indices.shape[:-1], stride), 2**31 - 1, dtype=indices.dtype)
    wide = wide.to(indices.device)
    wide[..., :topk] = indices
    return wide[..., :topk]


def _coprime(a: int, b: int) -> bool:
    while b:
        a, b = b, a % b
    return a == 1
