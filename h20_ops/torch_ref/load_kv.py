"""Load cache records as bf16 in plain torch: the twin of h20_ops.load_kv, for every layout."""

from __future__ import annotations

import torch

from h20_ops.kv_cache.layouts import KvLayout
from h20_ops.kv_cache.records import read_kv
from h20_ops.kv_cache.row_arguments import check_kv_rows


def load_kv(k_cache: torch.Tensor, slots: torch.Tensor, *, layout: KvLayout) -> torch.Tensor:
    """Return the values of slots as bf16 (num_rows, layout.head_dim); a negative slot gives zeros.

    Exact for power-of-two scales and for e2m1 times e4m3; an fp32 scale is rounded once.

    Args:
        k_cache: uint8, (pages, page_size, 1, layout.bytes_per_token).
        slots: int32, (num_rows,).
        layout: any of h20_ops.kv_cache.LAYOUTS.
    """
    check_kv_rows(k_cache, slots, None, layout)
    return read_kv(k_cache, slots, layout).to(torch.bfloat16)
