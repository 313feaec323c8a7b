"""Entry checks of the attention operators, shared by kernels and twins.

They look at shapes, dtypes, strides and devices only: no data is read, nothing synchronises.
"""

from __future__ import annotations

import torch

from h20_ops.kv_cache.layouts import KvLayout
from h20_ops.kv_cache.records import check_cache

HEAD_DIM = 512


def check_sparse_mla_prefill(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    d_v: int,
    attn_sink: torch.Tensor | None,
    topk_length: torch.Tensor | None,
) -> tuple[int, int, int, int]:
    """Assert the contract of sparse_mla_prefill; return (s_q, h_q, s_kv, topk)."""
    _check(q, "q", torch.bfloat16, (None, None, HEAD_DIM))
    _check(kv, "kv", torch.bfloat16, (None, 1, HEAD_DIM), device=q.device)
    s_q, h_q, s_kv = q.shape[0], q.shape[1], kv.shape[0]
    _check(indices, "indices", torch.int32, (s_q, 1, None), device=q.device)
    assert h_q > 0, f"q: at least one head expected, got {tuple(q.shape)}"
    assert d_v == HEAD_DIM, f"d_v: {HEAD_DIM} expected, got {d_v}"
    _check_optional(attn_sink, "attn_sink", torch.float32, (h_q,), q.device)
    _check_optional(topk_length, "topk_length", torch.int32, (s_q,), q.device)
    return s_q, h_q, s_kv, indices.shape[2]


def check_sparse_mla_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices: torch.Tensor,
    layout: KvLayout,
    attn_sink: torch.Tensor | None,
    topk_length: torch.Tensor | None,
    extra_k_cache: torch.Tensor | None,
    extra_layout: KvLayout | None,
    extra_indices: torch.Tensor | None,
    extra_topk_length: torch.Tensor | None,
) -> tuple[int, int, int, int, int]:
    """Assert the contract of sparse_mla_decode; return (b, s_q, h_q, topk, extra_topk)."""
    _check(q, "q", torch.bfloat16, (None, None, None, HEAD_DIM))
    b, s_q, h_q = q.shape[:3]
    assert b > 0 and s_q > 0 and h_q > 0, f"q: no dimension may be empty, got {tuple(q.shape)}"
    _check_scope(k_cache, indices, layout, b, s_q, q.device, "")
    given = [x is not None for x in (extra_k_cache, extra_layout, extra_indices)]
    assert all(given) or not any(given), (
        "extra_k_cache, extra_layout and extra_indices come together, got (present?) " + str(given)
    )
    extra_topk = 0
    if extra_k_cache is not None and extra_layout is not None and extra_indices is not None:
        _check_scope(extra_k_cache, extra_indices, extra_layout, b, s_q, q.device, "extra_")
        extra_topk = extra_indices.shape[2]
    else:
        assert extra_topk_length is None, "extra_topk_length without an extra_k_cache"
    _check_optional(attn_sink, "attn_sink", torch.float32, (h_q,), q.device)
    _check_optional(topk_length, "topk_length", torch.int32, (b,), q.device)
    _check_optional(extra_topk_length, "extra_topk_length", torch.int32, (b,), q.device)
    return b, s_q, h_q, indices.shape[2], extra_topk


def _check_scope(
    cache: torch.Tensor,
    indices: torch.Tensor,
    layout: KvLayout,
    b: int,
    s_q: int,
    device: torch.device,
    prefix: str,
) -> None:
    assert layout.head_dim == HEAD_DIM, f"{prefix}layout {layout}: head_dim {layout.head_dim}"
    check_cache(cache, layout, f"{prefix}k_cache")
    assert cache.device == device, f"{prefix}k_cache is on {cache.device}, q on {device}"
    _check(indices, f"{prefix}indices", torch.int32, (b, s_q, None), device=device)
    assert indices.shape[2] > 0, f"{prefix}indices: topk > 0 expected, got {tuple(indices.shape)}"


def _check(
    tensor: torch.Tensor,
    name: str,
    dtype: torch.dtype,
    shape: tuple[int | None, ...],
    device: torch.device | None = None,
) -> None:
    """Assert dtype, shape (None: any length), a contiguous last dimension and the device."""
    assert tensor.dtype == dtype, f"{name}: {dtype} expected, got {tensor.dtype}"
    wanted = "(" + ", ".join("*" if n is None else str(n) for n in shape) + ")"
    fits = tensor.ndim == len(shape) and all(
        want is None or got == want for got, want in zip(tensor.shape, shape, strict=False)
    )
    assert fits, f"{name}: shape {wanted} expected, got {tuple(tensor.shape)}"
    dense = tensor.stride(-1) == 1 or tensor.shape[-1] <= 1
    assert dense, f"{name}: last dimension must be contiguous, got strides {tensor.stride()}"
    assert device is None or tensor.device == device, f"{name} is on {tensor.device}, q on {device}"


def _check_optional(
    tensor: torch.Tensor | None,
    name: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    device: torch.device,
) -> None:
    if tensor is not None:
        _check(tensor, name, dtype, shape, device)
