"""RoPE, attention, inverse RoPE and cast in one call, here as a composition of steps.

Upstream fuses these on SM100. On SM90 the consumer of its FP8 output does not exist either, so the
engine keeps them apart; this module makes the names importable, offers the real weight
permutations, and composes the rest from torch operations and the h20_ops attention for comparison.
"""

from __future__ import annotations

import torch

from flash_mla.backend import operator
from flash_mla.permutations import permute_q_b_proj as permute_q_b_proj
from flash_mla.permutations import permute_wv_proj as permute_wv_proj
from flash_mla.rotation import ROPE_DIM, cast_output, queries_in_order, rotate
from h20_ops.errors import UnsupportedError
from h20_ops.kv_cache import V41_FP4, V41_FP8

__all__ = ["decode", "permute_q_b_proj", "permute_wv_proj", "prefill"]


def prefill(
    enable_q_norm: bool,
    rms_norm_eps: float,
    token_positions: torch.Tensor,
    is_rope_neox_style: bool,
    rope_dim: int,
    cos_sin_cache: torch.Tensor,
    n_wv_group: int,
    num_per_channels: int,
    use_tma_aligned_col_major_sf: bool,
    round_sf: bool,
    use_packed_ue8m0: bool,
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attend permuted, unrotated queries to kv rows and return FP8 for the wv projection.

    Args:
        token_positions: int32, (s_q,). cos_sin_cache: fp32, (positions, 64).
        q: bf16, (s_q, h_q, 512), in the order of permute_q_b_proj, dense within a token.
        kv, indices, sm_scale, attn_sink, topk_length: as in flash_mla_sparse_fwd.
    Returns:
        out_fp8 (s_q, n_wv_group, h_q / n_wv_group * 512), out_sf int32, max_logits, lse.
    """
    flags = (use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0)
    _check_fixed(enable_q_norm, is_rope_neox_style, rope_dim, num_per_channels, flags)
    rotated = _rotated_queries(q, token_positions, cos_sin_cache)
    out, max_logits, lse = operator("sparse_mla_prefill")(
        rotated,
        kv,
        indices,
        sm_scale=sm_scale,
        d_v=d_v,
        attn_sink=attn_sink,
        topk_length=topk_length,
    )
    back = rotate(out, token_positions, cos_sin_cache, conjugate=True)
    out_fp8, out_sf = cast_output(back, n_wv_group)
    return out_fp8, out_sf, max_logits, lse


def decode(
    enable_q_norm: bool,
    rms_norm_eps: float,
    token_positions: torch.Tensor,
    is_rope_neox_style: bool,
    rope_dim: int,
    cos_sin_cache: torch.Tensor,
    n_wv_group: int,
    num_per_channels: int,
    use_tma_aligned_col_major_sf: bool,
    round_sf: bool,
    use_packed_ue8m0: bool,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices_in_kvcache: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As prefill, over one or two paged caches; lengths are per query.

    Args:
        q: bf16, (s_q, h_q, 512), permuted. k_cache: (pages, page_size, 1, 528).
        indices_in_kvcache: int32, (s_q, topk). extra_indices_in_kvcache: int32, (s_q, extra_topk).
        topk_length, extra_topk_length: int32, (s_q,).
    Returns:
        out_fp8 (s_q, n_wv_group, h_q / n_wv_group * 512), out_sf int32, lse fp32 (s_q, h_q).
    """
    assert d_v == 512, f"d_v: 512 expected, got {d_v}"
    flags = (use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0)
    _check_fixed(enable_q_norm, is_rope_neox_style, rope_dim, num_per_channels, flags)
    rotated = _rotated_queries(q, token_positions, cos_sin_cache)
    extra_layout = None
    if extra_k_cache is not None:
        extra_layout = V41_FP4 if extra_k_cache.shape[-1] == 288 else V41_FP8
    extra = extra_indices_in_kvcache
    out, lse = operator("sparse_mla_decode")(
        rotated.unsqueeze(1),
        k_cache.view(torch.uint8),
        indices_in_kvcache.unsqueeze(1),
        sm_scale=sm_scale,
        layout=V41_FP8,
        attn_sink=attn_sink,
        topk_length=topk_length,
        extra_k_cache=None if extra_k_cache is None else extra_k_cache.view(torch.uint8),
        extra_layout=extra_layout,
        extra_indices=None if extra is None else extra.unsqueeze(1),
        extra_topk_length=extra_topk_length,
    )
    back = rotate(out.squeeze(1), token_positions, cos_sin_cache, conjugate=True)
    out_fp8, out_sf = cast_output(back, n_wv_group)
    return out_fp8, out_sf, lse.squeeze(-1)


def _rotated_queries(
    q: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor
) -> torch.Tensor:
    assert positions.shape == (q.shape[0],), (
        f"token_positions: ({q.shape[0]},) expected, got {tuple(positions.shape)}"
    )
    assert cos_sin_cache.ndim == 2 and cos_sin_cache.shape[1] == ROPE_DIM, (
        f"cos_sin_cache: (positions, {ROPE_DIM}) expected, got {tuple(cos_sin_cache.shape)}"
    )
    rotated = rotate(queries_in_order(q), positions, cos_sin_cache, conjugate=False)
    return rotated.to(torch.bfloat16)


def _check_fixed(
    enable_q_norm: bool, neox: bool, rope_dim: int, num_per_channels: int, flags: tuple[bool, ...]
) -> None:
    """Refuse what upstream's kernel fixes, and the q norm, which V4.1 does not use."""
    assert not neox, "is_rope_neox_style must be False: pairs are interleaved"
    assert rope_dim == ROPE_DIM, f"rope_dim: {ROPE_DIM} expected, got {rope_dim}"
    assert num_per_channels == 32, f"num_per_channels: 32 expected, got {num_per_channels}"
    assert flags == (True, True, True), f"the three scale flags must be True, got {flags}"
    if enable_q_norm:
        raise UnsupportedError(
            "enable_q_norm=True",
            "False: the norm scales logits per head, which the SM90 attention cannot, and "
            "DeepSeek-V4.1 has no q norm",
            "normalise q before the call, or run on SM100",
        )
