"""Compare tensors and say where they differ most, or first."""

from __future__ import annotations

import torch

from h20_ops.testing.tolerances import Tolerance


def normalised_difference(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return 1 - 2 sum(xy) / sum(x^2 + y^2) in fp64: 0 for equal tensors, 2 for opposite ones.

    Upstream calls it the cosine difference; unlike a cosine it also sees a wrong length.
    Positions where both are the same infinity, or both NaN, are left out.
    """
    assert got.shape == want.shape, f"shapes differ: {tuple(got.shape)}, {tuple(want.shape)}"
    x, y = got.double().flatten(), want.double().flatten()
    left_out = (x.isinf() & (x == y)) | (x.isnan() & y.isnan())
    x, y = x[~left_out], y[~left_out]
    denominator = (x * x + y * y).sum()
    if float(denominator) == 0.0:
        return 0.0
    return float(1.0 - 2.0 * (x * y).sum() / denominator)


def check_close(name: str, got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance) -> str:
    """Assert that got is within tolerance of want and return one line about the distance.

    An element passes if it meets the absolute or the relative bound. Infinities and NaN must stand
    at the same coordinates. The whole must meet the bound on the normalised difference.
    """
    assert got.shape == want.shape, f"{name}: shape {tuple(got.shape)}, want {tuple(want.shape)}"
    x, y = got.double(), want.double()
    same_special = torch.where(y.isfinite(), x.isfinite(), (x == y) | (x.isnan() & y.isnan()))
    if not bool(same_special.all()):
        at = _first(~same_special)
        raise AssertionError(f"{name}: {_pair(x, y, at)} at {at}: infinities or NaN must agree")
    error = torch.where(y.isfinite(), (x - y).abs(), torch.zeros_like(y))
    relative = error / y.abs().clamp_min(1e-300)
    excess = torch.minimum(error / tolerance.abs, relative / tolerance.rel)
    excess = torch.where(error == 0, torch.zeros_like(excess), excess)
    difference = normalised_difference(got, want)
    worst = float(excess.max()) if excess.numel() else 0.0
    if worst > 1.0:
        at = _coordinate(int(excess.argmax()), tuple(excess.shape))
        raise AssertionError(
            f"{name}: {_pair(x, y, at)} at {at}: abs error {float(error[at]):.3e}, relative "
            f"{float(relative[at]):.3e}; allowed abs {tolerance.abs:.3e} or relative "
            f"{tolerance.rel:.3e}; {int((excess > 1).sum())} of {excess.numel()} elements are out, "
            f"normalised difference {difference:.3e}"
        )
    assert difference <= tolerance.normalised, (
        f"{name}: normalised difference {difference:.3e} is over {tolerance.normalised:.3e}, "
        f"though every element is within its bound (worst at {worst:.2f} of it)"
    )
    return (
        f"{name}: worst element at {worst:.2f} of its bound, normalised difference {difference:.1e}"
    )


def check_bitwise(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    """Assert equal bytes; else name the first differing byte, element, coordinate and values."""
    assert got.shape == want.shape and got.dtype == want.dtype, (
        f"{name}: {tuple(got.shape)} {got.dtype}, want {tuple(want.shape)} {want.dtype}"
    )
    size = got.element_size()
    x = got.contiguous().view(torch.uint8).flatten()
    y = want.contiguous().view(torch.uint8).flatten()
    differs = x != y
    if not bool(differs.any()):
        return
    byte = int(differs.to(torch.uint8).argmax())
    at = _coordinate(byte // size, tuple(got.shape))
    raise AssertionError(
        f"{name}: first difference at byte {byte} (element {byte // size}, coordinate {at}): "
        f"bytes 0x{int(x[byte]):02x} and 0x{int(y[byte]):02x}, "
        f"values {got[at].item()} and {want[at].item()}; "
        f"{int(differs.sum())} of {differs.numel()} bytes differ"
    )


def _first(mask: torch.Tensor) -> tuple[int, ...]:
    return _coordinate(int(mask.flatten().to(torch.uint8).argmax()), tuple(mask.shape))


def _coordinate(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    at: list[int] = []
    for length in reversed(shape):
        at.append(flat % length)
        flat //= length
    return tuple(reversed(at))


def _pair(x: torch.Tensor, y: torch.Tensor, at: tuple[int, ...]) -> str:
    return f"got {float(x[at])!r}, want {float(y[at])!r}"
