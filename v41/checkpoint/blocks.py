"""FP8 blocks of 32x32 and 128x128 with one power-of-two scale, and FP4 rows, as fp32 and back."""

from __future__ import annotations

import torch

from h20_ops.formats import (
    E4M3_MAX,
    GROUP_RULES,
    decode_e4m3,
    decode_ue8m0,
    dequantise_groups,
    encode_e4m3,
    encode_ue8m0,
    quantise_groups,
)

CHECKPOINT_BLOCK = 32
GEMM_BLOCK = 128
_AMAX_CLAMP = 1e-4
EXPERT_RULE = GROUP_RULES["fp4_32_ue8m0"]
ENGRAM_RULE = GROUP_RULES["fp8_32_ue8m0"]


def quantise_blocks(weight: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cast to e4m3 with one ue8m0 scale per block x block, rounded up.

    Args:
        weight: fp32, (N, K), any sizes; ragged blocks at the edges are allowed.
    Returns:
        codes uint8 (N, K) and scale bytes uint8 (ceil(N/block), ceil(K/block)).
    """
    tiles = _tiles(weight, block)
    amax = tiles.abs().amax(dim=(1, 3)).clamp_min(_AMAX_CLAMP)
    scales = encode_ue8m0(amax / E4M3_MAX)
    scaled = weight / _spread(decode_ue8m0(scales), weight.shape, block)
    return encode_e4m3(scaled), scales


def dequantise_blocks(codes: torch.Tensor, scales: torch.Tensor, block: int) -> torch.Tensor:
    """Return the fp32 values of e4m3 codes (N, K) under ue8m0 scale bytes; exact."""
    return decode_e4m3(codes) * _spread(decode_ue8m0(scales), codes.shape, block)


def requantise_to_gemm_blocks(weight: torch.Tensor) -> torch.Tensor:
    """Give the fp32 values that 128x128 blocks can hold of values held in smaller blocks.

    The scale of a block is the power of two that its largest value needs; values far below the
    largest lose bits, as they do in the SM90 port.
    """
    return dequantise_blocks(*quantise_blocks(weight, GEMM_BLOCK), GEMM_BLOCK)


def quantise_expert(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cast (N, K) to packed FP4 uint8 (N, K/2) with ue8m0 bytes (N, K/32).

    A group of zeros gets scale byte 0, which readers know as "nothing here"; the rule's own clamp
    would give 2^-126, which they refuse as implausible.
    """
    packed, scales = quantise_groups(weight, EXPERT_RULE)
    magnitudes = packed.unflatten(-1, (-1, EXPERT_RULE.group // 2)) & 0x77
    empty = (magnitudes == 0).all(dim=-1)
    return packed, scales.masked_fill(empty, 0)


def dequantise_expert(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return fp32 (N, K) of packed FP4; int8 and uint8 bytes agree."""
    return dequantise_groups(packed.view(torch.uint8), scales, EXPERT_RULE)


def _tiles(weight: torch.Tensor, block: int) -> torch.Tensor:
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % block, 0, -rows % block))
    return padded.unflatten(1, (-1, block)).unflatten(0, (-1, block))


def _spread(scales: torch.Tensor, shape: torch.Size, block: int) -> torch.Tensor:
    spread = scales.repeat_interleave(block, dim=0).repeat_interleave(block, dim=1)
    return spread[: shape[0], : shape[1]]
