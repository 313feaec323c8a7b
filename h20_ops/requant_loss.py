"""What re-encoding a weight cost, counted on a CPU or still on a GPU."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch

from h20_ops.errors import FormatError

COUNTERS = struct.Struct("=QfII12x")  # Loss of cuda/requant.cu
LOSS_SLOTS = 64


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What re-encoding cost: values changed, the largest change, the widest spread of scales.

    spread: binary places between the largest and the smallest scale inside one block; exponent byte 0,
        which stands for "nothing here", is left out.
    """

    num_values: int
    num_inexact: int
    max_abs_error: float
    spread: int

    @property
    def is_exact(self) -> bool:
        return self.num_inexact == 0

    def __str__(self) -> str:
        spread = f"scales inside a block span 2^{self.spread}"
        if self.is_exact:
            return f"exact: {self.num_values} values unchanged; {spread}"
        return (
            f"lossy: {self.num_inexact} of {self.num_values} values changed, by at most "
            f"{self.max_abs_error:.3g}; {spread}"
        )


class DeviceLoss:
    """Counters that a kernel on the current stream writes; `read` waits for it."""

    def __init__(self, *, num_values: int, scale: torch.Tensor, name: str) -> None:
        self.counters = torch.zeros(
            LOSS_SLOTS * COUNTERS.size, dtype=torch.uint8, device=scale.device
        )
        self._num_values, self._scale, self._name = num_values, scale, name

    def read(self) -> Loss:
        """Give the loss.

        Raises:
            FormatError: a NaN scale, an implausible one, or one that is no power of two.
        """
        slots = list(COUNTERS.iter_unpack(self.counters.cpu().numpy().tobytes()))
        num_inexact, errors, spreads, num_bad = zip(*slots, strict=True)
        if any(num_bad):
            from h20_ops.torch_ref.reblock import exponents_of

            exponents_of(self._scale, self._name)
            raise FormatError(
                f"scales of {self._name} had changed before they were looked at",
                "scales that stay as they are until the loss is read",
                "read the loss before the tensors are used again",
            )
        return Loss(
            num_values=self._num_values,
            num_inexact=sum(num_inexact),
            max_abs_error=max(errors),
            spread=max(spreads),
        )


@dataclass(frozen=True, kw_only=True)
class Reblocked:
    """e4m3 values (n, k), fp32 scales (n / 128, k / 128), both contiguous, and what it cost.

    counted: the loss, or where it is being counted; `loss` gives it, and on a GPU waits for it once.
    """

    values: torch.Tensor
    scales: torch.Tensor
    counted: Loss | DeviceLoss

    @cached_property
    def loss(self) -> Loss:
        return self.counted if isinstance(self.counted, Loss) else self.counted.read()


def total_loss(losses: Iterable[Loss]) -> Loss:
    """Give the loss of several tensors together."""
    given = list(losses)
    return Loss(
        num_values=sum(loss.num_values for loss in given),
        num_inexact=sum(loss.num_inexact for loss in given),
        max_abs_error=max((loss.max_abs_error for loss in given), default=0.0),
        spread=max((loss.spread for loss in given), default=0),
    )
