"""The index copies that put projection weights into the order of the fused SM100 kernel.

Queries come out as chunks of 16 channels, all heads of a chunk together; attention output goes in
as chunks of 32 channels, the eight heads of a group together. Scales move with what they scale.
"""

from __future__ import annotations

import torch

Q_CHUNK = 16
OUT_CHUNK = 32
SCALES_PER_WORD = 4


def permute_q_b_proj(
    weight_and_scales: tuple[torch.Tensor, torch.Tensor], h_q: int, d_q: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return new tensors whose row (d / 16) * 16 * h_q + 16 * h + d % 16 is the old row (h, d).

    Args:
        weight_and_scales: e4m3 (h_q * d_q, rank), and int32 (h_q * d_q, rank / gran / 4) of packed
            ue8m0 with stride(0) = 1; gran is 32 or 128.
    """
    weight, scales = weight_and_scales
    rows = h_q * d_q
    assert d_q % Q_CHUNK == 0, f"d_q {d_q} is not a multiple of {Q_CHUNK}"
    assert weight.element_size() == 1 and weight.ndim == 2 and weight.shape[0] == rows, (
        f"weight: e4m3 ({rows}, rank) expected, got {weight.dtype} {tuple(weight.shape)}"
    )
    assert scales.dtype == torch.int32 and scales.ndim == 2 and scales.shape[0] == rows, (
        f"scales: int32 ({rows}, *) expected, got {scales.dtype} {tuple(scales.shape)}"
    )
    assert scales.stride(0) == 1, f"scales: stride(0) 1 expected, got {scales.stride()}"
    rank, words = weight.shape[1], scales.shape[1]
    known = {gran: -(-rank // (gran * SCALES_PER_WORD)) for gran in (32, 128)}
    assert words in known.values(), (
        f"scales: words per row by channels per scale {known} expected for rank {rank}, got {words}"
    )
    old_row = torch.arange(rows, device=weight.device).view(h_q, d_q // Q_CHUNK, Q_CHUNK)
    order = old_row.transpose(0, 1).reshape(-1)
    permuted = weight.view(torch.uint8)[order].view(weight.dtype)
    return permuted, _like(scales, scales[order])


def permute_wv_proj(
    weight_and_scales: tuple[torch.Tensor, torch.Tensor], wv_group_size: int, d_o: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return new tensors whose 32-column chunk c * 8 + h is the old chunk (h, c).

    Args:
        weight_and_scales: e4m3 (groups, n, 8 * 512), and int32 (groups, n, 8 * 512 / 32 / 4) of
            packed ue8m0, four scales per word in the order of the columns, with stride(1) = 1.
        wv_group_size: heads per group, 8. d_o: channels per head, 512.
    """
    weight, scales = weight_and_scales
    assert wv_group_size == 8 and d_o == 512, (
        f"wv_group_size 8 and d_o 512 expected, got {wv_group_size} and {d_o}"
    )
    columns = wv_group_size * d_o
    assert weight.element_size() == 1 and weight.ndim == 3 and weight.shape[2] == columns, (
        f"weight: e4m3 (groups, n, {columns}) expected, got {weight.dtype} {tuple(weight.shape)}"
    )
    wanted = (*weight.shape[:2], columns // OUT_CHUNK // SCALES_PER_WORD)
    assert scales.dtype == torch.int32 and tuple(scales.shape) == wanted, (
        f"scales: int32 {wanted} expected, got {scales.dtype} {tuple(scales.shape)}"
    )
    assert scales.stride(1) == 1, f"scales: stride(1) 1 expected, got {scales.stride()}"
    chunks = d_o // OUT_CHUNK
    order = torch.arange(wv_group_size * chunks, device=weight.device)
    order = order.view(wv_group_size, chunks).t().reshape(-1)
    by_chunk = weight.view(torch.uint8).unflatten(2, (-1, OUT_CHUNK))
    permuted = by_chunk[:, :, order].flatten(2).view(weight.dtype)
    scale_bytes = scales.contiguous().view(torch.uint8)[..., order].contiguous()
    return permuted, _like(scales, scale_bytes.view(torch.int32))


def _like(template: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Copy values into a new tensor with the template's strides."""
    fresh = torch.empty_strided(
        tuple(template.shape), template.stride(), dtype=template.dtype, device=template.device
    )
    return fresh.copy_(values)
