"""Sparse paged MLA decode on SM90, reading FP8 and FP4 cache records directly."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from h20_ops.cuda import sparse_mla_decode_kernel as kernel
from h20_ops.errors import DeviceError, UnsupportedError

if TYPE_CHECKING:
    import torch

    from h20_ops.kv_cache import KvLayout


def sparse_mla_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    sm_scale: float,
    layout: KvLayout,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_layout: KvLayout | None = None,
    extra_indices: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to listed slots of one or two paged caches under one softmax.

    A slot is page * page_size + position in the page; -1 marks no slot and may stand anywhere.
    Position k of an index row counts if it is not -1 and k < topk_length of its batch row. Records
    that no row lists are never read. The e4m3 code NaN in a listed FP8 value reads as +-480.

    Args:
        q: bf16, (b, s_q, h_q, 512), h_q a multiple of 64; strides multiples of 8 elements.
        k_cache: uint8, (pages, page_size, 1, 528), base and stride(0) multiples of 16 bytes.
        indices: int32, (b, s_q, topk).
        sm_scale: factor of the logits, positive.
        layout: how k_cache's bytes are arranged: V41_FP8.
        attn_sink: fp32, (h_q,); a logit that only enlarges the denominator.
        topk_length, extra_topk_length: int32, (b,).
        extra_k_cache, extra_layout, extra_indices: the second scope, given together; V41_FP8 or
            V41_FP4 (288 bytes).
        batch_invariant: give a row the same bits whatever the other rows and their number are.
            Without it the same call still gives the same bits every time.
    Returns:
        out: bf16, (b, s_q, h_q, 512), contiguous.
        lse: fp32, (b, h_q, s_q), a transposed view of (b, s_q, h_q); natural log, without the sink.
        A row with nothing valid gets out 0 and lse +inf.
    """
    import torch

    from h20_ops.arguments import check_sparse_mla_decode

    b, s_q, h_q, topk, extra_topk = check_sparse_mla_decode(
        q,
        k_cache,
        indices,
        layout,
        attn_sink,
        topk_length,
        extra_k_cache,
        extra_layout,
        extra_indices,
        extra_topk_length,
    )
    if not q.is_cuda:
        raise DeviceError(
            f"q is on {q.device}",
            "tensors on an SM90 device (H20, H100, H200)",
            "move them there, or call h20_ops.torch_ref.sparse_mla_decode",
        )
    extra_kind = _check_supported(h_q, layout, extra_layout)
    assert sm_scale > 0, f"sm_scale: a positive factor expected, got {sm_scale}"
    out = torch.empty((b, s_q, h_q, 512), dtype=torch.bfloat16, device=q.device)
    lse = torch.empty((b, s_q, h_q), dtype=torch.float32, device=q.device)
    q = q if all(stride % 8 == 0 for stride in q.stride()[:3]) else q.contiguous()
    assert q.data_ptr() % 16 == 0, f"q: a 16-byte aligned base expected, got {q.data_ptr():#x}"
    groups = h_q // kernel.HEADS
    splits = kernel.choose_splits(
        b * s_q * groups, topk, extra_topk, _num_sms(q.device.index), batch_invariant
    )
    pieces = b * s_q * groups * splits
    partial_out = partial_stats = None
    if splits > 1:
        shape = (pieces, kernel.HEADS)
        partial_out = torch.empty((*shape, 512), dtype=torch.float32, device=q.device)
        partial_stats = torch.empty((*shape, 2), dtype=torch.float32, device=q.device)
    params = kernel.Params(
        main=_scope("k_cache", k_cache, indices, topk_length),
        extra=_scope("extra_k_cache", extra_k_cache, extra_indices, extra_topk_length),
        q=_address(q),
        q_strides=(ctypes.c_int64 * 3)(*q.stride()[:3]),
        sink=_address(attn_sink),
        out=_address(out),
        lse=_address(lse),
        partial_out=_address(partial_out),
        partial_stats=_address(partial_stats),
        queries=s_q,
        heads=h_q,
        splits=splits,
        scale_log2=sm_scale * kernel.LOG2E,
    )
    with torch.cuda.device(q.device):
        kernel.launch(params, b * s_q, extra_kind)
    return out, lse.transpose(1, 2)


def _check_supported(h_q: int, layout: KvLayout, extra_layout: KvLayout | None) -> int:
    """Return the kernel's extra kind, or raise for what no kernel reads."""
    extra_name = extra_layout.name if extra_layout is not None else None
    if layout.name != "v41_fp8" or extra_name not in kernel.EXTRA_KINDS:
        raise UnsupportedError(
            f"layouts {layout} and {extra_layout}",
            "v41_fp8 alone, or with an extra v41_fp8 or v41_fp4 cache",
            "call h20_ops.torch_ref.sparse_mla_decode for other records",
        )
    if h_q % kernel.HEADS != 0:
        raise UnsupportedError(
            f"{h_q} query heads",
            f"a multiple of {kernel.HEADS}",
            "pad q with zero heads and drop their outputs",
        )
    return kernel.EXTRA_KINDS[extra_name]


def _scope(
    name: str,
    cache: torch.Tensor | None,
    indices: torch.Tensor | None,
    lengths: torch.Tensor | None,
) -> kernel.Scope:
    if cache is None or indices is None:
        return kernel.Scope(page_size=1)
    page_stride = cache.stride(0) if cache.shape[0] > 1 else 0
    aligned = cache.data_ptr() % 16 == 0 and page_stride % 16 == 0
    assert aligned, (
        f"{name}: base and stride(0) must be multiples of 16 bytes, got base "
        f"{cache.data_ptr():#x}, stride(0) {page_stride}"
    )
    multiplier, shift = kernel.divider(cache.shape[1])
    return kernel.Scope(
        cache=_address(cache),
        indices=_address(indices),
        lengths=_address(lengths),
        page_stride=page_stride,
        batch_stride=indices.stride(0),
        query_stride=indices.stride(1),
        page_size=cache.shape[1],
        page_multiplier=multiplier,
        page_shift=shift,
        topk=indices.shape[2],
    )


def _address(tensor: Any) -> int | None:
    return None if tensor is None else int(tensor.data_ptr())


@lru_cache
def _num_sms(device: int) -> int:
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count)
