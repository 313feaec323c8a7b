"""FlashMLA's attention calls and its scheduling metadata, served by h20_ops.

torch and h20_ops are imported by the first call, so that the package imports anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from flash_mla.backend import operator

if TYPE_CHECKING:
    import torch

    from h20_ops.kv_cache import KvLayout


@dataclass(kw_only=True)
class SchedConfig:
    """What a metadata object was made for; one object serves one such combination."""

    b: int
    s_q: int
    h_q: int
    page_block_size: int
    h_k: int
    causal: bool
    is_fp8_kvcache: bool
    topk: int
    extra_page_block_size: int | None
    extra_topk: int | None
    enable_batch_invariant: bool


@dataclass
class FlashMLASchedMeta:
    """Scheduling state shared by calls of one shape: empty when made, filled by the first call.

    h20_ops schedules on the device, so the two tensors stay None; they are kept because callers
    copy the object attribute by attribute.
    """

    have_initialized: bool = False
    config: SchedConfig | None = None
    tile_scheduler_metadata: torch.Tensor | None = None
    num_splits: torch.Tensor | None = None


def get_mla_metadata(*args: object, **kwargs: object) -> tuple[FlashMLASchedMeta, None]:
    """Return a fresh metadata object; arguments are accepted and ignored, as upstream does."""
    return FlashMLASchedMeta(), None


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sparse prefill: see h20_ops.sparse_mla_prefill.

    Args:
        q: bf16, (s_q, h_q, 512). kv: bf16, (s_kv, 1, 512). indices: int32, (s_q, 1, topk), < 0 or
            >= s_kv is no key. attn_sink: fp32, (h_q,). topk_length: int32, (s_q,).
    Returns:
        out bf16 (s_q, h_q, 512), max_logits and lse fp32 (s_q, h_q), natural logarithm.
    """
    prefill = operator("sparse_mla_prefill")
    out, max_logits, lse = prefill(
        q, kv, indices, sm_scale=sm_scale, d_v=d_v, attn_sink=attn_sink, topk_length=topk_length
    )
    return out, max_logits, lse


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    head_dim_v: int,
    tile_scheduler_metadata: FlashMLASchedMeta,
    num_splits: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = True,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    enable_batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sparse paged decode over one or two caches: see h20_ops.sparse_mla_decode.

    Args:
        q: bf16, (b, s_q, h_q, 512).
        k_cache: one byte per element, (pages, page_size, 1, 528), records token by token.
        block_table, cache_seqlens: ignored; indices are physical slots.
        tile_scheduler_metadata: shared by calls of one shape; checked to be.
        indices: int32, (b, s_q, topk), -1 is no slot. extra_k_cache: records of 528 or 288 bytes.
        extra_indices_in_kvcache: int32, (b, s_q, extra_topk). topk_length, extra_topk_length: (b,).
    Returns:
        out bf16 (b, s_q, h_q, 512), lse fp32 (b, h_q, s_q), natural logarithm.
    """
    import torch

    from h20_ops.kv_cache import V41_FP4, V41_FP8

    assert isinstance(tile_scheduler_metadata, FlashMLASchedMeta), (
        f"tile_scheduler_metadata: FlashMLASchedMeta expected, got {type(tile_scheduler_metadata)}"
    )
    assert num_splits is None, f"num_splits must be None, got {type(num_splits)}"
    assert indices is not None, "indices are required: this is sparse attention"
    assert not causal, "causal must be False with indices"
    assert is_fp8_kvcache, "is_fp8_kvcache must be True with indices"
    assert head_dim_v == 512, f"head_dim_v: 512 expected, got {head_dim_v}"
    assert (extra_k_cache is None) == (extra_indices_in_kvcache is None), (
        "extra_k_cache and extra_indices_in_kvcache come together"
    )
    assert q.ndim == 4 and indices.ndim == 3 and k_cache.ndim == 4, (
        f"q (b, s_q, h_q, 512), indices (b, s_q, topk), k_cache (pages, page_size, 1, bytes): "
        f"got {tuple(q.shape)}, {tuple(indices.shape)}, {tuple(k_cache.shape)}"
    )
    layout = _layout_of(k_cache, "k_cache", {528: V41_FP8})
    extra_layout = None
    if extra_k_cache is not None:
        known = {528: V41_FP8, 288: V41_FP4}
        extra_layout = _layout_of(extra_k_cache, "extra_k_cache", known)
    config = SchedConfig(
        b=q.shape[0],
        s_q=q.shape[1],
        h_q=q.shape[2],
        page_block_size=k_cache.shape[1],
        h_k=k_cache.shape[2],
        causal=causal,
        is_fp8_kvcache=is_fp8_kvcache,
        topk=indices.shape[2],
        extra_page_block_size=None if extra_k_cache is None else extra_k_cache.shape[1],
        extra_topk=(
            None if extra_indices_in_kvcache is None else extra_indices_in_kvcache.shape[2]
        ),
        enable_batch_invariant=enable_batch_invariant,
    )
    _check_reuse(tile_scheduler_metadata, config)
    decode = operator("sparse_mla_decode")
    out, lse = decode(
        q,
        k_cache.view(torch.uint8),
        indices,
        sm_scale=q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
        layout=layout,
        attn_sink=attn_sink,
        topk_length=topk_length,
        extra_k_cache=None if extra_k_cache is None else extra_k_cache.view(torch.uint8),
        extra_layout=extra_layout,
        extra_indices=extra_indices_in_kvcache,
        extra_topk_length=extra_topk_length,
        batch_invariant=enable_batch_invariant,
    )
    tile_scheduler_metadata.config = config
    tile_scheduler_metadata.have_initialized = True
    return out, lse


def _layout_of(cache: torch.Tensor, name: str, known: dict[int, KvLayout]) -> KvLayout:
    import torch

    assert cache.dtype in (torch.uint8, torch.int8, torch.float8_e4m3fn), (
        f"{name}: uint8, int8 or float8_e4m3fn expected, got {cache.dtype}"
    )
    width = cache.shape[-1]
    assert width in known, f"{name}: {sorted(known)} bytes per token are known, got {width}"
    return known[width]


def _check_reuse(metadata: FlashMLASchedMeta, config: SchedConfig) -> None:
    """Assert that an object already in use is used for the same combination again."""
    if not metadata.have_initialized:
        return
    before = metadata.config
    assert before is not None, "metadata says have_initialized but has no config"
    for field in fields(config):
        was, now = getattr(before, field.name), getattr(config, field.name)
        assert was == now, (
            f"{field.name}: this metadata object was made for {was}, now called with {now}; "
            "use one object per combination"
        )
