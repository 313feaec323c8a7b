"""Fast twins of the reference's roundings for training: the same values, fewer kernels.

The tests hold them equal to v41.numerics and v41.checkpoint.blocks bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from v41.numerics import Numerics, straight_through
from v41.tensors import Storage


def _power_of_two_above(raw: torch.Tensor) -> torch.Tensor:
    """Round positive normal fp32 up to a power of two."""
    bits = raw.view(torch.int32)
    exponent = ((bits >> 23) & 0xFF) + ((bits & 0x7FFFFF) != 0).int()
    return (exponent << 23).view(torch.float32)


def _e4m3(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float()


def _e2m1(x: torch.Tensor) -> torch.Tensor:
    """Round to e2m1: steps of 0.5, 1 and 2, ties to the even code."""
    magnitude = x.abs().clamp_max(6.0)
    step = 0.5 + 0.5 * (magnitude >= 2.0).float() + (magnitude >= 4.0).float()
    return (magnitude / step).round() * step * x.sign()


def fp8_groups(x: torch.Tensor) -> torch.Tensor:
    """Round to e4m3 with a power-of-two scale per 32 of the last dimension."""
    grouped = x.detach().unflatten(-1, (-1, 32))
    scale = _power_of_two_above(grouped.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 448.0)
    return (_e4m3(grouped / scale) * scale).flatten(-2)


def fp4_groups(x: torch.Tensor) -> torch.Tensor:
    """Round to e2m1 with a power-of-two scale per 32 of the last dimension."""
    grouped = x.detach().unflatten(-1, (-1, 32))
    scale = _power_of_two_above(grouped.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-126) / 6)
    return (_e2m1(grouped / scale) * scale).flatten(-2)


def fp4_groups_e4m3(x: torch.Tensor) -> torch.Tensor:
    """Round to e2m1 with an e4m3 scale per 16 of the last dimension."""
    grouped = x.detach().unflatten(-1, (-1, 16))
    amax = grouped.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-9)
    scale = _e4m3(amax * (1.0 / torch.full((), 6.0)))
    return (_e2m1(grouped * (1.0 / scale)) * scale).flatten(-2)


def fp8_blocks(weight: torch.Tensor) -> torch.Tensor:
    """Round (N, K), multiples of 32, to e4m3 with a power-of-two scale per 32x32 block."""
    tiles = weight.detach().unflatten(1, (-1, 32)).unflatten(0, (-1, 32))
    scale = _power_of_two_above(tiles.abs().amax((1, 3), keepdim=True).clamp_min(1e-4) / 448.0)
    return (_e4m3(tiles / scale) * scale).flatten(2).flatten(0, 1)


@dataclass(frozen=True, kw_only=True)
class TrainingNumerics(Numerics):
    """Mode "trained" (or "exact") in fewer kernels."""

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        return straight_through(x, fp8_groups(x)) if self.rounds else x

    def window_entry(self, x: torch.Tensor) -> torch.Tensor:
        return straight_through(x, fp8_groups(x)) if self.rounds else x

    def compressed_entry(self, x: torch.Tensor) -> torch.Tensor:
        return straight_through(x, fp4_groups_e4m3(x)) if self.rounds else x

    def index_vector(self, x: torch.Tensor) -> torch.Tensor:
        return straight_through(x, fp4_groups(x)) if self.rounds else x


def as_stored(weight: torch.Tensor, storage: Storage) -> torch.Tensor:
    """Give a weight as its stored format would return it, with a straight-through gradient."""
    if storage == "fp32":
        return weight
    if storage == "bf16":
        return straight_through(weight, weight.detach().bfloat16().float())
    rounding = {"fp8": fp8_blocks, "fp4": fp4_groups, "engram": fp8_groups}[storage]
    return straight_through(weight, rounding(weight))
