"""Store rows as V4.1 cache records on SM90: quantise and write in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from h20_ops.kv_cache import KvLayout


def store_kv(
    k_cache: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor, *, layout: KvLayout
) -> None:
    """Quantise rows by the engine's rule and write them at their slots, in place.

    Safe inside a CUDA graph. A row with NaN gets NaN scales for the groups that hold it.

    Args:
        k_cache: uint8, (pages, page_size, 1, layout.bytes_per_token); base and stride(0) multiples
            of 16 bytes.
        slots: int32, (num_rows,), page * page_size + position; a negative one skips its row. No
            upper bound is checked. Repeated slots keep any one of their rows.
        kv: bf16, (num_rows, 512), last dimension contiguous, rows 16-byte aligned.
        layout: V41_FP8 or V41_FP4.
    """
    from h20_ops.cuda.kv_records_kernel import launch
    from h20_ops.kv_cache.row_arguments import check_kv_rows

    check_kv_rows(k_cache, slots, kv, layout)
    launch("store", k_cache, slots, kv, layout)
