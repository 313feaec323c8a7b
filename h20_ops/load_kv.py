"""Load V4.1 cache records as bf16 rows on SM90."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from h20_ops.kv_cache import KvLayout


def load_kv(k_cache: torch.Tensor, slots: torch.Tensor, *, layout: KvLayout) -> torch.Tensor:
    """Return the values of slots as bf16, exactly; what prefill attends to is built from this.

    Safe inside a CUDA graph. Records that are not asked for are never read.

    Args:
        k_cache: uint8, (pages, page_size, 1, layout.bytes_per_token); base and stride(0) multiples
            of 16 bytes.
        slots: int32, (num_rows,), page * page_size + position; a negative one gives zeros. No upper
            bound is checked.
        layout: V41_FP8 or V41_FP4.
    Returns:
        bf16, (num_rows, 512), contiguous.
    """
    import torch

    from h20_ops.cuda.kv_records_kernel import launch
    from h20_ops.kv_cache.row_arguments import check_kv_rows

    check_kv_rows(k_cache, slots, None, layout)
    rows = torch.empty((slots.shape[0], 512), dtype=torch.bfloat16, device=k_cache.device)
    launch("load", k_cache, slots, rows, layout)
    return rows
