"""Indexer logits of decode rows on the engine's FP4 index pages.

On SM90 one kernel reads codes and exponents where they lie. CPU tensors go to the plain-torch twin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from h20_ops.cuda import mqa_logits_paged_kernel as kernel
from h20_ops.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

ROW_BYTES = 1024  # logits rows begin at multiples of this


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
    Safe inside a CUDA graph; lengths are read on the device only. A column's bits depend on its key
    and the row's queries alone, so candidate blocks give the dense logits bit for bit.

    On SM90 a vector becomes e4m3 numbers under one power of two: exactly while its four exponents
    lie within 14 of each other, else groups further below the largest are rounded to multiples of
    2^-15 of its scale. The tensor cores' FP8 sums keep about 13 bits below the largest product. Any
    key or query exponent 255 (NaN) makes its logits NaN.

    Args:
        q, q_sf, weights: as for mqa_logits_prefill, at most 64 heads on SM90 (32 and 64 are tuned).
        cache: uint8 (pages, page_size, 1, 68), any page size; a page's codes stand before its exponents. The
            page stride is free (a multiple of 4 bytes) and honoured; 64-bit offsets. Fastest where pages
            start at multiples of 16 bytes and hold a multiple of 8 entries.
        klen: int32 (rows,), entries each row sees; 0 gives a row of nothing.
        block_tables: int32 (rows, max_pages); entries behind the length are not read.
        max_kv_len: columns; column c is entry c of the sequence.
        candidate_blocks, candidate_block_size, out_dtype, fill: as for mqa_logits_prefill, blocks counted from 0.
    Returns:
        (rows, columns), as mqa_logits_prefill. Behind a row's end -inf up to the next multiple of 128
        columns, and anything beyond unless `fill`.
    """
    if not q.is_cuda:
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
    import torch

    call = prepare(
        q,
        q_sf,
        cache,
        weights,
        klen,
        block_tables,
        max_kv_len=max_kv_len,
        candidate_blocks=candidate_blocks,
        candidate_block_size=candidate_block_size,
        out_dtype=out_dtype or torch.bfloat16,
        fill=fill,
    )
    if call.params.rows > 0:
        with torch.cuda.device(q.device):
            kernel.launch(call.params, call.variant, _num_sms(q.device.index))
    return call.logits


@dataclass(frozen=True)
class Call:
    """What a launch takes and gives. `kept` are tensors that params points into."""

    params: kernel.Params
    variant: kernel.Variant
    logits: torch.Tensor
    kept: tuple[torch.Tensor | None, ...]


def prepare(
    q: torch.Tensor,
    q_sf: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    klen: torch.Tensor,
    block_tables: torch.Tensor,
    *,
    max_kv_len: int,
    candidate_blocks: torch.Tensor | None,
    candidate_block_size: int,
    out_dtype: torch.dtype,
    fill: bool,
) -> Call:
    """Check the arguments and lay out one launch."""
    import torch

    from h20_ops.arguments_index import check_mqa_logits_paged

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
    _check_supported(heads, out_dtype)
    columns = max_kv_len
    if candidate_blocks is not None:
        columns = candidate_blocks.shape[1] * candidate_block_size
        candidate_blocks = _dense_rows(candidate_blocks)
    per_row = ROW_BYTES // out_dtype.itemsize
    padded = -(-columns // per_row) * per_row
    out = torch.empty((rows, padded), dtype=out_dtype, device=q.device)
    q = q if _aligned(q, 16) else q.clone(memory_format=torch.contiguous_format)
    klen, block_tables = klen.contiguous(), _dense_rows(block_tables)
    page_size = cache.shape[1]
    page_stride = cache.stride(0) if cache.shape[0] > 1 else 0
    assert cache.data_ptr() % 4 == 0, f"cache: base {cache.data_ptr():#x}, want a multiple of 4"
    params = kernel.Params(
        q=q.data_ptr(),
        q_sf=q_sf.data_ptr(),
        cache=cache.data_ptr(),
        weights=weights.data_ptr(),
        lengths=klen.data_ptr(),
        tables=block_tables.data_ptr(),
        candidates=None if candidate_blocks is None else candidate_blocks.data_ptr(),
        out=out.data_ptr(),
        q_row_stride=q.stride(0),
        q_head_stride=q.stride(1),
        sf_row_stride=q_sf.stride(0),
        sf_head_stride=q_sf.stride(1),
        weight_row_stride=weights.stride(0),
        page_stride=page_stride,
        table_stride=block_tables.stride(0),
        candidate_stride=0 if candidate_blocks is None else candidate_blocks.stride(0),
        out_stride=padded,
        rows=rows,
        heads=heads,
        page_size=page_size,
        max_length=min(max_kv_len, block_tables.shape[1] * page_size),
        num_candidates=0 if candidate_blocks is None else candidate_blocks.shape[1],
        candidate_block=candidate_block_size or 1,
        columns=columns,
        fill=int(fill),
    )
    variant = kernel.Variant(
        heads=kernel.padded_heads(heads),
        aligned=cache.data_ptr() % 16 == 0 and page_stride % 16 == 0 and page_size % 8 == 0,
        fp32=out_dtype == torch.float32,
    )
    kept = (q, q_sf, cache, weights, klen, block_tables, candidate_blocks)
    return Call(params, variant, out[:, :columns], kept)


def _check_supported(heads: int, dtype: torch.dtype) -> None:
    import torch

    if not 0 < heads <= max(kernel.HEADS):
        raise UnsupportedError(
            f"{heads} query heads",
            f"1 to {max(kernel.HEADS)}",
            "call h20_ops.torch_ref.mqa_logits_paged for more",
        )
    if dtype not in (torch.bfloat16, torch.float32):
        raise UnsupportedError(
            f"logits as {dtype}", "bfloat16 or float32", "convert one of these afterwards"
        )


def _dense_rows(table: torch.Tensor) -> torch.Tensor:
    return table if table.stride(1) == 1 or table.shape[1] == 1 else table.contiguous()


def _aligned(tensor: torch.Tensor, size: int) -> bool:
    """Whether rows and heads of byte vectors all begin at multiples of `size`."""
    return tensor.data_ptr() % size == 0 and all(s % size == 0 for s in tensor.stride()[:2])


@lru_cache
def _num_sms(device: int) -> int:
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count)
