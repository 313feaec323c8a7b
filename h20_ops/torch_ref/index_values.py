"""Indexer vectors as the engine holds them: 64 bytes of e2m1 codes and four ue8m0 exponents."""

from __future__ import annotations

import torch

from h20_ops.formats import decode_e2m1, decode_ue8m0, unpack_nibbles
from h20_ops.kv_cache import INDEX_MXFP4
from h20_ops.kv_cache.records import check_cache, field_view

HEAD_DIM = 128
PACKED_BYTES = HEAD_DIM // 2
GROUP = 32
ROW_BYTES = 1024  # upstream's readers want logits rows at multiples of this


def decode_index(codes: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Return fp32 (..., 128), exactly.

    Args:
        codes: int8 or uint8, (..., 64), the even channel in the low nibble.
        exponents: int32, (...), four exponents each, the lowest byte for channels 0..31.
    """
    scales = decode_ue8m0(exponents.contiguous().unsqueeze(-1).view(torch.uint8))
    values = decode_e2m1(unpack_nibbles(codes.contiguous().view(torch.uint8)))
    return (values.unflatten(-1, (-1, GROUP)) * scales.unsqueeze(-1)).flatten(-2)


def decode_pages(cache: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """Return fp32 (*pages.shape, page_size, 128) of whole pages; other pages are not read.

    Args:
        cache: uint8, (num_pages, page_size, 1, 68), a page's codes before its exponents; stride(0) free.
        pages: int32 or int64, any shape, within the cache.
    """
    check_cache(cache, INDEX_MXFP4)
    taken = pages.long()
    codes = field_view(cache, INDEX_MXFP4.values)[taken]
    stored = field_view(cache, INDEX_MXFP4.scales)[taken].contiguous()
    return decode_index(codes, stored.view(torch.int32).squeeze(-1))


def empty_logits(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return logits of -inf whose rows start at multiples of 1024 bytes."""
    per_row = ROW_BYTES // dtype.itemsize
    padded = -(-columns // per_row) * per_row
    return torch.full((rows, padded), -torch.inf, dtype=dtype, device=device)[:, :columns]


def score(q: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return sum over heads of weight * relu(q . key): fp32 (rows, keys).

    Args:
        q: fp32 (rows, heads, 128). keys: fp32 (keys, 128), or (rows, keys, 128).
        weights: (rows, heads).
    """
    shared = keys.dim() == 2
    dots = q.flatten(0, 1) @ keys.t() if shared else q @ keys.transpose(1, 2)
    if shared:
        dots = dots.unflatten(0, q.shape[:2])
    return torch.einsum("rhk,rh->rk", dots.relu_(), weights.float())


def candidate_columns(
    candidate_blocks: torch.Tensor, block: int, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each compact column's position in the sequence, and which columns are valid.

    Args:
        candidate_blocks: int32 (rows, blocks), ascending, -1 behind the last.
        lengths: (rows,). The first min(blocks, ceil(length / block)) slots count, whatever the rest holds.
    Returns:
        int64 and bool, (rows, blocks * block).
    """
    ids = candidate_blocks.long()
    slots = torch.arange(ids.shape[1], device=ids.device)
    used = slots < ((lengths.unsqueeze(1) + block - 1) // block)
    inside = torch.arange(block, device=ids.device)
    columns = (ids.unsqueeze(-1) * block + inside).flatten(1)
    is_used = (used & (ids >= 0)).repeat_interleave(block, dim=1)
    return columns, is_used & (columns < lengths.unsqueeze(1))
