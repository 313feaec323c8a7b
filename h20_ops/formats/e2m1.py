"""FP4 e2m1: four-bit codes, their values, their rounding and the order of two in a byte.

Code bit 3 is the sign; the low three bits count 0, 0.5, 1, 1.5, 2, 3, 4, 6. No infinity, no NaN.
A packed byte holds the even channel in its low nibble and the odd channel in its high nibble.
"""

from __future__ import annotations

import torch

E2M1_MAX = 6.0
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Halfway points between neighbours. A tie goes to the even code, so codes 1, 3, 5, 7 need a value
# strictly above the point below them and the even codes 2, 4, 6 take the point itself.
_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def encode_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Round to the nearest e2m1 code, ties to the even code, saturating at 6.

    Args:
        values: floating, any shape. NaN becomes +6 and -0 keeps its sign, as the SM100
            instruction does.
    Returns:
        uint8, same shape, codes 0..15, one per element.
    """
    values = values.float()
    magnitude = values.abs()
    code = torch.zeros_like(magnitude, dtype=torch.uint8)
    for step, midpoint in enumerate(_MIDPOINTS, start=1):
        above = magnitude >= midpoint if step % 2 == 0 else magnitude > midpoint
        code += above.to(torch.uint8)
    code |= torch.signbit(values).to(torch.uint8) << 3
    return torch.where(values.isnan(), torch.full_like(code, 7), code)


def decode_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """Return the fp32 values of uint8 codes 0..15, any shape; 8 gives -0."""
    assert codes.dtype == torch.uint8, f"codes must be uint8, got {codes.dtype}"
    positive = torch.tensor(MAGNITUDES, device=codes.device)
    return torch.cat((positive, -positive))[codes.long()]


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Pack codes (..., 2n) into bytes (..., n): even element low, odd element high."""
    assert codes.dtype == torch.uint8, f"codes must be uint8, got {codes.dtype}"
    assert codes.shape[-1] % 2 == 0, f"last dimension must be even, got {tuple(codes.shape)}"
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Unpack bytes (..., n) into codes (..., 2n), low nibble first; int8 and uint8 agree."""
    assert packed.dtype in (torch.uint8, torch.int8), f"packed must be 8-bit, got {packed.dtype}"
    data = packed.view(torch.uint8)
    return torch.stack((data & 0x0F, data >> 4), dim=-1).flatten(-2)
