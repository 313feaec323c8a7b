"""Cast rows to scaled FP8 or FP4, one scale per group of channels, by a named rule.

Rules differ in the group's width, in the value format, in how the scale is stored and in where the
group's largest magnitude is clamped; all of them show in stored bytes, so a rule is picked by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from h20_ops.formats.e2m1 import (
    E2M1_MAX,
    decode_e2m1,
    encode_e2m1,
    pack_nibbles,
    unpack_nibbles,
)
from h20_ops.formats.e4m3 import E4M3_MAX, decode_e4m3, encode_e4m3
from h20_ops.formats.ue8m0 import decode_ue8m0, encode_ue8m0


@dataclass(frozen=True, kw_only=True)
class GroupRule:
    """How a group of channels becomes codes and one scale.

    scale: "ue8m0" one byte, rounded up to a power of two; "fp32_pow2" the same as fp32; "fp32"
        amax/max as it is; "e4m3" one byte, linear, rounded to nearest.
    by_reciprocal: multiply by fp32 reciprocals where others divide. DeepInfer's 16-wide FP4 store
        does; a few ties then land on the neighbouring code.
    """

    values: Literal["e4m3", "e2m1"]
    group: int
    scale: Literal["ue8m0", "fp32_pow2", "fp32", "e4m3"]
    amax_clamp: float
    by_reciprocal: bool = False

    @property
    def max_value(self) -> float:
        return E4M3_MAX if self.values == "e4m3" else E2M1_MAX


_FP8_CLAMP = 1e-4
_MX_FP4_CLAMP = 6.0 * 2.0**-126
_KV_FP4_CLAMP = 6.0 * 2.0**-9  # smallest amax whose e4m3 scale is not zero

GROUP_RULES: dict[str, GroupRule] = {
    "fp8_32_ue8m0": GroupRule(values="e4m3", group=32, scale="ue8m0", amax_clamp=_FP8_CLAMP),
    "fp8_64_ue8m0": GroupRule(values="e4m3", group=64, scale="ue8m0", amax_clamp=_FP8_CLAMP),
    "fp8_128_fp32": GroupRule(values="e4m3", group=128, scale="fp32", amax_clamp=_FP8_CLAMP),
    "fp8_128_pow2": GroupRule(values="e4m3", group=128, scale="fp32_pow2", amax_clamp=_FP8_CLAMP),
    "fp4_32_ue8m0": GroupRule(values="e2m1", group=32, scale="ue8m0", amax_clamp=_MX_FP4_CLAMP),
    "fp4_16_e4m3": GroupRule(
        values="e2m1", group=16, scale="e4m3", amax_clamp=_KV_FP4_CLAMP, by_reciprocal=True
    ),
    "fp4_16_e4m3_divide": GroupRule(
        values="e2m1", group=16, scale="e4m3", amax_clamp=_KV_FP4_CLAMP
    ),
}


def quantise_groups(x: torch.Tensor, rule: GroupRule) -> tuple[torch.Tensor, torch.Tensor]:
    """Cast the last dimension in groups.

    Args:
        x: floating, (..., channels); channels a multiple of rule.group.
        rule: one of GROUP_RULES.
    Returns:
        codes: uint8, (..., channels) for e4m3, (..., channels / 2) for e2m1 (even channel low).
        scales: uint8 or fp32, (..., channels / rule.group), as stored.
    """
    num_channels = x.shape[-1]
    assert num_channels % rule.group == 0, f"{num_channels} channels, groups of {rule.group}"
    groups = x.float().unflatten(-1, (-1, rule.group))
    amax = groups.abs().amax(dim=-1).clamp_min(rule.amax_clamp)
    raw = _times(amax, rule.max_value, rule.by_reciprocal)
    if rule.scale == "e4m3":
        stored = encode_e4m3(raw)
    elif rule.scale == "fp32":
        stored = raw
    else:
        stored = encode_ue8m0(raw)
        stored = decode_ue8m0(stored) if rule.scale == "fp32_pow2" else stored
    scale = decode_scales(stored, rule).unsqueeze(-1)
    scaled = groups * (1.0 / scale) if rule.by_reciprocal else groups / scale
    flat = scaled.flatten(-2)
    codes = encode_e4m3(flat) if rule.values == "e4m3" else pack_nibbles(encode_e2m1(flat))
    return codes, stored


def dequantise_groups(codes: torch.Tensor, scales: torch.Tensor, rule: GroupRule) -> torch.Tensor:
    """Return fp32 (..., channels) from what quantise_groups gave; exact, no rounding occurs."""
    data = decode_e4m3(codes) if rule.values == "e4m3" else decode_e2m1(unpack_nibbles(codes))
    scale = decode_scales(scales, rule)
    return (data.unflatten(-1, (-1, rule.group)) * scale.unsqueeze(-1)).flatten(-2)


def decode_scales(stored: torch.Tensor, rule: GroupRule) -> torch.Tensor:
    """Return stored scales as fp32."""
    if rule.scale == "ue8m0":
        return decode_ue8m0(stored)
    if rule.scale == "e4m3":
        return decode_e4m3(stored)
    assert stored.dtype == torch.float32, f"fp32 scales expected, got {stored.dtype}"
    return stored


def _times(amax: torch.Tensor, max_value: float, by_reciprocal: bool) -> torch.Tensor:
    """amax / max_value, or amax * (1 / max_value) with both steps rounded to fp32."""
    limit = torch.tensor(max_value, dtype=torch.float32, device=amax.device)
    return amax * (1.0 / limit) if by_reciprocal else amax / limit
