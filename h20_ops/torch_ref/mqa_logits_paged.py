"""Twin of the indexer logits of decode: every row against the pages of its block table."""

from __future__ import annotations

import torch

from h20_ops.arguments_index import check_mqa_logits_paged
from h20_ops.torch_ref.index_values import (
    candidate_columns,
    decode_index,
    decode_pages,
    empty_logits,
    score,
)

_CHUNK_BYTES = 256 << 20


def mqa_logits_paged(
    q: torch.Tensor,
    q_sf: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    klen: torch.Tensor,
    block_tables: torch.Tensor,
    *,
    max_kv_len: int,
    candidate_blocks: torch.Tensor | None = None,
    candidate_block_size: int = 0,
    out_dtype: torch.dtype | None = None,
    fill: bool = False,
) -> torch.Tensor:
    """Return logits; the contract is h20_ops.mqa_logits_paged's. Everything past the end is -inf."""
    rows, heads = check_mqa_logits_paged(
        q,
        q_sf,
        cache,
        weights,
        klen,
        block_tables,
        max_kv_len,
        candidate_blocks,
        candidate_block_size,
    )
    page_size = cache.shape[1]
    columns = max_kv_len
    if candidate_blocks is not None:
        columns = candidate_blocks.shape[1] * candidate_block_size
    dtype = out_dtype or torch.bfloat16
    logits = empty_logits(rows, columns, dtype, q.device)
    pages = min(block_tables.shape[1], -(-max_kv_len // page_size))
    if rows == 0 or pages == 0:
        return logits
    positions = pages * page_size
    step = max(1, _CHUNK_BYTES // (positions * (heads + 128) * 4))
    for start in range(0, rows, step):
        at = slice(start, start + step)
        lengths = klen[at].long().clamp(0, min(max_kv_len, positions))
        # entries of a block table behind the length may be anything; page 0 stands in for them
        first = torch.arange(pages, device=q.device) * page_size
        table = torch.where(first < lengths.unsqueeze(1), block_tables[at, :pages], 0)
        keys = decode_pages(cache, table).flatten(1, 2)
        seen = torch.arange(positions, device=q.device) < lengths.unsqueeze(1)
        keys = keys.masked_fill(~seen.unsqueeze(-1), 0.0)
        scores = score(decode_index(q[at], q_sf[at]), keys, weights[at])
        if candidate_blocks is None:
            width = min(max_kv_len, positions)
            offsets = torch.arange(width, device=q.device).expand(lengths.shape[0], -1)
            valid = offsets < lengths.unsqueeze(1)
        else:
            offsets, valid = candidate_columns(candidate_blocks[at], candidate_block_size, lengths)
        found = scores.gather(1, torch.where(valid, offsets, torch.zeros_like(offsets)))
        found = found.masked_fill(~valid, -torch.inf)
        logits[at, : found.shape[1]] = found.to(dtype)
    return logits
