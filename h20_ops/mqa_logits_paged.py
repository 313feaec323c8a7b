"""Indexer logits of decode rows on the engine's FP4 index pages.

Served by plain torch so far, on any device: right, and not fast. Its work space grows with rows x
(heads + 128) x positions in chunks of 256 MiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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
    """Return sum over heads of weight * relu(q . k) for each row and the entries of its pages.

    Every row has a length and a block table of its own, so rows of one request need no special case.

    Args:
        q, q_sf, weights: as for mqa_logits_prefill.
        cache: uint8 (pages, page_size, 1, 68), any page size; a page's codes stand before its exponents. The
            page stride is free (a multiple of 4 bytes) and honoured; 64-bit offsets.
        klen: int32 (rows,), entries each row sees; 0 gives a row of nothing.
        block_tables: int32 (rows, max_pages); entries behind the length are not read.
        max_kv_len: columns; column c is entry c of the sequence.
        candidate_blocks, candidate_block_size, out_dtype, fill: as for mqa_logits_prefill, blocks counted from 0.
    Returns:
        (rows, columns), as mqa_logits_prefill.
    """
    from h20_ops.torch_ref.mqa_logits_paged import mqa_logits_paged as twin

    return twin(
        q,
        q_sf,
        cache,
        weights,
        klen,
        block_tables,
        max_kv_len=max_kv_len,
        candidate_blocks=candidate_blocks,
        candidate_block_size=candidate_block_size,
        out_dtype=out_dtype,
        fill=fill,
    )
