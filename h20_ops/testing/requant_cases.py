"""Random weights to re-encode: packed FP4 and FP8 codes with exponents of a chosen spread."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from h20_ops.formats import decode_e2m1, decode_e4m3, decode_ue8m0, unpack_nibbles
from h20_ops.testing.seeds import generator_for

GROUP = 32
CENTRE = 127


def expert_case(
    shape: Sequence[int], spread: int, *, lowest: int | None = None, device: str = "cuda"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give uint8 (..., n, k / 2) and exponents (..., n, k / 32) that span 2^spread in each block.

    Args:
        shape: (..., n, k).
        lowest: the smallest exponent byte; by default the span lies around CENTRE.
    """
    *lead, n, k = shape
    rng = generator_for(f"expert {tuple(shape)} {spread}", device)
    packed = torch.randint(
        0, 256, (*lead, n, k // 2), dtype=torch.uint8, device=device, generator=rng
    )
    return packed, _exponents((*lead, n, k // GROUP), 128, spread, lowest, rng)


def dense_case(
    shape: Sequence[int], spread: int, *, lowest: int | None = None, device: str = "cuda"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give e4m3 (..., n, k), one in 500 of them NaN, and exponents (..., n / 32, k / 32)."""
    *lead, n, k = shape
    rng = generator_for(f"dense {tuple(shape)} {spread}", device)
    codes = torch.randint(0, 256, tuple(shape), dtype=torch.uint8, device=device, generator=rng)
    exponents = _exponents((*lead, n // GROUP, k // GROUP), 4, spread, lowest, rng)
    return codes.view(torch.float8_e4m3fn), exponents


def fp4_values(packed: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Give fp64 (..., n, k) of what expert_case gave."""
    per_value = decode_ue8m0(exponents).double().repeat_interleave(GROUP, dim=-1)
    return decode_e2m1(unpack_nibbles(packed)).double() * per_value


def fp8_values(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Give fp64 (..., n, k) of e4m3 values under fp32 scales of square blocks."""
    block = values.shape[-1] // scales.shape[-1]
    per_value = scales.double().repeat_interleave(block, -2).repeat_interleave(block, -1)
    return decode_e4m3(values.view(torch.uint8)).double() * per_value


def _exponents(
    shape: Sequence[int], rows: int, spread: int, lowest: int | None, rng: torch.Generator
) -> torch.Tensor:
    """uint8 of any shape; both ends of the span stand in each block of (rows, 4) exponents."""
    low = CENTRE - spread // 2 if lowest is None else lowest
    drawn = torch.randint(low, low + spread + 1, tuple(shape), device=rng.device, generator=rng)
    drawn[..., ::rows, ::4] = low
    drawn[..., rows - 1 :: rows, 3::4] = low + spread
    return drawn.to(torch.uint8)
