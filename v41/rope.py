"""Rotary embedding on the last channels of a vector, in interleaved pairs.

Channels (2i, 2i+1) of the rotary part are one pair: (e, o) -> (e cos - o sin, e sin + o cos).
Window-only layers use rope_theta as it is; layers that read compressed entries use
compress_rope_theta with YaRN and without its magnitude factor.
"""

from __future__ import annotations

import math

import torch

from v41.config import ModelConfig, RopeScaling


def pair_frequencies(theta: float, rotary_dim: int, scaling: RopeScaling | None) -> torch.Tensor:
    """Give radians per position of each pair, fp64 (rotary_dim / 2,)."""
    pairs = torch.arange(rotary_dim // 2, dtype=torch.float64)
    plain = theta ** (-2.0 * pairs / rotary_dim)
    if scaling is None:
        return plain

    def pair_of(rotations: float) -> float:
        """The pair that turns `rotations` times over the original context."""
        span = scaling.original_max_position_embeddings / (rotations * 2.0 * math.pi)
        return rotary_dim * math.log(span) / (2.0 * math.log(theta))

    low = max(math.floor(pair_of(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_of(scaling.beta_slow)), rotary_dim - 1)
    slow = ((pairs - low) / max(high - low, 1e-3)).clamp(0.0, 1.0)
    return plain * (1.0 - slow) + plain / scaling.factor * slow


class Rope:
    """Rotations of one layer kind."""

    def __init__(self, config: ModelConfig, *, compressed: bool) -> None:
        theta = config.compress_rope_theta if compressed else config.rope_theta
        scaling = config.rope_scaling if compressed else None
        self.rotary_dim = config.qk_rope_head_dim
        self._frequencies = pair_frequencies(theta, self.rotary_dim, scaling)

    def rotate(
        self, x: torch.Tensor, positions: torch.Tensor, *, inverse: bool = False
    ) -> torch.Tensor:
        """Rotate the last rotary_dim channels by their positions, or back.

        Args:
            x: (batch, rows, channels) or (batch, rows, heads, channels).
            positions: int64, (rows,).
        Returns:
            same shape and dtype; the other channels are unchanged.
        """
        angles = positions.double().unsqueeze(-1) * self._frequencies.to(positions.device)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        if inverse:
            sin = -sin
        if x.dim() == 4:
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        rest, rotary = x[..., : -self.rotary_dim], x[..., -self.rotary_dim :]
        even, odd = rotary[..., 0::2], rotary[..., 1::2]
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return torch.cat((rest, turned.flatten(-2)), dim=-1)
