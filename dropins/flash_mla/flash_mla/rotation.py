"""Layouts and interleaved RoPE around the composed attention of fused_norm_rope_attn_rope_cast."""

from __future__ import annotations

import torch

from flash_mla.permutations import OUT_CHUNK, Q_CHUNK
from h20_ops.formats import GROUP_RULES, quantise_groups

ROPE_DIM = 64


def rotate(
    x: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, *, conjugate: bool
) -> torch.Tensor:
    """Rotate pairs (even, odd) of the last 64 channels in fp32.

    Args:
        x: (tokens, heads, d). positions: int32, (tokens,).
        cos_sin_cache: fp32, (positions, 64): 32 cosines, then 32 sines.
        conjugate: rotate back.
    Returns:
        fp32, (tokens, heads, d).
    """
    x = x.float()
    cos, sin = cos_sin_cache[positions.long()].unsqueeze(1).split(ROPE_DIM // 2, dim=-1)
    sin = -sin if conjugate else sin
    even, odd = x[..., -ROPE_DIM::2], x[..., -ROPE_DIM + 1 :: 2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return torch.cat((x[..., :-ROPE_DIM], turned.flatten(-2)), dim=-1)


def queries_in_order(q: torch.Tensor) -> torch.Tensor:
    """Return (tokens, heads, d) with channel d of head h at [h, d], from the permuted projection.

    A token's element (h, d) arrives at (d / 16) * 16 * heads + 16 * h + d % 16 of its row.
    """
    tokens, heads, width = q.shape
    assert q.stride(1) == width and q.stride(2) == 1, f"q: dense tokens expected, got {q.stride()}"
    rows = q.reshape(tokens, width // Q_CHUNK, heads, Q_CHUNK)
    return rows.transpose(1, 2).reshape(tokens, heads, width)


def cast_output(out: torch.Tensor, n_wv_group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cast attention output to FP8 per 32 channels, in the order the wv projection expects.

    Args:
        out: fp32, (tokens, heads, d).
    Returns:
        out_fp8: e4m3, (tokens, groups, heads / groups * d); chunk (h, c) of 32 channels is at
            chunk c * heads_per_group + h.
        out_sf: int32, (tokens, groups, heads / groups * d / 128), four ue8m0 in a word, stride(0) 1
            and tokens padded to a multiple of 4.
    """
    tokens, heads, width = out.shape
    per_group = heads // n_wv_group
    codes, scales = quantise_groups(out, GROUP_RULES["fp8_32_ue8m0"])
    grouped = codes.view(tokens, n_wv_group, per_group, width // OUT_CHUNK, OUT_CHUNK)
    out_fp8 = grouped.transpose(2, 3).reshape(tokens, n_wv_group, per_group * width)
    ordered = scales.view(tokens, n_wv_group, per_group, -1).transpose(2, 3)
    words = ordered.reshape(tokens, n_wv_group, -1).contiguous().view(torch.int32)
    padded = -(-tokens // 4) * 4
    out_sf = torch.empty_strided(
        (tokens, n_wv_group, words.shape[2]),
        (1, words.shape[2] * padded, padded),
        dtype=torch.int32,
        device=out.device,
    )
    out_sf.copy_(words)
    return out_fp8.view(torch.float8_e4m3fn), out_sf
