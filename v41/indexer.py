"""Which compressed entries a query reads: scores, candidate blocks, top-k.

Ties go to the lower entry. Scores are rounded to bf16 when the mode rounds, as the engine stores
them; the constants index_head_dim^-0.5 and heads^-0.5 do not change the choice and are left out.
"""

from __future__ import annotations

import torch

from v41.numerics import Numerics

_LARGEST_BF16 = float(torch.finfo(torch.bfloat16).max)


def index_scores(
    query: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor, numerics: Numerics
) -> torch.Tensor:
    """score[p, j] = sum over heads of w[p, h] * relu(q[p, h] . k[j]).

    Args:
        query: fp32, (batch, rows, heads, 128), rotated and rounded.
        keys: fp32, (batch, entries, 128), likewise.
        weights: fp32, (batch, rows, heads).
    Returns:
        fp32, (batch, rows, entries).
    """
    dots = torch.relu(torch.einsum("bthd,bjd->bthj", query, keys))
    scores = torch.einsum("bthj,bth->btj", dots, numerics.bf16(weights))
    return numerics.bf16(scores)


def visible_entries(positions: torch.Tensor, num_entries: int, ratio: int) -> torch.Tensor:
    """Mask of complete groups at or before each position: j < (p + 1) // ratio; (rows, entries)."""
    entries = torch.arange(num_entries, device=positions.device)
    return entries < ((positions + 1) // ratio).unsqueeze(-1)


def candidate_blocks(
    scores: torch.Tensor, visible: torch.Tensor, *, block_size: int, topk_blocks: int
) -> torch.Tensor:
    """Keep the best blocks of entries by their best visible score; the last block always stays.

    Args:
        scores: fp32, (batch, rows, entries).
        visible: bool, (rows, entries); visible entries are a prefix of each row.
    Returns:
        bool, (batch, rows, entries): entries of kept blocks, not cut to the visible ones.
    """
    num_entries = scores.shape[-1]
    num_blocks = -(-num_entries // block_size)
    padding = num_blocks * block_size - num_entries
    hidden = scores.masked_fill(~visible | scores.isnan(), -torch.inf).clamp_max(_LARGEST_BF16)
    padded = torch.nn.functional.pad(hidden, (0, padding), value=-torch.inf)
    best = padded.unflatten(-1, (num_blocks, block_size)).amax(dim=-1)
    num_visible = visible.sum(dim=-1)
    last = ((num_visible - 1) // block_size).clamp_min(0)
    best = best.scatter(-1, last.expand(best.shape[0], -1).unsqueeze(-1), torch.inf)
    kept = _top_mask(best, min(topk_blocks, num_blocks))
    return kept.repeat_interleave(block_size, dim=-1)[..., :num_entries]


def select(scores: torch.Tensor, allowed: torch.Tensor, topk: int) -> torch.Tensor:
    """Mask of the topk best allowed entries of each row, fewer where fewer are allowed.

    NaN is never selected: a row of NaN selects nothing, as if no entry were allowed.
    """
    allowed = allowed & ~scores.isnan()
    hidden = scores.masked_fill(~allowed, -torch.inf)
    return _top_mask(hidden, min(topk, scores.shape[-1])) & allowed


def _top_mask(scores: torch.Tensor, count: int) -> torch.Tensor:
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, True)
