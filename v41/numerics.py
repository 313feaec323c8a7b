"""What is rounded where: one object per numeric mode.

    exact     nothing is rounded beyond fp32
    trained   the roundings the model was trained with: bf16 between sites, FP8 activations per 32
              channels before FP8 and FP4 linears, window entries FP8 per 32, compressed entries
              FP4 per 16, index vectors FP4 per 32, wo_a in bf16
    sm90      what the port computes: activations per 128 channels, FP8 weights re-encoded with
              128x128 blocks, wo_a in FP8 with FP8 activations; caches as trained

Each rounding passes gradients straight through, so the same code trains the canary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import torch

from h20_ops.formats import GROUP_RULES, GroupRule, dequantise_groups, quantise_groups

Mode = Literal["exact", "trained", "sm90"]


def straight_through(x: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """Give the rounded values forward and the identity backward."""
    return x + (rounded - x).detach()


def round_trip(x: torch.Tensor, rule: GroupRule) -> torch.Tensor:
    """Cast the last dimension by a rule and back, fp32."""
    with torch.no_grad():
        back = dequantise_groups(*quantise_groups(x, rule), rule)
    return straight_through(x, back)


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """The roundings of one mode; every method keeps the shape and returns fp32.

    Example:
        numerics = Numerics.of("trained")
        y = torch.nn.functional.linear(numerics.activation(x), weight)
    """

    mode: Mode
    rounds: bool
    activation_rule: GroupRule
    wo_a_rounds_activation: bool

    @classmethod
    def of(cls, mode: Mode) -> Self:
        return cls(
            mode=mode,
            rounds=mode != "exact",
            activation_rule=GROUP_RULES["fp8_128_pow2" if mode == "sm90" else "fp8_32_ue8m0"],
            wo_a_rounds_activation=mode == "sm90",
        )

    def bf16(self, x: torch.Tensor) -> torch.Tensor:
        """Round to bf16, as every tensor that travels between sites is stored."""
        return straight_through(x, x.bfloat16().float()) if self.rounds else x

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """Round the input of an FP8 or FP4 linear."""
        return round_trip(x, self.activation_rule) if self.rounds else x

    def window_entry(self, x: torch.Tensor) -> torch.Tensor:
        """Round a window KV entry to FP8 with a power-of-two scale per 32 channels."""
        return round_trip(x, GROUP_RULES["fp8_32_ue8m0"]) if self.rounds else x

    def compressed_entry(self, x: torch.Tensor) -> torch.Tensor:
        """Round a compressed KV entry to FP4 with an e4m3 scale per 16 channels."""
        return round_trip(x, GROUP_RULES["fp4_16_e4m3"]) if self.rounds else x

    def index_vector(self, x: torch.Tensor) -> torch.Tensor:
        """Round an index query or key to FP4 with a power-of-two scale per 32 channels."""
        return round_trip(x, GROUP_RULES["fp4_32_ue8m0"]) if self.rounds else x

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Apply an FP8 or FP4 linear: rounded input, fp32 sum, bf16 output.

        Args:
            x: fp32, (..., K).
            weight: fp32, (N, K), already the values that the mode's weight format can hold.
        Returns:
            fp32, (..., N).
        """
        return self.bf16(torch.nn.functional.linear(self.activation(x), weight))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, numerics: Numerics) -> torch.Tensor:
    """w * x * rsqrt(mean(x^2) + eps) over the last dimension, in fp32, then bf16.

    eps is 1e-20 in the release: an all-zero row gives 0, not NaN.
    """
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return numerics.bf16(weight * x * scale)
