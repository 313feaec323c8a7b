"""Indexer logits of prefill rows on the engine's FP4 tensors.

Served by plain torch so far, on any device: right, and not fast. Its work space grows with
rows x heads x keys in chunks of 256 MiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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
    """Return sum over heads of weight * relu(q . k) for each row and the keys of its range.

    Args:
        q, q_sf: int8 (rows, heads, 64) e2m1, the even channel in the low nibble, and int32 (rows, heads) of
            four ue8m0 exponents, the lowest byte for channels 0..31.
        k, k_sf: int8 (keys, 64), int32 (keys,), likewise.
        weights: bf16 (rows, heads), row stride a multiple of 16 bytes.
        ks, ke: int32 (rows,); row i sees keys ks[i] .. ke[i] - 1.
        max_kv_len: columns; column c of a row is key ks + c.
        candidate_blocks: int32 (rows, blocks): ascending block ids counted from ks, -1 behind the last. With
            them the columns are those of the blocks, one after the other, the same values bit for bit.
            The first min(blocks, ceil((ke - ks) / block)) slots count.
        candidate_block_size: 8 or 16.
        out_dtype: bf16 (the default, what SM100 selects on) or fp32.
        fill: also define the columns past the last tile of a row, as -inf.
    Returns:
        (rows, columns), row stride a multiple of 1024 bytes. Columns past a row's end are -inf up to
        the end of its last tile and unspecified beyond, unless fill.
    """
    from h20_ops.torch_ref.mqa_logits_prefill import mqa_logits_prefill as twin

    return twin(
        q,
        q_sf,
        k,
        k_sf,
        weights,
        ks,
        ke,
        max_kv_len=max_kv_len,
        candidate_blocks=candidate_blocks,
        candidate_block_size=candidate_block_size,
        out_dtype=out_dtype,
        fill=fill,
    )
