"""Turn released FP4 and FP8 weights into what DeepGEMM's SM90 kernels multiply.

SM90 has no FP4 products and its FP8 kernels take one fp32 scale per 128x128 block, where the
release has one ue8m0 exponent per 32 values (experts) or per 32x32 block (dense). With powers of two
as block scales the change loses nothing as long as the old scales of a block stay close; what it
loses otherwise is counted and reported, never hidden.

    values, scales = requant_expert_fp4(weight, scale, name="layers.3.ffn.experts.0.w1")

h20_ops.reblock has the same operations with the loss as a value that is read from the GPU only when
asked for; the functions here ask. Leading dimensions, such as experts, may come before the two.
"""

from __future__ import annotations

import logging
from typing import Literal

import torch

from h20_ops.errors import FormatError
from h20_ops.reblock import reblock_fp4, reblock_fp8
from h20_ops.requant_loss import Loss

_LOG = logging.getLogger(__name__)

OnInexact = Literal["report", "refuse"]


def requant_expert_fp4(
    weight: torch.Tensor,
    scale: torch.Tensor,
    *,
    name: str = "expert weight",
    on_inexact: OnInexact = "report",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give an FP4 expert weight as e4m3 with 128x128 power-of-two scales.

    Exact while the exponents inside a block span at most 14.

    Args:
        weight: int8 or uint8, (..., n, k / 2), the even element of the k axis in the low nibble.
        scale: ue8m0 bytes (uint8, int8 or float8_e8m0fnu), (..., n, k / 32).
        name: what errors and the report call it.
        on_inexact: "report" logs a warning with count and error, "refuse" raises.
    Returns:
        float8_e4m3fn (..., n, k) and fp32 (..., n / 128, k / 128), contiguous.
    Raises:
        FormatError: a NaN or implausible scale, sizes that are not multiples of 128, or a loss
            that is refused.
    """
    result = reblock_fp4(weight, scale, name=name)
    _settle(name, result.loss, on_inexact)
    return result.values, result.scales


def requant_dense_fp8(
    weight: torch.Tensor,
    scale: torch.Tensor,
    *,
    name: str = "dense weight",
    on_inexact: OnInexact = "report",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give a dense FP8 weight with 32x32 scales as one with 128x128 power-of-two scales.

    Each new scale is the largest of its 16 old ones. A value changes only where it falls below
    2^-6 of the new scale, and then by at most 2^-10 of it.

    Args:
        weight: float8_e4m3fn (or its bytes as uint8), (..., n, k).
        scale: fp32 powers of two, or ue8m0 bytes, (..., n / 32, k / 32).
        name, on_inexact: as for requant_expert_fp4. Losses in the last places of small values are
            ordinary here; a report is logged at level INFO.
    Returns, raises:
        as requant_expert_fp4.
    """
    result = reblock_fp8(weight, scale, name=name)
    _settle(name, result.loss, on_inexact, level=logging.INFO)
    return result.values, result.scales


def _settle(name: str, loss: Loss, on_inexact: OnInexact, level: int = logging.WARNING) -> None:
    if loss.is_exact:
        return
    if on_inexact == "refuse":
        raise FormatError(
            f"{name} is {loss}",
            "scales that are close enough inside each 128x128 block for an exact change of format",
            "call again with on_inexact='report' to accept the loss, or check the checkpoint's scales",
        )
    _LOG.log(level, "%s: %s", name, loss)
