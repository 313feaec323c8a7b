"""FP8 e4m3 (the finite-only kind): bytes, values and rounding.

Sign, four exponent bits (bias 7), three mantissa bits. Largest value 448, smallest positive 2^-9;
0x7F and 0xFF are NaN; there is no infinity.
"""

from __future__ import annotations

import torch

E4M3_MAX = 448.0


def encode_e4m3(values: torch.Tensor) -> torch.Tensor:
    """Round to the nearest e4m3 byte, ties to even, saturating at 448.

    Args:
        values: floating, any shape. NaN becomes 0x7F or 0xFF; -0 keeps its sign.
    Returns:
        uint8, same shape.
    """
    clamped = values.float().clamp(-E4M3_MAX, E4M3_MAX)
    return clamped.to(torch.float8_e4m3fn).view(torch.uint8)


def decode_e4m3(data: torch.Tensor) -> torch.Tensor:
    """Return the fp32 values of bytes (uint8, int8 or float8_e4m3fn), any shape."""
    assert data.element_size() == 1, f"data must have one byte per element, got {data.dtype}"
    return data.view(torch.float8_e4m3fn).float()
