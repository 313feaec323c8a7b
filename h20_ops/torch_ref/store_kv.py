"""Store rows as cache records in plain torch: the twin of h20_ops.store_kv, for every layout."""

from __future__ import annotations

import torch

from h20_ops.kv_cache.layouts import KvLayout
from h20_ops.kv_cache.records import write_kv
from h20_ops.kv_cache.row_arguments import check_kv_rows


def store_kv(
    k_cache: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor, *, layout: KvLayout
) -> None:
    """Quantise rows by the engine's rule and write them at their slots, in place.

    Args:
        k_cache: uint8, (pages, page_size, 1, layout.bytes_per_token).
        slots: int32, (num_rows,); a negative one skips its row.
        kv: bf16, (num_rows, layout.head_dim).
        layout: any of h20_ops.kv_cache.LAYOUTS.
    """
    check_kv_rows(k_cache, slots, kv, layout)
    write_kv(k_cache, slots, kv, layout)
