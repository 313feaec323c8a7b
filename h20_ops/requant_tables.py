"""Byte tables for turning FP4 and FP8 weights into FP8 under a coarser power-of-two scale.

With power-of-two scales a value's new code depends on its old code and on how many binary places
its old scale lies below the new one, and on nothing else. So re-encoding is one look-up per byte.
The tables are made from h20_ops.formats, the one place that knows codes and rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from h20_ops.formats import decode_e2m1, decode_e4m3, encode_e4m3

# The largest input scale of a block is put at 2^6 of the new one: 6 * 2^6 = 384 is below 448.
FP4_HEADROOM = 6
# The farthest an exponent byte can lie below another; beyond about 20 places all values are zero.
FARTHEST = 254


@dataclass(frozen=True, kw_only=True)
class Table:
    """What each (places below the block's largest scale, old byte) becomes.

    codes: int16 (two e4m3 bytes, first the even element) for FP4, uint8 for FP8; (places, 256).
    num_inexact: uint8, values of the entry that changed.
    error: fp32, the largest change, in units of the new scale.
    exact_places: below this many places nothing ever changes.
    """

    codes: torch.Tensor
    num_inexact: torch.Tensor
    error: torch.Tensor
    exact_places: int

    @property
    def places(self) -> int:
        return int(self.codes.shape[0])


@lru_cache(maxsize=8)
def fp4_table(device: torch.device) -> Table:
    """Give the table for a byte of two e2m1 codes, the even element in the low nibble."""
    nibbles = torch.arange(256, dtype=torch.int64)
    pair = torch.stack([nibbles & 15, nibbles >> 4], dim=-1)
    values = decode_e2m1(pair.to(torch.uint8)).double()
    codes, error = _encode(values, FARTHEST + 1, FP4_HEADROOM)
    packed = codes[..., 0].to(torch.int32) | (codes[..., 1].to(torch.int32) << 8)
    return Table(
        codes=packed.to(torch.int16).to(device),
        num_inexact=(error != 0).sum(dim=-1).to(torch.uint8).to(device),
        error=error.amax(dim=-1).float().to(device),
        exact_places=_exact_places(error),
    )


@lru_cache(maxsize=8)
def fp8_table(device: torch.device) -> Table:
    """Give the table for an e4m3 byte; NaN codes stay NaN and count as unchanged."""
    old = torch.arange(256, dtype=torch.int64).to(torch.uint8)
    values = decode_e4m3(old).double()
    is_nan = values.isnan()
    codes, error = _encode(values.nan_to_num(0.0), FARTHEST + 1, 0)
    codes = torch.where(is_nan, old, codes)
    return Table(
        codes=codes.to(device),
        num_inexact=(error != 0).to(torch.uint8).to(device),
        error=error.float().to(device),
        exact_places=_exact_places(error),
    )


def _encode(values: torch.Tensor, places: int, headroom: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Give codes uint8 and errors fp64, (places, *values.shape)."""
    factors = torch.exp2(headroom - torch.arange(places, dtype=torch.float64))
    exact = values * factors.view(-1, *[1] * values.dim())
    codes = encode_e4m3(exact)
    return codes, (decode_e4m3(codes).double() - exact).abs()


def _exact_places(error: torch.Tensor) -> int:
    """Count the leading places without an error."""
    return int((error.flatten(1) == 0).all(dim=1).long().cumprod(dim=0).sum())
