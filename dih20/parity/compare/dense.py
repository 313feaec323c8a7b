"""Measure how far two float tensors are apart, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

PIECE = 1 << 21  # elements compared at once
_WIDE = 1e15  # beyond this magnitude squares leave fp32


@dataclass(kw_only=True)
class DenseDistance:
    """What is gathered over the pieces; `normalised` is 0 for equal tensors, 2 for opposite ones."""

    gap: float = 0.0
    energy: float = 0.0
    max_ulp: int = 0
    num_different: int = 0
    nan_both: int = 0
    not_finite_once: int = 0
    worst: float = -1.0
    flat: int = -1
    a: float = 0.0
    b: float = 0.0
    count: int = 0
    shape: tuple[int, ...] = field(default=())

    @property
    def normalised(self) -> float:
        if self.not_finite_once:
            return float("nan")
        return self.gap / self.energy if self.energy else 0.0

    @property
    def coordinate(self) -> tuple[int, ...]:
        """Give where the difference is largest, () when there is none."""
        return unflatten(self.flat, self.shape) if self.flat >= 0 else ()


def unflatten(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Turn a flat index into coordinates."""
    at: list[int] = []
    for length in reversed(shape):
        at.append(flat % length)
        flat //= length
    return tuple(reversed(at))


def dense_distance(
    pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], shape: tuple[int, ...]
) -> DenseDistance:
    """Measure over pairs of flat pieces that follow each other.

    Infinities that agree are left out; one that does not makes the result NaN. NaN on both sides is
    counted, and left to the caller.
    """
    out = DenseDistance(shape=shape)
    for a, b in pairs:
        _add(out, a, b)
    return out


def _add(out: DenseDistance, a: torch.Tensor, b: torch.Tensor) -> None:
    x, y = a.float(), b.float()
    both = torch.cat((x, y))
    low, high = (float(value) for value in torch.aminmax(both)) if both.numel() else (0.0, 0.0)
    if not (low > float("-inf") and high < float("inf")):
        x, y = _without_special(out, x, y)
        low, high = (float(value) for value in torch.aminmax(torch.cat((x, y))))
    if max(-low, high) > _WIDE:
        x, y = x.double(), y.double()
    gap = x - y
    num_different = int(torch.count_nonzero(gap))
    out.energy += float(torch.dot(x, x)) + float(torch.dot(y, y))
    if num_different:
        out.gap += float(torch.dot(gap, gap))
        out.num_different += num_different
        at = int(gap.abs().argmax())
        if float(gap[at].abs()) > out.worst:
            out.worst, out.flat = float(gap[at].abs()), out.count + at
            out.a, out.b = float(x[at]), float(y[at])
        out.max_ulp = max(out.max_ulp, max_ulp(a, b))
    out.count += x.numel()


def _without_special(
    out: DenseDistance, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    nan_both = x.isnan() & y.isnan()
    same = nan_both | (x.isinf() & (x == y))
    bad = ~same & ~(x.isfinite() & y.isfinite())
    out.nan_both += int(nan_both.sum())
    if bool(bad.any()):
        out.not_finite_once += int(bad.sum())
        if out.worst < float("inf"):
            at = int(bad.to(torch.uint8).argmax())
            out.worst, out.flat = float("inf"), out.count + at
            out.a, out.b = float(x[at]), float(y[at])
    zero = torch.zeros_like(x)
    left_out = same | bad
    return torch.where(left_out, zero, x), torch.where(left_out, zero, y)


def max_ulp(a: torch.Tensor, b: torch.Tensor) -> int:
    """Give the largest distance in steps of the coarser of the two dtypes; NaN counts as 0."""
    dtype = torch.bfloat16 if torch.bfloat16 in (a.dtype, b.dtype) else torch.float32
    integer, largest = (
        (torch.int16, 0x7FFF) if dtype is torch.bfloat16 else (torch.int32, 0x7FFFFFFF)
    )
    x, y = (torch.nan_to_num(t.to(dtype)).contiguous().view(integer) for t in (a, b))
    if not x.numel():
        return 0
    other_sign = (x ^ y) < 0
    x, y = x & largest, y & largest
    steps = int((x - y).abs().max())
    if bool(other_sign.any()):  # the way between them leads through zero
        steps = int((x - y).abs().masked_fill(other_sign, 0).max())
        steps = max(steps, int((x[other_sign].long() + y[other_sign].long()).max()))
    return steps
