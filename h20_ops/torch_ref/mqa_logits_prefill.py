"""Twin of the indexer logits of prefill: every row against its range of keys."""

from __future__ import annotations

import torch

from h20_ops.arguments_index import check_mqa_logits_prefill
from h20_ops.torch_ref.index_values import candidate_columns, decode_index, empty_logits, score

_CHUNK_BYTES = 256 << 20


def mqa_logits_prefill(
    q: torch.Tensor,
    q_sf: torch.Tensor,
    k: torch.Tensor,
    k_sf: torch.Tensor,
    weights: torch.Tensor,
    ks: torch.Tensor,
    ke: torch.Tensor,
    *,
    max_kv_len: int,
    candidate_blocks: torch.Tensor | None = None,
    candidate_block_size: int = 0,
    out_dtype: torch.dtype | None = None,
    fill: bool = False,
) -> torch.Tensor:
    """Return logits; the contract is h20_ops.mqa_logits_prefill's. Everything past the end is -inf."""
    rows, heads, keys = check_mqa_logits_prefill(
        q, q_sf, k, k_sf, weights, ks, ke, max_kv_len, candidate_blocks, candidate_block_size
    )
    columns = max_kv_len
    if candidate_blocks is not None:
        columns = candidate_blocks.shape[1] * candidate_block_size
    dtype = out_dtype or torch.bfloat16
    logits = empty_logits(rows, columns, dtype, q.device)
    if rows == 0 or keys == 0:
        return logits
    decoded = decode_index(k, k_sf)
    step = max(1, _CHUNK_BYTES // (heads * keys * 4))
    for start in range(0, rows, step):
        at = slice(start, start + step)
        scores = score(decode_index(q[at], q_sf[at]), decoded, weights[at])
        lengths = (ke[at] - ks[at]).long().clamp(0, max_kv_len)
        if candidate_blocks is None:
            width = min(max_kv_len, keys)
            offsets = torch.arange(width, device=q.device).expand(lengths.shape[0], -1)
            valid = offsets < lengths.unsqueeze(1)
        else:
            offsets, valid = candidate_columns(candidate_blocks[at], candidate_block_size, lengths)
        at_key = torch.where(valid, ks[at].long().unsqueeze(1) + offsets, torch.zeros_like(offsets))
        found = scores.gather(1, at_key).masked_fill(~valid, -torch.inf)
        logits[at, : found.shape[1]] = found.to(dtype)
    return logits
