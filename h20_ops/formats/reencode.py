"""Re-encode FP4 weights as FP8 with one scale per block, and say whether a bit was lost.

e4m3 holds e2m1 * 2^k exactly for k = -8..6. So with a power-of-two block scale that puts the
largest input scale at 2^6, blocks whose input scales span up to 2^14 are exact. A scale of
amax / 448 is not a power of two and rounds nearly every value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from h20_ops.formats.e2m1 import E2M1_MAX, decode_e2m1, unpack_nibbles
from h20_ops.formats.e4m3 import E4M3_MAX, decode_e4m3, encode_e4m3
from h20_ops.formats.ue8m0 import decode_ue8m0

_HEADROOM = 2.0**6  # 6 * 2^6 = 384, the largest e2m1 multiple below 448
_INPUT_GROUP = 32


@dataclass(frozen=True, kw_only=True)
class Reencoded:
    """FP8 values, their block scales and what the change of format cost.

    values: uint8 e4m3, (n, k). scales: fp32, (n / block_n, k / block_k).
    num_inexact: elements whose value changed. max_abs_error: the largest change.
    """

    values: torch.Tensor
    scales: torch.Tensor
    num_inexact: int
    max_abs_error: float

    @property
    def is_exact(self) -> bool:
        return self.num_inexact == 0

    def __str__(self) -> str:
        if self.is_exact:
            return f"exact: {self.values.numel()} elements unchanged"
        share = f"{self.num_inexact} of {self.values.numel()} elements changed"
        return f"lossy: {share}, by at most {self.max_abs_error:.3g}"


def reencode_fp4_as_fp8(
    packed: torch.Tensor,
    exponents: torch.Tensor,
    *,
    block: tuple[int, int] = (128, 128),
    scale_rule: Literal["power_of_two", "amax_over_448"] = "power_of_two",
) -> Reencoded:
    """Turn 32-wide MXFP4 into e4m3 with one fp32 scale per block.

    Args:
        packed: int8 or uint8, (n, k / 2), even element of the k axis in the low nibble.
        exponents: ue8m0 bytes, (n, k / 32).
        block: (block_n, block_k); n and k must be multiples.
        scale_rule: "power_of_two" (exact while scales in a block span at most 2^14), or
            "amax_over_448", which loses bits and exists to measure how many.
    """
    n, k = packed.shape[0], packed.shape[1] * 2
    block_n, block_k = block
    assert exponents.shape == (n, k // _INPUT_GROUP), (tuple(exponents.shape), n, k)
    assert n % block_n == 0 and k % block_k == 0, f"({n}, {k}) is not a multiple of {block}"
    assert block_k % _INPUT_GROUP == 0, f"block_k {block_k} is not a multiple of {_INPUT_GROUP}"
    input_scale = decode_ue8m0(exponents).double().repeat_interleave(_INPUT_GROUP, dim=1)
    exact = decode_e2m1(unpack_nibbles(packed)).double() * input_scale
    if scale_rule == "power_of_two":
        scales = _block_max(input_scale, block) / _HEADROOM
    else:
        amax = _block_max(exact.abs(), block)
        scales = torch.where(amax > 0, amax, torch.full_like(amax, E2M1_MAX)) / E4M3_MAX
    # fp64 holds every value and power-of-two quotient here exactly; fp32 scales are what is kept.
    kept_scales = scales.float()
    per_element = kept_scales.double().repeat_interleave(block_n, 0).repeat_interleave(block_k, 1)
    values = encode_e4m3(exact / per_element)
    error = (decode_e4m3(values).double() * per_element - exact).abs()
    return Reencoded(
        values=values,
        scales=kept_scales,
        num_inexact=int((error != 0).sum()),
        max_abs_error=float(error.max()) if error.numel() else 0.0,
    )


def _block_max(x: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    tiles = x.unflatten(1, (-1, block[1])).unflatten(0, (-1, block[0]))
    return tiles.amax(dim=(1, 3))
