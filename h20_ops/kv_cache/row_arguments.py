"""Entry checks of store_kv and load_kv, shared by kernels and twins; no data is read."""

from __future__ import annotations

import torch

from h20_ops.kv_cache.layouts import KvLayout
from h20_ops.kv_cache.records import check_cache


def check_kv_rows(
    k_cache: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor | None, layout: KvLayout
) -> None:
    """Assert the contract of store_kv and, with kv None, of load_kv."""
    check_cache(k_cache, layout, "k_cache")
    assert slots.dtype == torch.int32, f"slots: torch.int32 expected, got {slots.dtype}"
    assert slots.ndim == 1, f"slots: shape (num_rows,) expected, got {tuple(slots.shape)}"
    assert slots.device == k_cache.device, f"slots on {slots.device}, k_cache on {k_cache.device}"
    if kv is None:
        return
    wanted = (slots.shape[0], layout.head_dim)
    assert kv.dtype == torch.bfloat16, f"kv: torch.bfloat16 expected, got {kv.dtype}"
    assert tuple(kv.shape) == wanted, f"kv: shape {wanted} expected, got {tuple(kv.shape)}"
    assert kv.stride(1) == 1, f"kv: last dimension must be contiguous, got strides {kv.stride()}"
    assert kv.device == k_cache.device, f"kv on {kv.device}, k_cache on {k_cache.device}"
